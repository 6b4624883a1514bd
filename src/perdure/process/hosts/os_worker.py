"""A worker that is a child OS process, as its parent sees it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.spawn import get_preparation_data
from typing import Any

from perdure.base import telemetry
from perdure.base.errors import HostDown, Killed
from perdure.process.event import ExitResult
from perdure.process.hosts import signals
from perdure.process.hosts.child import ALONE, OUT_OF_MEMORY, UNHEARD
from perdure.process.hosts.first_node import FirstNode
from perdure.process.hosts.replica_entries import pack_entries
from perdure.process.hosts.socket_wire import SocketWire
from perdure.process.hosts.stand_in import StandIn
from perdure.process.hosts.worker import OnDown, OnReady, Plan

BLOCKED_EVENT = ("perdure", "host", "blocked")

# What a child runs first. A worker needs the kernel, and not all that `perdure` exports:
# the package itself is loaded when something of it is first asked for.
_BOOT = """
import importlib.util, sys, types

class Package(types.ModuleType):
    def __getattr__(self, name):
        self.__class__ = types.ModuleType
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)

sys.path[:] = {path!r}
spec = importlib.util.find_spec("perdure")
package = sys.modules["perdure"] = importlib.util.module_from_spec(spec)
package.__class__ = Package
from {entry} import main
main({fd})
"""

_LOOK = 0.02  # seconds between looks at a child's death, where the system cannot tell of it
_GOODBYE = 2.0  # seconds that a child gets to end when it has said goodbye


class OsWorker:
    """One child of a host of the kind "os"."""

    entry = "perdure.process.hosts.child"  # the module whose `main` the child runs

    def __init__(
        self, first: FirstNode, plan: Plan, label: str, on_ready: OnReady, on_down: OnDown
    ) -> None:
        self.label = label
        self.load = 0
        self.ready = False
        self.doomed = False
        self.sacrificed = False
        self._first = first
        self._plan = plan
        self._on_ready = on_ready
        self._on_down = on_down
        self._loop = first.runtime.loop
        self._child: subprocess.Popen[bytes]
        self._cause: str | None = None  # why we ended it ourselves
        self._stopped = False
        self._down = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._pidfd: int | None = None
        self._memory_kills = memory_kills()
        self._pings = 0
        self._ponged = 0

    @property
    def pid(self) -> int:
        """The id of the OS process."""
        return self._child.pid

    # Begin

    def begin(self) -> None:
        """Start the child; signals may be posted at once, it reads them when it is ready."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = _start_child(theirs.fileno(), self.entry)
        except BaseException:
            ours.close()
            raise
        self.wire = SocketWire(self._first, ours, self._plan.host, self._plan.queue_size)
        self.wire.on_closed = self._on_closed
        self.wire.on_garbage = self._on_garbage
        self.wire.on_force = self._force
        abandon_after = self._first.runtime.settings.abandon_after
        self.wire.grace = self._plan.kill_after or 2 * abandon_after
        self._first.workers[self.wire] = self
        self.wire.post(self._begin_signal())
        self._watch()

    def _begin_signal(self) -> signals.Begin:
        runtime = self._first.runtime
        names = self._first.follow(self.wire)
        return signals.Begin(
            self.label,
            self._plan.host,
            runtime.settings,
            names,
            list(runtime.hosts),
            pack_entries(runtime.entries),
            _preparation(self.label),
        )

    def on_ready(self) -> None:
        """Take note that its loop runs."""
        self.ready = True
        self._on_ready(self)
        if self._plan.blocked_after is not None:
            self._ping(self._plan.blocked_after)

    # Is its loop alive?

    def _ping(self, limit: float) -> None:
        """Ask its loop for an answer, twice within the time in which one must come."""
        self._pings += 1
        self.wire.post(signals.Ping(self._pings))
        self._later("ping", limit / 2, self._look_for_pong, limit)

    def _look_for_pong(self, limit: float) -> None:
        if self._ponged == self._pings:
            self._ping(limit)
        elif self._pings - self._ponged >= 2:  # noqa: PLR2004 - both halves of the time
            telemetry.execute(
                BLOCKED_EVENT, {"seconds": limit}, {"host": self._plan.host, "worker": self.label}
            )
            self.destroy(f"its loop was blocked for {limit:g} s")
        else:
            self._pings += 1
            self._later("ping", limit / 2, self._look_for_pong, limit)

    def on_pong(self, number: int) -> None:
        """Take note that its loop has answered."""
        self._ponged = self._pings if number else self._ponged

    # End

    def stop(self, timeout: float) -> None:
        """Let it end its processes and itself; force it when that takes too long."""
        self.wire.post(signals.Stop(timeout))
        patience = timeout + self._first.runtime.settings.abandon_after
        self._later("stop", patience, self.destroy, "it did not stop in time")

    def on_stopped(self) -> None:
        """Take note that it has ended all processes, and now ends itself."""
        self._stopped = True
        self._later("stop", _GOODBYE, self.destroy, "it did not end")

    def destroy(self, cause: str) -> None:
        """Kill it."""
        if self._down:
            return
        self.doomed = True
        if self._cause is None:
            self._cause = cause
        with suppress(ProcessLookupError):
            self._child.kill()

    def reap(self) -> None:
        """Kill it, and take note of its end here and now: the loop that would see it ends."""
        self.destroy("the program ends")
        self._child.wait()
        self._on_exit()

    def _force(self, stand_in: StandIn, detail: object) -> None:
        """End a process that a kill did not end, by ending the child if nobody else is harmed."""
        if self.load <= 1 or self._plan.kill_after is not None:
            stand_in.end(ExitResult(None, Killed(detail)))
            self.sacrificed = True
            self.destroy(f"to end {stand_in.pid}, which never waits")
        else:
            self._first.report_lost(
                f"control over process {stand_in.pid}, which never waits: it is abandoned, "
                "for others run in the same OS process (use dedicated=True for such work)",
                Killed(detail),
            )
            stand_in.abandon(detail)

    # Its death

    def _watch(self) -> None:
        """Be told when it ends."""
        try:
            self._pidfd = os.pidfd_open(self._child.pid)
        except (AttributeError, OSError):
            self._look()
        else:
            self._loop.add_reader(self._pidfd, self._on_exit)

    def _look(self) -> None:
        if self._child.poll() is None:
            self._later("look", _LOOK, self._look)
        else:
            self._on_exit()

    def _on_closed(self) -> None:
        """Take note that it cannot be heard any more; whatever it does now, it must end."""
        if not self._down:
            self._later("closed", _GOODBYE, self._end_closed)

    def _on_garbage(self) -> None:
        """End it: what it says has no meaning, and nothing that it says later can have one."""
        self.destroy("it wrote to its wire what is no signal")

    def _end_closed(self) -> None:
        if self._child.poll() is None:
            self.destroy("it closed its end of the wire")

    def _on_exit(self) -> None:
        status = self._child.poll()
        if status is None or self._down:
            return
        self._down = True
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self.wire.drain()
        self.wire.close()
        for timer in self._timers.values():  # also those that its last words have set
            timer.cancel()
        self._first.unfollow(self.wire)
        self._first.workers.pop(self.wire, None)
        short = memory_kills() > self._memory_kills
        cause = None if self._stopped and not status else self._cause or cause_of(status, short)
        reason = HostDown(self._plan.host, self.label, cause or "it was stopped")
        self._first.lose(self.wire, reason)
        self._on_down(self, cause)

    def _later(self, what: str, delay: float, act: Callable[..., object], *args: Any) -> None:
        if what in self._timers:
            self._timers[what].cancel()
        self._timers[what] = self._loop.call_later(delay, act, *args)


