"""A blocking call in a thread, so that the loop goes on."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, ParamSpec, TypeVar

from perdure.process.process import current

P = ParamSpec("P")
T = TypeVar("T")

# So many blocking calls run at once; more of them wait their turn.
MOST_THREADS = 64


async def offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that blocks in a thread, and wait for its result.

    It sees the context variables of the caller, and may use `process.send`.
    If the wait is interrupted, the thread goes on alone, for nobody can stop it:
    its result is dropped.
    """
    bench = current("offload").runtime.own(Bench)
    loop = asyncio.get_running_loop()
    job = Job(loop, copy_context(), lambda: fn(*args, **kwargs))
    bench.begin(job)
    return await job.result


class Job:
    """One blocking call."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: Context, call: Callable[[], Any]
    ) -> None:
        self.loop = loop
        self.result: asyncio.Future[Any] = loop.create_future()
        self._context = context
        self._call = call

    def run(self) -> None:
        """Call it; in the thread."""
        try:
            value = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            self._tell(None, error)
        else:
            self._tell(value, None)

    def _tell(self, value: Any, error: BaseException | None) -> None:
        try:
            self.loop.call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.result.done():
            return  # the wait was interrupted
        if error is None:
            self.result.set_result(value)
        elif isinstance(error, StopIteration):  # which no future can hold
            self.result.set_exception(RuntimeError(f"the function raised {error!r}"))
        else:
            self.result.set_exception(error)


class Bench:
    """The threads of one runtime.

    They are daemons: one that is blocked for ever must not keep the program from ending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[Job] = deque()

    def begin(self, job: Job) -> None:
        """Start a thread, or let the call wait for one."""
        with self._lock:
            if self._running >= MOST_THREADS:
                self._waiting.append(job)
                return
            self._running += 1
        threading.Thread(target=self._work, args=(job,), name="offload", daemon=True).start()

    def _work(self, job: Job | None) -> None:
        while job is not None:
            if not job.result.cancelled():
                job.run()
            job = self._next()

    def _next(self) -> Job | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None
