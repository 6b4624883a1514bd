"""A table: what can be put in and taken out, by whom."""

from collections.abc import Callable
from typing import Any

import pytest

from perdure import process
from perdure.base.errors import NoTable
from perdure.errors import NameTaken, NotInProcess, NotOwner
from perdure.otp.table import Table
from perdure.process import sleep
from perdure.testing import simulated
from tests.support.processes import end_of, exit_of


async def run(function: Callable[[], Any]) -> Any:
    """Call a function in another process."""

    async def other() -> Any:
        return function()

    result = await end_of(other)
    if result.error is not None:
        raise result.error
    return result.value


@simulated
async def test_what_was_inserted_is_found() -> None:
    table = Table()
    table.insert("apple", 3)
    assert table.lookup("apple") == [3]
    assert table.get("apple") == 3
    assert table.member("apple")
    assert "apple" in table


@simulated
async def test_an_unknown_key_has_no_values() -> None:
    table = Table()
    assert table.lookup("apple") == []
    assert table.get("apple") is None
    assert table.get("apple", 0) == 0
    assert not table.member("apple")
    assert table.take("apple") == []
    table.delete("apple")


@simulated
async def test_insert_new_does_not_touch_what_is_there() -> None:
    table = Table()
    assert table.insert_new("apple", 3) is True
    assert table.insert_new("apple", 4) is False
    assert table.lookup("apple") == [3]


@simulated
async def test_delete_removes_a_key() -> None:
    table = Table()
    table.insert("apple", 3)
    table.insert("pear", 4)
    table.delete("apple")
    assert table.items() == [("pear", 4)]


@simulated
async def test_take_removes_a_key_and_gives_what_was_there() -> None:
    table = Table()
    table.insert("apple", 3)
    assert table.take("apple") == [3]
    assert table.take("apple") == []
    assert table.size() == len(table) == 0


@simulated
async def test_an_empty_table_is_true_all_the_same() -> None:
    table = Table()
    assert table
    table.insert("apple", 3)
    table.clear()
    assert table.items() == []


@simulated
async def test_none_is_a_value_like_any_other() -> None:
    table = Table()
    table.insert("apple", None)
    assert table.lookup("apple") == [None]
    assert table.insert_new("apple", 1) is False


@simulated
async def test_select_gives_what_fits() -> None:
    table = Table()
    for key, value in (("a", 1), ("b", 2), ("c", 3)):
        table.insert(key, value)
    assert table.select(lambda key, value: key == "a" or value == 3) == [("a", 1), ("c", 3)]


@simulated
async def test_keys_of_equal_value_but_different_type_are_different() -> None:
    table = Table()
    for key in (1, 1.0, True, (1,), (1.0,)):
        table.insert(key, repr(key))
    assert [table.get(key) for key in (1, 1.0, True, (1,), (1.0,))] == [
        "1",
        "1.0",
        "True",
        "(1,)",
        "(1.0,)",
    ]
    table.delete(True)
    assert table.get(1) == "1"


@simulated
async def test_a_table_may_change_while_its_items_are_read() -> None:
    table = Table()
    for number in range(10):
        table.insert(number, number)
    for number, value in table.items():
        table.delete(number)
        assert value == number
    assert table.size() == 0


# Counters


@simulated
async def test_a_counter_begins_at_zero() -> None:
    table = Table()
    assert table.update_counter("hits") == 1
    assert table.update_counter("hits", 5) == 6
    assert table.update_counter("hits", -6) == 0
    assert table.update_counter("other", 1, default=10) == 11
    assert table.lookup("hits") == [0]


@simulated
async def test_counts_of_many_processes_are_all_there() -> None:
    table = Table(access="public")

    async def count() -> None:
        for _ in range(10):
            table.update_counter("hits")
            await sleep(0)

    pids = [process.spawn_monitored(count) for _ in range(20)]
    for _ in pids:
        await process.events().receive()
    assert table.lookup("hits") == [200]


@pytest.mark.parametrize("value", ["text", 1.5, True, None])
def test_what_is_no_whole_number_cannot_be_counted(value: object) -> None:
    @simulated
    async def main() -> None:
        table = Table()
        table.insert("k", value)
        with pytest.raises(TypeError, match="whole number"):
            table.update_counter("k")
        with pytest.raises(TypeError, match="whole number"):
            table.update_counter("new", value)  # pyright: ignore[reportArgumentType]
        assert table.items() == [("k", value)]

    main()


@pytest.mark.parametrize("kind", ["bag", "duplicate_bag"])
def test_a_bag_has_no_counters(kind: Any) -> None:
    @simulated
    async def main() -> None:
        with pytest.raises(TypeError, match="one value"):
            Table(kind=kind).update_counter("hits")

    main()


# TableAccess


