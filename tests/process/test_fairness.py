"""Fairness: busy processes starve neither timers nor callbacks nor sockets nor each other.

These run on a real loop.
They count progress and assert no time: a storm goes on until the others have made their progress,
or until so many messages have passed that it is clear that they never will.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import process, run
from perdure.process import Pid, select, sleep
from perdure.testing import simulated
from tests.support.processes import drain, exit_of

ENOUGH = 2_000_000

Goal = Callable[[], bool]


class Storm:
    """Two processes that send each other a ball to and fro, until a goal is reached."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.messages = 0

    async def player(self, parent: Pid) -> None:
        inbox = process.inbox()
        while self.messages < ENOUGH and not self.goal():
            partner = (await inbox.receive()).payload
            self.messages += 1
            process.send(partner, "ball", process.self_pid())
        process.send(parent, "over")

    def start(self) -> list[Pid]:
        one, other = (process.spawn(self.player, process.self_pid()) for _ in range(2))
        process.send(one, "ball", other)  # one ball: none of the two ever has a message waiting
        return [one, other]

    async def rage(self) -> None:
        """Play until the goal is reached."""
        self.start()
        await process.inbox().receive()
        assert self.goal(), f"starved by {self.messages} messages"


def weather(main: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test that runs on a real loop."""

    def test() -> None:
        run(main)

    test.__name__ = main.__name__
    return test


@weather
async def test_a_storm_of_messages_does_not_starve_timers() -> None:
    fired: list[float] = []

    async def clock() -> None:
        source = process.ticker("1ms")
        while True:
            fired.append(await source.receive())

    process.spawn(clock)
    await Storm(lambda: len(fired) >= 5).rage()


@weather
async def test_a_storm_of_messages_does_not_starve_callbacks_of_asyncio() -> None:
    loop, turns = asyncio.get_running_loop(), list[int]()

    def again() -> None:
        turns.append(1)
        if len(turns) < 100:
            loop.call_soon(again)

    loop.call_soon(again)
    await Storm(lambda: len(turns) >= 100).rage()


@weather
async def test_a_storm_of_messages_does_not_starve_tasks_of_asyncio() -> None:
    turns: list[int] = []

    async def spin() -> None:
        for n in range(100):
            await asyncio.sleep(0)
            turns.append(n)

    task = asyncio.create_task(spin())
    await Storm(lambda: len(turns) >= 100).rage()
    await task


@weather
async def test_a_storm_of_messages_does_not_starve_sockets() -> None:
    echoed, served = list[bytes](), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()
        await writer.wait_closed()
        served.set()

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for n in range(20):
            writer.write(b"%d\n" % n)
            echoed.append(await reader.readline())
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pid = process.spawn_monitored(client, server.sockets[0].getsockname()[1])
        await Storm(lambda: len(echoed) >= 20).rage()
        await exit_of(pid)
        await served.wait()
    assert echoed == [b"%d\n" % n for n in range(20)]


@weather
async def test_a_storm_of_messages_does_not_starve_other_processes() -> None:
    steps: list[int] = []

    async def worker() -> None:
        for n in range(100):
            process.send(process.self_pid(), "next")
            await process.inbox().receive()
            await asyncio.sleep(0)
            steps.append(n)

    process.spawn(worker)
    await Storm(lambda: len(steps) >= 100).rage()


@weather
async def test_a_storm_of_messages_can_be_killed() -> None:
    storm = Storm(lambda: False)
    players = storm.start()
    await sleep("10ms")
    for player in players:
        process.monitor(player)
        process.kill(player)
    for _ in players:
        await process.events().receive()
    assert storm.messages < ENOUGH
    assert await drain(process.inbox()) == []


@simulated
async def test_sleep_of_zero_lets_others_run() -> None:
    turns: list[str] = []

    async def worker(name: str) -> None:
        for _ in range(3):
            turns.append(name)
            await sleep(0)

    process.spawn(worker, "a")
    process.spawn(worker, "b")
    await sleep(1)
    assert turns == ["a", "b"] * 3


@pytest.mark.parametrize("way", ["receive", "select"])
@simulated
async def test_a_process_that_talks_to_itself_lets_others_run(way: str) -> None:
    heard: list[int] = []

    async def listener() -> None:
        heard.append(1)

    process.spawn(listener)
    for _ in range(20_000):
        process.send(process.self_pid(), "to me")
        if way == "receive":
            await process.inbox().receive()
        else:
            await select(process.inbox(), process.events())
    assert heard
