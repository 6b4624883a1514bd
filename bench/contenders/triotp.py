"""triotp: OTP on trio.

A mailbox is a rendezvous: a send waits for its receiver. A call has a time-out, but no notice of
the server's death; a process is a plain trio task, and there are no links.
"""

import types
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing
from triotp import application, gen_server, mailbox

from bench.workload import BURST, CALL_TIMEOUT, SENDERS, clock, resident_bytes


def _run(body: Callable[[trio.Nursery], Awaitable[float]]) -> float:
    async def main() -> float:
        # What an application of triotp does at its start; it has no public name.
        mailbox._init()  # noqa: SLF001
        async with trio.open_nursery() as nursery:
            application._init(nursery)  # noqa: SLF001
            outcome = await body(nursery)
            nursery.cancel_scope.cancel()
        return outcome

    return trio.run(main)


def pingpong(n: int) -> float:
    """Two tasks, two mailboxes."""

    async def ping(nursery: trio.Nursery) -> float:
        mine, other = mailbox.create(), mailbox.create()

        async def pong() -> None:
            while True:
                await mailbox.send(mine, await mailbox.receive(other))

        nursery.start_soon(pong)
        began = clock()
        for number in range(n):
            await mailbox.send(other, number)
            await mailbox.receive(mine)
        return clock() - began

    return _run(ping)


def _echo() -> Any:
    """Return a server: a module with callbacks, or an object that looks like one."""

    async def init(_: object) -> None:
        pass

    async def handle_call(request: object, _: object, state: object) -> tuple[Any, object]:
        return gen_server.Reply(payload=request), state

    return types.SimpleNamespace(__name__="echo", init=init, handle_call=handle_call)


def call(n: int) -> float:
    """``gen_server.call`` by name."""

    async def client(nursery: trio.Nursery) -> float:
        nursery.start_soon(gen_server.start, _echo(), None, "echo")
        await trio.testing.wait_all_tasks_blocked()
        began = clock()
        for number in range(n):
            await gen_server.call("echo", number, CALL_TIMEOUT)
        return clock() - began

    return _run(client)


def fan_in(n: int) -> float:
    """Many tasks send to one mailbox."""
    each = n // SENDERS

    async def receiver(nursery: trio.Nursery) -> float:
        mine = mailbox.create()

        async def sender() -> None:
            for number in range(1, each + 1):
                await mailbox.send(mine, number)
                if number % BURST == 0:
                    await trio.sleep(0)

        began = clock()
        for _ in range(SENDERS):
            nursery.start_soon(sender)
        for _ in range(each * SENDERS):
            await mailbox.receive(mine)
        return clock() - began

    return _run(receiver)


def spawn(n: int) -> float:
    """A child is a task with a mailbox of its own."""

    async def child() -> None:
        async with mailbox.open():
            pass

    async def parent(_: trio.Nursery) -> float:
        began = clock()
        async with trio.open_nursery() as children:
            for _ in range(n):
                children.start_soon(child)
        return clock() - began

    return _run(parent)


def idle(n: int) -> float:
    """Tasks that wait on their mailboxes."""
    waiting = 0

    async def sleeper() -> None:
        nonlocal waiting
        async with mailbox.open() as mine:
            waiting += 1
            await mailbox.receive(mine)

    async def parent(nursery: trio.Nursery) -> float:
        before = resident_bytes()
        for _ in range(n):
            nursery.start_soon(sleeper)
        while waiting < n:
            await trio.sleep(0)
        return resident_bytes() - before

    return _run(parent)


# Its call is that of a server already.
server_call = call
