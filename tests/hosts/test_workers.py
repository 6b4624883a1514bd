"""The workers of a host: those that cannot be started, and what is left when they end."""

import asyncio
import gc
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

import perdure
from perdure import process
from perdure.errors import HostDown, SpawnError
from perdure.otp import Supervisor, child
from perdure.process import Exit, ProcessHost, offload
from tests.support import work
from tests.support.child_processes import Offspring
from tests.support.hosts import ELSEWHERE, KINDS, event_of

FAILS_AT_ONCE = "/bin/false"
IS_NOT_THERE = "/is/not/there"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_start_fails_if_the_workers_die_at_once(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        host = ProcessHost("h", kind="os", workers=workers, max_restarts=2)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", FAILS_AT_ONCE)
            with pytest.raises(HostDown, match="with status 1"):
                await host.start()
        assert not host.running
        async with host:
            process.spawn_monitored(work.double, 1, host="h")
            assert (await event_of(Exit)).result.value == 2

    perdure.run(main)


def test_a_start_that_the_system_does_not_allow_fails_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", IS_NOT_THERE)
            with pytest.raises(HostDown, match="not be started"):
                await ProcessHost("h", kind="os", workers=2).start()
        assert descriptors() == before
        async with ProcessHost("h", kind="os", workers=1) as host:
            assert host.running

    perdure.run(main)


def test_a_thread_that_cannot_have_a_loop_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_event_loop() -> None:
        raise OSError("too many open files")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "new_event_loop", new_event_loop)
            with pytest.raises(HostDown, match="too many open files"):
                await ProcessHost("h", kind="threads", workers=1).start()
        async with ProcessHost("h", kind="threads", workers=1) as host:
            assert host.running

    perdure.run(main)


def test_a_worker_that_cannot_be_replaced_at_once_is_replaced_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children = Offspring()

    async def main() -> None:
        async with ProcessHost("h", kind="os", workers=1):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "executable", IS_NOT_THERE)
                process.spawn_monitored(work.kill_own_os_process, host="h")
                assert isinstance((await event_of(Exit)).result.error, HostDown)
                with pytest.raises(SpawnError, match="not be started"):
                    process.spawn(work.double, 1, host="h")
            while not children():
                await perdure.process.sleep("10ms")
            process.spawn_monitored(work.double, 1, host="h")
            assert (await event_of(Exit)).result.value == 2

    perdure.run(main)


def test_a_host_whose_worker_can_never_be_replaced_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        host = await ProcessHost("h", kind="os", workers=1, max_restarts=2).start()
        process.monitor(host.pid)
        monkeypatch.setattr(sys, "executable", IS_NOT_THERE)
        process.spawn(work.kill_own_os_process, host="h")
        error = (await event_of(Exit)).result.error
        assert isinstance(error, HostDown)
        assert "could not be started" in error.cause

    perdure.run(main)


def test_a_worker_that_is_still_being_started_heeds_no_signal_either() -> None:
    children = Offspring()

    async def main() -> None:
        host = ProcessHost("h", kind="os", workers=1)
        starting = asyncio.create_task(host.start())
        while not (before := children()):
            await perdure.process.sleep(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(before[0], number)
        await starting
        assert children() == before
        await host.stop()

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_two_may_stop_a_host_at_the_same_time(kind: str) -> None:
    async def main() -> None:
        host = await ProcessHost("h", kind=kind, workers=1).start()  # pyright: ignore[reportArgumentType]
        await asyncio.gather(host.stop(), host.stop())
        assert not host.running

    perdure.run(main)


def test_a_start_that_is_given_up_leaves_no_process_and_no_child() -> None:
    children = Offspring()

    async def main() -> None:
        host = ProcessHost("h", kind="os", workers=1)
        starting = asyncio.create_task(host.start())
        await perdure.process.sleep("1ms")
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        while children() or len(process.processes()) > 1:
            await perdure.process.sleep("10ms")
        assert not host.running

    perdure.run(main)


def test_a_dedicated_process_that_had_to_be_killed_is_restarted_though_all_others_are_taken() -> (
    None
):
    async def main() -> None:
        async with ProcessHost("h", kind="os", workers=2, dedicated=True, kill_after="20ms"):
            reader, writer = os.pipe()
            process.spawn(work.wait_for_ever, host="h")
            deaf = child(work.write_and_block, os.getpid(), writer, host="h", name="deaf")
            async with Supervisor([deaf], max_restarts=1):
                await offload(os.read, reader, 1)
                process.kill("deaf")
                await offload(os.read, reader, 1)  # it runs again
                with pytest.raises(SpawnError, match="all 2 workers"):
                    process.spawn(work.double, 1, host="h")
                process.set_options(trap_links=True)
                process.kill("deaf")
            os.close(reader)
            os.close(writer)

    perdure.run(main)


def test_the_processes_of_a_killed_host_of_threads_run_no_more() -> None:
    ended = threading.Event()

    async def until_ended() -> None:
        try:
            await perdure.process.sleep(3600)
        finally:
            ended.set()

    async def main() -> None:
        host = await ProcessHost("h", kind="threads", workers=1).start()
        pid = process.spawn_monitored(until_ended, host="h")
        await perdure.process.sleep("1ms")
        process.kill(host.pid)
        assert (await event_of(Exit)).sender is pid
        assert ended.wait(10)

    perdure.run(main)


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_a_host_that_is_killed_with_the_program_leaves_nothing(kind: str) -> None:
    children = Offspring()

    async def main() -> None:
        host = await ProcessHost("h", kind=kind, workers=2).start()  # pyright: ignore[reportArgumentType]
        process.kill(host.pid)

    perdure.run(main)  # what is made once is made now
    gc.collect()
    before = descriptors(), children()
    perdure.run(main)
    assert (descriptors(), children()) == before


def test_all_threads_are_told_of_a_process_that_is_given_up_in_a_blocked_one() -> None:
    async def main() -> None:
        go = threading.Event()
        async with (
            ProcessHost("blocked", kind="threads", workers=1),
            ProcessHost("other", kind="threads", workers=1),
        ):
            me = process.self_pid()
            pid = process.spawn(_block_until, go, me, host="blocked")
            process.spawn(work.monitor_and_tell, pid, me, host="other")
            await process.inbox().receive()  # it watches
            process.send(pid, "block")
            await process.inbox().receive()  # it blocks
            process.kill(pid)
            assert (await process.inbox().receive()).payload == [pid, "Killed"]
            go.set()

    perdure.run(main, settings=perdure.Settings(abandon_after="50ms"))


def test_all_threads_are_told_of_a_thread_that_is_given_up() -> None:
    async def main() -> None:
        go = threading.Event()
        host = await ProcessHost("blocked", kind="threads", workers=1).start()
        async with ProcessHost("other", kind="threads", workers=1):
            me = process.self_pid()
            pid = process.spawn(_block_until, go, me, host="blocked")
            process.spawn(work.monitor_and_tell, pid, me, host="other")
            await process.inbox().receive()  # it watches
            process.send(pid, "block")
            await process.inbox().receive()  # it blocks
            await host.stop("1ms")
            assert (await process.inbox().receive()).payload == [pid, "HostDown"]
            go.set()

    perdure.run(main, settings=perdure.Settings(abandon_after="50ms"))


async def _block_until(go: threading.Event, to: process.Pid) -> None:
    """Block the thread when told so."""
    await process.inbox().receive()
    process.send(to, "blocking")
    go.wait(10)
