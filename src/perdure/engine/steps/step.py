"""A step of a job: attempts until one succeeds or the retry policy gives up.

Each attempt is a process of its own, so that it can be killed without harm to the job's code. It
calls the function where the step's isolation says (`_call_function`), and then either

* succeeds: the result is handed to the store, and the process ends without waiting for the disk.
  From then on the step is `committing`, and the store's answer ends it;
* fails: the policy decides whether another attempt follows, and when;
* exits early by a `StepExit`: the attempt does not count, and the exit decides how it continues;
* is ended from outside, unless it has its outcome, which nobody may interrupt or replace.

Three things end an attempt from outside. Its *timeout* passes: the process is killed, and since it
cannot record that itself, another one does when it is dead (`_expire`, `_record_timeout`). Its
*job* ends: it gets CANCEL, and is killed after the grace period; how it ends then says nothing
about the step (`interrupt`). The *lease* is lost: nothing is recorded. When the process is dead,
the attempt is over, although its thread may still run.
"""

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from perdure.base.codec import digest
from perdure.base.errors import (
    DefinitionError,
    Drift,
    OperationCancelled,
    PayloadTooLarge,
    Permanent,
    StepTimeout,
)
from perdure.engine import crashpoint, events
from perdure.engine.journal.guard import end_guard
from perdure.engine.journal.run import Operation, Run
from perdure.engine.journal.step_exit import StepExit
from perdure.engine.journal.verdict import NeedsAttention, Unwound, at_limit
from perdure.engine.people.ask import (
    Approved,
    NotApproved,
    Question,
    answer_to,
    look_for_answer,
    outcome_of,
    pass_gate,
)
from perdure.engine.people.attention import undo_alerts
from perdure.engine.people.spending import budget_of, reserve, settle
from perdure.engine.steps.effects import (
    BegunEffect,
    CallFault,
    EffectOptions,
    EffectRequest,
    Effects,
    ExitForDecision,
    ExitForOtherJob,
    put_in_doubt,
)
from perdure.engine.steps.process_step import call_in_os_process
from perdure.engine.steps.step_context import (
    AnyStepContext,
    ProgressReport,
    StepProgress,
    UserQuestion,
    context_for,
)
from perdure.engine.steps.thread_step import ThreadUse, call_in_step_thread, older_calls
from perdure.engine.working_on import WorkingOn, working_on
from perdure.jobs.budget import Amount, ModelUsage, Reservation, spending_id
from perdure.jobs.definition import OnFailure, Step, scope
from perdure.jobs.effect import Effect, PackedResult, Place
from perdure.jobs.failure import Failure, failure_of
from perdure.jobs.gate import GateDecision
from perdure.jobs.items import ItemVerdict
from perdure.jobs.model import JobEvent, JournalEntry, Progress
from perdure.jobs.parameters import Partial
from perdure.jobs.payload import is_same
from perdure.jobs.policy import Again, GiveUp, decide_retry, is_permanent
from perdure.jobs.registry import AttemptedCall
from perdure.jobs.risk import Judgement
from perdure.jobs.state import StepState
from perdure.jobs.transcript import MODEL_CALLED, model_called
from perdure.process.lifecycle import PLAIN, kill, spawn_process, stop_gracefully
from perdure.process.process import Process, current

R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("perdure.worker")

_NOTHING_RESERVED = Amount()

# Enum member lookup is slow on this hot path.
_SUCCEEDED, _FAILED = StepState.SUCCEEDED, StepState.FAILED


