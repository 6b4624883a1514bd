"""Death of OS workers: whoever is tied to a process there is told once, with the cause."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.errors import CallExit, HostBusy, HostDown, Killed, SpawnError
from perdure.otp import Supervisor, child
from perdure.process import Exit, LinkDown, ProcessHost, offload
from perdure.process.hosts.workers import cause_of, oom_kills
from perdure.process.lifecycle import stop_gracefully
from tests.support import work
from tests.support.hosts import event_of

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 30.0


def program(case: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a whole program."""

    def test() -> None:
        perdure.run(case)

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


@pytest.mark.parametrize(
    ("how", "args", "cause"),
    [
        (work.kill_own_os_process, (), "killed by signal 9 (SIGKILL)"),
        (work.segfault, (), "killed by signal 11 (SIGSEGV)"),
        (work.exit_os_process, (3,), "ended by itself with status 3"),
        (work.exhaust_memory, (), "it ran out of memory"),
    ],
)
def test_the_end_of_an_os_process_is_told_once_to_all_who_are_tied_to_its_processes(
    how: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...], cause: str
) -> None:
    async def main() -> None:
        process.set_options(trap_links=True)
        async with ProcessHost("cpu", kind="os", workers=1):
            bystander = process.spawn_linked_monitored(work.wait_for_ever, host="cpu")
            culprit = process.spawn_monitored(how, *args, host="cpu")
            events = [await process.events().receive() for _ in range(3)]
            exits = {event.sender: event for event in events if isinstance(event, Exit)}
            [down] = [event for event in events if isinstance(event, LinkDown)]
            assert set(exits) == {bystander, culprit}
            assert down.sender is bystander
            for error in (down.error, *(ended.result.error for ended in exits.values())):
                assert isinstance(error, HostDown)
                assert cause in error.cause
            process.spawn_monitored(work.double, 2, host="cpu")  # a new worker is there
            assert (await event_of(Exit)).result.value == 4
            assert len(process.events()) == 0

    perdure.run(main)


@program
async def test_a_process_that_wants_too_much_memory_fails_alone() -> None:
    async with ProcessHost("cpu", kind="os", workers=1):
        bystander = process.spawn_monitored(work.until_told, host="cpu")
        process.spawn_monitored(work.want_too_much, host="cpu")
        assert isinstance((await event_of(Exit)).result.error, MemoryError)
        process.send(bystander, "end", "alive")
        assert (await event_of(Exit)).result.value == "alive"


def test_a_kill_for_want_of_memory_is_told_from_another() -> None:
    assert oom_kills() >= 0
    assert cause_of(-9, memory_was_short=True).endswith("ran out of memory meanwhile")
    assert cause_of(-9) == "killed by signal 9 (SIGKILL)"
    assert cause_of(-11, memory_was_short=True) == "killed by signal 11 (SIGSEGV)"


@program
async def test_a_worker_whose_loop_is_blocked_is_ended() -> None:
    async with ProcessHost("cpu", kind="os", workers=1, blocked_after="300ms"):
        process.spawn_monitored(work.block, host="cpu")
        error = (await event_of(Exit)).result.error
        assert isinstance(error, HostDown)
        assert "blocked for 0.3 s" in error.cause


@program
async def test_a_kill_ends_a_dedicated_process_that_never_waits() -> None:
    async with ProcessHost("cpu", kind="os", workers=1, dedicated=True, kill_after="50ms") as host:
        pid = process.spawn_monitored(work.block_after, process.self_pid(), host="cpu")
        await process.inbox().receive()
        with pytest.raises(SpawnError, match="dedicated to one"):
            process.spawn(work.wait_for_ever, host="cpu")
        process.kill(pid)
        assert isinstance((await event_of(Exit)).result.error, Killed)
        assert host.running
        process.spawn_monitored(work.double, 2, host="cpu")  # not on the one that is being killed
        assert (await event_of(Exit)).result.value == 4


@program
async def test_a_polite_stop_ends_a_process_that_never_waits_at_its_deadline() -> None:
    async with ProcessHost("cpu", kind="os", workers=1, dedicated=True, kill_after="50ms"):
        reader, writer = os.pipe()
        pid = process.spawn_monitored(work.write_and_block, os.getpid(), writer, host="cpu")
        await offload(os.read, reader, 1)
        stop_gracefully(pid.target, 0.05)
        assert isinstance((await event_of(Exit)).result.error, Killed)
        os.close(reader)
        os.close(writer)


