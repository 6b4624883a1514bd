"""Monitors: one-way, one EXIT for each, and none after unmonitor."""

import pytest

from perdure import process
from perdure.errors import Killed, NoProcess, NotRegistered, Shutdown
from perdure.process import Event, Exit, ExitResult, LinkDown, Pid, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import (
    INTERRUPTS,
    Interrupt,
    crash,
    dead,
    drain,
    exit_of,
    give,
    now,
    others_rest,
    shut_down,
    wait_forever,
)

# What is told


@simulated
async def test_a_normal_end_is_told_with_its_value() -> None:
    pid = process.spawn_monitored(give, "done")
    assert await exit_of(pid) == ExitResult("done", None)


@simulated
async def test_a_crash_is_told_with_its_error() -> None:
    pid = process.spawn_monitored(crash, "broken")
    result = await exit_of(pid)
    assert not result.ok
    assert isinstance(result.error, ValueError)
    assert str(result.error) == "broken"


@simulated
async def test_a_kill_is_told_as_killed() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_a_shutdown_is_told_as_shutdown() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.exit(Shutdown("night"), pid)
    error = (await exit_of(pid)).error
    assert isinstance(error, Shutdown)
    assert error.detail == "night"


@simulated
async def test_the_watcher_lives_on_whatever_happens() -> None:
    async def watcher(of: Pid) -> None:
        process.monitor(of)
        await wait_forever()

    victim = process.spawn(wait_forever)
    pid = process.spawn(watcher, victim)
    await others_rest()
    process.kill(victim)
    await others_rest()
    assert process.alive(pid)


@simulated
async def test_the_target_does_not_notice_the_end_of_its_watcher() -> None:
    async def watcher(of: Pid) -> None:
        process.monitor(of)
        raise ValueError

    target = process.spawn(wait_forever)
    process.spawn(watcher, target)
    await others_rest()
    assert process.alive(target)
    assert process.info(target).monitored_by == ()


# Birth and death


@pytest.mark.parametrize("seed", range(5))
def test_a_child_that_dies_at_once_is_told(seed: int) -> None:
    async def main() -> None:
        pids = [process.spawn_monitored(crash) for _ in range(5)]
        await others_rest()
        assert {event.sender for event in await drain(process.events())} == set(pids)

    simulate(main, seed=seed)


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_a_child_that_ends_before_its_first_step_is_told(interrupt: Interrupt) -> None:
    ran: list[int] = []

    async def child() -> None:
        ran.append(1)

    pid = process.spawn_monitored(child)
    interrupt(pid)
    assert not (await exit_of(pid)).ok
    assert ran == []


@simulated
async def test_a_dead_pid_gives_exit_at_once_with_no_process() -> None:
    pid = await dead()
    ref = process.monitor(pid)
    (event,) = await drain(process.events())
    assert isinstance(event, Exit)
    assert (event.sender, event.ref) == (pid, ref)
    assert isinstance(event.result.error, NoProcess)


@simulated
async def test_exit_comes_only_after_the_cleanup_of_the_process() -> None:
    async def tidy() -> None:
        try:
            await wait_forever()
        finally:
            await sleep("3s")

    pid = process.spawn_monitored(tidy)
    await others_rest()
    start = now()
    shut_down(pid)
    await exit_of(pid)
    assert now() - start == pytest.approx(3)


@simulated
async def test_who_receives_exit_finds_the_process_dead_and_its_name_free() -> None:
    pid = process.spawn_monitored(give, name="clerk")
    await exit_of(pid)
    assert not process.alive(pid)
    assert process.whereis("clerk") is None
    process.register("clerk")


@simulated
async def test_exits_come_in_the_order_of_the_deaths() -> None:
    async def live(seconds: int) -> None:
        await sleep(seconds)

    pids = {n: process.spawn_monitored(live, n) for n in (3, 1, 2)}
    await sleep(5)
    assert [event.sender for event in await drain(process.events())] == [pids[n] for n in (1, 2, 3)]


# Several


@simulated
async def test_two_monitors_of_one_process_give_two_exits_with_their_own_refs() -> None:
    pid = process.spawn(wait_forever)
    refs = {process.monitor(pid), process.monitor(pid)}
    process.kill(pid)
    await others_rest()
    events = await drain(process.events())
    assert len(refs) == len(events) == 2
    assert {event.ref for event in events if isinstance(event, Exit)} == refs


@simulated
async def test_every_watcher_is_told_exactly_once() -> None:
    heard: list[Pid] = []

    async def watcher(of: Pid) -> None:
        process.monitor(of)
        while await process.events().receive():
            heard.append(process.self_pid())

    victim = process.spawn(wait_forever)
    watchers = [process.spawn(watcher, victim) for _ in range(10)]
    await others_rest()
    process.kill(victim)
    await others_rest()
    assert sorted(heard, key=repr) == sorted(watchers, key=repr)


