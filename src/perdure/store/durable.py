"""The verbs of the port over lanes: what both databases share."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from perdure.base.errors import StoreError
from perdure.jobs.effect import Effect
from perdure.jobs.invariant import Violation
from perdure.jobs.model import (
    Claim,
    Command,
    Entry,
    Event,
    Job,
    KeyedEntry,
    Message,
    NewJob,
    News,
    Outcome,
    QueueLimit,
    Schedule,
    Submitted,
    Write,
)
from perdure.jobs.query import JobQuery
from perdure.store.deed_verbs import DeedVerbs
from perdure.store.lane import Lane
from perdure.store.request import Call, Done
from perdure.store.verb import claim, invariant, message, read, submit
from perdure.store.verb import command as commands
from perdure.store.verb import schedule as small
from perdure.store.watcher import Watcher


class DurableStore(DeedVerbs):
    """Sends each verb to the lane that does it; may be used from any thread that has a loop.

    `_writer` does the fenced writes, `_control` all else that changes something,
    `_reader` answers. Two of them may be the same lane.
    """

    _writer: Lane
    _control: Lane
    _reader: Lane

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []
        self._is_open = False

    async def open(self) -> None:
        if self._is_open:
            raise StoreError("the store is open already")
        started: list[Lane] = []
        try:
            for lane in self._lanes():
                await lane.start()
                started.append(lane)
        except BaseException:
            for lane in started:
                await lane.stop()
            raise
        self._is_open = True

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await asyncio.gather(*(lane.stop() for lane in self._lanes()))

    def _lanes(self) -> list[Lane]:
        # The first one brings the schema up to date, so it starts first.
        return list(dict.fromkeys([self._writer, self._control, self._reader]))

    async def _change(self, call: Call) -> Any:
        return await self._control.do(call)

    async def _make_due(self, call: Call) -> Any:
        """Do something by which a job may fall due."""
        result = await self._control.do(call, announces=True)
        self._tell_watchers()
        return result

    async def _ask(self, call: Call) -> Any:
        return await self._reader.do(call)

    async def submit(self, jobs: Sequence[NewJob], actor: str = "") -> list[Submitted]:
        return await self._make_due(partial(submit.submit, jobs=jobs, actor=actor))

    async def job(self, job_id: str, tenant: str | None = None) -> Job | None:
        return await self._ask(partial(read.job, job_id=job_id, tenant=tenant))

    async def jobs(self, query: JobQuery) -> list[Job]:
        return await self._ask(partial(read.jobs, query=query))

    async def counts(self, tenant: str | None = None) -> dict[str, int]:
        return await self._ask(partial(read.counts, tenant=tenant))

    async def journal(self, job_id: str) -> list[Entry]:
        return await self._ask(partial(read.journal, job_id=job_id))

    async def entry_by_key(self, key: str) -> KeyedEntry | None:
        return await self._ask(partial(read.entry_by_key, key=key))

    async def events(self, job_id: str, after: int = 0, limit: int = 1000) -> list[Event]:
        return await self._ask(partial(read.events, job_id=job_id, after=after, limit=limit))

    async def has_event(self, job_id: str, types: Sequence[str], since: float) -> bool:
        return await self._ask(partial(read.has_event, job_id=job_id, types=types, since=since))

    async def messages(self, job_id: str) -> list[Message]:
        return await self._ask(partial(read.messages, job_id=job_id))

    async def own_deeds(
        self, job_id: str, owner: str, epoch: int
    ) -> tuple[list[Entry], list[Effect]]:
        return await self._writer.do(
            partial(read.own_deeds, job_id=job_id, owner=owner, epoch=epoch), apart=True
        )

    async def outcomes(self, job_ids: Sequence[str]) -> list[Outcome]:
        return await self._ask(partial(read.outcomes, job_ids=job_ids))

    async def claim(
        self, owner: str, queues: Mapping[str, QueueLimit], free: int, lease: float
    ) -> list[Claim]:
        work = partial(claim.claim, owner=owner, queues=queues, free=free, lease=lease)
        grants = await self._change(work)
        if not grants:
            return []
        # Read apart from the claim: a long journal must not hold up those who write.
        return await self._ask(partial(claim.load, grants=grants, lease=lease))

    async def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        return await self._change(partial(claim.renew, owner=owner, held=held, lease=lease))

    def write_soon(self, write: Write, done: Done, *, alone: bool = False) -> bool:
        return self._writer.write_soon(write, done, alone=alone)

    async def write(self, write: Write, *, alone: bool = False, done: Done | None = None) -> None:
        # A parent, a child, or the job itself may be due.
        announces = write.job is not None or bool(write.children)
        await self._writer.write(write, announces=announces, alone=alone, done=done)
        if announces:
            self._tell_watchers()

    async def news(self, owner: str) -> list[News]:
        return await self._ask(partial(claim.news, owner=owner))

    async def reap(self, limit: int, dead: Sequence[str] = ()) -> list[str]:
        return await self._change(partial(claim.reap, limit=limit, dead=dead))

    async def next_due(self, queues: Sequence[str]) -> float | None:
        return await self._ask(partial(claim.next_due, queues=queues))

    async def send(self, job_id: str, topic: str, payload: bytes, key: str | None = None) -> bool:
        text = payload.decode()
        call = partial(message.send, job_id=job_id, topic=topic, payload=text, key=key)
        return await self._make_due(call)

    async def command(self, command: Command) -> None:
        await self._make_due(partial(commands.command, asked=command))

    async def fork(self, source: str, job: NewJob, before: int, actor: str) -> None:
        call = partial(submit.fork, source=source, job=job, before=before, actor=actor)
        await self._make_due(call)

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._change(partial(small.put_schedule, schedule=schedule))

    async def schedules(self, tenant: str | None = None) -> list[Schedule]:
        return await self._ask(partial(small.schedules, tenant=tenant))

    async def delete_schedule(self, tenant: str, name: str) -> bool:
        return await self._change(partial(small.delete_schedule, tenant=tenant, name=name))

    async def pause_schedule(
        self, tenant: str, name: str, next_at: float | None, *, paused: bool
    ) -> bool:
        given = {"tenant": tenant, "name": name, "next_at": next_at, "paused": paused}
        return await self._change(partial(small.pause_schedule, **given))

    async def fire(self, schedule: Schedule, next_at: float | None, jobs: Sequence[NewJob]) -> bool:
        call = partial(small.fire, schedule=schedule, next_at=next_at, jobs=jobs)
        return await self._make_due(call)

    async def prune(self, ended_before: float, limit: int) -> int:
        return await self._change(partial(read.prune, before=ended_before, limit=limit))

    async def beat(self, owner: str, info: bytes | None) -> None:
        text = None if info is None else info.decode()
        await self._change(partial(small.beat, owner=owner, info=text))

    async def workers(self) -> list[tuple[str, float, bytes]]:
        return await self._ask(small.workers)

    async def forget_workers(self, silent_for: float) -> None:
        await self._change(partial(small.forget_workers, silent_for=silent_for))

    async def fingerprint_key(self) -> bytes:
        return await self._change(small.fingerprint_key)

    async def violations(self, limit: int = 100) -> list[Violation]:
        return await self._ask(partial(invariant.violations, limit=limit))

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        watcher = Watcher(changed)
        self._watchers.append(watcher)
        self._writer.look_up()
        return partial(self._watchers.remove, watcher)

    def _tell_watchers(self) -> None:
        """Say that something may have fallen due; also called by a lane, from its thread."""
        for watcher in tuple(self._watchers):
            watcher.tell()
