"""Perdure itself."""

import asyncio
from typing import Any

import perdure
from bench.workload import (
    BURST,
    CALL_TIMEOUT,
    ITEM_TIMEOUT,
    RESTARTS,
    SENDERS,
    WINDOW,
    clock,
    expect,
    fastest,
    resident_bytes,
)
from perdure import process
from perdure.otp import Agent, GenServer, Supervisor, async_stream


def pingpong(n: int) -> float:
    """Send and receive; the answer goes to the sender of the message."""

    async def pong() -> None:
        inbox = process.inbox()
        while True:
            message = await inbox.receive()
            process.send(message.sender, "pong", message.payload)

    async def ping() -> float:
        inbox = process.inbox()
        partner = process.spawn(pong)
        began = clock()
        for number in range(n):
            process.send(partner, "ping", number)
            await inbox.receive()
        return clock() - began

    return perdure.run(ping)


def call(n: int) -> float:
    """``process.call``, which monitors the server."""

    async def server() -> None:
        requests = process.requests()
        while True:
            request = await requests.receive()
            request.reply(request.body)

    async def client() -> float:
        partner = process.spawn(server)
        began = clock()
        for number in range(n):
            await process.call(partner, number, timeout=CALL_TIMEOUT)
        return clock() - began

    return perdure.run(client)


def fan_in(n: int) -> float:
    """Many processes send to the root process."""
    each = n // SENDERS

    async def sender(receiver: process.Pid) -> None:
        for number in range(1, each + 1):
            process.send(receiver, "number", number)
            if number % BURST == 0:
                await asyncio.sleep(0)

    async def receiver() -> float:
        inbox = process.inbox()
        me = process.self_pid()
        began = clock()
        for _ in range(SENDERS):
            process.spawn(sender, me)
        for _ in range(each * SENDERS):
            await inbox.receive()
        return clock() - began

    return perdure.run(receiver)


def spawn(n: int) -> float:
    """Processes run in the order of their start: when the last is dead, all are."""

    async def child() -> None:
        pass

    async def parent() -> float:
        events = process.events()
        began = clock()
        children = [process.spawn(child) for _ in range(n - 1)]
        children.append(process.spawn_monitored(child))
        await events.receive()
        seconds = clock() - began
        expect(not any(map(process.alive, children)), "some processes are alive")
        return seconds

    return perdure.run(parent)


def cascade(n: int) -> float:
    """Each process of the chain starts the next one with ``spawn_linked``."""
    chain: list[Any] = []

    async def member() -> None:
        chain.append(process.self_pid())
        if len(chain) < n:
            process.spawn_linked(member)
        await process.inbox().receive()

    async def watcher() -> float:
        events = process.events()
        process.spawn(member)
        while len(chain) < n:
            await asyncio.sleep(0)
        process.monitor(chain[-1])
        began = clock()
        process.kill(chain[0])
        await events.receive()
        seconds = clock() - began
        expect(not any(map(process.alive, chain)), "some of the chain are alive")
        return seconds

    return perdure.run(watcher)


def idle(n: int) -> float:
    """Processes that wait on their inboxes."""
    waiting = 0

    async def sleeper() -> None:
        nonlocal waiting
        waiting += 1
        await process.inbox().receive()

    async def parent() -> float:
        before = resident_bytes()
        processes = [process.spawn(sleeper) for _ in range(n)]
        while waiting < len(processes):
            await asyncio.sleep(0)
        return resident_bytes() - before

    # On a busy machine so many need a while to end; that is not what is measured.
    return perdure.run(parent, settings=perdure.Settings(stop_timeout="1m"))


class _Echo(GenServer):
    async def handle_call(self, request: object, frm: process.Request[Any]) -> object:  # noqa: ARG002
        return request


def server_call(n: int) -> float:
    """``call`` of a server's handle."""

    async def client() -> float:
        server = await _Echo.start()
        began = clock()
        for number in range(n):
            await server.call(number, CALL_TIMEOUT)
        return clock() - began

    return perdure.run(client)


def agent_update(n: int) -> float:
    """``Agent.update``, with its time-out and its monitor."""

    async def client() -> float:
        agent = await Agent.start(int)
        began = clock()
        for _ in range(n):
            await agent.update(lambda count: count + 1)
        seconds = clock() - began
        expect(await agent.get(lambda count: count) == n, "some updates are missing")
        return seconds

    return perdure.run(client)


async def _identity(item: int) -> int:
    return item


def _stream(n: int, *, ordered: bool) -> float:
    async def consumer() -> float:
        total = 0
        began = clock()
        stream = async_stream(
            range(n), _identity, max_concurrency=WINDOW, ordered=ordered, timeout=ITEM_TIMEOUT
        )
        async with stream as results:
            async for result in results:
                total += result.value
        seconds = clock() - began
        expect(total == sum(range(n)), "some items are missing")
        return seconds

    return perdure.run(consumer)


def stream_unordered(n: int) -> float:
    """``async_stream``, each item in a process with a time-out."""
    return _stream(n, ordered=False)


def stream_ordered(n: int) -> float:
    """``async_stream`` as it is by default."""
    return _stream(n, ordered=True)


class _Fragile(_Echo):
    """A server that reports its start, and crashes when it is told to."""

    async def init(self, client: process.Pid) -> None:
        process.send(client, "up", process.self_pid())

    async def handle_cast(self, request: object) -> None:
        raise RuntimeError(request)


def restart(n: int) -> float:
    """A permanent child of a ``Supervisor``; its crashes are not logged."""

    async def crash(times: int) -> float:
        inbox = process.inbox()
        spec = _Fragile.child(process.self_pid())
        async with Supervisor([spec], max_restarts=times):
            pid = (await inbox.receive()).payload
            began = clock()
            for number in range(times):
                GenServer.cast(pid, "crash")
                pid = (await inbox.receive()).payload
                await GenServer.call(pid, number, CALL_TIMEOUT)
            return clock() - began

    quiet = perdure.Settings(report_crashes=False)
    return perdure.run(fastest, n, RESTARTS, crash, settings=quiet)
