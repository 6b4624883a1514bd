"""What lanes do: requests, and how they are put together."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from perdure.jobs.model import Write
from perdure.store.row import entry_row
from perdure.store.session import Session
from perdure.store.verb.effect import line_row
from perdure.store.verb.write import is_last, is_plain

Call = Callable[[Session], Any]
Done = Callable[[BaseException | None], None]
RowKey = tuple[str, int | str]  # job and place of an entry; tenant and key of a line


class Request:
    """Something to be done in a transaction: a write, or a verb as a function."""

    __slots__ = (
        "announces",
        "apart",
        "call",
        "done",
        "error",
        "future",
        "is_plain",
        "lines",
        "loop",
        "result",
        "rows",
        "write",
    )

    def __init__(
        self,
        write: Write | None = None,
        call: Call | None = None,
        *,
        announces: bool = False,
        done: Done | None = None,
        awaited: bool = True,
        apart: bool = False,
    ) -> None:
        self.write = write
        # Spelled here, not in the thread: what cannot be stored fails before it touches others.
        self.rows = [entry_row(write, entry) for entry in write.entries] if write else []
        self.is_plain = write is not None and is_plain(write)
        self.lines: list[dict[str, Any]] = []  # of the ledger, if that is all
        if write is not None and write.deeds is not None and self.is_plain:
            self.lines = [line_row(write, effect) for effect in write.deeds.effects]
        self.call = call
        self.apart = apart  # it takes locks in an order of its own: never together with others
        self.announces = announces  # something may fall due by it: others want to know
        self.loop = asyncio.get_running_loop()
        self.done = done  # called also if whoever awaits the future is cancelled
        # Most writes need no more than that.
        self.future: asyncio.Future[Any] | None = self.loop.create_future() if awaited else None
        self.result: Any = None
        self.error: BaseException | None = None


class Round(NamedTuple):
    """Requests that may be done in any order: none has been acknowledged yet."""

    plain: list[Request]  # writes of journal and ledger alone
    full: list[Request]  # other writes, after those
    calls: list[Request]  # the rest, last


def rounds(requests: Iterable[Request], *, repeat: bool = True) -> Iterator[Round]:
    """Put together what can be done statement by statement.

    What comes after the release of a job comes in another round, to meet its fence.
    Without `repeat`, a row that is written again does too: some databases cannot write it
    twice in one statement.
    """
    now = Round([], [], [])
    last: set[str] = set()
    seen: set[RowKey] = set()
    for request in requests:
        write = request.write
        if write is None:
            now.calls.append(request)
            continue
        keys = set[RowKey]() if repeat else row_keys(request)
        if write.job_id in last or keys & seen:
            yield now
            now = Round([], [], [])
            last.clear()
            seen.clear()
        seen |= keys
        (now.plain if request.is_plain else now.full).append(request)
        if is_last(write):
            last.add(write.job_id)
    yield now


def row_keys(request: Request) -> set[RowKey]:
    """Tell which rows of journal and ledger a write touches."""
    entries = {(row[0], row[1]) for row in request.rows}
    return entries | {(line["tenant"], line["key"]) for line in request.lines}


def writes_of(requests: Iterable[Request]) -> list[tuple[Write, Sequence[tuple[Any, ...]]]]:
    """Give the writes with their entries as rows."""
    return [(request.write, request.rows) for request in requests if request.write is not None]


def settle(requests: Sequence[Request]) -> None:
    """Wake those who wait: one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Request]] = {}
    for request in requests:
        loops.setdefault(request.loop, []).append(request)
    for loop, theirs in loops.items():
        try:
            loop.call_soon_threadsafe(resolve, theirs)
        except RuntimeError:  # that loop has ended, and with it those who waited
            continue


def resolve(requests: Sequence[Request]) -> None:
    """Tell those who wait what came of it; called on their loop."""
    for request in requests:
        future = request.future
        if request.done is not None:
            request.done(request.error)
        if future is None or future.done():  # cancelled in the meantime
            continue
        if request.error is None:
            future.set_result(request.result)
        else:
            future.set_exception(request.error)
