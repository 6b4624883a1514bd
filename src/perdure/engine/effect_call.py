"""What the code of a step asks for, and what came of the call; the same in every OS process."""

from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any, Final, TypeAlias, TypedDict

from msgspec import Struct

from perdure.base.codec import Codec
from perdure.base.duration import Duration
from perdure.base.errors import DefinitionError
from perdure.jobs.definition import Step
from perdure.jobs.effect import (
    REFUSED_LATER,
    Answer,
    DidNotHappen,
    Effect,
    EffectState,
    Happened,
    InDoubt,
    Place,
    Query,
    Unknown,
)
from perdure.jobs.evidence import is_refusal, state_after
from perdure.jobs.failure import failure_of

Call: TypeAlias = Callable[[str], Any]

RESULT: Final = Codec[Any](Any, "the result of an effect")


class EffectOptions(TypedDict, total=False):
    """What may be said of an effect.

    `in_doubt`: "replay" if the receiver knows a repeated call by its key, else "ask" a person.
    `query`: asks the receiver, by the key, whether it happened.
    `settle_after`: how long after the last call the receiver is asked at the earliest; if not
        given, as long as the lease of the worker, or the step's `timeout` if that is longer.
    `key`: a business key: once in all jobs of the tenant.
    `key_lives`: how long the receiver knows a key.
    `key_kept`: how long a business key is kept at least when its job is deleted; else for ever.
    `undo`: the step that undoes it, which takes the result; or that step and more arguments.
        None, if it is said: it may stay when the job fails. Else a job whose effect nothing undoes
        ends as FAILED, and names it.
    `details`: for people; secrets and people's data are not kept.
    """

    in_doubt: InDoubt
    query: Query
    settle_after: Duration
    key: str
    key_lives: Duration
    key_kept: Duration
    undo: "Step[..., Any] | tuple[Step[..., Any], Mapping[str, Any]] | None"
    details: Any


class Asked(Struct, frozen=True):
    """An effect that the code asks for."""

    place: Place
    kind: str
    target: str


class Begun(Struct, frozen=True):
    """An effect that may be called now; or, if it is `settled`, must not be."""

    effect: Effect
    settled: bool = False
    repeated: bool = False  # it was called before, and perhaps that is still on its way


class Fault(Struct, frozen=True):
    """What the error of a call says about its effect."""

    state: EffectState
    error: bytes  # a packed `Failure`
    text: str
    proof: str
    asks: bool  # only a person can tell what became of it
    looks: bool  # the receiver can, and must be asked before anything else


def fault_of(begun: Begun, error: Exception, options: EffectOptions) -> Fault:
    """Judge the error of a call."""
    state, failure = state_after(error, repeated=begun.repeated), failure_of(error)
    refused_later = begun.repeated and is_refusal(error)
    may_repeat = options.get("in_doubt", "ask") == "replay" and not refused_later
    can_ask, is_doubt = options.get("query") is not None, state is EffectState.IN_DOUBT
    return Fault(
        state=state,
        error=failure.pack(),
        text=failure.summary(),
        proof=REFUSED_LATER if refused_later else "answer",
        asks=is_doubt and not can_ask and not may_repeat,
        looks=refused_later and can_ask,
    )


async def ask_receiver(query: Query, key: str) -> Answer:
    """Ask whether a call had its effect."""
    answer = query(key)
    if isawaitable(answer):
        answer = await answer
    if not isinstance(answer, Happened | DidNotHappen | Unknown):
        raise DefinitionError(
            f"a `query` gives Happened(result), DidNotHappen() or Unknown(), not {answer!r}"
        )
    return answer
