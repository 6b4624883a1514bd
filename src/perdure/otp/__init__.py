"""OTP on the kernel: tasks, agents, servers, supervisors."""
