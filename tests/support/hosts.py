"""One program with a host of each kind, in which test cases run as processes."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.process import ProcessHost

KINDS = ("inline", "threads", "os")
ELSEWHERE = ("threads", "os")
PATIENCE = 30.0

Case = Callable[[str], Coroutine[Any, Any, None]]


class Program:
    """A program that runs in a thread of its own until it is closed."""

    def __init__(self) -> None:
        self._began: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._loop = self._began.result(PATIENCE)

    def _run(self) -> None:
        try:
            perdure.run(self._main)
        except BaseException as error:
            if not self._began.done():
                self._began.set_exception(error)
            raise

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        self._jobs: asyncio.Queue[tuple[Case, str, Future[None]] | None] = asyncio.Queue()
        for kind in KINDS:
            await ProcessHost(f"{kind}-host", kind=kind, workers=2).start()
        self._began.set_result(loop)
        while (job := await self._jobs.get()) is not None:
            process.spawn(_be, *job)

    def run(self, case: Case, host: str) -> None:
        """Run a case as a process; raise what it raises."""
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, (case, host, done))
        done.result(PATIENCE)

    def close(self) -> None:
        """End the program."""
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, None)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


async def _be(case: Case, host: str, done: "Future[None]") -> None:
    try:
        await case(host)
    except BaseException as error:  # noqa: BLE001 - an exit of the case is its failure too
        done.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
    else:
        done.set_result(None)


def on_host(case: Case, kinds: tuple[str, ...]) -> Callable[..., None]:
    """Make a test of a case, for each of these kinds of host."""

    @pytest.mark.parametrize("kind", kinds)
    def test(program: Program, kind: str) -> None:
        program.run(case, f"{kind}-host")

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


def on_every_host(case: Case) -> Callable[..., None]:
    """Run a case on a host of every kind."""
    return on_host(case, KINDS)


def on_hosts_elsewhere(case: Case) -> Callable[..., None]:
    """Run a case on threads and on OS processes."""
    return on_host(case, ELSEWHERE)


def on_os_host(case: Case) -> Callable[..., None]:
    """Run a case on OS processes."""
    return on_host(case, ("os",))


async def event_of(kind: type[Any]) -> Any:
    """Give the next event of a kind; others are dropped."""
    while True:
        event = await process.events().receive()
        if isinstance(event, kind):
            return event
