"""The worker: claims jobs, keeps their leases, and has duties. `worker.working` runs one."""
