"""Live output: what a job emits while it runs, in pieces that readers follow; pure.

Each topic of a job is a stream of pieces. A piece has a position, which grows by the order of
emission and never changes, so that a reader can go on after the last one that it has seen.

Pieces are stored in chunks: many of one step that were emitted one after the other, in one row.
What a step has emitted since its last checkpoint belongs to its attempt. When another attempt
begins, these pieces are deleted, and a *reset* takes their place: readers discard what they had of
them, for the new attempt emits it again. If a topic grows beyond its limits, its oldest pieces are
*dropped*, and readers that have not seen them are told so.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from perdure.base.codec import decode

T = TypeVar("T")

DEFAULT_TOPIC = "output"
MOST_TOPICS = 100  # of one job
MOST_IN_CHUNK = 1000  # pieces

PieceKind: TypeAlias = Literal["value", "reset", "dropped"]


class OutputPiece(Struct, frozen=True, kw_only=True):
    """A piece of the output of a job, as a reader gets it.

    Attributes:
        position: Its place in its topic; pass the last one to `Handle.stream(after=…)` to go on.
        kind: "value"; "reset": discard the pieces of `step` from position `discards` on, since
            another attempt emits them again; "dropped": what you have not seen up to this position
            was dropped, because the topic has reached its limits.
        topic: The topic.
        step: The identity of the step that has emitted it; empty: the code of the job.
        attempt: The attempt of that step.
        at: When it was stored.
        data: The value as JSON.
        discards: See "reset".
    """

    position: int
    kind: PieceKind = "value"
    topic: str = DEFAULT_TOPIC
    step: str = ""
    attempt: int = 0
    at: float = 0.0
    data: bytes = b"null"
    discards: int | None = None

    @property
    def value(self) -> Any:
        """What was emitted, as plain JSON values; None if it is not a "value"."""
        return decode(self.data, Any)

    def value_as(self, kind: type[T]) -> T:
        """Return what was emitted as a value of this type.

        Raises:
            Drift: It does not fit.
        """
        return decode(self.data, kind)


class OutputTopic(Struct, frozen=True, kw_only=True):
    """What the store knows of a topic besides its pieces."""

    job_id: str
    topic: str
    last: int = 0  # the last position that was given
    emitted: int = 0  # how many pieces the code of the job itself has emitted
    pieces: int = 0  # how many are kept
    size: int = 0  # bytes of these
    dropped: int = 0  # pieces up to this position were dropped; 0: none


class OutputPage(Struct, frozen=True):
    """A part of a topic, and whether there will be more."""

    pieces: list[OutputPiece]
    has_ended: bool  # the job has, and these are its last pieces


# What the owner of a job writes


class OutputChunk(Struct, frozen=True, kw_only=True):
    """Pieces that follow each other, all of one attempt and after the same checkpoint."""

    topic: str
    no: int  # the position of the last one
    step: str
    attempt: int
    part: int  # how many checkpoints its step had saved
    pieces: tuple[bytes, ...]
    emitted: int = 0  # by the code of the job itself, up to here

    @property
    def size(self) -> int:
        """The bytes of its pieces."""
        return sum(map(len, self.pieces))


class OutputReset(Struct, frozen=True, kw_only=True):
    """The pieces of a step from a checkpoint on do not count any more: another attempt begins."""

    topic: str
    no: int  # only pieces before this position are meant
    step: str
    attempt: int
    part: int


class OutputBatch(Struct, frozen=True, kw_only=True):
    """What one write adds to the output of a job. Written twice, it is there once."""

    chunks: tuple[OutputChunk, ...]
    resets: tuple[OutputReset, ...] = ()
    dropped: dict[str, int] = {}  # by topic: the last position that was dropped before the write
    most_pieces: int = 10_000  # in a topic
    most_bytes: int = 8 * 1024 * 1024

    def topics(self) -> list[str]:
        """Return the topics that it changes, in a fixed order."""
        changed = {each.topic for each in (*self.chunks, *self.resets)}
        return sorted(changed | set(self.dropped))


def pack(pieces: Iterable[bytes]) -> str:
    """Return the pieces of a chunk as one JSON text."""
    return f"[{b','.join(pieces).decode()}]"


def unpack(data: str) -> Iterator[bytes]:
    """Return the pieces of a chunk."""
    return map(bytes, msgspec.json.decode(data, type=list[msgspec.Raw]))
