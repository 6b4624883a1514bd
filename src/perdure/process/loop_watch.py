"""Names the process that holds up its event loop: it computes, or calls something that blocks.

All processes of a loop take turns, so one that does not wait for a second holds up the others,
timers and cancels too. The loop cannot tell so itself: a thread looks at it from outside, at what
the scheduler writes down anyway, so that it costs the loop nothing. On a `threads` host only what
computes is named: such hosts are for code that blocks.

Each function is named once: in the log, and by `BLOCKED_EVENT`, which is emitted in that thread.
"""

import asyncio
import logging
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

from perdure.base import telemetry
from perdure.base.clock import SystemClock, ThreadClock
from perdure.base.duration import spell
from perdure.process.process import Process, ProcessRuntime
from perdure.process.report import call_of

BLOCKED_EVENT: Final = ("perdure", "process", "blocked")

_LOOK_EVERY: Final = 0.25  # seconds
_BLOCKED_AFTER: Final = 1.0
_COMPUTES: Final = 0.05  # of a core, on a busy machine; who uses less waits for something else

_log = logging.getLogger("perdure.process")
_OURS = str(Path(__file__).parents[1])
_CLOCK = SystemClock()


class ProcessWatch(threading.Thread):
    """The thread that looks at loops until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="perdure-process-watch", daemon=True)
        self._watched: dict[ProcessRuntime, _Watched] = {}
        self._end = threading.Event()

    def add(self, runtime: ProcessRuntime) -> None:
        """Look at the loop of the running thread from now on."""
        self._watched[runtime] = _Watched(runtime)

    def remove(self, runtime: ProcessRuntime) -> None:
        """Look at it no more."""
        self._watched.pop(runtime, None)

    def run(self) -> None:
        while not self._end.wait(_LOOK_EVERY):
            for each in tuple(self._watched.values()):
                each.look(_CLOCK.monotonic())

    def stop(self) -> None:
        """End at once."""
        self._end.set()
        self.join(_BLOCKED_AFTER)


class _Watched:
    """What is known of one loop."""

    def __init__(self, runtime: ProcessRuntime) -> None:
        self._runtime = runtime
        self._thread = threading.get_ident()
        self._cpu = ThreadClock()
        self._told: set[str] = set()
        self._turn = 0.0
        self._began(0.0)

    def _began(self, now: float) -> None:
        self._since, self._used_before = now, self._cpu.seconds()

    def look(self, now: float) -> None:
        """Look what runs; name it if it has not let go of the loop for long."""
        runtime, turn = self._runtime, self._runtime.scheduler.turn_ends
        running: object = asyncio.current_task(runtime.loop)
        # Plain tasks of asyncio take no turn, so nobody can tell whether one has waited meanwhile.
        if turn != self._turn or not isinstance(running, Process):
            self._turn = turn
            self._began(now)
        elif now - self._since >= _BLOCKED_AFTER:
            self._tell(running, now - self._since)

    def _tell(self, process: Process, held: float) -> None:
        used, before = self._cpu.seconds(), self._used_before
        computes = used is not None and before is not None and used - before >= _COMPUTES * held
        function = call_of(process)
        is_meant = not computes and self._runtime.host_name != INLINE
        if is_meant or function in self._told:
            return
        self._told.add(function)
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to look at a thread
        where = place_in(frames.get(self._thread))
        _log.warning(
            "process %s (%s) has held its event loop for %s%s: nothing else runs there "
            "meanwhile, not even timers and cancels; %s",
            *(process.pid, function, spell(held), where, _COMPUTING if computes else _BLOCKING),
        )
        telemetry.execute(BLOCKED_EVENT, {"held": held}, {"pid": process.pid, "function": function})


INLINE: Final = "inline"
_COMPUTING: Final = (
    'what computes belongs on a host of OS processes: ProcessHost(kind="os"), or `kind: os`'
)
_BLOCKING: Final = "what blocks is called with `await offload(function)`, or on a `threads` host"


def place_in(frame: FrameType | None) -> str:
    """Return the line at which code is that is not ours, for people."""
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    return f", at {Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
