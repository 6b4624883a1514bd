"""A job as one file: everything about it that people may see, to be looked at elsewhere; pure.

A bundle holds no secrets: the values of secret names are removed, as on every page, and of large
payloads it has a preview. So it cannot be run. Imported into another store it is a copy that has
ended, of a tenant and in a queue of its own, which no worker serves.

Questions to people are listed in the bundle, and are not asked again.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from perdure.base.codec import write_plain
from perdure.base.errors import ArgumentError, JobError
from perdure.jobs.approval import Approval
from perdure.jobs.effect import Effect, EffectState
from perdure.jobs.failure import failure_of
from perdure.jobs.model import EntryKind, Job, JobEvent, JournalEntry
from perdure.jobs.output import OutputPiece
from perdure.jobs.redaction import for_people
from perdure.jobs.state import ENDED, JobState, StepState

VERSION: Final = 1
LARGEST: Final = 256 * 1024 * 1024  # bytes of a bundle that is imported
IMPORTED: Final = "imported"  # the tenant and the queue of imported jobs

Json = Any


class BundleJob(Struct, frozen=True, kw_only=True):
    """The job itself."""

    id: str
    tenant: str
    user: str
    name: str
    version: str
    state: JobState
    queue: str
    priority: int
    input: Json
    created_at: float
    result: Json = None
    error: Json = None
    wait: Json = None
    key: str | None = None
    parent: str | None = None
    forked_from: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    deadline_at: float | None = None
    labels: dict[str, str] = {}
    worked: float = 0.0


class BundleEntry(Struct, frozen=True, kw_only=True):
    """An entry of the journal."""

    seq: int
    id: str
    kind: EntryKind
    name: str
    state: StepState
    attempt: int = 0
    input: Json = None
    output: Json = None
    error: Json = None
    checkpoint: Json = None
    checkpoint_no: int = 0
    wake_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None


class BundleEffect(Struct, frozen=True, kw_only=True):
    """A line of the ledger."""

    no: int
    step: str
    part: str
    ordinal: int
    generation: int
    key: str
    kind: str
    target: str
    state: EffectState
    in_doubt: Literal["replay", "ask"]
    called_at: float
    ended_at: float | None = None
    details: Json = None
    result: Json = None
    problem: str | None = None
    error: Json = None
    proof: str = ""
    undo: str | None = None  # the step that undoes it
    stays: bool = False


class BundleApproval(Struct, frozen=True, kw_only=True):
    """A question to people, and what became of it."""

    id: str
    step: str
    title: str
    state: str
    risk: str
    requester: str
    created_at: float
    decided_at: float | None
    shown: Json
    decisions: Json


class BundlePiece(Struct, frozen=True, kw_only=True):
    """A piece of output."""

    position: int
    kind: str
    value: Json
    at: float


class Bundle(Struct, frozen=True, kw_only=True):
    """A job with everything about it."""

    format: Literal["perdure.job"] = "perdure.job"
    version: int = VERSION
    exported_at: float
    definitions: str | None  # the digest of what the last worker of the job knows
    job: BundleJob
    journal: list[BundleEntry]
    events: list[JobEvent]
    effects: list[BundleEffect]
    approvals: list[BundleApproval]
    output: dict[str, list[BundlePiece]]

    def pack(self) -> bytes:
        """Return the bundle as JSON."""
        return write_plain(msgspec.to_builtins(self))


def read_bundle(data: bytes) -> Bundle:
    """Read what `Bundle.pack` returned.

    Raises:
        ArgumentError: It is no bundle, or one of a later version.
    """
    if len(data) > LARGEST:
        raise ArgumentError("this file", [f"it has more than {LARGEST:,} bytes"])
    try:
        found = msgspec.json.decode(data, type=Bundle)
    except msgspec.MsgspecError as error:
        raise ArgumentError("this file", [f"it is not a bundle of a job: {error}"]) from None
    if found.version > VERSION:
        text = f"its version is {found.version}, and this is Perdure for version {VERSION}"
        raise ArgumentError("this file", [text])
    return found


# Making one


class BundleParts(Struct, frozen=True, kw_only=True):
    """What a bundle is made of."""

    job: Job
    journal: Sequence[JournalEntry]
    events: Sequence[JobEvent]
    effects: Sequence[Effect]
    approvals: Sequence[Approval]
    output: dict[str, list[OutputPiece]]
    definitions: str | None
    now: float


def bundle_of(parts: BundleParts) -> Bundle:
    """Return a job as a bundle, without the values of secret names."""
    return Bundle(
        exported_at=parts.now,
        definitions=parts.definitions,
        job=_job(parts.job),
        journal=[_entry(each) for each in parts.journal],
        events=list(parts.events),
        effects=[_effect(each) for each in parts.effects],
        approvals=[_approval(each) for each in parts.approvals],
        output={
            topic: [
                BundlePiece(
                    position=each.position, kind=each.kind, value=_shown(each.data), at=each.at
                )
                for each in pieces
            ]
            for topic, pieces in parts.output.items()
        },
    )


def _shown(data: bytes | None) -> Json:
    return for_people(data) if data else None


def _job(job: Job) -> BundleJob:
    return BundleJob(
        id=job.id,
        tenant=job.tenant,
        user=job.user,
        name=job.name,
        version=job.version,
        state=job.state,
        queue=job.queue,
        priority=job.priority,
        input=_shown(job.input),
        created_at=job.created_at,
        result=_shown(job.result),
        error=_shown(job.error),
        wait=_shown(job.wait),
        key=job.key,
        parent=job.parent,
        forked_from=job.forked_from,
        started_at=job.started_at,
        ended_at=job.ended_at,
        deadline_at=job.deadline_at,
        labels=job.labels,
        worked=job.worked,
    )


def _entry(entry: JournalEntry) -> BundleEntry:
    return BundleEntry(
        seq=entry.seq,
        id=entry.id,
        kind=entry.kind,
        name=entry.name,
        state=entry.state,
        attempt=entry.attempt,
        input=_shown(entry.input),
        output=_shown(entry.output),
        error=_shown(entry.error),
        checkpoint=_shown(entry.checkpoint),
        checkpoint_no=entry.checkpoint_no,
        wake_at=entry.wake_at,
        started_at=entry.started_at,
        ended_at=entry.ended_at,
    )


def _effect(effect: Effect) -> BundleEffect:
    return BundleEffect(
        no=effect.no,
        step=effect.place.step,
        part=effect.place.part,
        ordinal=effect.place.ordinal,
        generation=effect.generation,
        key=effect.key,
        kind=effect.kind,
        target=effect.target,
        state=effect.state,
        in_doubt=effect.in_doubt,
        called_at=effect.called_at,
        ended_at=effect.ended_at,
        details=_shown(effect.details),
        result=_shown(effect.result),
        problem=effect.problem,
        error=_shown(effect.error),
        proof=effect.proof,
        undo=None if effect.undo is None else effect.undo.step,
        stays=effect.stays,
    )


def _approval(approval: Approval) -> BundleApproval:
    return BundleApproval(
        id=approval.id,
        step=approval.step,
        title=approval.title,
        state=str(approval.state),
        risk=approval.risk.name,
        requester=approval.requester,
        created_at=approval.created_at,
        decided_at=approval.decided_at,
        shown=_shown(approval.shown),
        decisions=[
            {"by": each.person, "verdict": each.verdict, "reason": each.reason, "at": each.at}
            for each in approval.decisions
        ],
    )


# Importing one


def imported_end(bundle: Bundle) -> tuple[JobState, float, bytes | None]:
    """Return how an imported copy has ended: as its source, or cancelled if that went on."""
    job = bundle.job
    if job.state in ENDED and job.ended_at is not None:
        return job.state, job.ended_at, stored(job.error)
    why = f"a copy that was imported: the job was {job.state} when it was exported"
    return JobState.CANCELLED, bundle.exported_at, failure_of(JobError(why)).pack()


def stored(value: Json) -> bytes | None:
    """Return a payload of a bundle as a store keeps it."""
    return None if value is None else write_plain(value)
