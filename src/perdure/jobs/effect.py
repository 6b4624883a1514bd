"""The ledger of effects: what a job did to the outside world, or may have done; pure.

An effect is recorded as INTENT before the first byte leaves, and then as what became of it. Only
DONE replaces the call: an attempt is not a result.

    INTENT ── DONE        it happened; its result is stored, and returned instead of a new call
       │ ├─── FAILED      it certainly did not happen; the next call has a new key
       │ └─── IN_DOUBT    nobody knows
       │          ├ DONE  … until the receiver is asked, or a person decides
       └──────────┴ FAILED

    DONE, IN_DOUBT ── UNDONE   its undo has run; the next call has a new key

    BORROWED   no call: the step got the result of another job's effect under a business key

An effect that is found as INTENT or IN_DOUBT is resolved before anything else is done about it
(`resolve`). Whether an error leaves it in doubt is decided by `state_after`.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import LIMITS, Codec, PayloadLimits, digest
from perdure.base.errors import IllegalTransition, PayloadTooLarge, Refused, Unstorable, safe_text
from perdure.base.secret import without_secrets
from perdure.jobs.policy import http_status, leaves

InDoubt: TypeAlias = Literal["replay", "ask"]
Choice: TypeAlias = Literal["happened", "did not happen", "compensate"]

# How long a receiver is assumed to remember a key.
KEY_TTL: Final = 24 * 3600.0
# A key may expire while the request is on its way, so it is not used near its end.
MARGIN_SHARE: Final = 0.1
LONGEST_MARGIN: Final = 60.0

# The proof of an effect in doubt whose repeated call was refused. Whether the first one was refused
# too, only the receiver or a person knows; another call would reveal nothing.
REFUSED_LATER: Final = "refused later"

# The proof of an effect whose owner was stopped before the call. The record may not exist, since
# another job may hold the key; then it is ignored.
NOT_CALLED: Final = "not called"

LONGEST_SUBSTITUTE: Final = 4096  # characters kept of a result that cannot be stored


class EffectState(StrEnum):
    """What is known about an effect."""

    INTENT = "INTENT"
    DONE = "DONE"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"
    UNDONE = "UNDONE"
    BORROWED = "BORROWED"


_E = EffectState

TRANSITIONS: Final[dict[EffectState, frozenset[EffectState]]] = {
    _E.INTENT: frozenset({_E.DONE, _E.FAILED, _E.IN_DOUBT}),
    _E.IN_DOUBT: frozenset({_E.DONE, _E.FAILED, _E.UNDONE}),
    _E.DONE: frozenset({_E.UNDONE}),
    _E.FAILED: frozenset(),
    _E.UNDONE: frozenset(),
    _E.BORROWED: frozenset(),
}

OPEN: Final = frozenset({_E.INTENT, _E.IN_DOUBT})
# It happened, or may have, so there may be something to undo.
HAPPENED: Final = frozenset({_E.DONE, *OPEN})
# What may be undone: nothing that is still under way.
UNDOABLE: Final = frozenset({_E.DONE, _E.IN_DOUBT})
# The key is used up: the next call belongs to a new generation.
_SPENT: Final = frozenset({_E.FAILED, _E.UNDONE})


# The place of an effect. After a failure, a crash or an answer, the code of a step starts again
# from its beginning or its last checkpoint. What it asks for then is the same effect as before if
# it asks for the same thing, after the same checkpoint, at the same item, with the same ordinal.
# Approvals and spendings inside a step are identified in the same way.


class Place(Struct, frozen=True):
    """Where the code of a step asks for something; the same each time the code runs.

    `part` says where the code was and what it asked for: "<checkpoint>:<item>:<what>".
    `ordinal` counts the requests with the same `part`, from 1.
    """

    step: str  # the identity of the step in its job: "send_mail#2"
    ordinal: int
    part: str = ""

    def spell(self, mark: str) -> str:
        """Return it as one short text, with `mark` after the step: "act#1?5bf1c8d2e90a7b34#1"."""
        return f"{self.step}{mark}{digest(self.part)[:16]}#{self.ordinal}"


def is_of_step(spelled: str, step: str) -> bool:
    """Whether the spelled place of a question is the gate of a step, or a place inside it."""
    return spelled == step or spelled.startswith((f"{step}?", f"{step}$"))


class UndoCall(Struct, frozen=True):
    """The step that undoes an effect; it takes the result, then the arguments in `given`."""

    step: str
    given: bytes = b"{}"


class Effect(Struct, frozen=True, kw_only=True):
    """One entry of the ledger.

    Attributes:
        job_id: The job that owns it; only that job undoes it.
        tenant: The tenant of that job.
        no: Its number in the ledger of the job; effects are undone in reverse order.
        place: Where in which step it happened.
        generation: Counts from 1; a new one starts after this one certainly did not happen,
            or was undone.
        key: The idempotency key that the receiver gets.
        kind: "email", "payment", …
        target: Who or what is acted upon.
        state: What is known about it.
        in_doubt: Whether the receiver may be called again with the same key.
        key_ttl: Seconds for which the receiver remembers a key.
        details: For people; redacted JSON.
        result: The result of the call, as JSON.
        problem: Why the result could not be stored; `result` is then only a description.
        error: What the call raised, as a packed `Failure`.
        undo: How to undo it, if the step itself does not.
        stays: The code says that it need not be undone (`undo=None`).
        proof: How its state is known: "answer", "query", or the person who decided; for a
            borrowed one, the job that did it.
        called_at: When the key was first used, on the store's clock.
        ended_at: When it reached its state.
        business: The name by which all jobs of the tenant find it, in any generation; None:
            only its own job does.
        kept_until: How long an effect with such a name outlives its job; None: for ever.
        last_called_at: When the key was last used, if that was recorded.
    """

    job_id: str
    tenant: str
    no: int
    place: Place
    key: str
    kind: str
    target: str
    called_at: float
    generation: int = 1
    state: EffectState = EffectState.INTENT
    in_doubt: InDoubt = "ask"
    key_ttl: float = KEY_TTL
    details: bytes | None = None
    result: bytes | None = None
    problem: str | None = None
    error: bytes | None = None
    undo: UndoCall | None = None
    stays: bool = False
    proof: str = ""
    ended_at: float | None = None
    business: str | None = None
    kept_until: float | None = None
    last_called_at: float | None = None

    def to(self, state: EffectState, at: float, **changes: Any) -> "Effect":
        """Return the effect in a new state.

        Raises:
            IllegalTransition: The outcome of this effect is already final.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"effect {self.no} of job {self.job_id} is {self.state}: it cannot become {state}"
            )
        return replace(self, state=state, ended_at=at, **changes)


