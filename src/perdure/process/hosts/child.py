"""The inside of a child OS process: a loop, a runtime, and the wire to the parent.

It ends when the parent says so, and when the parent is gone: nothing is ever left behind. Three
mechanisms ensure that, since each fails in some case: the wire is closed (the loop runs), the
system kills us with the parent (our loop is blocked), and the parent kills us (it stops in order).

A child has replicas of the program's names and spawn ids. What its code logs is logged by the
parent, as the program has configured it.
"""

import asyncio
import ctypes
import gc
import io
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from itertools import count
from multiprocessing import spawn
from typing import Any

from perdure.base.errors import HostDown, NameTaken, NotPortable, Shutdown
from perdure.base.pid import Pid
from perdure.process.hosts.node import Node, Wire
from perdure.process.hosts.pickling import IMPORT_FALLBACKS, dump_call, load_call
from perdure.process.hosts.remote_host import RemoteHost
from perdure.process.hosts.signals import (
    ClaimNameSignal,
    FreeNameSignal,
    HostsSignal,
    InitWorkerSignal,
    LogSignal,
    NameAddedSignal,
    NameRemovedSignal,
    PingSignal,
    PongSignal,
    StopWorkerSignal,
    WorkerReadySignal,
    WorkerStoppedSignal,
)
from perdure.process.hosts.wire import SocketWire
from perdure.process.loop import new_loop
from perdure.process.names import Names
from perdure.process.process import Process, RemoteProcess, SpawnTarget
from perdure.process.runtime import LoopRuntime, close_loop

_QUEUE_SIZE = 65_536  # signals that may wait on the way to the parent
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

# A child ignores these, since its parent decides. They are blocked until it can do so.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# The exit status of a child that ends itself.
OUT_OF_MEMORY = 71  # there is no memory left even to report an end
PARENT_GONE = 72  # its wire is closed


def main(
    fd: int,
    make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop,
    make_runtime: Callable[[asyncio.AbstractEventLoop], LoopRuntime] = lambda _: LoopRuntime(),
) -> None:
    """Run as a worker until the parent says otherwise."""
    _die_with_parent()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Output is flushed line by line, whatever PYTHONUNBUFFERED says.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)  # pyright: ignore[reportUnknownMemberType]
    # Handlers, not SIG_IGN, which the programs that a process starts would inherit.
    for number in IGNORED_SIGNALS:
        signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    os.set_inheritable(fd, False)
    sock = socket.socket(fileno=fd)
    gc.collect()
    gc.freeze()  # what is imported is never garbage: keep the collector from looking at it
    loop = make_loop()
    loop.set_exception_handler(_on_loop_error)
    try:
        loop.run_until_complete(_run_worker(sock, make_runtime(loop)))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    finally:
        close_loop(loop, 1.0)
    logging.shutdown()


def _ignore(*_: object) -> None:
    """Ignore a signal."""


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exit if there is no memory for the kernel's own work, since its guarantees would not hold."""
    if isinstance(context.get("exception"), MemoryError):
        os._exit(OUT_OF_MEMORY)
    loop.default_exception_handler(context)


def _die_with_parent() -> None:
    """Let the system kill this process when the parent dies, in case its loop is blocked then."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


async def _run_worker(sock: socket.socket, runtime: LoopRuntime) -> None:
    worker = ChildWorker(asyncio.get_running_loop(), sock, runtime)
    wanted = await worker.stop_wanted
    await worker.runtime.stop(wanted.timeout, interrupt=wanted.interrupt)
    worker.close()


class MainModule:
    """The main module of the program, imported on first use."""

    def __init__(self, preparation: Mapping[str, Any]) -> None:
        self._main = {key: preparation[key] for key in preparation if key.startswith("init_main")}
        spawn.prepare({key: preparation[key] for key in preparation if key not in self._main})

    def load(self) -> bool:
        """Import it under another name, as `multiprocessing` does; return whether it was needed."""
        main, self._main = self._main, {}
        spawn.prepare(main)
        return bool(main)


class ChildWorker:
    """The child's side of a worker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        runtime: LoopRuntime,
    ) -> None:
        self.stop_wanted: asyncio.Future[StopWorkerSignal] = loop.create_future()
        self.runtime = runtime
        self.runtime.open(loop)
        self.node = Node(self.runtime)
        self.wire = SocketWire(self.node, sock, "the parent", _QUEUE_SIZE)
        self.wire.is_home = True
        self.wire.on_closed = _on_parent_gone
        self.node.home = self.wire
        self.node.handlers |= {
            InitWorkerSignal: lambda _, signal: self.init(signal),
            StopWorkerSignal: self._on_stop,
            PingSignal: lambda wire, signal: wire.post(PongSignal(signal.number)),
        }

    def init(self, init: InitWorkerSignal) -> None:
        """Apply the initial state that the parent has sent."""
        runtime, node = self.runtime, self.node
        runtime.use(init.settings)
        runtime.host_name = init.worker
        runtime.stop_reason = Shutdown(f"host {init.host!r} stops")
        runtime.names = names = ReplicaNames(self.wire, init.names)
        runtime.spawn_ids = ReplicaIds(init.spawn_ids, self.wire)
        self._host = init.host
        self._on_hosts(init.hosts)
        node.handlers |= {
            HostsSignal: lambda _, signal: self._on_hosts(signal.names),
            NameAddedSignal: lambda _, signal: names.added(signal.name, signal.pid),
            NameRemovedSignal: lambda _, signal: names.removed(signal.name, signal.pid),
        }
        main_module = MainModule(init.preparation)
        IMPORT_FALLBACKS.append(main_module.load)
        self.wire.post(WorkerReadySignal())
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(LogRelay(self.wire))

    def _on_hosts(self, names: list[str]) -> None:
        self.runtime.hosts.clear()
        self.runtime.hosts.update(
            {name: RemoteHost(name, self.node, is_own=name == self._host) for name in names}
        )

    def _on_stop(self, _: object, signal: StopWorkerSignal) -> None:
        if not self.stop_wanted.done():
            self.stop_wanted.set_result(signal)

    def close(self) -> None:
        """Send what is left, and close the wire."""
        self.wire.on_closed = lambda: None
        self.node.close(HostDown(self._host, self.runtime.host_name, "it was stopped"))
        self.wire.send_last(WorkerStoppedSignal())
        self.runtime.close()


