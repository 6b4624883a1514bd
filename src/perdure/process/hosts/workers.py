"""A worker of a host, as the host sees it: a loop elsewhere, in a thread or in an OS process."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing.spawn import get_preparation_data
from typing import Any, NamedTuple, Protocol

from perdure.base import telemetry
from perdure.base.errors import HostDown, Killed, Shutdown, SpawnError
from perdure.base.restart import Intensity, RestartHistory
from perdure.process.channel import Channel
from perdure.process.event import ExitResult
from perdure.process.hosts import signals
from perdure.process.hosts.child import ALONE, OUT_OF_MEMORY, UNHEARD, pack_entries
from perdure.process.hosts.node import Node, share
from perdure.process.hosts.proxy import StandIn, Wire
from perdure.process.hosts.root_node import FirstNode
from perdure.process.hosts.wire import SocketWire
from perdure.process.runtime import Runtime, close_loop


class Plan(NamedTuple):
    """What a worker needs to know of its host."""

    host: str
    queue_size: int
    blocked_after: float | None
    kill_after: float | None


class Worker(Protocol):
    """A loop elsewhere."""

    label: str
    load: int  # processes that were placed on it and live
    ready: bool
    doomed: bool  # it is being killed: whatever is placed on it now dies with it
    sacrificed: bool  # ended by us, to end a process in it: no failure of its own

    @property
    def wire(self) -> Wire:
        """The way to it."""
        ...

    def begin(self) -> None:
        """Start it; `on_ready` or `on_down` is called later."""
        ...

    def stop(self, timeout: float) -> None:
        """Let it end its processes and itself; `on_down` is called at the end."""
        ...

    def destroy(self, cause: str) -> None:
        """End it by force, as far as that is possible; `on_down` is called."""
        ...

    def reap(self) -> None:
        """End it by force, and wait for that: the program's first loop ends."""
        ...


OnReady = Callable[[Worker], object]
OnDown = Callable[[Worker, str | None], object]
"""Called once, when a worker is gone: with the cause, or with None if it was stopped."""


def count_in(worker: Worker, stand_in: StandIn) -> None:
    """Let a process count as load of a worker until it ends."""
    worker.load += 1

    def leave() -> None:
        worker.load -= 1

    stand_in.on_end = leave


# A worker that is a thread of this program, with a loop of its own.

_log = logging.getLogger("perdure.host")

_JOIN = 1.0  # seconds that a thread gets to end when its loop has said goodbye
_LAST_JOIN = 0.2  # and when the program ends, whose threads are given up anyway


