"""Attendance: whether a worker is there for what is submitted; if not, a warning, never an error.

A job in a queue that nobody serves, or of a version that nobody knows, waits without a word. So a
submission looks which workers are alive. That is read at most every few seconds, and not at all
where a worker of the same app runs beside the caller: a submission costs what it did before.
"""

import logging
from typing import Final

from perdure.base.clock import SystemClock
from perdure.base.errors import StoreError
from perdure.engine import events
from perdure.jobs.fleet import Fleet
from perdure.jobs.model import NewJob
from perdure.store.store import Store

_log = logging.getLogger("perdure.jobs")

# A worker without a heartbeat for this many seconds does not count; it sends one every thirty.
SILENT: Final = 90.0

# How long what was read is believed: less long if somebody may be about to start a worker.
_BELIEVED: Final = 10.0
_DOUBTED: Final = 1.0
_WARN_EVERY: Final = 60.0


class Attendance:
    """Which workers are there, as far as one caller knows; it may be asked from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = SystemClock()
        self._fleet: Fleet | None = None
        self._read_at = 0.0
        self._warned: dict[str, float] = {}  # when, by what was missing

    def forget(self) -> None:
        """Read it again next time: a store that was closed may be another one when it is opened."""
        self._fleet = None

    async def missing(self, job: NewJob, job_id: str) -> str | None:
        """Return why no worker can claim a submitted job, and warn of it; None if one can."""
        try:
            why = await self._why_waiting(job)
        except StoreError:  # the job is stored: nothing else matters
            return None
        if why is not None:
            events.unserved(job, job_id, why)
            self._warn(why, job_id)
        return why

    async def _why_waiting(self, job: NewJob) -> str | None:
        fleet, age = self._fleet, self._clock.monotonic() - self._read_at
        why = None if fleet is None else fleet.why_waiting(job)
        if fleet is None or age > (_BELIEVED if why is None else _DOUBTED):
            self._read_at = self._clock.monotonic()
            self._fleet = await self._store.fleet(SILENT)
            why = self._fleet.why_waiting(job)
        return why

    def _warn(self, why: str, job_id: str) -> None:
        now = self._clock.monotonic()
        if now - self._warned.get(why, -_WARN_EVERY) >= _WARN_EVERY:
            self._warned[why] = now
            _log.warning("%s: job %s waits until that changes", why, job_id)
