"""Where the wishes of a step in another OS process are done: written here, fenced, and durable."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from perdure.base.errors import DefinitionError
from perdure.engine.effect_call import Begun, EffectOptions, Fault
from perdure.engine.far_context import AskThere, Given, Leave, Raised, StepAt, Wish
from perdure.engine.far_step import find_at
from perdure.engine.leaving import Leaving
from perdure.engine.spending import Spending
from perdure.engine.step_context import UserQuestion
from perdure.jobs.budget import Amount
from perdure.jobs.definition import Step
from perdure.jobs.effect import Answer, Effect, PackedResult
from perdure.jobs.place import Place
from perdure.process.request import Request

if TYPE_CHECKING:
    from perdure.engine.step import StepOperation
    from perdure.engine.step_context import StepContext


class _ToBeAsked(Exception):
    """Only the receiver knows, and only the step can ask it."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class Desk:
    """Serves one attempt of a step; each verb is a method."""

    def __init__(
        self,
        operation: "StepOperation[Any]",
        context: "StepContext",
        put_again: Callable[[Request[Any]], object],
    ) -> None:
        self._operation = operation
        self._context = context
        self._put_again = put_again  # lets a request be answered later
        self._spendings: dict[Place, Spending] = {}
        self.leaving: Leaving | None = None  # why the step was sent away

    async def answer(self, request: Request[Any]) -> None:
        """Do what the step asks for, and tell it what came of it.

        What must wait for another step does so aside: this one may have to end something first.
        """
        verb, *args = request.body
        if verb == "begin" and (freed := self._awaited(*args)) is not None:
            freed.add_done_callback(lambda _: self._put_again(request))
            return
        try:
            reply: object = Given(await getattr(self, verb)(*args))
        except Leaving as leaving:
            self.leaving = self.leaving or leaving
            reply = Leave()
        except Exception as error:  # noqa: BLE001 - it is raised there
            reply = Raised(error)
        request.reply(reply)

    async def save_checkpoint(self, data: bytes) -> bool:
        """Write a checkpoint; tells whether the step is to stop there."""
        return await self._operation.save_checkpoint(data)

    def _awaited(self, wish: Wish) -> "asyncio.Future[None] | None":
        return self._context.effects.awaited(wish.asked, cast("EffectOptions", wish.options))

    async def begin(self, wish: Wish) -> Begun | AskThere:
        """Write an intent, or find that none is needed, or that the receiver must be asked."""
        effects, options = self._context.effects, cast("EffectOptions", dict(wish.options))
        effects.come_by(wish.asked)
        if wish.can_query:
            options["query"] = partial(_answered, wish.answer)
        if wish.options.get("undo") is not None:
            place, given = wish.options["undo"]
            options["undo"] = (_step_at(place), given)
        try:
            return await effects.begin(wish.asked, options)
        except _ToBeAsked as ask:
            return AskThere(ask.key)

    async def done(self, begun: Begun, packed: PackedResult) -> Effect:
        """Write a result."""
        line = self._context.effects.keep_result(begun, packed)
        await self._operation.run.flush()
        return line

    async def failed(self, begun: Begun, fault: Fault, options: dict[str, Any]) -> None:
        """Write what an error says."""
        self._context.effects.keep_fault(begun, fault, cast("EffectOptions", options))

    async def record(self, *args: Any) -> None:
        """Keep a line of what has happened."""
        await self._context.effects.record(*args)

    async def was_recorded(self, kind: str, key: str) -> bool:
        """Tell whether something was recorded as done."""
        return await self._context.effects.was_recorded(kind, key)

    async def ask_person(self, place: Place, question: UserQuestion) -> bool:
        """Ask a person."""
        return await self._context.ask_person(place, question)

    async def spend(self, place: Place, amount: Amount) -> None:
        """Set an amount aside."""
        self._spendings[place] = await Spending(self._operation, place, amount)

    async def settle(self, place: Place, usd: Any, tokens: Any, calls: Any) -> None:
        """Note what was really spent."""
        await self._spendings[place].settle(usd=usd, tokens=tokens, calls=calls)


def _answered(answer: Answer | None, key: str) -> Answer:
    if answer is None:
        raise _ToBeAsked(key)
    return answer


def _step_at(place: StepAt) -> Step[..., Any]:
    found = find_at(place.module, place.name)
    if not isinstance(found, Step):
        raise DefinitionError(f"there is no step {place.name} in module {place.module}")
    return cast("Step[..., Any]", found)
