"""Time: after, timer, ticker and sleep, and that what nobody waits for costs nothing."""

import asyncio
import gc
import itertools
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import process
from perdure.process import Channel, Ticker, after, select, sleep, ticker, timer
from perdure.testing import simulated
from tests.support.processes import INTERRUPTS, Interrupt, crash, live_timers, now, others_rest


async def ticks(source: Ticker, count: int) -> list[float]:
    return [round(await source.receive(), 9) for _ in range(count)]


# after


@simulated
async def test_after_yields_the_time_once_when_it_has_come() -> None:
    channel = after("5s")
    assert await channel.receive() == 5
    assert now() == 5
    assert await select(channel, after("1h")) != (channel, None, False)
    assert now() == 3605


@simulated
async def test_after_counts_from_its_making_and_not_from_the_wait() -> None:
    channel = after("5s")
    await sleep("3s")
    await channel.receive()
    assert now() == 5


@simulated
async def test_after_whose_time_is_past_is_ready_at_once() -> None:
    channel = after("1s")
    await sleep("3s")
    assert (await select(channel, default=True)).value == 3


@simulated
async def test_after_zero_is_ready_at_once() -> None:
    assert (await select(after(0), default=True)).value == 0


@simulated
async def test_the_shortest_of_several_time_outs_comes_first() -> None:
    late, early = after("2s"), after("1s")
    assert (await select(late, early)).channel is early
    assert (await select(late, early)).channel is late


@simulated
async def test_each_after_is_a_fresh_channel() -> None:
    assert after("1s") is not after("1s")


@simulated
async def test_one_after_that_two_processes_wait_for_wakes_only_the_first() -> None:
    shared, log = after("1s"), list[str]()

    async def wait(who: str) -> None:
        await shared.receive()
        log.append(who)

    process.spawn(wait, "first")
    process.spawn(wait, "second")
    await sleep("1h")
    assert log == ["first"]


@pytest.mark.parametrize("duration", ["100ms", 0.1, timedelta(milliseconds=100)])
@simulated
async def test_a_duration_is_a_text_a_number_of_seconds_or_a_timedelta(duration: Any) -> None:
    await after(duration).receive()
    assert now() == pytest.approx(0.1)


