"""The workers of a host, as the host sees them: loops in threads, or in child OS processes.

A worker is started, gets processes, and ends at some point: stopped, killed, or by itself.
It notifies its host exactly once, by `on_down`, and only then are its processes counted as dead.
The `WorkerPool` picks the worker for the next process, replaces those that died, and gives up when
too many die in too short a time.

Nothing waits for a worker for ever. An OS process that does not stop is killed, one whose loop does
not answer pings is killed too, and a thread, which cannot be killed, is abandoned.
"""

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
from perdure.process.channel import Channel, try_send
from perdure.process.event import ExitResult
from perdure.process.hosts.child import (
    IGNORED_SIGNALS,
    OUT_OF_MEMORY,
    PARENT_GONE,
    pickle_spawn_ids,
)
from perdure.process.hosts.node import Node, Proxy, Wire, share_processes
from perdure.process.hosts.root_node import RootNode
from perdure.process.hosts.signals import (
    InitWorkerSignal,
    PingSignal,
    StopWorkerSignal,
    WorkerStoppedSignal,
)
from perdure.process.hosts.wire import SocketWire
from perdure.process.runtime import LoopRuntime, close_loop


class WorkerOptions(NamedTuple):
    """What a worker needs to know about its host."""

    host: str
    queue_size: int
    blocked_after: float | None
    kill_after: float | None


class HostWorker(Protocol):
    """A loop in a thread or in a child OS process."""

    label: str
    load: int  # processes that were placed on it and live
    ready: bool
    being_killed: bool  # whatever is placed on it now dies with it
    ended_on_purpose: bool  # killed to end a process in it: no failure of its own

    @property
    def wire(self) -> Wire:
        """The wire to it."""
        ...

    def start(self) -> None:
        """Start it; `on_ready` or `on_down` is called later."""
        ...

    def stop(self, timeout: float, *, interrupt: bool) -> None:
        """Let it end its processes and itself; `on_down` is called at the end."""
        ...

    def destroy(self, cause: str) -> None:
        """Forcibly end it, as far as possible; `on_down` is called."""
        ...

    def reap(self) -> None:
        """Forcibly end it and wait, because the program's first loop ends."""
        ...


OnReady = Callable[[HostWorker], object]
OnDown = Callable[[HostWorker, str | None], object]
"""Called once, when a worker has ended: with the cause, or with None if it was stopped."""


def count_in(worker: HostWorker, proxy: Proxy) -> None:
    """Count a process towards the load of a worker until it ends."""
    worker.load += 1

    def leave() -> None:
        worker.load -= 1

    proxy.on_end = leave


# The pool

WORKER_UP = ("perdure", "host", "worker", "up")
WORKER_DOWN = ("perdure", "host", "worker", "down")

# Seconds until the next attempt to start a worker that could not be started.
_RETRY_START = 0.1

NewWorker = Callable[[str, OnReady, OnDown], HostWorker]

# Labels are never used twice: they are part of the pids that a worker makes.
_labels = count(1)


class HostLimits(NamedTuple):
    """The bounds of a host."""

    workers: int
    max_processes: int | None
    dedicated: bool
    max_restarts: int
    max_seconds: float


