"""What the four kinds of table do with a second value under one key."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.otp.table import Kind, Table, make_rows
from perdure.testing import simulated


@simulated
async def test_a_set_replaces_the_value() -> None:
    table = Table(kind="set")
    table.insert("k", 1)
    table.insert("k", 2)
    assert table.lookup("k") == [2]
    assert table.size() == 1


@simulated
async def test_an_ordered_set_replaces_the_value_and_sorts_the_keys() -> None:
    table = Table(kind="ordered_set")
    for key in (3, 1, 2, 1):
        table.insert(key, f"value {key}")
    assert table.items() == [(1, "value 1"), (2, "value 2"), (3, "value 3")]
    table.delete(2)
    assert [key for key, _ in table.items()] == [1, 3]


@simulated
async def test_an_ordered_set_stays_sorted_whatever_comes_and_goes() -> None:
    table = Table(kind="ordered_set")
    keys = list(range(200))
    random.Random(7).shuffle(keys)
    for key in keys:
        table.insert(key, None)
    for key in keys[:100]:
        table.delete(key)
    assert [key for key, _ in table.items()] == sorted(keys[100:])


@simulated
async def test_keys_of_an_ordered_set_are_the_same_if_they_compare_as_equal() -> None:
    table = Table(kind="ordered_set")
    table.insert(1, "int")
    table.insert(1.0, "float")
    assert table.lookup(1) == ["float"]
    assert table.size() == 1


@simulated
async def test_keys_that_cannot_be_sorted_together_are_refused() -> None:
    table = Table(kind="ordered_set")
    table.insert(1, "int")
    with pytest.raises(TypeError):
        table.insert("text", "text")
    with pytest.raises(ValueError, match="equal to itself"):
        table.insert(float("nan"), "nan")
    assert table.items() == [(1, "int")]
    assert table.lookup("text") == []


@simulated
async def test_a_bag_keeps_different_values_once_each() -> None:
    table = Table(kind="bag")
    for value in (1, 2, 1, 3, 2):
        table.insert("k", value)
    assert table.lookup("k") == [1, 2, 3]
    assert table.size() == 3


@simulated
async def test_values_of_different_type_are_different_in_a_bag() -> None:
    table = Table(kind="bag")
    for value in (1, 1.0, True, [1], [1]):
        table.insert("k", value)
    assert [repr(value) for value in table.lookup("k")] == ["1", "1.0", "True", "[1]"]


@simulated
async def test_a_duplicate_bag_keeps_every_value() -> None:
    table = Table(kind="duplicate_bag")
    for value in (1, 2, 1):
        table.insert("k", value)
    assert table.lookup("k") == [1, 2, 1]
    assert table.items() == [("k", 1), ("k", 2), ("k", 1)]
    assert table.size() == 3


@pytest.mark.parametrize("kind", ["bag", "duplicate_bag"])
def test_take_and_delete_remove_all_values_of_a_key(kind: Any) -> None:
    @simulated
    async def main() -> None:
        table = Table(kind=kind)
        for key, value in (("a", 1), ("a", 2), ("b", 3)):
            table.insert(key, value)
        assert table.take("a") == [1, 2]
        table.delete("b")
        assert table.items() == []

    main()


@pytest.mark.parametrize("kind", list(Kind))
def test_insert_new_adds_only_where_the_key_has_no_value(kind: Kind) -> None:
    @simulated
    async def main() -> None:
        table = Table(kind=kind)
        assert table.insert_new("a", 1) is True
        assert table.insert_new("a", 2) is False
        assert table.lookup("a") == [1]

    main()


# Against the simplest model: a list of (key, value, end) in the order of writing.

KEYS = st.integers(0, 3)
WRITES = st.tuples(
    st.sampled_from(["insert", "remove", "wait"]),
    KEYS,
    st.integers(0, 2),
    st.one_of(st.none(), st.integers(1, 4)),
)
Item = tuple[int, int, float]


def model_insert(kind: Kind, items: list[Item], new: Item) -> list[Item]:
    key, value, _ = new
    match kind:
        case Kind.SET | Kind.ORDERED_SET:
            return [*(item for item in items if item[0] != key), new]
        case Kind.BAG if any(item[:2] == (key, value) for item in items):
            return [new if item[:2] == (key, value) else item for item in items]
        case _:
            return [*items, new]


@pytest.mark.parametrize("kind", list(Kind))
@given(writes=st.lists(WRITES, max_size=60))
def test_a_table_holds_what_a_simple_list_would(kind: Kind, writes: list[Any]) -> None:
    now, items = 0, list[Item]()
    rows = make_rows(kind, lambda: now, None)
    for verb, key, value, ttl in writes:
        match verb:
            case "insert":
                rows.insert(key, value, ttl)
                items = model_insert(kind, items, (key, value, now + (ttl or float("inf"))))
            case "remove":
                removed = [row.value for row in rows.remove(key)]
                assert removed == [item[1] for item in items if item[0] == key]
                items = [item for item in items if item[0] != key]
            case _:
                now += value
        items = [item for item in items if item[2] > now]
        for each in range(4):
            expected = [item[1] for item in items if item[0] == each]
            assert [row.value for row in rows.of(each)] == expected
        assert len(rows) == len(items)
        assert sorted((row.key, row.value) for row in rows.every()) == sorted(
            item[:2] for item in items
        )