_OWN_CAUSES = {OUT_OF_MEMORY: "it ran out of memory", ALONE: "it could not hear us any more"}


def cause_of(status: int, memory_was_short: bool = False) -> str:  # noqa: FBT001, FBT002
    """Say how an OS process ended."""
    if status in _OWN_CAUSES:
        return _OWN_CAUSES[status]
    if status >= 0:
        return f"it ended by itself with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    by_system = memory_was_short and -status == signal.SIGKILL
    hint = "; the system killed for want of memory meanwhile" if by_system else ""
    return f"killed by signal {-status} ({name}){hint}"


def memory_kills() -> int:
    """Count what the system has killed so far because memory was short; 0 if it does not say."""
    with suppress(OSError), open("/proc/vmstat", "rb") as counters:  # noqa: PTH123 - no disk is read
        for line in counters:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _preparation(label: str) -> dict[str, Any]:
    """Say where to find modules, and which is the main module, as `multiprocessing` does."""
    preparation: dict[str, Any] = get_preparation_data(label)
    preparation.pop("authkey", None)  # it is no child of multiprocessing's
    return preparation


def _start_child(fd: int, entry: str) -> "subprocess.Popen[bytes]":
    """Start a clean interpreter, with its end of the wire, on the main function of a module."""
    code = _BOOT.format(path=sys.path, entry=entry, fd=fd)
    # As `multiprocessing` starts its children: with the options of this interpreter.
    options_of: Any = getattr(subprocess, "_args_from_interpreter_flags")  # noqa: B009
    flags: list[str] = options_of()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, UNHEARD)  # which a child inherits
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