READS: dict[str, Callable[[Table], Any]] = {
    "lookup": lambda table: table.lookup("k"),
    "get": lambda table: table.get("k"),
    "member": lambda table: table.member("k"),
    "items": lambda table: table.items(),
    "select": lambda table: table.select(lambda _key, _value: True),
    "size": lambda table: table.size(),
    "len": len,
}
WRITES: dict[str, Callable[[Table], Any]] = {
    "insert": lambda table: table.insert("k", 2),
    "insert_new": lambda table: table.insert_new("new", 2),
    "delete": lambda table: table.delete("k"),
    "take": lambda table: table.take("k"),
    "clear": lambda table: table.clear(),
    "update_counter": lambda table: table.update_counter("k"),
}
OWNERS_ONLY: dict[str, Callable[[Table], Any]] = {
    "give_away": lambda table: table.give_away(process.self_pid()),
    "set_heir": lambda table: table.set_heir(process.self_pid()),
    "drop": lambda table: table.drop(),
}


@pytest.mark.parametrize("operation", READS.values(), ids=READS)
def test_everybody_but_in_a_private_table_may_read(operation: Callable[[Table], Any]) -> None:
    @simulated
    async def main() -> None:
        for access in ("protected", "public"):
            table = Table(access=access)
            table.insert("k", 1)
            assert await run(lambda table=table: operation(table)) is not None
        private = Table(access="private")
        private.insert("k", 1)
        assert operation(private) is not None
        with pytest.raises(NotOwner, match="read"):
            await run(lambda: operation(private))

    main()


@pytest.mark.parametrize("operation", WRITES.values(), ids=WRITES)
def test_everybody_may_write_only_to_a_public_table(operation: Callable[[Table], Any]) -> None:
    @simulated
    async def main() -> None:
        public = Table(access="public")
        public.insert("k", 1)
        await run(lambda: operation(public))
        assert public.items() != [("k", 1)]
        for access in ("protected", "private"):
            table = Table(access=access)
            table.insert("k", 1)
            with pytest.raises(NotOwner, match="write"):
                await run(lambda table=table: operation(table))
            assert table.items() == [("k", 1)]
            operation(table)

    main()


@pytest.mark.parametrize("operation", OWNERS_ONLY.values(), ids=OWNERS_ONLY)
def test_only_the_owner_disposes_even_of_a_public_table(operation: Callable[[Table], Any]) -> None:
    @simulated
    async def main() -> None:
        table = Table(access="public")
        with pytest.raises(NotOwner):
            await run(lambda: operation(table))
        assert table.owner is process.self_pid()

    main()


# Names


@simulated
async def test_a_named_table_is_found_and_used_by_its_name() -> None:
    table = Table(name="prices", access="public")
    assert Table.whereis("prices") is table
    Table.insert("prices", "apple", 3)
    assert await run(lambda: Table.lookup("prices", "apple")) == [3]
    assert Table.insert_new("prices", "apple", 4) is False
    assert Table.update_counter("prices", "apple") == 4
    assert Table.member("prices", "apple")
    assert Table.items("prices") == [("apple", 4)]
    assert Table.take("prices", "apple") == [4]
    assert Table.size("prices") == 0


@simulated
async def test_the_name_of_a_table_is_taken_by_one() -> None:
    Table(name="prices")
    with pytest.raises(NameTaken, match="prices") as caught:
        Table(name="prices")
    assert caught.value.pid is process.self_pid()


@simulated
async def test_names_of_tables_and_of_processes_do_not_meet() -> None:
    process.register("prices")
    assert Table.whereis("prices") is None
    Table(name="prices")


@simulated
async def test_an_unknown_name_is_no_table() -> None:
    assert Table.whereis("prices") is None
    with pytest.raises(NoTable, match="prices"):
        Table.lookup("prices", "apple")


@simulated
async def test_a_deleted_table_is_gone_and_its_name_is_free() -> None:
    table = Table(name="prices")
    table.insert("apple", 3)
    table.drop()
    with pytest.raises(NoTable, match="prices"):
        table.lookup("apple")
    assert Table(name="prices").items() == []


@simulated
async def test_names_are_free_before_the_exit_of_the_owner_is_received() -> None:
    async def owner() -> None:
        Table(name="prices")

    pid = process.spawn_monitored(owner)
    await exit_of(pid)
    assert Table.whereis("prices") is None
    Table(name="prices")


# Mistakes


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "list"},
        {"access": "secret"},
        {"name": ""},
        {"name": 7},
        {"heir": 7},
        {"ttl": "soon"},
        {"ttl": -1},
    ],
)
def test_bad_options_make_no_table(options: dict[str, Any]) -> None:
    @simulated
    async def main() -> None:
        with pytest.raises((ValueError, TypeError)):
            Table(**options)
        Table(name="n")

    main()


@simulated
async def test_a_key_that_cannot_be_hashed_is_refused() -> None:
    table = Table()
    with pytest.raises(TypeError):
        table.insert(["a"], 1)  # pyright: ignore[reportArgumentType]
    assert table.size() == 0


def test_a_table_is_made_inside_a_process() -> None:
    with pytest.raises(NotInProcess):
        Table()
