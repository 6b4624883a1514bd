"""What asyncio asks of a task, for processes.

asyncio allows tasks that are not `asyncio.Task`: while one runs, `current_task` gives it,
and libraries cancel it, count cancellations and look at its coroutine.
The methods here behave as those of `asyncio.Task`;
`asyncio.timeout`, `TaskGroup` and anyio's cancel scopes rest on `cancel`, `cancelling`
and `uncancel`.
"""

import asyncio
import sys
import traceback
from asyncio import CancelledError, InvalidStateError
from collections.abc import Callable, Coroutine
from contextvars import Context
from enum import IntEnum
from types import CoroutineType, FrameType
from typing import Any, TextIO

from perdure.base.pid import Pid
from perdure.process.bonds import Bonds, Callback
from perdure.process.event import ExitResult
from perdure.process.waiter import Waiter


class State(IntEnum):
    """Where a process stands."""

    READY = 0  # in the scheduler's queue
    RUNNING = 1  # its coroutine is being stepped right now
    PARKED = 2  # waits in the kernel, until somebody wakes it
    WAITING = 3  # waits for an asyncio future, or for the next turn of the loop
    ENDING = 4  # its coroutine has finished, tasks that it started have not
    DEAD = 5


# Enum members are compared slowly; the hot paths use plain integers.
READY, RUNNING, PARKED, WAITING, ENDING, DEAD = map(int, State)


_tasks: Any = asyncio.tasks


class _RunningTasks:
    """The same as the dict of older versions, which is asyncio's own."""

    def __setitem__(self, loop: asyncio.AbstractEventLoop, task: object) -> None:
        _tasks._swap_current_task(loop, task)  # noqa: SLF001

    def pop(self, loop: asyncio.AbstractEventLoop, default: None = None) -> None:
        _tasks._swap_current_task(loop, default)  # noqa: SLF001


# What runs now on each loop: where `asyncio.current_task` looks.
# Written directly, since leaving and entering by asyncio's hooks costs a tenth of a short step.
RUNNING_TASKS: Any = (
    _RunningTasks() if sys.version_info >= (3, 14) else _tasks._current_tasks  # noqa: SLF001
)


