"""The floor: the least code that keeps the promise. What is faster breaks it.

The promise: a step's result is on the disk before the next step starts, every write is fenced
by the owner of its job, and the jobs of a killed worker are taken up by the next.
Left out is all else: retries, time-outs, timers, messages, leases, types, errors.

While one job runs, a step is committed where it is made; from two on a thread commits whatever has
gathered, all in one transaction.
"""

import asyncio
import json
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from bench.durable.contenders import Client
from bench.durable.contenders.floor_postgres import PostgresFloor
from bench.durable.contenders.floor_sqlite import SqliteFloor
from bench.durable.marks import mark, ready
from bench.durable.place import SQLITE, Place

StepRow = tuple[int, int, bytes, int]  # job, place in it, result, owner
EndRow = tuple[int, int]  # job, owner
_BATCH = 1_000


class Store(Client, Protocol):
    """What the floor asks of a database."""

    def setup(self) -> None: ...

    def take_over(self, owner: int) -> None: ...

    def claim(self, owner: int, most: int) -> list[tuple[int, str]]: ...

    def history(self, job: int) -> list[bytes]: ...

    def write(self, steps: list[StepRow], ends: list[EndRow]) -> None: ...

    async def hint(self) -> None: ...

    def close(self) -> None: ...


def _open(place: Place) -> Store:
    return SqliteFloor(place.file) if place.store == SQLITE else PostgresFloor(place.url)


class Engine:
    """One worker."""

    def __init__(self, store: Store, concurrency: int) -> None:
        self.store = store
        self.owner = os.getpid()
        self.concurrency = concurrency
        self.loop = asyncio.get_running_loop()
        self.running: set[asyncio.Task[None]] = set()
        self.pending: queue.SimpleQueue[tuple[StepRow | EndRow, asyncio.Future[None]]] = (
            queue.SimpleQueue()
        )
        self.lock = threading.Lock()
        threading.Thread(target=self._write_for_ever, daemon=True).start()

    async def serve(self) -> None:
        self.store.take_over(self.owner)
        ready()
        while True:
            self._claim()
            await self.store.hint()

    def _claim(self) -> None:
        free = self.concurrency - len(self.running)
        if free < max(1, self.concurrency // 4):
            return  # several at once are as dear as one
        with self.lock:
            claimed = self.store.claim(self.owner, free)
        for job, argument in claimed:
            task = self.loop.create_task(self._run(job, json.loads(argument)))
            self.running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        task.result()
        self._claim()

    async def _run(self, job: int, steps: int) -> None:
        with self.lock:
            done = len([json.loads(result) for result in self.store.history(job)])
        for step in range(done, steps):
            mark(job, step)
            await self._write((job, step, json.dumps(step).encode(), self.owner))
        await self._write((job, self.owner))

    async def _write(self, row: StepRow | EndRow) -> None:
        if len(self.running) == 1 and self.lock.acquire(blocking=False):
            try:
                self.store.write(*_sorted([row]))
            finally:
                self.lock.release()
        else:
            written = self.loop.create_future()
            self.pending.put((row, written))
            await written

    def _write_for_ever(self) -> None:
        while True:
            batch = [self.pending.get()]
            with suppress(queue.Empty):
                while len(batch) < _BATCH:
                    batch.append(self.pending.get_nowait())
            with self.lock:
                self.store.write(*_sorted([row for row, _ in batch]))
            self.loop.call_soon_threadsafe(_settle, [written for _, written in batch])


def _sorted(rows: list[StepRow | EndRow]) -> tuple[list[StepRow], list[EndRow]]:
    return [row for row in rows if len(row) == 4], [row for row in rows if len(row) == 2]


def _settle(writes: list[asyncio.Future[None]]) -> None:
    for written in writes:
        written.set_result(None)


def prepare(place: Place) -> None:
    store = _open(place)
    store.setup()
    store.close()


def work(place: Place, concurrency: int) -> None:
    async def main() -> None:
        await Engine(_open(place), concurrency).serve()

    asyncio.run(main())


@contextmanager
def client(place: Place) -> Iterator[Client]:
    store = _open(place)
    try:
        yield store
    finally:
        store.close()
