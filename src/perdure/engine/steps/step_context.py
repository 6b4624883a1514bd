"""The context that the function of a step gets: its job, its requests, its progress.

An async function gets a `StepContext`, a plain one a `SyncStepContext`, whose methods need no
`await`. Both are the same for steps on the loop, in a thread and in their own OS process, since
they talk to the engine through a `StepPort`, narrow enough to work across a thread or a pipe:

    `Attempt`      on the worker's loop: carries out requests (`steps.step`)
    `ThreadPort`   in a thread: hands them to the loop, and waits or awaits (`steps.thread_step`)
    `ProcessPort`  in another OS process: sends them to the worker's process (`steps.process_step`)

The user's own callables run where the function runs: the call of an effect, the query to its
receiver, the items and their keys. Everything that must be durable goes through the port.

What both can do is written once, as coroutines of their base. A synchronous function cannot await:
its thread blocks instead, in the port of that thread (`blocking`), which never suspends. So there a
coroutine runs to its end at once, and `SyncStepContext` returns its result.
"""

import asyncio
import math
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from inspect import isawaitable
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar, Unpack, cast, overload

from msgspec import Struct, field

from perdure.base.codec import Codec, PayloadLimits, decode, digest, encode
from perdure.base.duration import Duration, job_seconds, required_seconds
from perdure.base.errors import DefinitionError, Drift, Permanent
from perdure.base.schema import fields_of
from perdure.engine import crashpoint
from perdure.engine.journal.step_exit import ExitAtCheckpoint
from perdure.engine.journal.verdict import Unwound
from perdure.engine.people.ask import Approved, NotApproved
from perdure.engine.steps.effects import (
    RESULT,
    BegunEffect,
    CallFault,
    EffectOptions,
    EffectRequest,
    fault_of,
)
from perdure.jobs.budget import Amount, ModelUsage
from perdure.jobs.definition import Step
from perdure.jobs.effect import (
    Effect,
    PackedResult,
    Place,
    pack_result,
    unpack_result,
)
from perdure.jobs.failure import Failure
from perdure.jobs.items import (
    Cursor,
    ItemPolicy,
    ItemReport,
    ItemVerdict,
    OnError,
    SaveInterval,
    is_of_items,
    key_of,
)
from perdure.jobs.output import DEFAULT_TOPIC
from perdure.jobs.parameters import Context, result_type
from perdure.jobs.redaction import plain
from perdure.jobs.risk import RiskLevel
from perdure.jobs.text_limits import check_given

T = TypeVar("T")

LONGEST_KIND: Final = 100
LONGEST_TARGET: Final = 500
LONGEST_NOTE: Final = 200


class UserQuestion(Struct, frozen=True):
    """A question that a running step asks a person."""

    title: str
    packed: bytes
    shown: Any
    level: RiskLevel
    expires: float | None  # seconds; None: that of the terms


class ProgressReport(Struct, frozen=True):
    """How far a step is, as its code reports it."""

    done: float | None
    total: float | None
    note: str


