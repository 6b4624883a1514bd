"""Select: one case is done, the first that can be, and the others leave no trace."""

from typing import Any

import pytest

from perdure import process
from perdure.errors import ChannelClosed, NotOwner
from perdure.process import Channel, Message, Selected, after, select, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import INTERRUPTS, Interrupt, drain, now, others_rest, wait_forever

Log = list[Any]


async def filled(*values: Any) -> Channel[Any]:
    channel = Channel[Any](len(values))
    for value in values:
        await channel.send(value)
    return channel


async def choose(log: Log, *cases: Any) -> None:
    log.append(await select(*cases))


# Which one


@simulated
async def test_of_several_ready_cases_the_first_in_the_written_order_is_done() -> None:
    a, b = await filled("a"), await filled("b")
    assert (await select(a, b)).value == "a"
    a = await filled("a")
    assert (await select(b, a)).value == "b"


@simulated
async def test_the_ready_cases_that_lose_keep_their_values() -> None:
    a, b = await filled("a"), await filled("b")
    await select(a, b)
    assert await drain(b) == ["b"]


@pytest.mark.parametrize("seed", range(10))
def test_the_written_order_counts_also_when_all_become_ready_while_it_waits(seed: int) -> None:
    async def main() -> None:
        log, channels = Log(), [Channel[int](1) for _ in range(3)]
        process.spawn(choose, log, *channels)
        await others_rest()
        for n in (2, 1, 0):
            await channels[n].send(n)
        await others_rest()
        assert [selected.value for selected in log] == [0]
        assert [await drain(channel) for channel in channels] == [[], [1], [2]]

    simulate(main, seed=seed)


@simulated
async def test_select_waits_until_something_is_ready() -> None:
    log, a, b = Log(), Channel[int](), Channel[int]()
    process.spawn(choose, log, a, b)
    await sleep("1h")
    assert log == []
    await b.send(7)
    await others_rest()
    assert log == [Selected(b, 7, True)]


@simulated
async def test_the_result_unpacks_to_channel_value_ok_and_has_the_very_channel() -> None:
    a, b = Channel[int](), await filled(5)
    selected = await select(a, b)
    channel, value, ok = selected
    assert channel is b
    assert (value, ok, selected.default) == (5, True, False)


@simulated
async def test_a_channel_that_is_named_twice_is_served_once() -> None:
    log, channel = Log(), Channel[int](2)
    process.spawn(choose, log, channel, channel)
    await others_rest()
    await channel.send(1)
    await channel.send(2)
    await others_rest()
    assert [selected.value for selected in log] == [1]
    assert await drain(channel) == [2]


@simulated
async def test_inbox_events_and_a_time_out_are_ordinary_cases() -> None:
    chosen: Log = []
    process.send(process.self_pid(), "work", 1)
    process.cancel(process.self_pid())
    for _ in range(3):
        chosen.append(await select(process.events(), process.inbox(), after("5s")))
    assert [selected.channel for selected in chosen[:2]] == [process.events(), process.inbox()]
    assert chosen[1].value == Message("work", 1, process.self_pid())
    assert chosen[2].value == now() == 5


# Default


@simulated
async def test_with_a_default_nothing_ready_is_told_at_once() -> None:
    selected = await select(Channel[int](), Channel[int]().case_send(1), default=True)
    assert selected.default
    assert selected == (None, None, True)
    assert now() == 0


@simulated
async def test_with_a_default_what_is_ready_is_done() -> None:
    channel = await filled(1)
    selected = await select(channel, default=True)
    assert (selected.value, selected.default) == (1, False)


# Send cases


@simulated
async def test_a_send_case_with_room_sends_its_value() -> None:
    channel = Channel[int](1)
    assert await select(channel.case_send(4)) == Selected(channel, 4, True)
    assert await drain(channel) == [4]


@simulated
async def test_a_send_case_waits_for_a_receiver() -> None:
    log, channel = Log(), Channel[int]()
    process.spawn(choose, log, channel.case_send(4), Channel[int]())
    await others_rest()
    assert log == []
    assert await channel.receive() == 4
    await others_rest()
    assert log == [Selected(channel, 4, True)]


@simulated
async def test_of_two_send_cases_only_one_value_is_taken_though_two_receivers_come_at_once() -> (
    None
):
    log, a, b = Log(), Channel[str](), Channel[str]()
    process.spawn(choose, log, a.case_send("a"), b.case_send("b"))
    await others_rest()
    assert await b.receive() == "b"
    assert (await select(a, default=True)).default
    await others_rest()
    assert [selected.value for selected in log] == ["b"]


@simulated
async def test_a_send_case_that_is_not_chosen_does_not_send() -> None:
    a, b = await filled("a"), Channel[str](1)
    assert (await select(a, b.case_send("b"))).channel is a
    assert await drain(b) == []


@simulated
async def test_a_send_case_can_be_used_again() -> None:
    log, channel, other = Log(), Channel[str](), Channel[str](1)
    case = channel.case_send("x")

    async def twice() -> None:
        log.append((await select(case, other)).value)
        log.append((await select(case, other)).value)

    process.spawn(twice)
    await others_rest()
    assert await channel.receive() == "x"
    await others_rest()
    await other.send("other")
    await others_rest()
    assert log == ["x", "other"]


