"""A handle to a submitted job: read its state, wait for its end, command it.

However many handles wait for jobs, the store is asked for all of these jobs in one query, and only
after a hint that something has changed, or twice a second. See `JobWaits`.
"""

import asyncio
import contextlib
import logging
from contextvars import Context
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from perdure.base.codec import decode, encode
from perdure.base.duration import Duration, job_seconds, spell
from perdure.base.errors import JobFailed, JobNotFound, JobParked, StoreError
from perdure.base.retry import pause
from perdure.engine.submission import new_id
from perdure.jobs.budget import Budget
from perdure.jobs.definition import JobDefinition
from perdure.jobs.effect import Choice, Effect
from perdure.jobs.failure import Failure
from perdure.jobs.model import Command, Job, JobEvent, JobOutcome, JournalEntry, NewJob
from perdure.jobs.saga import LEFT_UNDONE
from perdure.jobs.state import ENDED, JobState
from perdure.jobs.text_limits import check_given
from perdure.store.store import Store

_log = logging.getLogger("perdure.jobs")

R = TypeVar("R")

IfParked: TypeAlias = Literal["wait", "raise"]
_ALSO_PARKED = frozenset({JobState.NEEDS_ATTENTION})


class Handle(Generic[R]):
    """A submitted job."""

    def __init__(
        self,
        store: Store,
        waits: "JobWaits",
        job_id: str,
        definition: "JobDefinition[Any, R] | None",
        *,
        new: bool,
    ) -> None:
        self._store = store
        self._waits = waits
        self._definition = definition
        self.id = job_id
        self.new = new  # False: a job with this key was submitted before

    def __repr__(self) -> str:
        return f"<handle of job {self.id}>"

    # Reading

    async def job(self) -> Job:
        """Return the job as it is now.

        Raises:
            JobNotFound: It was deleted, or never existed.
        """
        job = await self._store.job(self.id)
        if job is None:
            raise JobNotFound(self.id)
        return job

    async def status(self) -> JobState:
        """Return the state of the job."""
        return (await self.job()).state

    async def journal(self) -> list[JournalEntry]:
        """Return what the job has done, in order."""
        return await self._store.journal(self.id)

    async def effects(self) -> list[Effect]:
        """Return the effects of the job on the outside world, in order, with those in doubt."""
        return await self._store.effects(self.id)

    async def budget(self) -> Budget | None:
        """Return the budget that the job shares with its tree and its forks, and what is spent."""
        job = await self.job()
        return await self._store.budget(job.budget_of or job.id)

    async def events(self) -> list[JobEvent]:
        """Return the log of the job, in order."""
        found: list[JobEvent] = []
        while page := await self._store.events(self.id, after=found[-1].no if found else 0):
            found += page
        return found

    async def wait(self, timeout: Duration = None) -> JobState:
        """Wait until the job has ended in any way, and return its state.

        Raises:
            TimeoutError: It has not ended in time; it continues.
        """
        return (await self._reached(timeout)).state

    async def result(self, timeout: Duration = None, *, if_parked: IfParked = "wait") -> R:
        """Wait for the result of the job, and return it.

        A job that is parked (NEEDS_ATTENTION) has not ended: once a person has resumed it, it may
        still return a result. That it is parked, and why, is logged once as a warning.

        Args:
            timeout: How long to wait; None is for ever.
            if_parked: "raise" if nobody is there to review a parked job.

        Raises:
            JobFailed: The job ended without a result.
            JobParked: It is parked, and `if_parked` is "raise".
            TimeoutError: It has not ended in time; it continues.
        """
        states = _ALSO_PARKED if if_parked == "raise" else frozenset[JobState]()
        outcome = await self._reached(timeout, states)
        if outcome.state is JobState.NEEDS_ATTENTION:
            raise JobParked(self.id, reason_of(outcome))
        if outcome.state is not JobState.COMPLETED or outcome.result is None:
            raise JobFailed(self.id, outcome.state, reason_of(outcome))
        if self._definition is None:
            return decode(outcome.result, Any)
        return self._definition.unpack_result(outcome.result)

    async def until(self, *states: JobState, timeout: Duration = None) -> JobState:
        """Wait until the job is in one of these states, or has ended; return its state.

        Raises:
            TimeoutError: The job did not reach one of them in time; it continues.
        """
        return (await self._reached(timeout, frozenset(states))).state

    async def failure(self) -> Failure | None:
        """Return why the job failed or needs attention; None if it does neither."""
        error = (await self.job()).error
        return None if error is None else Failure.unpack(error)

    async def _reached(
        self, timeout: Duration, states: frozenset[JobState] = frozenset()
    ) -> JobOutcome:
        limit = job_seconds(timeout)
        try:
            async with asyncio.timeout(limit):
                return await self._waits.reached(self.id, states)
        except TimeoutError:
            why = self._waits.parked.get(self.id)
            parked = "" if why is None else f": it is parked, and waits for a person: {why}"
            text = f"job {self.id} has not ended within {spell(limit or 0)}{parked}"
            raise TimeoutError(text) from None

    # Commands

    async def send(self, topic: str, payload: Any = None, *, key: str | None = None) -> bool:
        """Send the job a message, for its `ctx.receive`; False if this key was sent before."""
        check_given(topic=topic, key=key)
        data = encode(payload, what=f"message {topic!r}", kind="message")
        return await self._store.send(self.id, topic, data, key)

    async def cancel(self, reason: str = "", *, by: str = "") -> None:
        """Cancel the job: its running steps get CANCEL, and are killed after a grace period."""
        await self._command("cancel", by, reason)

    async def pause(self, reason: str = "", *, by: str = "") -> None:
        """Pause the job: its running steps end, and nothing else begins until `resume`."""
        await self._command("pause", by, reason)

    async def resume(self, reason: str = "", *, by: str = "") -> None:
        """Continue a paused or parked job; what parked it gets a fresh set of attempts."""
        await self._command("resume", by, reason)

    async def retry(self, step: str | None = None, reason: str = "", *, by: str = "") -> None:
        """Run a failed job again from where it failed, or from this step."""
        seq = None if step is None else (await self._entry(step)).seq
        await self._command("retry", by, reason, seq=seq)

    async def skip(self, step: str, reason: str, *, output: Any = None, by: str = "") -> None:
        """Record a step as done with this output, because somebody did it by hand."""
        entry = await self._entry(step)
        await self._command("skip", by, reason, seq=entry.seq, output=encode(output))

    async def compensate(self, reason: str = "", *, by: str = "") -> None:
        """Undo what a failed, cancelled or parked job has done."""
        await self._command("compensate", by, reason)

    async def resolve(
        self, effect: int, choice: Choice, *, result: Any = None, reason: str = "", by: str = ""
    ) -> None:
        """Settle an effect that is in doubt, by its number in the ledger.

        Args:
            effect: Its number.
            choice: "happened", with the `result` that the call would have returned;
                "did not happen": it is called again; "compensate": everything is undone.
            result: What the receiver returned.
            reason: How this is known.
            by: Who says so.

        Raises:
            IllegalTransition: That effect is not in doubt.
        """
        output = encode(result) if choice == "happened" else None
        await self._command("resolve", by, reason, effect=effect, choice=choice, output=output)

    async def abandon_undo(self, undo: str, reason: str, *, by: str = "") -> None:
        """Continue an undo without this part ("undo:charge#1"), which failed."""
        await self.skip(undo, reason, output=LEFT_UNDONE, by=by)

    async def fork(self, before: str, *args: Any, by: str = "", **kwargs: Any) -> "Handle[R]":
        """Submit a copy that has done everything before this step; return its handle.

        The copy may have other arguments. The person who passes them becomes its requester, so that
        the four-eyes rule applies to them.

        Raises:
            LookupError: The job has no such step.
        """
        check_given(by=by)
        job, entry = await self.job(), await self._entry(before)
        packed, requester = job.input, job.user
        if args or kwargs:
            if self._definition is None:
                raise ValueError("a plan cannot be forked with other arguments")
            packed, requester = self._definition.pack(args, kwargs), by
        copy = NewJob(
            id=new_id(),
            tenant=job.tenant,
            user=requester,
            name=job.name,
            version=job.version,
            input=packed,
            plan=job.plan,
            queue=job.queue,
            priority=job.priority,
            deadline=None if self._definition is None else self._definition.timeout,
            forked_from=job.forked_from or job.id,
            budget_of=job.budget_of or job.id,
        )
        await self._store.fork(job.id, copy, entry.seq, by)
        return Handle(self._store, self._waits, copy.id, self._definition, new=True)

    async def _entry(self, step: str) -> JournalEntry:
        wanted = step if "#" in step else f"{step}#1"
        for entry in await self.journal():
            if entry.id == wanted:
                return entry
        raise LookupError(f"job {self.id} has no step {wanted!r} in its journal")

    async def _command(
        self,
        action: str,
        actor: str,
        reason: str,
        **more: Any,
    ) -> None:
        check_given(by=actor, reason=reason)
        asked = Command(job_id=self.id, action=action, actor=actor, reason=reason, **more)
        await self._store.command(asked)


