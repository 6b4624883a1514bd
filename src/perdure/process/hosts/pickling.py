"""Copies of what cannot cross to another OS process as it is; above all of exceptions.

In a pickled value a number stands for each exception. The exceptions go along apart, each once,
however they hang together: as causes, arguments and fields of each other, in a ring, by thousands.
So one that cannot cross is told in words alone, and the others are as they were.
"""

import importlib
import importlib.util
import io
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple, Protocol

from msgspec.msgpack import Ext

from perdure.base.errors import NotPortable, RemoteError, safe_text
from perdure.base.pid import Pid
from perdure.process.channel import Channel
from perdure.process.event import ExitResult
from perdure.process.hosts.frame import LARGEST_SIGNAL
from perdure.process.relations import LEFT, Elsewhere

Load = Callable[[bytes], Any]


class RemoteCopy(NamedTuple):
    """Stands for a value of another OS process that could not cross."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} (a {self.kind})"


def in_words(value: object) -> RemoteCopy:
    """Give what stands for a value that cannot cross."""
    return RemoteCopy(type(value).__qualname__, safe_text(value))


def unreadable(error: Exception) -> RemoteCopy:
    """Give what stands for a value that came and cannot be unpacked."""
    return RemoteCopy("value that cannot be unpacked", safe_text(error))


class Told(NamedTuple):
    """An exception on its way: in words, and packed as far as that is possible."""

    kind: str
    text: str
    trace: str
    made_of: bytes | None  # its class and arguments; None: they cannot cross
    fields: dict[str, bytes | RemoteCopy]
    cause: int | None


class Errors:
    """The exceptions in a value that is being packed."""

    def __init__(self, dump: "Callable[[Any, Errors], bytes]") -> None:
        self._dump = dump
        self._all: list[BaseException] = []
        self._numbers: dict[int, int] = {}

    def number(self, error: BaseException) -> int:
        """Give the number that stands for an exception."""
        number = self._numbers.setdefault(id(error), len(self._all))
        if number == len(self._all):
            self._all.append(error)
        return number

    def told(self) -> list[Told]:
        """Pack them, with those that are found in them meanwhile."""
        return [self._tell(error) for error in self._all]

    def _tell(self, error: BaseException) -> Told:
        kind = type(error)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        trace = "".join(traceback.format_tb(error.__traceback__))
        args, fields = _parts_of(error)
        return Told(
            name,
            safe_text(error, str),
            trace,
            self._packed((kind, args)),
            {key: self._packed(value) or in_words(value) for key, value in fields.items()},
            None if error.__cause__ is None else self.number(error.__cause__),
        )

    def _packed(self, value: Any) -> bytes | None:
        try:
            return self._dump(value, self)
        except NotPortable:
            return None


def _parts_of(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give what an exception is made of; its own `__init__` is not called again."""
    if type(error).__module__ == "builtins":
        made_of: Any = error.__reduce__()
        return made_of[1], (made_of[2:] or ({},))[0] or {}
    return error.args, vars(error)


class _Restored:
    """The exceptions of a value that is being unpacked."""

    def __init__(self, told: list[Told], load: Load) -> None:
        self._told = told
        self._load = load
        self._errors: dict[int, BaseException] = {}
        self._in_words: set[int] = set()

    def give(self, number: int) -> BaseException:
        """Give the exception for which a number stands."""
        if number not in self._errors:
            told = self._told[number]
            # An exception that is an argument of its own arguments finds itself in words there.
            self._errors[number] = RemoteError(told.kind, told.text, told.trace)
            if (error := self._rebuilt(told)) is None:
                self._in_words.add(number)
            else:
                self._errors[number] = error
        return self._errors[number]

    def _rebuilt(self, told: Told) -> BaseException | None:
        if told.made_of is None:
            return None
        try:
            kind, args = self._load(told.made_of)
            if kind.__module__ == "builtins":
                return kind(*args)
            error: BaseException = kind.__new__(kind, *args)
            error.args = args
        except Exception:  # noqa: BLE001 - its class is not there, or does not allow this
            return None
        return error

    def complete(self) -> None:
        """Give all of them what exceptions may have of each other."""
        for number, told in enumerate(self._told):
            error = self.give(number)
            if number not in self._in_words:
                _fill(error, {key: self._field(each) for key, each in told.fields.items()})
            if told.trace:
                note = f"Traceback of another OS process (most recent call last):\n{told.trace}"
                error.add_note(note)
            if told.cause is not None:
                error.__cause__ = self.give(told.cause)

    def _field(self, packed: bytes | RemoteCopy) -> Any:
        if isinstance(packed, RemoteCopy):
            return packed
        try:
            return self._load(packed)
        except Exception as error:  # noqa: BLE001 - of whatever class it is
            return unreadable(error)


def _fill(error: BaseException, fields: dict[str, Any]) -> None:
    if type(error).__module__ == "builtins":
        error.__setstate__(fields)  # some of them are no part of its `__dict__`
    else:
        vars(error).update(fields)


class _OpenCopy(threading.local):
    restored: _Restored | None = None


_open_copy = _OpenCopy()


def restore(told: list[Told], data: bytes, load: Load) -> Any:
    """Unpack a value, with the exceptions in it."""
    before, _open_copy.restored = _open_copy.restored, (restored := _Restored(told, load))
    try:
        value = load(data)
        restored.complete()
    finally:
        _open_copy.restored = before
    return value


def numbered(number: int) -> BaseException:
    """Give an exception of the value that is being unpacked."""
    assert _open_copy.restored is not None
    return _open_copy.restored.give(number)


# What crosses between OS processes, and how: values, pids, exceptions.
#
# Only a parent and the children that it started itself talk this way, over a private socket.
# Both are inside the trust boundary: each unpickles what the other sends, and to unpickle is to run
# code. What persons and payloads say crosses as text and bytes inside of that, and is never
# unpickled: `loads` is given what `dumps` gave in the other process, and nothing else.

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
