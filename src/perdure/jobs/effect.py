"""The ledger of effects: what a job did to the world, or may have done; pure.

An effect is written down as INTENT before the first byte leaves, and afterwards as what became
of it. Only DONE answers for the call: an attempt is not a deed.

    INTENT ── DONE        it happened; its result is kept, and given again instead of a call
       │ ├─── FAILED      it certainly did not happen; the next call has a new key
       │ └─── IN_DOUBT    nobody knows
       │          ├ DONE  … until the receiver is asked, or a person says it
       └──────────┴ FAILED

    DONE, IN_DOUBT ── UNDONE   its undo has run: the next call has a new key

    BORROWED   no call: the step was given the result of another's effect under a business key

What is found as INTENT or IN_DOUBT is resolved before anything else is done about it.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import LIMITS, Codec, PayloadLimits, digest
from perdure.base.errors import IllegalTransition, Refused, Unstorable, safe_text
from perdure.base.secret import without_secrets
from perdure.jobs.items import is_of_items
from perdure.jobs.policy import http_status, leaves

# Which effect, question or spending of a step it is; pure.
#
# The code of a step is begun again after a failure, a crash or an answer, from its start or from
# its
# last checkpoint. What it asks for then is the same as before if it asks for the same thing from
# the
# same checkpoint, at the same item, as the same of its like: so each has its place.


class Place(Struct, frozen=True):
    """Where the code of a step asks for something, the same whenever it is begun again.

    `part` says where the code was, and for what it asks: "<checkpoint>:<item>:<what>";
    `ordinal` counts what is asked for in that part from 1.
    """

    step: str  # the identity of the step in its job: "send_mail#2"
    ordinal: int
    part: str = ""

    @property
    def likeness(self) -> tuple[str, str]:
        """What it has in common with its like, on whichever side of a checkpoint."""
        return self.step, self.part.partition(":")[2]

    def spell(self, mark: str) -> str:
        """Give it as one short text: "act#1?5bf1c8d2e90a7b34#1", with this mark behind the step."""
        return f"{self.step}{mark}{digest(self.part)[:16]}#{self.ordinal}"


def is_of_step(spelled: str, step: str) -> bool:
    """Tell whether a question belongs to a step: to its gate, or to a place in it."""
    return spelled == step or spelled.startswith((f"{step}?", f"{step}$"))


class Places:
    """Allots the places in one run of a step's code."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}  # how often each part came by

    def allot(self, step: str, checkpoint: int, item: str, what: str) -> Place:
        """Give the place of what is asked for next."""
        part = f"{checkpoint}:{item}:{what}"
        ordinal = self._asked[part] = self._asked.get(part, 0) + 1
        return Place(step, ordinal, part)


def own_checkpoint(checkpoint: bytes | None, number: int) -> int:
    """Give the number of the checkpoint that the code goes on from; 0: from its beginning.

    Those of `ctx.items` are not the code's own: what it asks for is known by the item.
    """
    return 0 if checkpoint is None or is_of_items(checkpoint) else number


InDoubt: TypeAlias = Literal["replay", "ask"]
Choice: TypeAlias = Literal["happened", "did not happen", "compensate"]

# A receiver that does not say how long it knows a key is trusted for a day.
KEY_TTL: Final = 24 * 3600.0
# A key may die on the way: near its end it is not used any more.
MARGIN_SHARE: Final = 0.1
LONGEST_MARGIN: Final = 60.0

# The proof of a line in doubt whose repeated call was turned away: whether the first one was, too,
# only the receiver or a person can tell. To call once more would tell nothing new.
REFUSED_LATER: Final = "refused later"

# The proof of a line whose writer was ended before it called. Whether the line is there is not
# certain: somebody else may have the key, and then this is passed over.
NOT_CALLED: Final = "not called"

LONGEST_SUBSTITUTE: Final = 4096  # characters kept of a result that cannot be stored


class EffectState(StrEnum):
    """What is known of an effect."""

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
# What there is to undo: it happened, or may have.
HAPPENED: Final = frozenset({_E.DONE, *OPEN})
# What an undo may undo: nothing that is under way.
UNDOABLE: Final = frozenset({_E.DONE, _E.IN_DOUBT})
# The key of such a line is used up: the next call is of a new generation.
_SPENT: Final = frozenset({_E.FAILED, _E.UNDONE})


