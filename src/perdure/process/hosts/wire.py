"""Wires between nodes: within one interpreter, and to a child OS process.

Between two loops of one interpreter signals are handed over as they are. To a child OS process
they go as bytes over a socket pair, many in one frame: what is posted in one turn of the scheduler
is sent by one system call. To that end the socket wire joins the scheduler's queue as if it were
a process; its step sends what the processes before it have posted.
"""

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from threading import Lock, get_ident
from typing import Any

from perdure.base.errors import HostBusy, Killed, NotPortable
from perdure.base.pid import Pid
from perdure.process.event import ExitResult
from perdure.process.hosts.frame import InvalidFrame, Unframer, frame
from perdure.process.hosts.node import Node, Proxy
from perdure.process.hosts.packing import (
    UNPACKERS,
    Item,
    is_blocking_answer,
    is_request,
    pack_signal,
    substitute,
    unpack_any,
    unpack_signal,
)
from perdure.process.hosts.pickling import set_pid_resolver
from perdure.process.hosts.signals import ExitedSignal, Signal, WatchSignal, WireLostSignal
from perdure.process.loop import expectation
from perdure.process.request import Request
from perdure.process.waiter import RUNNING_TASKS, WAITING

_log = logging.getLogger("perdure.host")


class ThreadWire:
    """A wire from one node to another; `back` is the opposite direction."""

    def __init__(self, hub: "Hub", here: Node, there: Node, limit: int) -> None:
        self._hub = hub
        self.here = here
        self.there = there
        self.back: ThreadWire = self
        # The other loop abandons a process that refuses to end; this is for a loop that is blocked.
        self.grace: float | None = 2 * here.runtime.settings.abandon_after
        self.unanswered: dict[int, Request[Any]] = {}  # requests of the other loop
        self._limit = limit

    def post(self, signal: Signal) -> None:
        """Send a signal that must arrive."""
        self.there.receive_from_thread(signal, self.back)

    def offer(self, signal: Signal) -> None:
        """Send a signal, unless too many are queued already."""
        if self.there.waiting >= self._limit:
            raise HostBusy(self.there.runtime.host_name, self.there.waiting)
        self.post(signal)

    def force(self, proxy: Proxy, detail: object) -> None:
        """Abandon a process that refuses to end, since a thread cannot be killed."""
        _log.warning(
            "process %s was killed and did not end: its thread is blocked; it is abandoned.\n"
            "Code that never waits belongs on a host of the kind 'os'.",
            proxy.pid,
        )
        proxy.abandon(detail)
        ended = ExitedSignal(proxy.pid, ExitResult(None, Killed(detail)))
        for wire in self._hub.wires_to(self.there):
            wire.here.receive_from_thread(ended, wire)  # for it: a blocked loop cannot tell them