class StepPort(Protocol):
    """What a step may request from the engine; a coroutine returns when the request is durable."""

    @property
    def blocking(self) -> bool:
        """Whether the function is synchronous, so that its thread blocks and never suspends."""
        ...

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the attempt is to stop."""
        ...

    def time(self) -> float:
        """Return a monotonic time in seconds."""
        ...

    def heartbeat(self) -> None:
        """Report that the step is alive."""
        ...

    def report(self, report: ProgressReport) -> None:
        """Report how far the step is."""
        ...

    def emit(self, topic: str, data: bytes) -> None:
        """Emit a piece of output, without waiting."""
        ...

    async def save_checkpoint(self, data: bytes) -> bool:
        """Save a checkpoint; return whether the step must exit there."""
        ...

    def effect_asked(self, request: EffectRequest) -> None:
        """Record, in the order of the code, that it asks for an effect."""
        ...

    async def effect_begin(self, request: EffectRequest, options: EffectOptions) -> BegunEffect:
        """Write the intent of an effect, or find that it must not be called again."""
        ...

    async def effect_done(self, begun: BegunEffect, packed: PackedResult) -> Effect:
        """Store the result of an effect."""
        ...

    async def effect_failed(
        self, begun: BegunEffect, fault: CallFault | None, options: EffectOptions
    ) -> None:
        """Store what an error says about an effect; None: the call was interrupted."""
        ...

    async def record_effect(
        self, kind: str, key: str, target: str, details: Mapping[str, Any]
    ) -> None:
        """Record an effect that was made without `effect`."""
        ...

    async def was_effect_recorded(self, kind: str, key: str) -> bool:
        """Return whether such an effect was recorded."""
        ...

    async def ask_person(self, place: Place, question: UserQuestion) -> Approved | NotApproved:
        """Ask a person; return what they decided."""
        ...

    async def reserve(self, place: Place, amount: Amount) -> str:
        """Reserve an amount of the budget; return the id of the reservation."""
        ...

    async def settle(
        self, reservation: str, actual: Amount, usage: ModelUsage | None = None
    ) -> None:
        """Replace a reservation by what was actually spent."""
        ...


class StepProgress(Struct, kw_only=True):
    """The attempt and the progress of its code; shared by the context and the engine."""

    job_id: str
    tenant: str
    user: str
    step_id: str
    attempt: int
    limits: PayloadLimits
    checkpoint: bytes | None
    checkpoint_no: int
    undone: Effect | None = None  # in the undo of an effect
    undone_checkpoint: bytes | None = None  # in a compensation
    undoes: str = ""  # in a compensation: the step that it undoes
    asked: dict[str, int] = field(default_factory=dict[str, int])  # how often, by part of the code
    items: "ItemWalk | None" = None
    reports: bool = False  # whether the code itself reports how far it is

    def key_for(self, step_id: str) -> str:
        """Return the idempotency key of a step of this job."""
        return digest(self.tenant, self.job_id, step_id)

    def allot(self, what: str) -> Place:
        """Return the place of what the code asks for now.

        It is identified by the code's own checkpoint, or by the item: a checkpoint of `ctx.items`
        is not the code's own.
        """
        data, item = self.checkpoint, "" if self.items is None else self.items.cursor.key_in_hand
        number = 0 if data is None or is_of_items(data) else self.checkpoint_no
        part = f"{number}:{item}:{what}"
        ordinal = self.asked[part] = self.asked.get(part, 0) + 1
        return Place(self.step_id, ordinal, part)

    def encode_checkpoint(self, checkpoint: Any) -> bytes:
        """Return a checkpoint as JSON, within its size limit."""
        what, declared = f"the checkpoint of {self.step_id}", _declared(checkpoint)
        collects = self.items is not None and self.items.cursor.collects
        limit = "record" if collects else "checkpoint"
        return encode(checkpoint, declared, what=what, kind=limit, limits=self.limits)

    def judge_item(self, failure: Failure) -> tuple[ItemVerdict, bytes] | None:
        """Return what follows the failure of the step at an item; None if it was at no item."""
        if self.items is None:
            return None
        with self.items.lock:
            cursor = self.items.cursor
            if cursor.in_hand is None:
                return None
            self.items.closed = True
            verdict = cursor.failed(failure)
            return verdict, self.encode_checkpoint(cursor.checkpoint())


class ItemWalk:
    """The items of a step, and a lock.

    A thread cannot be stopped: when it times out, it may still work on an item while the engine
    judges that item. Without the lock both might settle it, and the next item would be skipped.
    """

    __slots__ = ("closed", "cursor", "lock")

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.lock = threading.Lock()
        self.closed = False  # the engine has judged the item: the code must not continue

    def done(self, place: int) -> None:
        """Record that an item is done."""
        with self.lock:
            if self.closed:
                raise Unwound
            self.cursor.done(place)

    def collect(self, result: Any) -> None:
        """Keep a result of the item in hand."""
        with self.lock:
            if self.closed:
                raise Unwound
            self.cursor.collect(result)


class _Base(Context):
    """What an attempt of a step is, and what it can do, as coroutines."""

    __slots__ = ("_port", "_progress")

    def __init__(self, port: StepPort, progress: StepProgress) -> None:
        self._port = port
        self._progress = progress

    def __repr__(self) -> str:
        progress = self._progress
        return f"<context of {progress.step_id} of job {progress.job_id}, attempt {self.attempt}>"

    @property
    def job_id(self) -> str:
        """The job that the step belongs to."""
        return self._progress.job_id

    @property
    def tenant(self) -> str:
        """The tenant that the job was submitted for."""
        return self._progress.tenant

    @property
    def user(self) -> str:
        """The user that the job was submitted by."""
        return self._progress.user

    @property
    def step_id(self) -> str:
        """The step's identity in its job: "send_mail#2"."""
        return self._progress.step_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._progress.attempt

    @property
    def idempotency_key(self) -> str:
        """A key that is the same at every attempt and after every crash, and nowhere else."""
        return self._progress.key_for(self._progress.step_id)

    @property
    def cancelled(self) -> asyncio.Event:
        """An event, set when the job ends: stop your work."""
        return self._port.cancelled

    @property
    def undone(self) -> Effect | None:
        """In a step that undoes an effect: that effect. It has a key even if it is in doubt."""
        return self._progress.undone

    @property
    def undone_checkpoint(self) -> Any:
        """In a compensation: the step's last checkpoint; None if it saved none, or had finished."""
        data = self._progress.undone_checkpoint
        return None if data is None else decode(data, Any)

    # Progress

    @overload
    def load_checkpoint(self) -> Any: ...
    @overload
    def load_checkpoint(self, kind: type[T]) -> T | None: ...
    def load_checkpoint(self, kind: Any = Any) -> Any:
        """Return the last checkpoint as a value of a type; None if there is none.

        Without a type it consists of plain JSON values.

        Raises:
            Drift: It does not fit: the type of the checkpoint has changed.
        """
        data = self._progress.checkpoint
        return None if data is None else decode(data, kind)

    async def _save(self, checkpoint: Any) -> None:
        progress = self._progress
        data = progress.encode_checkpoint(checkpoint)
        progress.checkpoint, progress.checkpoint_no = data, progress.checkpoint_no + 1
        if await self._port.save_checkpoint(data):
            raise ExitAtCheckpoint

    def heartbeat(self) -> None:
        """Say that the step is alive: a step without a sign of life counts as stuck in the end.

        Call it as often as you like: nothing is written at each call. Numbers, checkpoints and
        items of `items` count as a heartbeat, too.
        """
        self._port.heartbeat()

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how far the step is, for people: `ctx.progress(3, 10, "page 3")`.

        It is shown by `perdure jobs show` and `watch`, and is `Job.progress`. Call it as often as
        you like: what was reported last is written every two seconds or so, for all jobs of the
        worker together. It is not a checkpoint: after a crash nobody continues from it.
        """
        self._progress.reports = True
        self._port.report(ProgressReport(_number(done), _number(total), note[:LONGEST_NOTE]))

    def emit(self, value: Any, *, topic: str = DEFAULT_TOPIC) -> None:
        """Emit a value for those who follow the job now: see `Handle.stream`.

        It costs no write of its own: it is stored soon, together with others, and at the latest
        with the next checkpoint or the result of the step. What an attempt has emitted after its
        last checkpoint is taken back when another attempt begins.
        """
        self._port.emit(topic, piece_of_output(value, topic, self._progress.limits))

    async def _items(
        self,
        items: Iterable[T],
        key: Callable[[T], str | int],
        on_error: OnError | ItemPolicy,
        interval: tuple[int, float],
    ) -> AsyncGenerator[T, None]:
        port, listed = self._port, list(items)
        policy = on_error if isinstance(on_error, ItemPolicy) else ItemPolicy(on_error=on_error)
        cursor = Cursor.start([key(item) for item in listed], self.load_checkpoint(), policy)
        walk = self._progress.items = ItemWalk(cursor)
        saving = SaveInterval(*interval, port.time())
        for place in cursor.remaining():
            cursor.begin(place)
            yield listed[place]
            walk.done(place)
            if self._progress.reports:
                port.heartbeat()
            else:
                port.report(ProgressReport(cursor.report().done, len(listed), ""))
            if saving.due(port.time()):
                await self._save(cursor.checkpoint())
        bad = cursor.finish().quarantined
        await self._save(cursor.checkpoint())
        if bad:
            named = "; ".join(f"{item.key}: {item.error}" for item in bad)
            raise Permanent(f"{len(bad)} items are in quarantine: {named}")

    def collect(self, result: Any) -> None:
        """Keep a result of the current item of `items`: it becomes durable when the item does.

        A list of your own would lose, after a crash, everything before the last checkpoint. What
        is collected is stored in the checkpoint, and is 2 MiB at most (`PayloadLimits.record`).

        Raises:
            DefinitionError: It is not called inside the loop over `items`.
            Unstorable: The value cannot be stored.
        """
        walk = self._progress.items
        if walk is None:
            raise DefinitionError("ctx.collect is called inside the loop over ctx.items")
        what = f"what {self.step_id} collects"
        data = encode(result, _declared(result), what=what, limits=self._progress.limits)
        walk.collect(decode(data, Any))

    def collected(self, kind: type[T]) -> list[T]:
        """Return all results of the items, of earlier attempts too, as values of this type.

        They are in the order of the items. Items that were skipped have none.

        Raises:
            Drift: One of them does not fit the type.
        """
        walk = self._progress.items
        results = [] if walk is None else walk.cursor.results()
        what = f"what {self.step_id} has collected"
        return decode(encode(results, what=what, limits=self._progress.limits), list[kind])

    @property
    def item_report(self) -> ItemReport | None:
        """How many items are done, and which were skipped; None before `items` is called."""
        walk = self._progress.items
        return None if walk is None else walk.cursor.report()

    # Effects

    def _ask_effect(self, kind: str, target: str) -> EffectRequest:
        """Allot the place of an effect, in the order in which the code asks."""
        _check_effect(kind, target)
        place = self._progress.allot(digest(kind, target)[:16])
        request = EffectRequest(place, kind, target)
        self._port.effect_asked(request)
        return request

    async def _effect(
        self, request: EffectRequest, call: Callable[[str], Any], options: EffectOptions
    ) -> Any:
        port, codec = self._port, _result_codec(call)
        begun = await port.effect_begin(request, options)
        if begun.settled:
            return _unpacked(begun.effect, codec)
        try:
            value = call(begun.effect.key)
            if isawaitable(value) and not port.blocking:
                value = await value
        except BaseException as error:
            fault = fault_of(begun, error, options) if isinstance(error, Exception) else None
            await port.effect_failed(begun, fault, options)
            raise
        if crashpoint.wanted:
            crashpoint.reach("after_call")
        packed = pack_result(value, codec, self._progress.limits)
        if packed.problem is not None:  # it is not what its call declares
            packed = pack_result(value, RESULT, self._progress.limits)
        return _unpacked(await port.effect_done(begun, packed), codec)

    def _record(
        self, kind: str, key: str, target: str, details: Mapping[str, Any]
    ) -> Coroutine[Any, Any, None]:
        _check_effect(kind, target or key)
        return self._port.record_effect(kind, key, target, details)

    # Money and people

    def _spending(self, amount: Amount) -> "_Spent":
        return _Spent(self._port, self._progress.allot(SPENDING), amount)

    def _approve(
        self, title: str, details: Any, risk: RiskLevel | str, expires: Duration
    ) -> Coroutine[Any, Any, Approved]:
        check_given(title=title)
        level, shown = RiskLevel.of(risk), plain(details)
        packed = encode([title, shown], what="a question")
        place = self._progress.allot(f"?{digest(packed, level.name)[:16]}")
        return self._answer(place, UserQuestion(title, packed, shown, level, job_seconds(expires)))

    async def _answer(self, place: Place, question: UserQuestion) -> Approved:
        found = await self._port.ask_person(place, question)
        if isinstance(found, NotApproved):
            raise found.error()
        return found


class StepContext(_Base):
    """The context of one attempt of an async step."""

    __slots__ = ()
    of = "a step"

    # Effects

    @overload
    def effect(
        self,
        kind: str,
        call: Callable[[str], Awaitable[T]],
        *,
        target: str,
        **options: Unpack[EffectOptions],
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def effect(
        self,
        kind: str,
        call: Callable[[str], T],
        *,
        target: str,
        **options: Unpack[EffectOptions],
    ) -> Coroutine[Any, Any, T]: ...
    def effect(
        self,
        kind: str,
        call: Callable[[str], Any],
        *,
        target: str,
        **options: Unpack[EffectOptions],
    ) -> Coroutine[Any, Any, Any]:
        """Do something to the world once, and return its result, which later attempts reuse.

        The intent is durable before `call(key)` is called, and its result before anything else
        happens. What a crash or an error leaves in doubt is resolved as the options say.
        The result has the type that the function `call` declares; without a declaration it consists
        of plain JSON values.

        Args:
            kind: "email", "payment", …
            call: Called with the key; makes one call to the receiver.
            target: Who or what is acted upon.
            **options: See `EffectOptions`.

        Raises:
            Unstorable: When awaited: it has happened, but its result cannot be stored.
            DefinitionError: When awaited: it cannot be distinguished from an effect before a
                checkpoint.
        """
        return self._effect(self._ask_effect(kind, target), call, options)

    def record_effect(
        self, kind: str, key: str, *, target: str = "", **details: Any
    ) -> Coroutine[Any, Any, None]:
        """Record that something has happened that was not done with `effect`.

        A crash between the action and this record loses the record: `effect` has no such gap.
        """
        return self._record(kind, key, target, details)

    def was_effect_recorded(self, kind: str, key: str) -> Coroutine[Any, Any, bool]:
        """Return whether something was recorded as done, in any job of the tenant.

        An intent does not count: what merely may have happened was not recorded.
        """
        return self._port.was_effect_recorded(kind, key)

    # Money and people

    def spend(self, *, usd: float = 0.0, tokens: int = 0, calls: int = 0) -> "Spending":
        """Reserve an amount before it is spent: `async with ctx.spend(usd=0.5) as spent:`.

        At the end of the block the whole amount is settled, unless `await spent.settle(usd=0.31)`
        has settled another one. At a limit of the job, a person is asked to raise it, and the step
        begins again when they have answered.

        Raises:
            BudgetExceeded: When awaited: somebody refused to raise the limit.
        """
        return Spending(self._spending(Amount.of(usd, tokens, calls)))

    def approve(
        self,
        title: str,
        *,
        details: Any = None,
        risk: RiskLevel | str = "high",
        expires: Duration = None,
    ) -> Coroutine[Any, Any, Approved]:
        """Ask a person in the middle of the step; return who approved.

        The step exits, and begins again when somebody has decided. That does not count as an
        attempt; what the step did before must be effects, or be covered by a checkpoint.
        If nobody decides in time, the job is parked for a person; that is not a rejection.

        Raises:
            ApprovalRejected: When awaited: somebody rejected it.
        """
        return self._approve(title, details, risk, expires)

    # Progress

    def save_checkpoint(self, checkpoint: Any) -> Coroutine[Any, Any, None]:
        """Save a checkpoint, from which the next attempt continues; durable on return."""
        return self._save(checkpoint)

    def items(
        self,
        items: Iterable[T],
        *,
        key: Callable[[T], str | int] = key_of,
        every: int = 100,
        or_after: Duration = "30s",
        on_error: OnError | ItemPolicy = "fail",
    ) -> AsyncIterator[T]:
        """Yield items one by one; after a crash, only those that are not done.

        An item is done when the next one is asked for.
        Progress is saved after `every` items or after `or_after`, whichever comes first;
        what was done since then is repeated after a crash.

        Args:
            items: The same items in the same order at every attempt; more may be added at the end.
            key: What identifies an item.
            every: Save after this many items.
            or_after: Save after this much time.
            on_error: What to do with an item on which the step fails: "fail", "skip" and report,
                or "quarantine"; an `ItemPolicy` has more options.

        Raises:
            Drift: The items differ from those of an earlier attempt.
            Permanent: At the end, if some items are in quarantine.
        """
        return self._items(items, key, on_error, (every, required_seconds(or_after)))


class SyncStepContext(_Base):
    """The context of one attempt of a step that is a plain function: nothing is awaited.

    Its methods do what those of `StepContext` do, and return when it is done.
    """

    __slots__ = ()
    of = "a sync step"

    def effect(
        self,
        kind: str,
        call: Callable[[str], T],
        *,
        target: str,
        **options: Unpack[EffectOptions],
    ) -> T:
        """Do something to the world once, and return its result; see `StepContext.effect`."""
        return _finish(self._effect(self._ask_effect(kind, target), call, options))

    def record_effect(self, kind: str, key: str, *, target: str = "", **details: Any) -> None:
        """Record that something has happened; see `StepContext.record_effect`."""
        _finish(self._record(kind, key, target, details))

    def was_effect_recorded(self, kind: str, key: str) -> bool:
        """Return whether something was recorded as done; see `StepContext.was_effect_recorded`."""
        return _finish(self._port.was_effect_recorded(kind, key))

    def spend(self, *, usd: float = 0.0, tokens: int = 0, calls: int = 0) -> "SyncSpending":
        """Reserve an amount before it is spent: `with ctx.spend(usd=0.5) as spent:`."""
        spent = self._spending(Amount.of(usd, tokens, calls))
        _finish(spent.reserve())
        return SyncSpending(spent)

    def approve(
        self,
        title: str,
        *,
        details: Any = None,
        risk: RiskLevel | str = "high",
        expires: Duration = None,
    ) -> Approved:
        """Ask a person in the middle of the step; see `StepContext.approve`."""
        return _finish(self._approve(title, details, risk, expires))

    def save_checkpoint(self, checkpoint: Any) -> None:
        """Save a checkpoint, from which the next attempt continues; durable on return."""
        _finish(self._save(checkpoint))

    def items(
        self,
        items: Iterable[T],
        *,
        key: Callable[[T], str | int] = key_of,
        every: int = 100,
        or_after: Duration = "30s",
        on_error: OnError | ItemPolicy = "fail",
    ) -> Iterator[T]:
        """Yield items one by one, after a crash only those not done; see `StepContext.items`."""
        return _iterate(self._items(items, key, on_error, (every, required_seconds(or_after))))


AnyStepContext: TypeAlias = StepContext | SyncStepContext


def context_for(step: Step[..., Any], port: StepPort, progress: StepProgress) -> AnyStepContext:
    """Return the context that the function of a step takes."""
    return (StepContext if step.is_async else SyncStepContext)(port, progress)


# Declarations that need no codec of their own: JSON gives their values back as they are.
_PLAIN: Final = frozenset({Any, None, str, int, float, bool, dict, list})


def _result_codec(call: Callable[..., Any]) -> Codec[Any]:
    """Return the codec of the result of an effect: by what its call declares, if that is known."""
    if getattr(call, "__annotations__", {}).get("return", Any) in _PLAIN:
        return RESULT
    try:
        return Codec(result_type(call, "the call of an effect"), "the result of an effect")
    except DefinitionError:  # its type is not known at run time, or cannot be stored
        return RESULT


def _unpacked(effect: Effect, codec: Codec[Any]) -> Any:
    try:
        return unpack_result(effect, codec)
    except (
        Drift
    ):  # it happened, and is not what its call declares: plain values are better than none
        return unpack_result(effect, RESULT)


def _number(value: Any) -> float | None:
    """Check a number of a report.

    Raises:
        TypeError, ValueError: It is not a number, or is infinite.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"progress is reported as numbers, not {value!r}")
    if value is not None and not math.isfinite(value):
        raise ValueError(f"progress is reported as finite numbers, not {value!r}")
    return value


