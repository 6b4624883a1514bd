"""Signals as bytes.

Those that carry nearly all traffic are msgpack lists of plain fields;
the others are their name and their fields, each of them packed.
"""

from collections.abc import Callable
from typing import Any

from msgspec.msgpack import Encoder, Ext

from perdure.base.errors import NotPortable
from perdure.base.pid import Pid
from perdure.process.event import ExitResult, Message
from perdure.process.hosts import frame as frames
from perdure.process.hosts import signals
from perdure.process.hosts.pickling import (
    PIDS,
    RemoteCopy,
    found,
    in_words,
    pack,
    pickled,
    place_of,
    unpack,
    unreadable,
)
from perdure.process.relations import LEFT

_SEND, _ASK, _ANSWER, _SPAWN, _EXITED = range(5)

Item = list[Any]  # a signal as msgpack says it

_encode = Encoder().encode
_known = PIDS.known  # without a look-up: every signal comes by here


def pack_signal(signal: signals.Signal) -> bytes:
    """Give a signal as bytes.

    Raises:
        NotPortable: Something in it cannot cross.
    """
    pack_kind = _PACKERS.get(type(signal), _pack_any)
    try:
        packed = _encode(pack_kind(signal))
    except (UnicodeEncodeError, OverflowError):  # what pickle can say, and msgpack cannot
        packed = _encode(_pack_any(signal, pickled))
    return packed if len(packed) <= frames.LARGEST_SIGNAL else _too_large(signal, len(packed))


def _too_large(signal: signals.Signal, size: int) -> bytes:
    """Refuse what is too large; but an end is a fact, and is told without its value.

    Raises:
        NotPortable: It is no end.
    """
    text = f"it has {size:,} bytes, and {frames.LARGEST_SIGNAL:,} are the most"
    if isinstance(signal, signals.Exited):
        error = NotPortable(f"what it gave cannot cross to another OS process: {text}")
        return _encode(_pack_exited(signals.Exited(signal.pid, ExitResult(None, error))))
    raise NotPortable(
        f"a {type(signal).__name__} cannot cross to another OS process: {text}; "
        "pass the place of a file instead"
    )


def _pack_send(signal: signals.Send) -> Item:
    dest, message = signal.dest, signal.message
    sender = message.sender
    place = None if sender is None else place_of(sender)
    return [_SEND, dest.host, dest.number, message.topic, pack(message.payload), place]


def _pack_ask(signal: signals.Ask) -> Item:
    dest, sender = signal.dest, signal.sender
    place = None if sender is None else place_of(sender)
    return [_ASK, dest.host, dest.number, signal.number, pack(signal.body), place]


def _pack_answer(signal: signals.Answer) -> Item:
    return [_ANSWER, signal.number, pack(signal.value)]


def _pack_spawn(signal: signals.Spawn) -> Item:
    pid, parent = signal.pid, signal.parent
    PIDS.add(pid)
    place = None if parent is None else place_of(parent)
    return [_SPAWN, pid.host, pid.number, place, signal.name, signal.call]


def _pack_exited(signal: signals.Exited) -> Item:
    """Pack an end; what cannot cross is told in words, for the end itself is a fact."""
    pid, outcome = signal.pid, signal.outcome
    if outcome is None:
        return [_EXITED, pid.host, pid.number]
    if outcome is LEFT:  # which is told from other ends by being this one
        return [_EXITED, pid.host, pid.number, None]
    value, error = _pack_or_tell(outcome.value), _pack_or_tell(outcome.error)
    return [_EXITED, pid.host, pid.number, value, error]


def _pack_or_tell(value: Any) -> Any:
    try:
        return pack(value)
    except NotPortable:
        return pack(in_words(value))


def _pack_any(signal: Any, packed: Callable[[Any], Any] = pack) -> Item:
    names: tuple[str, ...] = signal.__struct_fields__
    return [type(signal).__name__, *(packed(getattr(signal, name)) for name in names)]


_PACKERS: dict[type, Callable[[Any], Item]] = {
    signals.Send: _pack_send,
    signals.Ask: _pack_ask,
    signals.Answer: _pack_answer,
    signals.Spawn: _pack_spawn,
    signals.Exited: _pack_exited,
}


def unpack_signal(item: Item) -> signals.Signal:
    """Give the signal again.

    Raises:
        Exception: Whatever a class of the user raises when it is unpacked.
    """
    return UNPACKERS.get(item[0], unpack_any)(*item)


def _unpack_send(
    _: int, host: str, number: int, topic: str, payload: Any, sender: Item | None
) -> signals.Send:
    return signals.Send(_own(host, number), Message(topic, unpack(payload), _pid(sender)))


def _unpack_ask(
    _: int, host: str, number: int, call: int, body: Any, sender: Item | None
) -> signals.Ask:
    if type(body) is Ext:
        body = unpack(body)
    return signals.Ask(_own(host, number), call, body, _pid(sender))


def _unpack_answer(_: int, number: int, value: Any) -> signals.Answer:
    return signals.Answer(number, unpack(value) if type(value) is Ext else value)


def _unpack_spawn(
    _: int, host: str, number: int, parent: Item | None, name: str | None, call: bytes
) -> signals.Spawn:
    pid = _known.get((host, number))
    if pid is None:
        pid = Pid(host, None, number)
        PIDS.add(pid)
    return signals.Spawn(pid, _pid(parent), name, call)


def _unpack_exited(_: int, host: str, number: int, *outcome: Any) -> signals.Exited:
    pid = _own(host, number)
    if len(outcome) < 2:  # noqa: PLR2004 - a value and an error
        return signals.Exited(pid, LEFT if outcome else None)
    value, error = map(_unpack_or_tell, outcome)
    if isinstance(error, RemoteCopy):
        error = NotPortable(str(error))
    return signals.Exited(pid, ExitResult(value, error))


def unpack_any(name: str, *fields: Any) -> signals.Signal:
    """Give a signal of those that are rare."""
    kind: Any = getattr(signals, name)
    return kind(*map(_unpack_or_tell, fields))


def _unpack_or_tell(packed: Any) -> Any:
    """Unpack a part of a signal that must arrive, or say that it could not be."""
    try:
        return unpack(packed)
    except Exception as error:  # noqa: BLE001 - of whatever class the user sent
        return unreadable(error)


_ANSWERS = (signals.Claimed.__name__, signals.Placed.__name__)

UNPACKERS: dict[object, Callable[..., signals.Signal]] = {
    _SEND: _unpack_send,
    _ASK: _unpack_ask,
    _ANSWER: _unpack_answer,
    _SPAWN: _unpack_spawn,
    _EXITED: _unpack_exited,
}


def substitute(item: Item, why: BaseException) -> signals.NoAnswer | None:
    """Give what is told instead of a request or an answer that cannot be unpacked."""
    if item[0] == _ASK:
        return signals.NoAnswer(item[3], why)
    if item[0] == _ANSWER:
        return signals.NoAnswer(item[1], why)
    return None


def asks(item: Item) -> bool:
    """Tell whether a packed signal is a request, without unpacking it."""
    return item[0] == _ASK


def answers(item: Item) -> bool:
    """Tell whether a packed signal answers a worker that stands still, without unpacking others."""
    return item[0] in _ANSWERS


def _own(host: str, number: int) -> Pid:
    """Give the pid that a signal is for: it is known here, or it has been dead for long."""
    return _known.get((host, number)) or Pid(host, None, number)


def _pid(place: Item | None) -> Pid | None:
    if place is None:
        return None
    host, number, lives = place
    return _known.get((host, number)) or found(host, number, lives)
