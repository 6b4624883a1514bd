import asyncio
import contextlib
import logging
from collections.abc import Callable

import pytest

from perdure import Settings, process
from perdure.errors import Killed, LinkedProcessDown, NoProcess, NotRegistered, Shutdown
from perdure.process import Channel
from perdure.testing import simulated
from tests.support.processes import (
    Function,
    end_of,
    exit_of,
    give,
    link_down_of,
    others_rest,
    records,
    trap_and_wait,
    wait_forever,
)

SOON = Settings(abandon_after="1s")


def now() -> float:
    return asyncio.get_running_loop().time()


async def killed(function: Function, *args: object) -> BaseException | None:
    """Start a process, kill it where it waits, and give the reason of its end."""
    pid = process.spawn_monitored(function, *args)
    await others_rest()
    process.kill(pid)
    return (await exit_of(pid)).error


async def refuse() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await wait_forever()


async def wait_for_asyncio() -> None:
    await asyncio.get_running_loop().create_future()


async def wait_for_time() -> None:
    await process.sleep("1h")


async def wait_for_a_reader() -> None:
    await Channel[int]().send(1)


async def wait_in_select() -> None:
    await process.select(process.inbox(), process.events(), process.after("1h"))


# It ends


@pytest.mark.parametrize(
    "wait",
    [
        wait_forever,
        trap_and_wait,
        wait_for_asyncio,
        wait_for_time,
        wait_for_a_reader,
        wait_in_select,
    ],
)
def test_a_kill_reaches_a_process_wherever_it_waits(wait: Function) -> None:
    @simulated
    async def main() -> None:
        assert isinstance(await killed(wait), Killed)

    main()


@simulated
async def test_a_kill_takes_no_time_if_the_code_obeys() -> None:
    pid = process.spawn_monitored(wait_for_time)
    await others_rest()
    began = now()
    process.kill(pid)
    await exit_of(pid)
    assert now() == began


@simulated
async def test_terminate_is_another_word_for_kill() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.terminate(pid)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_a_process_killed_before_its_first_step_never_runs_a_line() -> None:
    lines: list[str] = []

    async def child() -> None:
        try:
            lines.append("body")
        finally:
            lines.append("finally")

    pid = process.spawn_monitored(child)
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)
    assert lines == []


@simulated
async def test_a_process_that_kills_itself_does_not_go_on() -> None:
    async def child() -> str:
        process.kill(process.self_pid())
        return "went on"

    assert isinstance((await end_of(child)).error, Killed)


@simulated
async def test_a_kill_from_a_task_inside_ends_the_process() -> None:
    async def inner() -> None:
        process.kill(process.self_pid())

    async def child() -> str:
        await asyncio.create_task(inner())
        return "went on"

    assert isinstance((await end_of(child)).error, Killed)


@simulated
async def test_a_kill_goes_through_links_as_a_failure() -> None:
    victim = process.spawn(wait_forever)

    async def peer() -> None:
        process.link(victim)
        await wait_forever()

    pid = process.spawn_monitored(peer)
    await others_rest()
    process.kill(victim)
    error = (await exit_of(pid)).error
    assert isinstance(error, LinkedProcessDown)
    assert error.pid is victim
    assert isinstance(error.root, Killed)


@simulated
async def test_the_death_by_a_link_to_a_killed_process_can_be_trapped() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(wait_forever)
    process.kill(pid)
    assert isinstance(await link_down_of(pid), Killed)


# It is final


@simulated
async def test_a_value_returned_after_a_kill_does_not_count() -> None:
    async def child() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await wait_forever()
        return "survived"

    assert isinstance(await killed(child), Killed)


@simulated
async def test_an_error_raised_after_a_kill_does_not_count() -> None:
    async def child() -> None:
        try:
            await wait_forever()
        finally:
            raise ValueError("in cleanup")

    assert isinstance(await killed(child), Killed)


@simulated
async def test_an_exit_by_hand_after_a_kill_does_not_count() -> None:
    async def child() -> None:
        try:
            await wait_forever()
        finally:
            process.exit(Shutdown("polite"))

    assert isinstance(await killed(child), Killed)


@simulated
async def test_cleanup_that_does_not_wait_runs_to_its_end() -> None:
    steps: list[str] = []

    async def child() -> None:
        try:
            await wait_forever()
        finally:
            steps.extend(["file closed", "lock freed"])

    await killed(child)
    assert steps == ["file closed", "lock freed"]


@simulated
async def test_every_wait_after_a_kill_is_interrupted_again() -> None:
    interrupted: list[str] = []

    async def wait(what: str) -> None:
        try:
            await process.sleep("1h")
        except asyncio.CancelledError:
            interrupted.append(what)

    async def child() -> None:
        for what in ("work", "first cleanup", "second cleanup"):
            await wait(what)

    began = now()
    assert isinstance(await killed(child), Killed)
    assert interrupted == ["work", "first cleanup", "second cleanup"]
    assert now() - began < 1  # in virtual time


@simulated
async def test_a_kill_overtakes_an_exit_signal_that_is_still_being_obeyed() -> None:
    async def child() -> None:
        try:
            await wait_forever()
        finally:
            await process.sleep("1h")

    pid = process.spawn_monitored(child)
    await others_rest()
    process.exit(Shutdown(), pid)
    await others_rest()
    began = now()
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)
    assert now() - began < 1  # in virtual time


