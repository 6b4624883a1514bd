"""Tools for testing programs made of processes.

    @simulated
    async def test_a_worker_answers() -> None:
        ...

The test runs as the root process on a virtual clock: hours pass in no time, and the test fails if
timers or tasks are left at its end.
"""

from perdure.testing.clock import Deadlock, VirtualClock, VirtualLoop
from perdure.testing.simulation import Leak, simulate, simulated

__all__ = ["Deadlock", "Leak", "VirtualClock", "VirtualLoop", "simulate", "simulated"]
