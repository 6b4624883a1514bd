"""Messages and requests across hosts."""

import pytest

from perdure import process
from perdure.errors import CallExit, CallTimeout, NoProcess, NotPortable
from perdure.process import Exit
from tests.support import work
from tests.support.hosts import event_of, on_every_host, on_os_host


@on_every_host
async def test_a_message_comes_back_with_the_same_pid(host: str) -> None:
    pid = process.spawn(work.echo, host=host)
    process.send(pid, "hello", {"who": process.self_pid()})

    message = await process.inbox().receive()

    payload, sender = message.payload
    assert message.topic == "hello"
    assert sender is pid
    assert message.sender is pid
    assert payload["who"] is process.self_pid()
    process.kill(pid)


@on_every_host
async def test_values_keep_their_types(host: str) -> None:
    values = [
        *(None, True, 0, -1, 2**63, 2**70, 1.5, "text", b"bytes"),
        *([1, [2]], (1, (2,)), {"a": [1]}, {1: 2}, {1, 2}, frozenset({3}), {"b": {"c": (1,)}}),
        *(range(3), complex(1, 2), ValueError),
    ]
    pid = process.spawn(work.echo, host=host)
    for value in values:
        process.send(pid, "value", value)
        back = (await process.inbox().receive()).payload[0]
        assert (back, type(back)) == (value, type(value))
    process.kill(pid)


@on_every_host
async def test_messages_of_one_sender_keep_their_order(host: str) -> None:
    pid = process.spawn_monitored(work.collect, 2000, host=host)
    for number in range(2000):
        process.send(pid, "number", number)
    assert (await event_of(Exit)).result.value == list(range(2000))


@on_every_host
async def test_messages_between_two_processes_of_a_host_keep_their_order(host: str) -> None:
    receiver = process.spawn_monitored(work.collect, 501, host=host)
    sender = process.spawn(work.relay, receiver, 500, host=host)
    values = (await event_of(Exit)).result.value
    assert values == [*range(500), sender]
    assert values[-1] is sender


@on_every_host
async def test_a_send_to_the_dead_is_false(host: str) -> None:
    pid = process.spawn_monitored(work.double, 1, host=host)
    await event_of(Exit)
    assert process.send(pid, "late") is False


@on_os_host
async def test_a_payload_that_cannot_cross_is_refused_at_the_send(host: str) -> None:
    pid = process.spawn(work.echo, host=host)
    with pytest.raises(NotPortable, match="lambda"):
        process.send(pid, "bad", lambda: None)
    process.send(pid, "good", 1)
    assert (await process.inbox().receive()).payload[0] == 1
    process.kill(pid)


@on_every_host
async def test_a_call_is_answered(host: str) -> None:
    pid = process.spawn(work.answer_requests, host=host)
    body, sender = await process.call(pid, (1, "two"))
    assert body == (1, "two")
    assert sender is process.self_pid()
    process.kill(pid)


@on_every_host
async def test_a_worker_calls_another(host: str) -> None:
    server = await work.Counter.start_link(1, host=host)
    process.spawn_monitored(work.call_server, server.pid, 41, host=host)
    assert (await event_of(Exit)).result.value == 42
    await server.stop()


@on_every_host
async def test_a_worker_calls_home(host: str) -> None:
    server = await work.Counter.start_link(1)
    process.spawn_monitored(work.call_server, server.pid, 41, host=host)
    assert (await event_of(Exit)).result.value == 42
    await server.stop()


@on_every_host
async def test_a_call_that_is_not_answered_in_time_ends(host: str) -> None:
    pid = process.spawn(work.never_answer, host=host)
    with pytest.raises(CallTimeout):
        await process.call(pid, "?", "10ms")
    process.kill(pid)


@on_every_host
async def test_a_call_fails_with_the_death_of_the_server(host: str) -> None:
    pid = process.spawn(work.die_when_asked, host=host)
    with pytest.raises(CallExit) as raised:
        await process.call(pid, "?", None)
    assert isinstance(raised.value.reason, ValueError)
    with pytest.raises(CallExit) as raised:
        await process.call(pid, "?")
    assert isinstance(raised.value.reason, NoProcess)