@simulated
async def test_an_exit_signal_after_a_kill_changes_nothing() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.kill(pid)
    process.exit(Shutdown(), pid)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_a_second_kill_does_no_harm() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.kill(pid)
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_a_kill_also_hurries_the_tasks_inside_of_a_process_whose_code_has_ended() -> None:
    async def inner() -> None:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await process.sleep("4s")

    async def child() -> None:
        task = asyncio.create_task(inner())
        await others_rest()
        del task

    pid = process.spawn_monitored(child)
    await process.sleep("1s")
    began = now()
    process.kill(pid)
    await exit_of(pid)
    assert now() - began < 1  # in virtual time


# It is given up


@simulated
async def test_a_process_that_refuses_its_kill_is_abandoned_within_ten_seconds() -> None:
    began = now()
    assert isinstance(await killed(refuse), Killed)
    assert 1 <= now() - began <= 10  # in virtual time


@simulated(settings=SOON)
async def test_an_abandoned_process_is_reported_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pid = process.spawn_monitored(refuse, name="refuser")
    await others_rest()
    process.kill(pid)
    await exit_of(pid)
    [text] = records(caplog, logging.WARNING)
    assert f"process {pid} was killed and did not end" in text
    assert "test_kill.refuse()" in text
    assert f"started by: {process.self_pid()}" in text
    assert "name: refuser" in text
    assert "await wait_forever()" in text  # where it hangs
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@simulated(settings=SOON)
async def test_an_abandoned_process_never_runs_on() -> None:
    steps: list[str] = []
    channel = Channel[str](1)

    async def child() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                steps.append(await channel.receive())

    await killed(child)
    await channel.send("for a zombie")
    await process.sleep("1h")
    assert steps == []


async def send_to(channel: Channel[str], value: str) -> None:
    await channel.send(value)


@pytest.mark.parametrize("capacity", [0, 1])
def test_an_abandoned_process_takes_no_value_from_those_who_live(capacity: int) -> None:
    @simulated(settings=SOON)
    async def main() -> None:
        channel = Channel[str](capacity)

        async def child() -> None:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await channel.receive()

        await killed(child)
        process.spawn(send_to, channel, "for the living")
        async with asyncio.timeout(1):
            assert await channel.receive() == "for the living"

    main()


@simulated(settings=SOON)
async def test_an_abandoned_sender_does_not_hold_up_those_who_live() -> None:
    channel = Channel[str]()

    async def child() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await channel.send("of a zombie")

    await killed(child)
    process.spawn(send_to, channel, "of the living")
    async with asyncio.timeout(1):
        assert await channel.receive() == "of the living"


@simulated(settings=SOON)
async def test_an_abandoned_sleeper_leaves_no_armed_timer() -> None:
    async def child() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await process.sleep("1h")

    await killed(child)
    # The test fails with `Leak` if the hour is still waited for.


@simulated(settings=SOON)
async def test_a_process_that_waits_for_a_refusing_one_by_link_is_freed() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(refuse)
    await others_rest()
    process.kill(pid)
    assert isinstance(await link_down_of(pid), Killed)


@simulated
async def test_a_process_that_obeys_late_is_not_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    async def child() -> None:
        for _ in range(50):
            with contextlib.suppress(asyncio.CancelledError):
                await wait_forever()

    assert isinstance(await killed(child), Killed)
    assert records(caplog, logging.WARNING) == []


# A zombie


ZOMBIES_CALLS: list[Callable[[], object]] = [
    process.self_pid,
    process.inbox,
    process.processes,
    lambda: process.spawn(give),
    lambda: process.register("zombie"),
    lambda: process.send("root", "topic"),
    lambda: process.set_options(trap_links=True),
    process.exit,
    lambda: process.monitor("root"),
]


@simulated
async def test_every_kernel_call_of_code_that_outlived_its_process_is_refused() -> None:
    refused: list[object] = []

    def callback() -> None:
        for call in ZOMBIES_CALLS:
            with pytest.raises(NoProcess, match="is not alive"):
                call()
            refused.append(call)

    async def child() -> None:
        asyncio.get_running_loop().call_later(1, callback)

    process.register("root")
    await end_of(child)
    await process.sleep("2s")
    assert refused == ZOMBIES_CALLS
    assert process.info("root").mailbox == 0


@simulated(settings=SOON)
async def test_a_message_of_a_zombie_to_a_pid_is_refused_too() -> None:
    root, outcome = process.self_pid(), Channel[object](1)
    stop = asyncio.Event()

    async def inner() -> None:
        while not stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await stop.wait()
        try:
            outcome_value: object = process.send(root, "from a zombie")
        except NoProcess as error:
            outcome_value = error
        await outcome.send(outcome_value)

    async def child() -> None:
        task = asyncio.create_task(inner())
        await others_rest()
        del task

    await end_of(child)
    stop.set()
    assert isinstance(await outcome.receive(), NoProcess)
    assert process.info(root).mailbox == 0


# Refused


@simulated
async def test_a_dead_process_cannot_be_killed() -> None:
    pid = process.spawn_monitored(give)
    await exit_of(pid)
    with pytest.raises(NoProcess, match=r"cannot kill it"):
        process.kill(pid)


@simulated
async def test_an_unknown_name_cannot_be_killed() -> None:
    with pytest.raises(NotRegistered, match="nobody"):
        process.kill("nobody")
