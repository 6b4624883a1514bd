import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

from perdure import Settings, process
from perdure.errors import Killed, LinkedProcessDown, ProcError, SpawnError
from perdure.process import ExitResult, Runtime
from perdure.testing import simulated
from tests.support.processes import (
    Function,
    crash,
    end_of,
    exit_of,
    give,
    link_down_of,
    others_rest,
    wait_forever,
    waiting_events,
)


async def upgrade_to(function: Any, *args: object) -> NoReturn:
    process.upgrade(function, *args)


async def own_pid() -> process.Pid:
    return process.self_pid()


async def inbox_topics(count: int) -> list[str]:
    return [(await process.inbox().receive()).topic for _ in range(count)]


# What stays


@simulated
async def test_the_new_code_starts_afresh_with_its_arguments() -> None:
    assert await end_of(upgrade_to, give, "new") == ExitResult("new", None)


@simulated
async def test_the_pid_stays() -> None:
    pid = process.spawn_monitored(upgrade_to, own_pid)
    assert (await exit_of(pid)).value is pid


@simulated
async def test_names_stay() -> None:
    pid = process.spawn(upgrade_to, wait_forever, name="worker")
    await others_rest()
    assert process.whereis("worker") is pid


@simulated
async def test_a_monitor_stays_and_tells_only_of_the_end() -> None:
    pid = process.spawn_monitored(upgrade_to, wait_forever)
    await others_rest()
    assert await waiting_events() == []
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_links_stay() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(upgrade_to, crash)
    assert isinstance(await link_down_of(pid), ValueError)


@simulated
async def test_the_mailbox_stays() -> None:
    async def old() -> None:
        await process.inbox().receive()
        process.upgrade(inbox_topics, 2)

    pid = process.spawn_monitored(old)
    for topic in ("old", "new 1", "new 2"):
        process.send(pid, topic)
    assert (await exit_of(pid)).value == ["new 1", "new 2"]


@simulated
async def test_the_context_stays() -> None:
    async def new() -> Mapping[str, Any]:
        return process.context()

    pid = process.spawn_monitored(upgrade_to, new, context={"user": "kim"})
    assert (await exit_of(pid)).value == {"user": "kim"}


@simulated
async def test_the_armed_deadline_of_a_cancel_stays() -> None:
    pid = process.spawn_monitored(upgrade_to, wait_forever)
    process.cancel(pid, "1s")
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_info_shows_the_new_code() -> None:
    pid = process.spawn(upgrade_to, wait_forever)
    await others_rest()
    assert process.info(pid).function == "tests.support.processes.wait_forever()"


# What ends


@simulated
async def test_upgrade_does_not_return_and_the_old_cleanup_runs_first() -> None:
    steps: list[str] = []

    async def new() -> None:
        steps.append("new")

    async def old() -> None:
        try:
            process.upgrade(new)
            steps.append("returned")  # pyright: ignore[reportUnreachable]
        finally:
            await process.sleep("1s")
            steps.append("old cleaned")

    await end_of(old)
    assert steps == ["old cleaned", "new"]


@simulated
async def test_the_tasks_of_the_old_code_are_stopped_before_the_new_code_runs() -> None:
    steps: list[str] = []

    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            await process.sleep("1s")
            steps.append("inner stopped")

    async def new() -> None:
        steps.append("new")

    async def old() -> None:
        task = asyncio.create_task(inner())
        await others_rest()
        del task
        process.upgrade(new)

    await end_of(old)
    assert steps == ["inner stopped", "new"]


@simulated
async def test_a_process_can_be_upgraded_without_end() -> None:
    async def again(left: int) -> str:
        if left:
            process.upgrade(again, left - 1)
        return "done"

    assert (await end_of(again, 5_000)).value == "done"


@simulated
async def test_the_new_code_can_be_interrupted_as_any_other() -> None:
    pid = process.spawn_monitored(upgrade_to, wait_forever)
    await others_rest()
    process.exit(ValueError("signal"), pid)
    assert str((await exit_of(pid)).error) == "signal"


# Between the old and the new code


async def upgrade_slowly(new: Function) -> None:
    """Upgrade while a task inside takes two seconds to stop."""

    async def inner() -> None:
        try:
            await wait_forever()
        finally:
            await process.sleep("2s")

    task = asyncio.create_task(inner())
    await others_rest()
    del task
    process.upgrade(new)


@simulated
async def test_a_kill_between_the_old_and_the_new_code_is_not_lost() -> None:
    pid = process.spawn_monitored(upgrade_slowly, wait_forever)
    await process.sleep("1s")
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_a_failing_link_between_the_old_and_the_new_code_is_not_lost() -> None:
    pid = process.spawn_monitored(upgrade_slowly, wait_forever)

    async def link_both() -> None:
        process.link(pid)
        await process.inbox().receive()
        await crash()

    peer = process.spawn(link_both)
    await process.sleep("1s")
    process.send(peer, "fail")
    assert isinstance((await exit_of(pid)).error, LinkedProcessDown)


@simulated(settings=Settings(abandon_after="1s"))
async def test_a_task_that_will_not_stop_does_not_hold_the_upgrade_up_for_ever() -> None:
    stop = asyncio.Event()

    async def refuse() -> None:
        while not stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await stop.wait()

    async def old() -> None:
        task = asyncio.create_task(refuse())
        await others_rest()
        del task
        process.upgrade(give, "new")

    process.spawn_monitored(old)
    await process.sleep("1m")
    assert len(await waiting_events()) == 1  # upgraded and ended, or given up
    stop.set()
    await others_rest()


@simulated
async def test_an_exit_signal_during_the_old_cleanup_wins_over_the_upgrade() -> None:
    async def old() -> None:
        try:
            process.upgrade(give, "new")
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await process.sleep("2s")

    pid = process.spawn_monitored(old)
    await process.sleep("1s")
    process.exit(ValueError("signal"), pid)
    assert str((await exit_of(pid)).error) == "signal"


# Refused


@simulated
async def test_wrong_arguments_for_the_new_code_end_the_process_with_a_hint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def new(needed: int) -> None: ...

    error = (await end_of(upgrade_to, new)).error
    assert isinstance(error, TypeError | ProcError)
    assert "upgrade" in caplog.text
    assert "missing 1 required positional argument: 'needed'" in str(error)


@simulated
async def test_an_upgrade_to_what_is_no_process_function_is_refused_where_it_is_asked() -> None:
    def plain() -> None: ...

    async def old(new: Any) -> str:
        with pytest.raises(SpawnError):
            process.upgrade(new)
        return "goes on"

    for new in (plain, "unknown:entry", None):
        assert (await end_of(old, new)).value == "goes on"


@simulated
async def test_a_task_inside_a_process_cannot_upgrade_it() -> None:
    with pytest.raises(ProcError, match="not by a task inside it"):
        await asyncio.create_task(upgrade_to(give))


async def test_an_adopted_task_cannot_be_upgraded() -> None:
    async with Runtime():
        with pytest.raises(ProcError, match="upgrade"):
            process.upgrade(give)
