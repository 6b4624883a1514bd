"""How values, exceptions and pids cross between OS processes.

**Trust.** Only a parent and the children that it started itself talk this way, over a private
socket. Both are inside the trust boundary: each unpickles what the other sends, and unpickling runs
code. Input from people and job payloads cross as text and bytes inside of that, and are never
unpickled: `loads` is given what `dumps` returned in the other process, and nothing else.

**Values.** Plain ones go as msgpack, which is fast; everything else is pickled.

**Exceptions.** Many cannot be pickled, and one of them must not spoil the rest: so in a pickled
value a number replaces each exception. The exceptions travel beside the value, each once, however
they refer to each other: as causes, arguments and fields, in a ring, by thousands. One that cannot
be pickled arrives as a `RemoteError` with its text and its traceback, and the others as they were.

**Pids.** A pid crosses as its number, and becomes the one pid object of that number again.
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
from perdure.process.exit_reason import EXIT_WITHOUT_VALUE
from perdure.process.hosts.frame import LARGEST_SIGNAL
from perdure.process.process import RemoteProcess

# Values

_PICKLED = 1  # the msgpack extension code of a pickled value
_SIMPLE: frozenset[object] = frozenset({NoneType, bool, int, float, str, bytes})
# How deep and how far a value is inspected before pickle takes it.
_MAX_DEPTH = 4
_MAX_LENGTH = 32


_type_of: Callable[[Any], object] = type


def pack(value: Any) -> Any:
    """Return a value in a form that msgpack can encode: as it is, or pickled.

    Raises:
        NotPortable: It cannot be pickled.
    """
    if type(value) in _SIMPLE or _is_plain(value, _MAX_DEPTH):
        return value
    return pickled(value)


def pickled(value: Any) -> Ext:
    """Return a value pickled, in a form that msgpack can encode.

    Raises:
        NotPortable: It cannot be pickled.
    """
    data = dumps(value)
    if len(data) > LARGEST_SIGNAL:
        raise NotPortable(
            f"{safe_text(value)[:200]} cannot cross to another OS process: it has "
            f"{len(data):,} bytes, and the limit is {LARGEST_SIGNAL:,}; "
            "pass the path of a file instead"
        )
    return Ext(_PICKLED, data)


def unpack(packed: Any) -> Any:
    """Return the original value."""
    return loads(bytes(packed.data)) if type(packed) is Ext else packed


def _is_plain(value: Any, depth: int) -> bool:
    """Whether msgpack returns exactly what it got: no tuple, no set, no subclass."""
    kind = _type_of(value)
    if kind in _SIMPLE:
        return True
    if not depth or (kind is not list and kind is not dict) or len(value) > _MAX_LENGTH:
        return False
    if kind is dict:
        return all(type(key) is str and _is_plain(each, depth - 1) for key, each in value.items())
    return all(_is_plain(each, depth - 1) for each in value)


def dumps(value: Any) -> bytes:
    """Return a value pickled.

    Raises:
        NotPortable: It cannot be pickled.
    """
    errors = ErrorTable(_dump)
    data = _dump(value, errors)
    pickled_errors = errors.pickled()
    if not pickled_errors:
        return data
    return pickle.dumps(_WithErrors(pickled_errors, data), pickle.HIGHEST_PROTOCOL)


class _WithErrors(NamedTuple):
    """A pickled value, and the exceptions in it."""

    pickled: "list[PickledError]"
    data: bytes

    def __reduce__(self) -> Any:
        return _restored, (self.pickled, self.data)


def _restored(pickled: "list[PickledError]", data: bytes) -> Any:
    return restore(pickled, data, loads)


def _dump(value: Any, errors: "ErrorTable") -> bytes:
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


# Called when a name of the main module is missing, to import it; return whether that helped.
IMPORT_FALLBACKS: list[Callable[[], bool]] = []


def loads(data: bytes) -> Any:
    """Return a value that our own parent or child has pickled."""
    try:
        return pickle.loads(data)  # noqa: S301
    except AttributeError:
        if not any(load() for load in IMPORT_FALLBACKS):
            raise
        return pickle.loads(data)  # noqa: S301


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, errors: "ErrorTable") -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._errors = errors

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Pid:
            return pid_at, pid_address(obj)
        if isinstance(obj, BaseException):
            return error_at, (self._errors.number(obj),)
        if isinstance(obj, type) and (alias := vars(obj).get("__portable_name__")) is not None:
            return _by_name, alias
        if isinstance(obj, Channel):
            raise TypeError("a Channel belongs to one loop: send messages to a pid instead")
        if obj is EXIT_WITHOUT_VALUE:  # which is recognised by its identity
            return _exit_without_value, ()
        return NotImplemented


def _by_name(module: str, name: str) -> Any:
    """Return a class whose displayed name differs from its real one."""
    return getattr(importlib.import_module(module), name)


def _exit_without_value() -> ExitResult:
    return EXIT_WITHOUT_VALUE


# Functions, with the file of their module: entries are loaded from files that are not on the path


def dump_call(function: Callable[..., Any], args: tuple[Any, ...], values: Any) -> bytes:
    """Return the function and arguments of a process, pickled.

    Raises:
        NotPortable: It cannot be pickled.
    """
    module = getattr(function, "__module__", None) or ""
    file = getattr(sys.modules.get(module), "__file__", None)
    return dumps((module, file, dumps((function, args, dict(values)))))


def load_call(
    call: Any, resolver: Any
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the unpickled function and arguments of a process; import its module first."""
    if isinstance(call, tuple):  # of another thread, which needs no pickling
        return call  # pyright: ignore[reportUnknownVariableType]
    module, file, packed = loads(call)
    if module and module not in sys.modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            if file is None:
                raise
            import_file(module, file)
    set_pid_resolver(resolver)
    return loads(packed)


