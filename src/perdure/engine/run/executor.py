"""The core of the engine: run a claimed job as far as possible, and write how the run ended.

One process of the worker executes one claim, in three parts:

* **Before.** Pending requests come first: a job that is to be paused or cancelled does not run its
  code. Nor does one that has crashed too many workers.
* **The code** runs until it returns or raises, until there is nothing left to do for now, or until
  the run is ended from outside; see `perdure.engine.journal.run` for who may do that, and how.
* **The end** is written in one fenced write, and only when nothing else can be written any more: no
  step is working, and the store has answered all writes of steps. Only then are journal and ledger
  complete, and it can be decided from them whether the job must be undone.

If the lease is lost meanwhile, nothing is written: the next owner continues from the journal. If
the end itself cannot be written, because the store refuses it, the job needs attention; raising
that error would only crash the next worker, too.

Code that does not unwind when its run has ended, for example because it catches everything, is
abandoned. Its process is killed, and another process ends the run.
"""

import contextlib
import logging
from functools import partial
from typing import Any, Protocol, Unpack, cast

from msgspec.structs import replace

from perdure.base.errors import (
    Drift,
    JobError,
    PayloadTooLarge,
    StoreError,
    UnknownName,
)
from perdure.engine import events
from perdure.engine.journal.guard import begin_guard, end_guard
from perdure.engine.journal.run import Code, Run
from perdure.engine.journal.verdict import (
    Cancelled,
    Completed,
    Continued,
    Drained,
    NeedsAttention,
    Paused,
    ReplayInOrder,
    RunFailed,
    RunLost,
    RunVerdict,
    Suspended,
    UndoEnded,
    UndoNeeded,
    Unwound,
    at_limit,
)
from perdure.engine.people.ask import was_asked
from perdure.engine.people.attention import attention_alerts
from perdure.engine.run.context import JobContext
from perdure.engine.steps.undo import decide_end, on_cancel, undo
from perdure.engine.worker_port import WorkerPort
from perdure.engine.working_on import WorkingOn, working_on
from perdure.jobs.definition import JobDefinition, scope
from perdure.jobs.failure import Failure, failure_of, stopped_at, type_name
from perdure.jobs.model import Claim, JobChange, JobEvent, NewBeginning, WriteFields
from perdure.jobs.on_failure import FailureRules, after_failure, is_silence
from perdure.jobs.plan import Plan
from perdure.jobs.state import ENDED, JobState
from perdure.process.lifecycle import PLAIN, kill, spawn_process

_log = logging.getLogger("perdure.worker")


class RunOwner(WorkerPort, Protocol):
    """The worker, as the executor sees it: it keeps the list of runs."""

    def admit(self, run: Run, since: float) -> None:
        """Add a run, claimed at that `lease_time` or later."""
        ...

    def dismiss(self, run: Run) -> None:
        """Remove a run."""
        ...


async def execute(node: RunOwner, claim: Claim, since: float) -> None:
    """The process of a running job, claimed at that `lease_time` or later."""
    run = Run(node, claim)
    job = run.job
    working_on.set(WorkingOn(job.id, job.name, job.tenant, node.owner))
    run.abandon = partial(_abandon, node, run)
    node.admit(run, since)
    verdict: RunVerdict | None = None
    try:
        if events.listens(events.JOB_ENTER):
            await _trace(run)
        verdict = _verdict_before(run)
        if verdict is None:
            undoing = run.job.state is JobState.COMPENSATING
            verdict = await (undo(run, run_code) if undoing else run_code(run, job_code))
        if not run.abandoned:
            await end_run(run, verdict)
    finally:
        events.left(run, type(run.verdict or verdict).__name__)
        if not run.abandoned:
            node.dismiss(run)


async def _trace(run: Run) -> None:
    """Continue the trace of a job; a store that does not answer costs only that."""
    with contextlib.suppress(StoreError):
        found = await run.node.store.trace(run.job.id)
        if (span := events.entered(run, found)) is not None:
            await run.node.store.keep_trace(run.job.id, span)


