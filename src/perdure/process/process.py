"""The process: one running coroutine function, with an identity, a mailbox and an end.

A process is driven by our own trampoline and not by an `asyncio.Task`: see `step`,
and the core loop in `scheduler`.
To asyncio it is a third-party task, by asyncio's own hooks (see `tasklike`),
so `asyncio.timeout`, task groups, anyio and httpx work inside it.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from perdure.base.pid import Pid
from perdure.process.bonds import Collector
from perdure.process.current import set_process
from perdure.process.death import finish
from perdure.process.event import ExitResult, LinkDown
from perdure.process.mailbox import Mailbox
from perdure.process.tasklike import DEAD, PARKED, READY, RUNNING
from perdure.process.waiter import PARK

if TYPE_CHECKING:
    from perdure.process.runtime import Runtime
    from perdure.process.scheduler import Scheduler


class Process(Mailbox):
    """One process. Users hold its `Pid`; only the kernel holds this."""

    __slots__ = (
        "args",
        "born",
        "collector",
        "context",
        "function",
        "outcome",
        "parent",
        "pid",
        "runtime",
        "scheduler",
        "trap_links",
        "values",
    )

    def __init__(
        self,
        runtime: "Runtime",
        function: Callable[..., Any],
        args: tuple[Any, ...],
        coro: Coroutine[Any, Any, Any],
        parent: "Process | None",
        values: Mapping[str, Any],
    ) -> None:
        self.loop = runtime.loop
        self.coro = coro
        self.send = None
        self.state = READY
        self.must_cancel = False
        self.future = None
        self.bonds = None
        self._cancels = 0
        self._cancel_message = None
        self.bound = runtime.bound
        self._direct = self._inbox = self._events = self._listeners = self._requests = None
        self.reading = None
        self.runtime = runtime
        self.scheduler: Scheduler = runtime.scheduler
        self.function = function
        self.args = args
        self.values = values
        self.parent: Pid | None = parent.pid if parent is not None else None
        self.pid = Pid(runtime.host_name, self)
        self.born = runtime.now()
        self.trap_links = False
        self.collector: Collector | None = None
        # How it ends. Set by a signal before the code notices, and then final, whatever the
        # code does: a kill that is caught is still a kill.
        self.outcome: ExitResult | None = None
        self.context: Context = copy_context()
        self.context.run(set_process, self)

    def __repr__(self) -> str:
        return f"<process {self.pid} {getattr(self.function, '__qualname__', self.function)}>"

    def step(self, error: BaseException | None = None) -> None:
        """Run the coroutine up to its next wait, or with an error raised where it waits.

        Whoever calls this notes the process in `RUNNING_TASKS` before.
        The scheduler has the plain case of this in its core loop, without the calls.
        """
        if self.state != READY:
            return  # it was abandoned while it stood in the queue
        self.state = RUNNING
        try:
            if error is None and not self.must_cancel:
                yielded = self.context.run(self.send or self.coro.send, None)
            else:
                error = error or self.cancelled_error()
                yielded = self.context.run(self.coro.throw, error)
        except BaseException as raised:  # noqa: BLE001 - it returned, or raised: it is over
            error = raised
        else:
            if yielded is PARK and not self.must_cancel:  # it waits in the kernel
                self.state = PARKED
            else:
                self.pause_for(yielded)
            return
        if isinstance(error, StopIteration):  # it returned
            finish(self, error.value, None)
        else:
            finish(self, None, error)
        error = None  # its traceback knows this frame: without this, a cycle for each death

    def pause_for(self, yielded: object) -> None:
        """Wait for what the coroutine yielded, until somebody calls `wake` or a future is done."""
        if yielded is PARK:
            self.state = PARKED
            if self.must_cancel:  # cancelled by itself, while it ran
                self.wake()
        else:  # it waits for asyncio
            self.wait_for(yielded)

    def start(self) -> None:
        """Stand in the queue for the first step."""
        self.scheduler.ready.append(self)
        if not self.scheduler.awake:
            self.scheduler.rouse()

    def pause(self) -> object:
        return PARK

    def wake(self) -> None:
        if self.state == PARKED:
            self.state = READY
            scheduler = self.scheduler  # as in `start`, without the call: this is the hot path
            scheduler.ready.append(self)
            if not scheduler.awake:
                scheduler.rouse()

    # Signals

    def exit_signal(self, sender: Pid, reason: BaseException) -> None:
        """Take in an exit signal by hand; whether it is trapped is judged now, once."""
        if self.trap_links:
            self.notify(LinkDown(sender, reason))
        else:
            self.condemn(ExitResult(None, reason))

    def condemn(self, outcome: ExitResult) -> None:
        """Decide how the process ends, and interrupt it once: its cleanup may take its time."""
        if self.state == PARKED and self.outcome is None:
            # `interrupt` without its calls: whole chains of processes die here.
            self.outcome = outcome
            self._cancels += 1
            self.must_cancel = True
            self.state = READY
            self.start()
        elif self.outcome is None and self.state != DEAD:
            self.outcome = outcome
            self.interrupt()

    def shed(self) -> None:
        """Take off its identity, to be born again: the pid is dead, the mailbox empty."""
        self.pid.target = None
        del self.runtime.processes[self.pid]
        self._direct = self._inbox = self._events = self._listeners = self._requests = None
        self.trap_links = False
        self.bound = self.runtime.bound

    def is_marked(self) -> bool:
        """Tell whether a signal or a cancel has reached it."""
        return self.outcome is not None or self.must_cancel or self._cancels > 0

    def runs_now(self) -> bool:
        """Tell whether it is the process itself that runs, and not a task in it."""
        return self.state == RUNNING

    def interrupt(self) -> None:
        """Raise a CancelledError where the code waits."""
        self.cancel()
