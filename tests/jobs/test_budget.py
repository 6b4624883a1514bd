from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.errors import DefinitionError
from perdure.jobs.budget import (
    Amount,
    Budget,
    BudgetLimits,
    Exceeded,
    exceeds,
    grant,
    release,
    reserve,
    settle,
)

GRANTED = Budget(limits=BudgetLimits(usd=1.0, tokens=1000, calls=3, seconds=60.0), began_at=100.0)


def reserved(budget: Budget, id: str, **amount: Any) -> Budget:
    result = reserve(budget, id, Amount.of(**amount), 100.0)
    assert isinstance(result, Budget), result
    return result


@pytest.mark.parametrize(
    ("amount", "now", "kind"),
    [
        ({"usd": 1.01}, 100.0, "usd"),
        ({"tokens": 1001}, 100.0, "tokens"),
        ({"calls": 4}, 100.0, "calls"),
        ({}, 160.1, "seconds"),
    ],
)
def test_each_limit_stands_in_the_way(amount: dict[str, Any], now: float, kind: str) -> None:
    result = reserve(GRANTED, "s#1", Amount.of(**amount), now)
    assert isinstance(result, Exceeded)
    assert result.kind == kind


def test_the_limit_itself_may_be_reached() -> None:
    full = Amount.of(usd=1.0, tokens=1000, calls=3)
    assert exceeds(GRANTED, full, 160.0) is None


def test_what_is_reserved_cannot_be_spent_twice() -> None:
    held = reserved(GRANTED, "s#1", usd=0.6)
    assert isinstance(reserve(held, "s#2", Amount.of(usd=0.6), 100.0), Exceeded)
    settled = settle(held, "s#1", Amount.of(usd=0.1))
    assert reserved(settled, "s#2", usd=0.6).gone.usd == 0.7


def test_what_a_crash_leaves_reserved_counts_as_spent_and_is_not_counted_twice() -> None:
    held = reserved(GRANTED, "s#1", usd=0.6)
    again = reserved(held, "s#1", usd=0.6)
    assert again.gone.usd == 0.6
    assert settle(again, "s#1").spent.usd == 0.6


def test_what_was_certainly_not_spent_is_given_back() -> None:
    assert release(reserved(GRANTED, "s#1", usd=0.6), "s#1").gone == Amount()


def test_more_than_was_reserved_is_taken_as_it_is() -> None:
    over = settle(reserved(GRANTED, "s#1", usd=0.5), "s#1", Amount.of(usd=3.0))
    assert over.spent.usd == 3.0
    assert isinstance(reserve(over, "s#2", Amount(), 100.0), Exceeded)


def test_a_higher_limit_lets_the_job_go_on() -> None:
    full = settle(reserved(GRANTED, "s#1", usd=1.0), "s#1")
    more = grant(full, BudgetLimits(usd=2.0))
    assert more.limits == BudgetLimits(usd=2.0, tokens=1000, calls=3, seconds=60.0)
    assert reserved(more, "s#2", usd=1.0).gone.usd == 2.0


def test_a_limit_is_never_lowered_by_a_grant() -> None:
    assert grant(GRANTED, BudgetLimits(usd=0.5)).limits.usd == 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, True, "1"])
@pytest.mark.parametrize("name", ["usd", "tokens", "calls"])
def test_what_is_no_amount_is_refused(name: str, bad: Any) -> None:
    with pytest.raises(DefinitionError, match=name):
        Amount.of(**{name: bad})
    with pytest.raises(DefinitionError, match=name):
        BudgetLimits(**{name: bad})


def test_half_a_token_is_refused() -> None:
    with pytest.raises(DefinitionError, match="whole number"):
        Amount.of(tokens=0.5)  # pyright: ignore[reportArgumentType]


def test_dollars_add_up_exactly() -> None:
    total = sum((Amount.of(usd=0.1) for _ in range(10)), Amount())
    assert total == Amount.of(usd=1.0)
    assert Amount.of(usd=0.1) + Amount.of(usd=0.2) == Amount.of(usd=0.3)


def test_less_than_a_millionth_is_not_free() -> None:
    assert Amount.of(usd=0.000_000_4).micro_usd == 1


spends = st.lists(st.tuples(st.floats(0, 0.5), st.floats(0, 1)), max_size=20)


@given(spends)
def test_what_was_reserved_never_goes_over_the_limit(spends: list[tuple[float, float]]) -> None:
    budget = GRANTED
    for number, (amount, share) in enumerate(spends):
        result = reserve(budget, str(number), Amount.of(usd=amount), 100.0)
        if isinstance(result, Exceeded):
            continue
        assert result.gone.usd <= 1.0
        budget = settle(result, str(number), Amount.of(usd=amount * share))
        assert budget.gone.micro_usd <= result.gone.micro_usd
