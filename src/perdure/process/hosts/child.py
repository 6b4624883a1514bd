"""The inside of a child OS process: a loop, a runtime, and the wire to the parent.

It ends when the parent says so, and when the parent is gone: nothing is ever left behind.
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
from perdure.process.hosts import signals
from perdure.process.hosts.node import Node
from perdure.process.hosts.pickling import MISSING, dump_call, load_call
from perdure.process.hosts.proxy import Wire
from perdure.process.hosts.remote_host import FarHost
from perdure.process.hosts.wire import SocketWire
from perdure.process.loop import new_loop
from perdure.process.process import Process
from perdure.process.relations import Elsewhere, Entry, Names
from perdure.process.runtime import Runtime, close_loop

# What code in an OS process logs is logged by its parent, as the program has configured it.


class LogRelay(logging.Handler):
    """Sends records to the parent."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, as text: its arguments may be anything."""
        try:
            self._wire.post(signals.Log(_told(record)))
        except Exception:  # noqa: BLE001 - a log must not break what it logs
            self.handleError(record)


def _told(record: logging.LogRecord) -> dict[str, Any]:
    told = {
        key: value for key, value in vars(record).items() if isinstance(value, str | int | float)
    }
    told |= {"msg": record.getMessage(), "args": None, "exc_info": None}
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        told["exc_text"] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return told


# The names of the program, as an OS process knows them.
#
# The first node is the authority: to take a name is to ask it, and to wait for its answer.
# To look a name up is to look at the copy, which the first node keeps up to date:
# a change arrives before anything that its cause could make somebody say.


class ReplicaNames(Names):
    """A copy of the table of names."""

    def __init__(self, wire: SocketWire, names: dict[str, Pid]) -> None:
        super().__init__()
        self._wire = wire
        self._numbers = count(1)
        for name, pid in names.items():
            self.given(name, pid)

    def claim(self, name: str, process: Process) -> Process | None:
        """Ask the first node for a name."""
        holder = self.get(name)
        if holder is not None:
            return holder
        number = next(self._numbers)
        answer = self._wire.ask_now(signals.Claim(number, name, process.pid), number)
        if answer.holder is not None:
            raise NameTaken(name, answer.holder)
        self[name] = process
        return None

    def free(self, name: str) -> Process | None:
        """Ask the first node to free a name."""
        number = next(self._numbers)
        answer = self._wire.ask_now(signals.Unclaim(number, name), number)
        holder = self.pop(name, None)
        target: Any = None if answer.holder is None else answer.holder.target
        return holder or target

    def let_go(self, name: str, process: Process) -> None:
        """Tell the first node that the holder of a name dies."""
        if self.get(name) is process:
            del self[name]
            self._wire.post(signals.NameGone(name, process.pid))

    # What the first node tells

    def given(self, name: str, pid: Pid) -> None:
        """Take note of a name."""
        holder: Process | None = pid.target
        if holder is None:
            return
        self[name] = holder
        if not isinstance(holder, Elsewhere) and name not in (holder.tie().names or ()):
            holder.tie().add_name(name)

    def gone(self, name: str, pid: Pid) -> None:
        """Take note that a process has a name no more; another may have it by now."""
        holder = self.get(name)
        if holder is None or holder.pid is not pid:
            return
        del self[name]
        if holder.bonds is not None and name in (holder.bonds.names or ()):
            holder.bonds.drop_name(name)


# The functions that are spawned by an id, as a child OS process knows them.

Packed = dict[str, tuple[str | None, bytes]]  # the default host, and the call


def pack_entries(entries: Mapping[str, Entry]) -> Packed:
    """Pack the table for a child; what cannot cross is left out, for it could not run there."""
    packed: Packed = {}
    for id, entry in entries.items():
        try:
            packed[id] = entry.host, dump_call(entry.function, entry.args, {})
        except NotPortable:
            continue
    return packed


class ReplicaEntries(dict[str, Entry]):
    """The table in a child; a function is imported when it is first asked for."""

    def __init__(self, packed: Packed, wire: Any) -> None:
        super().__init__()
        self._packed = packed
        self._wire = wire

    def get(self, id: str, default: Any = None) -> Any:
        """Give an entry."""
        if id not in self and id in self._packed:
            host, call = self._packed[id]
            function, args, _ = load_call(call, self._wire)
            self[id] = Entry(function, host, args)
        return super().get(id, default)

    def __iter__(self) -> Any:
        """Go through all ids, imported or not."""
        return iter(self._packed)


_QUEUE_SIZE = 65_536  # signals that may wait on the way to the parent
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

# What a child does not heed: the parent decides. They are blocked until it can ignore them.
UNHEARD = (signal.SIGINT, signal.SIGTERM)

