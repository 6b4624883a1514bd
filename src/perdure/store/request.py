"""What lanes do: requests, and how they are put together."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from perdure.jobs.model import Write
from perdure.store.row import entry_row
from perdure.store.session import Session
from perdure.store.verb.write import is_plain

Call = Callable[[Session], Any]
Done = Callable[[BaseException | None], None]


class Request:
    """Something to be done in a transaction: a write, or a verb as a function."""

    __slots__ = (
        "announces",
        "call",
        "done",
        "error",
        "future",
        "is_plain",
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
    ) -> None:
        self.write = write
        # Spelled here, not in the thread: what cannot be stored fails before it touches others.
        self.rows = [entry_row(write, entry) for entry in write.entries] if write else []
        self.is_plain = write is not None and is_plain(write)
        self.call = call
        self.announces = announces  # something may fall due by it: others want to know
        self.loop = asyncio.get_running_loop()
        self.done = done  # called instead of the future: most writes need no more than that
        self.future: asyncio.Future[Any] | None = None if done else self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None


class Round(NamedTuple):
    """Requests that may be done in any order: none has been acknowledged yet."""

    plain: list[Request]  # journal entries alone: all of them in one statement
    apart: list[Request]  # the others, after those


def rounds(requests: Iterable[Request]) -> Iterator[Round]:
    """Put together what can be; the writes of one job stay in their order."""
    plain: list[Request] = []
    apart: list[Request] = []
    later: set[str] = set()  # jobs whose next write must not come before what is apart
    for request in requests:
        write = request.write
        if not request.is_plain or write is None:
            apart.append(request)
            if write is not None:
                later.add(write.job_id)
            continue
        if write.job_id in later:
            yield Round(plain, apart)
            plain, apart, later = [], [], set()
        plain.append(request)
    yield Round(plain, apart)


def settle(requests: Sequence[Request]) -> None:
    """Wake those who wait: one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Request]] = {}
    for request in requests:
        loops.setdefault(request.loop, []).append(request)
    for loop, theirs in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, theirs)
        except RuntimeError:  # that loop has ended, and with it those who waited
            continue


def _resolve(requests: Sequence[Request]) -> None:
    for request in requests:
        future = request.future
        if future is None:
            assert request.done is not None
            request.done(request.error)
            continue
        if future.done():  # cancelled in the meantime
            continue
        if request.error is None:
            future.set_result(request.result)
        else:
            future.set_exception(request.error)
