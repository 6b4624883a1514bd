import asyncio
from typing import Any

import pytest

from perdure import process
from perdure.errors import NoProcess, NotRegistered
from perdure.process import Info, State
from perdure.testing import simulated
from tests.support.processes import (
    Function,
    crash,
    end_of,
    exit_of,
    give,
    others_rest,
    trap_and_wait,
    wait_forever,
)


def me() -> Info:
    return process.info(process.self_pid())


# Who is there


@simulated
async def test_all_living_processes_are_listed_oldest_first() -> None:
    pids = [process.self_pid(), *(process.spawn(wait_forever) for _ in range(3))]
    assert [info.pid for info in process.processes()] == pids


@simulated
async def test_a_dead_process_is_no_longer_listed() -> None:
    await end_of(give)
    await end_of(crash)
    assert [info.pid for info in process.processes()] == [process.self_pid()]


@simulated
async def test_a_listing_is_a_picture_and_does_not_change() -> None:
    listed = process.processes()
    process.spawn(wait_forever)
    assert len(listed) == 1
    with pytest.raises(AttributeError):
        setattr(listed[0], "names", ("new",))  # noqa: B010 - a type checker refuses the plain one


# What is seen of one


@simulated
async def test_info_spells_the_call_that_started_the_process() -> None:
    pid = process.spawn(give, "a")
    assert process.info(pid).function == "tests.support.processes.give('a')"


@simulated
async def test_info_gives_all_names() -> None:
    pid = process.spawn(wait_forever, name="one")
    process.register("two", pid)
    assert process.info(pid).names == ("one", "two")


@simulated
async def test_info_gives_the_age() -> None:
    pid = process.spawn(wait_forever)
    await process.sleep("90s")
    assert process.info(pid).age == 90


@simulated
async def test_info_gives_parent_and_ancestors_nearest_first() -> None:
    seen: list[Info] = []

    async def descend(depth: int) -> None:
        if depth:
            process.spawn(descend, depth - 1)
            await wait_forever()
        seen.append(me())

    process.spawn(descend, 2)
    await others_rest()
    root, child, grandchild = (info.pid for info in process.processes())
    assert seen[0].parent is grandchild
    assert seen[0].ancestors == (grandchild, child, root)


@simulated
async def test_the_root_has_no_parent() -> None:
    assert me().parent is None
    assert me().ancestors == ()


@simulated
async def test_a_dead_parent_is_still_named() -> None:
    children: list[process.Pid] = []

    async def parent() -> process.Pid:
        children.append(process.spawn(wait_forever))
        return process.self_pid()

    pid = (await end_of(parent)).value
    assert process.info(children[0]).parent is pid
    assert process.info(children[0]).ancestors[0] is pid


@simulated
async def test_info_gives_links_from_both_sides() -> None:
    pid = process.spawn_linked(wait_forever)
    assert me().links == {pid}
    assert process.info(pid).links == {process.self_pid()}


@simulated
async def test_info_gives_monitors_from_both_sides() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.monitor(pid)
    assert me().monitors == (pid, pid)
    assert process.info(pid).monitored_by == (process.self_pid(), process.self_pid())


@simulated
async def test_info_counts_everything_that_waits_to_be_received() -> None:
    pid = process.spawn(wait_forever)
    process.send(pid, "a")
    process.send(pid, "b")
    process.cancel(pid)
    assert process.info(pid).mailbox == 3


@simulated
async def test_info_counts_messages_of_listeners_too() -> None:
    process.listen("topic")
    process.send(process.self_pid(), "topic")
    process.send(process.self_pid(), "other")
    assert me().mailbox == 2


@simulated
async def test_info_counts_the_tasks_inside() -> None:
    tasks = [asyncio.create_task(wait_forever()) for _ in range(2)]
    assert me().tasks == 2
    tasks[0].cancel()
    await others_rest()
    assert me().tasks == 1


@simulated
async def test_info_tells_whether_links_are_trapped() -> None:
    pid = process.spawn(trap_and_wait)
    assert process.info(pid).trap_links is False
    await others_rest()
    assert process.info(pid).trap_links is True


@simulated
async def test_the_process_that_asks_is_running() -> None:
    assert me().state is State.RUNNING


async def wait_for_asyncio() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("function", "state"), [(wait_forever, State.PARKED), (wait_for_asyncio, State.WAITING)]
)
def test_info_tells_what_a_process_waits_for(function: Function, state: State) -> None:
    @simulated
    async def main() -> None:
        pid = process.spawn(function)
        assert process.info(pid).state is State.READY
        await others_rest()
        assert process.info(pid).state is state

    main()


@simulated
async def test_a_process_whose_tasks_are_being_stopped_is_ending() -> None:
    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            await process.sleep("1s")

    async def child() -> None:
        task = asyncio.create_task(inner())
        await others_rest()
        del task

    pid = process.spawn_monitored(child)
    await process.sleep("500ms")
    assert process.info(pid).state is State.ENDING
    await exit_of(pid)


@simulated
async def test_the_stack_shows_where_a_process_stands_outermost_first() -> None:
    async def deep() -> None:
        await wait_forever()

    async def child() -> None:
        await deep()

    pid = process.spawn(child)
    await others_rest()
    places = [line.rsplit(" in ", 1) for line in process.info(pid).stack]
    assert [name for _, name in places][:3] == ["child", "deep", "wait_forever"]
    assert "test_introspection.py:" in places[0][0]


@simulated
async def test_an_argument_whose_repr_raises_does_not_break_a_picture() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise ValueError("no")

    pid = process.spawn(give, Rude())
    assert "raised ValueError" in process.info(pid).function


@simulated
async def test_a_long_argument_is_cut() -> None:
    pid = process.spawn(give, "x" * 10_000)
    assert len(process.info(pid).function) < 200


@simulated
async def test_debugging_tools_of_asyncio_show_the_pid() -> None:
    task: Any = asyncio.current_task()
    assert task.get_name() == str(process.self_pid())


# Refused


@simulated
async def test_nothing_is_to_be_seen_of_the_dead() -> None:
    pid = process.spawn_monitored(give)
    await exit_of(pid)
    with pytest.raises(NoProcess, match="cannot look at it"):
        process.info(pid)
    with pytest.raises(NotRegistered):
        process.info("nobody")