@pytest.mark.parametrize("make", [after, timer, ticker])
@pytest.mark.parametrize("duration", [-1, "-1s", "5", "5 parsecs", "", float("nan"), None, True])
@simulated
async def test_what_is_no_duration_is_refused(make: Callable[[Any], Any], duration: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        make(duration)


@pytest.mark.parametrize("make", [timer, ticker])
@simulated
async def test_a_timer_or_ticker_of_no_time_is_refused(make: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="positive duration"):
        make(0)


# sleep


@simulated
async def test_sleep_suspends_only_its_own_process() -> None:
    log: list[tuple[str, float]] = []

    async def snore(who: str, duration: str) -> None:
        await sleep(duration)
        log.append((who, now()))

    process.spawn(snore, "long", "2h")
    process.spawn(snore, "short", "1s")
    await sleep("3h")
    assert log == [("short", 1), ("long", 7200)]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_sleep_does_not_shield_from_an_end(interrupt: Interrupt) -> None:
    pid = process.spawn_monitored(sleep, "1h")
    await others_rest()
    interrupt(pid)
    await process.events().receive()
    assert now() < 1
    assert live_timers() == 0


@simulated
async def test_a_linked_failure_ends_a_sleep() -> None:
    async def parent() -> None:
        process.spawn_linked(crash)
        await sleep("1h")

    process.spawn_monitored(parent)
    await process.events().receive()
    assert now() == 0


# timer


@simulated
async def test_a_timer_is_its_own_channel_and_yields_once() -> None:
    once = timer("1s")
    assert once.channel is once
    await once.receive()
    assert (await select(once, after("1h"))).channel is not once


@simulated
async def test_a_stopped_timer_yields_nothing() -> None:
    once = timer("1s")
    assert once.stop() is True
    assert once.stop() is False
    assert (await select(once, after("1h"))).channel is not once


@simulated
async def test_stop_of_a_timer_that_has_yielded_says_false() -> None:
    once = timer("1s")
    await once.receive()
    assert once.stop() is False


@simulated
async def test_a_timer_can_be_reset_before_after_and_again() -> None:
    once = timer("5s")
    assert once.reset("1s") is True
    assert await once.receive() == 1
    assert once.reset("2s") is False
    assert await once.receive() == 3
    once.stop()
    assert once.reset("1s") is False
    assert await once.receive() == 4


@simulated
async def test_reset_and_stop_count_for_who_waits_already() -> None:
    once, log = timer("1s"), list[float]()

    async def wait() -> None:
        log.append(await once.receive())

    process.spawn(wait)
    await others_rest()
    once.stop()
    await sleep("10s")
    assert log == []
    once.reset("1s")
    await sleep("10s")
    assert log == [pytest.approx(11.001)]


@simulated
async def test_a_reset_to_no_time_is_refused_and_changes_nothing() -> None:
    once, again = timer("2s"), ticker("2s")
    for source in (once, again):
        with pytest.raises(ValueError, match="positive duration"):
            source.reset(0)
    assert await once.receive() == 2
    assert await ticks(again, 2) == [2, 4]


# ticker


@simulated
async def test_a_ticker_yields_every_period() -> None:
    assert await ticks(ticker("250ms"), 4) == [0.25, 0.5, 0.75, 1]


@simulated
async def test_a_ticker_does_not_drift_when_its_reader_is_slow() -> None:
    source, seen = ticker("1s"), list[float]()
    for _ in range(3):
        seen.append(await source.receive())
        await sleep("300ms")
    assert seen == [1, 2, 3]


@simulated
async def test_a_tick_that_is_read_late_does_not_move_the_next_one() -> None:
    source = ticker("1s")
    seen = await ticks(source, 1)
    await sleep("1300ms")
    seen += await ticks(source, 2)
    assert seen == [1, 2.3, 3]


@pytest.mark.parametrize(("period", "late"), [(0.1, 0.7), (0.3, 1.2), (0.1, 0.35), (0.25, 10)])
@simulated
async def test_a_late_reader_of_a_ticker_gets_one_tick_for_all_it_missed(
    period: float, late: float
) -> None:
    source = ticker(period)
    await sleep(late)
    seen = await ticks(source, 10)
    assert seen[0] == pytest.approx(late)
    assert all(0 < b - a < 1.001 * period for a, b in itertools.pairwise(seen))
    assert all(b - a == pytest.approx(period) for a, b in itertools.pairwise(seen[1:]))


@simulated
async def test_a_stopped_ticker_is_silent_until_it_is_reset() -> None:
    source = ticker("1s")
    await source.receive()
    assert source.stop() is True
    assert (await select(source, after("1h"))).channel is not source
    source.reset("5s")
    start = now()
    assert [t - start for t in await ticks(source, 2)] == [5, 10]


@simulated
async def test_a_ticker_can_be_iterated() -> None:
    seen: list[float] = []
    async for at in ticker("1s"):
        seen.append(at)
        if len(seen) == 3:
            break
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("make", [after, timer, ticker])
@simulated
async def test_a_closed_timer_ends_who_waits(make: Callable[[str], Channel[float]]) -> None:
    source = make("1h")
    waiting = asyncio.ensure_future(select(source))
    await others_rest()
    source.close()
    assert await waiting == (source, None, False)
    assert live_timers() == 0


# What nobody waits for


@simulated
async def test_a_hundred_thousand_unused_afters_leave_no_timer() -> None:
    ready = Channel[int](1)
    for n in range(100_000):
        await ready.send(n)
        assert (await select(ready, after("5s"))).value == n
    assert live_timers() == 0


@simulated
async def test_afters_that_were_waited_for_in_vain_leave_no_timer() -> None:
    channel = Channel[int]()

    async def feed() -> None:
        for n in range(2_000):
            await channel.send(n)

    process.spawn(feed)
    for n in range(2_000):
        assert (await select(channel, after("5s"))).value == n
    assert live_timers() == 0


@simulated
async def test_an_after_that_lost_is_forgotten() -> None:
    loser = after("1h")
    gone = weakref.ref(loser)
    await select(loser, after("1s"))
    del loser
    gc.collect()
    assert gone() is None


@simulated
async def test_a_timer_is_armed_only_while_somebody_waits_for_it() -> None:
    source = ticker("1h")
    assert live_timers() == 0
    waiting = asyncio.ensure_future(source.receive())
    await others_rest()
    assert live_timers() == 1
    waiting.cancel()
    await others_rest()
    assert live_timers() == 0