class Hub:
    """The wires between all nodes of one interpreter, made on first use."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._wires: dict[tuple[Node, Node], ThreadWire] = {}

    def between(self, here: Node, there: Node) -> ThreadWire:
        """Return the wire from one node to another."""
        with self._lock:
            wire = self._wires.get((here, there))
            if wire is None:
                wire = self._wires[here, there] = ThreadWire(self, here, there, self._limit)
                back = self._wires[there, here] = ThreadWire(self, there, here, self._limit)
                wire.back, back.back = back, wire
            return wire

    def join(self, node: Node) -> None:
        """Connect a node to all others."""

        def route(pid: Pid) -> ThreadWire | None:
            target = pid.target
            there = None if target is None else target.runtime.node
            return None if there is None or there is node else self.between(node, there)

        node.enable_threads(route)

    def wires_to(self, node: Node) -> list[ThreadWire]:
        """Return the wires of all nodes that know a node."""
        with self._lock:
            return [wire for wire in self._wires.values() if wire.there is node]

    def leave(self, node: Node, reason: BaseException) -> None:
        """Forget a node that has ended or is abandoned, and notify all nodes that know it."""
        for wire in self.wires_to(node):
            wire.here.receive_from_thread(WireLostSignal(reason), wire)
        with self._lock:
            for pair in [pair for pair in self._wires if node in pair]:
                del self._wires[pair]


# Bytes per read. A larger buffer would be newly allocated from the system at each read, which costs
# more than everything else.
_READ = 1 << 16
_FRAME_SIGNALS = 4096  # in one frame, so that the other end begins before all has arrived
_LARGE = _READ  # a signal of more bytes is sent without waiting for others
_LONG_STEP = 0.002  # seconds; after a longer step, a flush goes before the steps of others
_UNSENT_BYTES = 1 << 26  # that may wait in our memory because the other end does not read


class SocketWire:
    """One end of the wire to another OS process."""

    state = WAITING  # for the scheduler: it has no coroutine to be sent on
    must_cancel = False

    def __init__(self, node: Node, sock: socket.socket, label: str, limit: int) -> None:
        """Begin to read.

        Args:
            node: The node at this end.
            sock: The socket, which belongs to the wire from now on.
            label: Names the host in errors.
            limit: How many signals may wait here before senders get `HostBusy`.
        """
        self.node = node
        self.label = label
        self.is_home = False  # leads to the root node, which knows everybody
        self.closed = False
        self.on_closed: Callable[[], object] = lambda: None
        self.on_garbage: Callable[[], object] = lambda: None
        self.on_force: Callable[[Proxy, object], object] | None = None
        self.grace: float | None = None
        self._limit = limit
        self._loop = node.runtime.loop
        self._thread = get_ident()
        self._expect_answer = expectation(self._loop)
        self._sock = sock
        self._queued = False  # whether it is in the scheduler's queue
        self._queued_at = 0.0
        self._posted: list[bytes] = []  # signals that are not in a frame yet
        # Frames that the other end does not take yet; views, so that long ones are not copied.
        self._unsent: deque[tuple[memoryview, int]] = deque()
        self._waiting = self._waiting_bytes = 0  # signals in them, and bytes
        self._unframer = Unframer()
        self.unanswered: dict[int, Request[Any]] = {}  # requests of the other end
        self._early: list[Item] = []  # came while this loop was blocked for an answer
        sock.setblocking(False)
        # Not in the context of the process that happens to start a worker.
        Context().run(self._loop.add_reader, sock.fileno(), self._on_readable)

    # Out

    def post(self, signal: Signal) -> None:
        """Send a signal that must arrive."""
        if self.closed:
            return
        # Packed now: an error is raised to the sender, and the value may change later.
        packed = pack_signal(signal)
        if get_ident() == self._thread:
            self._add(packed)
        else:  # an offloaded call sends a message, or logs
            with suppress(RuntimeError):  # the loop is closed: nobody reads it any more
                self._loop.call_soon_threadsafe(self._add, packed, context=Context())

    def _add(self, packed: bytes) -> None:
        self._posted.append(packed)
        if not self._queued:
            self._queue_up()
        elif len(self._posted) >= _FRAME_SIGNALS or len(packed) > _LARGE:
            self.flush()

    def _queue_up(self) -> None:
        """Join the scheduler's queue; at the front, if steps are long here."""
        self._queued = True
        now, scheduler = self._loop.time(), self.node.runtime.scheduler
        if now - self._queued_at > _LONG_STEP:
            scheduler.ready.appendleft(self)
        else:
            scheduler.ready.append(self)
        self._queued_at = now
        if not scheduler.turn_scheduled:
            scheduler.schedule_turn()

    def offer(self, signal: Signal) -> None:
        """Send a signal, unless too many are queued already."""
        if self._unsent:
            waiting = self._waiting + len(self._posted)
            if waiting >= self._limit or self._waiting_bytes > _UNSENT_BYTES:
                raise HostBusy(self.label, waiting)
        self.post(signal)

    def step(self) -> None:
        """Send what was posted in this turn; the scheduler calls it like a step of a process."""
        self._queued = False
        if self._posted:
            self.flush()

    def flush(self) -> None:
        """Send all that is posted, as far as the other end takes it."""
        posted, self._posted = self._posted, []
        data = frame(posted)
        sent = 0 if self._unsent else self._send(data)
        self._expect_answer()
        if sent < len(data):
            self._keep(memoryview(data)[sent:], len(posted))

    def _send(self, data: bytes | memoryview) -> int:
        """Send; return how many bytes the other end has accepted."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # it is gone; what it has sent before is still to be read
            return len(data)

    def _keep(self, data: memoryview, count: int) -> None:
        """Keep a frame until the other end accepts it."""
        if not self._unsent:
            self._loop.add_writer(self._sock.fileno(), self._on_writable)
        self._unsent.append((data, count))
        self._waiting += count
        self._waiting_bytes += len(data)

    def _on_writable(self) -> None:
        while self._unsent:
            data, count = self._unsent.popleft()
            sent = self._send(data)
            self._waiting_bytes -= sent
            if sent < len(data):
                self._unsent.appendleft((data[sent:], count))
                return
            self._waiting -= count
        self._loop.remove_writer(self._sock.fileno())

    def force(self, proxy: Proxy, detail: object) -> None:
        """End a process that a kill did not end; its worker knows how."""
        if self.on_force is not None:
            self.on_force(proxy, detail)

    # In

    def resolve_pid(self, pid: Pid, *, lives_there: bool) -> None:
        """Make a proxy for a pid that is new here, unless its process must be dead.

        The root node knows every living process beyond it, so one that is new to it is dead.
        """
        if lives_there or self.is_home:
            self.node.add_proxy(pid, self, full=False)
            self.post(WatchSignal(pid, full=False))

    def _on_readable(self) -> None:
        # Processes that are woken by what has come run right here, and their answers go out at
        # once: that saves two turns of the loop. So nobody needs to ask the loop for a turn.
        scheduler = self.node.runtime.scheduler
        ready, scheduler.turn_scheduled, self._queued = scheduler.ready, True, True
        try:
            self._handle(self._read() or ())
            if len(ready) == 1:  # one request or one reply: nearly always
                RUNNING_TASKS[self._loop] = process = ready.popleft()
                process.step()
        finally:
            RUNNING_TASKS.pop(self._loop, None)
            self._queued = False
            if self._posted:
                self.flush()
            if ready:
                scheduler.turn()
            else:
                scheduler.turn_scheduled = False

    def _read(self) -> list[Item] | None:
        """Return the signals that have arrived; None if there is nothing to read."""
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if data:
            try:
                return self._unframer.feed(data)
            except InvalidFrame as invalid:
                self.on_garbage()
                self.close()
                return invalid.items
        self.close()
        return None

    def _handle(self, items: Iterable[Item]) -> None:
        set_pid_resolver(self)
        node = self.node
        for item in items:
            signal = None
            try:
                signal = UNPACKERS.get(item[0], unpack_any)(*item)
                node.handlers[type(signal)](self, signal)
            except Exception as error:  # noqa: BLE001 - of whatever class the user sent
                if signal is None:
                    self._refuse(item, error)
                else:
                    node.report_handler_error(signal)

    def handle_early(self) -> None:
        """Handle the signals that arrived while this loop was blocked for an answer."""
        early, self._early = self._early, []
        self._handle(early)

    def _refuse(self, item: Item, error: Exception) -> None:
        """Answer a signal that cannot be unpacked here, since a class in it was not found."""
        why = NotPortable(f"it cannot be unpacked in the other OS process: {error}")
        instead = substitute(item, why)
        if instead is None:
            self.node.report_lost(f"a signal of host {self.label!r}", error)
        elif is_request(item):
            self.post(instead)
        else:
            self.node.receive(self, instead)

    # A request that blocks this loop until it is answered

    def ask_now(self, question: Any, number: int) -> Any:
        """Send a request, block this loop until it is answered, and return the answer."""
        self.post(question)
        try:
            self._send_all()
            return self._answer_to(number)
        finally:
            with suppress(OSError):
                self._sock.setblocking(False)

    def _send_all(self) -> None:
        """Send everything, blocking; the socket is in blocking mode afterwards."""
        self.step()
        self._sock.setblocking(True)
        if self._unsent:
            self._sock.sendall(b"".join(data for data, _ in self._unsent))
            self._unsent.clear()
            self._waiting = self._waiting_bytes = 0

    def _answer_to(self, number: int) -> Any:
        while not self.closed:
            items = self._read() or []
            for place, item in enumerate(items):
                if is_blocking_answer(item):  # ours: there is never another
                    set_pid_resolver(self)
                    answer: Any = unpack_signal(item)
                    assert answer.number == number
                    self._early.extend(items[place + 1 :])
                    self._loop.call_soon(self.handle_early, context=Context())
                    return answer
                self._early.append(item)
        raise ConnectionError("the parent of this worker is gone")

    # The end

    def send_last(self, signal: Signal) -> None:
        """Send all that is left, and this signal last; wait until it is sent."""
        self.post(signal)
        with suppress(OSError):
            self._send_all()
        self.close()

    def drain(self) -> None:
        """Handle what the other end sent before it went away, so that nothing is lost."""
        while not self.closed and (items := self._read()) is not None:
            self._handle(items)

    def close(self) -> None:
        """Close the socket."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._posted.clear()
        self._unsent.clear()
        self.handle_early()
        self.on_closed()