async def end_run(run: Run, verdict: RunVerdict) -> None:
    """Wait until nothing is working for the job any more, and write how its run ended."""
    await run.stop_operations()
    if isinstance(verdict, RunLost):
        return
    if isinstance(verdict, RunFailed) and run.job.state is not JobState.COMPENSATING:
        verdict = _attention_or_failed(run, verdict)
    if isinstance(verdict, NeedsAttention):
        verdict = _with_version(run, verdict)
    # If the lease is lost at the last moment, its new owner continues.
    with contextlib.suppress(Unwound):
        try:
            await run.finish_writes()
            verdict, fields = await decide_end(run, verdict)
            await conclude(run, verdict, **fields)
        except Exception as error:  # noqa: BLE001 - raised, it would only come again
            _log.exception("the end of job %s cannot be written", run.job.id)
            run.buffered_entries.clear()  # one of them may be why
            run.buffered_spending.clear()  # what is not settled counts as spent
            run.output.clear()
            await conclude(run, NeedsAttention(failure_of(error)))


def _abandon(node: RunOwner, run: Run) -> None:
    """End a run without its code, which neither returns nor raises."""
    _log.error("the code of job %s does not unwind: its process is killed", run.job.id)
    spawn_process(node.runtime, None, _end_without_code, (node, run), PLAIN)


async def _end_without_code(node: RunOwner, run: Run) -> None:
    kill(run.process, "the run of the job has ended")
    try:
        await end_run(run, run.verdict or RunLost())
    finally:
        node.dismiss(run)


# Before


def _verdict_before(run: Run) -> RunVerdict | None:
    """Return how the run ends without its code; None if the code may run."""
    job = run.job
    if job.request == "pause":
        return Paused()
    undoing = job.state is JobState.COMPENSATING
    if job.request == "cancel" and not undoing and on_cancel(run) != "finish":
        return Cancelled()
    return _too_many_claims(run) if job.claims > _max_claims(run) else None


def _max_claims(run: Run) -> int:
    definition, limit = run.node.registry.jobs.get(run.job.name), run.node.settings.max_claims
    return limit if definition is None else min(limit, definition.max_claims)


def _too_many_claims(run: Run) -> NeedsAttention:
    undoing = run.job.state is JobState.COMPENSATING
    what = "the undo of this job" if undoing else "this job"
    choices = "resume it, or skip what cannot be undone" if undoing else "resume or cancel it"
    text = (
        f"{run.job.claims - 1} workers in a row took {what} and were lost without any progress on "
        "it: they died, or were stopped, or their event loop stood still, and the job may be the "
        f"cause. Look at the workers' logs, then {choices}. "
        'What blocks the loop, or takes a worker down, belongs into a step with isolation="process"'
    )
    return NeedsAttention(failure_of(JobError(text)))


# The code


async def run_code(run: Run, code: Code) -> RunVerdict:
    """Run the code until it ends, or until there is nothing left to do for now."""
    run.code_begins()
    did = "has ended"
    try:
        verdict: RunVerdict = Completed(await code(run))
        if run.not_begun:
            _warn_of_unawaited(run)
    except BaseException as error:
        # Code that unwinds may raise anything.
        if run.verdict is None and _ends_process(run, error):
            raise
        verdict = _misfit(error) or RunFailed(_failure_of_code(run, error))
        did = _raised(error)
    finally:
        run.code_ends()
    # Code that fits its journal asks for everything recorded before it ends: it had not ended when
    # that was recorded.
    if run.journal.unvisited and _is_end(run, verdict):
        verdict = run.expects_more(did)
    # A decision from outside stands, whatever the code did after it.
    if run.verdict is None and isinstance(run.ending, Cancelled | RunFailed):
        return run.ending
    return run.verdict or run.refused or verdict


def _is_end(run: Run, verdict: RunVerdict) -> bool:
    """Whether the code itself has ended the job."""
    failed = isinstance(verdict, RunFailed) and not run.leaves_source
    return failed or isinstance(verdict, Completed)


