"""Async generators inside a process: closed by its death, by `aclosing`, or by the collector."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from perdure import process
from perdure.errors import Killed, Shutdown
from perdure.process import Channel, Pid, sleep
from perdure.testing import simulated
from tests.support.processes import end_of, exit_of, forever


async def numbers(log: list[str]) -> AsyncGenerator[int]:
    try:
        for number in range(1000):
            await sleep(1)
            yield number
    finally:
        await asyncio.sleep(0)
        log.append("closed")


@simulated
async def test_a_generator_that_waits_is_closed_when_its_process_dies() -> None:
    log: list[str] = []

    async def child() -> None:
        async for _ in numbers(log):
            pass

    pid = process.spawn_monitored(child)
    await sleep(2.5)
    process.exit(Shutdown(), pid)

    assert isinstance((await exit_of(pid)).error, Shutdown)
    assert log == ["closed"]


@simulated
async def test_aclosing_closes_a_generator_that_is_left_early() -> None:
    log: list[str] = []

    async with aclosing(numbers(log)) as stream:
        async for number in stream:
            if number == 2:
                break

    assert log == ["closed"]


@simulated
async def test_aclosing_closes_a_generator_when_the_process_dies_elsewhere() -> None:
    log: list[str] = []

    async def child() -> None:
        async with aclosing(numbers(log)) as stream:
            async for _ in stream:
                await forever()

    pid = process.spawn_monitored(child)
    await sleep(2)
    process.exit(Shutdown(), pid)
    await exit_of(pid)

    assert log == ["closed"]


@simulated
async def test_a_kill_closes_a_generator_whose_cleanup_is_short() -> None:
    log: list[str] = []

    async def child() -> None:
        async with aclosing(numbers(log)) as stream:
            async for _ in stream:
                pass

    pid = process.spawn_monitored(child)
    await sleep(2.5)
    process.kill(pid)

    assert isinstance((await exit_of(pid)).error, Killed)
    assert log == ["closed"]


@simulated
async def test_a_generator_that_nobody_closes_is_closed_by_the_collector() -> None:
    log: list[str] = []

    async def child() -> None:
        async for _ in numbers(log):
            break

    await end_of(child)
    gc.collect()
    await sleep(1)

    assert log == ["closed"]


@simulated
async def test_a_generator_runs_in_the_process_that_iterates_it() -> None:
    async def pids() -> AsyncGenerator[Pid]:
        while True:
            yield process.self_pid()
            await asyncio.sleep(0)

    async def child() -> Pid:
        async with aclosing(pids()) as stream:
            await anext(stream)
            return await anext(stream)

    pid = process.spawn_monitored(child)

    assert (await exit_of(pid)).value is pid


@simulated
async def test_async_context_managers_are_left_in_reverse_order_at_death() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def resource(name: str) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await sleep(1)  # an exit signal lets cleanup take its time
            log.append(name)

    async def child() -> None:
        async with AsyncExitStack() as stack:
            for name in ("a", "b", "c"):
                await stack.enter_async_context(resource(name))
            await process.inbox().receive()

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(Shutdown(), pid)
    await exit_of(pid)

    assert log == ["c", "b", "a"]


@simulated
async def test_an_async_comprehension_over_a_channel_ends_at_its_close() -> None:
    words = Channel[str]()

    async def produce() -> None:
        for word in ("a", "b"):
            await words.send(word)
        words.close()

    process.spawn_linked(produce)

    assert [word async for word in words] == ["a", "b"]