# The status of a child that ends itself.
OUT_OF_MEMORY = 71  # there is none left even to tell of an end
ALONE = 72  # its wire is cut: the parent is gone


def main(
    fd: int,
    make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop,
    make_runtime: Callable[[asyncio.AbstractEventLoop], Runtime] = lambda _: Runtime(),
) -> None:
    """Be a worker until the parent says otherwise."""
    _die_with_parent()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What is printed is seen at once, and by whole lines, whatever PYTHONUNBUFFERED says.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)  # pyright: ignore[reportUnknownMemberType]
    # Handlers, not SIG_IGN, which the programs that a process starts would inherit.
    for number in UNHEARD:
        signal.signal(number, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, UNHEARD)
    os.set_inheritable(fd, False)
    sock = socket.socket(fileno=fd)
    gc.collect()
    gc.freeze()  # what is imported is never garbage: do not look at it again and again
    loop = make_loop()
    loop.set_exception_handler(_on_loop_error)
    try:
        loop.run_until_complete(_live(sock, make_runtime(loop)))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    finally:
        close_loop(loop, 1.0)
    logging.shutdown()


def _ignore(*_: object) -> None:
    """Take note of a signal, and do nothing."""


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End if there is no memory for our own work: nothing that is promised can be kept."""
    if isinstance(context.get("exception"), MemoryError):
        os._exit(OUT_OF_MEMORY)
    loop.default_exception_handler(context)


def _die_with_parent() -> None:
    """Ask the system to kill us when the parent dies, should our own loop be blocked then."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


async def _live(sock: socket.socket, runtime: Runtime) -> None:
    worker = ChildWorker(asyncio.get_running_loop(), sock, runtime)
    timeout = await worker.stop_asked
    await worker.runtime.stop(timeout)
    worker.close()


class MainModule:
    """The main module of the program, imported when something of it is first needed."""

    def __init__(self, preparation: Mapping[str, Any]) -> None:
        self._main = {key: preparation[key] for key in preparation if key.startswith("init_main")}
        spawn.prepare({key: preparation[key] for key in preparation if key not in self._main})

    def load(self) -> bool:
        """Import it, under another name, as `multiprocessing` does; tell whether that is new."""
        main, self._main = self._main, {}
        spawn.prepare(main)
        return bool(main)


class ChildWorker:
    """The worker, inside."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        runtime: Runtime,
    ) -> None:
        self.stop_asked: asyncio.Future[float] = loop.create_future()
        self.runtime = runtime
        self.runtime.open(loop)
        self.node = Node(self.runtime)
        self.wire = SocketWire(self.node, sock, "the parent", _QUEUE_SIZE)
        self.wire.is_home = True
        self.wire.on_closed = _parent_is_gone
        self.node.home = self.wire
        self.node.handlers |= {
            signals.Begin: lambda _, told: self.open(told),
            signals.Stop: self._on_stop,
            signals.Ping: lambda wire, told: wire.post(signals.Pong(told.number)),
        }

    def open(self, begin: signals.Begin) -> None:
        """Become what the parent says."""
        runtime, node = self.runtime, self.node
        runtime.use(begin.settings)
        runtime.host_name = begin.worker
        runtime.stopping = Shutdown(f"host {begin.host!r} stops")
        runtime.names = names = ReplicaNames(self.wire, begin.names)
        runtime.entries = ReplicaEntries(begin.entries, self.wire)
        self._host = begin.host
        self._on_hosts(begin.hosts)
        node.handlers |= {
            signals.Hosts: lambda _, told: self._on_hosts(told.names),
            signals.NameGiven: lambda _, told: names.given(told.name, told.pid),
            signals.NameGone: lambda _, told: names.gone(told.name, told.pid),
        }
        main_module = MainModule(begin.preparation)
        MISSING.append(main_module.load)
        self.wire.post(signals.Ready())
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(LogRelay(self.wire))

    def _on_hosts(self, names: list[str]) -> None:
        self.runtime.hosts.clear()
        self.runtime.hosts.update(
            {name: FarHost(name, self.node, near=name == self._host) for name in names}
        )

    def _on_stop(self, _: object, told: signals.Stop) -> None:
        if not self.stop_asked.done():
            self.stop_asked.set_result(told.timeout)

    def close(self) -> None:
        """Say goodbye when all has been said."""
        self.wire.on_closed = lambda: None
        self.node.close(HostDown(self._host, self.runtime.host_name, "it was stopped"))
        self.wire.say_last(signals.Stopped())
        self.runtime.close()


def _parent_is_gone() -> None:
    """End at once: nobody is left who could want anything."""
    os._exit(ALONE)
