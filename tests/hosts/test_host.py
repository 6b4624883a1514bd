"""The life of a host: its options, its limits, its stop."""

import asyncio
import logging
from pathlib import Path
from typing import Literal

import pytest

import perdure
from perdure import process
from perdure.errors import Killed, SpawnError
from perdure.process import Exit, ProcessHost
from tests.support import bare, work
from tests.support.hosts import KINDS, event_of

Kind = Literal["inline", "threads", "os"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_is_known_from_its_start_to_its_stop(kind: Kind) -> None:
    async def main() -> None:
        host = ProcessHost("h", kind=kind)
        assert not host.running
        with pytest.raises(SpawnError, match="unknown host"):
            process.spawn(work.double, 1, host="h")
        await host.start()
        assert host.running
        process.spawn_monitored(work.double, 1, host="h")
        assert (await event_of(Exit)).result.value == 2
        with pytest.raises(SpawnError, match="runs already"):
            await ProcessHost("h").start()
        await host.stop()
        assert not host.running
        with pytest.raises(SpawnError, match="unknown host"):
            process.spawn(work.double, 1, host="h")
        await host.stop()  # once more does nothing
        await host.start()
        process.spawn_monitored(work.double, 2, host="h")
        assert (await event_of(Exit)).result.value == 4

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_processes_than_the_limit_live_on_a_host(kind: Kind) -> None:
    async def main() -> None:
        async with ProcessHost("h", kind=kind, workers=1, max_processes=2):
            pids = [process.spawn_monitored(work.wait_for_ever, host="h") for _ in range(2)]
            with pytest.raises(SpawnError, match="has 2 processes"):
                process.spawn(work.double, 1, host="h")
            process.kill(pids[0])
            await event_of(Exit)
            process.spawn_monitored(work.double, 1, host="h")
            assert (await event_of(Exit)).result.value == 2

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_cancels_waits_and_then_kills(kind: Kind) -> None:
    async def main() -> None:
        host = await ProcessHost("h", kind=kind, workers=1).start()
        polite = process.spawn_monitored(work.until_cancelled, host="h")
        deaf = process.spawn_monitored(work.ignore_cancel, host="h")
        plain = process.spawn_monitored(work.wait_for_ever, host="h")
        await _all_run("h")
        await host.stop("200ms")
        ends = {ended.sender: ended.result for ended in [await event_of(Exit) for _ in range(3)]}
        assert ends[polite].value == "cancelled"
        assert isinstance(ends[deaf].error, Killed)
        assert isinstance(ends[plain].error, Killed)

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_leaves_a_process_that_reads_no_events_the_time_to_finish(kind: Kind) -> None:
    async def main() -> None:
        host = await ProcessHost("h", kind=kind, workers=1).start()
        slow = process.spawn_monitored(work.until_told, host="h")
        await _all_run("h")
        stop = asyncio.create_task(host.stop("1h"))
        while host.running:
            await process.sleep(0)
        process.send(slow, "go", None)
        await stop
        assert (await event_of(Exit)).result.ok

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_sends_cancel_to_a_process_that_has_not_run_yet(kind: Kind) -> None:
    async def main() -> None:
        host = await ProcessHost("h", kind=kind, workers=1).start()
        process.spawn_monitored(work.until_cancelled, host="h")
        await host.stop("1h")
        assert (await event_of(Exit)).result.value == "cancelled"

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_block_interrupts_a_process_that_reads_no_events(kind: Kind) -> None:
    async def main() -> None:
        async with ProcessHost("h", kind=kind, workers=1):
            process.spawn_monitored(work.wait_for_ever, host="h")
            await _all_run("h")
        ended = (await event_of(Exit)).result.error
        assert isinstance(ended, perdure.errors.Shutdown)
        assert ended.detail == "host 'h' stops"

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_linked_to_a_server_on_a_host_reads_that_the_host_stops(kind: Kind) -> None:
    async def main() -> None:
        async with ProcessHost("h", kind=kind, workers=1):
            await perdure.otp.Agent.start_link(int, host="h")

    with pytest.raises(perdure.errors.Shutdown, match="host 'h' stops"):
        perdure.run(main)


async def _all_run(host: str) -> None:
    """Wait for a process that was started last: those before it have run."""
    process.spawn_monitored(work.double, 1, host=host)
    await event_of(Exit)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_before_the_stop_is_heard(kind: Kind) -> None:
    async def main() -> None:
        host = await ProcessHost("h", kind=kind, workers=1).start()
        process.spawn(work.say_goodbye, process.self_pid(), 3000, host="h")
        await process.inbox().receive()
        await host.stop()
        heard = [(await process.inbox().receive()).payload for _ in range(3000)]
        assert heard == list(range(3000))

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_that_is_left_running_ends_with_the_program(kind: Kind) -> None:
    async def main() -> None:
        await ProcessHost("h", kind=kind, workers=1).start()
        process.spawn(work.wait_for_ever, host="h")

    perdure.run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_that_is_killed_takes_its_processes_along(kind: Kind) -> None:
    async def main() -> None:
        host = await ProcessHost("h", kind=kind, workers=1).start()
        pid = process.spawn_monitored(work.wait_for_ever, host="h")
        process.kill(host.pid)
        ended = await event_of(Exit)
        assert ended.sender is pid
        assert not ended.result.ok
        assert not host.running

    perdure.run(main)


def test_atexit_runs_in_a_worker_that_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "left"

    async def main() -> None:
        async with ProcessHost("h", kind="os", workers=1):
            process.spawn_monitored(work.write_at_exit, str(path), host="h")
            await event_of(Exit)

    perdure.run(main)
    assert path.read_text() == "orderly"


def test_a_log_record_of_a_worker_is_logged_by_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with ProcessHost("h", kind="os", workers=1):
            process.spawn_monitored(work.log_a_warning, "it", host="h")
            await event_of(Exit)

    with caplog.at_level(logging.WARNING):
        perdure.run(main)
    assert [record.getMessage() for record in caplog.records] == ["it happened"]


def test_a_host_is_refused_on_a_worker() -> None:
    async def main() -> None:
        async with ProcessHost("h", kind="threads", workers=1):
            process.spawn_monitored(_start_a_host, host="h")
            assert isinstance((await event_of(Exit)).result.error, SpawnError)

    perdure.run(main)


async def _start_a_host() -> None:
    await ProcessHost("inner").start()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"kind": "fork"}, "kind"),
        ({"workers": -1}, "workers"),
        ({"max_processes": 0}, "max_processes"),
        ({"queue_size": 0}, "queue_size"),
        ({"name": "inline"}, "running loop"),
        ({"name": ""}, "empty"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ProcessHost(**{"name": "h", "kind": "os", **options})  # pyright: ignore[reportArgumentType]


def test_a_host_works_in_a_loop_that_is_somebody_elses() -> None:
    async def main() -> None:
        async with perdure.process.Runtime(), ProcessHost("h", kind="threads", workers=1):
            process.spawn_monitored(work.double, 1, host="h")
            assert (await event_of(Exit)).result.value == 2

    asyncio.run(main())


def test_a_child_loads_the_kernel_alone_and_the_rest_when_it_is_asked_for() -> None:
    async def main() -> None:
        async with ProcessHost("h", kind="os", workers=1):
            process.spawn_monitored(bare.loaded, host="h")
            assert (await event_of(Exit)).result.value == []
            process.spawn_monitored(bare.all_of_it, host="h")
            assert (await event_of(Exit)).result.value is True
            process.spawn_monitored(bare.loaded, host="h")
            assert "otp" in (await event_of(Exit)).result.value

    perdure.run(main)
