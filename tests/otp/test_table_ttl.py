"""Rows that end by themselves."""

from typing import Any

import pytest

from perdure.otp.table import Kind, Table, make_rows
from perdure.process import sleep
from perdure.testing import simulated


@simulated
async def test_a_row_lives_as_long_as_the_table_says() -> None:
    table = Table(ttl="10s")
    table.insert("k", 1)
    await sleep("9.999s")
    assert table.lookup("k") == [1]
    await sleep("1ms")
    assert table.lookup("k") == []
    assert not table.member("k")
    assert table.items() == []
    assert table.size() == 0


@simulated
async def test_a_row_can_have_a_time_of_its_own() -> None:
    table = Table(ttl="10s")
    table.insert("short", 1, ttl="1s")
    table.insert("long", 2, ttl="1h")
    table.insert("usual", 3)
    await sleep("1s")
    assert [key for key, _ in table.items()] == ["long", "usual"]
    await sleep("9s")
    assert table.items() == [("long", 2)]
    await sleep("1h")
    assert table.items() == []


@simulated
async def test_in_a_table_without_a_time_only_rows_with_one_end() -> None:
    table = Table()
    table.insert("a", 1)
    table.insert("b", 2, ttl=5)
    await sleep("24h")
    assert table.items() == [("a", 1)]


@simulated
async def test_a_new_value_begins_a_new_time() -> None:
    table = Table(ttl="10s")
    table.insert("k", 1)
    await sleep("6s")
    table.insert("k", 2)
    await sleep("6s")
    assert table.lookup("k") == [2]
    await sleep("4s")
    assert table.lookup("k") == []


@simulated
async def test_a_value_that_replaces_one_with_an_end_may_live_for_ever() -> None:
    table = Table()
    table.insert("k", 1, ttl="1s")
    table.insert("k", 2)
    await sleep("1h")
    assert table.lookup("k") == [2]


@simulated
async def test_insert_new_takes_the_place_of_what_is_over() -> None:
    table = Table(ttl="1s")
    assert table.insert_new("k", 1)
    assert not table.insert_new("k", 2)
    await sleep("1s")
    assert table.insert_new("k", 3)
    assert table.lookup("k") == [3]


@simulated
async def test_what_is_over_cannot_be_taken() -> None:
    table = Table(ttl="1s")
    table.insert("k", 1)
    await sleep("1s")
    assert table.take("k") == []


@simulated
async def test_a_counter_keeps_its_time_and_begins_anew_after_it() -> None:
    table = Table(ttl="1m")
    for expected in (1, 2, 3):
        assert table.update_counter("hits") == expected
        await sleep("15s")
    await sleep("15s")
    assert table.update_counter("hits") == 1


@simulated
async def test_rows_of_a_bag_end_one_by_one() -> None:
    table = Table(kind="bag", ttl="10s")
    table.insert("k", 1)
    await sleep("5s")
    table.insert("k", 2)
    await sleep("5s")
    assert table.lookup("k") == [2]
    table.insert("k", 2)  # its time begins anew
    await sleep("9s")
    assert table.lookup("k") == [2]


@simulated
async def test_equal_rows_of_a_duplicate_bag_end_one_by_one() -> None:
    table = Table(kind="duplicate_bag", ttl="10s")
    table.insert("k", 1)
    await sleep("5s")
    table.insert("k", 1)
    await sleep("5s")
    assert table.lookup("k") == [1]


@simulated
async def test_an_ordered_set_stays_sorted_when_rows_end() -> None:
    table = Table(kind="ordered_set")
    for key in range(6):
        table.insert(key, None, ttl=10 if key % 2 else 1)
    await sleep(1)
    assert [key for key, _ in table.items()] == [1, 3, 5]


@simulated
async def test_a_time_of_zero_is_over_at_once() -> None:
    table = Table()
    table.insert("k", 1, ttl=0)
    assert table.lookup("k") == []


@pytest.mark.parametrize("ttl", [-1, "soon", True])
def test_a_bad_time_changes_nothing(ttl: Any) -> None:
    @simulated
    async def main() -> None:
        table = Table()
        with pytest.raises((ValueError, TypeError)):
            table.insert("k", 1, ttl=ttl)
        with pytest.raises((ValueError, TypeError)):
            table.insert_new("k", 1, ttl=ttl)
        assert table.items() == []

    main()


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_over_is_forgotten_at_the_next_write(kind: Kind) -> None:
    now = 0.0
    rows = make_rows(kind, lambda: now, 10)
    for key in range(1000):
        rows.insert(key, "a large value")
    now = 10.0
    rows.insert("new", 1)
    assert kept(rows) == (1, 1)


@pytest.mark.parametrize("kind", [Kind.SET, Kind.ORDERED_SET, Kind.BAG])
def test_a_row_that_is_renewed_again_and_again_does_not_grow_the_table(kind: Kind) -> None:
    rows = make_rows(kind, iter(range(1_000_000)).__next__, 1_000_000)
    for _ in range(10_000):
        rows.insert("k", "v")
    assert kept(rows)[1] < 100


def kept(rows: Any) -> tuple[int, int]:
    """Count what is held in memory, which no operation shows."""
    return len(rows._by_key), len(rows._ends)  # noqa: SLF001
