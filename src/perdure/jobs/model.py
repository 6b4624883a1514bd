"""What the stores keep and the engine works with: plain frozen values.

Payloads (`input`, `output`, `checkpoint`, `error`, …) are JSON that the codec has already encoded;
the stores never look inside. In a journal entry, something else may stand in the place of a large
one: see `perdure.jobs.payload`. Times are UNIX seconds on the store's clock.
"""

from enum import StrEnum
from typing import Any, NamedTuple, TypedDict

from msgspec import Struct

from perdure.base.checked import Checked
from perdure.jobs.approval import Approval
from perdure.jobs.budget import Amount, BudgetLimits, BudgetRef
from perdure.jobs.effect import Effect
from perdure.jobs.outbox import Notice
from perdure.jobs.output import OutputBatch, OutputTopic
from perdure.jobs.payload import Chunk
from perdure.jobs.state import JobState, StepState


class EntryKind(StrEnum):
    """What a journal entry records."""

    STEP = "step"
    SLEEP = "sleep"
    RECEIVE = "receive"
    VALUE = "value"  # of now, uuid, random: made once, and the same on every replay
    CHILD = "child"
    APPROVE = "approve"
    UNDO = "undo"  # the compensation of a step


class NewJob(Struct, frozen=True, kw_only=True):
    """A job to submit."""

    id: str
    tenant: str
    user: str
    name: str
    version: str
    input: bytes
    plan: bytes | None = None  # a plan's calls; None for a job that is code
    queue: str = "default"
    priority: int = 0  # higher is earlier
    key: str | None = None  # idempotency key, unique per tenant: submitting twice makes one job
    fingerprint: str = ""  # of name and input; the same key with another one is an error
    parent: str | None = None
    parent_seq: int | None = None  # the entry of the parent's journal that waits for it
    delay: float = 0.0  # seconds from now until it may start
    deadline: float | None = None  # seconds from now within which the whole job must end
    forked_from: str | None = None
    budget_of: str | None = None  # the job whose budget it spends; None: its own
    budget: BudgetLimits | None = None  # the most that it and its children may spend
    labels: dict[str, str] = {}
    trace: str | None = None  # the span that submits it, as W3C `traceparent`
    requesters: tuple[str, ...] = ()  # who asks for it beside the user


class Submitted(Struct, frozen=True):
    """The job of a submission, and whether it is new."""

    id: str
    created: bool


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a running step is, as it last reported; written in batches, not at each call."""

    step: str  # "load#2"
    heartbeat_at: float  # when it last showed that it is alive
    done: float | None = None
    total: float | None = None
    note: str = ""
    at: float | None = None  # when it last reported numbers or a note


class JobTrace(NamedTuple):
    """Where the trace of a job continues: W3C `traceparent` of what it belongs to, and came before.

    Attributes:
        parent: The span that submitted the job, or else its first run.
        last: Its last run.
    """

    parent: str
    last: str | None


class Job(Struct, frozen=True, kw_only=True):
    """A job as it is stored."""

    id: str
    tenant: str
    user: str
    name: str
    version: str
    state: JobState
    queue: str
    priority: int
    input: bytes
    plan: bytes | None = None
    result: bytes | None = None
    error: bytes | None = None  # why it failed, or what needs attention
    wait: bytes | None = None  # what it waits for, to show to people: [{"kind": "timer", …}]
    request: str | None = (
        None  # "cancel" or "pause", requested from outside and not yet carried out
    )
    key: str | None = None
    parent: str | None = None
    parent_seq: int | None = None
    forked_from: str | None = None
    budget_of: str | None = None  # the job whose budget it spends; None: its own
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    deadline_at: float | None = None
    due_at: float | None = None  # from its lease: when it may next be claimed
    owner: str | None = None  # from its lease
    epoch: int = 0
    claims: int = 0  # consecutive claims without progress
    awaits: int = 0  # from its lease: how many more of its children must end before it is due
    progress: tuple[Progress, ...] = ()  # from its lease: of the steps that are running
    labels: dict[str, str] = {}
    worked: float = 0.0  # seconds that workers had it, over all claims: without its waits
    silent_for: float | None = None  # seconds since its worker has renewed its lease
    # A worker has it, and sees no progress for `stuck_after`, or has not renewed its lease in time.
    stuck: bool = False
    failed_undos: int = 0  # entries of its undo list that have failed


class JournalEntry(Struct, frozen=True, kw_only=True):
    """One entry of a job's journal. `seq` is its position, `id` ("send_mail#2") its identity."""

    seq: int
    id: str
    kind: EntryKind
    name: str
    state: StepState
    attempt: int = 0
    input: bytes | None = None
    output: bytes | None = None
    error: bytes | None = None
    checkpoint: bytes | None = None
    checkpoint_no: int = 0  # only grows
    wake_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    key: str | None = None  # idempotency key, by which other jobs find the result of a step


