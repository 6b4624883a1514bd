"""otpylib: processes and OTP behaviours on asyncio."""

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable
from typing import Any

from otpylib import atom, gen_server, process
from otpylib.gen_server import NoReply, Reply
from otpylib.module import GEN_SERVER, OTPModule
from otpylib.runtime import set_runtime
from otpylib.runtime.backends.asyncio_backend import AsyncIOBackend

from bench.workload import BURST, CALL_TIMEOUT, SENDERS, clock, expect, resident_bytes


def _run(body: Callable[[], Awaitable[float]]) -> float:
    """Run the body inside a process of otpylib."""

    async def main() -> float:
        backend = AsyncIOBackend()
        await backend.initialize()
        set_runtime(backend)
        outcome: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def root() -> None:
            try:
                outcome.set_result(await body())
            except Exception as error:  # noqa: BLE001 - handed to the caller
                outcome.set_exception(error)

        await process.spawn(root)
        try:
            return await outcome
        finally:
            with contextlib.redirect_stdout(io.StringIO()):
                await backend.shutdown()

    return asyncio.run(main())


def pingpong(n: int) -> float:
    """Messages carry no sender: the partner is told it at its start."""

    async def pong(partner: Any) -> None:
        while True:
            await process.send(partner, await process.receive())

    async def ping() -> float:
        partner = await process.spawn(pong, args=[process.self()])
        began = clock()
        for number in range(n):
            await process.send(partner, number)
            await process.receive()
        return clock() - began

    return _run(ping)


class _Echo(metaclass=OTPModule, behavior=GEN_SERVER, version="1.0.0"):
    async def init(self, _: object) -> None:
        pass

    async def handle_call(self, request: object, _: object, state: object) -> tuple[Any, object]:
        return Reply(request), state

    async def handle_cast(self, _: object, state: object) -> tuple[Any, object]:
        return NoReply(), state

    async def handle_info(self, _: object, state: object) -> tuple[Any, object]:
        return NoReply(), state

    async def terminate(self, reason: object, state: object) -> None:
        pass


def call(n: int) -> float:
    """``gen_server.call``, which monitors the server."""
    name = atom.ensure("echo")

    async def client() -> float:
        await gen_server.start(_Echo, None, name=name)
        began = clock()
        for number in range(n):
            await gen_server.call(name, number, timeout=CALL_TIMEOUT)
        return clock() - began

    return _run(client)


def fan_in(n: int) -> float:
    """Many processes send to the root process."""
    each = n // SENDERS

    async def sender(receiver: Any) -> None:
        for number in range(1, each + 1):
            await process.send(receiver, number)
            if number % BURST == 0:
                await asyncio.sleep(0)

    async def receiver() -> float:
        me = process.self()
        began = clock()
        for _ in range(SENDERS):
            await process.spawn(sender, args=[me])
        for _ in range(each * SENDERS):
            await process.receive()
        return clock() - began

    return _run(receiver)


def spawn(n: int) -> float:
    """The tasks below run in order: when the last process is dead, all are."""

    async def child() -> None:
        pass

    async def parent() -> float:
        began = clock()
        children = [await process.spawn(child) for _ in range(n)]
        while process.is_alive(children[-1]):
            await asyncio.sleep(0)
        seconds = clock() - began
        expect(not any(map(process.is_alive, children)), "some processes are alive")
        return seconds

    return _run(parent)


def cascade(n: int) -> float:
    """Each process of the chain starts the next one with ``spawn_link``."""
    chain: list[Any] = []

    async def member() -> None:
        chain.append(process.self())
        if len(chain) < n:
            await process.spawn_link(member)
        await process.receive()

    async def watcher() -> float:
        await process.spawn(member)
        while len(chain) < n:
            await asyncio.sleep(0)
        began = clock()
        await process.exit(chain[0], "killed")
        while process.is_alive(chain[-1]):
            await asyncio.sleep(0)
        seconds = clock() - began
        expect(not any(map(process.is_alive, chain)), "some of the chain are alive")
        return seconds

    return _run(watcher)


def idle(n: int) -> float:
    """Processes that wait on their mailboxes."""
    waiting = 0

    async def sleeper() -> None:
        nonlocal waiting
        waiting += 1
        await process.receive()

    async def parent() -> float:
        before = resident_bytes()
        processes = [await process.spawn(sleeper) for _ in range(n)]
        while waiting < len(processes):
            await asyncio.sleep(0)
        return resident_bytes() - before

    return _run(parent)


# Its call is that of a server already.
server_call = call


class _Holder(metaclass=OTPModule, behavior=GEN_SERVER, version="1.0.0"):
    """An agent by hand: it applies the functions that it is sent."""

    async def init(self, _: object) -> int:
        return 0

    async def handle_call(self, request: Any, _: object, state: Any) -> tuple[Any, Any]:
        state = request(state)
        return Reply(state), state

    # Every callback must be written in the class itself.
    handle_cast = _Echo.handle_cast
    handle_info = _Echo.handle_info
    terminate = _Echo.terminate


def agent_update(n: int) -> float:
    """``gen_server.call`` of a server that applies functions."""
    name = atom.ensure("agent")

    async def client() -> float:
        await gen_server.start(_Holder, None, name=name)
        count = 0
        began = clock()
        for _ in range(n):
            count = await gen_server.call(name, lambda state: state + 1, timeout=CALL_TIMEOUT)
        seconds = clock() - began
        expect(count == n, "some updates are missing")
        return seconds

    return _run(client)
