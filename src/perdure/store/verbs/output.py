"""Live output: chunks of pieces, within the limits of their topic; written by the job's owner.

A batch that is written twice, since the answer to the first write was lost, is there once: its
positions were given by the owner, before it was sent.
"""

from perdure.base.errors import JobNotFound
from perdure.jobs.output import (
    OutputBatch,
    OutputChunk,
    OutputPage,
    OutputPiece,
    OutputReset,
    OutputTopic,
    pack,
    unpack,
)
from perdure.store.statements import Row, Session

_TRIM_PAGE = 100
_READ_PAGE = 100  # chunks


class _Kept:
    """How much of a topic is kept, while a batch is added to it."""

    __slots__ = ("dropped", "emitted", "last", "pieces", "size")

    def __init__(self, found: Row | None) -> None:
        row = found or (None, None, 0, 0, 0, 0, 0)
        self.last, self.emitted, self.pieces, self.size, self.dropped = row[2:]

    def count(self, pieces: int, size: int) -> None:
        self.pieces += pieces
        self.size += size

    def exceeds(self, batch: OutputBatch) -> bool:
        """Whether it is beyond its limits."""
        return self.pieces > batch.most_pieces or self.size > batch.most_bytes


def write_output(session: Session, job_id: str, batch: OutputBatch, now: float) -> None:
    """Add a batch to the output of a job; its lease is locked."""
    for name in batch.topics():
        where = {"id": job_id, "topic": name}
        kept = _Kept(session.one("topic", **where))
        for chunk in batch.chunks:
            if chunk.topic == name and chunk.no > kept.dropped:
                _add(session, where, kept, chunk, now)
        for reset in batch.resets:
            if reset.topic == name:
                _reset(session, where, kept, reset, now)
        _trim(session, where, kept, batch)
        values = {name: getattr(kept, name) for name in _Kept.__slots__}
        session.run("put_topic", **where, **values)


def keep_output(session: Session, job_id: str) -> None:
    """Keep what a job has emitted so far for good: it begins again, with the same identities."""
    session.run("keep_pieces", id=job_id)
    session.run("count_anew", id=job_id)


def _add(
    session: Session, where: dict[str, str], kept: _Kept, chunk: OutputChunk, now: float
) -> None:
    values = {"no": chunk.no, "step": chunk.step, "attempt": chunk.attempt, "part": chunk.part}
    values |= {"pieces": len(chunk.pieces), "size": chunk.size, "discards": None, "at": now}
    if session.run("insert_output", **where, **values, data=pack(chunk.pieces)):
        kept.count(len(chunk.pieces), chunk.size)
    kept.last = max(kept.last, chunk.no)
    kept.emitted = max(kept.emitted, chunk.emitted)


def _reset(
    session: Session, where: dict[str, str], kept: _Kept, reset: OutputReset, now: float
) -> None:
    """Delete what an attempt takes back, and leave a mark there if anything was emitted."""
    theirs = {**where, "before": reset.no, "step": reset.step, "part": reset.part}
    found = session.all("output_of_step", **theirs)
    if all(discards is not None for _, _, _, discards in found):
        return  # nothing, or only the mark of an earlier reset
    session.run("delete_output_of_step", **theirs)
    for _, pieces, size, _ in found:
        kept.count(-pieces, -size)
    first = min(no - pieces + 1 if marks is None else marks for no, pieces, _, marks in found)
    values = {"no": reset.no, "step": reset.step, "attempt": reset.attempt, "part": reset.part}
    values |= {"pieces": 1, "size": 0, "discards": first, "at": now}
    kept.count(session.run("insert_output", **where, **values, data="[]"), 0)
    kept.last = max(kept.last, reset.no)


def _trim(session: Session, where: dict[str, str], kept: _Kept, batch: OutputBatch) -> None:
    """Drop the oldest chunks beyond the limits; the newest one is kept, however large it is.

    Nothing stays that is older than what the owner has dropped before it could be written.
    """
    gone = batch.dropped.get(where["topic"], 0)
    is_full = True
    while is_full and (kept.exceeds(batch) or gone > kept.dropped):
        found = session.all("oldest_output", **where, newest=kept.last, limit=_TRIM_PAGE)
        is_full = len(found) == _TRIM_PAGE
        for no, pieces, size in found:
            if not kept.exceeds(batch) and no > gone:
                is_full = False
                break
            kept.count(-pieces, -size)
            kept.dropped = no
        session.run("drop_output", **where, upto=kept.dropped)
    kept.dropped = max(kept.dropped, gone)


# Reading


def topics(session: Session, job_id: str) -> list[OutputTopic]:
    """Return the topics of a job, by name."""
    return [topic(each) for each in session.all("topics", ids=session.array([job_id]))]


def topic(row: Row) -> OutputTopic:
    """Return a topic; the row's first column is its job."""
    return OutputTopic(
        job_id=row[0],
        topic=row[1],
        last=row[2],
        emitted=row[3],
        pieces=row[4],
        size=row[5],
        dropped=row[6],
    )


def output(session: Session, job_id: str, topic: str, after: int) -> OutputPage:
    """Return the next pieces of a topic after a position.

    Raises:
        JobNotFound: There is no such job, or not any more.
    """
    found = session.one("has_ended", id=job_id)
    if found is None:
        raise JobNotFound(job_id)
    where = {"id": job_id, "topic": topic}
    known = session.one("topic", **where)
    if known is None:
        return OutputPage([], bool(found[1]))
    pieces: list[OutputPiece] = []
    if after < known[6]:
        pieces.append(OutputPiece(position=known[6], kind="dropped", topic=topic))
    rows = session.all("output", **where, after=after, limit=_READ_PAGE)
    pieces += [piece for row in rows for piece in _pieces(topic, row) if piece.position > after]
    return OutputPage(pieces, bool(found[1]) and len(rows) < _READ_PAGE)


def _pieces(topic: str, row: Row) -> list[OutputPiece]:
    no, count, step, attempt, at, data, discards = row
    if discards is not None:
        reset = OutputPiece(
            position=no,
            kind="reset",
            topic=topic,
            step=step,
            attempt=attempt,
            at=at,
            discards=discards,
        )
        return [reset]
    return [
        OutputPiece(
            position=no - count + place, topic=topic, step=step, attempt=attempt, at=at, data=piece
        )
        for place, piece in enumerate(unpack(data), 1)
    ]