class KeyedEntry(Struct, frozen=True):
    """A step that succeeded under an `idempotency_key`, in any job of the tenant."""

    job_id: str
    entry: JournalEntry
    being_undone: bool  # its job is undoing what it did


class JobMessage(Struct, frozen=True, kw_only=True):
    """A message to a job that the job has not received yet."""

    no: int
    topic: str
    payload: bytes
    sent_at: float


class JobEvent(Struct, frozen=True, kw_only=True):
    """One line in the append-only log of a job."""

    type: str  # "submitted", "claimed", "step.retried", "paused", …
    data: dict[str, Any] = {}
    actor: str = ""  # the person or worker that did it
    at: float = 0.0  # set by the store
    no: int = 0  # set by the store


class ChildWait(Struct, frozen=True):
    """What a released job waits for among its children; their ends are gathered until then."""

    ids: tuple[str, ...]  # the children that it waits for
    needed: int  # its code cannot continue before this many of them have ended
    window: float = 0.0  # seconds for which further ends are gathered before it is due


class JobChange(Struct, frozen=True, kw_only=True):
    """How a write changes the job itself."""

    state: JobState
    result: bytes | None = None
    error: bytes | None = None
    wait: bytes | None = None
    # When it may next be claimed, if it is released. None: only news, such as a message, wakes it.
    due_at: float | None = None
    at_once: bool = False  # it is due now, whatever time it is: our clock is not the store's
    release: bool = False  # give up the lease; a job that ends always does
    children: ChildWait | None = None  # with `release`: which ends of children make it due
    clear_request: bool = False  # the requested cancel or pause is being carried out
    begins_anew: "NewBeginning | None" = None


class NewBeginning(Struct, frozen=True, kw_only=True):
    """A job begins again with other arguments: the entries before `seq` are deleted."""

    name: str
    version: str
    input: bytes
    seq: int


class CodeVersion(NamedTuple):
    """A version of the code of a job."""

    name: str
    version: str


class SpendingChange(Struct, frozen=True, kw_only=True):
    """What a fenced write does to a budget: reserves, settles, or both.

    Attributes:
        budget: The budget.
        id: The identity of the spending.
        reserved: What is reserved; None if it is reserved already.
        settled: What was actually spent; None if that is not known yet.
        note: A line in the log of the job, once it is settled.
    """

    budget: BudgetRef
    id: str
    reserved: Amount | None = None
    settled: Amount | None = None
    note: JobEvent | None = None


class Write(Struct, frozen=True, kw_only=True):
    """One durable, fenced write by the owner of a job: all of it happens, or none.

    Refused with `LeaseLost` unless the job's lease has this owner and this epoch at the commit.
    """

    job_id: str
    owner: str
    epoch: int
    entries: tuple[JournalEntry, ...] = ()
    job: JobChange | None = None
    events: tuple[JobEvent, ...] = ()
    taken: tuple[int, ...] = ()  # numbers of messages received by this write
    children: tuple[NewJob, ...] = ()
    effects: tuple[Effect, ...] = ()  # lines of the ledger, new or changed; known by their keys
    spending: tuple[SpendingChange, ...] = ()
    approvals: tuple[Approval, ...] = ()  # new questions to people
    notices: tuple[Notice, ...] = ()  # notices to people
    # True: the job's open questions are taken back; the id of an entry: those of this entry.
    withdraws: bool | str = False
    closes_alerts: bool = False  # the alerts about the job are resolved: it has ended
    chunks: tuple[Chunk, ...] = ()  # of large payloads; those that are known are not stored again
    output: OutputBatch | None = None  # what it has emitted
    belongs_to: CodeVersion | None = None  # from now on only workers that know this may claim it
    news_seen: int | None = None  # with `release`: the job is due at once if there is later news
    reused: int = 0  # how often the code got the recorded result of an effect since the last write
    stalled: bool | None = None  # whether the owner sees no progress; None: as it was


class WriteFields(TypedDict, total=False):
    """The fields of a `Write` that a caller may add to its journal entries."""

    job: JobChange | None
    events: tuple[JobEvent, ...]
    taken: tuple[int, ...]
    children: tuple[NewJob, ...]
    effects: tuple[Effect, ...]
    approvals: tuple[Approval, ...]
    notices: tuple[Notice, ...]
    withdraws: bool | str
    closes_alerts: bool