# Waiting

# How often to query without a hint.
_LOOK_EVERY = 0.5

# The pause between two queries, so that a busy store is not queried after each of its writes.
_AT_MOST_EVERY = 0.005


def reason_of(outcome: JobOutcome) -> str:
    """Return in one line why a job ended without a result, or is parked."""
    error = outcome.error
    return "no reason is known" if error is None else Failure.unpack(error).summary()


class JobWaits:
    """All waits of one app for jobs, on one loop.

    One task serves all of them, for as long as anybody waits. It runs in an empty context, so that
    it belongs to no process: otherwise it would die with the process that waited first.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[str, dict[asyncio.Future[JobOutcome], frozenset[JobState]]] = {}
        self.parked: dict[str, str] = {}  # why, by the id of a job that is waited for
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def reached(self, job_id: str, states: frozenset[JobState] = ENDED) -> JobOutcome:
        """Return the outcome of a job once it is in one of these states, or has ended."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[JobOutcome] = loop.create_future()
        self._waiters.setdefault(job_id, {})[future] = states
        self._changed.set()
        if self._task is None:
            self._task = Context().run(loop.create_task, self._watch())
        try:
            return await future
        finally:
            self._forget(job_id, future)

    def _forget(self, job_id: str, future: "asyncio.Future[JobOutcome]") -> None:
        waiters = self._waiters.get(job_id, {})
        waiters.pop(future, None)
        if not waiters:
            self._waiters.pop(job_id, None)
        if not self._waiters:
            self._changed.set()  # nobody waits any more: the task ends

    async def _watch(self) -> None:
        """Query the store after each hint, for as long as anybody waits."""
        unwatch = self._store.watch(self._changed.set)
        try:
            while self._waiters:
                self._changed.clear()
                with contextlib.suppress(StoreError):  # the next query will show it
                    await self._look()
                await pause(_AT_MOST_EVERY)
                if self._waiters:
                    await self._hint()
        except Exception as error:  # noqa: BLE001 - raised to those who wait
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
            if outcome is None:  # it was pruned
                self._settle(job_id, JobNotFound(job_id))
            else:
                self._settle(job_id, outcome)
                self._note_parked(outcome)

    def _settle(self, job_id: str, answer: JobOutcome | Exception) -> None:
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

    def _note_parked(self, outcome: JobOutcome) -> None:
        """Log once why the wait for a job may take long."""
        if outcome.state is not JobState.NEEDS_ATTENTION:
            self.parked.pop(outcome.job_id, None)
        elif outcome.job_id in self._waiters and outcome.job_id not in self.parked:
            why = self.parked[outcome.job_id] = reason_of(outcome)
            _log.warning(
                "job %s needs attention, and its result waits for a person: %s. "
                "Review it (perdure jobs show), then resume, retry, compensate or cancel it",
                outcome.job_id,
                why,
            )

    def close(self, error: Exception) -> None:
        """End all waits with an error."""
        for job_id in tuple(self._waiters):
            self._settle(job_id, error)
        self._changed.set()

    async def _hint(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY):
                await self._changed.wait()
