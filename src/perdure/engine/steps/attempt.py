"""One attempt of a step as the engine sees it: the `StepPort` on the loop of the worker.

Whatever the function runs in, what it asks for is done here, on the loop of the worker that holds
the lease. The attempt outlives neither the lease nor its time: when it is `over`, a thread that
still runs its function gets `Unwound` from everything it asks for, and what it says does not count.

An attempt also remembers the first exit that was raised through the function. A function that
catches it, or raises something else on its way, is left all the same.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from perdure.engine.journal.step_exit import StepCall, StepExit
from perdure.engine.journal.verdict import Unwound
from perdure.engine.people.ask import Question, answer_to
from perdure.engine.people.spending import budget_of, reserve, settle
from perdure.engine.steps.effects import (
    BegunEffect,
    CallFault,
    EffectOptions,
    EffectRequest,
    Effects,
)
from perdure.engine.steps.step_context import UserQuestion
from perdure.jobs.approval import ApprovalState
from perdure.jobs.budget import Amount, Reservation, spending_id
from perdure.jobs.effect import Effect, PackedResult, Place
from perdure.jobs.items import ItemVerdict
from perdure.jobs.risk import Judgement

T = TypeVar("T")

_NOTHING_RESERVED = Amount()


class AttemptedStep(StepCall, Protocol):
    """A step that keeps the checkpoints of its attempts."""

    async def write_checkpoint(self, data: bytes) -> None:
        """Write how far the attempt has come."""
        ...


class Attempt:
    """The engine's end of a step context."""

    __slots__ = (
        "_cancelled",
        "_reserved",
        "_step",
        "effects",
        "exit",
        "item_verdict",
        "over",
        "stopping",
    )

    blocking = False

    def __init__(self, step: AttemptedStep) -> None:
        self._step = step
        self.over = False  # it has ended, though its thread may go on
        self.stopping = False  # leave at the next checkpoint
        self.exit: StepExit | None = None  # the first that was raised
        self.effects: Effects | None = None  # once the code asks for one
        self.item_verdict: tuple[ItemVerdict, bytes] | None = None  # of the OS process it ran in
        self._reserved = _NOTHING_RESERVED  # by this run of the code
        self._cancelled: asyncio.Event | None = None

    def end(self) -> None:
        """Let nothing count any more that the function asks for or says."""
        self.over = True
        if self.effects is not None:
            self.effects.unlock_keys()

    @property
    def cancelled(self) -> asyncio.Event:
        if self._cancelled is None:
            self._cancelled = asyncio.Event()
        return self._cancelled

    def time(self) -> float:
        return self._step.run.node.loop.time()

    def progress(self) -> None:
        run = self._step.run
        run.progress_at = run.node.loop.time()

    async def save_checkpoint(self, data: bytes) -> bool:
        if self.over:  # its time was up, or its job is another's: the next attempt goes on
            raise Unwound
        await self._step.write_checkpoint(data)
        return self.stopping

    # Effects

    def effect_asked(self, request: EffectRequest) -> None:
        (self.effects or self._open_effects()).visited.add(request.place)

    async def effect_begin(self, request: EffectRequest, options: EffectOptions) -> BegunEffect:
        try:
            return await (self.effects or self._open_effects()).begin(request, options)
        except StepExit as leaving:
            raise self._note(leaving) from None

    async def effect_done(self, begun: BegunEffect, packed: PackedResult) -> Effect:
        return (self.effects or self._open_effects()).done(begun, packed)

    async def effect_failed(
        self, begun: BegunEffect, fault: CallFault | None, options: EffectOptions
    ) -> None:
        try:
            (self.effects or self._open_effects()).failed(begun, fault, options)
        except StepExit as leaving:
            raise self._note(leaving) from None

    async def record_effect(
        self, kind: str, key: str, target: str, details: Mapping[str, Any]
    ) -> None:
        await (self.effects or self._open_effects()).record(kind, key, target, details)

    async def was_effect_recorded(self, kind: str, key: str) -> bool:
        return await (self.effects or self._open_effects()).was_recorded(kind, key)

    def when_unlocked(
        self, request: EffectRequest, options: EffectOptions
    ) -> "asyncio.Future[None] | None":
        """Return a future that is done when `effect_begin` need not wait for another step."""
        return (self.effects or self._open_effects()).when_unlocked(request, options)

    async def check_left_open(self) -> None:
        """Let the step succeed only if nothing is left to be found out.

        Raises:
            StepExit: The function has caught an exit, or has not asked for an effect that an
                earlier attempt has left open.
        """
        self.check_exit()
        await (self.effects or self._open_effects()).check_none_left_open()

    def check_exit(self) -> None:
        """Raise the exit that the function has caught, if it has."""
        if self.exit is not None:
            raise self.exit

    def _open_effects(self) -> Effects:
        self.effects = Effects(self._step, self)
        return self.effects

    # Money and people

    async def ask_person(self, place: Place, question: UserQuestion) -> bool:
        run, expires = self._step.run, question.expires
        terms = run.node.policy.terms_for(question.level)
        asked = Question(
            step=place.spell("?"),
            title=question.title,
            input=question.packed,
            shown={} if question.shown is None else question.shown,
            judgement=Judgement(question.level),
            terms=terms if expires is None else replace(terms, expires=expires),
        )
        found = await self._or_exit(answer_to(run, asked))
        return found.state is ApprovalState.APPROVED

    async def reserve(self, place: Place, amount: Amount) -> str:
        # Whenever the code comes here again, it spends again: so each time has an id of its own.
        run, once = self._step.run, f"{self._step.attempt}.{secrets.token_hex(8)}"
        reservation = Reservation(
            job_id=run.job.id,
            owner=run.node.owner,
            epoch=run.epoch,
            root_id=(await budget_of(run)).root,
            id=spending_id(run.job.id, place, once),
            amount=amount,
        )
        await self._or_exit(reserve(run, reservation, place, lambda: self._reserved))
        self._reserved += amount
        return reservation.id

    async def settle(self, reservation: str, actual: Amount) -> None:
        await settle(self._step.run, reservation, actual)

    # Exits

    async def _or_exit(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except StepExit as leaving:
            raise self._note(leaving) from None

    def _note(self, leaving: StepExit) -> StepExit:
        self.exit = self.exit or leaving
        return leaving
