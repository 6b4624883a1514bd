"""Signals as bytes.

The five signals that make up nearly all traffic are msgpack lists of plain fields. Any other is
its class name and its fields, each of them packed.
"""

from collections.abc import Callable
from typing import Any

from msgspec.msgpack import Encoder, Ext

from perdure.base.errors import NotPortable
from perdure.base.pid import Pid
from perdure.process.event import ExitResult, Message
from perdure.process.exit_reason import EXIT_WITHOUT_VALUE
from perdure.process.hosts.frame import LARGEST_SIGNAL
from perdure.process.hosts.pickling import (
    PIDS,
    RemoteRepr,
    pack,
    pickled,
    pid_address,
    pid_at,
    repr_of,
    unpack,
    unreadable,
)
from perdure.process.hosts.signals import (
    SIGNALS,
    ExitedSignal,
    NameClaimedSignal,
    PlacedSignal,
    ReplySignal,
    RequestFailedSignal,
    RequestSignal,
    SendSignal,
    Signal,
    SpawnSignal,
)

_SEND, _REQUEST, _REPLY, _SPAWN, _EXITED = range(5)

Item = list[Any]  # a signal as a msgpack list

_encode = Encoder().encode
_known = PIDS.known  # bound once: every signal needs it


def pack_signal(signal: Signal) -> bytes:
    """Return a signal as bytes.

    Raises:
        NotPortable: Something in it cannot be pickled.
    """
    pack_kind = _PACKERS.get(type(signal), _pack_any)
    try:
        packed = _encode(pack_kind(signal))
    except (UnicodeEncodeError, OverflowError):  # what pickle can encode, and msgpack cannot
        packed = _encode(_pack_any(signal, pickled))
    return packed if len(packed) <= LARGEST_SIGNAL else _too_large(signal, len(packed))


def _too_large(signal: Signal, size: int) -> bytes:
    """Refuse a signal that is too large; only an end is still sent, without its value.

    Raises:
        NotPortable: It is not an end.
    """
    text = f"it has {size:,} bytes, and the limit is {LARGEST_SIGNAL:,}"
    if isinstance(signal, ExitedSignal):
        error = NotPortable(f"its value cannot cross to another OS process: {text}")
        return _encode(_pack_exited(ExitedSignal(signal.pid, ExitResult(None, error))))
    what = type(signal).__name__.removesuffix("Signal").lower()
    raise NotPortable(
        f"a {what} cannot cross to another OS process: {text}; pass the path of a file instead"
    )


def _pack_send(signal: SendSignal) -> Item:
    dest, message = signal.dest, signal.message
    sender = message.sender
    place = None if sender is None else pid_address(sender)
    return [_SEND, dest.host, dest.number, message.topic, pack(message.payload), place]


def _pack_request(signal: RequestSignal) -> Item:
    dest, sender = signal.dest, signal.sender
    place = None if sender is None else pid_address(sender)
    return [_REQUEST, dest.host, dest.number, signal.number, pack(signal.body), place]


def _pack_reply(signal: ReplySignal) -> Item:
    return [_REPLY, signal.number, pack(signal.value)]


def _pack_spawn(signal: SpawnSignal) -> Item:
    pid, parent = signal.pid, signal.parent
    PIDS.add(pid)
    place = None if parent is None else pid_address(parent)
    return [_SPAWN, pid.host, pid.number, place, signal.name, signal.call]


def _pack_exited(signal: ExitedSignal) -> Item:
    """Return a packed end; a value that cannot be pickled becomes its repr: ends must arrive."""
    pid, outcome = signal.pid, signal.outcome
    if outcome is None:
        return [_EXITED, pid.host, pid.number]
    if outcome is EXIT_WITHOUT_VALUE:  # which is recognised by its identity
        return [_EXITED, pid.host, pid.number, None]
    value, error = _pack_or_repr(outcome.value), _pack_or_repr(outcome.error)
    return [_EXITED, pid.host, pid.number, value, error]


def _pack_or_repr(value: Any) -> Any:
    try:
        return pack(value)
    except NotPortable:
        return pack(repr_of(value))