class TaskLike(Waiter):
    """The asyncio side of a process."""

    __slots__ = (
        "__weakref__",
        "_cancel_message",
        "_cancels",
        "bonds",
        "coro",
        "future",
        "loop",
        "must_cancel",
        "send",
        "state",
    )

    # All fields are set by `Process`, in one place: three constructors would cost as much again.
    loop: asyncio.AbstractEventLoop
    coro: Coroutine[Any, Any, Any]
    send: Callable[[None], Any] | None  # that of `coro`, bound once, from the first step on
    state: int
    must_cancel: bool
    future: asyncio.Future[Any] | None  # what it waits for, when WAITING
    bonds: Bonds | None
    _cancels: int
    _cancel_message: object
    pid: Pid
    context: Context
    outcome: ExitResult | None

    def tie(self) -> Bonds:
        """Give the ties to others, to add one."""
        if self.bonds is None:
            self.bonds = Bonds()
        return self.bonds

    def drive(self, coro: Coroutine[Any, Any, Any]) -> None:
        """Run this code from the next step on."""
        self.coro = coro
        self.send = None

    def step(self, error: BaseException | None = None) -> None:
        """Run on, or with an error raised; the process knows how."""
        raise NotImplementedError

    def step_alone(self, error: BaseException | None = None) -> None:
        """Take a step in a callback of the loop, and not in a turn of the scheduler."""
        RUNNING_TASKS[self.loop] = self
        try:
            self.step(error)
        finally:
            RUNNING_TASKS.pop(self.loop, None)

    # Waiting for asyncio

    def wait_for(self, yielded: Any) -> None:
        """Wait for what the coroutine yielded, as `asyncio.Task` does."""
        self.state = WAITING
        if yielded is None:  # a bare yield, as in `asyncio.sleep(0)`: one turn of the loop
            self.loop.call_soon(self.resume, None)
        elif getattr(yielded, "_asyncio_future_blocking", False) and (
            yielded.get_loop() is self.loop
        ):
            yielded._asyncio_future_blocking = False  # noqa: SLF001 - the protocol of futures
            self.future = yielded
            yielded.add_done_callback(self.resume)
            if self.must_cancel and yielded.cancel(msg=self._cancel_message):
                self.must_cancel = False
        else:
            wrong = RuntimeError(f"{self!r} awaited something that cannot wake it: {yielded!r}")
            self.loop.call_soon(self.refuse, wrong)

    def refuse(self, wrong: RuntimeError) -> None:
        """Raise where the code waits for what will never come."""
        if self.state == WAITING:
            self.state = READY
            self.step_alone(wrong)

    def resume(self, done: "asyncio.Future[Any] | None") -> None:
        """Go on after a future: in the callback itself, as asyncio does, not a turn later."""
        if self.state == WAITING and self.future is done:
            self.future = None
            self.state = READY
            self.step_alone()

    # Cancellation, as asyncio means it: a request that the code may catch

    def cancel(self, msg: object = None) -> bool:
        """Ask for a CancelledError at the next opportunity."""
        if self.state >= ENDING:
            return False
        self._cancels += 1
        if self.future is not None and self.future.cancel(msg=msg):
            return True  # its callback brings the CancelledError
        self.must_cancel = True
        self._cancel_message = msg
        self.wake()
        return True

    def cancelling(self) -> int:
        """Count the requests that nobody has taken back."""
        return self._cancels

    def uncancel(self) -> int:
        """Take one request back."""
        if self._cancels > 0:
            self._cancels -= 1
            if self._cancels == 0:
                self.must_cancel = False
        return self._cancels

    def cancelled_error(self) -> CancelledError:
        """Make the error that is thrown now."""
        self.must_cancel = False
        message, self._cancel_message = self._cancel_message, None
        return CancelledError() if message is None else CancelledError(message)

    # What anyio looks at
    @property
    def _must_cancel(self) -> bool:
        return self.must_cancel

    @property
    def _fut_waiter(self) -> "asyncio.Future[Any] | None":
        return self.future

    # The end

    def done(self) -> bool:
        """Tell whether it is dead."""
        return self.state == DEAD

    def cancelled(self) -> bool:
        """Tell whether it was cancelled; a process ends with a reason instead."""
        return False

    def result(self) -> Any:
        """Give the value, or raise the reason."""
        if self.outcome is None or self.state != DEAD:
            raise InvalidStateError("the process has not ended")
        if self.outcome.error is not None:
            raise self.outcome.error
        return self.outcome.value

    def exception(self) -> BaseException | None:
        """Give the reason."""
        if self.outcome is None or self.state != DEAD:
            raise InvalidStateError("the process has not ended")
        return self.outcome.error

    def add_done_callback(self, fn: Callback, /, *, context: Context | None = None) -> None:
        """Call `fn` with this process when it is dead, after all notices are sent."""
        if self.state == DEAD:
            self.loop.call_soon(fn, self, context=context)
            return
        self.tie().add_callback(fn, context)

    def remove_done_callback(self, fn: Callback, /) -> int:
        """Forget all entries of `fn`."""
        return 0 if self.bonds is None else self.bonds.drop_callback(fn)

    # For tools

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Give the loop that it lives on."""
        return self.loop

    def get_coro(self) -> Coroutine[Any, Any, Any]:
        """Give the coroutine."""
        return self.coro

    def get_context(self) -> Context:
        """Give the context that its code runs in."""
        return self.context

    def get_name(self) -> str:
        """Give the name that tools show: the pid, unless another was set."""
        return self.bonds.label if self.bonds and self.bonds.label else str(self.pid)

    def set_name(self, value: object) -> None:
        """Set the name that tools show."""
        self.tie().label = str(value)

    def get_stack(self, *, limit: int | None = None) -> list[FrameType]:
        """Give the frames of the coroutine and of what it awaits, outermost first."""
        frames = stack_of(self.coro)
        return frames if limit is None else frames[-limit:] if limit > 0 else []

    def print_stack(self, *, limit: int | None = None, file: TextIO | None = None) -> None:
        """Print where the process stands."""
        summary = traceback.StackSummary.extract(
            (frame, frame.f_lineno) for frame in self.get_stack(limit=limit)
        )
        traceback.print_list(summary, file=file)


def stack_of(awaitable: object) -> list[FrameType]:
    """Follow a suspended coroutine down to what it waits in."""
    frames: list[FrameType] = []
    while awaitable is not None:
        if isinstance(awaitable, CoroutineType):
            frame, awaitable = awaitable.cr_frame, awaitable.cr_await
        else:
            frame = getattr(awaitable, "gi_frame", None) or getattr(awaitable, "ag_frame", None)
            awaitable = getattr(awaitable, "gi_yieldfrom", None) or getattr(
                awaitable, "ag_await", None
            )
        if frame is not None:
            frames.append(frame)
    return frames
