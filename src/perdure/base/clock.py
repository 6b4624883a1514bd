"""The only door to the time of the machine.

Everything that asks for the time takes a `Clock`,
so that a test can put a virtual one in its place.
"""

import time as machine  # the class below has a `time` of its own
from typing import Protocol


class Clock(Protocol):
    """Tells the time: monotonic for spans of time, wall time for people and records."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since the fixed point of `monotonic`."""
        ...

    def time(self) -> float:
        """Seconds since 1970 (UTC); may jump when the machine's clock is set."""
        ...

    def time_ns(self) -> int:
        """Nanoseconds since 1970 (UTC)."""
        ...


class SystemClock:
    """The clock of the machine; without a Python frame between caller and system."""

    __slots__ = ()

    monotonic = staticmethod(machine.monotonic)
    monotonic_ns = staticmethod(machine.monotonic_ns)
    time = staticmethod(machine.time)
    time_ns = staticmethod(machine.time_ns)


class BootClock:
    """Counts from the start of the machine, sleep included: no set wall clock moves it.

    All processes of one machine read the same time, until it starts anew.
    """

    __slots__ = ()

    @staticmethod
    def seconds() -> float:
        """Seconds since the machine started."""
        clock = getattr(machine, "CLOCK_BOOTTIME", machine.CLOCK_MONOTONIC)
        return machine.clock_gettime(clock)
