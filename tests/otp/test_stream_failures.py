"""Failures, time-outs and early ends of streams: nothing is left running, nothing is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from perdure import process
from perdure.errors import Killed, LinkedProcessDown, Shutdown, TaskExit, TaskTimeout
from perdure.otp import Exited, Ok
from perdure.otp.stream import async_stream
from perdure.process import LinkDown, Pid, sleep
from perdure.testing import simulated
from tests.support.processes import forever, now, others_rest
from tests.support.tasks import end_of, exit_of, give, leave, slowly


async def odd_fails(n: int) -> int:
    await others_rest()
    if n % 2:
        raise ValueError(n)
    return n


async def hangs_at_one(n: int) -> int:
    if n == 1:
        await forever()
    return n


async def hang(_: int) -> None:
    await forever()


def only_this_process() -> bool:
    return len(process.processes()) == 1


# Failing items


@simulated
async def test_a_failing_item_is_a_result_like_any_other() -> None:
    first, second, third = await async_stream([0, 1, 2], odd_fails).to_list()
    assert (first, third) == (Ok(0), Ok(2))
    assert isinstance(second, Exited)
    assert isinstance(second.reason, ValueError)


@simulated
async def test_the_input_of_a_failing_item_can_come_with_it() -> None:
    results = await async_stream([0, 1], odd_fails, zip_input_on_exit=True).to_list()
    assert isinstance(results[1], Exited)
    item, reason = results[1].reason
    assert item == 1
    assert isinstance(reason, ValueError)
    assert results[0] == Ok(0)


@simulated
async def test_an_item_that_leaves_without_a_value_is_no_success() -> None:
    async def leaves(_: int) -> int:
        return await leave()

    assert await async_stream([1], leaves).to_list() == [Exited(None)]


@simulated
async def test_an_item_that_is_killed_is_a_result_like_any_other() -> None:
    async def suicide(_: int) -> None:
        process.kill(process.self_pid())

    (result,) = await async_stream([1], suicide).to_list()
    assert isinstance(result, Exited)
    assert isinstance(result.reason, Killed)


@simulated
async def test_with_fail_fast_the_first_failure_ends_the_stream() -> None:
    with pytest.raises(TaskExit) as caught:
        await async_stream(range(10), odd_fails, fail_fast=True, max_concurrency=4).to_list()
    assert isinstance(caught.value.reason, ValueError)
    assert only_this_process()
    assert not process.info(process.self_pid()).links


@simulated
async def test_with_fail_fast_a_failure_need_not_wait_for_its_turn() -> None:
    async def last_fails(n: int) -> int:
        await sleep(1.0 if n == 3 else 4.0)
        if n == 3:
            raise ValueError(n)
        return n

    with pytest.raises(TaskExit):
        await async_stream(range(4), last_fails, fail_fast=True, max_concurrency=4).to_list()
    assert now() == 1


@simulated
async def test_with_fail_fast_a_busy_consumer_dies_of_the_link() -> None:
    async def consumer() -> str:
        async with async_stream(
            [0.0, 1.0], fails_after, fail_fast=True, max_concurrency=2
        ) as results:
            await anext(results)
            await sleep(10)
        return "survived"

    result = await end_of(consumer)
    assert isinstance(result.error, LinkedProcessDown)
    await others_rest()
    assert only_this_process()


async def fails_after(delay: float) -> float:
    await sleep(delay)
    if delay:
        raise ValueError(delay)
    return delay


@simulated
async def test_with_fail_fast_a_trapping_consumer_gets_result_and_event() -> None:
    process.set_options(trap_links=True)
    results = await async_stream([0, 1, 2], odd_fails, fail_fast=True).to_list()
    assert results[0] == Ok(0)
    assert isinstance(results[1], Exited)
    assert results[2] == Ok(2)
    assert isinstance(await process.events().receive(), LinkDown)


# Time


@simulated
async def test_an_item_that_takes_too_long_is_killed_and_gives_a_timeout() -> None:
    results = await async_stream([0, 1, 2], hangs_at_one, timeout=2).to_list()
    assert results[0] == Ok(0)
    assert results[2] == Ok(2)
    assert isinstance(results[1], Exited)
    assert isinstance(results[1].reason, TimeoutError)
    assert now() == 2
    assert only_this_process()


@simulated
async def test_the_time_of_an_item_counts_from_its_own_start() -> None:
    results = await async_stream([0.8] * 6, slow_by, max_concurrency=2, timeout=1).to_list()
    assert results == [Ok(0.8)] * 6


async def slow_by(delay: float) -> float:
    await sleep(delay)
    return delay


@simulated
async def test_each_item_that_is_late_is_late_by_its_own_clock() -> None:
    ends: list[float] = []
    async with async_stream(
        [5.0, 0.4, 5.0], slow_by, max_concurrency=2, timeout=1, ordered=False
    ) as results:
        async for result in results:
            ends += [now()] if isinstance(result, Exited) else []
    assert ends == pytest.approx([1.0, 1.4])


@simulated
async def test_an_item_that_is_done_is_never_timed_out() -> None:
    async with async_stream([0, 1], hangs_at_one, timeout=1, ordered=False) as results:
        await sleep(0)
        assert await anext(results) == Ok(0)
        await sleep(30)
        late = await anext(results)
    assert isinstance(late, Exited)


@simulated
async def test_a_time_out_can_end_the_stream_instead() -> None:
    with pytest.raises(TaskTimeout) as caught:
        await async_stream([0, 1, 2], hangs_at_one, timeout=2, on_timeout="exit").to_list()
    assert isinstance(caught.value, TimeoutError)
    assert now() == 2
    assert only_this_process()


@simulated
async def test_a_timed_out_item_can_be_zipped_with_its_input() -> None:
    (result,) = await async_stream([7], hang, timeout=1, zip_input_on_exit=True).to_list()
    assert isinstance(result, Exited)
    item, reason = result.reason
    assert item == 7
    assert isinstance(reason, TimeoutError)


@simulated
async def test_a_timed_out_item_frees_its_place() -> None:
    results = await async_stream([1, 1, 0], hangs_at_one, max_concurrency=1, timeout=1).to_list()
    assert results[2] == Ok(0)
    assert now() == pytest.approx(2)


# Early ends


@simulated
async def test_an_early_end_kills_what_runs_and_waits_for_it() -> None:
    notes: list[str] = []

    async def work(n: int) -> int:
        if n == 0:
            return n
        try:
            await forever()
        finally:
            notes.append(f"stopped {n}")
        return n

    async with async_stream(range(3), work, max_concurrency=3, timeout=None) as results:
        assert await anext(results) == Ok(0)
    assert sorted(notes) == ["stopped 1", "stopped 2"]
    assert only_this_process()


@simulated
async def test_an_error_in_the_body_ends_what_runs() -> None:
    async def reads() -> None:
        async with async_stream(range(3), hangs_at_one, max_concurrency=3) as results:
            async for _ in results:
                raise LookupError

    with pytest.raises(LookupError):
        await reads()
    assert only_this_process()


@simulated
async def test_a_break_out_of_a_bare_loop_ends_what_runs() -> None:
    async for _ in async_stream(range(3), hangs_at_one, max_concurrency=3, timeout=None):
        break
    await others_rest()
    assert only_this_process()


@simulated
async def test_an_input_that_raises_ends_the_stream_with_its_error() -> None:
    notes: list[str] = []

    def source() -> Iterator[int]:
        try:
            yield 1
            yield 1
            raise LookupError("no more")
        finally:
            notes.append("closed")

    with pytest.raises(LookupError, match="no more"):
        await async_stream(source(), hangs_at_one, max_concurrency=3).to_list()
    assert notes == ["closed"]
    assert only_this_process()


@simulated
async def test_a_sync_input_is_closed_at_an_early_end() -> None:
    notes: list[str] = []

    def source() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            notes.append("closed")

    await async_stream(source(), give).take(3)
    assert notes == ["closed"]


@simulated
async def test_an_async_input_that_raises_ends_the_stream_with_its_error() -> None:
    async def source() -> AsyncIterator[int]:
        yield 0
        await sleep(1)
        raise LookupError("gone")

    async with async_stream(source(), give) as results:
        assert await anext(results) == Ok(0)
        with pytest.raises(LookupError, match="gone"):
            await anext(results)


# The end of the consumer


async def consumer(end: str) -> None:
    me = process.context()["test"]

    async def item(_: int) -> None:
        process.send(me, "pid", process.self_pid())
        await forever()

    stream = async_stream(range(2), item, max_concurrency=2, timeout=None)
    try:
        async with asyncio.timeout(1):
            await anext(stream)
    except TimeoutError:
        if end == "crash":
            raise ValueError(end) from None
        if end == "shutdown":
            process.exit(Shutdown())
        if end == "kill":
            await forever()


@simulated
@pytest.mark.parametrize("end", ["return", "crash", "shutdown", "kill"])
async def test_however_the_consumer_ends_nothing_is_left_running(end: str) -> None:
    spawner = process.spawner(context={"test": process.self_pid()})
    pid = spawner.spawn_monitored(consumer, end)
    items: list[Pid] = [(await process.inbox().receive()).payload for _ in range(2)]
    if end == "kill":
        await sleep(2)
        process.kill(pid)
    await exit_of(pid)
    await others_rest()
    assert not any(process.alive(item) for item in items)
    assert only_this_process()


@simulated
async def test_items_of_a_dead_consumer_may_clean_up() -> None:
    notes: list[str] = []

    async def item(_: int) -> None:
        try:
            await forever()
        finally:
            await sleep(2)
            notes.append("clean")

    async def reads() -> None:
        async for _ in async_stream([1], item, timeout=None):
            pass

    pid = process.spawn_monitored(reads)
    await sleep(1)
    process.exit(Shutdown(), pid)
    await sleep(10)
    assert notes == ["clean"]
    assert only_this_process()


@simulated
async def test_an_item_that_refuses_to_end_does_not_hold_the_stream_for_ever() -> None:
    async def refuses(_: int) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await forever()

    (result,) = await async_stream([1], refuses, timeout=1).to_list()
    assert isinstance(result, Exited)
    assert isinstance(result.reason, TimeoutError)


@simulated
async def test_the_names_of_an_item_are_free_when_its_result_is_given() -> None:
    async def named(n: int) -> int:
        process.register("the item")
        await others_rest()
        return n

    assert await async_stream(range(4), named, max_concurrency=1).to_list() == [
        Ok(n) for n in range(4)
    ]


@simulated
async def test_what_one_item_sets_is_not_seen_by_the_next() -> None:
    async def dirty(n: int) -> bool:
        clean = (
            not process.get_options().trap_links and process.info(process.self_pid()).mailbox == 0
        )
        process.set_options(trap_links=True)
        process.send(process.self_pid(), "left", n)
        return clean

    assert await async_stream(range(5), dirty, max_concurrency=1).to_list() == [Ok(True)] * 5


@simulated
async def test_a_slow_item_does_not_keep_the_others_waiting() -> None:
    await async_stream([1, 2], slowly).run()
    assert now() == 1