def _declared(value: Any) -> Any:
    """Return the type as which a value is stored: its own if it has fields."""
    return Any if fields_of(value) is None else cast("Any", type(value))


def port_of(context: AnyStepContext) -> StepPort:
    """Return the port of a context."""
    # Users of a context see neither.
    return context._port  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def progress_of(context: AnyStepContext) -> StepProgress:
    """Return the attempt that a context belongs to."""
    # Users of a context see neither.
    return context._progress  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


SPENDING: Final = "$"  # what is asked for at the place of a spending


class _Spent:
    """An amount that is reserved; what is not settled counts as spent."""

    def __init__(self, port: StepPort, place: Place, amount: Amount) -> None:
        self._port = port
        self._place = place
        self._amount = amount
        self._reservation = ""
        self._settled = False

    async def reserve(self) -> None:
        """Reserve the amount."""
        self._reservation = await self._port.reserve(self._place, self._amount)

    async def settle(
        self,
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        usage: ModelUsage | None = None,
    ) -> None:
        """Settle what was actually spent; a kind that is None, as much as was reserved."""
        reserved = self._amount
        if usage is not None and tokens is None:
            tokens = usage.tokens
        self._settled = True
        actual = Amount.of(
            usd=reserved.usd if usd is None else usd,
            tokens=reserved.tokens if tokens is None else tokens,
            calls=reserved.calls if calls is None else calls,
        )
        await self._port.settle(self._reservation, actual, usage)

    async def end(self, error: BaseException | None) -> None:
        """Settle the whole amount at the end of a block, unless it was settled or failed."""
        if not self._settled and error is None:
            await self.settle()


