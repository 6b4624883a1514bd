"""Plain asyncio: a task and a queue for each process, everything else by hand."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

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


def pingpong(n: int) -> float:
    """Two tasks, two queues."""

    async def pong(inbox: asyncio.Queue[int], out: asyncio.Queue[int]) -> None:
        while True:
            out.put_nowait(await inbox.get())

    async def ping() -> float:
        inbox: asyncio.Queue[int] = asyncio.Queue()
        out: asyncio.Queue[int] = asyncio.Queue()
        task = asyncio.create_task(pong(out, inbox))
        began = clock()
        for number in range(n):
            out.put_nowait(number)
            await inbox.get()
        seconds = clock() - began
        task.cancel()
        return seconds

    return asyncio.run(ping())


class _Server:
    """A task that answers requests; a caller learns of its death at once."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            request, reply = await self.inbox.get()
            if not reply.done():
                reply.set_result(request)

    def crash(self) -> None:
        self.inbox.put_nowait(None)  # no pair: taking it apart fails

    async def call(self, request: object) -> object:
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def down(_: object) -> None:
            if not reply.done():
                reply.set_exception(RuntimeError("the server died"))

        self.task.add_done_callback(down)
        self.inbox.put_nowait((request, reply))
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return await reply
        finally:
            self.task.remove_done_callback(down)


def call(n: int) -> float:
    """A future for the reply, a done-callback for the server's death, ``asyncio.timeout``."""

    async def client() -> float:
        server = _Server()
        began = clock()
        for number in range(n):
            await server.call(number)
        return clock() - began

    return asyncio.run(client())


def fan_in(n: int) -> float:
    """Many tasks that put into one queue."""
    each = n // SENDERS

    async def sender(inbox: asyncio.Queue[int]) -> None:
        for number in range(1, each + 1):
            inbox.put_nowait(number)
            if number % BURST == 0:
                await asyncio.sleep(0)

    async def receiver() -> float:
        inbox: asyncio.Queue[int] = asyncio.Queue()
        began = clock()
        tasks = [asyncio.create_task(sender(inbox)) for _ in range(SENDERS)]
        for _ in range(each * SENDERS):
            await inbox.get()
        seconds = clock() - began
        await asyncio.wait(tasks)
        return seconds

    return asyncio.run(receiver())


def spawn(n: int) -> float:
    """Tasks run in the order of their creation: when the last is done, all are."""

    async def child() -> None:
        pass

    async def parent() -> float:
        began = clock()
        tasks = [asyncio.create_task(child()) for _ in range(n)]
        await tasks[-1]
        seconds = clock() - began
        expect(all(task.done() for task in tasks), "some tasks are not done")
        return seconds

    return asyncio.run(parent())


def cascade(n: int) -> float:
    """A link is two done-callbacks, each of which cancels the neighbour."""

    def link(one: asyncio.Task[None], other: asyncio.Task[None]) -> None:
        one.add_done_callback(lambda _: other.cancel())
        other.add_done_callback(lambda _: one.cancel())

    async def member(inbox: asyncio.Queue[None]) -> None:
        await inbox.get()  # a process that is linked has a mailbox, and waits for it

    async def watcher() -> float:
        chain = [asyncio.create_task(member(asyncio.Queue())) for _ in range(n)]
        await asyncio.sleep(0)
        for one, other in itertools.pairwise(chain):
            link(one, other)
        began = clock()
        chain[0].cancel()
        await asyncio.wait([chain[-1]])
        seconds = clock() - began
        expect(all(task.done() for task in chain), "some of the chain are alive")
        return seconds

    return asyncio.run(watcher())


def idle(n: int) -> float:
    """Tasks that wait on their queues."""
    waiting = 0

    async def sleeper(inbox: asyncio.Queue[None]) -> None:
        nonlocal waiting
        waiting += 1
        await inbox.get()

    async def parent() -> float:
        before = resident_bytes()
        inboxes: list[asyncio.Queue[None]] = [asyncio.Queue() for _ in range(n)]
        tasks = [asyncio.create_task(sleeper(inbox)) for inbox in inboxes]
        while waiting < n:
            await asyncio.sleep(0)
        used = resident_bytes() - before
        for task in tasks:
            task.cancel()
        return used

    return asyncio.run(parent())


# There is no ready-made server: the one by hand is the server.
server_call = call


def agent_update(n: int) -> float:
    """A queue of functions and a future for each; without a time-out or a notice of death."""

    async def agent(inbox: asyncio.Queue[Any]) -> None:
        state = 0
        while True:
            function, done = await inbox.get()
            state = function(state)
            if not done.done():
                done.set_result(None)

    async def client() -> float:
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.create_task(agent(inbox))
        began = clock()
        for _ in range(n):
            done: asyncio.Future[None] = loop.create_future()
            inbox.put_nowait((lambda count: count + 1, done))
            await done
        seconds = clock() - began
        task.cancel()
        return seconds

    return asyncio.run(client())


async def _identity(item: int) -> int:
    return item


async def _item(item: int) -> tuple[int, None] | tuple[None, Exception]:
    """Do one item: not for ever, and a failure is a value as well."""
    try:
        async with asyncio.timeout(ITEM_TIMEOUT):
            return await _identity(item), None
    except Exception as error:  # noqa: BLE001 - whatever it is, the other items go on
        return None, error


async def _unordered(items: Iterable[int]) -> AsyncIterator[Any]:
    """Yield results as they come: a finished task puts itself into a queue.

    The running ones are only counted, the cheapest that works: the loop holds each that is ready.
    """
    finished: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()
    running = 0
    for item in items:
        if running == WINDOW:
            yield (await finished.get()).result()
            running -= 1
        asyncio.create_task(_item(item)).add_done_callback(finished.put_nowait)
        running += 1
    for _ in range(running):
        yield (await finished.get()).result()


async def _ordered(items: Iterable[int]) -> AsyncIterator[Any]:
    """Yield results in order: wait for the oldest task."""
    running: deque[asyncio.Task[Any]] = deque()
    for item in items:
        if len(running) == WINDOW:
            yield await running.popleft()
        running.append(asyncio.create_task(_item(item)))
    while running:
        yield await running.popleft()


def _consume(stream: Callable[[Iterable[int]], AsyncIterator[Any]], n: int) -> float:
    async def consumer() -> float:
        total = 0
        began = clock()
        async for value, error in stream(range(n)):
            total += value if error is None else 0
        seconds = clock() - began
        expect(total == sum(range(n)), "some items are missing")
        return seconds

    return asyncio.run(consumer())


def stream_unordered(n: int) -> float:
    """A window of tasks and a queue of the finished ones."""
    return _consume(_unordered, n)


def stream_ordered(n: int) -> float:
    """A window of tasks in order."""
    return _consume(_ordered, n)


def restart(n: int) -> float:
    """A task that starts another one whenever that has crashed; nothing counts the crashes."""
    started: asyncio.Queue[_Server] = asyncio.Queue()

    async def supervisor() -> None:
        while True:
            server = _Server()
            started.put_nowait(server)
            await asyncio.wait([server.task])
            server.task.exception()  # seen: asyncio does not log it

    async def client() -> float:
        task = asyncio.create_task(supervisor())
        server = await started.get()

        async def crash(times: int) -> float:
            nonlocal server
            began = clock()
            for number in range(times):
                server.crash()
                server = await started.get()
                await server.call(number)
            return clock() - began

        seconds = await fastest(n, RESTARTS, crash)
        task.cancel()
        return seconds

    return asyncio.run(client())
