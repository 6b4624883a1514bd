"""`perdure demo`: its worker is really killed, and what it says comes from what really ran."""

import json
from pathlib import Path

import pytest

from perdure.cli.demo.command import conclusion, is_good
from perdure.cli.demo.harness import FakeService, ServiceRequest
from perdure.cli.demo.migration import (
    BATCHES,
    CHECKPOINT_EVERY,
    CUSTOMERS,
    PAGES,
    Note,
    done,
    examine,
    has_begun,
)
from perdure.cli.demo.scenarios import DONE, PEOPLE, UNDONE, count_lost
from tests.support.cli import CommandLine


def steps(phase: str, numbers: range, worker: int = 1) -> list[Note]:
    return [Note(what, phase, number, worker) for number in numbers for what in ("begin", "end")]


def items(numbers: range, worker: int = 1) -> list[Note]:
    return [Note("item", "convert", number, worker) for number in numbers]


def undisturbed() -> list[Note]:
    convert = [
        Note("begin", "convert", 0, 1),
        *items(range(CUSTOMERS)),
        Note("end", "convert", 0, 1),
    ]
    return [*steps("extract", range(PAGES)), *convert, *steps("load", range(BATCHES))]


@pytest.mark.once
@pytest.mark.timeout(150)
def test_workers_are_killed_nine_times_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    shown = CommandLine(tmp_path).program("demo", "--once", "--json", "--pace", 0.5)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.count("kill -9") == 9
    counted = json.loads(shown.stdout.splitlines()[-1])
    assert counted["jobs"] == {"COMPLETED": 3, "COMPENSATED": 1}
    assert counted["steps"] == PAGES + 1 + BATCHES + 1 + 3 + 1
    assert (counted["kills"], counted["effects"]) == (9, BATCHES + len(PEOPLE) + 4 + 1)
    assert (counted["lost"], counted["duplicates"]) == (0, 0)
    assert counted["requests_repeated"] >= 3  # one in each of the first three scenarios
    assert counted["items_again"] <= 2 * CHECKPOINT_EVERY
    assert (counted["mails"], counted["mails_twice"]) == (len(PEOPLE), 0)
    assert counted["undone"] == list(UNDONE)
    assert counted["approved_by"] == "ann"
    for told in ("mail to Lea  │ DONE", "↶ refund 40 USD", "refused (four eyes)", "ann approves"):
        assert told in shown.stdout
    assert shown.stderr == ""


def test_an_undisturbed_run_has_nothing_twice() -> None:
    found = examine(undisturbed())

    assert found.steps == PAGES + 1 + BATCHES
    assert (found.missing_steps, found.missing_items) == (0, 0)
    assert (found.steps_again, found.finished_again, found.items_again) == (0, 0, 0)


def test_what_did_not_run_is_missed() -> None:
    without = [note for note in undisturbed() if note.number != 3]

    found = examine(without)

    assert (found.missing_steps, found.missing_items) == (2, 1)


def test_an_interrupted_step_may_run_again_and_a_finished_one_may_not() -> None:
    interrupted = [*steps("extract", range(2)), Note("begin", "extract", 2, 1)]
    honest = [*interrupted, *steps("extract", range(2, PAGES), 2)]
    forgetful = [*interrupted, *steps("extract", range(PAGES), 2)]

    assert (examine(honest).steps_again, examine(honest).finished_again) == (1, 0)
    assert (examine(forgetful).steps_again, examine(forgetful).finished_again) == (1, 2)


def test_items_may_run_again_since_the_last_checkpoint_and_not_before() -> None:
    first = items(range(60))

    honest = examine([*first, *items(range(50, CUSTOMERS), 2)])
    forgetful = examine([*first, *items(range(CUSTOMERS), 2)])

    assert (honest.items_again, honest.too_many_items) == (10, 0)
    assert (forgetful.items_again, forgetful.too_many_items) == (60, 60 - CHECKPOINT_EVERY)


def test_the_bars_count_each_thing_once() -> None:
    told = [*steps("extract", range(3)), *items(range(5)), *items(range(2, 7), 2)]

    assert done(told) == {"extract": 3, "convert": 7}
    assert has_begun(told, 2)
    assert not has_begun([Note("begin", "convert", 0, 3)], 3)


def test_whatever_is_lost_or_doubled_is_bad() -> None:
    assert is_good({"lost": 0, "duplicates": 0})
    assert not is_good({"lost": 1, "duplicates": 0})
    assert not is_good({"lost": 0, "duplicates": 1})


def test_what_is_bad_is_said_to_be() -> None:
    bad = {"lost": 2, "duplicates": 1}

    assert conclusion(bad).plain == "2 lost, 1 duplicated: this must not happen."


def test_the_service_takes_a_key_once_and_sees_rows_that_come_under_two_keys() -> None:
    service = FakeService()
    for request in (
        ServiceRequest("a", "one", [1, 2]),
        ServiceRequest("a", "one", [1, 2]),
        ServiceRequest("b", "two", [2]),
    ):
        service.take(request)

    assert (service.done, service.repeated) == (["one", "two"], 1)
    assert service.rows == {1: 1, 2: 2}


def test_an_undo_that_is_missing_or_in_the_wrong_order_is_bad() -> None:
    right = [*DONE, *UNDONE]

    assert count_lost(right) == count_lost([*right, UNDONE[0]]) == 0  # twice is counted elsewhere
    assert count_lost(right[:-1]) == 1
    assert count_lost([*DONE, *reversed(UNDONE)]) == 1
