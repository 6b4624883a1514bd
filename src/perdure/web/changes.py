"""Which jobs have changed, read once for all who follow them.

The logs of jobs have numbers that only grow, so "changed since" is a range of a primary key,
however many jobs there are. What a running job does is not logged at each step: jobs that a worker
has are read again, too, and passed on only if something that people see has changed.

Whoever follows asks for what came since their last *batch*. The first to ask reads the store, at
most a few times a second; the others are given what it found. Nothing runs while nobody follows.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from perdure.base.clock import SystemClock
from perdure.engine.caller import Caller
from perdure.jobs.listing import JobRow
from perdure.store.verbs.browse import LoggedChange

READ_AT_MOST_EVERY: Final = 0.2  # seconds
MOST_ROWS: Final = 300  # of a batch; beyond it, followers are asked to read again
MOST_LINES: Final = 2000  # of the logs, in a batch
_KEPT: Final = 50  # batches
# A transaction may commit after a later one: these many numbers are read again each time.
_OVERLAP: Final = 200
_FORGOTTEN: Final = 5.0  # seconds after which it begins anew
_REMEMBERED: Final = 5000  # rows that are not passed on again unless they changed

_CLOCK: Final = SystemClock()


class ChangeBatch(Struct, frozen=True, kw_only=True):
    """What changed at one time.

    Attributes:
        number: Counts the batches.
        position: The number of the last line of the logs.
        rows: The jobs that changed.
        approvals: The jobs whose approvals changed, each after its tenant.
        stale: There is too much: read again.
    """

    number: int
    position: int
    rows: tuple[JobRow, ...] = ()
    approvals: frozenset[tuple[str, str]] = frozenset()
    stale: bool = False


class Changes:
    """What changed in a store, for all who follow it."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._lock = asyncio.Lock()
        self._batches: deque[ChangeBatch] = deque(maxlen=_KEPT)
        self._read_at = float("-inf")
        self._seen: set[int] = set()
        self._shown: dict[str, bytes] = {}
        self._owned: set[str] = set()
        self._key = b""

    async def key(self) -> bytes:
        """Return the key of the store, which all its servers share."""
        if not self._key:
            self._key = await self._caller.verbs.fingerprint_key()
        return self._key

    async def now(self) -> ChangeBatch:
        """Return the newest batch, with which following begins."""
        async with self._lock:
            if _CLOCK.monotonic() - self._read_at > _FORGOTTEN:  # nobody has followed
                number = self._batches[-1].number + 1 if self._batches else 1
                position = await self._caller.verbs.newest_event()
                self._batches.append(ChangeBatch(number=number, position=position, stale=True))
                self._seen, self._read_at = set(), _CLOCK.monotonic()
        return self._batches[-1]

    async def since(self, batch: int) -> list[ChangeBatch]:
        """Return the batches behind one; a stale one if that is too long ago."""
        async with self._lock:
            if _CLOCK.monotonic() - self._read_at >= READ_AT_MOST_EVERY:
                await self._read()
                self._read_at = _CLOCK.monotonic()
        found = [each for each in self._batches if each.number > batch]
        if found and found[0].number > batch + 1:
            last = found[-1]
            return [ChangeBatch(number=last.number, position=last.position, stale=True)]
        return found

    async def after(self, position: int) -> ChangeBatch:
        """Return what changed behind a position of the logs, for who comes back."""
        current = await self.now()
        verbs = self._caller.verbs
        lines = await verbs.logged_changes(max(0, position - _OVERLAP), MOST_LINES)
        lines = [each for each in lines if each.job_id[:6] != "queue "]
        ids = list(dict.fromkeys(each.job_id for each in lines))
        if len(lines) >= MOST_LINES or len(ids) > MOST_ROWS:
            return ChangeBatch(number=current.number, position=current.position, stale=True)
        rows = await self._caller.insight.rows_of(ids)
        return ChangeBatch(
            number=current.number,
            position=max(position, current.position),
            rows=tuple(rows),
            approvals=_asked(rows, lines),
        )

    async def _read(self) -> None:
        """Add a batch, if anything has changed."""
        last, verbs = self._batches[-1], self._caller.verbs
        found = await verbs.logged_changes(max(0, last.position - _OVERLAP), MOST_LINES)
        lines = [each for each in found if each.no not in self._seen]
        fresh = [each for each in lines if each.no > last.position or self._seen]
        self._seen = {each.no for each in found}
        position = max([last.position, *(each.no for each in found)])
        owned = set(await verbs.owned_jobs(MOST_ROWS))
        ids = {each.job_id for each in fresh} | owned | self._owned
        self._owned = owned
        stale = len(found) >= MOST_LINES or len(ids) > 2 * MOST_ROWS
        read = [] if stale else await self._caller.insight.rows_of(list(ids))
        rows = self._changed(read)
        if stale or rows or position != last.position:
            batch = ChangeBatch(
                number=last.number + 1,
                position=position,
                rows=tuple(rows),
                approvals=_asked(read, fresh),
                stale=stale,
            )
            self._batches.append(batch)

    def _changed(self, rows: Iterable[JobRow]) -> list[JobRow]:
        """Return the rows that differ from how they were last passed on."""
        found: list[JobRow] = []
        for row in rows:
            text = msgspec.json.encode(
                msgspec.structs.replace(row, worked=0.0, took=None, heartbeat_at=None)
            )
            if self._shown.pop(row.id, b"") != text:
                found.append(row)
            self._shown[row.id] = text  # at the end: the oldest are forgotten first
        while len(self._shown) > _REMEMBERED:
            del self._shown[next(iter(self._shown))]
        return found


def _asked(rows: Iterable[JobRow], lines: Iterable[LoggedChange]) -> frozenset[tuple[str, str]]:
    """Return the jobs among these whose approvals changed: a vote need not change their rows."""
    ids = {each.job_id for each in lines if each.type.startswith("approval.")}
    return frozenset((row.tenant, row.id) for row in rows if row.id in ids)
