import asyncio
import gc
import weakref

import pytest

from perdure import Settings, process
from perdure.errors import NoProcess
from perdure.process import Channel, Exit, LinkDown
from perdure.testing import simulated
from tests.support.processes import (
    Function,
    crash,
    end_of,
    exit_of,
    give,
    link_down_of,
    living,
    others_rest,
    wait_forever,
    waiting_events,
)


@simulated
async def test_the_exit_comes_after_the_cleanup_has_finished() -> None:
    steps: list[str] = []

    async def child() -> None:
        try:
            await crash()
        finally:
            await process.sleep("1s")
            steps.append("cleaned")

    pid = process.spawn_monitored(child)
    await exit_of(pid)
    steps.append("exit")
    assert steps == ["cleaned", "exit"]


@simulated
async def test_a_process_in_its_cleanup_is_still_alive_and_has_its_name() -> None:
    async def child() -> None:
        try:
            await wait_forever()
        finally:
            await process.sleep("1s")

    pid = process.spawn(child, name="worker")
    await others_rest()
    process.exit(ValueError("end"), pid)
    await others_rest()
    assert process.alive(pid)
    assert process.whereis("worker") is pid


@simulated
async def test_the_exit_comes_after_the_tasks_inside_have_stopped() -> None:
    steps: list[str] = []

    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            await process.sleep("1s")
            steps.append("inner stopped")

    async def child() -> None:
        task = asyncio.create_task(inner())
        await others_rest()
        del task

    pid = process.spawn_monitored(child)
    await exit_of(pid)
    assert steps == ["inner stopped"]


@pytest.mark.parametrize("function", [give, crash])
def test_everything_is_released_when_the_exit_is_received(function: Function) -> None:
    @simulated
    async def main() -> None:
        pid = process.spawn_monitored(function, name="worker")
        process.cancel(pid, "1h")  # arms a timer that death must disarm
        await exit_of(pid)
        assert not process.alive(pid)
        assert pid not in living()
        assert process.whereis("worker") is None
        assert process.send(pid, "topic") is False
        with pytest.raises(NoProcess):
            process.info(pid)

    main()


@simulated
async def test_everything_is_released_when_the_link_down_is_received() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(crash, name="worker")
    await link_down_of(pid)
    assert not process.alive(pid)
    assert pid not in living()
    assert process.whereis("worker") is None


@simulated
async def test_monitors_are_told_before_links() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(crash)
    process.monitor(pid)
    await others_rest()
    assert [type(event) for event in await waiting_events()] == [Exit, LinkDown]


@simulated
async def test_the_notices_are_there_when_a_joiner_goes_on() -> None:
    started = Channel[process.Pid](1)

    async def child() -> None:
        await started.send(process.self_pid())
        await process.inbox().receive()

    async def watch() -> None:
        pid = await started.receive()
        process.monitor(pid)
        process.send(pid, "end")

    watching = asyncio.create_task(watch())
    await process.run_process(child)
    assert len(await waiting_events()) == 1
    await watching


@simulated
async def test_exits_come_in_the_order_of_the_deaths() -> None:
    async def end_after(delay: str) -> None:
        await process.sleep(delay)

    slow = process.spawn_monitored(end_after, "3s")
    fast = process.spawn_monitored(end_after, "1s")
    middle = process.spawn_monitored(end_after, "2s")
    await process.sleep("4s")
    assert [event.sender for event in await waiting_events()] == [fast, middle, slow]


@simulated
async def test_a_failure_walks_down_the_whole_chain_of_links() -> None:
    pids: list[process.Pid] = []

    async def node(depth: int) -> None:
        pids.append(process.self_pid())
        if depth > 0:
            process.spawn_linked(node, depth - 1)
            await wait_forever()
        await process.inbox().receive()
        await crash()

    process.spawn(node, 50)
    await others_rest()
    assert len(pids) == 51
    process.send(pids[-1], "fail")
    await others_rest()
    assert not any(process.alive(pid) for pid in pids)


@simulated
async def test_each_of_a_chain_is_told_before_the_next_one_dies() -> None:
    """A victim still cleans up: who is linked to the victim dies only after that."""
    steps: list[str] = []

    async def first() -> None:
        try:
            process.spawn_linked(second)
            await wait_forever()
        finally:
            steps.append("first")

    async def second() -> None:
        try:
            process.spawn_linked(crash)
            await wait_forever()
        finally:
            await process.sleep("1s")
            steps.append("second")

    await end_of(first)
    assert steps == ["second", "first"]


@simulated
async def test_a_dead_watcher_leaves_no_monitor_behind() -> None:
    target = process.spawn(wait_forever)

    async def watcher() -> None:
        process.monitor(target)

    await end_of(watcher)
    assert process.info(target).monitored_by == ()


@simulated
async def test_a_dead_process_leaves_no_link_behind() -> None:
    target = process.spawn(wait_forever)

    async def peer() -> None:
        process.link(target)

    await end_of(peer)
    assert process.info(target).links == frozenset()


@simulated(settings=Settings(abandon_after="1s"))
async def test_an_abandoned_process_is_released_before_its_exit_is_sent() -> None:
    async def refuse() -> None:
        while True:
            try:
                await wait_forever()
            except asyncio.CancelledError:
                continue

    pid = process.spawn_monitored(refuse, name="refuser")
    await others_rest()
    process.kill(pid)
    await exit_of(pid)
    assert not process.alive(pid)
    assert pid not in living()
    assert process.whereis("refuser") is None


class Payload:
    """Something whose end can be seen."""


@simulated
async def test_a_kept_pid_keeps_neither_the_arguments_nor_the_messages_of_a_dead_process() -> None:
    argument, message = Payload(), Payload()
    seen = [weakref.ref(argument), weakref.ref(message)]

    async def child(_: Payload) -> None:
        await process.sleep("1s")

    pid = process.spawn_monitored(child, argument)
    process.send(pid, "payload", message)
    del argument, message
    await exit_of(pid)
    await others_rest()
    gc.collect()
    assert [reference() for reference in seen] == [None, None]
    assert not process.alive(pid)


@simulated
async def test_a_dead_process_leaves_no_armed_timer() -> None:
    async def sleeper() -> None:
        await process.sleep("1h")

    pid = process.spawn_monitored(sleeper)
    await others_rest()
    process.kill(pid)
    await exit_of(pid)
    # The test fails with `Leak` if the hour is still waited for.