class UndoCall(Struct, frozen=True):
    """The step that undoes an effect: it takes the result, then what is given here by name."""

    step: str
    given: bytes = b"{}"


class Effect(Struct, frozen=True, kw_only=True):
    """One line of the ledger.

    Attributes:
        job_id: Whose it is; nobody else's undo touches it.
        tenant: The tenant of that job.
        no: Its place in the ledger of the job: effects are undone in the reverse order.
        place: Which effect of which step.
        generation: Counts from 1; the next one begins when this one certainly did not happen,
            or was undone.
        key: What the receiver gets, in order to know the call again.
        kind: "email", "payment", …
        target: Who or what is acted upon; it tells one effect from another.
        state: What is known of it.
        in_doubt: Whether the receiver may be called again with the same key.
        key_ttl: Seconds for which the receiver knows a key.
        details: For people; JSON, redacted.
        result: What the call gave, as JSON.
        problem: Why the result could not be stored; `result` is then a mere description.
        error: What the call raised, as a packed `Failure`.
        undo: How to undo it, if the step itself does not.
        stays: The code says that nothing need undo it (`undo=None`).
        proof: How it is known what became of it: "answer", "query", or who said so; of what is
            borrowed, the job that did it.
        called_at: When the key was first used, by the store's clock.
        ended_at: When it became what it is.
        business: By which all jobs of the tenant find it, whatever its generation; None: only
            its own job does.
        kept_until: How long such a line outlives its job; None: for ever.
        last_called_at: When the key was last used, if that was noted; else when it was first.
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
        """Give the line as it stands after a change of its state.

        Raises:
            IllegalTransition: The ledger has the last word on this effect already.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"effect {self.no} of job {self.job_id} is {self.state}: it cannot become {state}"
            )
        return replace(self, state=state, ended_at=at, **changes)


# Keys


def effect_key(tenant: str, job_id: str, place: Place, generation: int = 1) -> str:
    """Make the key of a call: the same at every attempt and after every crash, and nowhere else."""
    return digest(
        "effect", tenant, job_id, place.step, place.part, str(place.ordinal), str(generation)
    )


def business_of(tenant: str, kind: str, key: str) -> str:
    """Name what is to happen once in all jobs of a tenant."""
    return digest("business", tenant, kind, key)


def recorded_of(tenant: str, kind: str, key: str) -> str:
    """Name what is recorded by hand, once in all jobs of a tenant."""
    return digest("recorded", tenant, kind, key)


def business_key(business: str, generation: int = 1) -> str:
    """Make the key of a call, or of a record, from the name that all jobs know it by."""
    return digest("key", business, str(generation))


# What to do with a line that is found


class UseResult(Struct, frozen=True):
    """It happened: give the recorded result, call nobody."""


class CallAnew(Struct, frozen=True):
    """It did not happen, or was undone: call with the key of this generation, as a new line."""

    generation: int


class CallAgain(Struct, frozen=True):
    """Call with the same key: the receiver knows it."""


class AskReceiver(Struct, frozen=True):
    """Ask the receiver, by the key, whether it happened."""


class AskPerson(Struct, frozen=True):
    """Only a person can find out; `why` says what the program could not."""

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
    """Tell from when on the receiver can be asked: before, a call may still be under way to it."""
    return max(effect.called_at, effect.last_called_at or 0.0) + settle_after


def _replay_or_ask(effect: Effect, now: float) -> Resolution:
    if effect.proof == REFUSED_LATER:
        return AskPerson("a repeated call was refused, which says nothing about the first one")
    if effect.in_doubt != "replay":
        return AskPerson("the receiver is not known to tell a repeated call from a new one")
    margin = min(effect.key_ttl * MARGIN_SHARE, LONGEST_MARGIN)
    if now < effect.called_at + effect.key_ttl - margin:
        return CallAgain()
    return AskPerson("the receiver may have forgotten the key since the first call")


# What a receiver may answer


