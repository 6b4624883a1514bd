"""How a supervisor stops: its children, itself, and what start functions leave."""

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from perdure import process
from perdure.errors import (
    CallExit,
    CallTimeout,
    ChannelClosed,
    Killed,
    LinkedProcessDown,
    NoProcess,
    Shutdown,
    StartError,
)
from perdure.otp.supervision.spec import BRUTAL_KILL, ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import Channel, Exit, LinkDown, Pid, sleep
from perdure.testing import simulate, simulated
from tests.support.children import Family, refuse_to_stop
from tests.support.processes import crash, live_timers, living, now, records, wait_forever

# One child


async def cleaned_up(log: list[str]) -> None:
    try:
        await wait_forever()
    finally:
        await sleep(2)
        log.append(f"clean at {now()}")


@simulated
async def test_a_child_has_time_to_clean_up() -> None:
    log: list[str] = []
    async with Supervisor([child(cleaned_up, log)]):
        await sleep(1)
    assert log == ["clean at 3.0"]


@simulated
async def test_a_trapping_child_is_told_by_its_supervisor() -> None:
    told: list[LinkDown] = []

    async def worker() -> None:
        process.set_options(trap_links=True)
        event = await process.events().receive()
        assert isinstance(event, LinkDown)
        told.append(event)

    async with Supervisor([child(worker)]) as sup:
        await sleep(1)
    assert told[0].sender is sup.pid
    assert isinstance(told[0].error, Shutdown)


@pytest.mark.parametrize(
    ("shutdown", "seconds"), [(3, 3), (0, 0), ("250ms", 0.25), (BRUTAL_KILL, 0)]
)
def test_a_child_that_does_not_stop_is_killed_when_its_time_is_up(
    shutdown: Any, seconds: float
) -> None:
    async def main() -> None:
        async with Supervisor([child(refuse_to_stop, name="w", shutdown=shutdown)]):
            process.monitor("w")
            await sleep(1)
            began = now()
        assert now() - began == pytest.approx(seconds)
        event = await process.events().receive()
        assert isinstance(event, Exit)
        assert isinstance(event.result.error, Killed)
        assert live_timers() == 0

    simulate(main)


@simulated
async def test_a_child_without_a_limit_takes_as_long_as_it_wants() -> None:
    async def slow() -> None:
        process.set_options(trap_links=True)
        await process.events().receive()
        await sleep("2h")

    async with Supervisor([child(slow, shutdown=None)]):
        await sleep(1)
    assert now() == 7201


@simulated
async def test_children_are_stopped_one_at_a_time() -> None:
    log: list[str] = []
    async with Supervisor([child(cleaned_up, log, id=id) for id in range(3)]):
        await sleep(1)
    assert log == ["clean at 3.0", "clean at 5.0", "clean at 7.0"]


def test_a_child_that_had_to_be_killed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Supervisor([child(refuse_to_stop, id="stubborn", shutdown=1)], name="App"):
            await sleep(1)

    simulate(main)
    (report,) = records(caplog, logging.WARNING)
    assert "Supervisor App" in report
    assert "'stubborn'" in report
    assert "did not stop in time" in report


def test_an_orderly_stop_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        inner = Supervisor.child([child(wait_forever, shutdown=BRUTAL_KILL)], id="inner")
        async with Supervisor([child(wait_forever), inner]):
            await sleep(1)

    simulate(main)
    assert records(caplog, logging.INFO) == []


# The supervisor itself


@simulated
async def test_stop_ends_it_normally_and_leaves_the_caller_alive() -> None:
    family = Family()
    sup = await Supervisor.start_link([family("a")])
    process.monitor(sup.pid)
    await sup.stop()
    assert not process.alive(sup.pid)
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert event.result.ok
    assert family.alive() == ""


@simulated
async def test_stop_by_name_and_by_pid() -> None:
    await Supervisor.start_link([], name="one")
    two = await Supervisor.start_link([])
    await Supervisor.stop("one")
    await Supervisor.stop(two.pid)
    assert process.whereis("one") is None
    assert not process.alive(two.pid)


@simulated
async def test_stop_with_a_reason_ends_it_with_that_reason() -> None:
    process.set_options(trap_links=True)
    sup = await Supervisor.start_link([])
    reason = Shutdown("enough")
    await sup.stop(reason)
    event = await process.events().receive()
    assert isinstance(event, LinkDown)
    assert event.error is reason


