"""A store whose clock a test sets, as an administrator or a time server would; and a suspension.

Only the wall clock moves: the clock of the loop and, on SQLite, the clock of the leases go on as
before. On PostgreSQL all is by the server's clock, so the leases move too.
"""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Self

import pytest

import perdure
from perdure.app import App
from perdure.base.clock import BootClock, SystemClock
from perdure.store.open import open_store
from perdure.store.store import Store
from perdure.testing.postgres_time import PostgresTime
from tests.support.engine import QUICK


class SetClock(SystemClock):
    """A clock of the machine whose wall time somebody sets."""

    __slots__ = ("ahead", "passed")

    def __init__(self) -> None:
        self.ahead = self.passed = 0.0

    def time(self) -> float:
        return SystemClock().time() + self.passed + self.ahead

    def monotonic(self) -> float:
        """Return what SQLite's leases go by when no clock is given."""
        return BootClock.seconds() + self.passed


class StoreClock:
    """The clock of the store at a URL, on either database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock: SetClock | None = None
        self._server: PostgresTime | None = None
        if url.startswith("sqlite"):
            self.clock = SetClock()
        else:
            self._server = PostgresTime(url)
            self.url = self._server.url

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        if self.clock is not None:
            self.clock.ahead += seconds
        if self._server is not None:
            self._server.skip(seconds)

    def let_pass(self, seconds: float) -> None:
        """Let time pass, by all clocks of the store."""
        if self.clock is not None:
            self.clock.passed += seconds
        if self._server is not None:
            self._server.skip(seconds)

    async def open(self) -> Store:
        """Open a store that goes by this clock."""
        store = open_store(self.url, clock=self.clock)
        await store.open()
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()


Test = Callable[[App, StoreClock], Coroutine[Any, Any, None]]


def with_set_clock(test: Test) -> Callable[..., None]:
    """Run a test as root process with an open app on the store `url`, and with its clock."""

    def run(url: str) -> None:
        async def main() -> None:
            with StoreClock(url) as clock:
                app = App(clock.url, worker=QUICK)
                app.clock = clock.clock
                try:
                    await test(app, clock)
                finally:
                    await app.close()

        perdure.run(main)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def suspend(machine: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the machine have been suspended: the monotonic clock did not count, the others did."""
    read, wall = time.clock_gettime, time.time

    def clock_gettime(clock: int) -> float:
        return read(clock) + (seconds if clock == time.CLOCK_BOOTTIME else 0.0)

    machine.setattr(time, "clock_gettime", clock_gettime)
    machine.setattr(SystemClock, "time", staticmethod(partial(_later, wall, seconds)))


def _later(read: Callable[[], float], seconds: float) -> float:
    return read() + seconds