def effect_key(tenant: str, job_id: str, place: Place, generation: int = 1) -> str:
    """Return the idempotency key of a call: the same at every attempt, and for no other call."""
    return digest(
        "effect", tenant, job_id, place.step, place.part, str(place.ordinal), str(generation)
    )


def business_of(tenant: str, kind: str, key: str) -> str:
    """Return the name of an effect that happens once across all jobs of a tenant."""
    return digest("business", tenant, kind, key)


def recorded_of(tenant: str, kind: str, key: str) -> str:
    """Return the name of an effect recorded by hand, once across all jobs of a tenant."""
    return digest("recorded", tenant, kind, key)


def business_key(business: str, generation: int = 1) -> str:
    """Return the idempotency key of an effect with a business name."""
    return digest("key", business, str(generation))


# What to do with an effect that an earlier attempt left.


class UseResult(Struct, frozen=True):
    """It happened: return the recorded result and call nobody."""


class CallAnew(Struct, frozen=True):
    """It did not happen, or was undone: call with the key of this generation, as a new line."""

    generation: int


class CallAgain(Struct, frozen=True):
    """Call with the same key: the receiver recognises it."""


class AskReceiver(Struct, frozen=True):
    """Ask the receiver, by the key, whether it happened."""


class AskPerson(Struct, frozen=True):
    """Only a person can find out; `why` says why the program cannot."""

    why: str


Resolution: TypeAlias = UseResult | CallAnew | CallAgain | AskReceiver | AskPerson


def resolve(effect: Effect, now: float, *, can_query: bool) -> Resolution:
    """Decide what to do with an effect that an earlier attempt or another worker left."""
    if effect.state is EffectState.DONE:
        return UseResult()
    if effect.state in _SPENT:
        return CallAnew(effect.generation + 1)
    return AskReceiver() if can_query else _replay_or_ask(effect, now)


def settles_at(effect: Effect, settle_after: float) -> float:
    """Return the time from which to query the receiver: before it, a call may be on its way."""
    return max(effect.called_at, effect.last_called_at or 0.0) + settle_after


def _replay_or_ask(effect: Effect, now: float) -> Resolution:
    if effect.proof == REFUSED_LATER:
        return AskPerson("a repeated call was refused, which proves nothing about the first one")
    if effect.in_doubt != "replay":
        return AskPerson("the receiver is not known to recognise a repeated call")
    margin = min(effect.key_ttl * MARGIN_SHARE, LONGEST_MARGIN)
    if now < effect.called_at + effect.key_ttl - margin:
        return CallAgain()
    return AskPerson("the receiver may have forgotten the key since the first call")


class Happened(Struct, frozen=True):
    """The answer of a `query`: the effect happened, with this result."""

    result: Any = None


class DidNotHappen(Struct, frozen=True):
    """The answer of a `query`: it did not happen, and no such call can still be on its way.

    If the receiver merely finds nothing, answer `Unknown`.
    """


class Unknown(Struct, frozen=True):
    """The answer of a `query`: the receiver does not know."""


QueryAnswer: TypeAlias = Happened | DidNotHappen | Unknown


def after_query(effect: Effect, answer: QueryAnswer, now: float) -> Resolution:
    """Decide what to do after the receiver was queried.

    After `DidNotHappen` the key stays the same: if a first call is on its way after all, a receiver
    that honours keys takes both for one. Only if the last call was refused does a new key make
    sense: calling again with the refused one would be of no use.
    """
    match answer:
        case Happened():
            return UseResult()
        case DidNotHappen() if effect.proof == REFUSED_LATER:
            return CallAnew(effect.generation + 1)
        case DidNotHappen():
            return CallAgain()
        case Unknown():
            return _replay_or_ask(effect, now)