def _on_parent_gone() -> None:
    """Exit at once, since the parent is gone."""
    os._exit(PARENT_GONE)


# Replicas of what the root node knows


class ReplicaNames(Names[Process]):
    """A copy of the table of names, which the root node keeps up to date.

    A lookup is local. Taking or freeing a name asks the root node, and blocks this loop until
    it has answered: `register` is synchronous, and must not succeed on two workers at once.
    """

    def __init__(self, wire: SocketWire, names: dict[str, Pid]) -> None:
        super().__init__()
        self._wire = wire
        self._numbers = count(1)
        for name, pid in names.items():
            self.added(name, pid)

    def claim(self, name: str, process: Process) -> Process | None:
        """Ask the root node for a name; return the holder if it is taken."""
        holder = self.get(name)
        if holder is not None:
            return holder
        number = next(self._numbers)
        answer = self._wire.ask_now(ClaimNameSignal(number, name, process.pid), number)
        if answer.holder is not None:
            raise NameTaken(name, answer.holder)
        self[name] = process
        return None

    def free(self, name: str) -> Process | None:
        """Ask the root node to free a name; return its holder."""
        number = next(self._numbers)
        answer = self._wire.ask_now(FreeNameSignal(number, name), number)
        holder = self.pop(name, None)
        target: Any = None if answer.holder is None else answer.holder.target
        return holder or target

    def release(self, name: str, process: Process) -> None:
        """Tell the root node that the holder of a name is dying."""
        if self.get(name) is process:
            del self[name]
            self._wire.post(NameRemovedSignal(name, process.pid))

    # What the root node sends

    def added(self, name: str, pid: Pid) -> None:
        """Note that a process holds a name."""
        holder: Process | None = pid.target
        if holder is None:
            return
        self[name] = holder
        if not isinstance(holder, RemoteProcess) and name not in (
            holder.get_relations().names or ()
        ):
            holder.get_relations().add_name(name)

    def removed(self, name: str, pid: Pid) -> None:
        """Note that a process no longer holds a name; another may hold it by now."""
        holder = self.get(name)
        if holder is None or holder.pid is not pid:
            return
        del self[name]
        if holder.relations is not None and name in (holder.relations.names or ()):
            holder.relations.remove_name(name)


PickledIds = dict[str, tuple[str | None, bytes]]  # the default host, and the call


def pickle_spawn_ids(spawn_ids: Mapping[str, SpawnTarget]) -> PickledIds:
    """Return the table pickled for a child, without functions that cannot be pickled."""
    packed: PickledIds = {}
    for id, target in spawn_ids.items():
        try:
            packed[id] = target.host, dump_call(target.function, target.args, {})
        except NotPortable:
            continue
    return packed


class ReplicaIds(dict[str, SpawnTarget]):
    """The spawn ids in a child; a function is imported when it is first looked up."""

    def __init__(self, packed: PickledIds, wire: Any) -> None:
        super().__init__()
        self._packed = packed
        self._wire = wire

    def get(self, id: str, default: Any = None) -> Any:
        """Return the target of an id."""
        if id not in self and id in self._packed:
            host, call = self._packed[id]
            function, args, _ = load_call(call, self._wire)
            self[id] = SpawnTarget(function, host, args)
        return super().get(id, default)

    def __iter__(self) -> Any:
        """Iterate over all ids, imported or not."""
        return iter(self._packed)


# Logging


class LogRelay(logging.Handler):
    """Sends log records to the parent."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, formatted: its arguments may be anything."""
        try:
            self._wire.post(LogSignal(_plain(record)))
        except Exception:  # noqa: BLE001 - a log must not break what it logs
            self.handleError(record)


def _plain(record: logging.LogRecord) -> dict[str, Any]:
    plain = {
        key: value for key, value in vars(record).items() if isinstance(value, str | int | float)
    }
    plain |= {"msg": record.getMessage(), "args": None, "exc_info": None}
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        plain["exc_text"] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return plain
