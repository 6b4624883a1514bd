"""Cancel: a polite request, and a kill at the deadline if there is one."""

from typing import Any

import pytest

from perdure import process
from perdure.errors import Killed, NoProcess, NotRegistered
from perdure.process import Cancel, Exit, ExitResult, LinkDown, sleep
from perdure.testing import simulated
from tests.support.processes import (
    dead,
    drain,
    exit_of,
    link_down_of,
    live_timers,
    now,
    others_rest,
    shut_down,
    wait_forever,
)


async def polite(cleanup: float = 0) -> str:
    """End normally when asked, after some cleanup."""
    async for event in process.events():
        if isinstance(event, Cancel):
            await sleep(cleanup)
            return "cancelled gracefully"
    return "never"


async def note_cancels(into: list[Cancel]) -> None:
    """Read every CANCEL and ignore it."""
    while True:
        event = await process.events().receive()
        assert isinstance(event, Cancel)
        into.append(event)


# The event


@simulated
async def test_a_cancel_is_an_event_that_names_who_asks() -> None:
    process.cancel(process.self_pid())
    assert await process.events().receive() == Cancel(process.self_pid(), None, None)


@simulated
async def test_a_cancel_tells_its_deadline_in_the_loops_time_and_its_reason() -> None:
    seen: list[Cancel] = []
    pid = process.spawn(note_cancels, seen)
    await sleep(10)
    process.cancel(pid, "1m30s", "too slow")
    await others_rest()
    assert seen == [Cancel(process.self_pid(), 100, "too slow")]


@simulated
async def test_a_cancel_reaches_a_process_without_any_tie_or_option() -> None:
    pid = process.spawn(polite)
    process.cancel(pid)
    await others_rest()
    assert not process.alive(pid)


@simulated
async def test_a_cancel_waits_for_a_process_that_does_not_read_events_yet() -> None:
    async def late() -> Any:
        await sleep("1h")
        return await process.events().receive()

    pid = process.spawn_monitored(late)
    process.cancel(pid, reason="x")
    assert (await exit_of(pid)).value == Cancel(process.self_pid(), None, "x")


@simulated
async def test_a_cancel_by_name_reaches_who_has_the_name() -> None:
    pid = process.spawn_monitored(polite, name="clerk")
    process.cancel("clerk")
    assert (await exit_of(pid)).ok


# The polite end


@simulated
async def test_a_process_that_obeys_ends_normally_with_its_value() -> None:
    pid = process.spawn_monitored(polite)
    process.cancel(pid, "100ms")
    assert await exit_of(pid) == ExitResult("cancelled gracefully", None)


@simulated
async def test_a_process_that_obeys_tells_its_links_nothing() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked_monitored(polite)
    process.cancel(pid, "100ms")
    await sleep(1)
    assert [type(event) for event in await drain(process.events())] == [Exit]


@simulated
async def test_cleanup_may_take_the_time_up_to_the_deadline() -> None:
    pid = process.spawn_monitored(polite, 0.9)
    await others_rest()
    process.cancel(pid, "1s")
    assert (await exit_of(pid)).ok


@simulated
async def test_an_end_before_the_deadline_disarms_it() -> None:
    pid = process.spawn_monitored(polite)
    process.cancel(pid, "1h")
    await exit_of(pid)
    assert live_timers() == 0


@simulated
async def test_who_unmonitored_hears_nothing_of_the_end() -> None:
    pid = process.spawn_monitored(polite)
    process.cancel(pid, "100ms")
    process.unmonitor(pid)
    await sleep("200ms")
    assert not process.alive(pid)
    assert await drain(process.events()) == []


# The deadline


@simulated
async def test_without_a_timeout_nobody_is_ever_killed() -> None:
    seen: list[Cancel] = []
    pid = process.spawn(note_cancels, seen)
    process.cancel(pid)
    await sleep("1000h")
    assert process.alive(pid)
    assert len(seen) == 1


@simulated
async def test_who_ignores_the_cancel_is_killed_exactly_at_the_deadline() -> None:
    pid = process.spawn_monitored(note_cancels, [])
    process.cancel(pid, "5s")
    error = (await exit_of(pid)).error
    assert now() == 5
    assert isinstance(error, Killed)
    assert error.detail == "cancel timeout"


@simulated
async def test_who_never_reads_events_is_killed_at_the_deadline() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.cancel(pid, "5s")
    assert isinstance((await exit_of(pid)).error, Killed)
    assert now() == 5


