"""Plain asyncio: a task and a queue for each process, everything else by hand."""

import asyncio
import itertools

from bench.workload import BURST, CALL_TIMEOUT, SENDERS, clock, expect, resident_bytes


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
        self.inbox: asyncio.Queue[tuple[object, asyncio.Future[object]]] = asyncio.Queue()
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            request, reply = await self.inbox.get()
            if not reply.done():
                reply.set_result(request)

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
