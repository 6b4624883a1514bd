"""The wire between a parent and its child: what goes wrong on it harms nobody else."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.errors import CallExit, HostDown, NotPortable, TaskExit
from perdure.otp import Task
from perdure.process import Exit, Message, Pid, ProcessHost, offload
from perdure.process.hosts import signals
from perdure.process.hosts.frame import Unframer, frame
from perdure.process.hosts.packing import pack_signal, unpack_signal
from perdure.process.hosts.pickling import PIDS
from perdure.process.hosts.root_node import root_node_of
from perdure.process.hosts.wire import SocketWire
from perdure.process.process import current
from tests.support import work
from tests.support.hosts import event_of, on_os_host

WireCase = Callable[[SocketWire, socket.socket], Coroutine[Any, Any, None]]


def on_a_wire(case: WireCase) -> Callable[[], None]:
    """Run a case with one end of a wire, and the bare socket at its other end."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        wire = SocketWire(root_node_of(current().runtime), ours, "test", 1000)
        try:
            await case(wire, theirs)
        finally:
            wire.close()
            theirs.close()

    def test() -> None:
        perdure.run(main)

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


def said(*payloads: object) -> bytes:
    """Give the frame of messages to the running process."""
    me = process.self_pid()
    PIDS.add(me)  # as one that has crossed
    told = [signals.SendSignal(me, Message("said", payload, None)) for payload in payloads]
    return frame([pack_signal(each) for each in told])


async def closed(wire: SocketWire) -> None:
    gone = current().loop.create_future()
    wire.on_closed = lambda: gone.set_result(None)
    await gone


@on_a_wire
async def test_what_was_said_before_a_death_is_heard_though_no_answer_can_be_sent(
    wire: SocketWire, other: socket.socket
) -> None:
    wire.post(signals.PingSignal(1))
    wire.flush()  # it lies unread in a socket that is closed now
    other.sendall(said(1, 2))
    other.close()
    wire.post(signals.PingSignal(2))
    wire.flush()  # the system says that nobody is there
    assert [(await process.inbox().receive()).payload for _ in range(2)] == [1, 2]
    if not wire.closed:
        await closed(wire)


@on_a_wire
async def test_half_a_frame_of_one_who_died_is_dropped(
    wire: SocketWire, other: socket.socket
) -> None:
    other.sendall(said("whole") + said("half")[:-3])
    other.close()
    await closed(wire)
    assert (await process.inbox().receive()).payload == "whole"
    assert len(process.inbox()) == 0


@on_a_wire
async def test_garbage_closes_the_wire_and_stops_nothing_else(
    wire: SocketWire, other: socket.socket
) -> None:
    told: list[str] = []
    wire.on_garbage = lambda: told.append("garbage")
    other.sendall(said("before"))
    other.sendall(b"what is this?" * 10)
    await closed(wire)
    assert told == ["garbage"]
    assert (await process.inbox().receive()).payload == "before"
    await perdure.process.sleep("1ms")  # the loop goes on


@on_a_wire
async def test_a_reader_that_falls_behind_gets_everything_in_order(
    wire: SocketWire, other: socket.socket
) -> None:
    for number in range(200):
        wire.post(signals.HostsSignal([str(number), "x" * 10_000]))
        wire.flush()
    received = bytearray()
    other.setblocking(False)
    wanted = b"".join(
        frame([pack_signal(signals.HostsSignal([str(number), "x" * 10_000]))])
        for number in range(200)
    )
    while len(received) < len(wanted):
        try:
            received += other.recv(1 << 16)
        except BlockingIOError:
            await perdure.process.sleep("1ms")  # the loop writes the rest
    assert received == wanted
    wire.offer(signals.HostsSignal([]))  # there is room again


@on_a_wire
async def test_what_several_threads_post_arrives_whole_and_in_the_order_of_each(
    wire: SocketWire, other: socket.socket
) -> None:
    threads, count = 3, 300
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    async def post_all(thread: int) -> None:
        await offload(lambda: [post(thread, number) for number in range(count)])

    def post(thread: int, number: int) -> None:
        wire.post(signals.HostsSignal([str(thread), str(number), "x" * 70_000]))

    async def read() -> list[Any]:
        unframer, items = Unframer(), list[Any]()
        while len(items) < (threads + 1) * count:
            items += unframer.feed(await offload(other.recv, 1 << 20))
        return [unpack_signal(item) for item in items]

    try:
        reading = Task.create(read)
        for thread in range(threads):
            process.spawn(post_all, thread)
        for number in range(count):
            post(threads, number)
            await perdure.process.sleep(0)
        heard = await reading
    finally:
        sys.setswitchinterval(before)
    for thread in range(threads + 1):
        numbers = [each.names[1] for each in heard if each.names[0] == str(thread)]
        assert numbers == list(map(str, range(count)))