def _leaves(error: BaseException) -> list[BaseException]:
    """Return what was raised: a task group raises what its branches raise as one error."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for each in group.exceptions for leaf in _leaves(each)]


def _misfit(error: BaseException) -> NeedsAttention | None:
    """Return how the run ends if the code does not fit its journal, or has met a limit of size."""
    for leaf in _leaves(error):
        if isinstance(leaf, Drift | UnknownName):
            return NeedsAttention(failure_of(leaf))
        if isinstance(leaf, PayloadTooLarge):
            return at_limit(leaf)
    return None


def _raised(error: BaseException) -> str:
    """Say what the code raised."""
    return "raised " + ", ".join(f"{type(leaf).__name__}: {leaf}" for leaf in _leaves(error))


def _failure_of_code(run: Run, error: BaseException) -> Failure:
    """Return what the code raised; who waits for the job gets what it declares as it is."""
    definition = _definition(run)
    failure = failure_of(
        error,
        outage=getattr(error, "outage", False),
        raises=() if definition is None else definition.raises,
        limits=run.node.limits,
    )
    # Of several branches that failed, the first in the journal: a retry begins there.
    failed = [run.failed[step] for step in stopped_at(error) if step in run.failed]
    first = min(failed, key=lambda operation: operation.entry.seq, default=None)
    return failure if first is None else replace(failure, step=first.entry.id)


def _definition(run: Run) -> JobDefinition[..., Any] | None:
    """Return the definition of the job; None for a plan, and if the code does not have it."""
    return None if run.job.plan else run.node.registry.jobs.get(run.job.name)


def _warn_of_unawaited(run: Run) -> None:
    """Warn of steps that were never awaited, as Python does for coroutines."""
    ids = ", ".join(sorted(operation.entry.id for operation in run.not_begun))
    _log.warning(
        "job %s (%s) has ended without awaiting %s: nothing of that was done",
        *(run.job.id, run.job.name, ids),
    )


def _ends_process(run: Run, error: BaseException) -> bool:
    """Whether an error ends the process of the run, and not only the user's code."""
    return run.process.outcome is not None or isinstance(error, KeyboardInterrupt)


async def job_code(run: Run) -> bytes:
    """Run the code that the job was submitted for."""
    context, job = JobContext(run), run.job
    if job.plan is not None:
        return await _run_plan(context, Plan.from_json(job.plan), run)
    definition = run.node.registry.find_job(job.name)
    args, kwargs = definition.parameters.unpack(job.input)
    scope.set(context)  # from here on, what the code awaits are operations of this job
    begin_guard(run, definition)
    try:
        result = await definition.invoke(context, args, kwargs)
    finally:
        end_guard()
    return definition.result.encode(result, run.node.limits)


async def _run_plan(context: JobContext, plan: Plan, run: Run) -> bytes:
    """Run the calls of a plan, one after the other; return the result of the last one."""
    outputs: dict[str, Any] = {}
    result = b"null"
    for call in plan.calls:
        step = run.node.registry.find_step(call.step)
        args, kwargs = plan.resolve(call, outputs, step)
        outputs[call.id] = output = await context.start(step(*args, **kwargs).options(id=call.id))
        result = step.result.encode(output, run.node.limits)
    return result


# The end


def _attention_or_failed(run: Run, verdict: RunFailed) -> NeedsAttention | RunFailed:
    """Return the verdict after an error: one that people are to look at first undoes nothing."""
    failure, definition = verdict.failure, _definition(run)
    failed = run.failed.get(failure.step)
    rules = FailureRules(
        step=None if failed is None else failed.on_failure,
        job=None if definition is None else definition.on_failure,
        app=run.node.registry.on_failure,
        on_outage="park" if definition is None else definition.on_outage,
        is_cancelled=run.job.request == "cancel",
    )
    match after_failure(failure, rules):
        case "undo":
            return verdict
        case how:
            return NeedsAttention(failure, alerted=is_silence(failure), asks=how == "ask")


def _with_version(run: Run, verdict: NeedsAttention) -> NeedsAttention:
    """Say which version of the code a job needs that has drifted."""
    failure = verdict.failure
    if failure.type != type_name(Drift):
        return verdict
    message = f"{failure.message}. {_which_version(run)}"
    return replace(verdict, failure=replace(failure, message=message))


_SAME_AGAIN = (
    "take times, random numbers and ids from ctx.now(), ctx.random() and ctx.uuid(), and what else "
    "may differ from a step"
)


def _which_version(run: Run) -> str:
    job, definition = run.job, run.node.registry.jobs.get(run.job.name)
    if job.plan is not None or definition is None:
        return "Run a worker with the code that began it, then resume it"
    if run.same_code:
        return f"The code is the same as at the run before, and did something else: {_SAME_AGAIN}"
    began = f"The job belongs to version {job.version} of {job.name}"
    if definition.version == job.version and (change := run.journal.unknown_change()) is not None:
        return (
            f"{began}, and took the new way of ctx.patched({change!r}), which this code did not "
            "ask for. If this worker runs older code, resume the job when only newer ones are "
            "left; and give code with a new ctx.patched() another version=, so that older code "
            "does not get such jobs"
        )
    if definition.version == job.version:
        return (
            f"{began}, which this code is said to be. If it was changed since, run a worker with "
            "the code as it was, then resume the job; and give the changed code another version=, "
            "or keep the old way beside the new one with ctx.patched(). If it was not, it did "
            f"something else this time: {_SAME_AGAIN}"
        )
    return (
        f"{began}, and version {definition.version} accepts that, but does something else. Run a "
        f"worker with version {job.version}, then resume the job; or let version "
        f"{definition.version} keep the old way with ctx.patched()"
    )


