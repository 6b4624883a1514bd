"""A step of a job: attempts until one succeeds or the policy gives up."""

from functools import partial
from typing import Any, TypeVar, cast

from perdure.base.errors import StepTimeout
from perdure.engine import tell
from perdure.engine.asking import look_for_answer
from perdure.engine.calling import call_step
from perdure.engine.crashpoint import crashpoint
from perdure.engine.ending import Endable
from perdure.engine.gates import hold
from perdure.engine.leaving import Leaving
from perdure.engine.ledger import ledger_of
from perdure.engine.outcome import as_failure
from perdure.engine.reuse import result_under, shared_key
from perdure.engine.run import Run
from perdure.engine.step_context import StepContext
from perdure.engine.verdict import Parked, Unwound
from perdure.jobs.definition import Step
from perdure.jobs.failure import Failure, failure_of
from perdure.jobs.gate import Way
from perdure.jobs.item import Verdict
from perdure.jobs.model import Entry, Event
from perdure.jobs.partial import Partial
from perdure.jobs.policy import Again, GiveUp, decide, is_permanent
from perdure.jobs.state import StepState
from perdure.process.birth import PLAIN, give_birth
from perdure.process.current import current

R = TypeVar("R")

# Looked up once: a member of an enum is dear where steps are many.
_SUCCEEDED, _FAILED = StepState.SUCCEEDED, StepState.FAILED


