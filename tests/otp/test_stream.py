"""Streams: what they pull, how many run at once, what they accept, and how they are read."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure import process
from perdure.errors import Killed, NotOwner, ProcError, SpawnError
from perdure.otp import Ok
from perdure.otp.stream import async_stream
from perdure.process import Info, Pid, sleep
from perdure.testing import simulated
from tests.support.processes import forever, now, others_rest
from tests.support.tasks import end_of, exit_of, give, slowly


class Gauge:
    """Counts what runs at the same time."""

    def __init__(self) -> None:
        self.now = self.most = self.started = 0

    async def work(self, delay: float) -> float:
        self.now += 1
        self.started += 1
        self.most = max(self.most, self.now)
        try:
            await sleep(delay)
        finally:
            self.now -= 1
        return delay


class Input:
    """Counts what was pulled."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pulled = 0

    def __iter__(self) -> Iterator[int]:
        for n in range(self.count):
            self.pulled += 1
            yield n


@simulated
async def test_a_stream_gives_a_result_for_every_item() -> None:
    assert await async_stream(range(5), give).to_list() == [Ok(n) for n in range(5)]


@simulated
async def test_a_stream_of_nothing_is_empty() -> None:
    assert await async_stream([], give).to_list() == []


@simulated
async def test_a_stream_can_be_iterated_in_a_context() -> None:
    seen: list[object] = []
    async with async_stream([1, 2], give) as results:
        async for result in results:
            seen.append(result)  # noqa: PERF401 - the loop is what is tested
    assert seen == [Ok(1), Ok(2)]


@simulated
async def test_nothing_is_pulled_before_a_result_is_asked_for() -> None:
    source = Input(9)
    async with async_stream(source, give, max_concurrency=3):
        await sleep(1)
        assert source.pulled == 0


@simulated
@pytest.mark.parametrize("ordered", [True, False])
async def test_one_result_pulls_as_many_inputs_as_may_run(ordered: bool) -> None:
    source = Input(100)
    await async_stream(source, give, max_concurrency=3, ordered=ordered).take(1)
    assert source.pulled == 3


@simulated
@pytest.mark.parametrize("ordered", [True, False])
async def test_each_further_result_pulls_one_more_input(ordered: bool) -> None:
    source = Input(100)
    async with async_stream(source, give, max_concurrency=3, ordered=ordered) as results:
        for asked in range(1, 20):
            await anext(results)
            await sleep(1)  # a slow consumer
            assert source.pulled == 3 + asked - 1


@simulated
@pytest.mark.parametrize("ordered", [True, False])
async def test_never_more_than_the_allowed_number_run_at_once(ordered: bool) -> None:
    gauge = Gauge()
    delays = [0.1 * (n % 7 + 1) for n in range(40)]
    await async_stream(delays, gauge.work, max_concurrency=4, ordered=ordered).run()
    assert gauge.most == 4
    assert gauge.started == 40


@simulated
@pytest.mark.parametrize("ordered", [True, False])
async def test_equal_items_take_as_many_rounds_as_there_must_be(ordered: bool) -> None:
    stream = async_stream([1.0] * 10, Gauge().work, max_concurrency=4, ordered=ordered)
    await stream.run()
    assert now() == 3


@simulated
async def test_every_item_runs_in_a_process_of_its_own() -> None:
    async def me(_: int) -> Pid:
        return process.self_pid()

    results = await async_stream(range(200), me, max_concurrency=3).to_list()
    pids = {result.value for result in results if isinstance(result, Ok)}
    assert len(pids) == 200
    assert not any(process.alive(pid) for pid in pids)


@simulated
async def test_an_item_knows_its_callers_and_ancestors() -> None:
    async def picture(_: int) -> Info:
        return process.info(process.self_pid())

    (result,) = await async_stream([1], picture).to_list()
    assert isinstance(result, Ok)
    assert result.value.callers == (process.self_pid(),)
    assert result.value.ancestors[0] is process.self_pid()


@simulated
async def test_a_stream_leaves_nothing_in_its_consumer() -> None:
    await async_stream(range(50), give, max_concurrency=5).run()
    picture = process.info(process.self_pid())
    assert picture.mailbox == 0
    assert not picture.links
    assert picture.pending_tasks == 0
    assert len(process.processes()) == 1


@simulated
async def test_take_gives_the_first_results_and_ends_the_rest() -> None:
    gauge = Gauge()
    taken = await async_stream([1.0, 50.0, 50.0], gauge.work, timeout=None, max_concurrency=3).take(
        1
    )
    assert taken == [Ok(1.0)]
    assert gauge.now == 0
    assert now() < 2


@simulated
async def test_take_gives_what_there_is_if_there_is_less() -> None:
    assert await async_stream([1], give).take(5) == [Ok(1)]


@simulated
async def test_taking_nothing_starts_nothing() -> None:
    source = Input(5)
    assert await async_stream(source, give).take(0) == []
    assert source.pulled == 0


@simulated
async def test_a_stream_belongs_to_who_reads_it_first() -> None:
    stream = async_stream(range(5), give, max_concurrency=1)

    async def reads() -> object:
        return await anext(stream)

    assert await anext(stream) == Ok(0)
    assert isinstance((await end_of(reads)).error, NotOwner)
    await stream.aclose()


@simulated
async def test_a_stream_can_be_read_by_another_process_than_made_it() -> None:
    stream = async_stream(range(3), give)

    async def reads() -> object:
        return await stream.to_list()

    assert (await end_of(reads)).value == [Ok(0), Ok(1), Ok(2)]


