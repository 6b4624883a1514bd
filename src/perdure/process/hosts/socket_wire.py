"""The wire between a parent and its child OS process: frames of many signals over a socket pair.

What is posted in one turn of the scheduler goes out as one frame.
A frame is its length, in four bytes, and a msgpack list of signals.
"""

import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from msgspec.msgpack import Decoder, Encoder

from perdure.base.errors import HostBusy, NotPortable
from perdure.base.pid import Pid
from perdure.process.hosts import signals
from perdure.process.hosts.codec import asks, pack_signal, substitute, unpack_signal
from perdure.process.hosts.node import Node
from perdure.process.hosts.portable import open_gate
from perdure.process.hosts.stand_in import StandIn
from perdure.process.tasklike import WAITING

_HEADER = struct.Struct(">I")
# Bytes that are read at once: a larger buffer is new memory of the system at each read,
# which costs more than all else.
_READ = 1 << 16
_FRAME_SIGNALS = 4096  # in one frame, so that the other end begins before all has arrived
_LONG_STEP = 0.002  # seconds without a flush, after which nobody waits for the steps of others
_UNSENT_BYTES = 1 << 26  # that may wait in our memory because the other end does not read

_encode = Encoder().encode
_decode = Decoder(list[Any]).decode


class SocketWire:
    """One end of the wire.

    To the scheduler it is something ready to step, in the line of processes:
    its step sends what those before it have posted.
    """

    state = WAITING  # as the scheduler asks: it has no code to go on with
    must_cancel = False

    def __init__(self, node: Node, sock: socket.socket, label: str, limit: int) -> None:
        """Begin to read.

        Args:
            node: The node at this end.
            sock: The socket, which belongs to the wire from now on.
            label: Names the host in errors.
            limit: How many signals may wait here before senders are refused.
        """
        self.node = node
        self.label = label
        self.is_home = False  # leads to the first node, which knows everybody
        self.closed = False
        self.on_closed: Callable[[], object] = lambda: None
        self.on_force: Callable[[StandIn, object], object] | None = None
        self.grace: float | None = None
        self._limit = limit
        self._loop = node.runtime.loop
        self._sock = sock
        self._queued = False  # whether a flush stands in the scheduler's queue
        self._flushed = 0.0  # when there was the last one
        self._items: list[Any] = []  # packed, and not in a frame yet
        self._unsent = bytearray()
        self._behind = 0  # signals in what is unsent
        self._received: bytes | bytearray = b""
        self._early: deque[Any] = deque()  # came while an answer was waited for
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._on_readable)

    # Out

    def post(self, signal: signals.Signal) -> None:
        """Send a signal that must arrive."""
        if self.closed:
            return
        self._items.append(pack_signal(signal))
        if not self._queued:
            self._queue_flush()

    def _queue_flush(self) -> None:
        """Stand in the line of processes; before all others, if steps are long here."""
        self._queued = True
        scheduler = self.node.runtime.scheduler
        if self._loop.time() - self._flushed > _LONG_STEP:
            scheduler.ready.appendleft(self)
        else:
            scheduler.ready.append(self)
        if not scheduler.awake:
            scheduler.rouse()

    def offer(self, signal: signals.Signal) -> None:
        """Send a signal, if not too many wait already."""
        if len(self._items) + self._behind >= self._limit or len(self._unsent) > _UNSENT_BYTES:
            self.flush()
            waiting = len(self._items) + self._behind
            if waiting >= self._limit or len(self._unsent) > _UNSENT_BYTES:
                raise HostBusy(self.label, waiting)
        self.post(signal)

    def step(self) -> None:
        """Send what was posted in this turn; called by the scheduler, as a process is."""
        self._queued = False
        self._flushed = self._loop.time()
        self.flush()

    def flush(self) -> None:
        """Send all that is posted, as far as the other end reads."""
        while self._items and not self.closed:
            batch, self._items = self._items, []
            if len(batch) > _FRAME_SIGNALS:
                batch, self._items = batch[:_FRAME_SIGNALS], batch[_FRAME_SIGNALS:]
            frame = _encode(batch)
            data = _HEADER.pack(len(frame)) + frame
            if self._unsent:  # the other end is behind, and is waited for
                self._unsent += data
            else:
                self._write(data)
            if self._unsent:
                self._behind += len(batch)

    def _write(self, data: bytes | bytearray) -> None:
        """Send, and keep what the other end does not take yet."""
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data):
            self._unsent = bytearray(data[sent:])
            self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        data, self._unsent = self._unsent, bytearray()
        self._write(data)
        if not self._unsent:
            self._behind = 0

    def force(self, stand_in: StandIn, detail: object) -> None:
        """End a process that a kill did not end; its worker knows how."""
        if self.on_force is not None:
            self.on_force(stand_in, detail)

    # In

    def meet(self, pid: Pid, *, lives_there: bool) -> None:
        """Make a stand-in for a pid that is new here.

        The first node knows all that lives beyond it, so what is new to it is dead.
        """
        if lives_there or self.is_home:
            self.node.meet(pid, self, full=False)
            self.post(signals.Watch(pid, full=False))

    def _on_readable(self) -> None:
        # Those who are woken by what has come run right here, and what they answer goes out:
        # that is two turns of the loop less. So nobody needs to ask the loop for a turn.
        scheduler = self.node.runtime.scheduler
        awake, scheduler.awake = scheduler.awake, True
        if self._read():
            self._dispatch()
        if scheduler.ready:
            scheduler.turn()
        else:
            scheduler.awake = awake

    def _read(self) -> bool:
        """Read what there is; tell whether the other end is still there."""
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        if self._received:
            self._received += data
        else:
            self._received = data
        return True

    def _frames(self) -> list[Any]:
        """Take all whole frames out of what was received."""
        received, start = self._received, 0
        items: list[Any] = []
        while len(received) - start >= _HEADER.size:
            end = start + _HEADER.size + _HEADER.unpack_from(received, start)[0]
            if len(received) < end:
                break
            decoded = _decode(received[start + _HEADER.size : end])
            items = items + decoded if items else decoded
            start = end
        self._keep(received, start)
        return items

    def _keep(self, received: bytes | bytearray, start: int) -> None:
        """Keep a part of a frame, to which more is added soon; a long one is not copied again."""
        if start == len(received):
            self._received = b""
        elif start or isinstance(received, bytes):
            self._received = bytearray(received[start:])

    def _dispatch(self) -> None:
        while self._early:
            self._deal_with((self._early.popleft(),))
        self._deal_with(self._frames())

    def _deal_with(self, items: Iterable[Any]) -> None:
        receive = self.node.receive
        for item in items:
            open_gate(self)
            try:
                signal = unpack_signal(item)
            except Exception as error:  # noqa: BLE001 - of whatever class the user sent
                self._refuse(item, error)
            else:
                receive(self, signal)

    def _refuse(self, item: Any, error: Exception) -> None:
        """Deal with a signal that cannot be unpacked here: a class in it is not to be found."""
        why = NotPortable(f"it cannot be unpacked in the other OS process: {error}")
        instead = substitute(item, why)
        if instead is None:
            self.node.report_lost(f"a signal of host {self.label!r}", error)
        elif isinstance(instead, signals.NoAnswer) and asks(item):
            self.post(instead)
        else:
            self.node.receive(self, instead)

    # A question that must be answered before anything else happens

    def ask_now(self, question: Any, number: int) -> Any:
        """Send a question and stop everything on this loop until its answer is there."""
        self.post(question)
        self.flush()
        self._sock.setblocking(True)
        try:
            self._sock.sendall(self._unsent)
            self._unsent.clear()
            return self._answer_to(number)
        except OSError:
            self.close()
            raise
        finally:
            with suppress(OSError):
                self._sock.setblocking(False)

    def _answer_to(self, number: int) -> Any:
        while True:
            items = self._frames()
            for place, item in enumerate(items):
                open_gate(self)
                signal = _claimed(item, number)
                if signal is not None:
                    self._early.extend(items[place + 1 :])
                    self._loop.call_soon(self._dispatch)
                    return signal
                self._early.append(item)
            if not self._read():
                raise ConnectionError("the parent of this worker is gone")

    # The end

    def say_last(self, signal: signals.Signal) -> None:
        """Send all that is left, with this last; wait until it is out."""
        self.post(signal)
        self.flush()
        if not self.closed:
            self._sock.setblocking(True)
            with suppress(OSError):
                self._sock.sendall(self._unsent)
            self._unsent.clear()
            self.close()

    def drain(self) -> None:
        """Take in what has arrived from an end that is gone: nothing is lost."""
        while not self.closed and self._read():
            if not self._pending():
                break
        self._dispatch()

    def _pending(self) -> bool:
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the socket."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._dispatch()
        self.on_closed()


def _claimed(item: Any, number: int) -> signals.Claimed | None:
    signal = unpack_signal(item) if is_claimed(item) else None
    found = isinstance(signal, signals.Claimed) and signal.number == number
    return signal if found else None  # pyright: ignore[reportReturnType]


def is_claimed(item: Any) -> bool:
    """Tell whether a packed signal answers a claim, without unpacking others."""
    return item[0] == signals.Claimed.__name__