def import_file(name: str, file: str) -> None:
    """Import a module that is not on the path."""
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


# Exceptions, and placeholders for values that cannot be pickled

Load = Callable[[bytes], Any]


class RemoteRepr(NamedTuple):
    """Replaces a value of another OS process that could not be pickled."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} (a {self.kind})"


def repr_of(value: object) -> RemoteRepr:
    """Return the placeholder for a value that cannot be pickled."""
    return RemoteRepr(type(value).__qualname__, safe_text(value))


def unreadable(error: Exception) -> RemoteRepr:
    """Return the placeholder for a received value that cannot be unpickled."""
    return RemoteRepr("value that cannot be unpacked", safe_text(error))


class PickledError(NamedTuple):
    """An exception on its way: as text, and pickled as far as that is possible."""

    kind: str
    text: str
    trace: str
    made_of: bytes | None  # its class and arguments; None: they cannot be pickled
    fields: dict[str, bytes | RemoteRepr]
    cause: int | None


class ErrorTable:
    """The exceptions in a value that is being pickled."""

    def __init__(self, dump: "Callable[[Any, ErrorTable], bytes]") -> None:
        self._dump = dump
        self._all: list[BaseException] = []
        self._numbers: dict[int, int] = {}

    def number(self, error: BaseException) -> int:
        """Return the number that replaces an exception."""
        number = self._numbers.setdefault(id(error), len(self._all))
        if number == len(self._all):
            self._all.append(error)
        return number

    def pickled(self) -> list[PickledError]:
        """Return the exceptions pickled, including those found inside them."""
        return [self._pickle(error) for error in self._all]

    def _pickle(self, error: BaseException) -> PickledError:
        kind = type(error)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        trace = "".join(traceback.format_tb(error.__traceback__))
        args, fields = _parts_of(error)
        return PickledError(
            name,
            safe_text(error, str),
            trace,
            self._packed((kind, args)),
            {key: self._packed(value) or repr_of(value) for key, value in fields.items()},
            None if error.__cause__ is None else self.number(error.__cause__),
        )

    def _packed(self, value: Any) -> bytes | None:
        try:
            return self._dump(value, self)
        except NotPortable:
            return None


def _parts_of(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what an exception is made of; its own `__init__` is not called again."""
    if type(error).__module__ == "builtins":
        made_of: Any = error.__reduce__()
        return made_of[1], (made_of[2:] or ({},))[0] or {}
    return error.args, vars(error)


