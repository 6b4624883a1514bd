"""Whose a table is, and what becomes of it when that process ends."""

from collections.abc import Callable
from typing import Any

import pytest

from perdure import process
from perdure.base.errors import NoTable
from perdure.errors import NoProcess, NotRegistered
from perdure.otp.table import Table
from perdure.process import Channel, Message, Pid
from perdure.testing import simulated
from tests.support.processes import crash, exit_of, give, others_rest, wait_forever


async def own(tables: Channel[Table], options: dict[str, Any], end: Callable[[], Any]) -> None:
    """Make a table with one row, send it, and end when it was received."""
    table = Table(**options)
    table.insert("k", "value")
    await tables.send(table)
    await end()


async def table_of_another(
    end: Callable[[], Any] = wait_forever, **options: Any
) -> tuple[Table, Pid]:
    tables = Channel[Table]()
    pid = process.spawn_monitored(own, tables, options, end)
    return await tables.receive(), pid


@simulated
async def test_who_makes_a_table_owns_it() -> None:
    assert Table().owner is process.self_pid()
    table, pid = await table_of_another()
    assert table.owner is pid


@pytest.mark.parametrize("end", [give, crash])
def test_a_table_is_gone_before_the_exit_of_its_owner_is_received(end: Callable[[], Any]) -> None:
    @simulated
    async def main() -> None:
        table, pid = await table_of_another(end, access="public")
        await exit_of(pid)
        for use in (table.lookup, table.delete, table.take, table.member):
            with pytest.raises(NoTable, match="gone"):
                use("k")
        assert "gone" in repr(table)

    main()


@simulated
async def test_the_tables_of_a_killed_process_are_gone() -> None:
    table, pid = await table_of_another()
    assert table.lookup("k") == ["value"]
    process.kill(pid)
    await exit_of(pid)
    with pytest.raises(NoTable):
        table.lookup("k")


@pytest.mark.parametrize("end", [give, crash])
def test_the_heir_gets_the_table_with_a_message(end: Callable[[], Any]) -> None:
    @simulated
    async def main() -> None:
        me = process.self_pid()
        table, pid = await table_of_another(end, heir=me)
        await exit_of(pid)
        assert table.owner is me
        assert await process.inbox().receive() == Message("table.transfer", table, pid)
        assert table.lookup("k") == ["value"]
        table.insert("k", "mine")  # it may write now

    main()


@simulated
async def test_the_heir_may_be_named() -> None:
    process.register("heir")
    table, pid = await table_of_another(give, heir="heir", name="kept")
    await exit_of(pid)
    assert (await process.inbox().receive()).payload is table
    assert Table.whereis("kept") is table


@simulated
async def test_an_heir_that_listens_to_the_topic_gets_the_table_there() -> None:
    transfers = process.listen("table.transfer")
    table, _ = await table_of_another(give, heir=process.self_pid())
    assert await transfers.receive() is table


@simulated
async def test_without_a_living_heir_the_table_is_gone() -> None:
    dead = process.spawn_monitored(give)
    await exit_of(dead)
    for heir in (dead, "nobody"):
        table, pid = await table_of_another(give, heir=heir)
        await exit_of(pid)
        with pytest.raises(NoTable):
            table.lookup("k")


@simulated
async def test_an_owner_that_is_its_own_heir_takes_the_table_with_it() -> None:
    async def owner() -> Table:
        return Table(heir=process.self_pid())

    pid = process.spawn_monitored(owner)
    table = (await exit_of(pid)).value
    with pytest.raises(NoTable):
        table.lookup("k")


@simulated
async def test_an_inherited_table_ends_with_the_heir_unless_there_is_a_new_one() -> None:
    second = process.spawn_monitored(wait_forever)
    table, first = await table_of_another(give, heir=second)
    await exit_of(first)
    assert table.owner is second
    process.kill(second)
    await exit_of(second)
    with pytest.raises(NoTable):
        table.lookup("k")


@simulated
async def test_the_heir_can_be_changed() -> None:
    table = Table(heir="nobody")
    heir = process.spawn(wait_forever)
    table.set_heir(heir)
    assert table.heir is heir
    table.set_heir(None)
    assert table.heir is None


@simulated
async def test_a_table_that_was_given_away_belongs_to_the_receiver() -> None:
    me = process.self_pid()

    async def receiver() -> list[Any]:
        message = await process.inbox().receive()
        assert (message.topic, message.sender) == ("table.transfer", me)
        message.payload.insert("k", "theirs")
        return message.payload.lookup("k")

    table = Table(access="private")
    pid = process.spawn_monitored(receiver)
    table.give_away(pid)
    with pytest.raises(Exception, match="owner"):
        table.lookup("k")
    assert (await exit_of(pid)).value == ["theirs"]
    with pytest.raises(NoTable):
        table.lookup("k")


@simulated
async def test_a_table_that_was_given_away_outlives_the_giver() -> None:
    async def giver(receiver: Pid) -> Table:
        table = Table()
        table.give_away(receiver)
        return table

    pid = process.spawn_monitored(giver, process.self_pid())
    table = (await exit_of(pid)).value
    assert table.owner is process.self_pid()
    table.insert("k", 1)


@simulated
async def test_a_table_cannot_be_given_to_a_dead_process() -> None:
    dead = process.spawn_monitored(give)
    await exit_of(dead)
    table = Table()
    with pytest.raises(NoProcess):
        table.give_away(dead)
    with pytest.raises(NotRegistered):
        table.give_away("nobody")
    with pytest.raises(TypeError):
        table.give_away(7)  # pyright: ignore[reportArgumentType]
    assert table.owner is process.self_pid()


@simulated
async def test_a_full_mailbox_of_the_heir_does_not_stop_the_inheritance() -> None:
    process.set_options(mailbox_limit=1)
    process.send(process.self_pid(), "fill")
    table, pid = await table_of_another(give, heir=process.self_pid())
    await exit_of(pid)
    assert table.owner is process.self_pid()


@simulated
async def test_a_table_that_changes_hands_a_thousand_times_leaves_one_hook_each() -> None:
    async def give_back() -> None:
        async for message in process.inbox():
            message.payload.give_away(message.sender)

    table = Table()
    pid = process.spawn(give_back)
    for _ in range(1000):
        table.give_away(pid)
        assert (await process.inbox().receive()).payload is table
    for owner in (pid, process.self_pid()):
        assert len(owner.target.relations.cleanups) == 1


@simulated
async def test_all_tables_of_an_owner_go_their_own_ways() -> None:
    me = process.self_pid()

    async def owner() -> list[Table]:
        return [Table(), Table(heir=me), Table(name="third")]

    pid = process.spawn_monitored(owner)
    tables = (await exit_of(pid)).value
    assert [table.gone for table in tables] == [True, False, True]
    await others_rest()
    assert (await process.inbox().receive()).payload is tables[1]