# Whole workers


@on_os_host
async def test_a_worker_that_writes_garbage_is_ended(host: str) -> None:
    del host  # its workers are needed by others
    async with ProcessHost("garbage", kind="os", workers=1):
        process.spawn_monitored(work.write_garbage, host="garbage")
        error = (await event_of(Exit)).result.error
        assert isinstance(error, HostDown)
        assert "not a signal" in error.cause


@on_os_host
async def test_a_message_is_what_it_was_at_the_send(host: str) -> None:
    pid = process.spawn(work.echo, host=host)
    payload: list[Any] = [1]
    process.send(pid, "list", payload)
    payload.append(lambda: None)
    assert (await process.inbox().receive()).payload[0] == [1]
    process.kill(pid)


@on_os_host
async def test_a_value_that_cannot_be_unpacked_ends_its_process_all_the_same(host: str) -> None:
    process.spawn_monitored(work.give_explosive, host=host)
    assert "not here" in str((await event_of(Exit)).result.value)
    with pytest.raises(TaskExit) as raised:
        await Task.create(work.give_explosive, host=host)
    assert isinstance(raised.value.reason, NotPortable)


def test_a_message_that_cannot_be_unpacked_is_lost_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with ProcessHost("cpu", kind="os", workers=1):
            pid = process.spawn(work.echo, host="cpu")
            process.send(pid, "bad", work.Explosive())
            process.send(pid, "good", 1)
            assert (await process.inbox().receive()).topic == "good"
            server = process.spawn(work.answer_requests, host="cpu")
            with pytest.raises(CallExit) as raised:
                await process.call(server, work.Explosive())
            assert isinstance(raised.value.reason, NotPortable)
            assert (await process.call(server, 1))[0] == 1

    with caplog.at_level(logging.ERROR):
        perdure.run(main)
    assert any("was lost: not here" in message for message in caplog.messages)


@on_os_host
async def test_two_who_flood_each_other_do_not_stop(host: str) -> None:
    pid = process.spawn(work.echo, host=host)
    for number in range(10_000):
        process.send(pid, "flood", [number, "x" * 1000])
    back = [(await process.inbox().receive()).payload[0][0] for _ in range(10_000)]
    assert back == list(range(10_000))
    process.kill(pid)


@on_os_host
async def test_what_is_large_crosses_whole(host: str) -> None:
    pid = process.spawn(work.echo, host=host)
    payload = os.urandom(1 << 20) * 20
    process.send(pid, "large", payload)
    process.send(pid, "small", 1)
    assert (await process.inbox().receive()).payload[0] == payload
    assert (await process.inbox().receive()).payload[0] == 1
    process.kill(pid)


@on_os_host
async def test_a_worker_whose_own_child_holds_its_wire_is_still_seen_to_die(host: str) -> None:
    del host
    async with ProcessHost("fork", kind="os", workers=1):
        pid = process.spawn_monitored(work.fork_and_wait, process.self_pid(), host="fork")
        own_child, worker = (await process.inbox().receive()).payload
        os.kill(worker, signal.SIGKILL)
        try:
            event = await event_of(Exit)
            assert event.sender is pid
            assert isinstance(event.result.error, HostDown)
        finally:
            os.kill(own_child, signal.SIGKILL)


@on_os_host
async def test_a_name_of_a_worker_that_died_is_free_everywhere(host: str) -> None:
    async with ProcessHost("names", kind="os", workers=1):
        pid = process.spawn_monitored(
            work.take_name, "of-the-dead", process.self_pid(), host="names"
        )
        assert (await process.inbox().receive()).payload is True
        process.spawn(work.kill_own_os_process, host="names")
        while (await event_of(Exit)).sender is not pid:
            pass
        assert process.whereis("of-the-dead") is None
        heir: Pid = process.spawn(work.take_name, "of-the-dead", process.self_pid(), host=host)
        assert (await process.inbox().receive()).payload is True
        assert process.whereis("of-the-dead") is heir
        process.kill(heir)
