"""Going through items with crashes, changed lists and bad items in between."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.errors import Drift
from perdure.jobs.failure import Failure
from perdure.jobs.items import MAX_BAD_ITEMS, Cursor, ItemPolicy, ItemVerdict, SaveInterval, key_of

ERROR = Failure(type="ValueError", message="bad file")
SKIP = ItemPolicy(on_error="skip")
QUARANTINE = ItemPolicy(on_error="quarantine")


def work(cursor: Cursor, done: list[int], bad: Collection[int] = ()) -> ItemVerdict | None:
    """Goes through what is left, up to the first bad item."""
    for place in cursor.remaining():
        cursor.begin(place)
        if place in bad:
            return cursor.failed(ERROR)
        done.append(place)
        cursor.done(place)
    return None


def attempts(keys: list[str], policy: ItemPolicy, bad: set[int], checkpoint: Any = None) -> Any:
    """Makes attempts, each from the checkpoint of the last, until none is to follow."""
    done: list[int] = []
    while True:
        cursor = Cursor.start(keys, checkpoint, policy)
        verdict = work(cursor, done, bad)
        if verdict is not ItemVerdict.CONTINUE:
            return cursor, done, verdict
        checkpoint = cursor.checkpoint()


def test_all_items_are_worked_on_in_their_order() -> None:
    cursor, done, verdict = attempts(list("abc"), ItemPolicy(), set())
    assert (done, verdict) == ([0, 1, 2], None)
    assert cursor.finish().done == 3


def test_after_a_crash_only_what_was_not_saved_is_done_again() -> None:
    cursor = Cursor.start(list("abcd"))
    for place in cursor.remaining():
        cursor.begin(place)
        cursor.done(place)
        if place == 1:
            break
    saved = cursor.checkpoint()
    done: list[int] = []
    work(Cursor.start(list("abcd"), saved), done)
    assert done == [2, 3]


def test_a_list_that_has_grown_at_its_end_goes_on() -> None:
    cursor, *_ = attempts(list("ab"), ItemPolicy(), set())
    done: list[int] = []
    work(Cursor.start(list("abc"), cursor.checkpoint()), done)
    assert done == [2]


@pytest.mark.parametrize("changed", ["ba", "a", "xb", "axb", ""])
def test_a_list_that_has_changed_where_it_is_done_is_refused(changed: str) -> None:
    cursor, *_ = attempts(list("ab"), ItemPolicy(), set())
    with pytest.raises(Drift, match="the first 2 items are not the ones"):
        Cursor.start(list(changed), cursor.checkpoint())


@pytest.mark.parametrize("checkpoint", [{"processed": 3}, {}, 3, {"items": 1, "x": 2}, []])
def test_a_checkpoint_of_something_else_is_refused(checkpoint: Any) -> None:
    with pytest.raises(Drift, match=r"not one of `ctx.items`"):
        Cursor.start(list("ab"), checkpoint)


def test_a_bad_item_fails_the_step_and_is_tried_first_again() -> None:
    cursor, done, verdict = attempts(list("abc"), ItemPolicy(), {1})
    assert (done, verdict) == ([0], ItemVerdict.FAIL)
    again: list[int] = []
    work(Cursor.start(list("abc"), cursor.checkpoint()), again)
    assert again == [1, 2]


def test_a_bad_item_is_skipped_and_reported() -> None:
    cursor, done, verdict = attempts(list("abcd"), SKIP, {1, 3})
    report = cursor.finish()
    assert (done, verdict, report.done) == ([0, 2], None, 2)
    assert [(aside.key, aside.error) for aside in report.skipped] == [
        ("b", "ValueError: bad file"),
        ("d", "ValueError: bad file"),
    ]


def test_an_item_is_bad_only_after_its_tries() -> None:
    policy = ItemPolicy(on_error="skip", attempts=3)
    cursor = Cursor.start(list("ab"), None, policy)
    done: list[int] = []
    verdicts: list[ItemVerdict | None] = []
    for _ in range(3):
        verdicts.append(work(cursor, done, {0}))
        cursor = Cursor.start(list("ab"), cursor.checkpoint(), policy)
    assert verdicts == [ItemVerdict.AGAIN, ItemVerdict.AGAIN, ItemVerdict.CONTINUE]
    assert work(cursor, done, {0}) is None
    assert done == [1]


def test_a_permanent_error_needs_no_further_tries() -> None:
    cursor = Cursor.start(["a"], None, ItemPolicy(on_error="skip", attempts=3))
    cursor.begin(0)
    permanent = Failure(type="Permanent", message="", permanent=True)
    assert cursor.failed(permanent) is ItemVerdict.CONTINUE


def test_too_many_bad_items_fail_the_step() -> None:
    policy = ItemPolicy(on_error="skip", max_bad=2)
    _, done, verdict = attempts(list("abcdef"), policy, {0, 2, 4})
    assert (done, verdict) == ([1, 3], ItemVerdict.FAIL)
    many = [str(number) for number in range(MAX_BAD_ITEMS + 1)]
    everything = set(range(len(many)))
    patient = ItemPolicy(on_error="skip", max_bad=10**9)
    assert attempts(many, patient, everything)[2] is ItemVerdict.FAIL


def test_items_in_quarantine_are_all_that_a_later_retry_does() -> None:
    cursor, done, verdict = attempts(list("abcd"), QUARANTINE, {1, 2})
    report = cursor.finish()
    assert (done, verdict) == ([0, 3], None)
    assert [aside.key for aside in report.quarantined] == ["b", "c"]

    cursor, done, verdict = attempts(list("abcd"), QUARANTINE, {2}, cursor.checkpoint())
    assert (done, verdict) == ([1], None)
    assert [aside.key for aside in cursor.finish().quarantined] == ["c"]

    cursor, done, verdict = attempts(list("abcd"), QUARANTINE, set(), cursor.checkpoint())
    assert (done, cursor.finish().quarantined, cursor.report().done) == ([2], (), 4)


def test_a_crash_before_the_end_does_not_open_the_quarantine() -> None:
    cursor = Cursor.start(list("abc"), None, QUARANTINE)
    assert work(cursor, [], {0}) is ItemVerdict.CONTINUE
    done: list[int] = []
    work(Cursor.start(list("abc"), cursor.checkpoint(), QUARANTINE), done)
    assert done == [1, 2]


def test_an_error_between_items_is_no_items_error() -> None:
    cursor = Cursor.start(list("ab"), None, SKIP)
    assert cursor.failed(ERROR) is ItemVerdict.FAIL


@given(
    st.lists(st.text(max_size=3), max_size=8),
    st.sets(st.integers(0, 7)),
    st.sampled_from(["skip", "quarantine"]),
)
def test_every_item_is_done_once_or_reported(keys: list[str], bad: set[int], on_error: Any) -> None:
    cursor, done, verdict = attempts(keys, ItemPolicy(on_error=on_error), bad)
    report = cursor.finish()
    aside = [each.place for each in (*report.skipped, *report.quarantined)]
    assert verdict is None
    assert sorted(done + aside) == list(range(len(keys)))
    assert report.done == len(done)


def test_progress_is_saved_by_count_or_by_time() -> None:
    cadence = SaveInterval(every=3, after=30.0, now=0.0)
    assert [cadence.due(now) for now in (1, 2, 3)] == [False, False, True]
    assert [cadence.due(now) for now in (20, 33, 34)] == [False, True, False]
    with pytest.raises(ValueError, match="`every` must be 1 or more"):
        SaveInterval(0, 1.0, 0.0)


def test_an_item_is_known_by_itself_or_by_what_it_holds() -> None:
    assert (key_of("a"), key_of(3)) == ("a", 3)
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of(["a"]) != key_of(["b"])
