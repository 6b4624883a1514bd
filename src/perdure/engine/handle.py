"""A handle to a submitted job: read its state, wait for its end, command it.

However many handles wait for jobs, the store is asked for all of these jobs in one query, and only
after a hint that something has changed, or twice a second. See `JobWaits`. A handle may be used on
any loop, also on another than the one that it was made on.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextvars import Context
from shlex import quote
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from perdure.base.codec import decode, encode, read_plain
from perdure.base.duration import Duration, job_seconds, spell
from perdure.base.errors import JobNotFound, JobParked, StoreError
from perdure.base.retry import idle
from perdure.engine.submission import new_id
from perdure.jobs.budget import Budget
from perdure.jobs.definition import JobDefinition
from perdure.jobs.effect import Choice, Effect
from perdure.jobs.failure import Failure, job_error
from perdure.jobs.model import Command, Job, JobEvent, JobOutcome, JournalEntry, NewJob
from perdure.jobs.output import DEFAULT_TOPIC, OutputPiece, OutputTopic
from perdure.jobs.payload import refuse_sealed, stand_in_of
from perdure.jobs.redaction import refuse_markers
from perdure.jobs.saga import LEFT_UNDONE
from perdure.jobs.state import ENDED, JobState
from perdure.jobs.text_limits import check_given
from perdure.store.shared import SharedStore
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
        waits: "WaitsByLoop",
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
        # Why no worker could claim it when it was submitted; None: one can, as far as is known.
        self.unserved: str | None = None

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
        """Return what the job has done, in order; of large payloads the digest and a preview."""
        return await self._store.journal(self.id)

    async def output(self, step: str) -> Any:
        """Return the recorded result of a step ("fetch#2") as plain values, however large it is.

        None if it has none yet.

        Raises:
            LookupError: The job has no such step.
        """
        data = (await self._entry(step)).output
        stand_in = stand_in_of(data)
        if stand_in is not None:
            data = await self._store.payload(self.id, stand_in)
        return None if data is None else read_plain(data)

    async def effects(self) -> list[Effect]:
        """Return the effects of the job on the outside world, in order, with those in doubt."""
        return await self._store.effects(self.id)

    async def budget(self) -> Budget | None:
        """Return the budget that the job shares with its tree and its forks, and what is spent.

        None if the job has no limits, and nothing was spent yet.
        """
        job = await self.job()
        return await self._store.budget(job.budget_of or job.id)

    async def events(self) -> list[JobEvent]:
        """Return the log of the job, in order."""
        found: list[JobEvent] = []
        while page := await self._store.events(self.id, after=found[-1].no if found else 0):
            found += page
        return found

    async def topics(self) -> list[OutputTopic]:
        """Return the topics of the job's output, by name, and how much of each is kept."""
        return await self._store.topics(self.id)

    async def stream(
        self, topic: str = DEFAULT_TOPIC, *, after: int = 0
    ) -> AsyncGenerator[OutputPiece, None]:
        """Yield what the job emits on a topic, from the beginning until the job ends.

        A piece is a "value", or says what became of others: see `OutputPiece`. To go on later, or
        after a lost connection, pass the position of the last piece that was handled.

        Args:
            topic: The topic, as in `ctx.emit`.
            after: Begin after this position.

        Raises:
            JobNotFound: The job was deleted, or never existed.
        """
        check_given(topic=topic)
        changed = asyncio.Event()
        async with self._waits.shared.use() as store:
            unwatch = store.watch(changed.set, output=True)
            try:
                while True:
                    changed.clear()  # before it looks: what comes meanwhile is noticed
                    page = await store.output(self.id, topic, after)
                    for piece in page.pieces:
                        after = piece.position
                        yield piece
                    if page.has_ended:
                        return
                    if not page.pieces:
                        await idle(_LOOK_EVERY, changed)
                        await idle(_READ_AT_MOST_EVERY)
            finally:
                unwatch()

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
            JobFailed: The job ended without a result. What it declares in `raises` comes as its
                own type, and this is its cause.
            JobParked: It is parked, and `if_parked` is "raise".
            TimeoutError: It has not ended in time; it continues.
        """
        states = _ALSO_PARKED if if_parked == "raise" else frozenset[JobState]()
        outcome = await self._reached(timeout, states)
        if outcome.state is JobState.NEEDS_ATTENTION:
            cause = None if outcome.error is None else Failure.unpack(outcome.error).as_cause()
            raise JobParked(self.id, reason_of(outcome)) from cause
        refuse_sealed(outcome.result or outcome.error or b"")
        if outcome.state is not JobState.COMPLETED or outcome.result is None:
            raises = () if self._definition is None else self._definition.raises
            raise job_error(self.id, outcome.state, outcome.error, raises)
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
        limit, waits = job_seconds(timeout), self._waits.here()
        try:
            async with asyncio.timeout(limit):
                return await waits.reached(self.id, states)
        except TimeoutError:
            why = waits.parked.get(self.id)
            parked = "" if why is None else f": it is parked, and waits for a person: {why}"
            text = f"job {self.id} has not ended within {spell(limit or 0)}{parked}{waits.remark}"
            raise TimeoutError(text) from None

    # Commands

    async def send(self, topic: str, payload: Any = None, *, key: str | None = None) -> bool:
        """Send the job a message, for its `ctx.receive`; return False if it already has this key.

        Raises:
            IllegalTransition: The job has ended, and does not have this key.
        """
        check_given(topic=topic, key=key)
        data = encode(payload, what=f"message {topic!r}", kind="message")
        refuse_markers(data, f"message {topic!r}")
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
        await self._command("skip", by, reason, seq=entry.seq, output=_said(output))

    async def skip_item(self, step: str, reason: str, *, by: str = "") -> None:
        """Leave out the item of `ctx.items` at which a step has failed, and run the step again.

        If the items that failed are in quarantine, all of them are left out.

        Raises:
            IllegalTransition: The step has not failed at an item, or the job does not wait for it.
        """
        await self._command("skip_item", by, reason, seq=(await self._entry(step)).seq)

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
        output = _said(result) if choice == "happened" else None
        await self._command("resolve", by, reason, effect=effect, choice=choice, output=output)

    async def abandon_undo(self, undo: str, reason: str, *, by: str = "") -> None:
        """Continue an undo without this part ("undo:charge#1"), which failed."""
        await self.skip(undo, reason, output=LEFT_UNDONE, by=by)

    async def fork(
        self,
        before: str,
        *args: Any,
        by: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> "Handle[R]":
        """Submit a copy that has done everything before this step; return its handle.

        The copy may have other arguments; those that are not given stay as they are. The person who
        passes them becomes its requester, so that the four-eyes rule applies to them.

        Args:
            before: The first step that the copy does itself ("load#2").
            *args: Other arguments by position.
            by: Who passes them.
            arguments: Other arguments by name; needed for those that are named like one of these.
            **kwargs: Other arguments by name.

        Raises:
            LookupError: The job has no such step.
            ArgumentError: The arguments do not fit, or one of them is what people see in the place
                of a value that is not shown.
        """
        check_given(by=by)
        # The entry first: if the job begins anew in between, the store no longer finds the entry.
        entry, job = await self._entry(before), await self.job()
        packed, requester = job.input, job.user
        if args or kwargs or arguments:
            if self._definition is None:
                raise ValueError("a plan cannot be forked with other arguments")
            given = self._definition.parameters.by_name(args, {**kwargs, **(arguments or {})})
            packed, requester = self._definition.parameters.edited(job.input, given), by
        refuse_markers(packed, f"the arguments of job {job.name!r}")  # as an imported copy has them
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
            labels=job.labels,
        )
        copy_id = await self._store.fork(job.id, copy, entry.seq, by)
        return Handle(self._store, self._waits, copy_id, self._definition, new=True)

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


def _said(value: Any) -> bytes:
    """Return what a person says that something returned."""
    data = encode(value)
    refuse_markers(data, "the result")
    return data


# Waiting

# How often to query without a hint.
_LOOK_EVERY = 0.5

# The pause between two queries, so that a busy store is not queried after each of its writes.
_AT_MOST_EVERY = 0.005

# The same for readers of output, each of which has a query of its own.
_READ_AT_MOST_EVERY = 0.02


_ASKED: Final = (
    "job %s waits for a person to answer %r: run `perdure approvals approve %s --url %s`, or reject"
)


class AskedApproval(Struct):
    """One thing that a job waits for, as far as it concerns people."""

    approval: str = ""
    title: str = ""  # of a question; the call of a step has only an id
    id: str = ""


def approvals_in(wait: bytes) -> list[AskedApproval]:
    """Return the approvals among the things that a job waits for."""
    try:
        found = msgspec.json.decode(wait, type=list[AskedApproval])
    except msgspec.DecodeError:  # stored by another version
        return []
    return [each for each in found if each.approval]


def reason_of(outcome: JobOutcome) -> str:
    """Return in one line why a job ended without a result, or is parked."""
    error = outcome.error
    return "no reason is known" if error is None else Failure.unpack(error).summary()


class WaitsByLoop:
    """The waits of one app for jobs: those of each loop by themselves, since they end with it."""

    def __init__(self, shared: SharedStore, where: Callable[[], str]) -> None:
        """Begin without any.

        Args:
            shared: The store of the jobs.
            where: Returns the URL of the store as people may see it.
        """
        self.shared = shared
        self._where = where
        self._waits: dict[asyncio.AbstractEventLoop, JobWaits] = {}

    def here(self) -> "JobWaits":
        """Return the waits of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._waits.get(loop)
        if found is None:
            for each in tuple(self._waits):
                if each.is_closed():
                    self._waits.pop(each, None)
            found = self._waits[loop] = JobWaits(self.shared, self._where)
        return found

    async def close(self, error: Exception) -> None:
        """End the waits of the running loop with an error."""
        found = self._waits.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close(error)


