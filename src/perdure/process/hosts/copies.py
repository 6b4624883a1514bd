"""Copies of what cannot cross to another OS process as it is; above all of exceptions.

In a pickled value a number stands for each exception. The exceptions go along apart, each once,
however they hang together: as causes, arguments and fields of each other, in a ring, by thousands.
So one that cannot cross is told in words alone, and the others are as they were.
"""

import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from perdure.base.errors import NotPortable, RemoteError, safe_text

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


class _Open(threading.local):
    restored: _Restored | None = None


_open = _Open()


def restore(told: list[Told], data: bytes, load: Load) -> Any:
    """Unpack a value, with the exceptions in it."""
    before, _open.restored = _open.restored, (restored := _Restored(told, load))
    try:
        value = load(data)
        restored.complete()
    finally:
        _open.restored = before
    return value


def numbered(number: int) -> BaseException:
    """Give an exception of the value that is being unpacked."""
    assert _open.restored is not None
    return _open.restored.give(number)