class Claim(Struct, frozen=True, kw_only=True):
    """A job that a worker now owns, with everything needed to continue it."""

    job: Job
    epoch: int
    now: float  # the store's clock at the claim
    news: int
    journal: tuple[JournalEntry, ...]
    messages: tuple[JobMessage, ...]
    topics: tuple[OutputTopic, ...] = ()  # of its output


class JobNews(Struct, frozen=True):
    """Something outside happened to an owned job: read it again."""

    job_id: str
    news: int
    request: str | None
    ends: int = 0  # how often a child of it has ended


class JobOutcome(Struct, frozen=True):
    """How a job ended, or the state it is in."""

    job_id: str
    state: JobState
    result: bytes | None
    error: bytes | None
    wait: bytes | None = None  # what a waiting job waits for: see `Job.wait`
    ended_at: float | None = None


class WorkerRow(Struct, frozen=True, kw_only=True):
    """A worker as it is registered in the store."""

    owner: str
    silent_for: float  # seconds since its last heartbeat
    info: bytes  # what it says about itself: see `fleet.WorkerInfo`
    definitions: str  # the digest of what it knows
    running: int  # how many jobs it owns


class QueueLimit(Checked, frozen=True, kw_only=True):
    """How many jobs of one queue may run at once, across all workers."""

    running: int | None = None
    running_per_tenant: int | None = None
    rate: int | None = None  # the most claims within `per` seconds
    per: float = 1.0


class Command(Struct, frozen=True, kw_only=True):
    """What a person, or a program on their behalf, asks of a job. Every command is audited."""

    job_id: str
    # cancel | pause | resume | retry | skip | skip_item | compensate | compensate_child | resolve
    action: str
    actor: str
    reason: str = ""
    seq: int | None = None  # retry: from this entry on; skip, skip_item: this entry
    output: bytes | None = (
        None  # skip, resolve: the result that the step or call is said to have had
    )
    effect: int | None = None  # resolve: the number of the effect in the ledger
    choice: str = ""  # resolve: "happened", "did not happen" or "compensate"
    by_worker: bool = False  # the code of another job asks for it, and no person


class Schedule(Struct, frozen=True, kw_only=True):
    """A cron schedule, identified by its name within a tenant.

    `catch_up` says which missed times get a job: "skip" (none), "one" (the latest) or "all".
    """

    name: str
    cron: str
    job: NewJob  # the template; each time gets its own id and key
    timezone: str = "UTC"
    catch_up: str = "one"
    paused: bool = False
    next_at: float | None = None
    last_at: float | None = None

    @property
    def tenant(self) -> str:
        """The tenant of its jobs."""
        return self.job.tenant


class TimeRange(Struct, frozen=True, kw_only=True):
    """A range of time; a bound that is None does not limit.

    Ages count from when the store is asked, so that a stored query stays relative.
    """

    after: float | None = None  # UNIX seconds, inclusive
    before: float | None = None  # UNIX seconds, exclusive
    younger: float | None = None  # seconds ago, at most
    older: float | None = None  # seconds ago, at least


class JobQuery(Struct, frozen=True, kw_only=True):
    """Which jobs to list; a field that is None or empty does not filter.

    `perdure.jobs.query_text` reads and writes it as text.
    """

    tenant: str | None = None
    states: tuple[JobState, ...] | None = None
    stuck: bool = False  # only jobs that are: see `Job.stuck`
    name: str | None = None
    name_prefix: str | None = None
    queue: str | None = None
    user: str | None = None
    parent: str | None = None
    roots: bool = False  # only jobs without a parent
    key: str | None = None
    key_prefix: str | None = None
    labels: dict[str, str] = {}  # a job has all of these
    waits: str | None = None  # what it waits for: a kind of `Job.wait`, such as "approval"
    created: TimeRange | None = None
    ended: TimeRange | None = None
    ids: tuple[str, ...] = ()  # one of these
    parents: tuple[str, ...] = ()  # children of one of these
    words: tuple[str, ...] = ()  # each is part of its id, name, key or user, in whichever case
    not_names: tuple[str, ...] = ()
    not_queues: tuple[str, ...] = ()
    not_users: tuple[str, ...] = ()
    not_labels: dict[str, str] = {}  # a job has none of these
    before: tuple[float, str] | None = (
        None  # (created_at, id) of the last job seen, for the next page
    )
    limit: int = 50