class _Restored:
    """The exceptions of a value that is being unpickled."""

    def __init__(self, pickled: list[PickledError], load: Load) -> None:
        self._pickled = pickled
        self._load = load
        self._errors: dict[int, BaseException] = {}
        self._text_only: set[int] = set()

    def get(self, number: int) -> BaseException:
        """Return the exception with a number."""
        if number not in self._errors:
            pickled = self._pickled[number]
            # An exception among its own arguments finds this text-only version of itself there.
            self._errors[number] = RemoteError(pickled.kind, pickled.text, pickled.trace)
            if (error := self._rebuilt(pickled)) is None:
                self._text_only.add(number)
            else:
                self._errors[number] = error
        return self._errors[number]

    def _rebuilt(self, pickled: PickledError) -> BaseException | None:
        if pickled.made_of is None:
            return None
        try:
            kind, args = self._load(pickled.made_of)
            if kind.__module__ == "builtins":
                return kind(*args)
            error: BaseException = kind.__new__(kind, *args)
            error.args = args
        except Exception:  # noqa: BLE001 - its class is not there, or does not allow this
            return None
        return error

    def complete(self) -> None:
        """Set the fields, causes and tracebacks, which may refer to other exceptions."""
        for number, pickled in enumerate(self._pickled):
            error = self.get(number)
            if number not in self._text_only:
                _fill(error, {key: self._field(each) for key, each in pickled.fields.items()})
            if pickled.trace:
                note = f"Traceback of another OS process (most recent call last):\n{pickled.trace}"
                error.add_note(note)
            if pickled.cause is not None:
                error.__cause__ = self.get(pickled.cause)

    def _field(self, packed: bytes | RemoteRepr) -> Any:
        if isinstance(packed, RemoteRepr):
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


class _Restoring(threading.local):
    restored: _Restored | None = None


_restoring = _Restoring()


def restore(pickled: list[PickledError], data: bytes, load: Load) -> Any:
    """Return an unpickled value, with the exceptions in it."""
    before, _restoring.restored = _restoring.restored, (restored := _Restored(pickled, load))
    try:
        value = load(data)
        restored.complete()
    finally:
        _restoring.restored = before
    return value


def error_at(number: int) -> BaseException:
    """Return an exception of the value that is being unpickled."""
    assert _restoring.restored is not None
    return _restoring.restored.get(number)


# Pids

DEAD_HERE, LIVES_HERE, LIVES_ELSEWHERE = range(3)

_KEPT_DEAD = 16_384  # dead pids that stay known, so that they are the same when they come again

PidAddress = tuple[str, int, int]  # its host, its number, and where its process lives


class PidTable:
    """The pids that have crossed the border of this OS process: each is one object here."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], Pid] = {}
        self.addresses: dict[Pid, PidAddress] = {}  # under which they first went out
        self._sweep_at = 2 * _KEPT_DEAD

    def add(self, pid: Pid) -> None:
        """Add a pid; forget old dead ones when there are too many."""
        self.known[pid.host, pid.number] = pid
        if len(self.known) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        known = tuple(self.known.items())  # in one go: another thread may add to it
        dead = [key for key, pid in known if pid.target is None]
        for key in dead[: max(0, len(dead) - _KEPT_DEAD)]:
            self.addresses.pop(self.known.pop(key), None)
        self._sweep_at = 2 * max(len(self.known), _KEPT_DEAD)


PIDS = PidTable()


class PidResolver(Protocol):
    """Makes a proxy for a pid that is new here."""

    def resolve_pid(self, pid: Pid, *, lives_there: bool) -> None:
        """Make the proxy; its process lives at the other end of a wire, or beyond."""
        ...


class _Current(threading.local):
    resolver: PidResolver | None = None


_current = _Current()


def set_pid_resolver(resolver: PidResolver) -> None:
    """Set the resolver that makes proxies in this thread; set it before unpickling."""
    _current.resolver = resolver


def pid_address(pid: Pid) -> PidAddress:
    """Return the address of a pid: its host, its number, and where its process first lived."""
    address = PIDS.addresses.get(pid)
    if address is None:
        target: object = pid.target
        if target is None:
            lives = DEAD_HERE
        else:
            lives = LIVES_ELSEWHERE if isinstance(target, RemoteProcess) else LIVES_HERE
        PIDS.add(pid)
        address = PIDS.addresses[pid] = (pid.host, pid.number, lives)
    return address


def pid_at(host: str, number: int, lives: int) -> Pid:
    """Return the pid of an address, with a proxy if it is new here."""
    pid = PIDS.known.get((host, number))
    if pid is None:
        pid = Pid(host, None, number)
        PIDS.add(pid)
        resolver = _current.resolver
        if resolver is not None and lives != DEAD_HERE:
            resolver.resolve_pid(pid, lives_there=lives == LIVES_HERE)
    return pid
