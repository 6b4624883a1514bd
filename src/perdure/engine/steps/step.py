"""A step of a job: attempts until one succeeds or the policy gives up."""

import asyncio
import logging
from functools import partial
from typing import Any, TypeVar, cast

from perdure.base.codec import digest
from perdure.base.errors import DefinitionError, Permanent, StepTimeout
from perdure.engine import events
from perdure.engine.crashpoint import crashpoint
from perdure.engine.journal.ledger import ledger_of
from perdure.engine.journal.operation import Operation
from perdure.engine.journal.run import Run
from perdure.engine.journal.verdict import Leaving, Parked, Unwound
from perdure.engine.people.ask import Later, hold, look_for_answer
from perdure.engine.steps.process_step import call_far
from perdure.engine.steps.step_context import StepContext
from perdure.engine.steps.thread_step import Whose, call_away, older_calls
from perdure.jobs.definition import Step
from perdure.jobs.failure import Failure, failure_of
from perdure.jobs.gate import GateDecision
from perdure.jobs.items import ItemVerdict
from perdure.jobs.model import JobEvent, JournalEntry
from perdure.jobs.parameters import Partial
from perdure.jobs.policy import Again, GiveUp, decide_retry, is_permanent
from perdure.jobs.state import StepState
from perdure.process.death import kill
from perdure.process.process import Process
from perdure.process.signal import stop_politely
from perdure.process.spawn import PLAIN, give_birth
from perdure.process.waiter import current

# What came of a step: an exception as its failure, an entry of the journal as its answer.


def as_failure(error: BaseException) -> Exception:
    """Give what the user's code raised as a failure of the step, whatever it was."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        failure: Exception = RuntimeError("the step was cancelled by its own code")
    else:
        failure = Permanent(f"the step raised {error!r}")
    failure.__cause__ = error
    return failure


def skipped_or_done(operation: "StepOperation[Any]", entry: JournalEntry) -> None:
    """Settle an operation by what the journal says."""
    if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
        output = entry.output
        operation.settle(None if output is None else operation.step.unpack_result(output))
    elif entry.state is StepState.FAILED and entry.error is not None:
        operation.settle(None, Failure.unpack(entry.error).as_error(entry.id))


# Where the function of a step runs: on the loop, in a thread, or in another OS process.

_log = logging.getLogger("perdure.worker")


async def call_step(
    operation: "StepOperation[Any]",
    context: "StepContext",
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call the function of a step where its isolation says."""
    step = operation.step
    if step.isolation == "process":
        return await call_far(operation, context)
    if step.isolation == "thread":
        whose = Whose(operation.run.job.id, operation.entry.id, operation.run.epoch)
        await _until_alone(operation, whose)
        return await call_away(step.fn, context, args, kwargs, whose)
    value = step.fn(context, *args, **kwargs)
    return await value if step.is_async else value


async def _until_alone(operation: "StepOperation[Any]", whose: Whose) -> None:
    """Wait for the threads of a run that has lost its lease: a step never runs beside itself here.

    Its time begins after that.
    """
    for ended in older_calls(whose):
        _log.warning(
            "job %s: %s is not started again while a thread of an earlier attempt works on it here",
            *whose[:2],
        )
        operation.disarm()
        await asyncio.shield(asyncio.wrap_future(ended))
        operation.arm()


# Steps with a key of their own: what one gave is used again by the other jobs of the tenant.


def shared_key(operation: "StepOperation[Any]", key: object) -> str:
    """Make the key by which the result is found: never in another tenant, step or version.

    Raises:
        DefinitionError: The step's own key is no text.
    """
    step = operation.step
    if not isinstance(key, str) or not key:
        raise DefinitionError(f"idempotency_key of {step.name} gave {key!r}: it must give a text")
    return digest(operation.run.job.tenant, operation.entry.name, step.version, key)


async def result_under(operation: "StepOperation[Any]", key: str) -> bytes | None:
    """Give what a step has given under this key; None if none has, or if it was undone.

    Raises:
        Later: The job that has done it is being undone.
        Permanent: It was called with other arguments.
        Drift: Its result was of another type.
    """
    lent = await operation.run.ask(lambda store: store.entry_by_key(key))
    if lent is None or lent.entry.output is None:
        return None
    found, output = lent.entry, lent.entry.output
    if lent.being_undone and lent.job_id != operation.run.job.id:
        raise Later(lent.job_id, found.id, found.ended_at or 0.0)
    if found.input != operation.entry.input:
        raise Permanent(
            f"{operation.entry.id} has the idempotency_key of work that was done with other "
            "arguments: all that makes a difference must be in the key"
        )
    operation.step.unpack_result(output)
    return output


# How an attempt of a step is ended from outside: by its time, by its job, by a lost lease.

R = TypeVar("R")


