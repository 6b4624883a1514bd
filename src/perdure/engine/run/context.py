"""The context that the code of a job gets.

The code is ordinary Python, but it runs again from its start after every interruption. So
everything that it does to the world, and everything that may differ from run to run, goes through
this context, which looks it up in the journal first.
"""

import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import decode, digest, encode
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import Drift, JobError, NotInJob, PayloadTooLarge
from perdure.engine import events
from perdure.engine.journal.guard import unguarded
from perdure.engine.journal.run import (
    CONTINUED,
    PATCHED,
    FirstOf,
    Gathered,
    Operation,
    Run,
    branch,
    never,
)
from perdure.engine.journal.verdict import Continued, RunVerdict, Unwound, at_limit
from perdure.engine.people.ask import Approve, Approved, ApproveOptions, approve_request
from perdure.engine.people.spending import budget_of
from perdure.engine.steps.step import StepOperation
from perdure.engine.steps.step_context import StepContext, SyncStepContext, piece_of_output
from perdure.engine.steps.waits import Child, Receive, Sleep, child_failed, no_message
from perdure.engine.submission import child_job, job_of_call
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.definition import (
    LONGEST_NAME,
    NO_OPTIONS,
    Call,
    CallOptions,
    ClosureOptions,
    JobCall,
    JobDefinition,
    Step,
    scope,
    step_of_closure,
)
from perdure.jobs.model import EntryKind, JournalEntry
from perdure.jobs.output import DEFAULT_TOPIC
from perdure.jobs.parameters import Context, Parameters
from perdure.jobs.payload import digested, is_stand_in
from perdure.jobs.state import StepState
from perdure.jobs.text_limits import check_given

P = ParamSpec("P")
R = TypeVar("R")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")

# What the code of a job can await and gather.
Durable: TypeAlias = Call[R] | Operation[R]

# Enum member lookup is slow on this hot path.
_STEP, _PENDING = EntryKind.STEP, StepState.PENDING

_NOT_COMPARED = b""


class First(Struct, Generic[R], frozen=True):
    """Which operation of `ctx.first` has ended first, from 0, and its result."""

    index: int
    value: R


Losers: TypeAlias = Literal["cancel", "continue"]


def _ended_first(operations: Sequence[Operation[Any]]) -> int:
    """Return which of them has ended first, or can end since the earliest time."""
    ready = [
        (each.cancelled, at, place)  # what was cancelled has not won
        for place, each in enumerate(operations)
        if (at := each.ready_at()) is not None
    ]
    return min(ready)[-1]


