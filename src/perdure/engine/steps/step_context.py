"""The context that the function of a step gets: its job, its requests, its progress.

There is one `StepContext` for steps on the loop, in a thread and in their own OS process. It talks
to the engine through a `StepPort`, which is narrow enough to work across a thread or a pipe:

    `Attempt`      on the worker's loop: carries out requests (`steps.step`)
    `ThreadPort`   in a thread: hands them to the loop, and waits or awaits (`steps.thread_step`)
    `ProcessPort`  in another OS process: sends them to the worker's process (`steps.process_step`)

The user's own callables run where the function runs: the call of an effect, the query to its
receiver, the items and their keys. Everything that must be durable goes through the port.

A synchronous function cannot await. Its thread blocks instead, and every method that returns an
awaitable elsewhere returns the value itself. The methods are coroutines in either case: the port of
such a thread (`blocking`) never suspends, so a coroutine runs to its end at once.
"""

import asyncio
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
from typing import Any, Final, Protocol, Self, TypeVar, Unpack, cast

from msgspec import Struct, field

from perdure.base.codec import PayloadLimits, decode, digest, encode
from perdure.base.duration import Duration, job_seconds, required_seconds
from perdure.base.errors import DefinitionError, Permanent
from perdure.base.schema import fields_of
from perdure.engine import crashpoint
from perdure.engine.journal.step_exit import ExitAtCheckpoint
from perdure.engine.journal.verdict import Unwound
from perdure.engine.steps.effects import (
    RESULT,
    BegunEffect,
    CallFault,
    EffectCall,
    EffectOptions,
    EffectRequest,
    fault_of,
)
from perdure.jobs.budget import Amount
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
from perdure.jobs.redaction import plain
from perdure.jobs.risk import RiskLevel

T = TypeVar("T")

LONGEST_KIND: Final = 100
LONGEST_TARGET: Final = 500


class UserQuestion(Struct, frozen=True):
    """A question that a running step asks a person."""

    title: str
    packed: bytes
    shown: Any
    level: RiskLevel
    expires: float | None  # seconds; None: that of the terms


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

    def progress(self) -> None:
        """Report progress."""
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

    async def ask_person(self, place: Place, question: UserQuestion) -> bool:
        """Ask a person; return whether they approved."""
        ...

    async def reserve(self, place: Place, amount: Amount) -> str:
        """Reserve an amount of the budget; return the id of the reservation."""
        ...

    async def settle(self, reservation: str, actual: Amount) -> None:
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
    asked: dict[str, int] = field(default_factory=dict[str, int])  # how often, by part of the code
    items: "ItemWalk | None" = None

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
        what = f"the checkpoint of {self.step_id}"
        kind = cast("Any", type(checkpoint))
        declared = Any if fields_of(checkpoint) is None else kind
        return encode(checkpoint, declared, what=what, kind="checkpoint", limits=self.limits)

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