class StepOperation(Operation[R]):
    """One call of a step."""

    __slots__ = (
        "_args",
        "_expired",
        "_expiry",
        "_interrupted",
        "_kwargs",
        "_stop_reported",
        "asked",
        "attempt",
        "begun_at",
        "committing",
        "gate",
        "gate_open",
        "has_outcome",
        "key",
        "live",
        "on_end",
        "progress",
        "start_unrecorded",
        "started_at",
        "step",
        "undoes",
        "undone",
        "undone_checkpoint",
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
        super().__init__(run, entry, recorded=recorded)
        self.step = step
        self._args, self._kwargs = call
        self.attempt = entry.attempt
        self.started_at: float | None = None
        self.begun_at = 0.0
        self.key: str | None = None  # by which other jobs find the result
        self.gate: GateDecision | None = None  # what happens before it begins, if anything does
        self.gate_open = False  # for the next attempt
        self.asked: str | None = None  # the approval that it waits for
        # If it undoes something: adds the change of that to the write of its end.
        self.on_end: Callable[[StepState], None] | None = None
        self.undone: Effect | None = None  # the effect that it undoes
        self.undone_checkpoint: bytes | None = None  # of the step that it compensates
        self.undoes = ""  # that step
        # The attempt
        self.live: Attempt | None = None
        self.progress: StepProgress | None = None
        self.has_outcome = False  # it has succeeded or failed for good; perhaps not durably yet
        self.committing = False  # the store has its result, and has not answered yet
        self.start_unrecorded = False  # it is working, and the journal does not say so yet
        self._expiry: asyncio.TimerHandle | None = None
        self._expired = False  # it timed out: whatever it returns now comes too late
        self._interrupted = False  # how it ends now says nothing about the step
        self._stop_reported = False  # whether telemetry knows of its end

    @property
    def max_duration(self) -> float:
        return self.step.timeout or 0.0

    @property
    def on_failure(self) -> OnFailure | None:
        return self.step.on_failure

    @property
    def runs_beside_loop(self) -> bool:
        return self.step.isolation != "inline" and self.live is not None and not self.live.over

    def replay(self) -> None:
        """Finish it with the outcome in the journal."""
        entry = self.entry
        if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
            self.finish_recorded(entry.output, self.step.result.decode)
        elif entry.state is StepState.FAILED and entry.error is not None:
            self.finish(None, self._error_of(Failure.unpack(entry.error)))

    def race(self) -> None:
        self.begin()  # it takes nothing away from others, and its result is recorded in any case

    # Attempts

    def start(self) -> None:
        run, until = self.run, self.entry.wake_at
        if until is not None and until > run.now():
            self.wait_for_time()
            return
        if self.asked is not None:
            self.spawn(partial(look_for_answer, self))
            return
        if self.gate is not None:
            if not self.gate_open and not pass_gate(self, self.gate):
                return
            self.gate_open = False
        node = run.node
        self.attempt += 1
        self.begun_at = node.loop.time()
        self.started_at = run.now()
        self._take_back_output()
        self.start_unrecorded = True
        self._stop_reported = False
        self.live = self.progress = None
        run.working[self] = spawn_process(node.runtime, run.process, _attempt, (self,), PLAIN)
        node.started.append(self)
        if node.flush_timer is None:
            node.flush_soon()
        if self.step.timeout is not None:
            self.arm()
        if events.listens(events.STEP_START):
            events.step_started(self, self.attempt)

    def _take_back_output(self) -> None:
        """Void what earlier attempts emitted after the checkpoint from which this one continues."""
        if self.recorded or self.live is not None:
            entry = self.entry
            self.run.output.reset(entry.id, self.attempt, entry.checkpoint_no)

    async def make_attempt(self) -> None:
        """Call the function, then write and report the outcome."""
        run, step, entry = self.run, self.step, self.entry
        self.live = attempt = Attempt(self)
        self.progress = StepProgress(
            job_id=run.job.id,
            tenant=run.job.tenant,
            user=run.job.user,
            step_id=entry.id,
            attempt=self.attempt,
            limits=run.node.limits,
            checkpoint=entry.checkpoint,
            checkpoint_no=entry.checkpoint_no,
            undone=self.undone,
            undone_checkpoint=self.undone_checkpoint,
            undoes=self.undoes,
        )
        context = context_for(step, attempt, self.progress)
        try:
            intercept = run.node.registry.intercept
            if step.isolation == "inline" and step.is_async and intercept is None:
                value = await step.invoke(context, self._args, self._kwargs)
            else:
                value = await self._call_function(context)
            if self._expiry is not None:
                self.disarm()  # it returned in time, however long the rest takes
            if self._expired or type(value) is Partial:
                await self._continue_later(cast("Partial[Any]", value))
                return
            output = step.result.encode(value, run.node.limits)
            if attempt.exit or attempt.effects or self.attempt > 1 or self.recorded:
                await attempt.check_left_open()
        except StepExit as leaving:
            await self._leave(leaving)
        except BaseException as error:  # noqa: BLE001 - some of it is raised again there
            await self._raised(error)
        else:
            self._succeeded(output)

    async def record_undoable(self) -> None:
        """Write that the step begins, unless the journal has it: there may be something to undo.

        The worker may die now, and the job be cancelled before another one begins the step again.
        Then only the journal tells that the step may have done its work.
        """
        if self.attempt == 1 and not self.recorded:
            await self.run.write(*self.take_start_record())

    async def _call_function(self, context: AnyStepContext) -> Any:
        """Call the function of the step, or let a test do it."""
        intercept = self.run.node.registry.intercept
        if intercept is None:
            return await self._call_in_isolation(context)

        async def proceed() -> Any:
            value = await self._call_in_isolation(context)
            return await value if inspect.isawaitable(value) else value

        attempted = AttemptedCall(
            step=self.entry.name,
            id=self.entry.id,
            job_id=self.run.job.id,
            attempt=self.attempt,
            args=self._args,
            kwargs=self._kwargs,
            proceed=proceed,
        )
        return await intercept(attempted)

    async def _call_in_isolation(self, context: AnyStepContext) -> Any:
        """Call the function of the step where its isolation says."""
        step, run = self.step, self.run
        live, progress = cast("Attempt", self.live), cast("StepProgress", self.progress)
        if step.isolation == "process":
            return await call_in_os_process(self, live, progress)
        if step.isolation == "thread":
            use = ThreadUse(run.job.id, self.entry.id, run.epoch)
            await self._wait_for_old_threads(use)
            call = (live, progress)
            return await call_in_step_thread(step, call, self._args, self._kwargs, use)
        return step.invoke(context, self._args, self._kwargs)

    async def _wait_for_old_threads(self, use: ThreadUse) -> None:
        """Wait for threads of an earlier run: a step never runs twice at once in this worker.

        Its timeout starts after that.
        """
        for ended in older_calls(use):
            _log.warning(
                "job %s: %s is not started again while a thread of an earlier attempt works on it "
                "in this program",
                *(use.job, use.step),
            )
            self.disarm()
            await asyncio.shield(asyncio.wrap_future(ended))
            self.arm()

    def attempt_ended(self) -> None:
        """Record that the process of the attempt has ended."""
        self.start_unrecorded = False
        if self._expiry is not None:
            self.disarm()
        if self.key is not None:
            self.unlock_key()
        if self.live is not None:
            self.live.ended()
        if self.committing:  # the answer of the store ends it
            return
        if self._expired:  # its end is recorded by `_died_late`
            self._report_stop("timed out")
        elif self in self.run.working:
            self._report_stop("interrupted")
            self.run.process_ended(self)

    # Success

    def _succeeded(self, output: bytes) -> None:
        """Hand the result to the store without waiting: this process has done its work."""
        self.start_unrecorded = False  # from here on, recording its start would be a step back
        if crashpoint.wanted and self.live is not None and self.live.effects is not None:
            crashpoint.reach("before_step_commit")
        if self.on_end is not None:
            self.on_end(_SUCCEEDED)
        self.entry = entry = self._entry(_SUCCEEDED, output=output)
        if len(output) >= self.run.node.limits.large:
            self._warn_of_large("result", len(output))
        self.has_outcome = self.committing = True
        self.run.write_soon(entry, self._written)

    def _written(self, error: BaseException | None) -> None:
        """Pass the result to the code: it is durable."""
        run = self.run
        self.committing = False
        if error is not None:
            # Buffered, so that it is written even if the job ends before this process writes it.
            run.buffered_entries[self.entry.seq] = self.entry
            self.spawn(self._write_again)
            return
        if crashpoint.wanted and self.live is not None and self.live.effects is not None:
            crashpoint.reach("after_step_commit")
        if self.key is not None:
            self.unlock_key()
        run.progress_at = run.node.loop.time()
        if events.listens(events.STEP_STOP):
            self._report_stop("succeeded" if self.attempt else "reused")
        # The code now gets what a replay will return: the result after one pass through the codec.
        value = self.step.result.decode(cast("bytes", self.entry.output))
        self.finish(value)
        run.process_ended(self)

    async def _write_again(self) -> None:
        """Retry the write while the lease is ours: the step is done, and must not be repeated."""
        await self.run.write(self.entry)
        self.unlock_key()
        self._report_stop("succeeded")
        self.finish(self.step.result.decode(cast("bytes", self.entry.output)))

    # Failure

    async def _raised(self, error: BaseException) -> None:
        """Handle what the user's code raised: the policy decides whether to retry."""
        self.disarm()
        if isinstance(error, Unwound | KeyboardInterrupt):
            raise error
        if self.live is not None and self.live.exit is not None:
            await self.live.exit.apply(self)
            return
        if current("a step").outcome is None and not self._interrupted:
            if isinstance(error, PayloadTooLarge):
                await self._park(error)
            else:
                await self._failed(_as_failure(error))

    async def _park(self, error: PayloadTooLarge) -> None:
        """Park the job: a person raises the limit or changes the step, which then begins again."""
        self._report_stop("left")
        await self.run.write(self.uncount())
        self.run.end(at_limit(error, self.entry.id))

    async def _failed(self, error: Exception) -> None:
        self.start_unrecorded = False
        step, raises = self.step, self.step.raises
        verdict = decide_retry(step.retry, error, self.attempt)
        if isinstance(error, raises):
            verdict = GiveUp("permanent")  # an outcome
        failure = failure_of(
            error,
            self.attempt,
            permanent=is_permanent(error),
            outage=isinstance(verdict, GiveUp) and verdict.outage,
            raises=raises,
            limits=self.run.node.limits,
        )
        judged = self._judged_item(failure)
        if judged is not None and judged[0] is ItemVerdict.FAIL:
            self._keep_position(judged[1])
            judged = None
        skips = judged is not None and judged[0] is ItemVerdict.CONTINUE
        gives_up = judged is None and isinstance(verdict, GiveUp)
        if (skips or gives_up) and (left := await self._undecided()) is not None:
            put_in_doubt(self.run, left)
            await self._leave(ExitForDecision(left, f"the step ended with {failure.summary()}"))
        elif judged is not None:
            await self._after_item(judged, failure)
        elif isinstance(verdict, Again):
            wake_at = self.run.now() + verdict.delay
            again = self._entry(StepState.PENDING, error=failure.pack(), wake_at=wake_at)
            self._report_stop("failed")
            events.step_retried(self, self.attempt, verdict.delay, failure.summary())
            event = self._event("step.retried", failure, again_at=wake_at)
            await self._begin_again(again, event)
        else:
            await self._fail(failure, error)

    async def _undecided(self) -> Effect | None:
        """Return an effect that the step leaves open, and that only a person can settle.

        A call that was interrupted, by a timeout of the step for example, may have happened. Code
        that got an ordinary failure could do it again in another way. A model does just that: it
        calls the tool again, with another key.
        """
        left = await self._left_open()
        return next((line for line in left if line.in_doubt == "ask" or self.step.is_tool), None)

    async def _left_open(self) -> list[Effect]:
        """Return the effects that the step leaves open."""
        if self.run.ledger is None and not self.recorded:
            return []
        return await self.run.open_ledger().open_of(self.entry.id)

    async def _fail(self, failure: Failure, error: Exception) -> None:
        """Write that the step has failed for good, and raise that in the code.

        Nobody needs to answer its questions any more. What it leaves open is in doubt.
        """
        left = await self._left_open()
        self.has_outcome = True
        self._report_stop("failed")
        if self.on_end is not None:
            self.on_end(_FAILED)
        failed = self.entry = self._entry(_FAILED, error=failure.pack())
        told = self._event("step.failed", failure)
        notices = tuple(each for line in left for each in put_in_doubt(self.run, line))
        if self.on_end is not None:
            notices += undo_alerts(self.run, failed.id, failure)
        await self.run.write(
            failed, *self.along, events=(told,), notices=notices, withdraws=failed.id
        )
        self.finish(None, self._error_of(failure, error))
        if self.on_end is not None:
            events.undo_failed(self, self.attempt, failure.summary())

    def _error_of(self, failure: Failure, cause: BaseException | None = None) -> Exception:
        """Return what the code gets, the same on the first run and on every replay."""
        failed = failure.as_error(self.entry.id, cause)
        try:
            raised = failure.raised(self.step.raises, failed)
        except Drift as misfit:
            return misfit
        if raised is None and failure.is_outcome:
            return Drift(
                f"{self.entry.id} raised {failure.type}, which the step does not declare in "
                "`raises` any more"
            )
        return raised or failed

    def _judged_item(self, failure: Failure) -> tuple[ItemVerdict, bytes] | None:
        """Return what follows the item at which the step failed, and where it continues."""
        judged = None if self.progress is None else self.progress.judge_item(failure)
        if judged is None and self.live is not None:
            judged = self.live.item_verdict
        return judged

    def _keep_position(self, checkpoint: bytes) -> None:
        """Let the next attempt begin with the item at which this one has failed.

        The items before it are done, also those since the last checkpoint: whoever mends the code
        must not do them twice.
        """
        number = self.entry.checkpoint_no + 1
        self.entry = replace(self.entry, checkpoint=checkpoint, checkpoint_no=number)

    async def _after_item(self, judged: tuple[ItemVerdict, bytes], failure: Failure) -> None:
        """Continue without the item at which the step failed, or try it once more."""
        verdict, checkpoint = judged
        self._report_stop("failed")
        self.attempt -= 1
        onward = self._entry(
            StepState.PENDING, checkpoint=checkpoint, checkpoint_no=self.entry.checkpoint_no + 1
        )
        kind = "item.skipped" if verdict is ItemVerdict.CONTINUE else "item.retried"
        await self._begin_again(onward, self._event(kind, failure))

    async def _begin_again(self, entry: JournalEntry, *events: JobEvent) -> None:
        """Write the progress of the step, and begin the next attempt when it is due."""
        self.entry = entry
        await self.run.write(entry, events=events)
        self.start_again = True

    # Neither: the attempt does not count

    async def _leave(self, leaving: StepExit) -> None:
        self.disarm()
        self._report_stop("left")
        await leaving.apply(self)

    async def _continue_later(self, partial: "Partial[Any]") -> None:
        """Save what is done so far, and continue from there in a new attempt."""
        if self._expired:  # it came too late
            return
        assert self.progress is not None
        assert self.live is not None
        await self.live.check_left_open()
        checkpoint = self.progress.encode_checkpoint(partial.checkpoint)
        # For a compensation, if it never ends.
        output = self.step.result.encode(partial.output, self.run.node.limits)
        self._report_stop("partial")
        self.attempt -= 1
        so_far = self._entry(
            StepState.PENDING,
            output=output,
            checkpoint=checkpoint,
            checkpoint_no=self.entry.checkpoint_no + 1,
        )
        await self._begin_again(so_far)

    def uncount(self) -> JournalEntry:
        self.start_unrecorded = False
        self.attempt -= 1
        self.entry = self._entry(StepState.PENDING)
        return self.entry

    # Ended from outside

    def interrupt(self, *, hard: bool) -> None:
        """Ask the step to stop: CANCEL, then by force; or only at its next checkpoint."""
        if self.live is not None:
            self.live.stopping = True
        process = self.run.working.get(self)
        if process is None or self.has_outcome or not hard or process.done():
            return
        if not self._interrupted:
            self._interrupted = self.run.interrupted_step = True
            if self.start_unrecorded:  # what it may have done must be recorded
                self.run.buffered_entries.setdefault(self.entry.seq, self.running_entry())
            process.at_exit(partial(self._died, process))
        if self.live is not None:
            self.live.cancelled.set()
        stop_gracefully(process, self.run.node.settings.cancel_grace, why="the job ends")

    def _died(self, process: Process) -> None:
        """Handle the end of a process that may have been abandoned before it reported its end."""
        self.on_lease_lost()
        if self.run.working.get(self) is process and not self.committing:
            self.run.process_ended(self)

    def on_lease_lost(self) -> None:
        self.disarm()
        if self.live is not None:
            self.live.end()
            self.live.cancelled.set()
        self.unlock_key()

    def arm(self) -> None:
        """Start the timeout of the attempt."""
        if self.step.timeout is not None:
            self._expiry = self.run.node.loop.call_later(self.step.timeout, self._expire)

    def disarm(self) -> None:
        """Stop the timeout of the attempt."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        """End an attempt that has timed out; the process cannot record that itself."""
        process = self.run.working.get(self)
        if process is not None and not process.done() and self.run.verdict is None:
            self._expired = self.run.interrupted_step = True
            self.on_lease_lost()
            process.at_exit(self._died_late)
            kill(process, "the step timed out")

    def _died_late(self) -> None:
        self._expired = False
        if self.run.verdict is None and not self.finished:
            self.spawn(self._record_timeout)
        else:
            self.run.process_ended(self)

    async def _record_timeout(self) -> None:
        limit = self.step.timeout
        await self._failed(StepTimeout(f"step {self.entry.id} took longer than {limit:g} s"))

    # Questions to people

    def on_news(self) -> None:
        if self.asked is not None:
            self.spawn_again(partial(look_for_answer, self))

    def take_arguments(self, packed: bytes) -> None:
        self._args, self._kwargs = self.step.parameters.unpack(packed)

    def packed_arguments(self) -> bytes:
        """Return the arguments that the function gets: the journal may have only their digest."""
        return self.step.parameters.pack(self._args, self._kwargs, self.run.node.limits)

    async def record_cancel(self) -> None:
        error = OperationCancelled(f"{self.entry.id} was cancelled: another operation ended first")
        await self.refuse(error)

    async def refuse(self, error: Exception) -> None:
        failure = failure_of(error, self.attempt, permanent=True, raises=self.step.raises)
        await self._fail(failure, error)

    def describe(self) -> dict[str, Any]:
        if self.asked is None:
            return super().describe()
        return {"kind": "approval", "id": self.entry.id, "approval": self.asked}

    # Idempotency keys: the result of one job is used by the other jobs of the tenant

    async def reuse(self) -> bool:
        """Use the result of another step under the same key, unless this one has begun before."""
        try:
            self.key = self._shared_key()
            await self._lock_key(self.key)
            found = await self._result_under(self.key) if self.attempt == 1 else None
        except StepExit as leaving:
            await self._leave(leaving)
            return True
        except BaseException as error:  # noqa: BLE001 - some of it is raised again there
            await self._raised(error)
            return True
        if found is not None:
            self.unlock_key()
            # Without attempt and key: this job neither undoes nor shares what another one did.
            self.attempt, self.key = 0, None
            self.disarm()
            self._succeeded(found)
        return found is not None

    def _shared_key(self) -> str:
        """Return the key by which the result is found: never by another tenant, step or version.

        Raises:
            DefinitionError: The step's own key is not a string.
        """
        step, key = self.step, self.step.key(self._args, self._kwargs)
        if not isinstance(key, str) or not key:
            raise DefinitionError(
                f"idempotency_key of {step.name} returned {key!r}: it must return a string"
            )
        return digest(self.run.job.tenant, self.entry.name, step.version, key)

    async def _result_under(self, key: str) -> bytes | None:
        """Return the result of a step under this key; None if there is none, or it was undone.

        Raises:
            ExitForOtherJob: The job that has done it is being undone.
            Permanent: It was called with other arguments.
            Drift: Its result was of another type.
        """
        lent = await self.run.ask(lambda store: store.entry_by_key(key))
        if lent is None or lent.entry.output is None:
            return None
        found, output = lent.entry, lent.entry.output
        if lent.being_undone and lent.job_id != self.run.job.id:
            raise ExitForOtherJob(lent.job_id, found.id, found.ended_at or 0.0)
        if not self._is_same_work(found.input):
            raise Permanent(
                f"{self.entry.id} has the idempotency_key of work that was done with other "
                "arguments: all that makes a difference must be in the key"
            )
        self.step.result.decode(output)
        return output

    def _is_same_work(self, kept: bytes | None) -> bool:
        """Whether other work was given what this one is given, whatever defaults have filled in."""
        if kept is None or is_same(kept, self.entry.input or b""):
            return kept is not None
        parameters, packed = self.step.parameters, self.packed_arguments()
        given = parameters.by_name(self._args, self._kwargs)
        return parameters.is_same_call(kept, packed, given)

    async def _lock_key(self, key: str) -> None:
        """Wait for other steps of this job with the same key; this is not an attempt yet."""
        run, locks = self.run, self.run.open_ledger().key_locks
        if not locks.is_locked(key):
            await locks.lock(key, self)
            return
        self.disarm()
        self.start_unrecorded = False
        await locks.lock(key, self)
        self.start_unrecorded = True
        run.node.started.append(self)
        run.node.flush_soon()
        self.arm()

    def unlock_key(self) -> None:
        """Let other steps of this job use the key, unless the result is not durable yet."""
        if self.key is not None and not self.committing:
            self.run.open_ledger().key_locks.unlock_all(self)

    # Records

    def running_entry(self) -> JournalEntry:
        """Return the record of a step that has begun."""
        return self._entry(StepState.RUNNING)

    def record_start(self) -> None:
        """Buffer the record of the start for the next write, if it is still of use."""
        if self.start_unrecorded and self.run.verdict is None:
            self.run.buffered_entries.setdefault(self.entry.seq, self.running_entry())

    def report(self) -> Progress | None:
        live, at = self.live, self.run.at
        if live is None or live.over or live.beat_at is None:
            return None
        beat_at, told = at(live.beat_at), live.told
        if told is None:
            return Progress(step=self.entry.id, heartbeat_at=beat_at)
        return Progress(
            step=self.entry.id,
            heartbeat_at=beat_at,
            done=told.done,
            total=told.total,
            note=told.note,
            at=at(live.told_at),
        )

    def take_start_record(self) -> tuple[JournalEntry, ...]:
        if not self.start_unrecorded:
            return ()
        self.start_unrecorded = False
        return (self._entry(StepState.RUNNING),)

    async def write_checkpoint(self, data: bytes) -> None:
        """Write a checkpoint of the attempt."""
        number = self.entry.checkpoint_no + 1
        self.start_unrecorded = False
        if len(data) >= self.run.node.limits.large:
            self._warn_of_large("checkpoint", len(data))
        self.entry = self._entry(StepState.RUNNING, checkpoint=data, checkpoint_no=number)
        await self.run.write(self.entry)
        events.checkpoint_saved(self, number, len(data))

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
        run, old = self.run, self.entry
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
            # A finished step no longer needs a checkpoint.
            checkpoint=None if state is _SUCCEEDED else checkpoint or old.checkpoint,
            checkpoint_no=old.checkpoint_no if checkpoint_no is None else checkpoint_no,
            wake_at=wake_at,
            started_at=self.started_at,
            ended_at=run.now() if ended else None,
            key=self.key,
        )

    def _warn_of_large(self, what: str, size: int) -> None:
        """Tell of a large result or checkpoint; the log tells it once for each step and worker."""
        run, name = self.run, self.entry.name
        events.payload_large(self, what, size)
        if (run.job.name, name, what) not in run.node.large_payloads:
            run.node.large_payloads.add((run.job.name, name, what))
            _log.warning(
                "job %s (%s): the %s of %s has %s bytes; it is written and read again at every "
                "resume. Store large data elsewhere, and keep a reference to it",
                *(run.job.id, run.job.name, what, self.entry.id, f"{size:,}"),
            )

    def _event(self, kind: str, failure: Failure, **more: float) -> JobEvent:
        """Return the line of the log for a failed attempt, with when it began."""
        data: dict[str, Any] = {"step": self.entry.id, "attempt": self.attempt}
        data |= {"error": failure.summary(), "began_at": self.started_at} | more
        return JobEvent(type=kind, data=data, actor=self.run.node.owner)

    def _report_stop(self, outcome: str) -> None:
        """Emit how an attempt has ended, once per attempt."""
        if not self._stop_reported and events.listens(events.STEP_STOP):
            self._stop_reported = True
            events.step_stopped(self, self.attempt, self.begun_at, outcome)


class Attempt:
    """One attempt, as the engine sees it: the `StepPort` on the loop of the worker.

    Wherever the function runs, its requests are carried out here. The attempt outlives neither the
    lease nor its timeout: when it is `over`, requests from a thread that still runs the function
    raise `Unwound`, and what it reports does not count.

    It also remembers the first exit that was raised through the function. A function that catches
    it, or raises something else instead, exits all the same.
    """

    __slots__ = (
        "_cancelled",
        "_emits",
        "_reserved",
        "_step",
        "beat_at",
        "effects",
        "exit",
        "item_verdict",
        "over",
        "stopping",
        "told",
        "told_at",
    )

    blocking = False

    def __init__(self, step: "StepOperation[Any]") -> None:
        self._step = step
        self.over = False  # it has ended, although its thread may still run
        self.stopping = False  # leave at the next checkpoint
        self.exit: StepExit | None = None  # the first that was raised
        self.effects: Effects | None = None  # once the code asks for one
        self.item_verdict: tuple[ItemVerdict, bytes] | None = None  # of the OS process it ran in
        self._reserved = _NOTHING_RESERVED  # by this run of the code
        self._cancelled: asyncio.Event | None = None
        self._emits = False  # it has emitted something
        # What the code reports, and when, by the loop's time.
        self.beat_at: float | None = None
        self.told: ProgressReport | None = None
        self.told_at = 0.0

    def ended(self) -> None:
        """Record that the process of the attempt has ended."""
        self.end()
        if self.beat_at is not None:
            self._step.run.node.reports.soon(self._step.run)  # without this attempt

    def end(self) -> None:
        """Ignore all further requests and reports of the function."""
        self.over = True
        if self.effects is not None:
            self.effects.unlock_keys()

    @property
    def cancelled(self) -> asyncio.Event:
        if self._cancelled is None:
            self._cancelled = asyncio.Event()
        return self._cancelled

    def time(self) -> float:
        return self._step.run.node.loop.time()

    def is_alive(self) -> None:
        run = self._step.run
        run.progress_at = run.node.loop.time()

    def heartbeat(self) -> None:
        run = self._step.run
        self.beat_at = run.progress_at = run.node.loop.time()
        run.node.reports.soon(run)

    def report(self, report: ProgressReport) -> None:
        self.heartbeat()
        self.told, self.told_at = report, self._step.run.progress_at

    def emit(self, topic: str, data: bytes) -> None:
        step = self._step
        run, entry = step.run, step.entry
        if self.over or run.verdict is not None:
            return
        if not self._emits:
            self._emits = True
            step.record_start()  # in the same write, so that its next attempt takes this back
        run.output.emit_from(entry.id, step.attempt, entry.checkpoint_no, topic, data)
        run.node.flush_soon()
        self.is_alive()

    async def save_checkpoint(self, data: bytes) -> bool:
        if self.over:  # it timed out, or another worker owns the job: the next attempt continues
            raise Unwound
        await self._step.write_checkpoint(data)
        return self.stopping

    # Effects

    def effect_asked(self, request: EffectRequest) -> None:
        if self.effects is None:
            self.effects = Effects(self._step, self)
        self.effects.visited.add(request.place)

    async def effect_begin(self, request: EffectRequest, options: EffectOptions) -> BegunEffect:
        try:
            return await (self.effects or self._open_effects()).begin(request, options)
        except StepExit as leaving:
            raise self._note(leaving) from None

    async def effect_done(self, begun: BegunEffect, packed: PackedResult) -> Effect:
        return (self.effects or self._open_effects()).done(begun, packed)

    async def effect_failed(
        self, begun: BegunEffect, fault: CallFault | None, options: EffectOptions
    ) -> None:
        try:
            (self.effects or self._open_effects()).failed(begun, fault, options)
        except StepExit as leaving:
            raise self._note(leaving) from None

    async def record_effect(
        self, kind: str, key: str, target: str, details: Mapping[str, Any]
    ) -> None:
        await (self.effects or self._open_effects()).record(kind, key, target, details)

    async def was_effect_recorded(self, kind: str, key: str) -> bool:
        return await (self.effects or self._open_effects()).was_recorded(kind, key)

    def when_unlocked(
        self, request: EffectRequest, options: EffectOptions
    ) -> "asyncio.Future[None] | None":
        """Return a future that is done when `effect_begin` need not wait for another step."""
        return (self.effects or self._open_effects()).when_unlocked(request, options)

    async def check_left_open(self) -> None:
        """Check that no question about an effect is left open, so that the step may succeed.

        Raises:
            StepExit: The function has caught an exit, or has not asked for an effect that an
                earlier attempt has left open.
        """
        self.check_exit()
        await (self.effects or self._open_effects()).check_none_left_open()

    def check_exit(self) -> None:
        """Raise the exit that the function has caught, if it has."""
        if self.exit is not None:
            raise self.exit

    def _open_effects(self) -> Effects:
        self.effects = Effects(self._step, self)
        return self.effects

    # Money and people

    async def ask_person(self, place: Place, question: UserQuestion) -> Approved | NotApproved:
        run, expires = self._step.run, question.expires
        terms = run.node.policy.terms_for(question.level)
        asked = Question(
            step=place.spell("?"),
            title=question.title,
            input=question.packed,
            shown={} if question.shown is None else question.shown,
            judgement=Judgement(question.level),
            terms=terms if expires is None else replace(terms, expires=expires),
        )
        return outcome_of(await self._or_exit(answer_to(run, asked)))

    async def reserve(self, place: Place, amount: Amount) -> str:
        if self.over:  # it timed out: what its thread has not paid for yet, the next attempt pays
            raise Unwound
        # Each time the code reaches this place it spends again, so each time has its own id.
        run, once = self._step.run, f"{self._step.attempt}.{secrets.token_hex(8)}"
        reservation = Reservation(
            job_id=run.job.id,
            owner=run.node.owner,
            epoch=run.epoch,
            root_id=(await budget_of(run)).root,
            id=spending_id(run.job.id, place, once),
            amount=amount,
        )
        await self._or_exit(reserve(run, reservation, place, lambda: self._reserved))
        self._reserved += amount
        return reservation.id

    async def settle(
        self, reservation: str, actual: Amount, usage: ModelUsage | None = None
    ) -> None:
        step = self._step
        note = None
        if usage is not None:
            about = model_called(step.entry.id, step.attempt, usage, actual.usd)
            note = JobEvent(type=MODEL_CALLED, data=about, actor=step.run.node.owner)
        await settle(step.run, reservation, actual, note)
        events.spent(self._step, actual, usage)

    # Exits

    async def _or_exit(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except StepExit as leaving:
            raise self._note(leaving) from None

    def _note(self, leaving: StepExit) -> StepExit:
        self.exit = self.exit or leaving
        return leaving


async def _attempt(operation: StepOperation[Any]) -> None:
    """The process of one attempt."""
    run, entry = operation.run, operation.entry
    job, worker = run.job, run.node.owner
    working_on.set(WorkingOn(job.id, job.name, job.tenant, worker, entry.id, operation.attempt))
    if events.listens(events.STEP_ENTER):
        events.step_entered(operation, operation.attempt)
    scope.set(entry.id)  # its code is not the code of the job, in which calls are awaited
    end_guard()
    try:
        if operation.step.idempotency_key is None or not await operation.reuse():
            if operation.step.undo is not None:
                await operation.record_undoable()
            await operation.make_attempt()
    except Unwound:
        pass
    except Exception as error:  # noqa: BLE001 - a fault of the engine itself must not be silent
        operation.run.stop(NeedsAttention(failure_of(error)))
    finally:
        operation.attempt_ended()


def _as_failure(error: BaseException) -> Exception:
    """Return whatever the user's code raised as a failure of the step."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        failure: Exception = RuntimeError("the step was cancelled by its own code")
    else:
        failure = Permanent(f"the step raised {error!r}")
    failure.__cause__ = error
    return failure
