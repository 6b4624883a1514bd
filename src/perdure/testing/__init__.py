"""Tools to test programs made of processes.

    @simulated
    async def test_a_worker_answers() -> None:
        ...

The test runs as root process on a virtual clock: hours pass at once, and nothing may be left.
"""

from perdure.testing.clock import Deadlock, VirtualClock, VirtualLoop
from perdure.testing.simulation import Leak, simulate, simulated

__all__ = ["Deadlock", "Leak", "VirtualClock", "VirtualLoop", "simulate", "simulated"]
