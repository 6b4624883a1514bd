"""What running steps report of their progress, written in batches: one write for all of a worker.

It is only for people: a report that is lost is followed by a newer one, and nothing continues from
it. So a call of `ctx.progress` or `ctx.heartbeat` costs no write, and no write is repeated.
"""

import asyncio
import logging
from typing import Protocol

import msgspec

from perdure.base.errors import StoreError
from perdure.jobs.model import Job, Progress
from perdure.process.lifecycle import PLAIN, spawn_process
from perdure.process.process import ProcessRuntime
from perdure.store.store import Store

_log = logging.getLogger("perdure.worker")


class ReportingRun(Protocol):
    """A run of a job whose steps report."""

    job: Job
    epoch: int

    @property
    def is_over(self) -> bool: ...

    def reports(self) -> list[Progress]:
        """Return what its running steps report."""
        ...


class ProgressReports:
    """Writes, every few seconds at most, the newest reports of the runs of one worker."""

    def __init__(self, store: Store, owner: str, runtime: ProcessRuntime, every: float) -> None:
        self._store = store
        self._owner = owner
        self._runtime = runtime
        self._every = every
        self._changed: set[ReportingRun] = set()
        self._timer: asyncio.TimerHandle | None = None

    def soon(self, run: ReportingRun) -> None:
        """Write soon what the running steps of a run report."""
        self._changed.add(run)
        if self._timer is None:
            self._timer = self._runtime.loop.call_later(self._every, self._start)

    def close(self) -> None:
        """Write nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        self._timer = None
        runs, self._changed = self._changed, set()
        reports = [
            (run.job.id, run.epoch, msgspec.json.encode(run.reports()))
            for run in runs
            if not run.is_over
        ]
        if reports:
            spawn_process(self._runtime, None, self._write, (reports,), PLAIN)

    async def _write(self, reports: list[tuple[str, int, bytes]]) -> None:
        try:
            await self._store.report(self._owner, reports)
        except StoreError as error:
            _log.debug("reporting progress: %s", error)
