"""The only module that reads the clock of the machine.

Everything that needs the time takes a `Clock`, so that a test can pass a virtual one.
"""

import time as machine  # the class below has a `time` of its own
from threading import get_ident
from typing import Protocol


class Clock(Protocol):
    """A source of time: monotonic for durations, wall time for people and records."""

    def monotonic(self) -> float:
        """Return seconds since some fixed point; never decreases."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the fixed point of `monotonic`."""
        ...

    def time(self) -> float:
        """Return seconds since 1970 (UTC); may jump when the machine's clock is set."""
        ...

    def time_ns(self) -> int:
        """Return nanoseconds since 1970 (UTC)."""
        ...


class SystemClock:
    """The clock of the machine, with no Python frame between caller and system."""

    __slots__ = ()

    monotonic = staticmethod(machine.monotonic)
    monotonic_ns = staticmethod(machine.monotonic_ns)
    time = staticmethod(machine.time)
    time_ns = staticmethod(machine.time_ns)


class BootClock:
    """Counts from the boot of the machine, including sleep; not moved by setting the wall clock.

    All processes of one machine read the same time, until it reboots.
    """

    __slots__ = ()

    @staticmethod
    def seconds() -> float:
        """Return seconds since the machine booted."""
        clock = getattr(machine, "CLOCK_BOOTTIME", machine.CLOCK_MONOTONIC)
        return machine.clock_gettime(clock)

    @staticmethod
    def suspended() -> float:
        """Return for how long the machine was suspended, which `monotonic` does not count."""
        return BootClock.seconds() - machine.monotonic()


class ThreadClock:
    """Counts the seconds for which one thread has used a core; other threads may ask it."""

    __slots__ = ("_clock",)

    def __init__(self) -> None:
        """Count for the running thread."""
        find = getattr(machine, "pthread_getcpuclockid", None)  # not on every system
        self._clock: int | None = None if find is None else find(get_ident())

    def seconds(self) -> float | None:
        """Return the seconds; None if they are not known here, or the thread has ended."""
        if self._clock is None:
            return None
        try:
            return machine.clock_gettime(self._clock)
        except OSError:
            return None
