"""Hosts: work on OS processes, against the standard library's pools and pipes.

``cpu_stream_speedup``   a CPU-bound ``async_stream`` on two OS workers, against the same on one
``cpu_stream_vs_pool``   the same on two workers, against ``ProcessPoolExecutor`` with two
``os_call_vs_pipe``      a round trip over a bare ``multiprocessing`` pipe, against a call of ours
``os_batch_vs_single``   messages in a second when many are sent at once, against one by one
``bare_speedup``         two bare OS processes against one: what this machine allows

Everything is measured in short rounds, ours and theirs in turn, and the best round of each counts:
whatever else runs on the machine makes a round longer, never shorter.
"""

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import perdure
from bench.outcome import Goal, Options, Outcome, figure_table, machine
from bench.table import render
from perdure import process
from perdure.otp import Ok, async_stream
from perdure.process import ProcessHost

GOALS = {
    "cpu_stream_speedup": Goal(1.8),
    "cpu_stream_vs_pool": Goal(0.9),
    "os_call_vs_pipe": Goal(0.5),
    "os_batch_vs_single": Goal(3),
}

ONE = "item of a stream, one OS worker"
TWO = "item of a stream, two OS workers"
BARE_ONE = "item in one bare OS process"
BARE_TWO = "item in two bare OS processes, half of all in each"
POOL = "item of a ProcessPoolExecutor, two workers"
CALL = "call to an OS worker"
PIPE = "round trip over a pipe"
BATCH = "message in a batch"
SINGLE = "message one by one"

Times = dict[str, list[float]]  # seconds for one, in each round


@dataclass(frozen=True)
class Sizes:
    """How much is measured: items of a stream, their loops, bursts of calls, messages."""

    items: int
    loops: int
    bursts: int
    messages: int
    rounds: int


FULL = Sizes(items=16, loops=100_000, bursts=2_000, messages=10_000, rounds=30)
QUICK = Sizes(items=16, loops=50_000, bursts=200, messages=5_000, rounds=5)
_BURST = 10  # calls that are timed together


def run(options: Options) -> Outcome:
    """Measure everything."""
    return measure(QUICK if options.quick else FULL)


def measure(sizes: Sizes) -> Outcome:
    """Carry out all measurements."""
    taken = perdure.run(_streams, sizes) | _calls(sizes) | perdure.run(_messages, sizes)
    best = {what: min(times) for what, times in taken.items()}
    figures = {
        "cpu_stream_speedup": round(best[ONE] / best[TWO], 3),
        "cpu_stream_vs_pool": round(best[POOL] / best[TWO], 3),
        "os_call_vs_pipe": round(best[PIPE] / best[CALL], 3),
        "os_batch_vs_single": round(best[SINGLE] / best[BATCH], 3),
        "bare_speedup": round(best[BARE_ONE] / best[BARE_TWO], 3),
    }
    costs = [
        [what, f"{best[what] * 1e3:,.3f}", f"{statistics.median(times) * 1e3:,.3f}"]
        for what, times in taken.items()
    ]
    table = render(["what (ms)", "best", "median"], costs)
    text = "\n\n".join((f"Hosts: {machine()}", table, figure_table(figures, GOALS)))
    return Outcome(text, figures)


# Streams of CPU-bound items


def crunch(loops: int) -> int:
    """Keep a core busy."""
    total = 0
    for number in range(loops):
        total += number * number
    return total


async def crunch_item(loops: int) -> int:
    """Do the same, as the item of a stream."""
    return crunch(loops)


async def _streams(sizes: Sizes) -> Times:
    context = multiprocessing.get_context("spawn")
    work = [sizes.loops] * sizes.items
    taken: Times = {ONE: [], TWO: [], POOL: [], BARE_ONE: [], BARE_TWO: []}
    with ProcessPoolExecutor(2, mp_context=context) as pool, _bare_processes() as bare:
        async with (
            ProcessHost("one", kind="os", workers=1),
            ProcessHost("two", kind="os", workers=2),
        ):
            list(pool.map(crunch, [1] * 4))  # its workers start with its first work
            for _ in range(sizes.rounds):
                taken[ONE].append(await _stream("one", 1, work))
                taken[TWO].append(await _stream("two", 2, work))
                taken[POOL].append(_pool(pool, work))
                taken[BARE_ONE].append(_bare(bare[:1], work))
                taken[BARE_TWO].append(_bare(bare, work))
    return taken


async def _stream(host: str, workers: int, work: Sequence[int]) -> float:
    began = time.perf_counter()
    # One item runs and one is on its way to each worker, as the pool does it.
    stream = async_stream(
        work, crunch_item, host=host, max_concurrency=2 * workers, ordered=False, timeout=None
    )
    results = await stream.to_list()
    taken = time.perf_counter() - began
    _expect(all(type(result) is Ok for result in results), "the stream")
    return taken / len(work)


def _pool(pool: ProcessPoolExecutor, work: Sequence[int]) -> float:
    began = time.perf_counter()
    results = list(pool.map(crunch, work))
    taken = time.perf_counter() - began
    _expect(len(results) == len(work), "the pool")
    return taken / len(work)


def crunch_all(pipe: Connection) -> None:
    """Do the work that comes and send the results, until None comes."""
    while (work := pipe.recv()) is not None:
        pipe.send([crunch(loops) for loops in work])


@contextmanager
def _bare_processes() -> Generator[list[Connection], None, None]:
    """Start two OS processes that work on request, over a pipe."""
    with _other_end(crunch_all) as one, _other_end(crunch_all) as two:
        yield [one, two]


def _bare(pipes: Sequence[Connection], work: Sequence[int]) -> float:
    began = time.perf_counter()
    for number, pipe in enumerate(pipes):
        pipe.send(work[number :: len(pipes)])
    results = [result for pipe in pipes for result in pipe.recv()]
    taken = time.perf_counter() - began
    _expect(len(results) == len(work), "the bare processes")
    return taken / len(work)


# Calls


async def answer() -> None:
    """Answer each request with itself."""
    async for request in process.requests():
        request.reply(request.body)


def echo(pipe: Connection) -> None:
    """Send back what comes, until None comes."""
    while (value := pipe.recv()) is not None:
        pipe.send(value)


def _calls(sizes: Sizes) -> Times:
    with _other_end(echo) as pipe:
        return perdure.run(_bursts, sizes, pipe)


async def _bursts(sizes: Sizes, pipe: Connection) -> Times:
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
    return {CALL: calls, PIPE: trips}


@contextmanager
def _other_end(target: Callable[[Connection], None]) -> Generator[Connection, None, None]:
    """Start an OS process at the other end of a pipe; it ends when None comes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=target, args=(theirs,))
    other.start()
    try:
        yield ours
    finally:
        ours.send(None)
        other.join()


# Messages


async def count_messages() -> None:
    """Count messages, and send the number when a message asks for it."""
    count = 0
    async for message in process.inbox():
        count += 1
        if message.topic == "last" and message.sender is not None:
            process.send(message.sender, "count", count)
            count = 0


async def _messages(sizes: Sizes) -> Times:
    taken: Times = {BATCH: [], SINGLE: []}
    async with ProcessHost("cpu", kind="os", workers=1):
        pid = process.spawn(count_messages, host="cpu")
        for _ in range(sizes.rounds):
            taken[BATCH].append(await _send(pid, sizes.messages, one_by_one=False))
            taken[SINGLE].append(await _send(pid, sizes.messages // 20, one_by_one=True))
    return taken


async def _send(pid: perdure.process.Pid, count: int, *, one_by_one: bool) -> float:
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
