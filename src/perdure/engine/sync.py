"""The caller's side for plain code, which has no event loop: Django, Flask, Celery, scripts.

`app.sync.submit(…)` runs `app.submit(…)` on a loop in a thread of its own, and waits for it. All
methods are made from the asynchronous ones, so that their parameters, types and documentation are
the same; where those return a `Handle`, these return a `SyncHandle`.

It may be called from any thread, also from one that runs an event loop (a notebook): it blocks that
loop, as any synchronous call does. Only where it would wait for itself it refuses: on the loop of
a worker of the same app, whose jobs would stand still meanwhile.
"""

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar
from weakref import WeakSet, finalize

from perdure.base.duration import Duration
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle, IfParked
from perdure.engine.schedules import Schedules
from perdure.jobs.output import DEFAULT_TOPIC, OutputPiece
from perdure.process.runtime import close_loop

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

_STOP_TIMEOUT: Final = 5.0  # how long the loop waits for what it cancels at its end
_WOULD_DEADLOCK: Final = (
    "{what} was called on the event loop of a worker of this app, which would wait for itself: "
    "write `await app.…` here, or call it in a thread (a step that is not `async def` runs in one)"
)


class LoopThread:
    """An event loop in a thread of its own, started on first use."""

    def __init__(self, is_worker: Callable[[asyncio.AbstractEventLoop], bool]) -> None:
        """Start nothing yet.

        Args:
            is_worker: Whether a loop must not be blocked, since what it is to wait for needs it.
        """
        self._is_worker = is_worker
        self._start_anew()
        _THREADS.add(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: finalize[Any, LoopThread] | None = None

    def wait(
        self, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call an async function on the loop, and return what it returns.

        If the wait is interrupted, by Ctrl-C for example, so is the function.

        Raises:
            RuntimeError: This is the loop of a worker, which would wait for itself.
        """
        self._check(getattr(function, "__name__", "this"))
        call = function(*args, **kwargs)
        answer = asyncio.run_coroutine_threadsafe(call, self._started())
        try:
            return answer.result()
        finally:
            answer.cancel()  # unless it has ended

    def _check(self, what: str) -> None:
        here = _running_loop()
        if here is not None and (here is self._loop or self._is_worker(here)):
            raise RuntimeError(_WOULD_DEADLOCK.format(what=what))

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="perdure-sync", daemon=True
                )
                self._thread.start()
                self._end = finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
            return self._loop

    def close(self) -> None:
        """End the loop and its thread; what still runs there is cancelled."""
        with self._lock:
            thread, end = self._thread, self._end
            self._loop = self._thread = self._end = None
        if thread is not None and end is not None:
            end()
            thread.join()

    def forget(self) -> None:
        """Begin anew after a fork, which leaves the thread behind."""
        if self._end is not None:
            self._end.detach()
        self._start_anew()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        close_loop(loop, _STOP_TIMEOUT)


_THREADS: WeakSet[LoopThread] = WeakSet()


def _after_fork() -> None:
    for thread in tuple(_THREADS):
        thread.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# Methods


class Facade(Generic[S]):
    """Stands for an asynchronous object in plain code."""

    def __init__(self, wrapped: S, thread: LoopThread) -> None:
        self._wrapped = wrapped
        self._thread = thread

    def _wait(
        self, method: Callable[..., Coroutine[Any, Any, R]], args: tuple[Any, ...], **kwargs: Any
    ) -> R:
        return self._thread.wait(method, self._wrapped, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<sync {self._wrapped!r}>"


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return the method of a facade that calls an async method, and waits for its result."""

    @functools.wraps(method)
    def call(self: Facade[Any], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._wait(method, args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    return call


def returning_handle(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Handle[R]]],
) -> "Callable[Concatenate[Facade[Any], P], SyncHandle[R]]":
    """Return such a method for one that returns a handle."""

    @functools.wraps(method)
    def call(self: Facade[Any], *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        return SyncHandle(self._wait(method, args, **kwargs), self._thread)  # pyright: ignore[reportPrivateUsage]

    return call


def returning_handles(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, list[Handle[R]]]],
) -> "Callable[Concatenate[Facade[Any], P], list[SyncHandle[R]]]":
    """Return such a method for one that returns several handles."""

    @functools.wraps(method)
    def call(self: Facade[Any], *args: P.args, **kwargs: P.kwargs) -> list[SyncHandle[R]]:
        handles = self._wait(method, args, **kwargs)  # pyright: ignore[reportPrivateUsage]
        return [SyncHandle(handle, self._thread) for handle in handles]  # pyright: ignore[reportPrivateUsage]

    return call


class SyncHandle(Facade[Handle[R]], Generic[R]):
    """A submitted job, for plain code: as `Handle`, but its methods wait for what they return."""

    @property
    def id(self) -> str:
        """The id of the job."""
        return self._wrapped.id

    @property
    def new(self) -> bool:
        """False if a job with this key was submitted before."""
        return self._wrapped.new

    @property
    def unserved(self) -> str | None:
        """Why no worker could claim the job when it was submitted; None: one can."""
        return self._wrapped.unserved

    job = blocking(Handle[Any].job)
    status = blocking(Handle[Any].status)
    journal = blocking(Handle[Any].journal)
    output = blocking(Handle[Any].output)
    effects = blocking(Handle[Any].effects)
    budget = blocking(Handle[Any].budget)
    events = blocking(Handle[Any].events)
    topics = blocking(Handle[Any].topics)
    wait = blocking(Handle[Any].wait)
    until = blocking(Handle[Any].until)
    failure = blocking(Handle[Any].failure)
    send = blocking(Handle[Any].send)
    cancel = blocking(Handle[Any].cancel)
    pause = blocking(Handle[Any].pause)
    resume = blocking(Handle[Any].resume)
    retry = blocking(Handle[Any].retry)
    skip = blocking(Handle[Any].skip)
    skip_item = blocking(Handle[Any].skip_item)
    compensate = blocking(Handle[Any].compensate)
    resolve = blocking(Handle[Any].resolve)
    abandon_undo = blocking(Handle[Any].abandon_undo)

    # Written out, since a type checker would not know what these return.

    def result(self, timeout: Duration = None, *, if_parked: IfParked = "wait") -> R:
        """Wait for the result of the job, and return it: see `Handle.result`."""
        return self._wait(Handle[R].result, (timeout,), if_parked=if_parked)

    def stream(self, topic: str = DEFAULT_TOPIC, *, after: int = 0) -> Iterator[OutputPiece]:
        """Yield what the job emits on a topic until it ends: see `Handle.stream`."""
        pieces = self._wrapped.stream(topic, after=after)

        async def next_piece() -> OutputPiece | None:
            return await anext(pieces, None)

        try:
            while (piece := self._thread.wait(next_piece)) is not None:
                yield piece
        finally:
            self._thread.wait(pieces.aclose)

    def fork(self, before: str, *args: Any, by: str = "", **kwargs: Any) -> "SyncHandle[R]":
        """Submit a copy that has done everything before this step: see `Handle.fork`."""
        copy = self._wait(Handle[R].fork, (before, *args), by=by, **kwargs)
        return SyncHandle(copy, self._thread)


class SyncSchedules(Facade[Schedules]):
    """The cron schedules of an app, for plain code."""

    put = blocking(Schedules.put)
    list = blocking(Schedules.list)
    get = blocking(Schedules.get)
    delete = blocking(Schedules.delete)
    pause = blocking(Schedules.pause)
    resume = blocking(Schedules.resume)


C = TypeVar("C", bound=Caller)


class SyncCaller(Facade[C]):
    """The caller's side of an app, for plain code."""

    handle = returning_handle(Caller.handle)
    send = blocking(Caller.send)
    find_jobs = blocking(Caller.find_jobs)
    command_jobs = blocking(Caller.command_jobs)
    workers = blocking(Caller.workers)
    ask_worker = blocking(Caller.ask_worker)
    export_job = blocking(Caller.export_job)
    import_job = returning_handle(Caller.import_job)
    all_queues = blocking(Caller.all_queues)
    pause_queue = blocking(Caller.pause_queue)
    resume_queue = blocking(Caller.resume_queue)
    approvals = blocking(Caller.approvals)
    decide = blocking(Caller.decide)
    reveal = blocking(Caller.reveal)
    delegate = blocking(Caller.delegate)

    def wait_for(
        self, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call any async function on the loop of this facade, and return what it returns.

        Raises:
            RuntimeError: This is the loop of a worker, which would wait for itself.
        """
        return self._thread.wait(function, *args, **kwargs)

    def close(self) -> None:
        """Close the app as its own `close` does, and end the thread of this facade."""
        self._wait(Caller.close, ())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
