"""The mailbox: inbox, topics, order, identity of the channels, and bounds."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from perdure import Settings, process
from perdure.errors import ChannelClosed, MailboxFull, NotOwner
from perdure.process import Channel, Exit, Message, Overflow, Pid, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import drain, give, now, others_rest, wait_forever


def send_to_me(topic: str, *payload: Any) -> bool:
    return process.send(process.self_pid(), topic, *payload)


# Routing


@simulated
async def test_a_message_without_a_listener_goes_to_the_inbox() -> None:
    process.listen("other")
    send_to_me("a", 1)
    assert await drain(process.inbox()) == [Message("a", 1, process.self_pid())]


@simulated
async def test_a_listener_takes_the_bare_payloads_of_exactly_its_topic() -> None:
    inbox, updates = process.inbox(), process.listen("update")
    send_to_me("update", 1)
    send_to_me("update.all", 2)
    send_to_me("update", 3)
    assert await drain(updates) == [1, 3]
    assert [message.topic for message in await drain(inbox)] == ["update.all"]


@simulated
async def test_a_listener_can_ask_for_whole_messages() -> None:
    whole = process.listen("a", message=True)
    send_to_me("a", 1)
    assert await whole.receive() == Message("a", 1, process.self_pid())


@simulated
async def test_the_topic_inbox_means_nothing_special() -> None:
    send_to_me("inbox", "x")
    assert (await process.inbox().receive()).topic == "inbox"


@simulated
async def test_a_listener_that_comes_late_gets_what_was_kept_in_order() -> None:
    for n in range(3):
        send_to_me("a", n)
        send_to_me("b", n)
    assert await drain(process.listen("a")) == [0, 1, 2]
    assert [m.payload for m in await drain(process.inbox())] == [0, 1, 2]


@simulated
async def test_what_fell_into_an_inbox_that_is_read_stays_there() -> None:
    inbox = process.inbox()
    send_to_me("a", 1)
    late = process.listen("a")
    send_to_me("a", 2)
    assert await drain(late) == [2]
    assert [message.payload for message in await drain(inbox)] == [1]


# Identity


@simulated
async def test_each_channel_of_a_process_is_one_object_for_ever() -> None:
    first = [process.inbox(), process.events(), process.requests(), process.listen("a")]
    send_to_me("b")
    second = [process.inbox(), process.events(), process.requests(), process.listen("a")]
    assert all(one is two for one, two in zip(first, second, strict=True))


@simulated
async def test_inbox_events_requests_and_listeners_are_different_channels() -> None:
    channels: list[Channel[Any]] = [
        process.inbox(),
        process.events(),
        process.requests(),
        process.listen("a"),
        process.listen("b"),
    ]
    assert len({id(channel) for channel in channels}) == len(channels)


@simulated
async def test_a_topic_cannot_be_listened_to_in_two_shapes() -> None:
    process.listen("a")
    with pytest.raises(ValueError, match="unlisten"):
        process.listen("a", message=True)


@simulated
async def test_a_task_inside_a_process_shares_its_mailbox() -> None:
    async def inner() -> Channel[Message]:
        return process.inbox()

    assert await asyncio.create_task(inner()) is process.inbox()


@simulated
async def test_only_the_process_itself_reads_its_inbox() -> None:
    async def thief(inbox: Channel[Message]) -> None:
        await inbox.receive()

    pid = process.spawn_monitored(thief, process.inbox())
    send_to_me("secret")
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert event.sender is pid
    assert isinstance(event.result.error, NotOwner)
    assert len(await drain(process.inbox())) == 1


@simulated
async def test_a_long_read_stands_that_a_task_of_the_process_takes_the_last_message() -> None:
    count, stolen = 5_000, list[Message]()

    async def thief() -> None:
        while True:
            stolen.append(await process.inbox().receive())

    for n in range(count):
        send_to_me("a", n)
    task, own = asyncio.create_task(thief()), list[Message]()
    try:
        while True:
            async with asyncio.timeout(1):
                own.append(await process.inbox().receive())
    except TimeoutError:
        task.cancel()
    assert sorted(message.payload for message in own + stolen) == list(range(count))


# Unlisten


@simulated
async def test_unlisten_sends_the_topic_to_the_inbox_again() -> None:
    inbox, channel = process.inbox(), process.listen("a")
    process.unlisten(channel)
    send_to_me("a", 1)
    assert [message.payload for message in await drain(inbox)] == [1]


@simulated
async def test_unlisten_wakes_who_waits_with_channel_closed() -> None:
    channel = process.listen("a")
    reader = asyncio.ensure_future(channel.receive())
    await others_rest()
    process.unlisten(channel)
    with pytest.raises(ChannelClosed):
        await reader


@simulated
async def test_what_a_listener_had_received_can_be_read_after_unlisten() -> None:
    channel = process.listen("a")
    send_to_me("a", 1)
    process.unlisten(channel)
    assert [value async for value in channel] == [1]


@simulated
async def test_listen_after_unlisten_gives_a_new_channel() -> None:
    old = process.listen("a")
    process.unlisten(old)
    new = process.listen("a", message=True)
    send_to_me("a", 1)
    assert new is not old
    assert [message.payload for message in await drain(new)] == [1]


@simulated
async def test_unlisten_refuses_what_listen_did_not_give() -> None:
    closed = process.listen("a")
    process.unlisten(closed)
    strangers: list[Channel[Any]] = [Channel(), process.inbox(), process.events(), closed]
    for channel in strangers:
        with pytest.raises(NotOwner):
            process.unlisten(channel)


@pytest.mark.parametrize("topic", ["", "@events", None])
@simulated
async def test_listen_refuses_what_is_no_topic(topic: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        process.listen(topic)


# Flush


@simulated(settings=Settings(turn_steps=1))
async def test_unmonitor_in_a_task_takes_back_an_exit_that_the_process_was_about_to_get() -> None:
    ended = asyncio.get_running_loop().create_future()

    async def target() -> None:
        await process.inbox().receive()
        ended.set_result(None)

    async def forget(pid: Pid) -> None:
        await ended
        process.unmonitor(pid)

    pid = process.spawn_monitored(target)
    task = asyncio.create_task(forget(pid))
    await others_rest()
    process.send(pid, "end")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await process.events().receive()
    await task


# Order


async def count_up(dest: Pid, label: str) -> None:
    for n in range(5):
        process.send(dest, label if n % 2 else "shared", (label, n))
        await sleep("1ms")


@pytest.mark.parametrize("seed", range(10))
def test_messages_of_one_sender_keep_their_order_in_each_channel(seed: int) -> None:
    async def main() -> None:
        shared, odd = process.listen("shared"), process.inbox()
        for label in "xyz":
            process.spawn(count_up, process.self_pid(), label)
        await sleep(1)
        even = await drain(shared)
        rest = [message.payload for message in await drain(odd)]
        for label in "xyz":
            assert [n for sender, n in even if sender == label] == [0, 2, 4]
            assert [n for sender, n in rest if sender == label] == [1, 3]

    simulate(main, seed=seed)


@pytest.mark.parametrize("topic", ["for the inbox", "listened to"])
@simulated
async def test_a_reader_that_waits_gets_all_that_is_sent_in_one_turn_in_order(topic: str) -> None:
    got: list[Any] = []

    async def reader() -> None:
        channel: Channel[Any] = process.inbox()
        if topic == "listened to":
            channel = process.listen(topic, message=True)
        while True:
            got.append((await channel.receive()).payload)

    pid = process.spawn(reader)
    await others_rest()
    for n in range(5):
        process.send(pid, topic, n)
    await others_rest()
    assert got == [0, 1, 2, 3, 4]


@simulated
async def test_a_reader_interrupted_while_messages_come_gets_them_all_in_order() -> None:
    got: list[Any] = []

    async def reader() -> None:
        with pytest.raises(asyncio.CancelledError):
            await process.inbox().receive()
        while True:
            got.append((await process.inbox().receive()).payload)

    pid = process.spawn(reader)
    await others_rest()
    for n in range(3):
        process.send(pid, "a", n)
    pid.target.cancel()
    await others_rest()
    assert got == [0, 1, 2]


@simulated
async def test_a_message_that_comes_when_its_reader_waits_elsewhere_is_kept_for_it() -> None:
    got: list[Any] = []

    async def reader() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await process.inbox().receive()
        await sleep(2)
        got.extend([now(), (await process.inbox().receive()).payload])

    pid = process.spawn(reader)
    await sleep(2)
    process.send(pid, "a", "kept")
    await sleep(2)
    assert got == [3, "kept"]


@simulated
async def test_none_among_the_payloads_keeps_its_place() -> None:
    got: list[Any] = []

    async def reader() -> None:
        channel = process.listen("a")
        while True:
            got.append(await channel.receive())

    pid = process.spawn(reader)
    await others_rest()
    for payload in (None, 1, None, 2):
        process.send(pid, "a", payload)
    await others_rest()
    assert got == [None, 1, None, 2]


# Bounds


async def bounded(overflow: Overflow, limit: int = 2) -> None:
    process.set_options(mailbox_limit=limit, overflow=overflow)
    await wait_forever()


@simulated
async def test_a_full_mailbox_that_rejects_tells_the_sender_and_keeps_what_it_has() -> None:
    process.set_options(mailbox_limit=2, overflow="reject")
    send_to_me("a", 1)
    send_to_me("a", 2)
    with pytest.raises(MailboxFull) as caught:
        send_to_me("a", 3)
    assert (caught.value.pid, caught.value.limit) == (process.self_pid(), 2)
    assert [message.payload for message in await drain(process.inbox())] == [1, 2]


@simulated
async def test_a_mailbox_that_was_full_takes_again_what_was_made_room_for() -> None:
    process.set_options(mailbox_limit=1)
    send_to_me("a", 1)
    await process.inbox().receive()
    send_to_me("a", 2)
    assert (await process.inbox().receive()).payload == 2


@simulated
async def test_a_full_mailbox_that_drops_the_newest_says_false() -> None:
    process.set_options(mailbox_limit=2, overflow="drop_newest")
    assert [send_to_me("a", n) for n in range(4)] == [True, True, False, False]
    assert [message.payload for message in await drain(process.inbox())] == [0, 1]


@simulated
async def test_a_full_mailbox_that_drops_the_oldest_keeps_the_latest_in_order() -> None:
    process.set_options(mailbox_limit=2, overflow=Overflow.DROP_OLDEST)
    assert all(send_to_me("a", n) for n in range(5))
    assert [message.payload for message in await drain(process.inbox())] == [3, 4]


@simulated
async def test_a_full_mailbox_with_the_rule_exit_ends_its_process() -> None:
    pid = process.spawn_monitored(bounded, Overflow.EXIT)
    await others_rest()
    assert [process.send(pid, "a") for _ in range(3)] == [True, True, False]
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert isinstance(event.result.error, MailboxFull)


@simulated
async def test_each_channel_of_a_mailbox_has_the_limit_for_itself() -> None:
    process.set_options(mailbox_limit=1)
    updates = process.listen("update")
    send_to_me("update", 1)
    send_to_me("other", 2)
    with pytest.raises(MailboxFull):
        send_to_me("update", 3)
    assert await drain(updates) == [1]


@simulated
async def test_events_are_never_refused_by_a_full_mailbox() -> None:
    process.set_options(mailbox_limit=1)
    pids = {process.spawn_monitored(give) for _ in range(5)}
    await others_rest()
    assert {event.sender for event in await drain(process.events())} == pids


@simulated
async def test_a_limit_can_be_lifted() -> None:
    process.set_options(mailbox_limit=1)
    process.set_options(mailbox_limit=None)
    assert all(send_to_me("a") for _ in range(100))


@simulated(settings=Settings(mailbox_limit=1, overflow="drop_newest"))
async def test_the_settings_of_the_runtime_bound_every_mailbox() -> None:
    pid = process.spawn(wait_forever)
    assert [process.send(pid, "a"), process.send(pid, "a")] == [True, False]


@pytest.mark.parametrize(
    "options",
    [
        {"mailbox_limit": 0},
        {"mailbox_limit": -1},
        {"mailbox_limit": "9"},
        {"mailbox_limit": True},
        {"overflow": "explode"},
    ],
)
@simulated
async def test_a_bound_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    before = process.get_options()
    with pytest.raises((ValueError, TypeError)):
        process.set_options(**options)
    assert process.get_options() == before


# The end


@simulated
async def test_a_dead_process_keeps_none_of_its_messages() -> None:
    class Payload:
        pass

    payload = Payload()
    gone = weakref.ref(payload)
    pid = process.spawn(wait_forever)
    process.send(pid, "a", payload)
    del payload
    process.kill(pid)
    await others_rest()
    gc.collect()
    assert gone() is None
