"""OS workers die under load."""

import pytest

import perdure
from tests.programmes.chaos import chaos


@pytest.mark.timeout(300)
def test_workers_that_die_under_load_are_told_of_once_and_leave_nothing() -> None:
    report = perdure.run(chaos, 8)
    assert report.told == 8 * 24
    assert report.calls > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_workers_die_under_load(seed: int) -> None:
    report = perdure.run(chaos, 200, seed)
    assert report.told == 200 * 24
