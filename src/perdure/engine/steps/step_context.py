"""What a step is given: who it works for, and how it keeps its progress."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import decode, digest, encode
from perdure.base.duration import Duration, job_seconds, required_seconds
from perdure.base.errors import Permanent
from perdure.base.schema import fields_of
from perdure.engine.journal.verdict import AtSafePoint, Leaving, Unwound
from perdure.engine.people.ask import Question, answer_to
from perdure.engine.people.spending import SPENDING, Spending
from perdure.engine.steps.effects import Call, EffectOptions, Effects
from perdure.jobs.approval import ApprovalState
from perdure.jobs.budget import Amount
from perdure.jobs.effect import Effect, Place, Places, own_checkpoint
from perdure.jobs.failure import Failure
from perdure.jobs.items import (
    Cursor,
    ItemPolicy,
    ItemReport,
    ItemVerdict,
    OnError,
    SaveInterval,
    key_of,
)
from perdure.jobs.redaction import plain
from perdure.jobs.risk import Judgement, RiskLevel

if TYPE_CHECKING:
    from perdure.engine.steps.step import StepOperation


T = TypeVar("T")


class UserQuestion(Struct, frozen=True):
    """What a step asks a person in its middle."""

    title: str
    packed: bytes
    shown: Any
    level: RiskLevel
    expires: float | None  # seconds; None: as the terms say


class StepContext:
    """The world as one attempt of a step sees it."""

    def __init__(self, operation: "StepOperation[Any]") -> None:
        self._operation = operation
        self._cursor: Cursor | None = None
        self.stopping = False  # the worker stops: leave at the next checkpoint
        self.over = False  # the attempt has ended, though its thread may not know
        self.item_judged: tuple[ItemVerdict, bytes] | None = (
            None  # by the OS process that it ran in
        )
        self.left: Leaving | None = None  # why the function must be left, whatever it does
        self._cancelled: asyncio.Event | None = None
        self._effects: Effects | None = None
        self._places = Places()
        self.reserved = Amount()  # set aside by this run of the code; for the engine

    def __repr__(self) -> str:
        return f"<context of {self._operation!r}, attempt {self.attempt}>"

    @property
    def job_id(self) -> str:
        """The job that the step belongs to."""
        return self._operation.run.job.id

    @property
    def tenant_id(self) -> str:
        """The tenant that the job was submitted for."""
        return self._operation.run.job.tenant

    @property
    def user_id(self) -> str:
        """The user that the job was submitted by."""
        return self._operation.run.job.user

    @property
    def step_id(self) -> str:
        """The step's identity in its job: "send_mail#2"."""
        return self._operation.entry.id

    @property
    def attempt(self) -> int:
        """1 at the first attempt."""
        return self._operation.attempt

    @property
    def idempotency_key(self) -> str:
        """A key that is the same at every attempt and after every crash, and nowhere else."""
        job = self._operation.run.job
        return digest(job.tenant, job.id, self._operation.entry.id)

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the job ends: give up what you do."""
        if self._cancelled is None:
            self._cancelled = asyncio.Event()
        return self._cancelled

    def end(self) -> None:
        """Take note that the attempt has ended, though its thread may go on; for the engine."""
        self.over = True
        if self._effects is not None:
            self._effects.unlock_keys()

    def leave(self, leaving: Leaving) -> Leaving:
        """Take note that the function must be left, for who raises that; for the engine."""
        self.left = self.left or leaving
        return leaving

    def leave_now(self) -> None:
        """Leave the function, if it must be left and has caught what said so; for the engine."""
        if self.left is not None:
            raise self.left

    # Money

    def spend(self, *, usd: float = 0.0, tokens: int = 0, calls: int = 0) -> Spending:
        """Set an amount aside before it is spent: `async with ctx.spend(usd=0.5) as spent:`.

        Settled at the end of the block as a whole, or by `await spent.settle(usd=0.31)`.
        At a limit of the job, a person is asked to raise it, and the step is begun again then.

        Raises:
            BudgetExceeded: When awaited: somebody said no.
        """
        amount = Amount.of(usd, tokens, calls)
        return Spending(self._operation, self.allot(SPENDING), amount)

    # People

    async def request_user_approval(
        self, title: str, timeout: Duration = None, *, details: Any = None, risk: str = "high"
    ) -> bool:
        """Ask a person in the middle of the step; True is a yes.

        The step is left, and begun again when somebody has decided, without counting as an attempt:
        what it did before must be effects, or be covered by a checkpoint.
        If nobody decides in time, the job waits for a person; that is not a no.
        """
        level, shown = RiskLevel.of(risk), plain(details)
        packed = encode([title, shown], what="a question")
        place = self.allot(f"?{digest(packed, level.name)[:16]}")
        question = UserQuestion(title, packed, shown, level, job_seconds(timeout))
        return await self.ask_person(place, question)

    async def ask_person(self, place: Place, question: "UserQuestion") -> bool:
        """Ask what the code asks at a place; for the engine."""
        operation, expires = self._operation, question.expires
        terms = operation.run.node.policy.terms_for(question.level)
        asked = Question(
            step=place.spell("?"),
            title=question.title,
            input=question.packed,
            shown={} if question.shown is None else question.shown,
            judgement=Judgement(question.level),
            terms=terms if expires is None else replace(terms, expires=expires),
        )
        found = await answer_to(operation, asked)
        return found.state is ApprovalState.APPROVED

    @property
    def undone(self) -> Effect | None:
        """In a step that undoes an effect: that effect; its result may be in doubt, its key not."""
        return getattr(self._operation, "undone", None)

    @property
    def undone_checkpoint(self) -> Any:
        """In a compensation: what the step saved last; None if it saved nothing, or was done."""
        data = getattr(self._operation, "checkpoint", None)
        return None if data is None else decode(data, Any)

    # Effects

    def effect(
        self, kind: str, call: Call, *, target: str, **options: Unpack[EffectOptions]
    ) -> Awaitable[Any]:
        """Do something to the world, once; or give what that gave before.

        The intent is durable before `call(key)` is called, and its result before anything else.
        What a crash or an error leaves in doubt is resolved as the options say.

        Args:
            kind: "email", "payment", …
            call: Is called with the key, and does one call to the receiver.
            target: Who or what is acted upon.
            **options: See `EffectOptions`.

        Raises:
            Unstorable: When awaited: it has happened, and its result cannot be stored.
            DefinitionError: When awaited: it could not be told from one before a checkpoint.
        """
        effects = self.effects
        return effects.make(effects.place(kind, target), call, options)

    async def record_side_effect(
        self, kind: str, key: str, *, target: str = "", **details: Any
    ) -> None:
        """Write down that something has happened, which was not done by `effect`.

        Between the deed and this record a crash loses the record: `effect` has no such gap.
        """
        await self.effects.record(kind, key, target, details)

    async def was_side_effect_recorded(self, kind: str, key: str) -> bool:
        """Tell whether something was recorded as done, in any job of the tenant.

        An intent is not a deed: what may have happened was not recorded.
        """
        return await self.effects.was_recorded(kind, key)

    @property
    def effects(self) -> Effects:
        """What the step does to the world; for the engine."""
        if self._effects is None:
            self._effects = Effects(self._operation, self.allot)
        return self._effects

    @property
    def has_effects(self) -> bool:
        """Whether this attempt did anything to the world; for the engine."""
        return self._effects is not None

    def allot(self, what: str) -> Place:
        """Allot the place of what the code asks for now; for the engine."""
        entry = self._operation.entry
        checkpoint = own_checkpoint(entry.checkpoint, entry.checkpoint_no)
        item = "" if self._cursor is None else self._cursor.key_in_hand
        return self._places.allot(entry.id, checkpoint, item, what)

    # Progress

    @property
    def previous_checkpoint(self) -> Any:
        """What was saved last, as plain JSON values; None at the first attempt."""
        data = self._operation.entry.checkpoint
        return None if data is None else decode(data, Any)

    def checkpoint_as(self, kind: type[T]) -> T | None:
        """Read what was saved last, as this type.

        Raises:
            Drift: It does not fit: the code's idea of its checkpoint has changed.
        """
        data = self._operation.entry.checkpoint
        return None if data is None else decode(data, kind)

    async def save_checkpoint(self, checkpoint: Any) -> None:
        """Save how far the step has come; durable when it returns."""
        if self.over:  # its time was up, or its job is another's: the next attempt goes on
            raise Unwound
        data = self.encode_checkpoint(checkpoint)
        if await self._operation.save_checkpoint(data) or self.stopping:
            raise AtSafePoint

    def encode_checkpoint(self, checkpoint: Any) -> bytes:
        """Encode a checkpoint within its limit."""
        what = f"the checkpoint of {self.step_id}"
        limits = self._operation.run.node.limits
        kind = cast("Any", type(checkpoint))
        declared = Any if fields_of(checkpoint) is None else kind
        return encode(checkpoint, declared, what=what, kind="checkpoint", limits=limits)

    def progress(self) -> None:
        """Say that the step is alive and gets on, without saving anything."""
        self._operation.run.progress_at = self._operation.run.node.loop.time()

    async def items(
        self,
        items: Iterable[T],
        *,
        key: Callable[[T], str | int] = key_of,
        every: int = 100,
        or_after: Duration = "30s",
        on_error: OnError | ItemPolicy = "fail",
    ) -> AsyncIterator[T]:
        """Go through items, and after a crash only through those that are not done.

        An item is done when the next one is asked for.
        Progress is saved after `every` items or `or_after`, whichever comes first;
        what was done since then is done again after a crash.

        Args:
            items: The same items in the same order at every attempt; more may come at the end.
            key: What an item is known by.
            every: Save after so many items.
            or_after: Save after so long.
            on_error: What to do with an item on which the step fails: "fail", "skip" and report,
                or "quarantine"; an `ItemPolicy` says more.

        Raises:
            Drift: The items are not those of which some are done already.
            Permanent: At the end, if some are in quarantine.
        """
        loop = self._operation.run.node.loop
        policy = on_error if isinstance(on_error, ItemPolicy) else ItemPolicy(on_error=on_error)
        listed = list(items)
        cursor = Cursor.start([key(item) for item in listed], self.previous_checkpoint, policy)
        self._cursor = cursor
        cadence = SaveInterval(every, required_seconds(or_after), loop.time())
        for place in cursor.remaining():
            cursor.begin(place)
            yield listed[place]
            cursor.done(place)
            self.progress()
            if cadence.due(loop.time()):
                await self.save_checkpoint(cursor.checkpoint())
        bad = cursor.finish().quarantined
        await self.save_checkpoint(cursor.checkpoint())
        if bad:
            named = "; ".join(f"{aside.key}: {aside.error}" for aside in bad)
            raise Permanent(f"{len(bad)} items are in quarantine: {named}")

    @property
    def item_report(self) -> ItemReport | None:
        """How far `items` has come, and which it left; None before."""
        return None if self._cursor is None else self._cursor.report()

    def judge_item(self, failure: Failure) -> tuple[ItemVerdict, bytes] | None:
        """Judge the item at which the step has failed; None if it failed at none."""
        if self._cursor is None or self._cursor.in_hand is None:
            return self.item_judged
        verdict = self._cursor.failed(failure)
        return verdict, self.encode_checkpoint(self._cursor.checkpoint())
