"""Hosts: work on OS processes, against the standard library's pools and pipes.

``cpu_stream_speedup``   a CPU-bound ``async_stream`` on two OS workers, against the same on one
``cpu_stream_vs_pool``   the same on two workers, against ``ProcessPoolExecutor`` with two
``os_call_vs_pipe``      a round trip over a bare ``multiprocessing`` pipe, against a call of ours
``os_batch_vs_single``   messages in a second when many are sent at once, against one by one
"""

import asyncio
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import perdure
from bench.outcome import Goal, Options, Outcome
from bench.table import render
from perdure import Ok, ProcessHost, async_stream, process

GOALS = {
    "cpu_stream_speedup": Goal(1.8),
    "cpu_stream_vs_pool": Goal(0.9),
    "os_call_vs_pipe": Goal(0.5),
    "os_batch_vs_single": Goal(3),
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured: items of a stream, their loops, bursts of calls, messages."""

    items: int
    loops: int
    bursts: int
    messages: int
    rounds: int


FULL = Sizes(items=60, loops=200_000, bursts=300, messages=20_000, rounds=5)
QUICK = Sizes(items=24, loops=100_000, bursts=100, messages=5_000, rounds=3)
_BURST = (
    10  # calls that are timed together: short, so that a busy machine leaves some of them alone
)


def run(options: Options) -> Outcome:
    """Measure everything."""
    return measure(QUICK if options.quick else FULL)


def measure(sizes: Sizes) -> Outcome:
    """Carry out all measurements, side by side in each round."""
    stream = _median_rounds(sizes, _streams)
    call, pipe = _calls(sizes)
    batch, single = _messages(sizes)
    figures = {
        "cpu_stream_speedup": round(stream["one"] / stream["two"], 3),
        "cpu_stream_vs_pool": round(stream["pool"] / stream["two"], 3),
        "os_call_vs_pipe": round(pipe / call, 3),
        "os_batch_vs_single": round(single / batch, 3),
    }
    costs = [
        ["stream, one OS worker (ms an item)", _ms(stream["one"] / sizes.items)],
        ["stream, two OS workers", _ms(stream["two"] / sizes.items)],
        ["ProcessPoolExecutor, two workers", _ms(stream["pool"] / sizes.items)],
        ["call to an OS worker (ms)", _ms(call)],
        ["round trip over a pipe", _ms(pipe)],
        ["message in a batch (ms)", _ms(batch)],
        ["message one by one", _ms(single)],
    ]
    return Outcome(
        "\n\n".join((_heading(), render(["what", "cost"], costs), _goals(figures))), figures
    )


def _heading() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"Hosts: {python}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def _goals(figures: dict[str, float]) -> str:
    rows = [
        [name, f"{value:,.2f}", str(GOALS[name]), "met" if GOALS[name].met(value) else "MISSED"]
        for name, value in figures.items()
    ]
    return render(["figure", "value", "goal", ""], rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"


# Streams of CPU-bound items


def crunch(loops: int) -> int:
    """Keep a core busy."""
    total = 0
    for number in range(loops):
        total += number * number
    return total


async def crunch_item(loops: int) -> int:
    """Do the same as the item of a stream."""
    return crunch(loops)


def _median_rounds(
    sizes: Sizes, one_round: Callable[[Sizes], Coroutine[Any, Any, list[dict[str, float]]]]
) -> dict[str, float]:
    rounds: list[dict[str, float]] = perdure.run(one_round, sizes)
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


async def _streams(sizes: Sizes) -> list[dict[str, float]]:
    context = multiprocessing.get_context("spawn")
    work = [sizes.loops] * sizes.items
    rounds: list[dict[str, float]] = []
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        async with (
            ProcessHost("one", kind="os", workers=1),
            ProcessHost("two", kind="os", workers=2),
        ):
            list(pool.map(crunch, [1] * 4))
            for _ in range(sizes.rounds):
                one = await _stream("one", 1, work)
                two = await _stream("two", 2, work)
                rounds.append({"one": one, "two": two, "pool": _pool(pool, work)})
    return rounds


async def _stream(host: str, workers: int, work: Sequence[int]) -> float:
    began = time.perf_counter()
    # One item runs, and a few are on their way, as the pool does it.
    stream = async_stream(
        work, crunch_item, host=host, max_concurrency=4 * workers, ordered=False, timeout=None
    )
    results = await stream.to_list()
    taken = time.perf_counter() - began
    _expect(all(type(result) is Ok for result in results), "the stream")
    return taken


def _pool(pool: ProcessPoolExecutor, work: Sequence[int]) -> float:
    began = time.perf_counter()
    results = list(pool.map(crunch, work))
    taken = time.perf_counter() - began
    _expect(len(results) == len(work), "the pool")
    return taken


# Calls


async def answer() -> None:
    """Answer each request with itself."""
    async for request in process.requests():
        request.reply(request.body)


def echo(pipe: Connection) -> None:
    """Send back what comes, until None comes."""
    while (value := pipe.recv()) is not None:
        pipe.send(value)


def _calls(sizes: Sizes) -> tuple[float, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=echo, args=(theirs,))
    other.start()
    try:
        return perdure.run(_bursts, sizes, ours)
    finally:
        ours.send(None)
        other.join()


async def _bursts(sizes: Sizes, pipe: Connection) -> tuple[float, float]:
    """Time short bursts in turn, and take the best of each: the rest is what else runs here."""
    calls: list[float] = []
    trips: list[float] = []
    async with ProcessHost("cpu", kind="os", workers=1):
        pid = process.spawn(answer, host="cpu")
        for _ in range(sizes.bursts):
            began = time.perf_counter()
            for number in range(_BURST):
                await process.call(pid, number)
            between = time.perf_counter()
            for number in range(_BURST):
                pipe.send(number)
                pipe.recv()
            calls.append((between - began) / _BURST)
            trips.append((time.perf_counter() - between) / _BURST)
    return min(calls), min(trips)


# Messages


async def count_messages() -> None:
    """Count messages, and tell the number when one asks for it."""
    count = 0
    async for message in process.inbox():
        count += 1
        if message.topic == "last" and message.sender is not None:
            process.send(message.sender, "count", count)
            count = 0


def _messages(sizes: Sizes) -> tuple[float, float]:
    return perdure.run(_batches, sizes)


async def _batches(sizes: Sizes) -> tuple[float, float]:
    batches: list[float] = []
    singles: list[float] = []
    async with ProcessHost("cpu", kind="os", workers=1):
        pid = process.spawn(count_messages, host="cpu")
        for _ in range(sizes.rounds):
            batches.append(await _send(pid, sizes.messages, one_by_one=False))
            singles.append(await _send(pid, sizes.messages // 20, one_by_one=True))
    return statistics.median(batches), statistics.median(singles)


async def _send(pid: perdure.Pid, count: int, *, one_by_one: bool) -> float:
    began = time.perf_counter()
    for number in range(1, count + 1):
        last = one_by_one or number == count
        process.send(pid, "last" if last else "more", number)
        if last:
            await process.inbox().receive()
    taken = (time.perf_counter() - began) / count
    await asyncio.sleep(0)
    return taken


def _expect(truth: object, what: str) -> None:
    if not truth:
        raise RuntimeError(f"the work was not done: {what}")
