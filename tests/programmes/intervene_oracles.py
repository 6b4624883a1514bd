"""What `intervene` asks of each job that has ended: that it has seen what it was given, once.

`Inspector` reads a job before retention deletes it, and all that are left in the end. The checks
are pure: they compare what the job has returned with its journal, log, messages and output.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from perdure.jobs.model import EntryKind, Job, JobEvent, JournalEntry
from perdure.jobs.output import DEFAULT_TOPIC, OutputPiece
from perdure.jobs.state import ENDED, JobState
from perdure.store.store import Store
from tests.programmes.intervene_crew import RATE
from tests.programmes.intervene_primitives import BUG, KEEPING, MENDABLE, PACED, mail
from tests.support.store import sql

_UNDONE: Final = frozenset({JobState.COMPENSATED, JobState.FAILED, JobState.CANCELLED})
_EMITTING: Final = ("emits", "continues")
_PARKED: Final = "job.needs_attention"
BULK: Final = "bulk "  # how the reasons of commands to many jobs begin

# Why a job may be parked: each of these is what the programme itself has done to it.
_ALLOWED: Final = (
    "EffectInDoubt",  # a call was cut off, and the receiver can only be asked by people
    "workers in a row took",  # it was killed again and again
    "ApprovalRejected",  # somebody would not let it be undone
    BUG,
)
# The same for jobs that are parked by their failures.
_MENDED: Final = (MENDABLE, "failed after", "did not end before its deadline")


@dataclass(frozen=True)
class Message:
    """A message to a job, as the store has it; its key is also its value."""

    topic: str
    key: str
    is_taken: bool


@dataclass(frozen=True)
class Seen:
    """All that is known of a job that has ended."""

    job: Job
    journal: list[JournalEntry]
    events: list[JobEvent]
    messages: list[Message]
    pieces: list[OutputPiece] = field(default_factory=list[OutputPiece])
    is_fresh: bool = False  # no old code has run since it was submitted

    @property
    def result(self) -> Any:
        """What it has returned; None if it has not."""
        return None if self.job.result is None else json.loads(self.job.result)


def findings(seen: Seen) -> Iterator[str]:
    """Say what does not fit, in one job."""
    checks = (parked, kept, undone_by_a_bug, patched, received, collected, emitted)
    for check in checks:
        for wrong in check(seen):
            yield f"job {seen.job.id} ({seen.job.name}): {wrong}"


def parked(seen: Seen) -> Iterator[str]:
    """See that nothing parks a job but what the programme has done."""
    errors = (str(each.data.get("error")) for each in seen.events if each.type == _PARKED)
    allowed = (*_ALLOWED, *_MENDED) if seen.job.name in KEEPING else _ALLOWED
    for error in dict.fromkeys(errors):
        if not any(each in error for each in allowed):
            yield f"parked: {error[:300]}"


def kept(seen: Seen) -> Iterator[str]:
    """See that a failure alone has undone nothing of a job that waits for people."""
    if seen.job.name in KEEPING and seen.job.state in _UNDONE:
        said = {each.type for each in seen.events}
        if not said & {"compensate.asked", "compensate_child.asked", "cancel.asked"}:
            yield f"nobody has asked for it, and it is {seen.job.state}"


def undone_by_a_bug(seen: Seen) -> Iterator[str]:
    """See that code which raises during a replay has undone nothing."""
    is_raised = BUG in (seen.job.error or b"").decode()
    by_hand = {"compensate.asked", "cancel.asked"} & {each.type for each in seen.events}
    # A fork has not done what it got from its source: that has no attempts, and is not undone.
    began = [each for each in seen.journal if each.kind is EntryKind.STEP and each.attempt]
    if is_raised and began and not by_hand and seen.job.state in _UNDONE:
        yield f"{BUG} has ended it as {seen.job.state}, after {began[0].id}"


def patched(seen: Seen) -> Iterator[str]:
    """See that a job which no old code has ever run takes the new way everywhere."""
    is_new = seen.job.name == "deployed" and seen.is_fresh
    if is_new and seen.job.state is JobState.COMPLETED and not all(seen.result):
        yield f"only new code has run it, and patched was {seen.result}"


def received(seen: Seen) -> Iterator[str]:
    """See that each message was received once, in order, or is still there."""
    wanted = mail(seen.job)
    if not wanted or seen.job.name == "waits" or seen.job.forked_from is not None:
        return
    taken = [each.key for each in seen.messages if each.is_taken]
    if seen.job.state is JobState.COMPLETED:
        yield from _same_messages(taken, seen.result)
        return
    if seen.job.name == "polls":  # of a job that continues, only the last journal is there
        noted = [
            json.loads(each.input or b"{}").get("text")
            for each in seen.journal
            if each.name == "note" and each.kind is EntryKind.STEP
        ]
        lost = Counter(taken) - Counter(noted)
        if lost.total() > 1:  # the code may have been ended just after it had got one
            yield f"took {taken}, and its code got {noted}"


def _same_messages(taken: list[str], got: list[str]) -> Iterator[str]:
    if Counter(taken) != Counter(got):
        yield f"took {taken}, and its code got {got}"
    for topic in "ab":
        of_topic = [each for each in got if each[0] == topic]
        if of_topic != sorted(of_topic, key=lambda each: int(each[1:])):
            yield f"got {of_topic}, which is not the order of sending"


def collected(seen: Seen) -> Iterator[str]:
    """See that the results of all items are there, once, in order."""
    if seen.job.name == "collects" and seen.job.state is JobState.COMPLETED:
        count = json.loads(seen.job.input)["count"]
        if seen.result != list(range(count)):
            yield f"collected {seen.result} of {count} items"


def emitted(seen: Seen) -> Iterator[str]:
    """See that a reader of the output gets each piece once, in order."""
    if seen.job.name not in _EMITTING:
        return
    yield from positions(seen.pieces)
    told = by_step(seen.pieces)
    if seen.job.state is not JobState.COMPLETED or seen.job.forked_from is not None:
        return
    given = json.loads(seen.job.input)
    if seen.job.name == "continues":
        wanted = {"": [f"round {number}" for number in range(given["count"])]}
    else:
        numbers = list(range(given["count"]))
        wanted = {"": ["begin", "middle", "end"], "tell#1": numbers, "tell#2": numbers}
    if told != wanted:
        yield f"emitted {told}, not {wanted}"


def positions(pieces: list[OutputPiece]) -> Iterator[str]:
    """See that positions grow."""
    for one, other in pairwise(pieces):
        if one.position >= other.position:
            yield f"position {other.position} of its output comes after {one.position}"


def by_step(pieces: list[OutputPiece]) -> dict[str, list[Any]]:
    """Return what a reader has in the end of each step; that of the code is under ""."""
    kept: dict[int, OutputPiece] = {}
    for piece in pieces:
        if piece.kind == "value":
            kept[piece.position] = piece
        elif piece.kind == "reset":
            void = [
                at
                for at, each in kept.items()
                if each.step == piece.step and at >= (piece.discards or 0)
            ]
            for at in void:
                del kept[at]
    told: dict[str, list[Any]] = defaultdict(list)
    for piece in kept.values():
        told[piece.step].append(piece.value)
    return dict(told)


class Inspector:
    """Reads jobs that have ended, each once for each time that it ends."""

    def __init__(self, is_fresh: Callable[[str], bool] = lambda _: False) -> None:
        self._is_fresh = is_fresh  # of a job that has just ended
        self.found: dict[str, None] = {}  # in order, each once
        self.seen: set[str] = set()
        self.asked = Counter[tuple[str, str]]()  # commands to many, by job and reason
        self.claims: dict[str, list[float]] = {}  # by job, of the queue with a rate
        self._ends: dict[str, float] = {}

    async def look(self, url: str, store: Store, jobs: dict[str, Job]) -> None:
        """Inspect those that have ended since the last time."""
        ended = [
            job
            for job in jobs.values()
            if job.state in ENDED and self._ends.get(job.id) != job.ended_at
        ]
        messages = await _messages(url)
        for job in ended:
            seen = await _read(store, job, messages[job.id])
            seen = replace(seen, is_fresh=self._is_fresh(job.id))
            self._ends[job.id] = job.ended_at or 0.0
            self.seen.add(job.id)
            self.found.update(dict.fromkeys(findings(seen)))
            self._count(seen)

    def _count(self, seen: Seen) -> None:
        job_id = seen.job.id
        reasons = Counter(str(each.data.get("reason", "")) for each in seen.events)
        for reason, times in reasons.items():
            if reason.startswith(BULK):
                self.asked[job_id, reason] = times
        if seen.job.queue == PACED:
            self.claims[job_id] = [each.at for each in seen.events if each.type == "claimed"]

    def too_fast(self) -> Iterator[str]:
        """See that no more jobs were claimed from a queue than its rate allows."""
        times = sorted(at for claims in self.claims.values() for at in claims)
        most = RATE.rate or 0
        for first, at in enumerate(times):
            within = sum(each < at + RATE.per for each in times[first : first + most + 1])
            if within > most:
                yield f"{within} claims within {RATE.per} s, at a rate of {RATE.rate}"
                return

    def bulk(self, reported: dict[tuple[str, str], bool]) -> Iterator[str]:
        """Compare what a command to many jobs has reported with their logs."""
        for (job_id, reason), is_affected in reported.items():
            times = self.asked[job_id, reason]
            if job_id in self.seen and times != is_affected:
                done = "obeyed" if is_affected else "refused"
                yield f"job {job_id}: it is said to have {done} {reason!r}: {times} in its log"


async def _messages(url: str) -> dict[str, list[Message]]:
    found: dict[str, list[Message]] = defaultdict(list)
    rows = sql(url, "SELECT job_id, topic, key, taken_at IS NOT NULL FROM message ORDER BY no")
    for job_id, topic, key, is_taken in rows:
        found[job_id].append(Message(topic, key or "", bool(is_taken)))
    return found


async def _read(store: Store, job: Job, messages: list[Message]) -> Seen:
    events = await store.events(job.id)
    while page := await store.events(job.id, after=events[-1].no if events else 0):
        events += page
    pieces: list[OutputPiece] = []
    if job.name in _EMITTING:
        while (page := await store.output(job.id, DEFAULT_TOPIC, _last(pieces))).pieces:
            pieces += page.pieces
    return Seen(job, await store.journal(job.id), events, messages, pieces)


def _last(pieces: list[OutputPiece]) -> int:
    return pieces[-1].position if pieces else 0


# The users' database


def bookings(shop: str) -> dict[str, dict[int, list[int]]]:
    """Return what the users' table has: by job and number, the changes."""
    found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for job_id, number, change in sql(shop, "SELECT job, number, change FROM booking"):
        found[job_id][number].append(change)
    return found


