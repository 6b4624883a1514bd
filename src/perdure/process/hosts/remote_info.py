"""Look at processes that run on other loops: ask their workers, and wait only so long."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.base.duration import Duration, required_seconds, spell
from perdure.base.errors import CallTimeout
from perdure.base.pid import Pid
from perdure.process.api import alive_or_raise
from perdure.process.hosts import signals
from perdure.process.hosts.proxy import StandIn, Wire
from perdure.process.introspect import Info, picture
from perdure.process.relations import Destination
from perdure.process.runtime import Runtime
from perdure.process.waiter import current

if TYPE_CHECKING:
    from perdure.process.hosts.node import Node


MOST = 2_000  # processes of which one worker gives pictures

Pictures = list[Info]


class Sight(NamedTuple):
    """What was seen of the processes on other loops."""

    infos: dict[Pid, Info]
    blocked: frozenset[Pid]  # those whose worker gave no answer in time


def answer_looks(node: "Node") -> None:
    """Let a node show its processes to others, and take in what others show."""
    node.handlers[signals.Look] = partial(_show, node.runtime)
    node.handlers[signals.Seen] = partial(_on_seen, node)


def _show(runtime: Runtime, wire: Wire, told: signals.Look) -> None:
    wanted = told.pids
    known = runtime.processes
    processes = known.values() if wanted is None else (known[p] for p in wanted if p in known)
    wire.post(signals.Seen(told.number, [picture(each) for each in islice(processes, MOST)]))


def _on_seen(node: "Node", _: Wire, told: signals.Seen) -> None:
    answer = node.looks.pop(told.number, None)
    if answer is not None and not answer.done():
        answer.set_result(told.infos)


async def look_around(runtime: Runtime, timeout: float) -> Sight:
    """Take pictures of all processes on the workers that this loop has started something on."""
    node: Any = runtime.node
    stand_ins: list[StandIn] = [] if node is None else list(node.stand_ins.values())
    wires = {each.wire for each in stand_ins if each.parent is not None}
    if not wires:
        return Sight({}, frozenset())
    seen = await _ask(node, wires, None, timeout)
    infos = {info.pid: info for pictures in seen.values() for info in pictures}
    blocked = {each.pid for each in stand_ins if each.wire in wires and each.wire not in seen}
    for each in stand_ins:
        if each.pid in infos:
            infos[each.pid] = _completed(infos[each.pid], picture(each))
    return Sight(infos, frozenset(blocked))


async def full_info(dest: Destination, timeout: Duration = "1s") -> Info:
    """Take a picture of a process, wherever it runs: its worker is asked.

    Raises:
        NoProcess: It is dead.
        CallTimeout: Its worker gives no answer in time: its loop is blocked.
    """
    limit = required_seconds(timeout)
    process = alive_or_raise(dest, "look at it")
    if not isinstance(process, StandIn):
        return picture(process)
    wire, pid = process.wire, process.pid
    seen = await _ask(current().runtime.node, {wire}, [pid], limit)
    if wire not in seen:
        why = TimeoutError(f"its loop is blocked: no answer within {spell(limit)}")
        raise CallTimeout(why, f"a look at {pid}")
    alive_or_raise(pid, "look at it")
    near = picture(process)  # all that is known, if it has just begun, or runs farther away
    return _completed(seen[wire][0], near) if seen[wire] else near


async def _ask(
    node: Any, wires: Iterable[Wire], pids: list[Pid] | None, timeout: float
) -> dict[Wire, Pictures]:
    """Ask workers for pictures; give those of the workers that have answered in time."""
    answers: dict[Wire, asyncio.Future[Pictures]] = {}
    numbers: list[int] = []
    for wire in wires:
        numbers.append(next(node.numbers))
        answers[wire] = node.looks[numbers[-1]] = node.runtime.loop.create_future()
        wire.post(signals.Look(numbers[-1], pids))
    try:
        await asyncio.wait(answers.values(), timeout=timeout)
    finally:
        for number in numbers:
            node.looks.pop(number, None)
    return {wire: answer.result() for wire, answer in answers.items() if answer.done()}


def _completed(far: Info, near: Info) -> Info:
    """Add to a picture what only this loop knows: a monitor is known where it watches from."""
    others = [pid for pid in near.monitored_by if pid not in far.monitored_by]
    return replace(far, monitored_by=(*far.monitored_by, *others), callers=near.callers)