class Endable(Operation[R]):
    """An operation that works in attempts, which may be ended."""

    __slots__ = (
        "_expired",
        "_expiry",
        "_interrupted",
        "committing",
        "context",
        "step",
        "unrecorded",
    )

    def __init__(
        self, run: "Run", entry: JournalEntry, step: Step[Any, R], *, recorded: bool
    ) -> None:
        super().__init__(run, entry, recorded=recorded)
        self.step = step
        self.context: StepContext | None = None
        self.committing = False  # it is done, and waits for the disk
        self.unrecorded = False  # it works, and the journal does not say so yet
        self._expiry: asyncio.TimerHandle | None = None
        self._expired = False  # whatever the attempt gives now comes too late
        self._interrupted = False  # how it ends now says nothing about the step

    def running_entry(self) -> JournalEntry:
        """Give the record of a step that has begun."""
        raise NotImplementedError

    async def record_timeout(self) -> None:
        """Write that the time of the attempt was up."""
        raise NotImplementedError

    def interrupt(self, *, hard: bool) -> None:
        """Ask the step to stop: CANCEL, then by force; or only at its next checkpoint."""
        if self.context is not None:
            self.context.stopping = True
        process = self.run.working.get(self)
        if process is None or self.committing or not hard or process.done():
            return
        if not self._interrupted:
            self._interrupted = self.run.cut_short = True
            if self.unrecorded:  # what it may have done must be known
                self.run.buffer.setdefault(self.entry.seq, self.running_entry())
            process.tie().at_death(partial(self._gone, process))
        if self.context is not None:
            self.context.cancelled.set()
        stop_politely(process, self.run.node.settings.cancel_grace, why="the job ends")

    def _gone(self, process: Process) -> None:
        """Take note of a process that may have been abandoned, and so never said it was done."""
        self.lost()
        if self.run.working.get(self) is process and not self.committing:
            self.run.worked(self)

    def lost(self) -> None:
        self.disarm()
        if self.context is not None:
            self.context.end()
            self.context.cancelled.set()

    def _expire(self) -> None:
        """End an attempt that takes too long; the process cannot record that itself."""
        process = self.run.working.get(self)
        if process is not None and not process.done() and self.run.verdict is None:
            self._expired = self.run.cut_short = True
            self.lost()
            process.tie().at_death(self._died_late)
            kill(process, "the step's time is up")

    def _died_late(self) -> None:
        self._expired = False
        if self.run.verdict is None and not self.settled:
            self.run.work(self, self.record_timeout)
        else:
            self.run.worked(self)

    def arm(self) -> None:
        """Let the time of the attempt begin."""
        if self.step.timeout is not None:
            self._expiry = self.run.node.loop.call_later(self.step.timeout, self._expire)

    def disarm(self) -> None:
        """Let the attempt take as long as it may."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None


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
        entry: JournalEntry,
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
        self.way: GateDecision | None = None  # what happens before it begins, if anything does
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
        if events.listens(events.STEP_START):
            events.step_started(self, self.attempt)

    def record_start(self) -> None:
        """Let the record of the start go along with the next write, if it still says something."""
        if self.unrecorded and self.run.verdict is None:
            entry = self.running_entry()
            self.run.buffer.setdefault(entry.seq, entry)

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
        if not self._told and events.listens(events.STEP_STOP):
            self._told = True
            events.step_stopped(self, self.attempt, self.begun_at, outcome)

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
        verdict = decide_retry(self.step.retry, error, self.attempt)
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
            events.step_retried(self, self.attempt, verdict.delay, failure.summary())
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
        if judged is None or judged[0] is ItemVerdict.FAIL:
            return False
        verdict, checkpoint = judged
        self.tell_stop("failed")
        self.attempt -= 1
        onward = self._entry(
            StepState.PENDING, checkpoint=checkpoint, checkpoint_no=self.entry.checkpoint_no + 1
        )
        kind = "item.skipped" if verdict is ItemVerdict.GO_ON else "item.retried"
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

    async def _restart(self, entry: JournalEntry, *events: JobEvent) -> None:
        """Write where the step stands, and begin the next attempt when its time comes."""
        self.entry = entry
        await self.run.write(entry, events=events)
        self.again = True

    # Records

    def running_entry(self) -> JournalEntry:
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
    ) -> JournalEntry:
        old = self.entry
        ended = state is _SUCCEEDED or state is _FAILED
        return JournalEntry(
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

    def unwritten(self) -> tuple[JournalEntry, ...]:
        """Give the record of the start, if it is still to be written."""
        if not self.unrecorded:
            return ()
        self.unrecorded = False
        return (self.running_entry(),)

    def put_back(self) -> JournalEntry:
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
        events.checkpoint_saved(self, number, len(data))
        return self.context is not None and self.context.stopping

    def _event(self, kind: str, failure: Failure) -> JobEvent:
        data = {"step": self.entry.id, "attempt": self.attempt, "error": failure.summary()}
        return JobEvent(type=kind, data=data, actor=self.run.node.owner)

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