class WorkerPool:
    """The workers of one running host."""

    def __init__(
        self, runtime: LoopRuntime, host: str, limits: HostLimits, new_worker: NewWorker
    ) -> None:
        self.workers: list[HostWorker] = []
        self.failure: Channel[HostDown] = Channel(1)  # has a value when it gives up
        self._runtime = runtime
        self._host = host
        self._limits = limits
        self._new_worker = new_worker
        self._history = RestartHistory(Intensity(limits.max_restarts, limits.max_seconds))
        self._stopping = False
        self._given_up: HostDown | None = None  # why it gave up
        self._change_waiters: list[asyncio.Future[None]] = []

    def start(self) -> None:
        """Start all workers.

        Raises:
            HostDown: The system does not allow it.
        """
        for _ in range(self._limits.workers):
            self._start_one()

    def _start_one(self) -> HostWorker:
        label = f"{self._host}.{next(_labels)}"
        worker = self._new_worker(label, self._on_ready, self._on_down)
        try:
            worker.start()
        except (OSError, RuntimeError) as error:  # no more processes, descriptors or threads
            raise HostDown(self._host, label, f"it could not be started: {error}") from error
        self.workers.append(worker)
        return worker

    def pick(self) -> HostWorker:
        """Return the worker with the fewest processes; among equals, the least recently used.

        Raises:
            SpawnError: The host accepts no more processes.
        """
        limit = self._limits.max_processes
        if self._stopping:
            raise SpawnError(f"host {self._host!r} is stopping")
        if limit is not None and sum(worker.load for worker in self.workers) >= limit:
            raise SpawnError(f"host {self._host!r} is full: it has {limit} processes")
        worker = self._least_loaded()
        if worker is None:
            raise SpawnError(
                f"all {self._limits.workers} workers of host {self._host!r} have a process, "
                "and each is dedicated to one"
            )
        self.workers.remove(worker)
        self.workers.append(worker)
        return worker

    def _least_loaded(self) -> HostWorker | None:
        """Return the worker with the fewest processes; None if all are full."""
        able = [each for each in self.workers if not each.being_killed]
        free = [each for each in able if not each.load] if self._limits.dedicated else able
        if free:
            return min(free, key=lambda each: each.load)
        if len(able) == self._limits.workers:
            return None
        try:
            return self._start_one()  # the successor of one that is being killed
        except HostDown as error:
            raise SpawnError(str(error)) from error

    # Workers come and go

    def _on_ready(self, worker: HostWorker) -> None:
        telemetry.execute(WORKER_UP, {}, {"host": self._host, "worker": worker.label})
        self._changed()

    def _on_down(self, worker: HostWorker, cause: str | None) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
        telemetry.execute(
            WORKER_DOWN, {}, {"host": self._host, "worker": worker.label, "cause": cause}
        )
        self._replace(
            worker.label, cause or "it ended by itself", counts=not worker.ended_on_purpose
        )
        self._changed()

    def _replace(self, label: str, cause: str, *, counts: bool = True) -> None:
        if self._stopping:
            return
        if counts and self._history.record(self._runtime.loop.time()):
            self._give_up(label, cause)
        elif len(self.workers) < self._limits.workers:  # otherwise it was replaced already
            try:
                self._start_one()
            except HostDown as error:
                self._runtime.loop.call_later(
                    _RETRY_START, self._replace, error.worker, error.cause
                )

    def _give_up(self, label: str, cause: str) -> None:
        why = f"{cause}; more than {self._limits.max_restarts} workers died within max_seconds"
        self._stopping = True
        self._given_up = HostDown(self._host, label, why)
        try_send(self.failure, self._given_up)
        self._changed()

    def _changed(self) -> None:
        waiters, self._change_waiters = self._change_waiters, []
        for each in waiters:
            if not each.done():
                each.set_result(None)

    async def _next_change(self) -> None:
        change = self._runtime.loop.create_future()
        self._change_waiters.append(change)
        await change

    async def all_ready(self) -> None:
        """Wait until each worker runs.

        Raises:
            HostDown: They cannot be started, or were stopped meanwhile.
        """
        while sum(worker.ready for worker in self.workers) < self._limits.workers:
            if self._stopping:
                raise self._given_up or HostDown(self._host, "all", "it was stopped")
            await self._next_change()

    # The end

    async def stop(self, timeout: float, *, interrupt: bool) -> None:
        """End all workers, with their processes, and wait until they are gone."""
        self._stopping = True
        self._changed()
        for worker in tuple(self.workers):
            worker.stop(timeout, interrupt=interrupt)
        while self.workers:
            await self._next_change()

    def destroy(self, cause: str) -> None:
        """Forcibly end all workers."""
        self._stopping = True
        self._changed()
        for worker in tuple(self.workers):
            worker.destroy(cause)


# A worker in a thread

_log = logging.getLogger("perdure.host")

_JOIN = 1.0  # seconds that a thread gets to end when its loop has ended all processes
_LAST_JOIN = 0.2  # and when the program ends, which abandons its threads anyway


