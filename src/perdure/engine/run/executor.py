"""The core of the engine: run a claimed job as far as it goes, and write how that ended."""

import contextlib
import logging
from functools import partial
from typing import Any, Protocol, Unpack

from msgspec.structs import replace

from perdure.base.errors import ApprovalExpired, JobError
from perdure.engine import events
from perdure.engine.journal.run import Run
from perdure.engine.journal.verdict import (
    Cancelled,
    Completed,
    Drained,
    NeedsAttention,
    Paused,
    RunFailed,
    RunLost,
    RunVerdict,
    Suspended,
    UndoEnded,
    UndoNeeded,
    Unwound,
)
from perdure.engine.people.attention import attention_alerts
from perdure.engine.run.context import JobContext
from perdure.engine.steps.undo import look_back, on_cancel, undo
from perdure.engine.worker_port import WorkerPort
from perdure.jobs.failure import Failure, failure_of, type_name
from perdure.jobs.model import Claim, JobChange, JobEvent, WriteFields
from perdure.jobs.plan import Plan
from perdure.jobs.state import JobState
from perdure.process.death import kill
from perdure.process.spawn import PLAIN, give_birth

_log = logging.getLogger("perdure.worker")


class RunOwner(WorkerPort, Protocol):
    """The worker, as the executor sees it: it keeps the list of the runs."""

    def admit(self, run: Run, since: float) -> None:
        """Take up a run, claimed at that time or later."""
        ...

    def dismiss(self, run: Run) -> None:
        """Let a run go."""
        ...


async def execute(node: RunOwner, claim: Claim, since: float) -> None:
    """The process of a running job, claimed at a time (or later) by the loop's clock."""
    run = Run(node, claim)
    run.abandon = partial(_abandon, node, run)
    node.admit(run, since)
    try:
        verdict = await judge(run)
        if not run.abandoned:
            await finish(run, verdict)
    finally:
        if not run.abandoned:
            node.dismiss(run)


async def finish(run: Run, verdict: RunVerdict) -> None:
    """Wait until nothing works for the job any more, and write how its run ended."""
    await run.stop_operations()
    if isinstance(verdict, RunLost):
        return
    # If the lease is lost at the last moment, its new owner goes on.
    with contextlib.suppress(Unwound):
        try:
            await run.finish_writes()
            verdict, fields = await look_back(run, verdict)
            await conclude(run, verdict, **fields)
        except Exception as error:  # noqa: BLE001 - raised, it would only come again
            _log.exception("the end of job %s cannot be written", run.job.id)
            run.buffered_entries.clear()  # it may be the culprit, and holds no results
            await conclude(run, NeedsAttention(failure_of(error)))


def _abandon(node: RunOwner, run: Run) -> None:
    """End a run without its code, which neither returns nor raises."""
    _log.error("the code of job %s does not leave: its process is given up", run.job.id)
    give_birth(node.runtime, None, _finish_without_code, (node, run), PLAIN)


async def _finish_without_code(node: RunOwner, run: Run) -> None:
    kill(run.process, "the run of the job has ended")
    try:
        await finish(run, run.verdict or RunLost())
    finally:
        node.dismiss(run)


async def judge(run: Run) -> RunVerdict:
    """Run the job, unless it must not be run."""
    if run.job.request == "pause":
        return Paused()
    if run.job.state is JobState.COMPENSATING:
        return await undo(run) if run.job.claims <= _most_claims(run) else _crashed(run)
    if run.job.request == "cancel" and on_cancel(run) != "finish":
        return Cancelled()
    if run.job.claims > _most_claims(run):
        return _crashed(run)
    verdict = await run.run_code(_code)
    if isinstance(verdict, RunFailed) and _needs_a_person(run, verdict.failure):
        return NeedsAttention(verdict.failure, alerted=_nobody_answered(verdict.failure))
    return verdict


def _needs_a_person(run: Run, failure: Failure) -> bool:
    """Tell whether a failure is none of the job's own, so that nothing of it is undone."""
    return _nobody_answered(failure) or (failure.outage and _waits_out(run))


def _nobody_answered(failure: Failure) -> bool:
    return failure.type == type_name(ApprovalExpired)


