"""What a part of a worker does while the store fails: ask ever more seldom, and say so once."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from perdure.base.backoff import Retry
from perdure.base.errors import StoreError
from perdure.base.retry import pause

_log = logging.getLogger("perdure.worker")

_PAUSES: Final = Retry(first="250ms", most="5s", jitter=0.5)
_SAY_AGAIN_AFTER: Final = 60.0


class Outage:
    """Counts the failures of one part; logs when they begin, once a minute, and when they end."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self._what = what
        self._clock = clock
        self._failures = 0
        self._said_at: float | None = None
        self._is_told = False  # that it has begun, but not that it is over

    @property
    def delay(self) -> float:
        """The seconds to wait before the store is asked again; 0 while it answers."""
        return _PAUSES.delay(self._failures)

    def failed(self, error: StoreError) -> None:
        """Take note of a failure."""
        self._failures += 1
        now = self._clock()
        if self._said_at is None or now - self._said_at >= _SAY_AGAIN_AFTER:
            self._said_at, self._is_told = now, True
            _log.warning("%s: %s; trying again, ever more seldom", self._what, error)

    def over(self) -> None:
        """Take note that the store did what was asked."""
        if self._is_told:
            _log.warning("%s: the store works again", self._what)
        self._failures, self._is_told = 0, False


async def repeat(
    what: str,
    work: Callable[[], Awaitable[object]],
    every: float,
    clock: Callable[[], float],
    failed: Callable[[], None] = lambda: None,
) -> None:
    """Do something again and again, for ever; while the store fails, ever more seldom."""
    outage = Outage(what, clock)
    while True:
        try:
            await work()
            outage.over()
        except StoreError as error:
            failed()
            outage.failed(error)
        await pause(max(every, outage.delay))