class JobWaits:
    """All waits of one app for jobs, on one loop.

    One task serves all of them, for as long as anybody waits. It runs in an empty context, so that
    it belongs to no process: otherwise it would die with the process that waited first.
    """

    def __init__(self, shared: SharedStore, where: Callable[[], str]) -> None:
        self._shared = shared
        self._where = where
        self._asked: set[str] = set()  # approvals that were logged
        self._waiters: dict[str, dict[asyncio.Future[JobOutcome], frozenset[JobState]]] = {}
        self.parked: dict[str, str] = {}  # why, by the id of a job that is waited for
        self.remark = ""  # what else a wait says that was too long
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def awaited(self) -> dict[str, frozenset[JobState]]:
        """The jobs that somebody waits for, with the states that end a wait besides the end."""
        return {job: frozenset().union(*each.values()) for job, each in self._waiters.items()}

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
        try:
            async with self._shared.use() as store:
                unwatch = store.watch(self._changed.set)
                try:
                    await self._look_again(store)
                finally:
                    unwatch()
        except Exception as error:  # noqa: BLE001 - raised to those who wait
            self.fail(error)
        finally:
            self.parked.clear()
            self._asked.clear()
            self._task = None

    async def _look_again(self, store: Store) -> None:
        while self._waiters:
            self._changed.clear()
            with contextlib.suppress(StoreError):  # the next query will show it
                await self._look(store)
            await idle(_AT_MOST_EVERY)
            if self._waiters:
                await idle(_LOOK_EVERY, self._changed)

    async def _look(self, store: Store) -> None:
        asked_for = list(self._waiters)
        outcomes = {each.job_id: each for each in await store.outcomes(asked_for)}
        for job_id in asked_for:
            outcome = outcomes.get(job_id)
            if outcome is None:  # it was pruned
                self._settle(job_id, JobNotFound(job_id))
            else:
                self._settle(job_id, outcome)
                self._note_parked(outcome)
                self._note_asked(outcome)

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

    def _note_asked(self, outcome: JobOutcome) -> None:
        """Log once whom a job waits for, and how they answer."""
        waiters = self._waiters.get(outcome.job_id, {})
        if outcome.state is not JobState.WAITING or not outcome.wait or not waiters:
            return
        for asked in approvals_in(outcome.wait):
            if asked.approval not in self._asked:
                self._asked.add(asked.approval)
                # Who runs a job here, without waiting for others to review it, is alone with it.
                is_alone = any(JobState.NEEDS_ATTENTION in states for states in waiters.values())
                level = logging.WARNING if is_alone else logging.INFO
                what, where = asked.title or asked.id, quote(self._where())
                _log.log(level, _ASKED, outcome.job_id, what, asked.approval, where)

    async def close(self, error: Exception) -> None:
        """End all waits with an error."""
        task = self._task
        self.fail(error)
        if task is not None:
            await asyncio.wait([task])

    def fail(self, error: Exception) -> None:
        """End all waits with an error, and do not wait for the task that serves them."""
        for job_id in tuple(self._waiters):
            self._settle(job_id, error)
        self._changed.set()
