"""What crosses between OS processes, and how: values, pids, exceptions.

Only a parent and the children that it started itself talk this way, over a private socket.
Both are inside the trust boundary: each unpickles what the other sends, and to unpickle is to run
code. What persons and payloads say crosses as text and bytes inside of that, and is never
unpickled: `loads` is given what `dumps` gave in the other process, and nothing else.
"""

import importlib
import importlib.util
import io
import pickle
import sys
import threading
from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple, Protocol

from msgspec.msgpack import Ext

from perdure.base.errors import NotPortable, safe_text
from perdure.base.pid import Pid
from perdure.process.channel import Channel
from perdure.process.event import ExitResult
from perdure.process.exits import LEFT
from perdure.process.hosts.copies import Errors, Told, numbered, restore
from perdure.process.hosts.frame import LARGEST_SIGNAL
from perdure.process.reach import Elsewhere

_PICKLED = 1  # the code of what msgpack cannot say
_SIMPLE: frozenset[object] = frozenset({NoneType, bool, int, float, str, bytes})
_DEEPEST = 4  # how deep a value is looked into before pickle takes it
_LONGEST = 32  # and how far


_type_of: Callable[[Any], object] = type


# Values


def pack(value: Any) -> Any:
    """Give a value as msgpack can say it: as it is, or pickled.

    Raises:
        NotPortable: It cannot cross.
    """
    if type(value) in _SIMPLE or _is_plain(value, _DEEPEST):
        return value
    return pickled(value)


def pickled(value: Any) -> Ext:
    """Give a value as msgpack can say it, whatever it is.

    Raises:
        NotPortable: It cannot cross.
    """
    data = dumps(value)
    if len(data) > LARGEST_SIGNAL:
        raise NotPortable(
            f"{safe_text(value)[:200]} cannot cross to another OS process: it has "
            f"{len(data):,} bytes, and {LARGEST_SIGNAL:,} are the most; "
            "pass the place of a file instead"
        )
    return Ext(_PICKLED, data)


def unpack(packed: Any) -> Any:
    """Give the value again."""
    return loads(bytes(packed.data)) if type(packed) is Ext else packed


def _is_plain(value: Any, depth: int) -> bool:
    """Tell whether msgpack gives back exactly what it got: no tuple, no set, no subclass."""
    kind = _type_of(value)
    if kind in _SIMPLE:
        return True
    if not depth or (kind is not list and kind is not dict) or len(value) > _LONGEST:
        return False
    if kind is dict:
        return all(type(key) is str and _is_plain(each, depth - 1) for key, each in value.items())
    return all(_is_plain(each, depth - 1) for each in value)


def dumps(value: Any) -> bytes:
    """Pickle.

    Raises:
        NotPortable: It cannot be pickled.
    """
    errors = Errors(_dump)
    data = _dump(value, errors)
    told = errors.told()
    return data if not told else pickle.dumps(_WithErrors(told, data), pickle.HIGHEST_PROTOCOL)


class _WithErrors(NamedTuple):
    """A pickled value, and the exceptions in it."""

    told: list[Told]
    data: bytes

    def __reduce__(self) -> Any:
        return _restored, (self.told, self.data)


def _restored(told: list[Told], data: bytes) -> Any:
    return restore(told, data, loads)


def _dump(value: Any, errors: Errors) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, errors).dump(value)
    except MemoryError:  # which says nothing about the value
        raise
    except Exception as error:
        raise NotPortable(
            f"{safe_text(value)[:200]} cannot cross to another OS process ({error}): "
            "use functions and classes of a module, not lambdas or local ones, "
            "and plain data instead of open files, locks and connections"
        ) from error
    return buffer.getvalue()


# Called when something of the main module is not there, to import it; tell whether that helped.
MISSING: list[Callable[[], bool]] = []