@simulated
async def test_to_stop_a_dead_one_is_an_error() -> None:
    sup = await Supervisor.start_link([])
    await sup.stop()
    with pytest.raises(CallExit) as dead:
        await sup.stop()
    assert isinstance(dead.value.reason, NoProcess)


@simulated
async def test_a_stop_that_takes_too_long_goes_on() -> None:
    log: list[str] = []
    sup = await Supervisor.start_link([child(cleaned_up, log)])
    await sleep(1)
    with pytest.raises(CallTimeout):
        await sup.stop(timeout=1)
    await sleep(5)
    assert log == ["clean at 3.0"]
    assert not process.alive(sup.pid)


@simulated
async def test_cancel_stops_it_in_order() -> None:
    family = Family()
    sup = await Supervisor.start_link([family("a"), family("b")])
    family.entries()
    process.cancel(sup.pid)
    await family.rest()
    assert family.entries() == "-b -a"
    assert not process.alive(sup.pid)


@pytest.mark.parametrize("end", ["normal", "crash", "kill", "shutdown"])
def test_it_stops_when_its_parent_ends_for_whatever_reason(end: str) -> None:
    family = Family()

    async def parent() -> None:
        await Supervisor.start_link([family("a"), family("b")])
        match end:
            case "crash":
                raise ValueError("parent")
            case "shutdown":
                raise Shutdown
            case "kill":
                await wait_forever()
            case _:
                return

    async def main() -> None:
        before = living()
        pid = process.spawn(parent)
        await sleep(1)
        if end == "kill":
            process.kill(pid)
            await sleep(1)
        assert family.entries() == "+a +b -b -a"
        assert living() == before

    simulate(main)


@simulated
async def test_a_killed_supervisor_takes_its_children_with_it() -> None:
    process.set_options(trap_links=True)
    family = Family()
    inner = Supervisor.child([family("deep")], id="inner")
    sup = await Supervisor.start_link([family("a"), inner])
    process.kill(sup.pid)
    await family.rest()
    assert family.alive() == ""
    assert len(living()) == 1


@simulated
async def test_a_child_that_was_started_without_a_link_dies_with_a_killed_supervisor() -> None:
    process.set_options(trap_links=True)
    pids: list[Pid] = []

    async def start() -> Pid:
        pids.append(process.spawn(wait_forever))
        return pids[0]

    sup = await Supervisor.start_link([ChildSpec("w", start)])
    process.kill(sup.pid)
    await sleep(1)
    assert not process.alive(pids[0])


@simulated
async def test_the_end_of_a_linked_stranger_is_ignored() -> None:
    family = Family()
    async with Supervisor([family("a")]) as sup:

        async def stranger() -> None:
            process.link(sup.pid)
            await crash()

        process.spawn(stranger)
        await family.rest()
        assert process.alive(sup.pid)
        assert family.entries() == "+a"


@simulated
async def test_a_tree_stops_from_the_leaves_of_its_last_branch() -> None:
    family = Family()
    left = Supervisor.child([family("a"), family("b")], id="left")
    right = Supervisor.child([family("c"), family("d")], id="right")
    async with Supervisor([left, right]):
        family.entries()
    assert family.entries() == "-d -c -b -a"


@simulated
async def test_a_program_that_ends_stops_its_tree_in_order() -> None:
    family = Family()

    async def main() -> None:
        await Supervisor.start_link([family("a"), Supervisor.child([family("b")], id="inner")])

    await process.run_process(main)
    await family.rest()
    assert family.entries() == "+a +b -b -a"


def test_the_runtime_stops_a_tree_in_order() -> None:
    family = Family()

    async def main() -> None:
        await Supervisor.start_link([family("a"), Supervisor.child([family("b")], id="inner")])

    simulate(main)
    assert family.entries() == "+a +b -b -a"


@simulated
async def test_the_body_of_a_with_block_ends_with_a_supervisor_that_gives_up() -> None:
    async def body() -> None:
        async with Supervisor([child(crash)], max_restarts=0):
            await wait_forever()

    pid = process.spawn_monitored(body)
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert event.sender is pid
    assert isinstance(event.result.error, Shutdown)


