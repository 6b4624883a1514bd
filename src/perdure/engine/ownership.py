"""A job that this worker owns for a while: how it is read and written meanwhile.

Every write is fenced by the claim. A store that does not answer is asked again
for as long as the lease is surely ours, and not any longer.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from perdure.base.backoff import Retry
from perdure.base.errors import LeaseLost, StoreError
from perdure.base.retry import pause
from perdure.engine.verdict import Unwound
from perdure.jobs.deeds import Deeds
from perdure.jobs.effect import Effect
from perdure.jobs.model import Claim, Entry, Event, JobChange, NewJob, Write
from perdure.store.port import Store

if TYPE_CHECKING:
    from perdure.engine.node import Node

T = TypeVar("T")
Done = Callable[[BaseException | None], None]

# How long to wait before the store is asked again while it does not answer.
_STORE_PAUSES = Retry(first="250ms", most="2s", jitter=0.5)


class Ownership:
    """What a claim gave, and the right to write that comes with it."""

    def __init__(self, node: "Node", claim: Claim) -> None:
        self.node = node
        self.job = claim.job
        self.epoch = claim.epoch
        self.news = claim.news  # as far as it was read
        self.begun_at = self.progress_at = node.loop.time()
        self.trusted_until = 0.0  # by the loop's time: until then the lease is surely ours
        self.buffer: dict[int, Entry] = {}  # by place: goes along with the next write
        self.lines: dict[str, Effect] = {}  # by key: of the ledger, likewise
        self.sealed = False  # nothing works for the job any more: only its end is written
        self._unanswered = 0  # writes that the store has, and of which nobody knows what came
        self._answered: asyncio.Future[None] | None = None  # for who waits until there are none
        self._clock = claim.now - node.loop.time()

    def now(self) -> float:
        """Tell the time by the store's clock, as far as it is known here."""
        return self._clock + self.node.loop.time()

    def at(self, loop_time: float) -> float:
        """Give a time of the loop by the store's clock."""
        return self._clock + loop_time

    def note(self, entry: Entry) -> None:
        """Let an entry go along with the next write; one comes soon."""
        self.buffer[entry.seq] = entry
        self.node.flush_soon()

    async def write(
        self,
        *entries: Entry,
        job: JobChange | None = None,
        events: tuple[Event, ...] = (),
        taken: tuple[int, ...] = (),
        children: tuple[NewJob, ...] = (),
        deeds: Deeds | None = None,
    ) -> None:
        """Write, fenced; returns when it is durable.

        Raises:
            Unwound: The job is not ours any more.
        """
        if self.sealed and job is None:
            raise Unwound
        sent = _Sent(self, dict(self.buffer), dict(self.lines))
        write = Write(
            job_id=self.job.id,
            owner=self.node.owner,
            epoch=self.epoch,
            entries=self._with_buffer(entries),
            job=job,
            events=events,
            taken=taken,
            children=children,
            deeds=self._with_lines(deeds) if self.lines else deeds,
            news_seen=self.news,
        )
        try:
            await self.ask(lambda store: sent.send(store, write))
        except Unwound:
            raise
        except BaseException:  # refused, or nobody waits for it any more
            sent.put_back()
            raise
        self.progress_at = self.node.loop.time()

    def write_soon(self, entry: Entry, done: Done) -> None:
        """Write one entry, fenced; `done` is called when it is durable, or with what went wrong."""
        if self.sealed:
            return
        entries: tuple[Entry, ...] = (entry,)
        if self.buffer:
            entries = self._with_buffer(entries)
            done = partial(self._told, entries, done)
        write = Write(job_id=self.job.id, owner=self.node.owner, epoch=self.epoch, entries=entries)
        if self.lines:
            write = replace(write, deeds=Deeds(effects=tuple(self.lines.values())))
            done = partial(self._told_lines, self._take_lines(), done)
        done = partial(self.answered, done)
        self._unanswered += 1
        try:
            written = self.node.store.write_soon(write, done, alone=self.is_alone())
        except StoreError as error:  # not in this turn: who writes is in the midst of something
            self.node.loop.call_soon(done, error)
            return
        if written:
            done(None)

    def asked(self) -> None:
        """Take note that the store has one more write to answer."""
        self._unanswered += 1

    def answered(self, done: Done | None, error: BaseException | None) -> None:
        """Take note that the store has answered a write, whoever waits for that."""
        self._unanswered -= 1
        if done is not None:
            done(error)
        if not self._unanswered and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def settle(self) -> None:
        """Wait until the store has answered all writes, and write what is left to write.

        The steps that made them may be dead: what the store has, it may still keep.

        Raises:
            Unwound: It does not answer while the job is surely ours.
        """
        while self._unanswered or self.buffer or self.lines:
            if self._unanswered:
                await self._until_answered()
            else:
                await self.write()
        self.sealed = True

    async def _until_answered(self) -> None:
        loop = self.node.loop
        if loop.time() > self.trusted_until:
            self.lost()
            raise Unwound
        self._answered = answered = loop.create_future()
        timer = loop.call_at(self.trusted_until, _wake, answered)
        try:
            await answered
        finally:
            timer.cancel()

    def is_alone(self) -> bool:
        """Tell whether nobody else in this worker waits for the loop."""
        return False

    def _told(self, entries: tuple[Entry, ...], done: Done, error: BaseException | None) -> None:
        """Keep what went along with a write that failed: nobody else would write it."""
        if error is not None:
            self.buffer = {each.seq: each for each in entries} | self.buffer
        done(error)

    def _with_buffer(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if not self.buffer:
            return entries
        merged = {**self.buffer, **{entry.seq: entry for entry in entries}}
        self.buffer.clear()
        return tuple(merged.values())

    def line(self, effect: Effect) -> None:
        """Let a line of the ledger go along with the next write; if none is made now, write it."""
        if not self.lines:
            self.node.loop.call_soon(self._write_lines)
        self.lines[effect.key] = effect

    def _write_lines(self) -> None:
        if not self.lines or not self.is_ours():
            return
        deeds = Deeds(effects=tuple(self.lines.values()))
        write = Write(job_id=self.job.id, owner=self.node.owner, epoch=self.epoch, deeds=deeds)
        done = partial(self._told_lines, self._take_lines(), self._lines_written)
        done = partial(self.answered, done)
        self._unanswered += 1
        try:
            self.node.store.write_soon(write, done)
        except StoreError as error:
            done(error)

    def _lines_written(self, error: BaseException | None) -> None:
        if error is not None and self.is_ours():
            self.node.flush_soon()

    def _take_lines(self) -> dict[str, Effect]:
        taken, self.lines = self.lines, {}
        return taken

    def _told_lines(
        self, lines: dict[str, Effect], done: Done, error: BaseException | None
    ) -> None:
        if error is not None:
            self.lines = lines | self.lines
        done(error)

    def _with_lines(self, deeds: Deeds | None) -> Deeds:
        given = deeds or Deeds()
        lines = self._take_lines() | {each.key: each for each in given.effects}
        return replace(given, effects=tuple(lines.values()))

    def is_ours(self) -> bool:
        """Tell whether the run goes on."""
        return True

    async def flush(self) -> None:
        """Write what waits to go along with another write."""
        with contextlib.suppress(Unwound):
            if self.buffer or self.lines:
                await self.write()

    async def ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        """Ask the store something, again and again if it does not answer.

        Raises:
            Unwound: The job is not ours any more, or may not be.
        """
        failures = 0
        while True:
            try:
                return await question(self.node.store)
            except LeaseLost:
                self.lost()
                raise Unwound from None
            except StoreError:
                # The store may come back while the lease is still ours; then nothing is lost.
                if self.node.loop.time() > self.trusted_until:
                    self.lost()
                    raise Unwound from None
                failures += 1
                await pause(_STORE_PAUSES.delay(failures))

    def lost(self) -> None:
        """Stop: another worker may own the job."""
        raise NotImplementedError


class _Sent:
    """A write, from its making until the store has answered it for the last time."""

    def __init__(
        self, ownership: Ownership, buffer: dict[int, Entry], lines: dict[str, Effect]
    ) -> None:
        self._ownership = ownership
        self._buffer, self._lines = buffer, lines  # what goes along, and is not its own
        self._waits = False
        self._given_up = False
        self._failed = False

    async def send(self, store: Store, write: Write) -> None:
        self._waits, self._failed = True, False
        self._ownership.asked()
        try:
            await store.write(write, alone=self._ownership.is_alone(), done=self._answered)
        except Exception as error:
            self._answered(error)  # a store that did not take it has not
            raise

    def _answered(self, error: BaseException | None) -> None:
        if not self._waits:
            return
        self._waits, self._failed = False, error is not None
        if self._given_up:
            self.put_back()
        self._ownership.answered(None, error)

    def put_back(self) -> None:
        """Keep what went along for the next write, unless this one is done after all."""
        self._given_up = True
        if self._failed and not self._waits:
            run = self._ownership
            run.buffer, run.lines = self._buffer | run.buffer, self._lines | run.lines


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