class ThreadWorker:
    """One thread of a host."""

    def __init__(
        self, first: FirstNode, plan: Plan, label: str, on_ready: OnReady, on_down: OnDown
    ) -> None:
        self.label = label
        self.load = 0
        self.ready = False
        self.doomed = False  # a thread cannot be killed
        self.sacrificed = False
        self._plan = plan
        self._first = first
        self._on_ready = on_ready
        self._on_down = on_down
        self._opened = threading.Event()
        self._failure: OSError | None = None  # instead of a loop
        self._timer: asyncio.TimerHandle | None = None
        self._cause: str | None = None  # why we ended it ourselves
        self._down = False
        self._thread = threading.Thread(target=self._run, name=label, daemon=True)

    def begin(self) -> None:
        """Start the thread, and wait the moment until it has a loop.

        Raises:
            OSError: It cannot have one.
            RuntimeError: There can be no more threads.
        """
        share(self._first.runtime)
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            raise self._failure
        self.wire = self._first.hub.between(self._first, self.node)
        self._first.workers[self.wire] = self
        self.ready = True
        self._on_ready(self)

    def stop(self, timeout: float) -> None:
        """Let it end its processes; if its loop is blocked, nobody waits for ever."""
        self.wire.post(signals.Stop(timeout))
        self._wait(timeout, "it is blocked")

    def destroy(self, cause: str) -> None:
        """Kill its processes; the thread itself cannot be killed."""
        if not self._down:
            self._cause = self._cause or cause
            self.wire.post(signals.Stop(0.0))
            self._wait(0.0, cause)

    def _wait(self, timeout: float, cause: str) -> None:
        """Give it up if it does not end; nobody waits for ever."""
        if self._timer is not None:
            self._timer.cancel()
        patience = timeout + self._first.runtime.settings.abandon_after + _JOIN
        self._timer = self._first.runtime.loop.call_later(patience, self._give_up, cause)

    def _give_up(self, cause: str) -> None:
        _log.warning("the thread %s does not end (%s) and is abandoned", self.label, cause)
        self._is_down(cause)

    def reap(self) -> None:
        """Wait a moment for its end: no loop will hear of it."""
        self.destroy("the program ends")
        self._thread.join(_LAST_JOIN)
        self._is_down(self._cause)

    def on_stopped(self) -> None:
        """Take note that its loop has ended all processes."""
        self._thread.join(_JOIN)
        self._is_down(self._cause)

    def _is_down(self, cause: str | None) -> None:
        if self._down:
            return
        self._down = True
        if self._timer is not None:
            self._timer.cancel()
        self._first.workers.pop(self.wire, None)
        reason = HostDown(self._plan.host, self.label, cause or "it was stopped")
        self._first.lose(self.wire, reason)
        self._first.hub.leave(self.node, reason)
        self._on_down(self, cause)

    # In the thread

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """Make the loop of the thread."""
        return asyncio.new_event_loop()

    def make_runtime(self) -> Runtime:
        """Make the runtime of the thread."""
        first = self._first.runtime
        return Runtime(first.settings, clock=first.clock)

    def _run(self) -> None:
        first, runtime = self._first.runtime, self.make_runtime()
        runtime.host_name = self._plan.host
        runtime.stopping = Shutdown(f"host {self._plan.host!r} stops")
        runtime.names, runtime.entries, runtime.hosts = first.names, first.entries, first.hosts
        try:
            loop = self.make_loop()
        except OSError as error:  # no descriptors are left
            self._failure = error
            self._opened.set()
            return
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live(runtime))
        finally:
            close_loop(loop, runtime.settings.abandon_after)
            asyncio.set_event_loop(None)

    async def _live(self, runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        runtime.open(loop)
        share(runtime)
        self.node = node = Node(runtime)
        hub = self._first.hub
        hub.join(node)
        node.home = hub.between(node, self._first)
        asked: asyncio.Future[float] = loop.create_future()

        def on_stop(_: object, told: signals.Stop) -> None:
            if asked.done():
                runtime.kill_all()  # the second time is an order
            else:
                asked.set_result(told.timeout)

        node.handlers[signals.Stop] = on_stop
        self._opened.set()
        try:
            await runtime.stop(await asked)
        finally:
            node.close(HostDown(self._plan.host, self.label, "it was stopped"))
            runtime.close()
            node.home.post(signals.Stopped())


# A worker that is a child OS process, as its parent sees it.

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


# The workers of a host: who gets the next process, who is replaced, and how all of them end.

WORKER_UP = ("perdure", "host", "worker", "up")
WORKER_DOWN = ("perdure", "host", "worker", "down")

# Seconds until a worker is tried again that could not even be started.
_AGAIN = 0.1

Hire = Callable[[str, OnReady, OnDown], Worker]

# Labels are never used twice: they are part of the pids that a worker gives.
_labels = count(1)


class Limits(NamedTuple):
    """The bounds of a host."""

    workers: int
    max_processes: int | None
    dedicated: bool
    max_restarts: int
    max_seconds: float


class Staff:
    """The workers of one host that runs."""

    def __init__(self, runtime: Runtime, host: str, limits: Limits, hire: Hire) -> None:
        self.workers: list[Worker] = []
        self.failure: Channel[HostDown] = Channel(1)  # when it gives up
        self._runtime = runtime
        self._host = host
        self._limits = limits
        self._hire = hire
        self._history = RestartHistory(Intensity(limits.max_restarts, limits.max_seconds))
        self._stopping = False
        self._given_up: HostDown | None = None
        self._waiting: list[asyncio.Future[None]] = []  # for a change

    def begin(self) -> None:
        """Start all workers.

        Raises:
            HostDown: The system does not allow it.
        """
        for _ in range(self._limits.workers):
            self._begin_one()

    def _begin_one(self) -> Worker:
        label = f"{self._host}.{next(_labels)}"
        worker = self._hire(label, self._on_ready, self._on_down)
        try:
            worker.begin()
        except (OSError, RuntimeError) as error:  # no more processes, descriptors or threads
            raise HostDown(self._host, label, f"it could not be started: {error}") from error
        self.workers.append(worker)
        return worker

    def pick(self) -> Worker:
        """Give the worker that has least to do; of equals the one that waits longest.

        Raises:
            SpawnError: The host takes no more processes.
        """
        most = self._limits.max_processes
        if self._stopping:
            raise SpawnError(f"host {self._host!r} is stopping")
        if most is not None and sum(worker.load for worker in self.workers) >= most:
            raise SpawnError(f"host {self._host!r} has {most} processes, and takes no more")
        worker = self._least_loaded()
        if worker is None:
            raise SpawnError(
                f"all {self._limits.workers} workers of host {self._host!r} have a process, "
                "and each is dedicated to one"
            )
        self.workers.remove(worker)
        self.workers.append(worker)
        return worker

    def _least_loaded(self) -> Worker | None:
        """Give the worker that has least to do; None if no more may be given to any."""
        able = [each for each in self.workers if not each.doomed]
        free = [each for each in able if not each.load] if self._limits.dedicated else able
        if free:
            return min(free, key=lambda each: each.load)
        if len(able) == self._limits.workers:
            return None
        try:
            return self._begin_one()  # the one that follows those which are being killed
        except HostDown as error:
            raise SpawnError(str(error)) from error

    # Workers come and go

    def _on_ready(self, worker: Worker) -> None:
        telemetry.execute(WORKER_UP, {}, {"host": self._host, "worker": worker.label})
        self._tell()

    def _on_down(self, worker: Worker, cause: str | None) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
        telemetry.execute(
            WORKER_DOWN, {}, {"host": self._host, "worker": worker.label, "cause": cause}
        )
        self._replace(worker.label, cause or "it ended by itself", counts=not worker.sacrificed)
        self._tell()

    def _replace(self, label: str, cause: str, *, counts: bool = True) -> None:
        if self._stopping:
            return
        if counts and self._history.record(self._runtime.loop.time()):
            self._give_up(label, cause)
        elif len(self.workers) < self._limits.workers:  # it may have been replaced already
            try:
                self._begin_one()
            except HostDown as error:
                self._runtime.loop.call_later(_AGAIN, self._replace, error.worker, error.cause)

    def _give_up(self, label: str, cause: str) -> None:
        why = f"{cause}; more than {self._limits.max_restarts} workers died too soon"
        self._stopping = True
        self._given_up = HostDown(self._host, label, why)
        self.failure.accepts(self._given_up)
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def _change(self) -> None:
        change = self._runtime.loop.create_future()
        self._waiting.append(change)
        await change

    async def all_ready(self) -> None:
        """Wait until each worker runs.

        Raises:
            HostDown: They cannot be started, or were stopped meanwhile.
        """
        while sum(worker.ready for worker in self.workers) < self._limits.workers:
            if self._stopping:
                raise self._given_up or HostDown(self._host, "all", "it was stopped")
            await self._change()

    # The end

    async def stop(self, timeout: float) -> None:
        """End all workers, with their processes, and wait until they are gone."""
        self._stopping = True
        self._tell()
        for worker in tuple(self.workers):
            worker.stop(timeout)
        while self.workers:
            await self._change()

    def destroy(self, cause: str) -> None:
        """End all workers by force."""
        self._stopping = True
        self._tell()
        for worker in tuple(self.workers):
            worker.destroy(cause)
