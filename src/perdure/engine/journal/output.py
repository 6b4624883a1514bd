"""The live output of one run: emitted by its code and its steps, written in batches.

A piece gets its position when it is emitted, on the loop, so that writing a batch twice stores it
once. It is written with whatever the run writes next, at the latest with the next flush: never does
a piece cost a commit of its own. Until then it waits here, within the limits of its topic; the
oldest are dropped if the code emits faster than the store can write.

The code of a job runs again from its start after every interruption, and emits again what it has
emitted before. So its own pieces are counted, in the order of the code: as many as the store has
are left out.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from perdure.base.errors import ArgumentError
from perdure.engine.settings import WorkerSettings
from perdure.jobs.output import (
    MOST_IN_CHUNK,
    MOST_TOPICS,
    OutputBatch,
    OutputChunk,
    OutputReset,
    OutputTopic,
)


class _Source(NamedTuple):
    """Where a piece comes from."""

    step: str
    attempt: int
    part: int


class _Piece(NamedTuple):
    no: int
    source: _Source
    emitted: int
    data: bytes


_JOB = _Source("", 0, 0)


class _Topic:
    """The pieces of one topic that are not written yet."""

    __slots__ = ("dropped", "emitted", "last", "size", "stored", "waiting")

    def __init__(self, known: OutputTopic | None = None) -> None:
        self.last = 0 if known is None else known.last
        self.stored = 0 if known is None else known.emitted  # of the code of the job, before
        self.emitted = 0  # by the code of the job, in this run
        self.waiting: deque[_Piece] = deque()
        self.size = 0
        self.dropped = 0

    def take_position(self) -> int:
        self.last += 1
        return self.last

    def is_stored(self) -> bool:
        """Count a piece of the code of the job; return whether the store has it."""
        self.emitted += 1
        return self.emitted <= self.stored

    def trim(self, most_pieces: int, most_bytes: int) -> None:
        """Drop the oldest pieces beyond the limits, but never the newest one."""
        waiting = self.waiting
        while len(waiting) > 1 and (len(waiting) > most_pieces or self.size > most_bytes):
            oldest = waiting.popleft()
            self.size -= len(oldest.data)
            self.dropped = oldest.no


class OutputBuffer:
    """What a run has emitted and not written yet."""

    def __init__(self, known: Iterable[OutputTopic], settings: WorkerSettings) -> None:
        self._most_pieces = settings.output_pieces
        self._most_bytes = settings.output_bytes
        self._topics = {each.topic: _Topic(each) for each in known}
        self._resets: list[OutputReset] = []
        self.waits = False  # there is something to be written

    def emit(self, topic: str, data: bytes) -> None:
        """Add a piece of the code of the job, unless it was stored before."""
        if not self.open(topic).is_stored():
            self._add(topic, data, _JOB)

    def emit_from(self, step: str, attempt: int, part: int, topic: str, data: bytes) -> None:
        """Add a piece of an attempt that has saved this many checkpoints."""
        self._add(topic, data, _Source(step, attempt, part))

    def _add(self, name: str, data: bytes, source: _Source) -> None:
        topic = self.open(name)
        emitted = topic.emitted if source is _JOB else 0
        topic.waiting.append(_Piece(topic.take_position(), source, emitted, data))
        topic.size += len(data)
        topic.trim(self._most_pieces, self._most_bytes)
        self.waits = True

    def open(self, name: str) -> _Topic:
        """Return a topic; the first time it begins.

        Raises:
            ArgumentError: The job would have too many.
        """
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= MOST_TOPICS:
                why = f"topic {name!r} would be one more than the {MOST_TOPICS} that a job may have"
                raise ArgumentError("this cannot be emitted", [why])
            topic = self._topics[name] = _Topic()
        return topic

    def reset(self, step: str, attempt: int, part: int) -> None:
        """Take back what earlier attempts of a step have emitted since this checkpoint."""
        for name, topic in self._topics.items():
            no = topic.take_position()
            self._resets.append(
                OutputReset(topic=name, no=no, step=step, attempt=attempt, part=part)
            )
            self.waits = True

    # Writing

    def take(self) -> OutputBatch | None:
        """Return what is to be written, and forget it; None if there is nothing."""
        if not self.waits:
            return None
        self.waits = False
        resets, self._resets = tuple(self._resets), []
        chunks: list[OutputChunk] = []
        dropped: dict[str, int] = {}
        for name, topic in self._topics.items():
            chunks += _chunks(name, topic.waiting)
            topic.waiting, topic.size = deque(), 0
            if topic.dropped:
                dropped[name], topic.dropped = topic.dropped, 0
        return OutputBatch(
            chunks=tuple(chunks),
            resets=resets,
            dropped=dropped,
            most_pieces=self._most_pieces,
            most_bytes=self._most_bytes,
        )

    def put_back(self, batch: OutputBatch) -> None:
        """Take back what could not be written; it is older than what is here."""
        self._resets[:0] = batch.resets
        for chunk in reversed(batch.chunks):
            topic = self._topics[chunk.topic]
            topic.waiting.extendleft(reversed(list(_pieces(chunk))))
            topic.size += chunk.size
            topic.trim(self._most_pieces, self._most_bytes)
        for name, no in batch.dropped.items():
            self._topics[name].dropped = max(self._topics[name].dropped, no)
        self.waits = True

    def clear(self) -> None:
        """Give up everything that is not written."""
        self.take()


def _chunks(topic: str, waiting: Iterable[_Piece]) -> Iterator[OutputChunk]:
    numbered = enumerate(waiting)
    # Pieces that follow each other keep their distance from their place in the line.
    for _, run in groupby(numbered, lambda each: (each[1].no - each[0], each[1].source)):
        pieces = [piece for _, piece in run]
        for first in range(0, len(pieces), MOST_IN_CHUNK):
            yield _chunk(topic, pieces[first : first + MOST_IN_CHUNK])


def _chunk(topic: str, pieces: list[_Piece]) -> OutputChunk:
    last = pieces[-1]
    return OutputChunk(
        topic=topic,
        no=last.no,
        step=last.source.step,
        attempt=last.source.attempt,
        part=last.source.part,
        pieces=tuple(piece.data for piece in pieces),
        emitted=last.emitted,
    )


def _pieces(chunk: OutputChunk) -> Iterator[_Piece]:
    source = _Source(chunk.step, chunk.attempt, chunk.part) if chunk.step else _JOB
    for before, data in zip(range(len(chunk.pieces) - 1, -1, -1), chunk.pieces, strict=True):
        yield _Piece(chunk.no - before, source, max(0, chunk.emitted - before), data)