@simulated
async def test_an_error_in_a_with_block_stops_the_children_too() -> None:
    family = Family()
    with pytest.raises(ValueError, match="body"):
        async with Supervisor([family("a")]):
            raise ValueError("body")
    assert family.entries() == "+a -a"


# Start functions that hang, or leave something


async def hang() -> Pid:
    await Channel[None]().receive()
    raise AssertionError


@simulated
async def test_a_first_start_that_hangs_is_ended_by_a_cancel() -> None:
    family = Family()
    failed: list[StartError] = []

    async def starter() -> None:
        try:
            await Supervisor.start_link([family("a"), ChildSpec("h", hang)], name="App")
        except StartError as error:
            failed.append(error)

    process.spawn(starter)
    await sleep(1)
    process.cancel("App")
    await family.rest()
    assert family.entries() == "+a -a"
    assert len(failed) == 1
    assert len(living()) == 1


@simulated
async def test_a_first_start_that_hangs_ends_with_the_starter() -> None:
    family = Family()
    children = [family("a"), ChildSpec("h", hang)]
    starter = process.spawn(Supervisor.start_link, children)
    await sleep(1)
    process.kill(starter)
    await family.rest()
    assert family.alive() == ""
    assert len(living()) == 1


@simulated
async def test_a_restart_that_hangs_does_not_hold_up_a_stop() -> None:
    family, starts = Family(), [0]

    async def start() -> Pid:
        starts[0] += 1
        return process.spawn_linked(wait_forever, name="h") if starts[0] == 1 else await hang()

    async with Supervisor([family("a"), ChildSpec("h", start)]):
        process.kill(process.pid_of("h"))
        await sleep(1)
    assert starts == [2]
    assert family.entries() == "+a -a"


@simulated
async def test_a_start_that_hangs_cleans_up_before_the_others_are_stopped() -> None:
    family = Family()

    async def careful() -> Pid:
        try:
            return await hang()
        finally:
            await sleep(1)
            family.diary.append("cleaned up")

    sup = await Supervisor.start_link([family("a")])
    asking = asyncio.ensure_future(sup.start_child(ChildSpec("h", careful)))
    await sleep(1)
    with pytest.raises(CallExit):
        await asyncio.gather(asking, sup.stop())
    await sleep(5)
    assert family.entries() == "+a cleaned up -a"


@simulated
async def test_a_start_child_that_hangs_fails_when_the_supervisor_stops() -> None:
    sup = await Supervisor.start_link([])
    asking = asyncio.ensure_future(sup.start_child(ChildSpec("h", hang)))
    await sleep(1)
    await sup.stop()
    with pytest.raises(CallExit):
        await asking


@simulated
async def test_a_start_function_that_refuses_to_end_is_given_up() -> None:
    release: Channel[None] = Channel()

    async def refuse() -> Any:
        while not release.closed:
            with contextlib.suppress(asyncio.CancelledError, ChannelClosed):
                await release.receive()

    sup = await Supervisor.start_link([])
    asking = asyncio.ensure_future(sup.start_child(ChildSpec("h", refuse)))
    await sleep(1)
    with pytest.raises(CallExit):
        await asyncio.gather(asking, sup.stop())
    assert not process.alive(sup.pid)
    release.close()
    await sleep(1)


@simulated
async def test_what_a_failed_start_left_behind_is_stopped_with_the_supervisor() -> None:
    left: list[Pid] = []

    async def start() -> Pid:
        left.append(process.spawn_linked(wait_forever))
        raise ValueError("too late")

    async with Supervisor([]) as sup:
        with pytest.raises(StartError):
            await sup.start_child(ChildSpec("w", start))
        assert process.alive(left[0])
    assert not process.alive(left[0])


@simulated
async def test_the_reason_of_a_dead_parent_is_passed_on() -> None:
    ends: list[BaseException | None] = []

    async def parent() -> None:
        sup = await Supervisor.start_link([], name="App")
        process.send(watcher, "watch", sup.pid)
        await sleep(1)
        raise ValueError("first cause")

    async def watch() -> None:
        message = await process.inbox().receive()
        process.monitor(message.payload)
        event = await process.events().receive()
        assert isinstance(event, Exit)
        ends.append(event.result.error)

    watcher = process.spawn(watch)
    process.spawn(parent)
    await sleep(3)
    assert isinstance(ends[0], LinkedProcessDown)
    assert isinstance(ends[0].root, ValueError)
