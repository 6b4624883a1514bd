"""aioerl: Erlang-like processes, each an asyncio task.

A parent is told of the end of its children in its mailbox. It has no links that spread death.
"""

import asyncio

import aioerl

from bench.workload import BURST, CALL_TIMEOUT, SENDERS, clock, expect, resident_bytes


def pingpong(n: int) -> float:
    """Send and receive; the answer goes to the sender of the message."""

    async def pong() -> None:
        while True:
            message = await aioerl.receive()
            await aioerl.send(message.sender, message.body)

    async def ping() -> float:
        partner = await aioerl.spawn(pong())
        began = clock()
        for number in range(n):
            await aioerl.send(partner, number)
            await aioerl.receive()
        return clock() - began

    return asyncio.run(ping())


def call(n: int) -> float:
    """Send, then receive with a time-out; a dead child would answer with an exit message."""

    async def server() -> None:
        while True:
            message = await aioerl.receive()
            await aioerl.send(message.sender, message.body)

    async def client() -> float:
        partner = await aioerl.spawn(server())
        began = clock()
        for number in range(n):
            await aioerl.send(partner, number)
            reply = await aioerl.receive(timeout=CALL_TIMEOUT)
            expect(reply.is_ok, "the server did not answer")
        return clock() - began

    return asyncio.run(client())


def fan_in(n: int) -> float:
    """Only the senders' own messages count, not the notices of their end."""
    each = n // SENDERS

    async def sender(receiver: aioerl.main.Process) -> None:
        for number in range(1, each + 1):
            await aioerl.send(receiver, number)
            if number % BURST == 0:
                await asyncio.sleep(0)

    async def receiver() -> float:
        me = aioerl.current_proc(create=True)
        left = each * SENDERS
        began = clock()
        for _ in range(SENDERS):
            await aioerl.spawn(sender(me))
        while left:
            message = await aioerl.receive()
            left -= message.is_ok
        return clock() - began

    return asyncio.run(receiver())


def spawn(n: int) -> float:
    """The parent receives a notice of the end of each child."""

    async def child() -> None:
        pass

    async def parent() -> float:
        began = clock()
        for _ in range(n):
            await aioerl.spawn(child())
        for _ in range(n):
            await aioerl.receive()
        return clock() - began

    return asyncio.run(parent())


def idle(n: int) -> float:
    """Processes that wait on their mailboxes."""
    waiting = 0

    async def sleeper() -> None:
        nonlocal waiting
        waiting += 1
        await aioerl.receive()

    async def parent() -> float:
        before = resident_bytes()
        processes = [await aioerl.spawn(sleeper()) for _ in range(n)]
        while waiting < len(processes):
            await asyncio.sleep(0)
        return resident_bytes() - before

    return asyncio.run(parent())


# There is no ready-made server: a process that answers is the server.
server_call = call
