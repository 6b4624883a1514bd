"""The order of results, and what runs ahead of a slow one."""

import pytest

from perdure import process
from perdure.otp import Exited, Ok
from perdure.otp.stream import async_stream
from perdure.process import sleep
from perdure.testing import simulate, simulated
from tests.support.processes import now


async def sleeper(delay: float) -> float:
    await sleep(delay)
    return delay


@simulated
async def test_ordered_results_come_in_the_order_of_the_items() -> None:
    delays = [3.0, 1.0, 2.0, 0.5]
    results = await async_stream(delays, sleeper, max_concurrency=4).to_list()
    assert results == [Ok(delay) for delay in delays]


@simulated
async def test_unordered_results_come_as_they_are_done() -> None:
    delays = [3.0, 1.0, 2.0, 0.5]
    results = await async_stream(delays, sleeper, max_concurrency=4, ordered=False).to_list()
    assert results == [Ok(delay) for delay in sorted(delays)]


@simulated
async def test_a_slow_first_item_does_not_hold_up_those_behind_it() -> None:
    began: list[int] = []

    async def work(n: int) -> int:
        began.append(n)
        await sleep(3.0 if n == 0 else 1.0)
        return n

    async with async_stream(range(20), work, max_concurrency=2) as results:
        assert await anext(results) == Ok(0)
        assert began == [0, 1, 2, 3]
        assert now() == 3


@simulated
async def test_results_behind_a_slow_first_item_are_kept_in_order() -> None:
    async def work(n: int) -> int:
        await sleep(5.0 if n == 0 else 0.1)
        return n

    results = await async_stream(range(30), work, max_concurrency=3, timeout=None).to_list()
    assert results == [Ok(n) for n in range(30)]


@simulated
async def test_kept_results_are_given_without_waiting() -> None:
    async def work(n: int) -> int:
        await sleep(5.0 if n == 0 else 0.1)
        return n

    async with async_stream(range(10), work, max_concurrency=2, timeout=None) as results:
        await anext(results)
        at = now()
        for _ in range(8):
            await anext(results)
        assert now() == at


@simulated
async def test_a_slow_consumer_does_not_collect_results_without_end() -> None:
    pulled: list[int] = []

    async def work(n: int) -> int:
        pulled.append(n)
        return n

    async with async_stream(range(1000), work, max_concurrency=5) as results:
        for _ in range(10):
            await anext(results)
            await sleep(60)
        assert len(pulled) == 14


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("ordered", [True, False])
def test_whatever_the_schedule_every_item_is_given_once(seed: int, ordered: bool) -> None:
    async def work(n: int) -> int:
        for _ in range(n % 4):
            await sleep(0)
        if n % 5 == 0:
            await sleep(0.01 * (n % 3))
        if n % 7 == 6:
            raise ValueError(n)
        return n

    async def main() -> None:
        results = await async_stream(
            range(60), work, max_concurrency=7, ordered=ordered, zip_input_on_exit=True
        ).to_list()
        items = [r.value if isinstance(r, Ok) else r.reason[0] for r in results]
        assert sorted(items) == list(range(60))
        if ordered:
            assert items == list(range(60))
        assert sum(isinstance(r, Exited) for r in results) == 8
        assert len(process.processes()) == 1

    simulate(main, seed=seed)