def settled_by_person(
    effect: Effect, choice: Choice, person: str, at: float, result: bytes | None = None
) -> Effect:
    """Return the effect as a person has resolved it.

    Raises:
        IllegalTransition: It is not in doubt.
    """
    if effect.state not in OPEN:
        raise IllegalTransition(
            f"effect {effect.no} of job {effect.job_id} is {effect.state}, not in doubt"
        )
    match choice:
        case "happened":
            return effect.to(_E.DONE, at, result=result or b"null", proof=person)
        case "did not happen":
            return effect.to(_E.FAILED, at, proof=person)
        case "compensate":
            # It stays in doubt, and its undo sees that.
            return effect if effect.state is _E.IN_DOUBT else effect.to(_E.IN_DOUBT, at)


# Results are stored even where they cannot be encoded: the call has happened, so an error now would
# only make a retry repeat it.


class PackedResult(Struct, frozen=True):
    """A result as it is stored; with a `problem`, it is only a description."""

    data: bytes
    problem: str | None = None


def pack_result(value: Any, codec: Codec[Any], limits: PayloadLimits = LIMITS) -> PackedResult:
    """Return a result as JSON; this never raises."""
    try:
        return PackedResult(codec.encode(value, limits))
    except Unstorable as problem:
        kind = type(value).__name__
        text = without_secrets(safe_text(value))[:LONGEST_SUBSTITUTE].replace("\0", "\\0")
        text = text.encode("utf-8", "backslashreplace").decode()
        substitute = _SUBSTITUTE.encode({"type": kind, "text": text})
        return PackedResult(substitute, str(problem))


def unpack_result(effect: Effect, codec: Codec[Any]) -> Any:
    """Return the recorded result.

    Raises:
        Unstorable: The effect happened, but its result could not be stored; or it was too large
            for that (PayloadTooLarge).
        Drift: The stored result no longer fits the code.
    """
    if effect.problem is not None:
        kind = PayloadTooLarge if "`PayloadLimits." in effect.problem else Unstorable
        raise kind(
            f"the {effect.kind} to {effect.target} happened and is not repeated, but its result "
            f"could not be stored: {effect.problem}; let the call return less"
        )
    assert effect.result is not None
    return codec.decode(effect.result)


_SUBSTITUTE: Final = Codec[Any](dict[str, str], "the description of a result")

Query: TypeAlias = Callable[[str], Any]  # takes the key, returns (or is awaited for) a QueryAnswer


# What the error of a call says about its effect. Only two kinds of errors prove that nothing
# happened: the receiver refused the request, or the request never left. Every other error leaves
# the effect in doubt, even one in our own code after the response arrived. That is why an effect is
# *one* call: with two, the error of the second would be taken as proof about the first.

_REFUSED: Final = range(400, 500)
# Not proof: the receiver may be slow, still process this key, or have acted before it rate-limits.
_NOT_CERTAIN: Final = frozenset({408, 409, 425, 429})

# Errors that come before a request is written, by name: no client library is imported here.
_NEVER_SENT: Final = frozenset(
    {
        ("httpx", "ConnectError"),
        ("httpx", "ConnectTimeout"),
        ("httpx", "PoolTimeout"),
        ("httpx", "UnsupportedProtocol"),
        ("httpcore", "ConnectError"),
        ("httpcore", "ConnectTimeout"),
        ("httpcore", "PoolTimeout"),
        ("aiohttp", "ClientConnectorError"),
        ("aiosmtplib", "SMTPConnectError"),
        ("socket", "gaierror"),  # the host name cannot be resolved
    }
)


def state_after(error: BaseException, *, repeated: bool = False) -> EffectState:
    """Return the state of an effect whose call raised this: FAILED or IN_DOUBT.

    If the call was `repeated`, its error proves nothing about the first one, which may have
    happened although this one never left or was refused.
    """
    proved = not repeated and all(_proves_nothing_happened(each) for each in leaves(error))
    return EffectState.FAILED if proved else EffectState.IN_DOUBT


def is_refusal(error: BaseException) -> bool:
    """Whether the receiver refused the call, so that repeating it will not help."""
    each = list(leaves(error))
    return all(map(_proves_nothing_happened, each)) and any(map(_was_refused, each))


def _proves_nothing_happened(error: BaseException) -> bool:
    if _was_refused(error) or isinstance(error, ConnectionRefusedError):
        return True
    return any(_name(kind) in _NEVER_SENT for kind in type(error).__mro__)


def _was_refused(error: BaseException) -> bool:
    if isinstance(error, Refused):
        return True
    status = http_status(error)
    return status is not None and status in _REFUSED and status not in _NOT_CERTAIN


def _name(kind: type[Any]) -> tuple[str, str]:
    return kind.__module__.split(".")[0], kind.__name__