class StepContext:
    """The context of one attempt of a step."""

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
    def tenant_id(self) -> str:
        """The tenant that the job was submitted for."""
        return self._progress.tenant

    @property
    def user_id(self) -> str:
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
        progress = self._progress
        return digest(progress.tenant, progress.job_id, progress.step_id)

    @property
    def cancelled(self) -> asyncio.Event:
        """An event, set when the job ends: stop your work."""
        return self._port.cancelled

    # Effects

    def effect(
        self, kind: str, call: EffectCall, *, target: str, **options: Unpack[EffectOptions]
    ) -> Awaitable[Any]:
        """Do something to the world once, and return its result, which later attempts reuse.

        The intent is durable before `call(key)` is called, and its result before anything else
        happens. What a crash or an error leaves in doubt is resolved as the options say.

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
        _check_effect(kind, target)
        place = self._progress.allot(digest(kind, target)[:16])
        request = EffectRequest(place, kind, target)
        self._port.effect_asked(request)
        made = self._effect(request, call, options)
        return _finish(made) if self._port.blocking else made

    async def _effect(
        self, request: EffectRequest, call: EffectCall, options: EffectOptions
    ) -> Any:
        port = self._port
        begun = await port.effect_begin(request, options)
        if begun.settled:
            return unpack_result(begun.effect, RESULT)
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
        packed = pack_result(value, RESULT, self._progress.limits)
        return unpack_result(await port.effect_done(begun, packed), RESULT)

    def record_side_effect(
        self, kind: str, key: str, *, target: str = "", **details: Any
    ) -> Coroutine[Any, Any, None]:
        """Record that something has happened that was not done with `effect`.

        A crash between the action and this record loses the record: `effect` has no such gap.
        """
        _check_effect(kind, target or key)
        return self._now(self._port.record_effect(kind, key, target, details))

    def was_side_effect_recorded(self, kind: str, key: str) -> Coroutine[Any, Any, bool]:
        """Return whether something was recorded as done, in any job of the tenant.

        An intent does not count: what merely may have happened was not recorded.
        """
        return self._now(self._port.was_effect_recorded(kind, key))

    @property
    def undone(self) -> Effect | None:
        """In a step that undoes an effect: that effect. It has a key even if it is in doubt."""
        return self._progress.undone

    @property
    def undone_checkpoint(self) -> Any:
        """In a compensation: the step's last checkpoint; None if it saved none, or had finished."""
        data = self._progress.undone_checkpoint
        return None if data is None else decode(data, Any)

    # Money and people

    def spend(self, *, usd: float = 0.0, tokens: int = 0, calls: int = 0) -> "Spending":
        """Reserve an amount before it is spent: `async with ctx.spend(usd=0.5) as spent:`.

        At the end of the block the whole amount is settled, unless `await spent.settle(usd=0.31)`
        has settled another one. At a limit of the job, a person is asked to raise it, and the step
        begins again when they have answered.

        Raises:
            BudgetExceeded: When awaited: somebody refused to raise the limit.
        """
        place = self._progress.allot(SPENDING)
        spending = Spending(self._port, place, Amount.of(usd, tokens, calls))
        return _finish(spending.reserve()) if self._port.blocking else spending

    def request_user_approval(
        self, title: str, timeout: Duration = None, *, details: Any = None, risk: str = "high"
    ) -> Coroutine[Any, Any, bool]:
        """Ask a person in the middle of the step; return whether they approved.

        The step exits, and begins again when somebody has decided. That does not count as an
        attempt; what the step did before must be effects, or be covered by a checkpoint.
        If nobody decides in time, the job is parked for a person; that is not a rejection.
        """
        level, shown = RiskLevel.of(risk), plain(details)
        packed = encode([title, shown], what="a question")
        place = self._progress.allot(f"?{digest(packed, level.name)[:16]}")
        question = UserQuestion(title, packed, shown, level, job_seconds(timeout))
        return self._now(self._port.ask_person(place, question))

    # Progress

    @property
    def previous_checkpoint(self) -> Any:
        """The last checkpoint, as plain JSON values; None if there is none."""
        data = self._progress.checkpoint
        return None if data is None else decode(data, Any)

    def checkpoint_as(self, kind: type[T]) -> T | None:
        """Return the last checkpoint as a value of this type.

        Raises:
            Drift: It does not fit: the type of the checkpoint has changed.
        """
        data = self._progress.checkpoint
        return None if data is None else decode(data, kind)

    def save_checkpoint(self, checkpoint: Any) -> Coroutine[Any, Any, None]:
        """Save a checkpoint, from which the next attempt continues; durable on return."""
        return self._now(self._save(checkpoint))

    async def _save(self, checkpoint: Any) -> None:
        progress = self._progress
        data = progress.encode_checkpoint(checkpoint)
        progress.checkpoint, progress.checkpoint_no = data, progress.checkpoint_no + 1
        if await self._port.save_checkpoint(data):
            raise ExitAtCheckpoint

    def progress(self) -> None:
        """Report progress without saving anything."""
        self._port.progress()

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
        policy = on_error if isinstance(on_error, ItemPolicy) else ItemPolicy(on_error=on_error)
        source = self._items(items, key, policy, (every, required_seconds(or_after)))
        return cast("Any", _iterate(source)) if self._port.blocking else source

    async def _items(
        self,
        items: Iterable[T],
        key: Callable[[T], str | int],
        policy: ItemPolicy,
        interval: tuple[int, float],
    ) -> AsyncGenerator[T, None]:
        port, listed = self._port, list(items)
        cursor = Cursor.start([key(item) for item in listed], self.previous_checkpoint, policy)
        walk = self._progress.items = ItemWalk(cursor)
        saving = SaveInterval(*interval, port.time())
        for place in cursor.remaining():
            cursor.begin(place)
            yield listed[place]
            walk.done(place)
            port.progress()
            if saving.due(port.time()):
                await self._save(cursor.checkpoint())
        bad = cursor.finish().quarantined
        await self._save(cursor.checkpoint())
        if bad:
            named = "; ".join(f"{item.key}: {item.error}" for item in bad)
            raise Permanent(f"{len(bad)} items are in quarantine: {named}")

    @property
    def item_report(self) -> ItemReport | None:
        """How many items are done, and which were skipped; None before `items` is called."""
        walk = self._progress.items
        return None if walk is None else walk.cursor.report()

    def _now(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return an awaitable, or the value itself if the function is synchronous."""
        return cast("Coroutine[Any, Any, T]", _finish(work)) if self._port.blocking else work


SPENDING: Final = "$"  # what is asked for at the place of a spending


class Spending:
    """An amount that is reserved; what is not settled counts as spent."""

    def __init__(self, port: StepPort, place: Place, amount: Amount) -> None:
        self._port = port
        self._place = place
        self._amount = amount
        self._reservation = ""
        self._settled = False

    def settle(
        self, *, usd: float | None = None, tokens: int | None = None, calls: int | None = None
    ) -> Coroutine[Any, Any, None]:
        """Settle what was actually spent; a kind that is not named, as much as was reserved."""
        reserved = self._amount
        actual = Amount.of(
            usd=reserved.usd if usd is None else usd,
            tokens=reserved.tokens if tokens is None else tokens,
            calls=reserved.calls if calls is None else calls,
        )
        work = self._settle(actual)
        return cast("Coroutine[Any, Any, None]", _finish(work)) if self._port.blocking else work

    async def _settle(self, actual: Amount) -> None:
        self._settled = True
        await self._port.settle(self._reservation, actual)

    async def reserve(self) -> Self:
        """Reserve the amount; `await` and `async with` call this."""
        self._reservation = await self._port.reserve(self._place, self._amount)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.reserve().__await__()

    async def __aenter__(self) -> Self:
        return await self.reserve()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._settled and error is None:
            await self._settle(self._amount)

    # In a synchronous function: `with ctx.spend(usd=1):`

    def __enter__(self) -> Self:
        if not self._port.blocking:
            raise TypeError("use `async with ctx.spend(…)` in an async step")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _finish(self.__aexit__(kind, error, trace))


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