class Spending:
    """A reserved amount in an async step."""

    def __init__(self, spent: _Spent) -> None:
        self._spent = spent

    def settle(
        self,
        *,
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        usage: ModelUsage | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Settle what was actually spent; a kind that is not named, as much as was reserved.

        `usage` says what a model has used: for traces, and for `tokens`.
        """
        return self._spent.settle(usd, tokens, calls, usage)

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self._spent.reserve()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._spent.end(error)


class SyncSpending:
    """A reserved amount in a step that is a plain function."""

    def __init__(self, spent: _Spent) -> None:
        self._spent = spent

    def settle(
        self,
        *,
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        usage: ModelUsage | None = None,
    ) -> None:
        """Settle what was actually spent; see `Spending.settle`."""
        _finish(self._spent.settle(usd, tokens, calls, usage))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _finish(self._spent.end(error))


# Made once: a language model emits a thousand pieces a second.
_PIECE: Final = Codec[Any](Any, "a piece of output", "message")


def piece_of_output(value: Any, topic: str, limits: PayloadLimits) -> bytes:
    """Return a value that is emitted as JSON.

    Raises:
        ArgumentError: The topic is empty or too long.
        Unstorable, PayloadTooLarge: The value cannot be stored, or is larger than a message.
    """
    check_given(topic=topic)
    if isinstance(value, str) or fields_of(value) is None:
        return _PIECE.encode(value, limits)
    return Codec[Any](cast("Any", type(value)), _PIECE.what, _PIECE.kind).encode(value, limits)


def _check_effect(kind: str, target: str) -> None:
    if not kind or len(kind) > LONGEST_KIND or not kind.isprintable():
        raise DefinitionError(f"the kind of an effect is a short text, not {kind!r}")
    if len(target) > LONGEST_TARGET or not target.isprintable():
        raise DefinitionError(f"the target of an effect is a short text, not {target!r}")


# Synchronous functions


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; over a blocking port it never suspends."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise RuntimeError("a synchronous step cannot await: make it `async def`")


def _iterate(source: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an async iterator, for a plain `for` in a synchronous function."""
    while True:
        try:
            item = _finish(anext(source))
        except StopAsyncIteration:
            return
        yield item