def _waits_out(run: Run) -> bool:
    """Tell whether a job that another system's outage stopped waits for a person to resume it."""
    if run.job.plan is not None:
        return True
    return run.node.registry.find_job(run.job.name).on_outage == "park"


def _most_claims(run: Run) -> int:
    definition, most = run.node.registry.jobs.get(run.job.name), run.node.settings.max_claims
    return most if definition is None else min(most, definition.max_claims)


def _crashed(run: Run) -> NeedsAttention:
    undoing = run.job.state is JobState.COMPENSATING
    what = "the undo of this job" if undoing else "this job"
    choices = "resume it, or skip what cannot be undone" if undoing else "resume or cancel it"
    text = (
        f"{run.job.claims - 1} workers in a row took {what} and were lost without any progress on "
        "it: they died, or were stopped, or their event loop stood still, and it may be what does "
        f"that to them. Look at the workers' logs, then {choices}. "
        'What blocks the loop, or takes a worker down, belongs into a step with isolation="process"'
    )
    return NeedsAttention(failure_of(JobError(text)))


async def _code(run: Run) -> bytes:
    """Run the code that the job was submitted for."""
    context, job = JobContext(run), run.job
    if job.plan is not None:
        return await _plan(context, Plan.from_json(job.plan), run)
    definition = run.node.registry.find_job(job.name)
    args, kwargs = definition.unpack(job.input)
    result = await definition.fn(context, *args, **kwargs)
    return definition.pack_result(result, run.node.limits)


async def _plan(context: JobContext, plan: Plan, run: Run) -> bytes:
    """Run the calls of a plan, one after the other; the last one gives the result."""
    outputs: dict[str, Any] = {}
    result = b"null"
    for call in plan.calls:
        step = run.node.registry.find_step(call.step)
        args, kwargs = plan.resolve(call, outputs, step)
        outputs[call.id] = output = await context.run_as(call.id, step, *args, **kwargs)
        result = step.pack_result(output, run.node.limits)
    return result


async def conclude(run: Run, verdict: RunVerdict, **fields: Unpack[WriteFields]) -> None:
    """Write how a run ended."""
    change = change_for(verdict, run.now())
    if run.job.state is JobState.COMPENSATING and not isinstance(
        verdict, UndoEnded | NeedsAttention
    ):
        change = replace(change, error=run.job.error)
        if change.state is JobState.WAITING:  # it is undone, also while it waits
            change = replace(change, state=JobState.COMPENSATING)
    if isinstance(verdict, NeedsAttention):
        fields["notices"] = (*fields.get("notices", ()), *attention_alerts(run, verdict))
    told = _told(verdict)
    event = JobEvent(type=f"job.{change.state.lower()}", data=told, actor=run.node.owner)
    quiet = isinstance(verdict, Suspended | Drained)
    entries = (
        verdict.entries if isinstance(verdict, UndoNeeded | UndoEnded | NeedsAttention) else ()
    )
    fields["job"], fields["events"] = change, () if quiet else (event,)
    await run.write(*entries, **fields)
    events.concluded(run, change, told.get("error"))


def change_for(verdict: RunVerdict, now: float) -> JobChange:
    """Decide what becomes of the job."""
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
            return _released(verdict, now)


def _released(verdict: RunVerdict, now: float) -> JobChange:
    """Decide when a job that goes on later is due."""
    match verdict:
        case Suspended(due_at, wait):
            return JobChange(state=JobState.WAITING, due_at=due_at, wait=wait, release=True)
        case Paused():
            return JobChange(state=JobState.PAUSED, release=True, clear_request=True)
        case UndoNeeded(_, error):
            return JobChange(state=JobState.COMPENSATING, error=error, due_at=now, release=True)
        case _:  # drained: at once, elsewhere
            return JobChange(state=JobState.WAITING, due_at=now, release=True)


def _told(verdict: RunVerdict) -> dict[str, str]:
    """Give what the log says of an end besides its state."""
    if isinstance(verdict, UndoEnded) and verdict.state is JobState.FAILED and verdict.error:
        return {"error": Failure.unpack(verdict.error).summary()}
    return (
        {"error": verdict.failure.summary()}
        if isinstance(verdict, RunFailed | NeedsAttention)
        else {}
    )
