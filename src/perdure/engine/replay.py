"""Replay: run today's code of a job over a journal of yesterday, and report where they differ.

Nothing is started, and nothing is written. The code runs from its beginning; what the journal has
an outcome for is answered from there, and anything else ends the replay, since that is where a
worker would begin to do something. So a replay shows before a deployment what a worker would find
after it: a job that would be parked because its code has drifted from its journal.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import PayloadLimits
from perdure.base.errors import NotInProcess, UnknownName
from perdure.engine.journal.run import Operation, Run
from perdure.engine.journal.verdict import (
    Completed,
    NeedsAttention,
    ReplayInOrder,
    RunFailed,
    RunLost,
    RunVerdict,
)
from perdure.engine.policy import Policy
from perdure.engine.recorded import RecordedJob, recorded_job
from perdure.engine.run.executor import job_code, run_code
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.node import WorkerNode
from perdure.jobs.model import Claim, Job
from perdure.jobs.payload import excerpt, is_same
from perdure.jobs.registry import DefinitionTable
from perdure.jobs.state import JobState
from perdure.process.lifecycle import PLAIN, spawn_process
from perdure.process.process import current
from perdure.process.runtime import Runtime
from perdure.store.store import Store

_FAILED = frozenset({JobState.FAILED, JobState.COMPENSATED})


class ReplayReport(Struct, frozen=True, kw_only=True):
    """What a replay found.

    Attributes:
        job_id: The job that the journal is of.
        name: The name of the job.
        version: The version of its code that it was submitted for.
        entries: How many entries the journal has.
        drift: How today's code differs from the journal; None if it fits.
        next: What the code would do next, by identity: a new step, or one that has not ended.
    """

    job_id: str
    name: str
    version: str
    entries: int
    drift: str | None = None
    next: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether today's code could continue the job, or would have done the same."""
        return self.drift is None


class ReplayingApp(Protocol):
    """What is needed of an app: its settings, and its store if the journal is there."""

    limits: PayloadLimits
    policy: Policy
    worker_settings: WorkerSettings

    async def store(self) -> Store: ...


async def replay(app: ReplayingApp, source: RecordedJob | Path | str) -> ReplayReport:
    """Run today's code of a job over its journal; nothing is started, and nothing is written.

    Args:
        app: The app, with today's code.
        source: The id of a job in the app's store, or a file that `perdure jobs export` wrote.

    Returns:
        What was found; `drift` is None if the code fits the journal.

    Raises:
        JobNotFound: The store has no such job.
        Unstorable: The file is something else.
    """
    if isinstance(source, str):
        recorded = await recorded_job(await app.store(), source)
    elif isinstance(source, Path):
        recorded = RecordedJob.from_file(source)
    else:
        recorded = source
    async with contextlib.AsyncExitStack() as stack:
        try:
            runtime = current().runtime
        except NotInProcess:
            await stack.enter_async_context(Runtime())
            runtime = current().runtime
        done: asyncio.Future[ReplayReport] = asyncio.get_running_loop().create_future()
        spawn_process(runtime, None, _replay, (app, recorded, done), PLAIN)
        return await done


async def _replay(
    app: ReplayingApp, recorded: RecordedJob, done: "asyncio.Future[ReplayReport]"
) -> None:
    """The process of a replay."""
    try:
        done.set_result(await _replayed(app, recorded))
    except BaseException as error:
        if not done.done():
            done.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        raise


async def _replayed(app: ReplayingApp, recorded: RecordedJob) -> ReplayReport:
    job, registry = recorded.job, cast("DefinitionTable", app)
    report = ReplayReport(
        job_id=job.id, name=job.name, version=job.version, entries=len(recorded.journal)
    )
    if (unknown := _not_known(registry, job)) is not None:
        return replace(report, drift=unknown)
    store = cast("Store", _NoStore())
    node = WorkerNode(store, registry, app.worker_settings, {}, app.limits, app.policy)
    claim = Claim(
        job=replace(job, deadline_at=None, request=None),  # it is over, or not ours to keep
        epoch=job.epoch,
        now=node.runtime.clock.time(),
        news=0,
        journal=recorded.journal,
        messages=(),
    )
    run = _ReplayRun(node, claim)
    try:
        verdict = await run_code(run, job_code)
        if isinstance(verdict, ReplayInOrder):
            run = _ReplayRun(node, replace(claim, journal=(*claim.journal, verdict.entry)))
            verdict = await run_code(run, job_code)
    finally:
        node.close()
    return replace(report, drift=_drift(run, job, verdict), next=tuple(run.would_start))


class _ReplayRun(Run):
    """A run that starts nothing: where it would, the code waits until the run ends."""

    def __init__(self, node: WorkerNode, claim: Claim) -> None:
        super().__init__(node, claim)
        self.would_start: list[str] = []

    def start(self, operation: Operation[Any]) -> None:
        """Note what would be started."""
        self.would_start.append(operation.entry.id)
        self.wait(operation)

    def _suspend(self) -> None:
        self.stop(RunLost())  # the code has reached the end of its journal


class _NoStore:
    """In the place of a store: a replay asks it nothing."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a replay must not use the store, and asked for {name!r}")


def _not_known(registry: DefinitionTable, job: Job) -> str | None:
    """Return why the app has no code for a job; None if it has."""
    if job.plan is not None:
        return None
    try:
        definition = registry.find_job(job.name)
    except UnknownName as error:
        return str(error)
    if job.version in (definition.version, *definition.accepts):
        return None
    return (
        f"the job was submitted for version {job.version!r}, and the code has version "
        f"{definition.version!r}: add it to `accepts` if the code can continue such jobs"
    )


def _drift(run: _ReplayRun, job: Job, verdict: RunVerdict) -> str | None:
    """Return how a replay differs from what the job did; None if it does not."""
    match verdict:
        case NeedsAttention(failure):
            return failure.summary()
        case Completed() if job.state in _FAILED:
            return "the code completes, and the job failed"
        case _ if job.state is JobState.COMPLETED:
            return _drift_of_completed(run, job, verdict)
        case _:  # it has not ended, or its end came from outside
            return None


def _drift_of_completed(run: _ReplayRun, job: Job, verdict: RunVerdict) -> str | None:
    match verdict:
        case Completed(result) if job.result is None or is_same(job.result, result):
            return None
        case Completed(result):
            before = excerpt(job.result or b"")
            return f"the code returns {excerpt(result)}, and the job returned {before}"
        case RunFailed(failure):
            return f"the code raises {failure.summary()}, and the job completed"
        case _:
            wanted = ", ".join(run.would_start)
            return f"the code asks for {wanted}, and the job completed without it"