@simulated
async def test_cleanup_that_is_too_slow_is_cut_off_at_the_deadline() -> None:
    pid = process.spawn_monitored(polite, 60)
    process.cancel(pid, "5s")
    assert isinstance((await exit_of(pid)).error, Killed)
    assert now() == 5


@simulated
async def test_a_kill_at_the_deadline_goes_through_links() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(wait_forever)
    process.cancel(pid, "5s")
    assert isinstance(await link_down_of(pid), Killed)


@simulated
async def test_a_timeout_of_zero_is_the_event_and_the_kill_at_once() -> None:
    seen: list[Cancel] = []
    pid = process.spawn_monitored(note_cancels, seen)
    await others_rest()
    start = now()
    process.cancel(pid, 0)
    assert isinstance((await exit_of(pid)).error, Killed)
    assert now() == start


@simulated
async def test_with_a_timeout_of_zero_even_a_polite_process_is_killed() -> None:
    pid = process.spawn_monitored(polite)
    await others_rest()
    process.cancel(pid, 0)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_a_process_may_set_a_deadline_for_itself() -> None:
    async def hurried() -> None:
        process.cancel(process.self_pid(), "2s")
        await sleep("1h")

    pid = process.spawn_monitored(hurried)
    assert isinstance((await exit_of(pid)).error, Killed)
    assert now() == 2


@simulated
async def test_a_process_that_gives_itself_no_time_ends_at_its_next_wait() -> None:
    steps: list[int] = []

    async def hasty() -> None:
        process.cancel(process.self_pid(), 0)
        steps.append(1)
        await wait_forever()
        steps.append(2)

    pid = process.spawn_monitored(hasty)
    assert isinstance((await exit_of(pid)).error, Killed)
    assert (steps, now()) == ([1], 0)


@simulated
async def test_the_deadline_also_ends_a_cleanup_after_an_exit_signal() -> None:
    async def slow() -> None:
        try:
            await wait_forever()
        finally:
            await sleep("1h")

    pid = process.spawn_monitored(slow)
    await others_rest()
    shut_down(pid)
    process.cancel(pid, "5s")
    assert isinstance((await exit_of(pid)).error, Killed)
    assert now() < 6


# Several


@pytest.mark.parametrize("timeouts", [["2s", "8s"], ["8s", "2s"], [None, "2s"], ["2s", None]])
@simulated
async def test_of_several_deadlines_the_earliest_counts(timeouts: list[Any]) -> None:
    seen: list[Cancel] = []
    pid = process.spawn_monitored(note_cancels, seen)
    for timeout in timeouts:
        process.cancel(pid, timeout)
    await exit_of(pid)
    assert now() == 2
    assert len(seen) == 2
    assert live_timers() == 0


@simulated
async def test_a_later_cancel_with_a_nearer_deadline_counts() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.cancel(pid, "10s")
    await sleep(3)
    process.cancel(pid, "10s")
    process.cancel(pid, "1s")
    await exit_of(pid)
    assert now() == 4


@simulated
async def test_one_cancel_of_each_of_many_processes_kills_each_at_its_own_deadline() -> None:
    pids = {n: process.spawn_monitored(wait_forever) for n in (3, 1, 2)}
    for n, pid in pids.items():
        process.cancel(pid, n)
    ended = [((await process.events().receive()).sender, now()) for _ in pids]
    assert ended == [(pids[n], n) for n in (1, 2, 3)]


# Mistakes


@simulated
async def test_a_dead_process_cannot_be_cancelled() -> None:
    pid = await dead()
    for timeout in (None, 0, "1s"):
        with pytest.raises(NoProcess):
            process.cancel(pid, timeout)
    assert live_timers() == 0


@simulated
async def test_an_unknown_name_cannot_be_cancelled() -> None:
    with pytest.raises(NotRegistered):
        process.cancel("nobody")


@pytest.mark.parametrize("timeout", [-1, "soon", "5", float("nan"), float("inf"), True, []])
@simulated
async def test_a_bad_duration_is_refused_and_no_event_is_sent(timeout: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        process.cancel(process.self_pid(), timeout)
    assert await drain(process.events()) == []


@simulated
async def test_cancel_is_no_link_down_and_no_link_down_is_a_cancel() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(wait_forever)
    process.cancel(process.self_pid())
    process.kill(pid)
    await others_rest()
    assert [type(event) for event in await drain(process.events())] == [Cancel, LinkDown]
