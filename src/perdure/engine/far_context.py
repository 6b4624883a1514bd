"""The context of a step in another OS process: what must be durable is asked of the desk.

The desk is the process that asked for the step; it writes, fenced, and answers when it is durable.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import Limits
from perdure.base.errors import DefinitionError
from perdure.base.pid import Pid
from perdure.engine.crashpoint import crashpoint
from perdure.engine.effect_call import (
    RESULT,
    Asked,
    Begun,
    EffectOptions,
    ask_receiver,
    fault_of,
)
from perdure.engine.effects import Effects
from perdure.engine.leaving import Leaving
from perdure.engine.spending import SPENDING, Spending
from perdure.engine.step_context import StepContext, UserQuestion
from perdure.jobs.budget import Amount
from perdure.jobs.definition import Step
from perdure.jobs.effect import Answer, pack_result, unpack_result
from perdure.jobs.place import Place
from perdure.jobs.redaction import plain as without_types
from perdure.process.messaging import call

# What the desk answers


class Given(Struct, frozen=True):
    """It is done."""

    value: Any = None


class Raised(Struct, frozen=True):
    """It cannot be done."""

    error: Exception


class Leave(Struct, frozen=True):
    """The step cannot go on now; why, the desk knows."""


class AskThere(Struct, frozen=True):
    """Ask the receiver about this key, then begin again with its answer."""

    key: str


class Wish(Struct, frozen=True):
    """An effect that the step wants to begin; `answer` is what the receiver said about it."""

    asked: Asked
    options: dict[str, Any]
    can_query: bool
    answer: Answer | None = None


class SentAway(Leaving):
    """Leaves a step that cannot go on now."""


class StepAt(Struct, frozen=True):
    """A step, by the place of its function."""

    module: str
    name: str


async def ask_desk(desk: Pid, verb: str, *args: Any) -> Any:
    """Have the desk do something.

    Raises:
        SentAway: The step is to be left.
    """
    answer = await call(desk, (verb, *args), timeout=None)
    match answer:
        case Raised(error=error):
            raise error
        case Leave():
            raise SentAway
        case _:
            return cast("Given", answer).value


class FarContext(StepContext):
    """The context, there."""

    def __init__(self, desk: Pid, operation: Any) -> None:
        super().__init__(operation)
        self._desk = desk

    def spend(self, *, usd: float = 0.0, tokens: int = 0, calls: int = 0) -> Spending:
        return FarSpending(self._desk, self.allot(SPENDING), Amount.of(usd, tokens, calls))

    async def ask_person(self, place: Place, question: UserQuestion) -> bool:
        return await ask_desk(self._desk, "ask_person", place, question)

    @property
    def effects(self) -> Effects:
        if self._effects is None:
            self._effects = FarEffects(self._desk, self._operation, self.allot)
        return self._effects


class FarEffects(Effects):
    """The effects of one attempt, there: called here, and kept by the desk."""

    def __init__(self, desk: Pid, operation: Any, allot: Callable[[str], Place]) -> None:
        self._desk = desk
        self._operation = operation
        self._allot = allot
        self._limits: Limits = operation.run.node.limits

    def come_by(self, asked: Asked) -> None:
        """Nothing to do: the desk does, when it is told to begin."""

    async def begin(self, asked: Asked, options: EffectOptions) -> Begun:
        query = options.get("query")
        wish = Wish(asked, _plain(options), query is not None)
        told: Begun | AskThere = await ask_desk(self._desk, "begin", wish)
        while isinstance(told, AskThere):
            assert query is not None
            wish = replace(wish, answer=await ask_receiver(query, told.key))
            told = await ask_desk(self._desk, "begin", wish)
        return told

    async def done(self, begun: Begun, value: Any) -> Any:
        crashpoint("after_call")
        packed = pack_result(value, RESULT, self._limits)
        return unpack_result(await ask_desk(self._desk, "done", begun, packed), RESULT)

    def failed(
        self, begun: Begun, error: BaseException, options: EffectOptions
    ) -> Awaitable[None] | None:
        if not isinstance(error, Exception):
            return None
        fault = fault_of(begun, error, options)
        return ask_desk(self._desk, "failed", begun, fault, _plain(options))

    async def record(self, kind: str, key: str, target: str, details: Mapping[str, Any]) -> None:
        await ask_desk(self._desk, "record", kind, key, target, without_types(details))

    async def was_recorded(self, kind: str, key: str) -> bool:
        return await ask_desk(self._desk, "was_recorded", kind, key)


class FarSpending(Spending):
    """An amount that the desk sets aside."""

    def __init__(self, desk: Pid, place: Place, amount: Amount) -> None:
        self._desk = desk
        self._place = place
        self._amount = amount
        self._settled = False

    async def settle(
        self, *, usd: float | None = None, tokens: int | None = None, calls: int | None = None
    ) -> None:
        self._settled = True
        await ask_desk(self._desk, "settle", self._place, usd, tokens, calls)

    async def _reserved(self) -> "FarSpending":
        await ask_desk(self._desk, "spend", self._place, self._amount)
        return self


def _plain(options: EffectOptions) -> dict[str, Any]:
    """Give what can cross: a step is named, and the question stays here."""
    plain: dict[str, Any] = {name: each for name, each in options.items() if name != "query"}
    if plain.get("details") is not None:
        plain["details"] = without_types(plain["details"])
    undo = plain.get("undo")
    if undo is not None:
        step, given = cast("Any", undo if isinstance(undo, tuple) else (undo, {}))
        if not isinstance(step, Step):
            raise DefinitionError(f"`undo` is a step that takes the result, not {step!r}")
        fn = cast("Step[..., Any]", step).fn
        plain["undo"] = (StepAt(fn.__module__, fn.__qualname__), msgspec.to_builtins(given))
    return plain
