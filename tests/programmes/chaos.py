"""Chaos: OS workers die under load, again and again, and nobody is told too much or too little.

`python -m tests.programmes.chaos --deaths 200` is the long programme; the suite runs a short one.
"""

import argparse
import asyncio
import gc
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure import process
from perdure.errors import CallExit, HostDown, Killed
from perdure.otp import GenServer, Supervisor
from perdure.process import Exit, LinkDown, Pid, ProcessHost
from perdure.process.process import current
from tests.support import work
from tests.support.child_processes import Offspring

WORKERS = 2
SERVERS = 4
VICTIMS = 12
WAYS = ("kill", "segfault", "abort", "exit", "out of memory")
_PAGE = os.sysconf("SC_PAGESIZE")


class Traces(NamedTuple):
    """What a program holds of the system and of its own memory."""

    descriptors: int
    children: int
    proxies: int
    observers: int
    megabytes: float


class Report(NamedTuple):
    """What was seen."""

    deaths: int
    told: int
    calls: int
    before: Traces
    after: Traces


def traces(children: Offspring) -> Traces:
    """Look at what this program holds now."""
    gc.collect()
    node: Any = current().runtime.node
    return Traces(
        len(list(Path("/proc/self/fd").iterdir())),
        len(children()),
        len(node.proxies),
        len(node._exit_observers),  # noqa: SLF001
        int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6,
    )


async def chaos(deaths: int, seed: int = 1) -> Report:
    """Let so many workers die; raise if anything is not as it must be."""
    dice, children = random.Random(seed), Offspring()
    process.set_options(trap_links=True)
    specs = [work.Counter.child(0, host="cpu", name=f"server{n}", id=n) for n in range(SERVERS)]
    host = ProcessHost("cpu", kind="os", workers=WORKERS, max_restarts=deaths + 1, max_seconds=3600)
    async with host, Supervisor(specs, max_restarts=deaths * SERVERS + SERVERS, max_seconds=3600):
        loader = process.spawn(_load)
        told = 0
        before = await _calm(children)
        for number in range(deaths):
            told += await _round(dice.choice(WAYS), dice)
            _progress(number + 1, deaths)
        after = await _calm(children)
        _check(before, after, deaths)
        calls = await process.call(loader, "calls", None)
        process.kill(loader)
    assert not children(), "an OS process was left behind"
    return Report(deaths, told, calls, before, after)


async def _load() -> None:
    """Call all servers without end, and count the answers; those that die meanwhile are missed."""
    answered = 0

    async def calls() -> None:
        nonlocal answered
        while True:
            for number in range(SERVERS):
                try:
                    await GenServer.call(f"server{number}", 1)
                    answered += 1
                except CallExit:
                    await perdure.process.sleep("1ms")

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(calls())
        async for request in process.requests():
            request.reply(answered)


async def _round(way: str, dice: random.Random) -> int:
    """Let one worker die, and check that everybody is told once; give how many were told."""
    victims = [
        process.spawn_linked_monitored(work.os_pid, process.self_pid(), host="cpu")
        for _ in range(VICTIMS)
    ]
    homes: dict[Pid, int] = {}
    for _ in victims:
        message = await process.inbox().receive()
        assert message.sender is not None
        homes[message.sender] = message.payload
    doomed = dice.choice(sorted(set(homes.values())))
    await _let_die(way, doomed, victims, homes)
    dying = [pid for pid in victims if homes[pid] == doomed]
    events = await _events(2 * len(dying))
    for pid in set(victims) - set(dying):
        process.kill(pid)
    events += await _events(2 * (len(victims) - len(dying)))
    _check_events(events, victims, dying)
    assert len(process.events()) == 0, f"told too often: {await process.events().receive()}"
    return len(events)


async def _let_die(way: str, doomed: int, victims: list[Pid], homes: dict[Pid, int]) -> None:
    if way == "kill":  # as the system does it too, when memory is short
        os.kill(doomed, signal.SIGKILL)
    elif way == "abort":
        os.kill(doomed, signal.SIGABRT)
    else:  # from within, by one that lives there
        inside = next(pid for pid in victims if homes[pid] == doomed)
        process.send(inside, way)


async def _events(count: int) -> list[Exit | LinkDown]:
    events: list[Any] = []
    while len(events) < count:
        event = await process.events().receive()
        if isinstance(event, Exit | LinkDown):
            events.append(event)
    return events


def _check_events(events: list[Exit | LinkDown], victims: list[Pid], dying: list[Pid]) -> None:
    exits = Counter(event.sender for event in events if isinstance(event, Exit))
    downs = Counter(event.sender for event in events if isinstance(event, LinkDown))
    assert exits == downs == Counter(victims), (exits, downs)
    for event in events:
        error = event.result.error if isinstance(event, Exit) else event.error
        wanted = HostDown if event.sender in dying else Killed
        assert isinstance(error, wanted), (event, wanted)


async def _calm(children: Offspring) -> Traces:
    """Wait until all servers answer and all workers are there, and look."""
    for number in range(SERVERS):
        while True:
            try:
                await GenServer.call(f"server{number}", 0, 60)
                break
            except CallExit:
                await perdure.process.sleep("10ms")
    return traces(children)


def _check(before: Traces, after: Traces, deaths: int) -> None:
    assert after.descriptors == before.descriptors, (before, after)
    assert after.children == before.children == WORKERS, (before, after)
    assert after.proxies <= before.proxies + 2, (before, after)
    assert after.observers <= before.observers + 2, (before, after)
    assert after.megabytes - before.megabytes < 10 + deaths / 20, (before, after)


def _progress(done: int, deaths: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done}/{deaths} deaths")
        sys.stderr.flush()


def main() -> None:
    """Run the long programme."""
    parser = argparse.ArgumentParser(description="Let OS workers die under load.")
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report: Report = perdure.run(chaos, given.deaths, given.seed)
    sys.stdout.write(f"{report}\n")


if __name__ == "__main__":
    main()