def _pack_any(signal: Any, packed: Callable[[Any], Any] = pack) -> Item:
    names: tuple[str, ...] = signal.__struct_fields__
    return [type(signal).__name__, *(packed(getattr(signal, name)) for name in names)]


_PACKERS: dict[type, Callable[[Any], Item]] = {
    SendSignal: _pack_send,
    RequestSignal: _pack_request,
    ReplySignal: _pack_reply,
    SpawnSignal: _pack_spawn,
    ExitedSignal: _pack_exited,
}


def unpack_signal(item: Item) -> Signal:
    """Return the signal of an item.

    Raises:
        Exception: Whatever a class of the user raises when it is unpacked.
    """
    return UNPACKERS.get(item[0], unpack_any)(*item)


def _unpack_send(
    _: int, host: str, number: int, topic: str, payload: Any, sender: Item | None
) -> SendSignal:
    return SendSignal(_pid_of_dest(host, number), Message(topic, unpack(payload), _pid(sender)))


def _unpack_request(
    _: int, host: str, number: int, call: int, body: Any, sender: Item | None
) -> RequestSignal:
    if type(body) is Ext:
        body = unpack(body)
    return RequestSignal(_pid_of_dest(host, number), call, body, _pid(sender))


def _unpack_reply(_: int, number: int, value: Any) -> ReplySignal:
    return ReplySignal(number, unpack(value) if type(value) is Ext else value)


def _unpack_spawn(
    _: int, host: str, number: int, parent: Item | None, name: str | None, call: bytes
) -> SpawnSignal:
    pid = _known.get((host, number))
    if pid is None:
        pid = Pid(host, None, number)
        PIDS.add(pid)
    return SpawnSignal(pid, _pid(parent), name, call)


def _unpack_exited(_: int, host: str, number: int, *outcome: Any) -> ExitedSignal:
    pid = _pid_of_dest(host, number)
    if len(outcome) < 2:  # noqa: PLR2004 - a value and an error
        return ExitedSignal(pid, EXIT_WITHOUT_VALUE if outcome else None)
    value, error = map(_unpack_or_repr, outcome)
    if isinstance(error, RemoteRepr):
        error = NotPortable(str(error))
    return ExitedSignal(pid, ExitResult(value, error))


def unpack_any(name: str, *fields: Any) -> Signal:
    """Return a signal that has no compact form."""
    return SIGNALS[name](*map(_unpack_or_repr, fields))


def _unpack_or_repr(packed: Any) -> Any:
    """Unpack a field of a signal that must arrive, or return the repr of the error."""
    try:
        return unpack(packed)
    except Exception as error:  # noqa: BLE001 - of whatever class the user sent
        return unreadable(error)


_BLOCKING_ANSWERS = (NameClaimedSignal.__name__, PlacedSignal.__name__)

UNPACKERS: dict[object, Callable[..., Signal]] = {
    _SEND: _unpack_send,
    _REQUEST: _unpack_request,
    _REPLY: _unpack_reply,
    _SPAWN: _unpack_spawn,
    _EXITED: _unpack_exited,
}


def substitute(item: Item, why: BaseException) -> RequestFailedSignal | None:
    """Return the failure that replaces a request or a reply that cannot be unpacked."""
    if item[0] == _REQUEST:
        return RequestFailedSignal(item[3], why)
    if item[0] == _REPLY:
        return RequestFailedSignal(item[1], why)
    return None


def is_request(item: Item) -> bool:
    """Whether a packed signal is a request, without unpacking it."""
    return item[0] == _REQUEST


def is_blocking_answer(item: Item) -> bool:
    """Whether a packed signal answers a worker that blocks for it."""
    return item[0] in _BLOCKING_ANSWERS


def _pid_of_dest(host: str, number: int) -> Pid:
    """Return the pid that a signal is for: known here, or dead for a long time."""
    return _known.get((host, number)) or Pid(host, None, number)


def _pid(place: Item | None) -> Pid | None:
    if place is None:
        return None
    host, number, lives = place
    return _known.get((host, number)) or pid_at(host, number, lives)