async def conclude(run: Run, verdict: RunVerdict, **fields: Unpack[WriteFields]) -> None:
    """Write how a run ended."""
    change, entries = change_for(verdict), ()
    if isinstance(verdict, UndoNeeded | UndoEnded | NeedsAttention):
        entries = verdict.entries
    if isinstance(verdict, Continued | ReplayInOrder):
        entries = (verdict.entry,)
    undone = isinstance(verdict, UndoEnded | NeedsAttention)
    if run.job.state is JobState.COMPENSATING and not undone:
        change = replace(change, error=run.job.error)
        if change.state is JobState.WAITING:  # it is undone, also while it waits
            change = replace(change, state=JobState.COMPENSATING)
    if isinstance(verdict, NeedsAttention):
        fields["notices"] = (*fields.get("notices", ()), *attention_alerts(run, verdict))
    if run.node.policy.alerts and change.state in ENDED:
        fields["closes_alerts"] = True
    error = _error_text(verdict)
    data = _undo_reason(verdict) if error is None else {"error": error}
    event = JobEvent(type=f"job.{change.state.lower()}", data=data, actor=run.node.owner)
    quiet = isinstance(verdict, Suspended | Drained | ReplayInOrder)
    fields["job"] = change
    fields["events"] = (*fields.get("events", ()), *(() if quiet else (event,)))
    await run.write(*entries, **fields)
    events.concluded(run, change, error)
    for approval in fields.get("approvals", ()):
        was_asked(run, approval)


def change_for(verdict: RunVerdict) -> JobChange:
    """Return how the job changes."""
    match verdict:
        case Completed(result):
            return JobChange(state=JobState.COMPLETED, result=result)
        case RunFailed(failure):
            return JobChange(state=JobState.FAILED, error=failure.pack())
        case NeedsAttention(failure, wait):
            error = failure.pack()
            return JobChange(state=JobState.NEEDS_ATTENTION, error=error, wait=wait, release=True)
        case Cancelled():
            return JobChange(state=JobState.CANCELLED, clear_request=True)
        case UndoEnded(state, error):
            return JobChange(state=state, error=error)
        case _:
            return _released(verdict)


def _released(verdict: RunVerdict) -> JobChange:
    """Return the change of a job that continues later: when it is due."""
    match verdict:
        case Suspended(due_at, wait, children):
            state = JobState.WAITING
            return JobChange(state=state, due_at=due_at, wait=wait, release=True, children=children)
        case Paused():
            return JobChange(state=JobState.PAUSED, release=True, clear_request=True)
        case Continued(name, version, given, entry):
            begins = NewBeginning(name=name, version=version, input=given, seq=entry.seq)
            waits = JobState.WAITING
            return JobChange(state=waits, at_once=True, release=True, begins_anew=begins)
        case UndoNeeded(_, error):
            undoes = JobState.COMPENSATING
            return JobChange(state=undoes, error=error, at_once=True, release=True)
        case _:  # at once: drained, elsewhere; or to be replayed in order
            return JobChange(state=JobState.WAITING, at_once=True, release=True)


def _undo_reason(verdict: RunVerdict) -> dict[str, str]:
    """Return what the log of the job says about why it is undone."""
    if not isinstance(verdict, UndoNeeded | UndoEnded):
        return {}
    if verdict.error:
        return {"reason": Failure.unpack(verdict.error).summary()}
    asked = isinstance(verdict, UndoEnded) and verdict.state is JobState.COMPENSATED
    return {"reason": "somebody asked for it" if asked else "it was cancelled"}


def _error_text(verdict: RunVerdict) -> str | None:
    """Return what the log of the job says about an end, besides the state."""
    if isinstance(verdict, UndoEnded) and verdict.state is JobState.FAILED and verdict.error:
        return Failure.unpack(verdict.error).summary()
    return verdict.failure.summary() if isinstance(verdict, RunFailed | NeedsAttention) else None
