"""`perdure jobs show` says what a job may spend, has spent, and who has spent it."""

import pytest

from perdure.cli.jobs.formatting import describe_budget
from perdure.jobs.budget import Amount, Budget, BudgetLimits, reserve, settle


def spent(budget: Budget, job: str, *, left_open: bool = False, **amount: float) -> Budget:
    id = f"{job}/think#1$/{budget.no}"
    held = reserve(budget, id, Amount.of(**amount), 110.0)  # pyright: ignore[reportArgumentType]
    assert isinstance(held, Budget)
    return held if left_open else settle(held, id)


NEW = Budget(root="root", limits=BudgetLimits(usd=10, seconds=60), began_at=100.0)


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(root="root"), "nothing spent"),
        (NEW, "0 of 10 usd, 10.0s of 1m"),
        (spent(NEW, "root", usd=2.5), "2.5 of 10 usd, 10.0s of 1m"),
        (spent(NEW, "root", usd=1, tokens=4000), "1 of 10 usd, 4,000 tokens, 10.0s of 1m"),
        (
            spent(spent(NEW, "root", usd=1), "child", usd=2),
            "3 of 10 usd (2 by children and forks), 10.0s of 1m",
        ),
        (
            spent(spent(NEW, "root", usd=1), "child", usd=2, left_open=True),
            "3 of 10 usd (2 reserved, 2 by children and forks), 10.0s of 1m",
        ),
    ],
)
def test_a_budget_is_described_in_one_line(budget: Budget, text: str) -> None:
    assert describe_budget(budget, 110.0) == text
