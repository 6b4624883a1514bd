"""Infos about processes on other loops: ask their workers, with a time limit."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.base.duration import Duration, required_seconds, spell
from perdure.base.errors import CallTimeout
from perdure.base.pid import Pid
from perdure.process.api import resolve_alive
from perdure.process.hosts.node import Proxy, Wire
from perdure.process.hosts.signals import InfoRequestSignal
from perdure.process.introspect import Info, info_of
from perdure.process.process import ProcessRuntime, current
from perdure.process.relations import Destination


class RemoteInfos(NamedTuple):
    """What is known about the processes on other loops."""

    infos: dict[Pid, Info]
    blocked: frozenset[Pid]  # those whose worker has not answered in time


async def remote_infos(runtime: ProcessRuntime, timeout: float) -> RemoteInfos:
    """Return infos about all processes on the workers that this loop uses."""
    node: Any = runtime.node
    proxies: list[Proxy] = [] if node is None else list(node.proxies.values())
    wires = {each.wire for each in proxies if each.parent is not None}
    if not wires:
        return RemoteInfos({}, frozenset())
    seen = await _ask(node, wires, None, timeout)
    infos = {info.pid: info for found in seen.values() for info in found}
    blocked = {each.pid for each in proxies if each.wire in wires and each.wire not in seen}
    for each in proxies:
        if each.pid in infos:
            infos[each.pid] = _completed(infos[each.pid], info_of(each))
    return RemoteInfos(infos, frozenset(blocked))


async def full_info(dest: Destination, timeout: Duration = "1s") -> Info:
    """Return a snapshot of a process, wherever it runs, by asking its worker.

    Raises:
        NoProcess: It is dead.
        CallTimeout: Its worker does not answer in time: its loop is blocked.
    """
    limit = required_seconds(timeout)
    process = resolve_alive(dest, "look at it")
    if not isinstance(process, Proxy):
        return info_of(process)
    wire, pid = process.wire, process.pid
    seen = await _ask(current().runtime.node, {wire}, [pid], limit)
    if wire not in seen:
        why = TimeoutError(f"its loop is blocked: no answer within {spell(limit)}")
        raise CallTimeout(why, f"a look at {pid}")
    resolve_alive(pid, "look at it")
    near = info_of(process)  # all that is known, if it has just started, or runs farther away
    return _completed(seen[wire][0], near) if seen[wire] else near


async def _ask(
    node: Any, wires: Iterable[Wire], pids: list[Pid] | None, timeout: float
) -> dict[Wire, list[Info]]:
    """Ask workers for infos; return those of the workers that have answered in time."""
    answers: dict[Wire, asyncio.Future[list[Info]]] = {}
    numbers: list[int] = []
    for wire in wires:
        numbers.append(next(node.numbers))
        answers[wire] = node.open_infos[numbers[-1]] = node.runtime.loop.create_future()
        wire.post(InfoRequestSignal(numbers[-1], pids))
    try:
        await asyncio.wait(answers.values(), timeout=timeout)
    finally:
        for number in numbers:
            node.open_infos.pop(number, None)
    return {wire: answer.result() for wire, answer in answers.items() if answer.done()}


def _completed(far: Info, near: Info) -> Info:
    """Return an info with what only this loop knows: its own monitors."""
    others = [pid for pid in near.monitored_by if pid not in far.monitored_by]
    return replace(far, monitored_by=(*far.monitored_by, *others), callers=near.callers)
