"""Names the step that blocks the event loop of a worker.

Everything of a worker runs on one loop. A step that computes for long, or calls something that
blocks, holds up all of it: other jobs, timers, cancels. The loop cannot tell so itself, so a thread
looks at it from outside. While the loop has nothing to do, that costs it nothing: only if some code
is running does the thread ask for an answer, and if none comes within a second, that code is named
in the log, with the line at which it is.
"""

import asyncio
import logging
import sys
import threading
from typing import Any, NamedTuple

from perdure.base.clock import SystemClock
from perdure.engine.journal.run import Operation, Run
from perdure.engine.worker.node import WorkerNode
from perdure.process.api import events as process_events
from perdure.process.event import Cancel
from perdure.process.loop_watch import place_in
from perdure.process.process import Process, current

_log = logging.getLogger("perdure.worker")

_LOOK_EVERY = 0.25  # seconds
_BLOCKED_AFTER = 1.0  # a loop that does not answer for this long is blocked
_AGAIN_AFTER = 10  # a block is told again when it is this many times as long

_CLOCK = SystemClock()


class Blocker(NamedTuple):
    """What runs on the loop now, for a job."""

    run: Run
    operation: Operation[Any] | None  # None: the code of the job itself

    def describe(self) -> str:
        """Return what it is, for people."""
        job = f"job {self.run.job.id}"
        if self.operation is None:
            return f"the code of {job} ({self.run.job.name})"
        entry = self.operation.entry
        return f"step {entry.name!r} ({entry.id} of {job})"

    def advice(self) -> str:
        """Return what to do about it."""
        if self.operation is None:
            return "move the work into a step"
        return "make it a plain `def`, which runs in a thread, or give it isolation='process'"


def find_blocker(node: WorkerNode) -> Blocker | None:
    """Return the job whose code runs on the loop at this moment; may be called from any thread."""
    task: object = asyncio.current_task(node.loop)
    if task is None:
        return None
    try:
        for run in tuple(node.runs.values()):
            for operation, process in tuple(run.working.items()):
                if _is_part_of(task, process):
                    return Blocker(run, operation)
            if _is_part_of(task, run.process):
                return Blocker(run, None)
    except RuntimeError:  # the loop goes on, and changes what is read here
        pass
    return None


def _is_part_of(task: object, process: Process) -> bool:
    """Whether a task is a process, or an asyncio task that it started."""
    if task is process:
        return True
    tasks = None if process.relations is None else process.relations.tasks
    return bool(tasks) and task in tasks


async def watch_loop(node: WorkerNode) -> None:
    """Watch the loop from a thread; runs until it is cancelled."""
    current().runtime.end_watch()  # it knows nothing of jobs and steps
    watch = LoopWatch(node, threading.get_ident())
    watch.start()
    try:
        while not isinstance(await process_events().receive(), Cancel):
            pass
    finally:
        watch.stop()


class LoopWatch(threading.Thread):
    """The thread that watches the loop of a worker until it is stopped."""

    def __init__(self, node: WorkerNode, loop_thread: int) -> None:
        super().__init__(name="perdure-loop-watch", daemon=True)
        self._node = node
        self._loop_thread = loop_thread
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(_LOOK_EVERY):
            if asyncio.current_task(self._node.loop) is not None:
                self._ask()

    def _ask(self) -> None:
        """Ask the loop for an answer; name what runs there if none comes."""
        answered, since = threading.Event(), _CLOCK.monotonic()
        try:
            self._node.loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            return
        patience = _BLOCKED_AFTER
        while not answered.wait(patience) and not self._end.is_set():
            self._tell(_CLOCK.monotonic() - since)
            patience *= _AGAIN_AFTER

    def _tell(self, seconds: float) -> None:
        blocker = find_blocker(self._node)
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to look at a thread
        where = place_in(frames.get(self._loop_thread))
        if blocker is None:
            _log.warning("the event loop is blocked for %.1f s%s", seconds, where)
            return
        _log.warning(
            "%s has blocked the event loop for %.1f s%s: nothing else runs in this worker "
            "meanwhile; %s",
            *(blocker.describe(), seconds, where, blocker.advice()),
        )

    def stop(self) -> None:
        """End soon."""
        self._end.set()