class ThreadWorker:
    """A worker that is a thread of this program, with a loop of its own."""

    def __init__(
        self,
        root: RootNode,
        options: WorkerOptions,
        label: str,
        on_ready: OnReady,
        on_down: OnDown,
    ) -> None:
        self.label = label
        self.load = 0
        self.ready = False
        self.being_killed = False  # a thread cannot be killed
        self.ended_on_purpose = False
        self._options = options
        self._root = root
        self._on_ready = on_ready
        self._on_down = on_down
        self._opened = threading.Event()
        self._failure: OSError | None = None  # why it has no loop
        self._timer: asyncio.TimerHandle | None = None
        self._cause: str | None = None  # why we ended it ourselves
        self._down = False
        self._thread = threading.Thread(target=self._run, name=label, daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until it has a loop.

        Raises:
            OSError: The loop cannot be created.
            RuntimeError: No more threads can be started.
        """
        share_processes(self._root.runtime)
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            raise self._failure
        self.wire = self._root.hub.between(self._root, self.node)
        self._root.workers[self.wire] = self
        self.ready = True
        self._on_ready(self)

    def stop(self, timeout: float, *, interrupt: bool) -> None:
        """Let it end its processes; if its loop is blocked, it is abandoned."""
        self.wire.post(StopWorkerSignal(timeout, interrupt))
        self._abandon_after(timeout, "it is blocked")

    def destroy(self, cause: str) -> None:
        """Kill its processes; the thread itself cannot be killed."""
        if not self._down:
            self._cause = self._cause or cause
            self.wire.post(StopWorkerSignal(0.0))
            self._abandon_after(0.0, cause)

    def _abandon_after(self, timeout: float, cause: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        limit = timeout + self._root.runtime.settings.abandon_after + _JOIN
        self._timer = self._root.runtime.loop.call_later(limit, self._give_up, cause)

    def _give_up(self, cause: str) -> None:
        _log.warning("the thread %s does not end (%s) and is abandoned", self.label, cause)
        self._is_down(cause)

    def reap(self) -> None:
        """Wait a moment for its end, because the loop that would be notified ends."""
        self.destroy("the program ends")
        self._thread.join(_LAST_JOIN)
        self._is_down(self._cause)

    def on_stopped(self) -> None:
        """Note that its loop has ended all processes."""
        self._thread.join(_JOIN)
        self._is_down(self._cause)

    def _is_down(self, cause: str | None) -> None:
        if self._down:
            return
        self._down = True
        if self._timer is not None:
            self._timer.cancel()
        self._root.workers.pop(self.wire, None)
        reason = HostDown(self._options.host, self.label, cause or "it was stopped")
        self._root.wire_lost(self.wire, reason)
        self._root.hub.leave(self.node, reason)
        self._on_down(self, cause)

    # In the thread

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the thread."""
        return asyncio.new_event_loop()

    def make_runtime(self) -> LoopRuntime:
        """Return the runtime of the thread."""
        root = self._root.runtime
        return LoopRuntime(root.settings, clock=root.clock)

    def _run(self) -> None:
        root, runtime = self._root.runtime, self.make_runtime()
        runtime.host_name = self._options.host
        runtime.stop_reason = Shutdown(f"host {self._options.host!r} stops")
        runtime.names, runtime.spawn_ids, runtime.hosts = root.names, root.spawn_ids, root.hosts
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

    async def _live(self, runtime: LoopRuntime) -> None:
        loop = asyncio.get_running_loop()
        runtime.open(loop)
        if (watch := self._root.runtime.watch) is not None:
            watch.add(runtime)
            runtime.at_close(lambda: watch.remove(runtime))
        share_processes(runtime)
        self.node = node = Node(runtime)
        hub = self._root.hub
        hub.join(node)
        node.home = hub.between(node, self._root)
        stop: asyncio.Future[StopWorkerSignal] = loop.create_future()

        def on_stop(_: object, wanted: StopWorkerSignal) -> None:
            if stop.done():
                runtime.kill_all()  # the second time by force
            else:
                stop.set_result(wanted)

        node.handlers[StopWorkerSignal] = on_stop
        self._opened.set()
        try:
            wanted = await stop
            await runtime.stop(wanted.timeout, interrupt=wanted.interrupt)
        finally:
            node.close(HostDown(self._options.host, self.label, "it was stopped"))
            runtime.close()
            node.home.post(WorkerStoppedSignal())


# A worker in an OS process

BLOCKED_EVENT = ("perdure", "host", "blocked")

# What a child runs first. `perdure` loads its names on first use, so a worker pays for the kernel
# alone.
_BOOT = """
import sys

sys.path[:] = {path!r}
from {entry} import main
main({fd})
"""

_POLL = 0.02  # seconds between checks for a child's death, where the system has no pidfd
_EXIT_TIME = 2.0  # seconds that a child gets to exit when it has ended all processes


class OsWorker:
    """A worker that is a child OS process."""

    entry = "perdure.process.hosts.child"  # the module whose `main` the child runs

    def __init__(
        self,
        root: RootNode,
        options: WorkerOptions,
        label: str,
        on_ready: OnReady,
        on_down: OnDown,
    ) -> None:
        self.label = label
        self.load = 0
        self.ready = False
        self.being_killed = False
        self.ended_on_purpose = False
        self._root = root
        self._options = options
        self._on_ready = on_ready
        self._on_down = on_down
        self._loop = root.runtime.loop
        self._child: subprocess.Popen[bytes]
        self._cause: str | None = None  # why we ended it ourselves
        self._stopped = False
        self._down = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._pidfd: int | None = None
        self._oom_kills = oom_kills()
        self._pings = 0
        self._ponged = 0

    @property
    def pid(self) -> int:
        """The id of the OS process."""
        return self._child.pid

    # Begin

    def start(self) -> None:
        """Start the child; signals may be posted at once, and are read when it is ready."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = _start_child(theirs.fileno(), self.entry)
        except BaseException:
            ours.close()
            raise
        self.wire = SocketWire(self._root, ours, self._options.host, self._options.queue_size)
        self.wire.on_closed = self._on_closed
        self.wire.on_garbage = self._on_garbage
        self.wire.on_force = self._force
        abandon_after = self._root.runtime.settings.abandon_after
        self.wire.grace = self._options.kill_after or 2 * abandon_after
        self._root.workers[self.wire] = self
        self.wire.post(self._init_signal())
        self._watch()

    def _init_signal(self) -> InitWorkerSignal:
        runtime = self._root.runtime
        names = self._root.add_replica(self.wire)
        return InitWorkerSignal(
            self.label,
            self._options.host,
            runtime.settings,
            names,
            list(runtime.hosts),
            pickle_spawn_ids(runtime.spawn_ids),
            _preparation(self.label),
        )

    def on_ready(self) -> None:
        """Note that its loop runs."""
        self.ready = True
        self._on_ready(self)
        if self._options.blocked_after is not None:
            self._ping(self._options.blocked_after)

    # Does its loop respond?

    def _ping(self, limit: float) -> None:
        """Ping its loop, twice within the time in which an answer must come."""
        self._pings += 1
        self.wire.post(PingSignal(self._pings))
        self._later("ping", limit / 2, self._check_pong, limit)

    def _check_pong(self, limit: float) -> None:
        if self._ponged == self._pings:
            self._ping(limit)
        elif self._pings - self._ponged >= 2:  # noqa: PLR2004 - both halves of the time
            telemetry.execute(
                BLOCKED_EVENT,
                {"seconds": limit},
                {"host": self._options.host, "worker": self.label},
            )
            self.destroy(f"its loop was blocked for {limit:g} s")
        else:
            self._pings += 1
            self._later("ping", limit / 2, self._check_pong, limit)

    def on_pong(self, number: int) -> None:
        """Note that its loop has answered."""
        self._ponged = self._pings if number else self._ponged

    # End

    def stop(self, timeout: float, *, interrupt: bool) -> None:
        """Let it end its processes and itself; kill it when that takes too long."""
        self.wire.post(StopWorkerSignal(timeout, interrupt))
        limit = timeout + self._root.runtime.settings.abandon_after
        self._later("stop", limit, self.destroy, "it did not stop in time")

    def on_stopped(self) -> None:
        """Note that it has ended all processes, and exits now."""
        self._stopped = True
        self._later("stop", _EXIT_TIME, self.destroy, "it did not end")

    def destroy(self, cause: str) -> None:
        """Kill it."""
        if self._down:
            return
        self.being_killed = True
        if self._cause is None:
            self._cause = cause
        with suppress(ProcessLookupError):
            self._child.kill()

    def reap(self) -> None:
        """Kill it, and handle its end at once, because the loop that would notice it ends."""
        self.destroy("the program ends")
        self._child.wait()
        self._on_exit()

    def _force(self, proxy: Proxy, detail: object) -> None:
        """End a process that a kill did not end, by killing the child if it runs nothing else."""
        if self.load <= 1 or self._options.kill_after is not None:
            proxy.end(ExitResult(None, Killed(detail)))
            self.ended_on_purpose = True
            self.destroy(f"to end {proxy.pid}, which never waits")
        else:
            self._root.report_lost(
                f"control over process {proxy.pid}, which never waits: it is abandoned, "
                "for others run in the same OS process (use dedicated=True for such work)",
                Killed(detail),
            )
            proxy.abandon(detail)

    # Its death

    def _watch(self) -> None:
        """Watch for the end of the child."""
        try:
            self._pidfd = os.pidfd_open(self._child.pid)
        except (AttributeError, OSError):
            self._poll_exit()
        else:
            self._loop.add_reader(self._pidfd, self._on_exit)

    def _poll_exit(self) -> None:
        if self._child.poll() is None:
            self._later("look", _POLL, self._poll_exit)
        else:
            self._on_exit()

    def _on_closed(self) -> None:
        """Note that its end of the wire is closed; whatever it does now, it must end."""
        if not self._down:
            self._later("closed", _EXIT_TIME, self._end_closed)

    def _on_garbage(self) -> None:
        """Kill it: it sent invalid data, so nothing that follows can be understood."""
        self.destroy("it sent something that is not a signal")

    def _end_closed(self) -> None:
        if self._child.poll() is None:
            self.destroy("it closed its connection")

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
        for timer in self._timers.values():  # also those that its last signals have set
            timer.cancel()
        self._root.remove_replica(self.wire)
        self._root.workers.pop(self.wire, None)
        short = oom_kills() > self._oom_kills
        cause = None if self._stopped and not status else self._cause or cause_of(status, short)
        reason = HostDown(self._options.host, self.label, cause or "it was stopped")
        self._root.wire_lost(self.wire, reason)
        self._on_down(self, cause)

    def _later(self, what: str, delay: float, act: Callable[..., object], *args: Any) -> None:
        if what in self._timers:
            self._timers[what].cancel()
        self._timers[what] = self._loop.call_later(delay, act, *args)


_OWN_CAUSES = {
    OUT_OF_MEMORY: "it ran out of memory",
    PARENT_GONE: "its connection to the parent broke",
}


def cause_of(status: int, memory_was_short: bool = False) -> str:  # noqa: FBT001, FBT002
    """Return how an OS process ended, as text."""
    if status in _OWN_CAUSES:
        return _OWN_CAUSES[status]
    if status >= 0:
        return f"it ended by itself with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    by_system = memory_was_short and -status == signal.SIGKILL
    hint = "; the system ran out of memory meanwhile" if by_system else ""
    return f"killed by signal {-status} ({name}){hint}"


def oom_kills() -> int:
    """Return how many processes the system has killed for lack of memory; 0 if unknown."""
    with suppress(OSError), open("/proc/vmstat", "rb") as counters:  # noqa: PTH123 - no disk is read
        for line in counters:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _preparation(label: str) -> dict[str, Any]:
    """Return the module path and the main module, as `multiprocessing` does."""
    preparation: dict[str, Any] = get_preparation_data(label)
    preparation.pop("authkey", None)  # it is no child of multiprocessing's
    return preparation


def _start_child(fd: int, entry: str) -> "subprocess.Popen[bytes]":
    """Start a fresh interpreter that runs the `main` of a module, with its end of the wire."""
    code = _BOOT.format(path=sys.path, entry=entry, fd=fd)
    # As `multiprocessing` starts its children: with the options of this interpreter.
    options_of: Any = getattr(subprocess, "_args_from_interpreter_flags")  # noqa: B009
    flags: list[str] = options_of()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)  # which a child inherits
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=[fd],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
