"""The decisions of supervisors, without any process."""

import pytest

from perdure.base.restart import Intensity, Restart, RestartHistory, needs_restart
from perdure.errors import Killed, Shutdown
from perdure.otp.supervision.strategy import (
    AutoShutdown,
    Strategy,
    affected,
    affected_again,
    ends_supervisor,
)

IDS = ["a", "b", "c", "d"]
PLANNED = [None, Shutdown(), Shutdown("why")]
CRASHES = [ValueError("x"), Killed(), SystemExit(1)]


@pytest.mark.parametrize("reason", [*PLANNED, *CRASHES], ids=repr)
def test_a_permanent_child_is_always_restarted(reason: BaseException | None) -> None:
    assert needs_restart(Restart.PERMANENT, reason)


@pytest.mark.parametrize("reason", CRASHES, ids=repr)
def test_a_transient_child_that_failed_is_restarted(reason: BaseException) -> None:
    assert needs_restart(Restart.TRANSIENT, reason)


@pytest.mark.parametrize("reason", PLANNED, ids=repr)
def test_a_transient_child_whose_end_was_planned_is_not_restarted(
    reason: BaseException | None,
) -> None:
    assert not needs_restart(Restart.TRANSIENT, reason)


@pytest.mark.parametrize("reason", [*PLANNED, *CRASHES], ids=repr)
def test_a_temporary_child_is_never_restarted(reason: BaseException | None) -> None:
    assert not needs_restart(Restart.TEMPORARY, reason)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("one_for_one", "b"), ("one_for_all", "abcd"), ("rest_for_one", "bcd")],
)
def test_each_strategy_has_its_set_of_children(strategy: str, expected: str) -> None:
    assert affected(Strategy(strategy), IDS, "b") == list(expected)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("one_for_one", "c"), ("one_for_all", "cd"), ("rest_for_one", "cd")],
)
def test_a_try_again_begins_at_the_child_that_did_not_start(strategy: str, expected: str) -> None:
    assert affected_again(Strategy(strategy), IDS, "c") == list(expected)


def test_so_many_restarts_are_allowed_and_one_more_is_not() -> None:
    restarts = RestartHistory(Intensity(3, 5))
    verdicts = [restarts.record(now) for now in (0.0, 1.0, 2.0, 3.0)]
    assert verdicts == [False, False, False, True]


@pytest.mark.parametrize(("now", "too_many"), [(5.0, True), (5.01, False)])
def test_a_restart_counts_until_the_end_of_the_window(now: float, too_many: bool) -> None:
    restarts = RestartHistory(Intensity(1, 5))
    restarts.record(0.0)
    assert restarts.record(now) is too_many


def test_old_restarts_are_dropped() -> None:
    restarts = RestartHistory(Intensity(3, 5))
    for now in (0.0, 1.0, 6.0, 9.0):
        restarts.record(now)
    assert restarts.recent == 2


def test_with_none_allowed_the_first_restart_is_too_many() -> None:
    assert RestartHistory(Intensity(0, 5)).record(0.0)


def test_the_cost_of_a_restart_does_not_grow_with_those_before() -> None:
    restarts = RestartHistory(Intensity(200_000, "1h"))
    for now in range(200_000):  # with a copy of the history each time, this takes minutes
        assert not restarts.record(now / 1000)
    assert restarts.recent == 200_000


@pytest.mark.parametrize("bad", [-1, 1.5, "3", True, None])
def test_a_bad_number_of_restarts_is_refused(bad: object) -> None:
    with pytest.raises((ValueError, TypeError), match="max_restarts"):
        Intensity(bad, 5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("bad", [0, -1, "soon", None, float("nan")])
def test_a_bad_window_is_refused(bad: object) -> None:
    with pytest.raises((ValueError, TypeError), match="max_seconds"):
        Intensity(3, bad)  # pyright: ignore[reportArgumentType]


def test_the_window_may_be_written_as_text() -> None:
    assert Intensity(3, "1m").max_seconds == 60


@pytest.mark.parametrize(
    ("rule", "others_active", "expected"),
    [
        ("never", False, False),
        ("never", True, False),
        ("any_significant", True, True),
        ("any_significant", False, True),
        ("all_significant", True, False),
        ("all_significant", False, True),
    ],
)
def test_the_rule_of_auto_shutdown(rule: str, others_active: bool, expected: bool) -> None:
    assert ends_supervisor(AutoShutdown(rule), others_active=others_active) is expected