class JobContext(Context):
    """The context of a job: how its code starts calls, waits, and asks people."""

    of = "a job"

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<context of job {self.job_id}>"

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._run.job.id

    @property
    def tenant(self) -> str:
        """The tenant that the job was submitted for."""
        return self._run.job.tenant

    @property
    def user(self) -> str:
        """The user that the job was submitted by."""
        return self._run.job.user

    # Calls

    def start(self, call: Call[R], /) -> "Operation[R]":
        """Begin a call now; await what is returned later. `await load(3)` does both at once.

        Raises:
            StepFailed, JobFailed: When awaited: the step failed for good, or the child job did.
        """
        operation = self._operation(call)
        operation.begin()
        return operation

    def _operation(self, call: Any) -> "Operation[Any]":
        """Return the operation of a call, which gets its identity here, in the order of the code.

        Raises:
            TypeError: It is neither a call nor an operation.
        """
        if isinstance(call, Operation):
            return cast("Operation[Any]", call)
        if not isinstance(call, Call):
            raise TypeError(
                f"{call!r} is not an operation of this job: pass calls such as `load(3)`, or what "
                "ctx.sleep, ctx.receive, ctx.child and ctx.approve return"
            )
        made = cast("Call[Any]", call.use())
        definition, given = made.definition, made.given
        if isinstance(definition, Step):
            return self._step(definition, given, made.args, made.kwargs)
        return self._child(definition, given, made.args, made.kwargs)

    def _step(
        self,
        step: Step[Any, R],
        given: CallOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        info: tuple[str, bool] | None = None,
    ) -> "Operation[R]":
        run = self._run
        name, is_gated = info or run.node.known_steps.get(id(step)) or self._step_info(step)
        if run.journal.trusted and not is_gated and run.journal.trusts(name, given.id):
            packed = full = _NOT_COMPARED
        else:
            try:
                packed = full = step.parameters.pack(args, kwargs, run.node.limits)
            except PayloadTooLarge as error:
                return self._at_limit(_STEP, name, error)
            if len(packed) > run.node.limits.inline and not is_gated and step.undo is None:
                packed = digested(packed)
        identity = run.journal.identity(name, given.id)
        if given is not NO_OPTIONS:
            step = step.with_options(given)
        fits = partial(_fits, step.parameters, given, (args, kwargs), full)
        entry = run.visit(identity, _STEP, packed or None, fits)
        if entry is None:
            seq = run.journal.next_seq()
            fresh = JournalEntry(
                seq=seq, id=identity, kind=_STEP, name=name, state=_PENDING, input=packed
            )
            operation = StepOperation(run, fresh, step, (args, kwargs), recorded=False)
        else:
            operation = StepOperation(run, entry, step, (args, kwargs), recorded=True)
            operation.replay()
            packed = self._with_recorded(operation, packed)
        if is_gated:
            operation.gate, run.gate_passes = run.node.gatekeeper.decide(
                step, name, packed, run.job.tenant, run.gate_passes
            )
        return operation

    def _with_recorded(self, operation: StepOperation[Any], packed: bytes) -> bytes:
        """Let a step run with what was recorded, if defaults have changed since; return it."""
        kept = _other_input(operation.entry, packed)
        if kept is None or operation.is_recorded:
            return packed
        try:
            operation.take_arguments(kept)
        except Drift as misfit:
            raise self._run.drifted(misfit) from None
        return kept

    def _at_limit(self, kind: EntryKind, name: str, error: PayloadTooLarge) -> "Operation[Any]":
        """Return an operation that never begins: its job is parked, since a call is too large."""
        run = self._run
        run.end(at_limit(error))
        entry = self._fresh(f"{name}#…", kind, name, _NOT_COMPARED, None)  # it is never written
        return Operation(run, entry, recorded=False)

    def _step_info(self, step: Step[Any, Any]) -> tuple[str, bool]:
        """Return what every call of a step needs (its name, whether it is gated), looked up once.

        Raises:
            UnknownName: It is not registered.
        """
        node = self._run.node
        name = node.registry.name(step)
        node.known_steps[id(step)] = known = (name, node.gatekeeper.watches(step))
        return known

    @overload
    async def gather(self, a: Durable[T1], /) -> tuple[T1]: ...
    @overload
    async def gather(self, a: Durable[T1], b: Durable[T2], /) -> tuple[T1, T2]: ...
    @overload
    async def gather(
        self, a: Durable[T1], b: Durable[T2], c: Durable[T3], /
    ) -> tuple[T1, T2, T3]: ...
    @overload
    async def gather(
        self, a: Durable[T1], b: Durable[T2], c: Durable[T3], d: Durable[T4], /
    ) -> tuple[T1, T2, T3, T4]: ...
    @overload
    async def gather(
        self, a: Durable[T1], b: Durable[T2], c: Durable[T3], d: Durable[T4], e: Durable[T5], /
    ) -> tuple[T1, T2, T3, T4, T5]: ...
    @overload
    async def gather(self, *operations: Durable[R]) -> tuple[R, ...]: ...
    @overload
    async def gather(
        self, *operations: Durable[R], return_exceptions: Literal[True]
    ) -> tuple[R | BaseException, ...]: ...
    async def gather(self, *operations: Durable[Any], return_exceptions: bool = False) -> Any:
        """Run calls and other operations concurrently; return their results in this order.

        All of them run until they end, then the first failure in that order is raised.
        """
        started = [self._operation(operation) for operation in operations]
        for operation in started:
            operation.begin()
        results: list[Any] = []
        first: Exception | None = None
        for operation in started:
            try:
                results.append(await Gathered(operation, started))
            except Exception as error:  # noqa: BLE001 - kept, and raised in order
                results.append(error)
                first = first or error
        if first is not None and not return_exceptions:
            raise first
        return tuple(results)

    @overload
    async def first(
        self, a: Durable[T1], b: Durable[T2], /, *, losers: Losers = ...
    ) -> "First[T1 | T2]": ...
    @overload
    async def first(
        self, a: Durable[T1], b: Durable[T2], c: Durable[T3], /, *, losers: Losers = ...
    ) -> "First[T1 | T2 | T3]": ...
    @overload
    async def first(self, *operations: Durable[R], losers: Losers = ...) -> "First[R]": ...
    async def first(self, *operations: Durable[Any], losers: Losers = "cancel") -> "First[Any]":
        """Run calls and other operations concurrently until one has ended; return which, and what.

        The journal keeps which one it was. If that one failed, its error is raised. If several
        could win, the one whose time came first does. The others have consumed nothing: a message
        that would have ended one of them is still there to be received.

        Args:
            *operations: Calls, timers, messages, children, questions.
            losers: What happens to the others: "cancel" stops them, as far as they can be stopped,
                and waits for that; a question to people is withdrawn. "continue" lets them go on,
                to be awaited later.
        """
        if losers not in ("cancel", "continue") or not operations:
            raise ValueError("first takes operations, and losers='cancel' or 'continue'")
        run = self._run
        id = run.journal.identity("first")
        entry = run.visit(id, EntryKind.VALUE, None)
        started = [self._operation(operation) for operation in operations]
        if entry is None or losers == "continue":
            for operation in started:
                operation.race()
        if entry is None:
            index = await self._race(id, started)
        else:
            index = decode(cast("bytes", entry.output), int)
        if losers == "cancel":
            await self._cancel([each for each in started if each is not started[index]])
        return First(index, await started[index])

    async def _race(self, id: str, started: Sequence[Operation[Any]]) -> int:
        """Wait until one has ended or can end; return which, when its end is recorded."""
        run, seq = self._run, self._run.journal.next_seq()
        await FirstOf(run, started)
        index = _ended_first(started)
        winner = started[index]
        fresh = self._fresh(id, EntryKind.VALUE, "first", b"null", None, seq)
        chosen = _drawn(fresh, encode(index))
        # Who won is recorded before or with everything that follows from it: what the winner takes,
        # and that the others are cancelled. Else a replay could choose again, and differently.
        if winner.is_recorded:
            run.buffer_entry(chosen)
            for operation in started:
                operation.along = (chosen,)
        else:
            winner.choose(chosen)
            with contextlib.suppress(Exception):  # raised to the code when all is settled
                await winner
        return index

    async def _cancel(self, operations: Sequence[Operation[Any]]) -> None:
        """Cancel operations, and wait until each has ended."""
        for operation in operations:
            operation.cancel()
        for operation in operations:
            with contextlib.suppress(Exception):  # that it was cancelled, or how it failed
                await operation

    # Closures and branches

    @overload
    def call(
        self,
        name: str,
        body: Callable[[], Awaitable[R]]
        | Callable[[StepContext], Awaitable[R]]
        | Callable[[StepContext, Any], Awaitable[R]],
        *,
        key: str | None = ...,
        input: Any = ...,
        compare: bool = ...,
        **options: Unpack[ClosureOptions],
    ) -> "Operation[R]": ...
    @overload
    def call(
        self,
        name: str,
        body: Callable[[], R] | Callable[[SyncStepContext], R],
        *,
        key: str | None = ...,
        input: Any = ...,
        compare: bool = ...,
        **options: Unpack[ClosureOptions],
    ) -> "Operation[R]": ...
    def call(
        self,
        name: str,
        body: Callable[..., Any],
        *,
        key: str | None = None,
        input: Any = None,
        compare: bool = True,
        **options: Unpack[ClosureOptions],
    ) -> "Operation[Any]":
        """Run a function that was defined in the job as a step; await it, or `gather` several.

        It is recorded and retried as any step, but has no compensation: use a step for what must be
        undone. Its result has the type that the function declares; without a declaration it
        consists of plain JSON values.

        Args:
            name: Its name in the journal.
            body: The function; it takes nothing, or a context, and its `input`, which a person may
                have edited. A plain one runs in a thread.
            key: Identifies the call in its job, instead of its ordinal.
            input: What the result depends on: recorded for people, and compared at a replay.
            compare: False if something else in the journal determines the input, such as the answer
                of a model: then a replay takes it as it was recorded.
            **options: Options of a step, such as `retry` and `timeout`.

        Raises:
            StepFailed: When awaited: it failed for good.
        """
        step = step_of_closure(name, body, **options)
        info = step.name, self._run.node.gatekeeper.watches(step)
        return self._step(step, CallOptions(id=key, compared=compare), (input,), {}, info)

    @contextlib.contextmanager
    def scope(self, key: str) -> Generator[None, None, None]:
        """Number the operations of a block apart from all others: `with ctx.scope("page 3"):`.

        Operations are identified by their ordinals. In concurrent branches of the code, such as
        tasks of a TaskGroup, the order in which they ask may differ from run to run; with a scope
        in each branch it does not matter.

        Args:
            key: Identifies the branch; two branches that are open at a time need different keys.

        Raises:
            ValueError: The key is not printable or has a `/` or `#`, or such a branch is open.
        """
        if not key or not key.isprintable() or set(key) & set("/#") or len(key) > LONGEST_NAME:
            raise ValueError(f"{key!r} cannot be the key of a scope: printable, no `/` and no `#`")
        path, journal = f"{branch.get()}{key}/", self._run.journal
        journal.open_branch(path)
        token = branch.set(path)
        try:
            yield
        finally:
            branch.reset(token)
            journal.close_branch(path)

    @contextlib.contextmanager
    def unrecorded(self, reason: str) -> Generator[None, None, None]:
        """Let the guard refuse nothing in a block: `with ctx.unrecorded("reads the flags"):`.

        What is done there is in no journal, and every replay of the job does it again. The tasks
        that the block starts may do it, too, also after its end.

        Args:
            reason: Why that does no harm, for whoever reads the code.

        Raises:
            ValueError: No reason is given.
        """
        if not reason.strip():
            raise ValueError("ctx.unrecorded needs a reason: why it may be done again")
        with unguarded():
            yield

    # A journal for loops without end

    async def continue_as(self, call: JobCall[Any], /) -> NoReturn:
        """Begin the job again with other arguments and an empty journal; this does not return.

        For jobs that never end, or whose journal would grow without bound. The job keeps its id,
        key, budget, messages and deadline, and gets the present version of its code. What it did so
        far is settled: it is not undone any more, and results under an `idempotency_key` of a step
        are not found any more.

        Args:
            call: A call of the same job, with the arguments of the next part.

        Raises:
            JobError: Operations that were started have not ended: await them first.
            TypeError: It is not a call of this job.
        """
        run, job = self._run, job_of_call(call, "ctx.continue_as")
        name = run.node.registry.name(job)
        if name != run.job.name:
            raise TypeError(f"ctx.continue_as takes a call of the same job, {run.job.name}(…)")
        if run.working or run.waiting or run.held:
            left = ", ".join(sorted(each.entry.id for each in (*run.working, *run.waiting)))
            raise JobError(f"ctx.continue_as: {left} has not ended: await it first")
        packed = job.parameters.pack(call.args, call.kwargs, run.node.limits)
        number = run.journal.continuations + 1
        first = self._fresh(f"{CONTINUED}#{number}", EntryKind.VALUE, CONTINUED, b"null", None)
        begins: RunVerdict = Continued(name, job.version, packed, _drawn(first, encode(number)))
        if run.journal.unvisited:  # it would be forgotten, and what it records never be undone
            begins = run.expects_more("begins again")
        # A cancel or a deadline that came first stands.
        run.stop(run.ending or begins)
        raise Unwound

    # People

    def approve(
        self, title: str, *, key: str | None = None, **options: Unpack[ApproveOptions]
    ) -> "Operation[Approved]":
        """Ask a person; the job waits without a worker until somebody has decided.

        An approval lets the next step begin that would wait for one; see `opens`.

        Args:
            title: What it is about, in one line.
            key: Identifies the question in its job, instead of its ordinal.
            **options: `details`: what people see. `risk`: how dangerous it is ("high").
                `terms`: who must approve. `expires`: how long to wait; overrides the terms.
                `opens`: the steps that an approval lets begin, at every later call.

        Raises:
            ApprovalRejected: When awaited: somebody rejected it.
            ApprovalExpired: When awaited: nobody decided in time.
        """
        run = self._run
        asked = approve_request(run, title, options)
        entry, recorded = self._look_up(EntryKind.APPROVE, "approve", asked.packed, key=key)
        if entry.input is None:  # the job is a fork: people are asked again, about what it asks now
            entry = replace(entry, input=asked.packed)
        return Approve(run, entry, asked, recorded=recorded)

    # Waiting

    def sleep(self, duration: Duration) -> "Operation[None]":
        """Wait for a duration. The job needs no worker meanwhile; a restart does not restart it."""
        run = self._run
        length = job_seconds(duration)
        if length is None:
            raise TypeError("sleep needs a duration; to wait for ever, receive a message")
        until = run.now() + length
        entry, recorded = self._look_up(EntryKind.SLEEP, "sleep", encode(length), until)
        operation = Sleep(run, entry, recorded=recorded)
        if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
            operation.finish_recorded(None, lambda _: None)
        return operation

    @overload
    def receive(self, topic: str, *, timeout: Duration = None, kind: type[R]) -> "Operation[R]": ...
    @overload
    def receive(
        self, topic: str, *, timeout: Duration = None, kind: Any = ...
    ) -> Operation[Any]: ...
    def receive(self, topic: str, *, timeout: Duration = None, kind: Any = Any) -> "Operation[Any]":
        """Wait for a message on a topic, sent with `app.send`; return it as a value of a type.

        Raises:
            StepTimeout: When awaited: none came in time.
        """
        check_given(topic=topic)
        run = self._run
        limit = job_seconds(timeout)
        until = None if limit is None else run.now() + limit
        name = f"receive:{topic}"
        entry, recorded = self._look_up(EntryKind.RECEIVE, name, encode(limit), until)
        if entry.state is _PENDING and entry.wake_at is None and until is not None:
            entry = replace(entry, wake_at=until)  # it is retried, with its full timeout
            run.buffer_entry(entry)
        operation = Receive(run, entry, kind, recorded=recorded)
        if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
            operation.finish_recorded(entry.output, lambda data: decode(data, kind))
        elif entry.state is StepState.FAILED:
            operation.finish(None, no_message(entry))
        return operation

    def child(self, call: JobCall[R], /) -> "Operation[R]":
        """Submit another job, wait for it, and return its result; the same as awaiting the call.

        Raises:
            JobFailed: When awaited: the job ended without a result.
        """
        job_of_call(call, "ctx.child")
        return self._operation(call)

    def _child(
        self,
        job: JobDefinition[Any, R],
        given: CallOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> "Operation[R]":
        run = self._run
        full = run.node.registry.name(job)
        try:
            packed = job.parameters.pack(args, kwargs, run.node.limits)
        except PayloadTooLarge as error:
            return self._at_limit(EntryKind.CHILD, f"child:{full}", error)
        fits = partial(_fits, job.parameters, given, (args, kwargs), packed)
        looked = self._look_up(EntryKind.CHILD, f"child:{full}", packed, key=given.id, fits=fits)
        entry, recorded = looked
        kept = _other_input(entry, packed) or packed
        submission = events.carried(child_job(run.job, entry, job, full, kept, given))
        operation = Child(run, entry, job, submission, recorded=recorded)
        if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
            operation.finish_recorded(entry.output, job.result.decode)
        elif entry.state is StepState.FAILED:
            operation.finish(None, child_failed(submission.id, entry, job))
        return operation

    def _look_up(
        self,
        kind: EntryKind,
        name: str,
        packed: bytes,
        wake_at: float | None = None,
        key: str | None = None,
        fits: Callable[[bytes], bool] = never,
    ) -> tuple[JournalEntry, bool]:
        """Return the entry of what the code asks for now, and whether it was in the journal."""
        run = self._run
        if len(packed) > run.node.limits.inline:  # the code passes it again, if it is needed
            packed = digested(packed)
        id = run.journal.identity(name, key)
        found = run.visit(id, kind, packed, fits)
        return found or self._fresh(id, kind, name, packed, wake_at), found is not None

    def _fresh(
        self,
        id: str,
        kind: EntryKind,
        name: str,
        packed: bytes,
        wake_at: float | None,
        seq: int = 0,
    ) -> JournalEntry:
        return JournalEntry(
            seq=seq or self._run.journal.next_seq(),
            id=id,
            kind=kind,
            name=name,
            state=StepState.PENDING,
            input=packed,
            wake_at=wake_at,
            started_at=self._run.now(),
        )

    # Live output

    def emit(self, value: Any, *, topic: str = DEFAULT_TOPIC) -> None:
        """Emit a value for those who follow the job now: see `Handle.stream`.

        It is stored soon, with the next write of the job. A replay does not emit it again.
        """
        run = self._run
        if run.verdict is not None:
            raise Unwound
        piece = piece_of_output(value, topic, run.node.limits)
        run.output.open(topic)
        run.once_replayed(partial(run.output.emit, topic, piece))
        run.node.flush_soon()

    # Time and randomness, the same in every replay

    def now(self) -> datetime:
        """Return the current time; a replay returns the same time."""
        run = self._run
        if run.verdict is not None:  # an entry made now would be at the wrong place in the journal
            raise Unwound
        id = run.journal.identity("now")
        entry = run.visit(id, EntryKind.VALUE, None)
        if entry is None:
            moment = run.now()
            drawn = self._fresh(id, EntryKind.VALUE, "now", b"null", None)
            run.draw(_drawn(drawn, encode(moment)))
        else:
            moment = decode(cast("bytes", entry.output), float)
        return datetime.fromtimestamp(moment, UTC)

    def patched(self, name: str) -> bool:
        """Whether this job takes the new way at a change of its code.

        The first call for a name decides for the whole job, and the journal keeps it: False if the
        journal shows that older code has passed this point, else True. So one version of the code
        serves jobs that began before the change and those that began after it. A job that takes
        the new way gets the version of this code, so that no worker with older code claims it. When
        all old jobs have ended, the call can be removed: the journal does not expect it again.

        Args:
            name: The change, unique in the job: "new-tax".
        """
        check_given(topic=name)
        run = self._run
        if run.verdict is not None:  # an entry made now would be at the wrong place in the journal
            raise Unwound
        id = f"{PATCHED}{name}#1"
        entry = run.journal.entries.get(id)
        run.journal.known_changes.add(id)
        if entry is None:
            if run.may_be_out_of_step:
                run.stop(run.replay_in_order())
                raise Unwound
            # The decision is written with whatever is written next. So if it is not in the journal,
            # and the code has more to ask for that is, older code has passed this point.
            is_new = not run.journal.unvisited
            fresh = self._fresh(id, EntryKind.VALUE, f"{PATCHED}{name}", b"null", None)
            entry = run.journal.entries[id] = _drawn(fresh, encode(is_new))
            run.buffer_entry(entry)
            # Older code cannot continue a job that goes a way which it does not have.
            version = run.node.registry.find_job(run.job.name).version
            if is_new and version != run.job.version:
                run.buffer_version(version)
        return decode(cast("bytes", entry.output), bool)

    def uuid(self) -> uuid.UUID:
        """Return a UUID: unpredictable to others, the same in every replay."""
        return uuid.UUID(self._seed("uuid")[:32])

    def random(self) -> random.Random:
        """Return a source of randomness that is the same in every replay. Not for secrets."""
        return random.Random(self._seed("random"))

    def _seed(self, name: str) -> str:
        run = self._run
        root = run.job.forked_from or run.job.id
        return digest(root, run.journal.identity(name))


def _fits(
    parameters: Parameters,
    given: CallOptions,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    packed: bytes,
    kept: bytes,
) -> bool:
    """Whether a call may be the one that was recorded, although its arguments differ."""
    if not given.compared:
        return True
    return parameters.is_same_call(kept, packed, parameters.by_name(*arguments))


def _other_input(entry: JournalEntry, packed: bytes) -> bytes | None:
    """Return what was recorded in full, if it is not what the code has packed now."""
    kept = entry.input
    is_same = not packed or kept is None or kept == packed or is_stand_in(kept)
    return None if is_same else kept


def _drawn(entry: JournalEntry, output: bytes) -> JournalEntry:
    return JournalEntry(
        seq=entry.seq,
        id=entry.id,
        kind=entry.kind,
        name=entry.name,
        state=StepState.SUCCEEDED,
        output=output,
        started_at=entry.started_at,
        ended_at=entry.started_at,
    )


def current_job() -> JobContext:
    """Return the context of the job whose code is running.

    Raises:
        NotInJob: No code of a job is running here.
    """
    here = scope.get()
    if isinstance(here, JobContext):
        return here
    place = "here" if here is None else f"inside the step {here}"
    raise NotInJob(f"current_job works in the code of a job, and no such code runs {place}")


async def budget_limits(ctx: JobContext) -> BudgetLimits:
    """Return the limits of the budget that a job spends from, as they were when it began."""
    # Users of a context do not see its run.
    run = ctx._run  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return (await budget_of(run)).limits


def declared_limits(ctx: JobContext) -> BudgetLimits:
    """Return the limits of a budget without waiting for the store.

    Those of a parent that this run has not spent from yet are not known, so there are none.
    """
    run = ctx._run  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  as above
    if run.budget is not None:
        return run.budget.limits
    known = None if run.job.budget_of else run.node.registry.jobs.get(run.job.name)
    return BudgetLimits() if known is None or known.budget is None else known.budget