@simulated
async def test_linked_and_monitored_gives_both_events() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked_monitored(crash)
    await others_rest()
    events = await drain(process.events())
    assert sorted(event.kind for event in events) == ["pid.exit", "pid.link.down"]
    assert {event.sender for event in events} == {pid}


@simulated
async def test_a_process_that_monitors_itself_ends_like_any_other() -> None:
    async def narcissus() -> None:
        process.monitor(process.self_pid())

    pid = process.spawn_monitored(narcissus)
    assert (await exit_of(pid)).ok


# By name


@simulated
async def test_a_monitor_by_name_watches_who_has_the_name_now() -> None:
    first = process.spawn(wait_forever, name="clerk")
    process.monitor("clerk")
    process.unregister("clerk")
    second = process.spawn(wait_forever, name="clerk")
    process.kill(second)
    process.kill(first)
    assert (await process.events().receive()).sender is first
    await others_rest()
    assert await drain(process.events()) == []


@simulated
async def test_a_name_that_nobody_has_cannot_be_monitored() -> None:
    with pytest.raises(NotRegistered):
        process.monitor("nobody")
    with pytest.raises(NotRegistered):
        process.unmonitor("nobody")
    assert await drain(process.events()) == []


# Unmonitor


async def events_after_the_kill_of(pid: Pid) -> list[Event]:
    process.kill(pid)
    await others_rest()
    return await drain(process.events())


@simulated
async def test_after_unmonitor_nothing_is_told() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.unmonitor(pid)
    assert await events_after_the_kill_of(pid) == []


@simulated
async def test_unmonitor_by_ref_ends_one_monitor_and_leaves_the_other() -> None:
    pid = process.spawn(wait_forever)
    first, second = process.monitor(pid), process.monitor(pid)
    process.unmonitor(first)
    events = await events_after_the_kill_of(pid)
    assert [event.ref for event in events if isinstance(event, Exit)] == [second]


@simulated
async def test_unmonitor_by_pid_or_name_ends_all_monitors() -> None:
    pid = process.spawn_monitored(wait_forever, name="clerk")
    process.monitor(pid)
    process.unmonitor("clerk")
    assert await events_after_the_kill_of(pid) == []


@pytest.mark.parametrize("by", ["ref", "pid"])
@simulated
async def test_unmonitor_takes_an_exit_that_waits_out_of_the_queue(by: str) -> None:
    pid, other = process.spawn(give), process.spawn(give)
    ref, kept = process.monitor(pid), process.monitor(other)
    await others_rest()
    process.unmonitor(ref if by == "ref" else pid)
    events = await drain(process.events())
    assert [event.ref for event in events if isinstance(event, Exit)] == [kept]


@simulated
async def test_unmonitor_without_flush_leaves_an_exit_that_waits() -> None:
    ref = process.monitor(await dead())
    process.unmonitor(ref, flush=False)
    assert len(await drain(process.events())) == 1


@simulated
async def test_unmonitor_leaves_the_link_down_of_the_same_process() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked_monitored(crash)
    await others_rest()
    process.unmonitor(pid)
    assert [type(event) for event in await drain(process.events())] == [LinkDown]


@simulated
async def test_unmonitor_of_what_is_not_monitored_does_nothing() -> None:
    pid = process.spawn(wait_forever)
    process.unmonitor(pid)
    process.unmonitor(process.self_pid())
    process.unmonitor(await dead())
    ref = process.monitor(pid)
    process.unmonitor(ref)
    process.unmonitor(ref)


@simulated
async def test_nobody_ends_the_monitor_of_another() -> None:
    async def meddler(ref: process.MonitorRef) -> None:
        process.unmonitor(ref)

    pid = process.spawn(wait_forever)
    process.spawn(meddler, process.monitor(pid))
    await others_rest()
    assert len(await events_after_the_kill_of(pid)) == 1


@simulated
async def test_a_monitor_is_forgotten_when_it_has_told() -> None:
    pid = process.spawn_monitored(give)
    assert process.info(process.self_pid()).monitors == (pid,)
    await exit_of(pid)
    assert process.info(process.self_pid()).monitors == ()


@simulated
async def test_monitored_watches_within_the_block_only() -> None:
    pid = process.spawn(wait_forever)
    with process.monitored(pid) as ref:
        assert isinstance(ref, process.MonitorRef)
        assert process.info(pid).monitored_by == (process.self_pid(),)
    assert await events_after_the_kill_of(pid) == []