@simulated
async def test_two_tasks_cannot_read_one_stream_at_once() -> None:
    async with async_stream([1], slowly) as results:

        async def read() -> object:
            return await anext(results)

        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - the group is the block
            async with asyncio.TaskGroup() as group:
                group.create_task(read())
                group.create_task(read())
        assert caught.group_contains(RuntimeError, match="already being read")


@simulated
async def test_a_result_can_be_awaited_with_a_limit_and_asked_for_again() -> None:
    async with async_stream([3.0], Gauge().work) as results:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(results)
        assert await anext(results) == Ok(3.0)


# Async inputs


async def ticks(
    count: int, delay: float = 0.0, notes: list[str] | None = None
) -> AsyncIterator[int]:
    try:
        for n in range(count):
            if delay:
                await sleep(delay)
            yield n
    finally:
        if notes is not None:
            notes.append("closed")


@simulated
async def test_an_async_input_is_read_to_its_end() -> None:
    assert await async_stream(ticks(5), give).to_list() == [Ok(n) for n in range(5)]


@simulated
async def test_a_result_does_not_wait_for_the_next_input() -> None:
    async with async_stream(ticks(3, 10.0), give, max_concurrency=8) as results:
        assert await anext(results) == Ok(0)
        assert now() == 10
        assert await anext(results) == Ok(1)
        assert now() == 20


@simulated
async def test_an_async_input_is_pulled_no_further_than_a_sync_one() -> None:
    pulled: list[int] = []

    async def source() -> AsyncIterator[int]:
        for n in range(100):
            pulled.append(n)
            yield n

    async with async_stream(source(), give, max_concurrency=3) as results:
        await anext(results)
        await sleep(5)
        assert len(pulled) <= 4  # three run, and one generator stands at its next yield


@simulated
async def test_an_async_input_is_closed_when_the_stream_ends_early() -> None:
    notes: list[str] = []
    await async_stream(ticks(100, 1.0, notes), give).take(2)
    assert notes == ["closed"]


@simulated
async def test_an_async_input_may_read_the_inbox_of_the_consumer() -> None:
    async def messages() -> AsyncIterator[int]:
        while (message := await process.inbox().receive()).payload is not None:
            yield message.payload

    for payload in (1, 2, None):
        process.send(process.self_pid(), "n", payload)
    assert await async_stream(messages(), give).to_list() == [Ok(1), Ok(2)]


# Progress


@simulated
async def test_the_progress_hook_counts_what_is_done_and_what_was_started() -> None:
    seen: list[tuple[int, int]] = []
    stream = async_stream(
        range(4),
        slowly,
        max_concurrency=2,
        progress=lambda done, started: seen.append((done, started)),
    )
    await stream.run()
    assert seen[0] == (0, 2)
    assert seen[-1] == (4, 4)
    assert seen == sorted(seen)


@simulated
async def test_a_progress_hook_that_raises_ends_the_stream_with_its_error() -> None:
    def broken(done: int, started: int) -> None:
        raise LookupError("no bar")

    with pytest.raises(LookupError, match="no bar"):
        await async_stream(range(4), slowly, progress=broken).run()
    assert len(process.processes()) == 1


# Options, checked before anything runs

BAD: list[dict[str, Any]] = [
    {"max_concurrency": 0},
    {"max_concurrency": -1},
    {"max_concurrency": 1.5},
    {"max_concurrency": True},
    {"timeout": -1},
    {"timeout": "soon"},
    {"on_timeout": "explode"},
    {"ordered": "yes"},
    {"zip_input_on_exit": 1},
    {"fail_fast": None},
    {"progress": 5},
]


@simulated
@pytest.mark.parametrize("options", BAD, ids=str)
async def test_a_bad_option_is_refused_at_the_call(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        async_stream([1], give, **options)


@simulated
async def test_an_input_that_cannot_be_iterated_is_refused_at_the_call() -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match="iterable"):
        async_stream(wrong, give)


@simulated
async def test_a_function_that_is_not_async_is_refused_at_the_call() -> None:
    wrong: Any = len
    with pytest.raises(SpawnError):
        async_stream([1], wrong)


@simulated
async def test_a_stream_without_a_limit_lets_items_take_their_time() -> None:
    assert await async_stream([3600.0], Gauge().work, timeout=None).to_list() == [Ok(3600.0)]


@simulated
async def test_a_stream_can_be_killed_with_its_consumer_while_it_waits() -> None:
    async def hang(_: int) -> None:
        await forever()

    async def consumer() -> None:
        async for _ in async_stream([1], hang, timeout=None):
            pass

    pid = process.spawn_monitored(consumer)
    await sleep(1)
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)
    await others_rest()
    assert len(process.processes()) == 1


@simulated
async def test_a_stream_is_read_once_and_a_second_read_says_so() -> None:
    stream = async_stream([1, 2], give)
    assert await stream.to_list() == [Ok(1), Ok(2)]
    for again in (stream.to_list, stream.run, lambda: stream.take(1)):
        with pytest.raises(ProcError, match="read only once: make another"):
            await again()
    with pytest.raises(ProcError, match="read only once"):
        _ = [result async for result in stream]


@simulated
async def test_a_stream_that_was_closed_cannot_be_read() -> None:
    stream = async_stream([1, 2], give)
    await stream.aclose()
    with pytest.raises(ProcError, match="read only once"):
        await stream.to_list()


@simulated
async def test_a_loop_that_was_left_can_be_gone_on_with() -> None:
    stream = async_stream([1, 2, 3], give)
    async for result in stream:
        assert result == Ok(1)
        break
    assert [result async for result in stream] == [Ok(2), Ok(3)]
