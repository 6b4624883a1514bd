"""A fleet: what its workers know and serve, and why a job waits for a worker; pure.

Each job has a *kind*: its name and version, or, for a plan, the set of steps that it calls. A
worker claims only kinds that it knows, so that old and new code can run side by side during a
deployment. What a worker knows is published in the store: its `Definitions`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from perdure.base.codec import digest
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.definition import JobDefinition, Step
from perdure.jobs.model import Job, NewJob, WorkerRow
from perdure.jobs.registry import DefinitionTable

# Kinds


class _Call(Struct):
    step: str


class _Calls(Struct):
    calls: list[_Call]


def plan_steps(plan: bytes) -> list[str]:
    """Return the names of the steps that a stored plan calls, sorted."""
    return sorted({call.step for call in msgspec.json.decode(plan, type=_Calls).calls})


def job_kind(name: str, version: str) -> str:
    """Return the kind of the jobs of a definition; no name contains a space."""
    return f"{name} {version}"


def plan_kind(steps: Sequence[str]) -> str:
    """Return the kind of the plans that call these steps; no name contains `#`."""
    return f"#{digest(*steps)[:32]}"


def kind_of(name: str, version: str, plan: bytes | None) -> str:
    """Return the kind of a job."""
    return job_kind(name, version) if plan is None else plan_kind(plan_steps(plan))


class Known(Struct, frozen=True):
    """What a worker may claim, as the JSON arrays that a claim takes."""

    kinds: str
    steps: str


# Definitions


class PublishedJob(Struct, frozen=True, kw_only=True):
    """A job that a worker knows: the schema is that of its arguments."""

    version: str
    accepts: tuple[str, ...] = ()
    schema: dict[str, object] = {}
    # What a caller without the code needs to submit it as one with the code would.
    positional: tuple[str, ...] = ()  # the parameters that may be given by position, in order
    defaults: dict[str, Any] = {}  # as plain JSON
    queue: str | None = None
    priority: int = 0
    timeout: float | None = None
    budget: BudgetLimits | None = None


class PublishedTraits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step says about its undo, for those who show what would be undone."""

    undo: bool | None = None  # True: it has a compensation
    pivot: bool = False
    irreversible: bool = False


_PLAIN = PublishedTraits()


class Definitions(Struct, frozen=True, kw_only=True):
    """The jobs and steps of the code that a worker runs."""

    jobs: dict[str, PublishedJob]
    steps: tuple[str, ...] = ()
    traits: dict[str, PublishedTraits] = {}  # of the steps that have any

    @classmethod
    def of(cls, registry: DefinitionTable) -> "Definitions":
        """Return what a registry holds."""
        jobs = {name: _published(registry.jobs[name]) for name in sorted(registry.jobs)}
        steps = {name: registry.steps[name] for name in sorted(registry.steps)}
        traits = {name: _traits(step) for name, step in steps.items()}
        shown = {name: each for name, each in traits.items() if each != _PLAIN}
        return cls(jobs=jobs, steps=tuple(steps), traits=shown)

    @classmethod
    def unpack(cls, data: bytes) -> "Definitions":
        """Read what `pack` returned."""
        return msgspec.json.decode(data, type=cls)

    def traits_of(self, step: str) -> PublishedTraits | None:
        """Return what a step says about its undo; None if these definitions do not know it."""
        return self.traits.get(step, _PLAIN) if step in self.steps else None

    def leaves_effects(self, step: str) -> bool:
        """Whether nothing would undo the effects of a step, although its code does not say so."""
        traits = self.traits_of(step)
        is_said = traits is None or traits.undo or traits.pivot or traits.irreversible
        return not is_said

    def pack(self) -> bytes:
        """Return the definitions as JSON: the same bytes for the same definitions."""
        return msgspec.json.encode(self, order="deterministic")

    def known(self) -> Known:
        """Return what a worker with these definitions may claim."""
        kinds = [
            job_kind(name, version)
            for name, job in self.jobs.items()
            for version in (job.version, *job.accepts)
        ]
        return Known(_json(kinds), _json(self.steps))

    def knows(self, name: str, version: str, plan: bytes | None = None) -> bool:
        """Whether a worker with these definitions may claim a job."""
        if plan is not None:
            return set(plan_steps(plan)) <= set(self.steps)
        job = self.jobs.get(name)
        return job is not None and version in (job.version, *job.accepts)


def _published(job: JobDefinition[..., object]) -> PublishedJob:
    return PublishedJob(
        version=job.version,
        accepts=job.accepts,
        schema=job.parameters.schema(),
        positional=job.parameters.positional(),
        defaults=job.parameters.defaults(),
        queue=job.queue,
        priority=job.priority,
        timeout=job.timeout,
        budget=job.budget,
    )


