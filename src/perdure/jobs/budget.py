"""What a job and all its children may spend; pure.

An amount is reserved before a call and settled after it. Every execution counts: each attempt, and
each repetition after a checkpoint. What a timeout or a crash leaves reserved counts as spent, since
nobody knows whether it was, and is settled as such when the code reaches the same place again, or
when the job ends. At a limit nothing is spent: the job asks a person to raise it.
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

MICRO: Final = 1_000_000  # tokens are sold for fractions of a cent

BudgetKind: TypeAlias = Literal["usd", "tokens", "calls", "seconds"]


class Amount(Struct, frozen=True, kw_only=True):
    """An amount of each kind. USD are counted in whole millionths, so that sums are exact."""

    micro_usd: int = 0
    tokens: int = 0
    calls: int = 0

    @classmethod
    def of(cls, usd: float = 0.0, tokens: int = 0, calls: int = 0) -> "Amount":
        """Make an amount from what people write; fractions of a millionth are rounded up.

        Raises:
            DefinitionError: A value is negative, infinite, or not a number.
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
        """The amount in dollars."""
        return self.micro_usd / MICRO


def to_micro(usd: float) -> int:
    """Return dollars in millionths, rounded up."""
    scaled = usd * MICRO
    near = round(scaled)
    # 0.1 + 0.2 is slightly more than 0.3, but not by a millionth: do not round that up.
    return near if math.isclose(scaled, near, rel_tol=1e-9, abs_tol=1e-6) else math.ceil(scaled)


class ModelUsage(Struct, frozen=True, kw_only=True):
    """What a model call has used, for traces; `Spending.settle` counts its tokens.

    Attributes:
        model: The name of the model, as the provider spells it.
        input_tokens: Tokens that were sent, with those of the provider's cache.
        output_tokens: Tokens that came back.
        provider: Whose model it is: "openai", "anthropic".
        cache_read_tokens: How many of the input tokens came from the provider's cache.
        cache_write_tokens: How many of them were written to it.
        answered_by: The model that answered, if that is not what was asked for.
        agent: The agent that called it.
        finish_reason: Why the answer ends: "stop", "length", "tool_call".
    """

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    provider: str = ""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    answered_by: str = ""
    agent: str = ""
    finish_reason: str = ""

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.input_tokens + self.output_tokens


class Reservation(Struct, frozen=True, kw_only=True):
    """A request by the owner of a job to reserve part of a budget."""

    job_id: str
    owner: str
    epoch: int
    root_id: str  # the job whose budget it is
    id: str
    amount: Amount


def spending_id(job_id: str, place: Place, once: str) -> str:
    """Return the identity of a spending: one execution of one place in the code of a step."""
    return f"{job_id}/{place.spell('$')}/{once}"


def job_of(id: str) -> str:
    """Return the job of a spending."""
    return id.partition("/")[0]


def _place_of(id: str) -> str:
    return id.rpartition("/")[0]