@simulated
async def test_a_select_completes_only_one_of_two_senders() -> None:
    chosen, sent, a, b = Log(), Log(), Channel[str](), Channel[str]()

    async def put(channel: Channel[str], value: str) -> None:
        await channel.send(value)
        sent.append(value)

    process.spawn(choose, chosen, a, b)
    await others_rest()
    process.spawn(put, b, "b")
    process.spawn(put, a, "a")
    await others_rest()
    assert [selected.value for selected in chosen] == sent
    assert len(sent) == 1


@pytest.mark.parametrize("seed", range(5))
def test_two_processes_that_would_send_or_receive_meet(seed: int) -> None:
    async def main() -> None:
        log, channel = Log(), Channel[int]()
        for n in (1, 2):
            process.spawn(choose, log, channel, channel.case_send(n))
        await others_rest()
        assert len(log) == 2
        assert log[0].value == log[1].value

    simulate(main, seed=seed)


# Closed


@simulated
async def test_a_closed_and_empty_channel_is_ready_and_says_not_ok() -> None:
    channel = Channel[int]()
    channel.close()
    assert await select(Channel[int](), channel) == Selected(channel, None, False)


@simulated
async def test_what_a_closed_channel_still_holds_is_received_first() -> None:
    channel = await filled(1)
    channel.close()
    assert await select(channel) == (channel, 1, True)
    assert await select(channel) == (channel, None, False)


@simulated
async def test_a_close_wakes_a_select_that_waits() -> None:
    log, a, b = Log(), Channel[int](), Channel[int]()
    process.spawn(choose, log, a, b)
    await others_rest()
    b.close()
    await others_rest()
    assert log == [Selected(b, None, False)]


@pytest.mark.parametrize("when", ["before", "while it waits"])
@simulated
async def test_a_send_case_of_a_closed_channel_fails(when: str) -> None:
    log, channel, other = Log(), Channel[int](), Channel[int]()

    async def attempt() -> None:
        with pytest.raises(ChannelClosed):
            await select(other, channel.case_send(1))
        log.append("closed")

    if when == "before":
        channel.close()
    process.spawn(attempt)
    await others_rest()
    channel.close()
    await others_rest()
    assert log == ["closed"]
    assert (await select(other.case_send(1), default=True)).default


# No trace


@simulated
async def test_a_receive_case_that_lost_does_not_wait_any_more() -> None:
    log, a, b = Log(), Channel[int](), Channel[int]()
    process.spawn(choose, log, a, b)
    await others_rest()
    await a.send(1)
    await others_rest()
    assert (await select(b.case_send(2), default=True)).default


@simulated
async def test_a_send_case_that_lost_offers_its_value_no_more() -> None:
    log, a, b = Log(), Channel[int](), Channel[int]()
    process.spawn(choose, log, a, b.case_send(2))
    await others_rest()
    await a.send(1)
    await others_rest()
    assert (await select(b, default=True)).default


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_a_select_that_is_interrupted_leaves_no_trace(
    interrupt: Interrupt,
) -> None:
    log, a, b = Log(), Channel[int](), Channel[int]()
    pid = process.spawn(choose, log, a, b.case_send(2), after("1h"))
    await others_rest()
    interrupt(pid)
    await others_rest()
    assert (await select(a.case_send(1), b, default=True)).default
    assert log == []


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_a_select_interrupted_when_it_was_ready_passes_its_value_on(
    interrupt: Interrupt,
) -> None:
    log, a, b = Log(), Channel[int](1), Channel[int](1)
    pid = process.spawn(choose, log, a, b)
    await others_rest()
    process.spawn(choose, log, b)
    await others_rest()
    await b.send(7)
    interrupt(pid)
    await others_rest()
    assert [selected.value for selected in log] == [7]


# Mistakes


@pytest.mark.parametrize("case", [None, 5, "inbox", wait_forever, [], Channel])
@simulated
async def test_what_is_no_case_is_refused_and_nothing_is_taken(case: Any) -> None:
    channel = await filled(1)
    with pytest.raises(TypeError):
        await select(channel, case)
    assert await drain(channel) == [1]


@simulated
async def test_select_without_a_case_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one case"):
        await select()


async def lend_inbox(to: list[Channel[Message]]) -> None:
    to.append(process.inbox())
    await wait_forever()


@simulated
async def test_the_inbox_of_another_process_is_no_case() -> None:
    lent: list[Channel[Message]] = []
    pid = process.spawn(lend_inbox, lent)
    await others_rest()
    process.send(pid, "secret")
    with pytest.raises(NotOwner):
        await select(lent[0], after("1s"))
    assert process.info(pid).mailbox == 1


@simulated
async def test_a_foreign_inbox_is_refused_even_if_another_case_is_ready() -> None:
    lent: list[Channel[Message]] = []
    process.spawn(lend_inbox, lent)
    await others_rest()
    channel = await filled(1)
    with pytest.raises(NotOwner):
        await select(channel, lent[0])
    assert await drain(channel) == [1]