class StepOperation(Endable[R]):
    """One call of a step."""

    __slots__ = (
        "_args",
        "_kwargs",
        "_told",
        "asked",
        "attempt",
        "begun_at",
        "cleared",
        "key",
        "started_at",
        "way",
    )

    waits_for = "retry"

    def __init__(
        self,
        run: Run,
        entry: Entry,
        step: Step[Any, R],
        call: tuple[tuple[Any, ...], dict[str, Any]],
        *,
        recorded: bool,
    ) -> None:
        super().__init__(run, entry, step, recorded=recorded)
        self._args, self._kwargs = call
        self.attempt = entry.attempt
        self.started_at: float | None = None
        self.begun_at = 0.0
        self._told = False  # that the attempt has ended
        self.way: Way | None = None  # what happens before it begins, if anything does
        self.cleared = False  # its gate is open, for the next attempt
        self.asked: str | None = None  # the approval that it waits for
        self.key: str | None = None  # by which other jobs find the result

    @property
    def longest(self) -> float:
        return self.step.timeout or 0.0

    def start(self) -> None:
        until = self.entry.wake_at
        if until is not None and until > self.run.now():
            self.run.wait(self, until)
            return
        if self.asked is not None:
            self.run.work(self, partial(look_for_answer, self))
            return
        if self.way is not None:
            if not self.cleared and hold(self, self.way):
                return
            self.cleared = False
        self.attempt += 1
        run = self.run
        self.begun_at = run.node.loop.time()
        self.started_at = run.at(self.begun_at)
        self.unrecorded = True
        self._told = False
        run.working[self] = give_birth(run.node.runtime, run.process, _attempt, (self,), PLAIN)
        run.node.step_started(self)
        self.arm()
        if tell.listens(tell.STEP_START):
            tell.step_started(self, self.attempt)

    async def reuse(self) -> bool:
        """Take what another has done under the same key, unless this step has begun before."""
        try:
            self.key = shared_key(self, self.step.key(self._args, self._kwargs))
            await self._lock_key(self.key)
            found = await result_under(self, self.key) if self.attempt == 1 else None
        except Leaving as leaving:
            await self._leave(leaving)
            return True
        except BaseException as error:  # noqa: BLE001 - as below
            await self._raised(error)
            return True
        if found is not None:
            self.unlock_keys()
            # Without attempt and key: what another did is neither undone nor lent by this job.
            self.attempt, self.key = 0, None
            self.disarm()
            self._succeeded(found)
        return found is not None

    async def _lock_key(self, key: str) -> None:
        """Wait for other steps of this job with the same key; that is no attempt yet."""
        run, locks = self.run, ledger_of(self.run).key_locks
        if not locks.is_locked(key):
            await locks.lock(key, self)
            return
        self.disarm()
        self.unrecorded = False
        await locks.lock(key, self)
        self.unrecorded = True
        run.node.step_started(self)
        self.arm()

    def unlock_keys(self) -> None:
        """Let other steps of this job use the key, now that the result is durable."""
        if self.key is not None and not self.committing:
            ledger_of(self.run).key_locks.unlock_all(self)

    def lost(self) -> None:
        super().lost()
        self.unlock_keys()

    async def attempt_once(self) -> None:
        """Call the function, and see to it that what came of it is written and told."""
        step, context = self.step, StepContext(self)
        self.context = context
        try:
            if step.isolation == "inline" and step.is_async:
                value = await step.fn(context, *self._args, **self._kwargs)
            else:
                value = await call_step(self, context, self._args, self._kwargs)
            self.disarm()  # it was in time, however long the rest takes
            if self._expired:
                return
            context.leave_now()
            if type(value) is Partial:
                await self._go_on_later(cast("Partial[Any]", value))
                return
            output = step.pack_result(value, self.run.node.limits)
            if self.attempt > 1 or self.recorded:
                await context.effects.leave_none_open()
        except Leaving as leaving:
            await self._leave(leaving)
        except BaseException as error:  # noqa: BLE001 - some of it is raised again there
            await self._raised(error)
        else:
            self._succeeded(output)

    async def _leave(self, leaving: Leaving) -> None:
        self.disarm()
        self.tell_stop("left")
        await leaving.settle(self)

    async def _raised(self, error: BaseException) -> None:
        """Take what the user's code raised: the policy decides."""
        self.disarm()
        if isinstance(error, Unwound | KeyboardInterrupt):
            raise error
        if self.context is not None and self.context.left is not None:
            await self.context.left.settle(self)
            return
        if current("a step").outcome is None and not self._interrupted:
            await self._failed(as_failure(error))

    def _succeeded(self, output: bytes) -> None:
        """Let the result be written. Nobody waits for that: this process has done its work."""
        self.unrecorded = False  # from here on the record of its start would be a step back
        if self.context is not None and self.context.has_effects:
            crashpoint("before_step_commit")
        self.ends(_SUCCEEDED)
        self.entry = self._entry(_SUCCEEDED, output=output)
        self.committing = True
        self.run.write_soon(self.entry, self._written)

    def _written(self, error: BaseException | None) -> None:
        """Tell the code: the result is durable."""
        self.committing = False
        if error is not None:
            self.run.work(self, self._write_again)
            return
        if self.context is not None and self.context.has_effects:
            crashpoint("after_step_commit")
        self.unlock_keys()
        run = self.run
        run.progress_at = run.node.loop.time()
        run.worked(self)
        self.tell_stop("succeeded" if self.attempt else "reused")
        # What a replay will give is what the code gets now: through the codec, once.
        self.settle(self.step.unpack_result(cast("bytes", self.entry.output)))

    async def _write_again(self) -> None:
        """Insist, as long as the lease lets us: the step is done, and must not be done again."""
        await self.run.write(self.entry)
        self.unlock_keys()
        self.tell_stop("succeeded")
        self.settle(self.step.unpack_result(cast("bytes", self.entry.output)))

    def heard(self) -> None:
        if self.asked is None:
            return
        if self in self.run.working:  # whatever it has just read may be old
            self.again = True
        else:
            self.run.work(self, partial(look_for_answer, self))

    def take_arguments(self, packed: bytes) -> None:
        """Run with other arguments than the code gave: a person has edited them."""
        self._args, self._kwargs = self.step.unpack(packed)

    async def refuse(self, error: Exception) -> None:
        """End the step before it begins: a person said no."""
        failure = failure_of(error, self.attempt, permanent=True)
        await self._fail(failure, error)

    def describe(self) -> dict[str, Any]:
        if self.asked is None:
            return super().describe()
        return {"kind": "approval", "id": self.entry.id, "approval": self.asked}

    def ends(self, state: StepState) -> None:
        """Let something else be written together with the end of the step."""

    def tell_stop(self, outcome: str) -> None:
        """Tell those who listen how an attempt has ended; each one ends once."""
        if not self._told and tell.listens(tell.STEP_STOP):
            self._told = True
            tell.step_stopped(self, self.attempt, self.begun_at, outcome)

    def attempted(self) -> None:
        """Take note that the process of the attempt has come to its end."""
        self.unrecorded = False
        self.disarm()
        self.unlock_keys()
        if self.context is not None:
            self.context.end()
        if not self.committing:
            self.tell_stop("timed out" if self._expired else "interrupted")
        if not self.committing and not self._expired:  # whose end is awaited, to be recorded
            self.run.worked(self)

    async def _failed(self, error: Exception) -> None:
        self.unrecorded = False
        verdict = decide(self.step.retry, error, self.attempt)
        failure = failure_of(
            error,
            self.attempt,
            permanent=is_permanent(error),
            outage=isinstance(verdict, GiveUp) and verdict.outage,
        )
        if await self._passed_over(failure):
            return
        if isinstance(verdict, Again):
            wake_at = self.run.now() + verdict.delay
            again = self._entry(StepState.PENDING, error=failure.pack(), wake_at=wake_at)
            self.tell_stop("failed")
            tell.step_retried(self, self.attempt, verdict.delay, failure.summary())
            await self._restart(again, self._event("step.retried", failure))
            return
        await self._fail(failure, error)

    async def _fail(self, failure: Failure, error: Exception) -> None:
        """Write that the step has failed for good, and tell the code."""
        self.tell_stop("failed")
        self.ends(StepState.FAILED)
        failed = self.entry = self._entry(StepState.FAILED, error=failure.pack())
        await self.run.write(failed, events=(self._event("step.failed", failure),))
        told = failure.as_error(self.entry.id)
        told.__cause__ = error
        self.settle(None, told)

    async def _passed_over(self, failure: Failure) -> bool:
        """Go on without the item at which the step failed, if its policy says so."""
        judged = self.context.judge_item(failure) if self.context is not None else None
        if judged is None or judged[0] is Verdict.FAIL:
            return False
        verdict, checkpoint = judged
        self.tell_stop("failed")
        self.attempt -= 1
        onward = self._entry(
            StepState.PENDING, checkpoint=checkpoint, checkpoint_no=self.entry.checkpoint_no + 1
        )
        kind = "item.left" if verdict is Verdict.GO_ON else "item.retried"
        await self._restart(onward, self._event(kind, failure))
        return True

    async def _go_on_later(self, partial: "Partial[Any]") -> None:
        """Keep what is done so far, and go on from there: this is no failure, and no attempt."""
        assert self.context is not None
        checkpoint = self.context.encode_checkpoint(partial.checkpoint)
        # For a compensation, if it never ends.
        output = self.step.pack_result(partial.output, self.run.node.limits)
        self.tell_stop("partial")
        self.attempt -= 1
        so_far = self._entry(
            StepState.PENDING,
            output=output,
            checkpoint=checkpoint,
            checkpoint_no=self.entry.checkpoint_no + 1,
        )
        await self._restart(so_far)

    async def _restart(self, entry: Entry, *events: Event) -> None:
        """Write where the step stands, and begin the next attempt when its time comes."""
        self.entry = entry
        await self.run.write(entry, events=events)
        self.again = True

    # Records

    def running_entry(self) -> Entry:
        """Give the record of a step that has begun."""
        return self._entry(StepState.RUNNING)

    def _entry(
        self,
        state: StepState,
        *,
        output: bytes | None = None,
        error: bytes | None = None,
        wake_at: float | None = None,
        checkpoint: bytes | None = None,
        checkpoint_no: int | None = None,
    ) -> Entry:
        old = self.entry
        ended = state is _SUCCEEDED or state is _FAILED
        return Entry(
            seq=old.seq,
            id=old.id,
            kind=old.kind,
            name=old.name,
            state=state,
            attempt=self.attempt,
            input=old.input,
            output=old.output if output is None else output,  # a partial one, for its compensation
            error=error,
            # A finished step needs no checkpoint any more.
            checkpoint=None if state is _SUCCEEDED else checkpoint or old.checkpoint,
            checkpoint_no=old.checkpoint_no if checkpoint_no is None else checkpoint_no,
            wake_at=wake_at,
            started_at=self.started_at,
            ended_at=self.run.now() if ended else None,
            key=self.key,
        )

    def unwritten(self) -> tuple[Entry, ...]:
        """Give the record of the start, if it is still to be written."""
        if not self.unrecorded:
            return ()
        self.unrecorded = False
        return (self.running_entry(),)

    def put_back(self) -> Entry:
        """Give the record of an attempt that does not count: it will be made again."""
        self.unrecorded = False
        self.attempt -= 1
        self.entry = self._entry(StepState.PENDING)
        return self.entry

    async def save_checkpoint(self, data: bytes) -> bool:
        """Write how far the attempt has come; tells whether it is to stop there."""
        number = self.entry.checkpoint_no + 1
        self.unrecorded = False
        self.entry = self._entry(StepState.RUNNING, checkpoint=data, checkpoint_no=number)
        await self.run.write(self.entry)
        tell.checkpoint_saved(self, number, len(data))
        return self.context is not None and self.context.stopping

    def _event(self, kind: str, failure: Failure) -> Event:
        data = {"step": self.entry.id, "attempt": self.attempt, "error": failure.summary()}
        return Event(type=kind, data=data, actor=self.run.node.owner)

    async def record_timeout(self) -> None:
        limit = self.step.timeout
        await self._failed(StepTimeout(f"step {self.entry.id} took longer than {limit:g} s"))


async def _attempt(operation: StepOperation[Any]) -> None:
    """The process of one attempt."""
    try:
        if operation.step.idempotency_key is None or not await operation.reuse():
            await operation.attempt_once()
    except Unwound:
        pass
    except Exception as error:  # noqa: BLE001 - a fault of the engine itself must not be silent
        operation.run.stop(Parked(failure_of(error)))
    finally:
        operation.attempted()
