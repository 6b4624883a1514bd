"""Waiting for jobs to end: however many wait, the store is asked for all of them at once."""

import asyncio
import contextlib
import logging
from contextvars import Context

from perdure.base.errors import JobNotFound, StoreError
from perdure.base.retry import pause
from perdure.jobs.failure import Failure
from perdure.jobs.model import Outcome
from perdure.jobs.state import ENDED, JobState
from perdure.store.port import Store

_log = logging.getLogger("perdure.jobs")

# Hints tell when to look; this is how often to look without one.
_LOOK_EVERY = 0.5

# Between two looks, so that a busy store is not asked after each of its writes.
_AT_MOST_EVERY = 0.005


def reason_of(outcome: Outcome) -> str:
    """Say in one line why a job ended without a result, or is parked."""
    error = outcome.error
    return "no reason is known" if error is None else Failure.unpack(error).summary()


class Awaiting:
    """Who waits for which job, on one loop.

    What it does on its own it does in an empty context: it belongs to no process,
    and so outlives whoever was the first to wait.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[str, dict[asyncio.Future[Outcome], frozenset[JobState]]] = {}
        self.parked: dict[str, str] = {}  # of the jobs waited for: why, as a person was told
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def reached(self, job_id: str, states: frozenset[JobState] = ENDED) -> Outcome:
        """Wait until a job is in one of these states, or has ended in whichever."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self._waiters.setdefault(job_id, {})[future] = states
        self._changed.set()
        if self._task is None:
            self._task = Context().run(loop.create_task, self._watch())
        try:
            return await future
        finally:
            self._forget(job_id, future)

    def _forget(self, job_id: str, future: "asyncio.Future[Outcome]") -> None:
        waiters = self._waiters.get(job_id, {})
        waiters.pop(future, None)
        if not waiters:
            self._waiters.pop(job_id, None)
        if not self._waiters:
            self._changed.set()  # nobody waits: the watch ends

    async def _watch(self) -> None:
        """Look whenever something has changed, as long as anybody waits."""
        unwatch = self._store.watch(self._changed.set)
        try:
            while self._waiters:
                self._changed.clear()
                with contextlib.suppress(StoreError):  # the next look tells
                    await self._look()
                await pause(_AT_MOST_EVERY)
                if self._waiters:
                    await self._hint()
        except Exception as error:  # noqa: BLE001 - those who wait get it
            self.close(error)
        finally:
            unwatch()
            self.parked.clear()
            self._task = None

    async def _look(self) -> None:
        asked_for = list(self._waiters)
        outcomes = {each.job_id: each for each in await self._store.outcomes(asked_for)}
        for job_id in asked_for:
            outcome = outcomes.get(job_id)
            if outcome is None:  # it is old, and was deleted
                self._settle(job_id, JobNotFound(job_id))
            else:
                self._settle(job_id, outcome)
                self._note_parked(outcome)

    def _settle(self, job_id: str, answer: Outcome | Exception) -> None:
        for future, states in tuple(self._waiters.get(job_id, {}).items()):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            elif answer.state in states or answer.state in ENDED:
                future.set_result(answer)
            else:
                continue
            self._forget(job_id, future)

    def _note_parked(self, outcome: Outcome) -> None:
        """Say once why those who wait may wait for long."""
        if outcome.state is not JobState.ATTENTION:
            self.parked.pop(outcome.job_id, None)
        elif outcome.job_id in self._waiters and outcome.job_id not in self.parked:
            why = self.parked[outcome.job_id] = reason_of(outcome)
            _log.warning(
                "job %s is parked, and who waits for its result waits for a person: %s. "
                "Look at it (perdure jobs show), then resume, retry, compensate or cancel it",
                outcome.job_id,
                why,
            )

    def close(self, error: Exception) -> None:
        """Let nobody wait any longer."""
        for job_id in tuple(self._waiters):
            self._settle(job_id, error)
        self._changed.set()

    async def _hint(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY):
                await self._changed.wait()
