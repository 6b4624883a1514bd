"""A handle to a submitted job: ask how it stands, wait for it, tell it what to do."""

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from perdure.base.codec import decode, encode
from perdure.base.duration import Duration, job_seconds, spell
from perdure.base.errors import JobFailed, JobNotFound, JobParked
from perdure.engine.awaiting import Awaiting, reason_of
from perdure.engine.submission import new_id
from perdure.jobs.budget import Budget
from perdure.jobs.effect import Choice, Effect
from perdure.jobs.failure import Failure
from perdure.jobs.length import check_given
from perdure.jobs.model import Command, Entry, Event, Job, NewJob, Outcome
from perdure.jobs.saga import LEFT_UNDONE
from perdure.jobs.state import JobState
from perdure.store.port import Store

if TYPE_CHECKING:
    from perdure.jobs.definition import JobDefinition

R = TypeVar("R")

IfParked: TypeAlias = Literal["wait", "raise"]
_ALSO_PARKED = frozenset({JobState.ATTENTION})


class Handle(Generic[R]):
    """One job, from outside."""

    def __init__(
        self,
        store: Store,
        awaiting: Awaiting,
        job_id: str,
        definition: "JobDefinition[Any, R] | None",
        *,
        new: bool,
    ) -> None:
        self._store = store
        self._awaiting = awaiting
        self._definition = definition
        self.id = job_id
        self.new = new  # False: this key had been submitted before

    def __repr__(self) -> str:
        return f"<handle of job {self.id}>"

    # Looking

    async def job(self) -> Job:
        """Read the job as it stands.

        Raises:
            JobNotFound: It was deleted, or never was.
        """
        job = await self._store.job(self.id)
        if job is None:
            raise JobNotFound(self.id)
        return job

    async def status(self) -> JobState:
        """Tell the job's state."""
        return (await self.job()).state

    async def journal(self) -> list[Entry]:
        """Read what the job has done, in order."""
        return await self._store.journal(self.id)

    async def effects(self) -> list[Effect]:
        """Read what the job did to the world, or may have done, in order."""
        return await self._store.effects(self.id)

    async def budget(self) -> Budget | None:
        """Read what the tree of the job, and its forks, may spend, and what is gone."""
        job = await self.job()
        return await self._store.budget(job.budget_of or job.id)

    async def events(self) -> list[Event]:
        """Read all that happened to the job, in order."""
        found: list[Event] = []
        while page := await self._store.events(self.id, after=found[-1].no if found else 0):
            found += page
        return found

    async def wait(self, timeout: Duration = None) -> JobState:
        """Wait until the job has ended, however it did, and give its state.

        Raises:
            TimeoutError: It has not, in this time; it goes on.
        """
        return (await self._reached(timeout)).state

    async def result(self, timeout: Duration = None, *, if_parked: IfParked = "wait") -> R:
        """Wait for the job's result.

        A job that is parked (ATTENTION) has not ended: once a person lets it go on, it may
        still give one. That it is parked, and why, is logged once as a warning.

        Args:
            timeout: For how long; None is for ever.
            if_parked: "raise" if nobody is there who would look at it.

        Raises:
            JobFailed: It ended without one.
            JobParked: It is parked, and you did not want to wait for a person.
            TimeoutError: It has not ended in this time; it goes on.
        """
        states = _ALSO_PARKED if if_parked == "raise" else frozenset[JobState]()
        outcome = await self._reached(timeout, states)
        if outcome.state is JobState.ATTENTION:
            raise JobParked(self.id, reason_of(outcome))
        if outcome.state is not JobState.COMPLETED or outcome.result is None:
            raise JobFailed(self.id, outcome.state, reason_of(outcome))
        if self._definition is None:
            return decode(outcome.result, Any)
        return self._definition.unpack_result(outcome.result)

    async def until(self, *states: JobState, timeout: Duration = None) -> JobState:
        """Wait until the job is in one of these states, or has ended; give the state that it is in.

        Raises:
            TimeoutError: It is not, in this time; it goes on.
        """
        return (await self._reached(timeout, frozenset(states))).state

    async def failure(self) -> Failure | None:
        """Tell why the job failed, or what it needs attention for; None if it does neither."""
        error = (await self.job()).error
        return None if error is None else Failure.unpack(error)

    async def _reached(
        self, timeout: Duration, states: frozenset[JobState] = frozenset()
    ) -> Outcome:
        limit = job_seconds(timeout)
        try:
            async with asyncio.timeout(limit):
                return await self._awaiting.reached(self.id, states)
        except TimeoutError:
            why = self._awaiting.parked.get(self.id)
            parked = "" if why is None else f": it is parked, and waits for a person: {why}"
            text = f"job {self.id} has not ended within {spell(limit or 0)}{parked}"
            raise TimeoutError(text) from None

    # Telling

    async def send(self, topic: str, payload: Any = None, *, key: str | None = None) -> bool:
        """Send the job a message, for its `ctx.receive`; False: this key was sent before."""
        check_given(topic=topic, key=key)
        data = encode(payload, what=f"message {topic!r}", kind="message")
        return await self._store.send(self.id, topic, data, key)

    async def cancel(self, reason: str = "", *, by: str = "") -> None:
        """End the job: its running steps get CANCEL, then are killed."""
        await self._command("cancel", by, reason)

    async def pause(self, reason: str = "", *, by: str = "") -> None:
        """Let the running steps end, and then nothing more until `resume`."""
        await self._command("pause", by, reason)

    async def resume(self, reason: str = "", *, by: str = "") -> None:
        """Let a paused or parked job go on; what parked it gets a fresh set of attempts."""
        await self._command("resume", by, reason)

    async def retry(self, step: str | None = None, reason: str = "", *, by: str = "") -> None:
        """Run a failed job again from where it failed, or from this step."""
        seq = None if step is None else (await self._entry(step)).seq
        await self._command("retry", by, reason, seq=seq)

    async def skip(self, step: str, reason: str, *, output: Any = None, by: str = "") -> None:
        """Take a step as done, with this output: somebody did it by hand."""
        entry = await self._entry(step)
        await self._command("skip", by, reason, seq=entry.seq, output=encode(output))

    async def compensate(self, reason: str = "", *, by: str = "") -> None:
        """Undo what a failed, cancelled or parked job has done."""
        await self._command("compensate", by, reason)

    async def resolve(
        self, effect: int, choice: Choice, *, result: Any = None, reason: str = "", by: str = ""
    ) -> None:
        """Say what became of an effect that is in doubt, by its number in the ledger.

        Args:
            effect: Its number.
            choice: "happened", with the `result` that the call would have given;
                "did not happen": it is called again; "compensate": all is undone.
            result: What the receiver gave for it.
            reason: How that is known.
            by: Who says so.

        Raises:
            IllegalTransition: Nothing is in doubt there.
        """
        output = encode(result) if choice == "happened" else None
        await self._command("resolve", by, reason, effect=effect, choice=choice, output=output)

    async def leave_undone(self, undo: str, reason: str, *, by: str = "") -> None:
        """Go on with the rest of an undo without this part ("undo:charge#1"), which failed."""
        await self.skip(undo, reason, output=LEFT_UNDONE, by=by)

    async def fork(self, before: str, *args: Any, by: str = "", **kwargs: Any) -> "Handle[R]":
        """Submit a copy that has done all before this step; other arguments may be given.

        Whoever gives other arguments is the requester of the copy: four eyes hold for them.

        Raises:
            LookupError: The job has no such step.
        """
        check_given(by=by)
        job, entry = await self.job(), await self._entry(before)
        packed, requester = job.input, job.user
        if args or kwargs:
            if self._definition is None:
                raise ValueError("a plan is forked with the arguments that it has")
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
            options=job.options,
            deadline=None if self._definition is None else self._definition.timeout,
            forked_from=job.forked_from or job.id,
            budget_of=job.budget_of or job.id,
        )
        await self._store.fork(job.id, copy, entry.seq, by)
        return Handle(self._store, self._awaiting, copy.id, self._definition, new=True)

    async def _entry(self, step: str) -> Entry:
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