def loads(data: bytes) -> Any:
    """Unpickle what our own parent or child has pickled."""
    try:
        return pickle.loads(data)  # noqa: S301
    except AttributeError:
        if not any(load() for load in MISSING):
            raise
        return pickle.loads(data)  # noqa: S301


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, errors: Errors) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._errors = errors

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Pid:
            return found, place_of(obj)
        if isinstance(obj, BaseException):
            return numbered, (self._errors.number(obj),)
        if isinstance(obj, type) and (alias := vars(obj).get("__portable_name__")) is not None:
            return _by_name, alias
        if isinstance(obj, Channel):
            raise TypeError("a Channel belongs to one loop: send messages to a pid instead")
        if obj is LEFT:  # which is told from other ends by being this one
            return _left, ()
        return NotImplemented


def _by_name(module: str, name: str) -> Any:
    """Find a class that shows people another name than its own."""
    return getattr(importlib.import_module(module), name)


def _left() -> ExitResult:
    return LEFT


# Functions, with the file of their module: entries are loaded from files that have no import name


def dump_call(function: Callable[..., Any], args: tuple[Any, ...], values: Any) -> bytes:
    """Pack what a process runs.

    Raises:
        NotPortable: It cannot cross.
    """
    module = getattr(function, "__module__", None) or ""
    file = getattr(sys.modules.get(module), "__file__", None)
    return dumps((module, file, dumps((function, args, dict(values)))))


def load_call(call: Any, gate: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Unpack what a process runs; import its module first."""
    if isinstance(call, tuple):  # of another thread, which needs no packing
        return call  # pyright: ignore[reportUnknownVariableType]
    module, file, packed = loads(call)
    if module and module not in sys.modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            if file is None:
                raise
            import_file(module, file)
    open_gate(gate)
    return loads(packed)


def import_file(name: str, file: str) -> None:
    """Import a module that has no place on the path."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


# Pids

DEAD_HERE, LIVES_HERE, LIVES_ELSEWHERE = range(3)

_KEPT = 16_384  # pids of the dead that stay known, so that they are the same when they come again

Place = tuple[str, int, int]


class PidTable:
    """The pids that crossed the border of this OS process: each is one object here."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], Pid] = {}
        self.places: dict[Pid, Place] = {}  # as which they went out the first time
        self._sweep_at = 2 * _KEPT

    def add(self, pid: Pid) -> None:
        """Know a pid from now on."""
        self.known[pid.host, pid.number] = pid
        if len(self.known) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        known = tuple(self.known.items())  # at once: another thread may add to it
        dead = [key for key, pid in known if pid.target is None]
        for key in dead[: max(0, len(dead) - _KEPT)]:
            self.places.pop(self.known.pop(key), None)
        self._sweep_at = 2 * max(len(self.known), _KEPT)


PIDS = PidTable()


class Gate(Protocol):
    """Through which a pid comes in that is not known yet."""

    def meet(self, pid: Pid, *, lives_there: bool) -> None:
        """Make a stand-in for it; its process lives at the other end, or beyond."""
        ...


class _Open(threading.local):
    gate: Gate | None = None


_open = _Open()


def open_gate(gate: Gate) -> None:
    """Let pids in through this gate, until another is opened; whoever unpacks opens his own."""
    _open.gate = gate


def place_of(pid: Pid) -> Place:
    """Say which pid it is, and where its process lives, or lived when it was first said."""
    place = PIDS.places.get(pid)
    if place is None:
        target: object = pid.target
        if target is None:
            lives = DEAD_HERE
        else:
            lives = LIVES_ELSEWHERE if isinstance(target, Elsewhere) else LIVES_HERE
        PIDS.add(pid)
        place = PIDS.places[pid] = (pid.host, pid.number, lives)
    return place


def found(host: str, number: int, lives: int) -> Pid:
    """Give the pid of a place; one that is not known yet comes in through the gate."""
    pid = PIDS.known.get((host, number))
    if pid is None:
        pid = Pid(host, None, number)
        PIDS.add(pid)
        gate = _open.gate
        if gate is not None and lives != DEAD_HERE:
            gate.meet(pid, lives_there=lives == LIVES_HERE)
    return pid