class BudgetLimits(Struct, frozen=True, kw_only=True):
    """The most that may be spent; None means no limit.

    Raises:
        DefinitionError: A value is negative, infinite, or not a number.
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None  # from the start of the first job

    def __post_init__(self) -> None:
        for name in ("usd", "tokens", "calls", "seconds"):
            check_number(getattr(self, name), f"the limit `{name}`")

    @property
    def ends_loops(self) -> bool:
        """Whether an agent that never stops would reach a limit by its calls."""
        return not (self.usd is None and self.tokens is None and self.calls is None)

    def raised(self, by: "BudgetLimits") -> "BudgetLimits":
        """Return the higher of both limits; a kind that `by` does not name stays as it is."""
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
    """What was granted to a tree of jobs, and what is spent.

    Attributes:
        root: The job that it was granted to; its children and forks spend from it too.
        limits: The most that may be spent.
        spent: What is settled.
        spent_by_others: What of that children and forks have spent, not the job itself.
        reserved: What is being spent now, by the identity of the spending.
        began_at: When the first job began, on the store's clock.
        no: The version; every change increases it.
    """

    root: str = ""
    limits: BudgetLimits = BudgetLimits()
    spent: Amount = Amount()
    spent_by_others: Amount = Amount()
    reserved: Mapping[str, Amount] = {}
    began_at: float = 0.0
    no: int = 0

    @property
    def gone(self) -> Amount:
        """What is spent or reserved."""
        return sum(self.reserved.values(), self.spent)

    @property
    def gone_by_others(self) -> Amount:
        """What of that children and forks have spent or reserved, not the job itself."""
        held = (amount for id, amount in self.reserved.items() if job_of(id) != self.root)
        return sum(held, self.spent_by_others)


class Exceeded(Struct, frozen=True):
    """The limit that would be exceeded."""

    kind: BudgetKind
    limit: float
    wanted: float  # the total, including what is gone

    def once_more(self, amount: Amount) -> "Exceeded":
        """Return it with an amount added that will be spent again by then."""
        more = {"usd": amount.usd, "tokens": amount.tokens, "calls": amount.calls}
        return Exceeded(self.kind, self.limit, self.wanted + more.get(self.kind, 0))

    def __str__(self) -> str:
        return (
            f"{self.wanted:g} {self.kind} are needed in total, but only {self.limit:g} are granted"
        )


def exceeds(budget: Budget, more: Amount, now: float) -> Exceeded | None:
    """Return the limit that spending more would exceed; None if there is none."""
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
    """Reserve an amount before it is spent; reserving under the same identity replaces it."""
    found = exceeds(_without(budget, id), amount, now)
    return _hold(budget, id, amount) if found is None else found


def spend(budget: Budget, id: str, reserved: Amount | None, settled: Amount | None) -> Budget:
    """Record what was reserved, whatever the limits, and what was settled; None: nothing was."""
    if reserved is not None:
        budget = _hold(budget, id, reserved)
    if settled is None or id not in budget.reserved:  # it is settled already
        return budget
    return settle(budget, id, settled)


def _hold(budget: Budget, id: str, amount: Amount) -> Budget:
    without = _without(budget, id)
    return replace(without, reserved={**without.reserved, id: amount}, no=budget.no + 1)


def _without(budget: Budget, id: str) -> Budget:
    others = {each: held for each, held in budget.reserved.items() if each != id}
    return _settle_earlier(replace(budget, reserved=others), id)


def _settle_earlier(budget: Budget, id: str) -> Budget:
    """Settle what earlier executions of a place left reserved, so that it does not pile up."""
    place = _place_of(id)
    for earlier in budget.reserved if place else ():
        if _place_of(earlier) == place:
            budget = settle(budget, earlier)
    return budget


def settle(budget: Budget, id: str, actual: Amount | None = None) -> Budget:
    """Record what was spent in the end; None: as much as was reserved.

    More than was reserved is recorded as it is: it is spent, and the next reservation sees it.
    """
    held = budget.reserved.get(id, Amount())
    others = {each: amount for each, amount in budget.reserved.items() if each != id}
    cost = held if actual is None else actual
    by_others = budget.spent_by_others
    return replace(
        budget,
        reserved=others,
        spent=budget.spent + cost,
        spent_by_others=by_others if job_of(id) == budget.root else by_others + cost,
        no=budget.no + 1,
    )


def settle_all(budget: Budget, job_ids: Collection[str]) -> Budget:
    """Settle what ended jobs left reserved: as spent, since nobody knows."""
    for id in budget.reserved:
        if job_of(id) in job_ids:
            budget = settle(budget, id)
    return budget


def release(budget: Budget, id: str) -> Budget:
    """Return a reserved amount to the budget: it was certainly not spent."""
    return settle(budget, id, Amount())


def grant(budget: Budget, limits: BudgetLimits) -> Budget:
    """Raise the limits."""
    return replace(budget, limits=budget.limits.raised(limits), no=budget.no + 1)


class BudgetRef(Struct, frozen=True):
    """Which budget a job spends from: that of the first job of its tree."""

    root: str
    new: Budget  # as it is before anything was spent
    limits: BudgetLimits  # of which each may be raised; none is ever added or removed

    @property
    def is_limited(self) -> bool:
        """Whether spending may exceed a limit, so that the store must be asked first."""
        return self.limits != BudgetLimits()
