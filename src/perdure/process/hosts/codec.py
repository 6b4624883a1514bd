"""Signals as msgpack can say them.

The three that carry nearly all traffic are lists of plain fields;
of the others only their pickled fields, behind their name.
"""

from collections.abc import Callable
from typing import Any

from perdure.base.errors import NotPortable, safe_text
from perdure.base.pid import Pid
from perdure.process.event import ExitResult, Message
from perdure.process.hosts import signals
from perdure.process.hosts.portable import (
    PIDS,
    RemoteCopy,
    dumps,
    found,
    loads,
    pack,
    place_of,
    unpack,
)

_SEND, _ASK, _ANSWER, _SPAWN = range(4)

_known = PIDS.known  # without a look-up: every signal comes by here


def pack_signal(signal: signals.Signal) -> list[Any]:
    """Give a signal as a list.

    Raises:
        NotPortable: Something in it cannot cross.
    """
    return _PACKERS.get(type(signal), _pack_any)(signal)


def _pack_send(signal: signals.Send) -> list[Any]:
    dest, message = signal.dest, signal.message
    sender = message.sender
    place = None if sender is None else place_of(sender)
    return [_SEND, dest.host, dest.number, message.topic, pack(message.payload), place]


def _pack_ask(signal: signals.Ask) -> list[Any]:
    dest, sender = signal.dest, signal.sender
    place = None if sender is None else place_of(sender)
    return [_ASK, dest.host, dest.number, signal.number, pack(signal.body), place]


def _pack_answer(signal: signals.Answer) -> list[Any]:
    return [_ANSWER, signal.number, pack(signal.value)]


def _pack_spawn(signal: signals.Spawn) -> list[Any]:
    pid, parent = signal.pid, signal.parent
    PIDS.add(pid)
    place = None if parent is None else place_of(parent)
    return [_SPAWN, pid.host, pid.number, place, signal.name, signal.call]


def _pack_any(signal: Any) -> list[Any]:
    names: tuple[str, ...] = signal.__struct_fields__
    fields = tuple(getattr(signal, name) for name in names)
    return [type(signal).__name__, dumps(fields)]


def _pack_exited(signal: signals.Exited) -> list[Any]:
    """Pack an end; a value that cannot cross is told in words, for the end itself is a fact."""
    try:
        return _pack_any(signal)
    except NotPortable:
        assert signal.outcome is not None
        value = signal.outcome.value
        told = RemoteCopy(type(value).__qualname__, safe_text(value))
        return _pack_any(signals.Exited(signal.pid, ExitResult(told, signal.outcome.error)))


_PACKERS: dict[type, Callable[[Any], list[Any]]] = {
    signals.Send: _pack_send,
    signals.Ask: _pack_ask,
    signals.Answer: _pack_answer,
    signals.Spawn: _pack_spawn,
    signals.Exited: _pack_exited,
}


def unpack_signal(item: list[Any]) -> signals.Signal:
    """Give the signal again."""
    unpacker = _UNPACKERS.get(item[0])
    if unpacker is not None:
        return unpacker(*item)
    kind: Any = getattr(signals, item[0])
    return kind(*loads(item[1]))


def _unpack_send(
    _: int, host: str, number: int, topic: str, payload: Any, sender: list[Any] | None
) -> signals.Send:
    return signals.Send(_own(host, number), Message(topic, unpack(payload), _pid(sender)))


def _unpack_ask(
    _: int, host: str, number: int, call: int, body: Any, sender: list[Any] | None
) -> signals.Ask:
    return signals.Ask(_own(host, number), call, unpack(body), _pid(sender))


def _unpack_answer(_: int, number: int, value: Any) -> signals.Answer:
    return signals.Answer(number, unpack(value))


def _unpack_spawn(
    _: int, host: str, number: int, parent: list[Any] | None, name: str | None, call: bytes
) -> signals.Spawn:
    pid = PIDS.known.get((host, number))
    if pid is None:
        pid = Pid(host, None, number)
        PIDS.add(pid)
    return signals.Spawn(pid, _pid(parent), name, call)


_UNPACKERS: dict[object, Callable[..., signals.Signal]] = {
    _SEND: _unpack_send,
    _ASK: _unpack_ask,
    _ANSWER: _unpack_answer,
    _SPAWN: _unpack_spawn,
}


def substitute(item: list[Any], why: BaseException) -> signals.Signal | None:
    """Give what is told instead of a signal that cannot be unpacked."""
    if item[0] == _ASK:
        return signals.NoAnswer(item[3], why)
    if item[0] == _ANSWER:
        return signals.NoAnswer(item[1], why)
    return None


def asks(item: list[Any]) -> bool:
    """Tell whether a packed signal is a request, without unpacking it."""
    return item[0] == _ASK


def _own(host: str, number: int) -> Pid:
    """Give the pid that a signal is for: it is known here, or it has been dead for long."""
    return _known.get((host, number)) or Pid(host, None, number)


def _pid(place: list[Any] | None) -> Pid | None:
    if place is None:
        return None
    host, number, lives = place
    return _known.get((host, number)) or found(host, number, lives)
