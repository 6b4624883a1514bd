"""A lane: where the items of a stream run that are done at once.

Most of what a process costs is its birth and its death.
An item that returns without ever having waited, and that left no trace
(no link, monitor, name, task or signal), cannot tell whether its process is taken apart after it.
So its lane keeps the process for the next item, and gives it a new identity:
a new pid, a new context, an empty mailbox.
The old pid is dead from then on, as any other.

An item that waits, or fails, or leaves a trace, takes the process with it:
it goes on, and ends, as an ordinary process, and the next item gets another one.
"""

from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any, Protocol

from perdure.base import telemetry
from perdure.base.pid import Pid
from perdure.process.birth import Function, make_coroutine
from perdure.process.bonds import Collector
from perdure.process.current import CURRENT
from perdure.process.death import EXIT_EVENT
from perdure.process.event import ExitResult
from perdure.process.process import Process
from perdure.process.tasklike import READY
from perdure.process.waiter import PARK

_NO_CONTEXT = Context()


class Sink(Collector, Protocol):
    """Takes the value of an item."""

    def done(self, lane: "Lane", value: object) -> None:
        """Take the value; the lane is free."""
        ...


class Lane:
    """Stands in the place of a coroutine, up to the first wait of the real one."""

    __slots__ = ("_code", "_process", "_sink")

    _code: Coroutine[Any, Any, Any]
    _sink: Sink

    def __init__(self) -> None:
        self._process: Process | None = None

    def begin(
        self, parent: Process, function: Function, args: tuple[Any, ...], sink: Sink
    ) -> Process:
        """Start an item, as `give_birth` does.

        Raises:
            SpawnError: It cannot be started with these arguments; nothing was created.
        """
        self._code = make_coroutine(function, args)
        self._sink = sink
        runtime = parent.runtime
        process = self._process
        if process is None:
            this: Any = self  # as much of a coroutine as the kernel needs
            process = Process(runtime, function, args, this, parent, parent.values)
            self._process = process
        else:
            process.args = args
            process.state = READY
            process.pid = Pid(runtime.host_name, process)
            process.born = runtime.now()
            process.context = context = copy_context()
            context.run(CURRENT.set, process)
        process.collector = sink
        runtime.processes[process.pid] = process
        process.start()
        return process

    # What the kernel asks of a coroutine

    def send(self, handed: object) -> object:
        """Run the item up to its first wait or its end."""
        process = self._process
        assert process is not None
        process.coro = code = self._code
        try:
            yielded = code.send(handed)
        except StopIteration as stop:
            if not _is_untouched(process):
                raise  # it ends like any other
            value = stop.value
        except Exception as error:
            _end_by(process, error)
            raise StopIteration from None
        else:
            self._process = None  # from now on it is a process like any other
            return yielded
        self._free(process)
        self._sink.done(self, value)
        return PARK

    def throw(self, error: BaseException) -> object:
        """Interrupt an item that has not begun."""
        process, self._process = self._process, None
        assert process is not None
        process.coro = self._code
        return self._code.throw(error)

    def close(self) -> None:
        """Do not run an item that has not begun."""
        self._code.close()

    def _free(self, process: Process) -> None:
        """End the identity of an item, as `bury` does for a process without ties."""
        process.pid.target = None
        del process.runtime.processes[process.pid]
        process.close_mailbox()
        process.trap_links = False
        process.bound = process.runtime.bound
        process.collector = None
        process.context = _NO_CONTEXT  # it knows the process: an idle one must not keep itself
        this: Any = self
        process.coro = this

    def drop(self) -> None:
        """Let go of the process; the two know each other."""
        self._process = None


def _is_untouched(process: Process) -> bool:
    """Tell whether nobody can know of this process any more, or would have to be told."""
    return (
        process.bonds is None
        and process.outcome is None
        and not process.must_cancel
        and process.cancelling() == 0
        and not telemetry.has_handlers(EXIT_EVENT)
    )


def _end_by(process: Process, error: Exception) -> None:
    """Set how it ends, without our own frame in the traceback: people look for their code."""
    if process.outcome is None:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace is not None else None
        process.outcome = ExitResult(None, error)