def test_a_killed_process_that_never_waits_is_given_up_if_others_live_beside_it() -> None:
    async def main() -> None:
        async with ProcessHost("cpu", kind="os", workers=1):
            reader, writer = os.pipe()
            bystander = process.spawn_monitored(work.until_told, host="cpu")
            pid = process.spawn_monitored(
                work.block_until_written, process.self_pid(), os.getpid(), reader, host="cpu"
            )
            await process.inbox().receive()
            process.kill(pid)
            event = await event_of(Exit)
            assert event.sender is pid
            assert isinstance(event.result.error, Killed)
            os.write(writer, b"x")
            process.send(bystander, "end", "alive")
            assert (await event_of(Exit)).result.value == "alive"
            os.close(reader)
            os.close(writer)

    perdure.run(main, settings=perdure.Settings(abandon_after=0.05))


@program
async def test_a_worker_that_does_not_read_is_not_sent_more_than_its_queue_takes() -> None:
    async with ProcessHost("cpu", kind="os", workers=1, queue_size=100, kill_after="50ms"):
        pid = process.spawn(work.block_after, process.self_pid(), host="cpu")
        await process.inbox().receive()
        with pytest.raises(HostBusy, match="queue_size"):
            _send_many(pid)
        process.kill(pid)  # control is never refused


@program
async def test_a_worker_that_calls_one_whose_queue_is_full_is_told_at_once() -> None:
    async with (
        ProcessHost("cpu", kind="os", workers=1, queue_size=100, kill_after="50ms"),
        ProcessHost("other", kind="os", workers=1),
    ):
        pid = process.spawn(work.block_after, process.self_pid(), host="cpu")
        await process.inbox().receive()
        with pytest.raises(HostBusy):
            _send_many(pid)
        process.spawn_monitored(work.call_server, pid, 1, host="other")
        error = (await event_of(Exit)).result.error
        assert isinstance(error, CallExit)
        assert isinstance(error.reason, HostBusy)
        process.kill(pid)


def _send_many(pid: process.Pid) -> None:
    for _ in range(100_000):
        process.send(pid, "more", "x" * 1000)


@program
async def test_supervised_processes_are_restarted_on_a_new_worker() -> None:
    children = [child(work.wait_for_ever, host="cpu", name=f"w{n}", id=n) for n in range(4)]
    async with (
        ProcessHost("cpu", kind="os", workers=1),
        Supervisor(children, max_restarts=10),
    ):
        before = [process.pid_of(f"w{n}") for n in range(4)]
        process.spawn_monitored(work.kill_own_os_process, host="cpu")
        await event_of(Exit)
        while None in (after := [process.whereis(f"w{n}") for n in range(4)]):
            await perdure.process.sleep("10ms")
        assert not set(before) & set(after)


@program
async def test_a_host_whose_workers_die_too_often_gives_up() -> None:
    host = await ProcessHost("cpu", kind="os", workers=1, max_restarts=1).start()
    process.monitor(host.pid)
    ended: dict[process.Pid, process.ExitResult] = {}
    for _ in range(2):
        victim = process.spawn_monitored(work.kill_own_os_process, host="cpu")
        while victim not in ended:
            event = await event_of(Exit)
            ended[event.sender] = event.result
    if host.pid not in ended:
        event = await event_of(Exit)
        ended[event.sender] = event.result
    error = ended[host.pid].error
    assert isinstance(error, HostDown)
    assert "more than 1 workers died" in error.cause
    assert not host.running
    with pytest.raises(SpawnError):
        process.spawn(work.double, 1, host="cpu")


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@program
async def test_a_stopped_host_leaves_no_descriptor_and_no_process() -> None:
    async with ProcessHost("warm", kind="os", workers=1):
        pass  # what is made once is made now
    before = open_descriptors()
    async with ProcessHost("cpu", kind="os", workers=2):
        for _ in range(2):
            process.spawn(work.os_pid, process.self_pid(), host="cpu")
        children = [(await process.inbox().receive()).payload for _ in range(2)]
    assert open_descriptors() == before
    for each in children:
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


@pytest.mark.parametrize("code", ["wait_for_ever", "block", "block_in_c"])
def test_children_die_with_a_parent_that_is_killed(code: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.support.parent_program", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert parent.stdout is not None
    children = [int(number) for number in parent.stdout.readline().split()]
    assert len(children) == 2
    watches = [os.pidfd_open(each) for each in children]
    parent.send_signal(signal.SIGKILL)
    parent.wait(PATIENCE)
    parent.stdout.close()
    for watch in watches:
        assert select.select([watch], [], [], PATIENCE)[0], "a child lives on"
        os.close(watch)
