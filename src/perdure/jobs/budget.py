"""What a job and all its children may spend; pure.

An amount is reserved before a call and settled after it. Each time that the code of a step comes by
counts: at every attempt, and behind every checkpoint. What a crash leaves reserved counts as spent,
since nobody knows; when its job ends, it is settled so.
At a limit nothing is spent: the job asks a person to raise it.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final, Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.errors import DefinitionError
from perdure.jobs.effect import Place
from perdure.jobs.risk import check_number

N = TypeVar("N", int, float)

MICRO: Final = 1_000_000  # cents have fractions where tokens are sold

BudgetKind: TypeAlias = Literal["usd", "tokens", "calls", "seconds"]


class Amount(Struct, frozen=True, kw_only=True):
    """Some of each kind. USD are whole millionths, so that sums are exact."""

    micro_usd: int = 0
    tokens: int = 0
    calls: int = 0

    @classmethod
    def of(cls, usd: float = 0.0, tokens: int = 0, calls: int = 0) -> "Amount":
        """Make an amount of what people write; fractions of a millionth count as a whole one.

        Raises:
            DefinitionError: One is negative, infinite, or no number.
        """
        check_number(usd, "`usd`")
        for name, number in (("tokens", tokens), ("calls", calls)):
            if check_number(number, f"`{name}`") != int(number):
                raise DefinitionError(f"`{name}` must be a whole number, not {number!r}")
        return cls(micro_usd=to_micro(usd), tokens=int(tokens), calls=int(calls))

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            micro_usd=self.micro_usd + other.micro_usd,
            tokens=self.tokens + other.tokens,
            calls=self.calls + other.calls,
        )

    @property
    def usd(self) -> float:
        """The dollars."""
        return self.micro_usd / MICRO


def to_micro(usd: float) -> int:
    """Give dollars as millionths, rounded up where a float is not exact."""
    scaled = usd * MICRO
    near = round(scaled)
    # 0.1 + 0.2 is a hair more than 0.3, and no millionth more.
    return near if math.isclose(scaled, near, rel_tol=1e-9, abs_tol=1e-6) else math.ceil(scaled)


class Reservation(Struct, frozen=True, kw_only=True):
    """A wish to set an amount aside, of whoever owns a job."""

    job_id: str
    owner: str
    epoch: int
    root_id: str  # of which budget
    id: str
    amount: Amount


def spending_id(job_id: str, place: Place, once: str) -> str:
    """Make the identity of a spending: of one time that the code of a step comes by a place."""
    return f"{job_id}/{place.spell('$')}/{once}"


class BudgetLimits(Struct, frozen=True, kw_only=True):
    """The most that may be spent; None: no limit.

    Raises:
        DefinitionError: One is negative, infinite, or no number.
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None  # from the start of the first job

    def __post_init__(self) -> None:
        for name in ("usd", "tokens", "calls", "seconds"):
            check_number(getattr(self, name), f"the limit `{name}`")

    def raised(self, by: "BudgetLimits") -> "BudgetLimits":
        """Give higher limits; a kind that `by` does not name stays as it is."""
        return BudgetLimits(
            usd=_higher(self.usd, by.usd),
            tokens=_higher(self.tokens, by.tokens),
            calls=_higher(self.calls, by.calls),
            seconds=_higher(self.seconds, by.seconds),
        )


def _higher(one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return one
    return max(one, other)


class Budget(Struct, frozen=True, kw_only=True):
    """What was granted to a tree of jobs, and what is gone.

    Attributes:
        limits: The most that may be spent.
        spent: What is settled.
        reserved: What is under way, by the identity of who spends it.
        began_at: When the first job began, by the store's clock.
        no: Grows with every change.
    """

    limits: BudgetLimits = BudgetLimits()
    spent: Amount = Amount()
    reserved: Mapping[str, Amount] = {}
    began_at: float = 0.0
    no: int = 0

    @property
    def gone(self) -> Amount:
        """All that cannot be spent any more."""
        return sum(self.reserved.values(), self.spent)


class Exceeded(Struct, frozen=True):
    """The limit that stands in the way."""

    kind: BudgetKind
    limit: float
    wanted: float  # in all, with what is gone

    def once_more(self, amount: Amount) -> "Exceeded":
        """Give it with an amount that will be spent again until then."""
        more = {"usd": amount.usd, "tokens": amount.tokens, "calls": amount.calls}
        return Exceeded(self.kind, self.limit, self.wanted + more.get(self.kind, 0))

    def __str__(self) -> str:
        return f"{self.wanted:g} {self.kind} are needed in all, and {self.limit:g} are granted"


def exceeds(budget: Budget, more: Amount, now: float) -> Exceeded | None:
    """Tell which limit would be exceeded by spending more; None: none."""
    total, limits = budget.gone + more, budget.limits
    if limits.usd is not None and total.micro_usd > to_micro(limits.usd):
        return Exceeded("usd", limits.usd, total.usd)
    if limits.tokens is not None and total.tokens > limits.tokens:
        return Exceeded("tokens", limits.tokens, total.tokens)
    if limits.calls is not None and total.calls > limits.calls:
        return Exceeded("calls", limits.calls, total.calls)
    passed = now - budget.began_at
    if limits.seconds is not None and passed > limits.seconds:
        return Exceeded("seconds", limits.seconds, passed)
    return None


def reserve(budget: Budget, id: str, amount: Amount, now: float) -> Budget | Exceeded:
    """Set an amount aside before it is spent; the same identity again replaces its amount."""
    others = {each: held for each, held in budget.reserved.items() if each != id}
    without = replace(budget, reserved=others)
    found = exceeds(without, amount, now)
    if found is not None:
        return found
    return replace(budget, reserved={**others, id: amount}, no=budget.no + 1)


def settle(budget: Budget, id: str, actual: Amount | None = None) -> Budget:
    """Say what was really spent; None: as much as was reserved.

    More than was reserved is taken as it is: it is gone, and the next reservation will see it.
    """
    held = budget.reserved.get(id, Amount())
    others = {each: amount for each, amount in budget.reserved.items() if each != id}
    spent = budget.spent + (held if actual is None else actual)
    return replace(budget, reserved=others, spent=spent, no=budget.no + 1)


def settle_all(budget: Budget, job_ids: Collection[str]) -> Budget:
    """Settle what jobs that have ended left open: as spent, since nobody knows."""
    for id in budget.reserved:
        if id.partition("/")[0] in job_ids:
            budget = settle(budget, id)
    return budget


def release(budget: Budget, id: str) -> Budget:
    """Give a reserved amount back: it was certainly not spent."""
    return settle(budget, id, Amount())


def grant(budget: Budget, limits: BudgetLimits) -> Budget:
    """Raise the limits."""
    return replace(budget, limits=budget.limits.raised(limits), no=budget.no + 1)


class BudgetRef(Struct, frozen=True):
    """Which budget a job spends from: that of the first job of its tree."""

    root: str
    new: Budget  # as it is before anything was spent
