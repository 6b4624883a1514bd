"""fauxtp: actors and servers on anyio (here on its asyncio backend).

A call has a time-out, but no notice of the server's death; there are no links.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import fauxtp
from anyio.abc import TaskGroup

from bench.workload import (
    BURST,
    CALL_TIMEOUT,
    RESTARTS,
    SENDERS,
    clock,
    expect,
    fastest,
    resident_bytes,
)

_WHATEVER = (fauxtp.ANY, lambda message: message)


class _Body(fauxtp.Actor):
    """An actor that runs one function and stops."""

    def __init__(self, body: Callable[[fauxtp.Actor], Awaitable[None]]) -> None:
        super().__init__()
        self._body = body

    async def run(self, state: object) -> object:
        await self._body(self)
        self.stop()
        return state


class _Echo(fauxtp.GenServer):
    async def handle_call(self, request: Any, _: Any, state: Any) -> tuple[Any, Any]:
        return request, state


def _run(body: Callable[[TaskGroup], Awaitable[float]]) -> float:
    async def main() -> float:
        async with anyio.create_task_group() as group:
            outcome = await body(group)
            group.cancel_scope.cancel()
        return outcome

    return anyio.run(main)


def _run_in_actor(body: Callable[[fauxtp.Actor, TaskGroup], Awaitable[float]]) -> float:
    async def main(group: TaskGroup) -> float:
        done = anyio.Event()
        outcome = 0.0

        async def root(actor: fauxtp.Actor) -> None:
            nonlocal outcome
            outcome = await body(actor, group)
            done.set()

        await _Body.start(root, task_group=group)
        await done.wait()
        return outcome

    return _run(main)


def pingpong(n: int) -> float:
    """Messages carry no sender: the partner knows it from the start."""

    async def ping(me: fauxtp.Actor, group: TaskGroup) -> float:
        async def pong(actor: fauxtp.Actor) -> None:
            while True:
                await fauxtp.send(me.pid, await actor.receive(_WHATEVER))

        partner = await _Body.start(pong, task_group=group)
        began = clock()
        for number in range(n):
            await fauxtp.send(partner, number)
            await me.receive(_WHATEVER)
        return clock() - began

    return _run_in_actor(ping)


def call(n: int) -> float:
    """``call`` of a server."""

    async def client(group: TaskGroup) -> float:
        server = await _Echo.start(task_group=group)
        began = clock()
        for number in range(n):
            await fauxtp.call(server, number, timeout=CALL_TIMEOUT)
        return clock() - began

    return _run(client)


def fan_in(n: int) -> float:
    """Many actors send to one."""
    each = n // SENDERS

    async def receiver(me: fauxtp.Actor, group: TaskGroup) -> float:
        async def sender(_: fauxtp.Actor) -> None:
            for number in range(1, each + 1):
                await fauxtp.send(me.pid, number)
                if number % BURST == 0:
                    await anyio.sleep(0)

        began = clock()
        for _ in range(SENDERS):
            await _Body.start(sender, task_group=group)
        for _ in range(each * SENDERS):
            await me.receive(_WHATEVER)
        return clock() - began

    return _run_in_actor(receiver)


def spawn(n: int) -> float:
    """Each actor reports its end through the hook ``on_exit``."""

    async def child(_: fauxtp.Actor) -> None:
        pass

    async def parent(group: TaskGroup) -> float:
        left = n
        done = anyio.Event()

        async def on_exit(_: object, __: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        began = clock()
        for _ in range(n):
            await _Body.start_link(child, task_group=group, on_exit=on_exit)
        await done.wait()
        return clock() - began

    return _run(parent)


def idle(n: int) -> float:
    """Actors that wait on their mailboxes."""
    waiting = 0

    async def sleeper(actor: fauxtp.Actor) -> None:
        nonlocal waiting
        waiting += 1
        await actor.receive(_WHATEVER)

    async def parent(group: TaskGroup) -> float:
        before = resident_bytes()
        actors = [await _Body.start(sleeper, task_group=group) for _ in range(n)]
        while waiting < len(actors):
            await anyio.sleep(0)
        return resident_bytes() - before

    return _run(parent)


# Its call is that of a server already.
server_call = call


class _Holder(fauxtp.GenServer):
    """An agent by hand: it applies the functions that it is sent."""

    async def init(self) -> int:
        return 0

    async def handle_call(self, request: Any, _: Any, state: Any) -> tuple[Any, Any]:
        state = request(state)
        return state, state


def agent_update(n: int) -> float:
    """``call`` of a server that applies functions."""

    async def client(group: TaskGroup) -> float:
        agent = await _Holder.start(task_group=group)
        count = 0
        began = clock()
        for _ in range(n):
            count = await fauxtp.call(agent, lambda state: state + 1, timeout=CALL_TIMEOUT)
        seconds = clock() - began
        expect(count == n, "some updates are missing")
        return seconds

    return _run(client)


class _Fragile(_Echo):
    """A server that reports its start, and crashes when it is told to."""

    def __init__(self, started: Any) -> None:
        super().__init__()
        self._started = started

    async def init(self) -> None:
        self._started.send_nowait(self.pid)

    async def handle_cast(self, request: Any, state: Any) -> Any:
        raise RuntimeError(request, state)


def restart(n: int) -> float:
    """A child of its ``Supervisor``, which restarts without limit."""

    async def client(group: TaskGroup) -> float:
        async def crash(times: int) -> float:
            send, receive = anyio.create_memory_object_stream[Any](1)
            child = fauxtp.ChildSpec(_Fragile, "fragile", (send,))
            await fauxtp.Supervisor.start([child], task_group=group)
            server = await receive.receive()
            began = clock()
            for number in range(times):
                await fauxtp.cast(server, "crash")
                server = await receive.receive()
                await fauxtp.call(server, number, timeout=CALL_TIMEOUT)
            return clock() - began

        return await fastest(n, RESTARTS, crash)

    return _run(client)