def booked(job: Job, changes: dict[int, list[int]]) -> Iterator[str]:
    """See that each transaction of a job has happened once, and was undone once or not at all."""
    for number, each in changes.items():
        if each.count(1) > 1 or each.count(-1) > each.count(1):
            yield f"job {job.id} (books): booking {number} was changed by {each}"
    stands = sorted(number for number, each in changes.items() if sum(each))
    count = json.loads(job.input)["count"]
    if job.state is JobState.COMPLETED and job.forked_from is None and stands != [*range(count)]:
        yield f"job {job.id} (books): {count} bookings, and {stands} stand"
    if job.state in _UNDONE and stands:
        yield f"job {job.id} (books): {stands} stand, and the job is {job.state}"


# Jobs that know of each other, and what the receiver knows


def earned(jobs: dict[str, Job]) -> Iterator[str]:
    """See that the result of a child is the one that its parent got."""
    results = {job.parent: job.result for job in jobs.values() if job.name == "earns"}
    for job in jobs.values():
        if job.name != "hurries" or job.state is not JobState.COMPLETED:
            continue
        if job.result != b'""' and job.id in results and job.result != results[job.id]:
            got = (job.result or b"").decode()
            yield f"job {job.id} (hurries): got {got} of a child that gave {results[job.id]!r}"


def called_late(log: list[dict[str, Any]], jobs: dict[str, Job], most: float) -> Iterator[str]:
    """See that no key was used again when its receiver may have forgotten it."""
    first: dict[str, float] = {}
    for line in log:
        job = jobs.get(line.get("job", ""))
        is_charge = line["what"] == "came" and line["op"] == "charge"
        if is_charge and job is not None and job.name == "forgets":
            late = line["at"] - first.setdefault(line["key"], line["at"])
            if late > most:
                yield f"job {job.id} (forgets): a key was used again after {late:.1f} s"