class Happened(Struct, frozen=True):
    """The answer of a `query`: it did, with this result."""

    result: Any = None


class DidNotHappen(Struct, frozen=True):
    """The answer of a `query`: it did not, and it is certain that no such call is under way.

    A receiver that merely finds nothing must answer `Unknown`.
    """


class Unknown(Struct, frozen=True):
    """The answer of a `query`: the receiver cannot tell."""


QueryAnswer: TypeAlias = Happened | DidNotHappen | Unknown


def after_query(effect: Effect, answer: QueryAnswer, now: float) -> Resolution:
    """Decide what to do when the receiver was asked.

    After "it did not" the key stays the same: if a first call is still on its way after all,
    a receiver that knows keys takes both for one. Only if the last call was refused is it certain
    of all of them, and no use to call with that key again.
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
    """Give the line as a person has settled it.

    Raises:
        IllegalTransition: There is no doubt about it (any more).
    """
    if effect.state not in OPEN:
        raise IllegalTransition(
            f"effect {effect.no} of job {effect.job_id} is {effect.state}: nothing is in doubt"
        )
    match choice:
        case "happened":
            return effect.to(_E.DONE, at, result=result or b"null", proof=person)
        case "did not happen":
            return effect.to(_E.FAILED, at, proof=person)
        case "compensate":
            # It stays in doubt, and its undo is told so.
            return effect if effect.state is _E.IN_DOUBT else effect.to(_E.IN_DOUBT, at)


# Results


class PackedResult(Struct, frozen=True):
    """A result as it is stored; `problem` says why it is only a description of it."""

    data: bytes
    problem: str | None = None


def pack_result(value: Any, codec: Codec[Any], limits: PayloadLimits = LIMITS) -> PackedResult:
    """Give a result as JSON. This never fails, since what it is the result of has happened."""
    try:
        return PackedResult(codec.encode(value, limits))
    except Unstorable as problem:
        kind = type(value).__name__
        text = without_secrets(safe_text(value))[:LONGEST_SUBSTITUTE].replace("\0", "\\0")
        text = text.encode("utf-8", "backslashreplace").decode()
        substitute = _SUBSTITUTE.encode({"type": kind, "text": text})
        return PackedResult(substitute, str(problem))


def unpack_result(effect: Effect, codec: Codec[Any]) -> Any:
    """Give the recorded result, exactly.

    Raises:
        Unstorable: The effect has happened, and its result could not be stored.
        Drift: The code does not take what was stored any more.
    """
    if effect.problem is not None:
        raise Unstorable(
            f"the {effect.kind} to {effect.target} has happened and is not repeated, but its "
            f"result could not be stored: {effect.problem}; let the call return less"
        )
    assert effect.result is not None
    return codec.decode(effect.result)


_SUBSTITUTE: Final = Codec[Any](dict[str, str], "the description of a result")

Query: TypeAlias = Callable[[str], Any]  # takes the key, gives (or is awaited for) an Answer


# What an error of a call says about whether the call has had its effect; pure.
#
# Only two kinds of errors prove that nothing happened: the receiver refused the request, or the
# request never left. Everything else leaves it in doubt, also an error of our own code
# after the answer came. So an effect is *one* call: with two, the error of the second
# would be taken for proof about the first.

_REFUSED: Final = range(400, 500)
# The receiver may have acted: it waited too long, has this key in hand, or counts it as too much.
_NOT_CERTAIN: Final = frozenset({408, 409, 425, 429})

# Names, since no client library is needed here: these errors come before a request is written.
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
        ("socket", "gaierror"),  # the name of the receiver has no address
    }
)


def state_after(error: BaseException, *, repeated: bool = False) -> EffectState:
    """Tell what is known of an effect whose call raised this: FAILED or IN_DOUBT.

    If the call was `repeated`, what became of this one proves nothing about the one before:
    that it never left, or met a door that was closed meanwhile.
    """
    proved = not repeated and all(_proves_nothing_happened(each) for each in leaves(error))
    return EffectState.FAILED if proved else EffectState.IN_DOUBT


def is_refusal(error: BaseException) -> bool:
    """Tell whether the receiver has turned the call away: to repeat it will not help."""
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