def _traits(step: Step[..., object]) -> PublishedTraits:
    return PublishedTraits(
        undo=True if step.undo is not None else None,
        pivot=step.pivot,
        irreversible=step.irreversible,
    )


def _json(texts: Iterable[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


class PublishedDefinitions(Struct, frozen=True, kw_only=True):
    """Definitions as they are stored: once, however many workers run the same code."""

    digest: str
    published_at: float  # when a worker last started with them
    workers: int  # how many registered workers run them
    definitions: Definitions


# Workers


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """What a worker says about itself; only `draining` changes after its start."""

    host: str
    boot: str
    pid: int
    started_at: float  # UNIX seconds
    queues: tuple[str, ...]
    concurrency: int
    draining: bool = False
    allow_kill: bool = False
    key: str = ""  # the id of the key by which it encrypts payloads


class FleetWorker(Struct, frozen=True, kw_only=True):
    """A worker as others see it.

    Attributes:
        id: What it owns jobs by; another one after each start.
        host: The machine.
        pid: The process on it.
        started_at: When it started, in UNIX seconds.
        silent_for: Seconds since its last heartbeat.
        queues: The queues that it serves.
        concurrency: How many jobs it runs at once, at most.
        running: How many jobs it owns now.
        definitions: What it knows; None if that was published by another version of Perdure.
        draining: Whether it claims nothing more.
        allow_kill: Whether operators may kill its processes.
    """

    id: str
    host: str
    pid: int
    started_at: float
    silent_for: float
    queues: tuple[str, ...]
    concurrency: int
    running: int
    definitions: Definitions | None
    draining: bool = False
    allow_kill: bool = False


def fleet_worker(row: WorkerRow, definitions: Definitions | None) -> FleetWorker:
    """Return a worker from its row, and what it knows."""
    try:
        info = msgspec.json.decode(row.info, type=WorkerInfo)
    except msgspec.MsgspecError:  # another version of perdure wrote it
        info = WorkerInfo(host="?", boot="", pid=0, started_at=0.0, queues=(), concurrency=0)
    return FleetWorker(
        id=row.owner,
        host=info.host,
        pid=info.pid,
        started_at=info.started_at,
        silent_for=row.silent_for,
        queues=info.queues,
        concurrency=info.concurrency,
        running=row.running,
        definitions=definitions,
        draining=info.draining,
        allow_kill=info.allow_kill,
    )


class QueueCounts(Struct, frozen=True, kw_only=True):
    """A queue: how many of its jobs are ready for a worker, wait for something else, and run."""

    name: str
    paused: bool
    ready: int
    waiting: int
    running: int


class Fleet(Struct, frozen=True, kw_only=True):
    """The living workers, and the queues that are paused."""

    workers: tuple[FleetWorker, ...] = ()
    paused: frozenset[str] = frozenset()

    def why_waiting(self, job: Job | NewJob) -> str | None:
        """Return in words why no worker can claim a job now; None if one can."""
        if job.queue in self.paused:
            return f"queue {job.queue} is paused"
        if not self.workers:
            return "no worker is running"
        claiming = [worker for worker in self.workers if not worker.draining]
        if not claiming:
            return "all workers are draining"
        serving = [worker for worker in claiming if job.queue in worker.queues]
        if not serving:
            return f"no worker serves queue {job.queue}"
        if any(_may_claim(worker, job) for worker in serving):
            return None
        instead = _instead(serving, job)
        wanted = _wanted(job, named=bool(instead))
        return f"no worker{self._whose(job)} knows {wanted}{instead}"

    def _whose(self, job: Job | NewJob) -> str:
        """Say so if a worker of another queue would know the job."""
        elsewhere = any(_may_claim(worker, job) for worker in self.workers)
        return f" of queue {job.queue}" if elsewhere else ""


def _may_claim(worker: FleetWorker, job: Job | NewJob) -> bool:
    known = worker.definitions
    return known is not None and known.knows(job.name, job.version, job.plan)


def _wanted(job: Job | NewJob, *, named: bool) -> str:
    """Return what a worker must know; the first version is named only where others are."""
    if job.plan is not None:
        return f"all steps of plan {job.name}"
    return f"{job.name} version {job.version}" if named or job.version != "1" else job.name


def _instead(workers: Iterable[FleetWorker], job: Job | NewJob) -> str:
    """Return which versions of the job the workers know, if they know others."""
    found = {
        version
        for worker in workers
        if worker.definitions is not None
        and job.plan is None
        and (known := worker.definitions.jobs.get(job.name)) is not None
        for version in (known.version, *known.accepts)
    }
    return f", only version {', '.join(sorted(found))}" if found else ""
