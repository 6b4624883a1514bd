"""An exception as data, as the journal keeps it: without secrets, and cut to a size.

An exception that a step or job declares in `raises` is an outcome, not an accident: its attributes
and arguments are stored, so that it comes back as its own type (`Failure.raised`).
"""

import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast, get_type_hints

import msgspec
from msgspec import Raw, Struct

from perdure.base.codec import LIMITS, Codec, PayloadLimits, read_plain
from perdure.base.errors import (
    DefinitionError,
    JobError,
    JobFailed,
    RemoteError,
    StepFailed,
    Unstorable,
    safe_text,
)
from perdure.base.secret import without_secrets

LONGEST_MESSAGE = 4096  # characters; a longer message holds a payload
LONGEST_TRACE = 16_384

# Secrets are removed before a text is cut, in a piece this many times longer than what is kept:
# a secret that the cut splits in two would not be recognised.
_SCANNED = 4

_NO_DATA: Final = Raw(b"null")
_HAS_LINES: Final = '\n  File "'

Raises: TypeAlias = tuple[type[Exception], ...]

_ERRORS_MODULE = JobError.__module__  # users import what it defines from `perdure.errors`


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of a step or a job, as data.

    Attributes:
        type: The class of the exception, with its module unless it is a builtin.
        message: Its text without secrets, cut to `LONGEST_MESSAGE`.
        trace: The end of its traceback without secrets, cut to `LONGEST_TRACE`.
        attempt: Which attempt failed, from 1.
        permanent: Trying again cannot help.
        outage: Another system failed and may recover.
        step: The journal entry at which the job stopped, if any.
        standing: Effects that the job leaves behind and that nothing undoes.
        data: What an exception that was declared in `raises` holds; null for any other.
    """

    type: str
    message: str
    trace: str = ""
    attempt: int = 1
    permanent: bool = False
    outage: bool = False
    step: str = ""
    standing: tuple[str, ...] = ()
    data: Raw = _NO_DATA

    def pack(self) -> bytes:
        """Return the failure as JSON; this never raises."""
        return msgspec.json.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> "Failure":
        """Read what `pack` returned."""
        return msgspec.json.decode(data, type=cls)

    def as_error(self, step: str, cause: BaseException | None = None) -> StepFailed:
        """Return the exception that the job sees, the same on the first run and on every replay.

        Its cause is what the step raised, or in a replay what is left of that.
        """
        failed = StepFailed(step, self.type, self.message, self.attempt, outage=self.outage)
        failed.__cause__ = cause or self.as_cause()
        return failed

    def as_cause(self) -> RemoteError | None:
        """Return what stands for the exception, with the lines of code at which it was raised."""
        if _HAS_LINES not in self.trace:
            return None
        cause = RemoteError(self.type, self.message, self.trace)
        cause.add_note(self.trace.rstrip())
        return cause

    @property
    def is_outcome(self) -> bool:
        """Whether the exception was declared in `raises`, and is stored with what it holds."""
        return bytes(self.data) != b"null"

    def raised(self, raises: Raises, cause: Exception | None = None) -> Exception | None:
        """Return the exception itself with a cause, if it was stored and is declared.

        Raises:
            Drift: What it held does not fit its class any more.
        """
        kind = _declared(self.type, raises) if self.is_outcome else None
        return None if kind is None else _restored(kind, self.data, cause)

    def summary(self) -> str:
        """Return one line for people."""
        text = f"{self.type}: {self.message}" if self.message else self.type
        return f"{text}; not undone: {', '.join(self.standing)}" if self.standing else text


def failure_of(
    error: BaseException,
    attempt: int = 1,
    *,
    permanent: bool = False,
    outage: bool = False,
    raises: Raises = (),
    limits: PayloadLimits = LIMITS,
) -> Failure:
    """Return an exception as data, whatever it holds; one of `raises` so that it can come back."""
    message, data = _message(error), _NO_DATA
    if isinstance(error, raises):
        permanent, outage = True, False
        try:
            data = _stored(error, limits)
        except Unstorable as problem:  # it comes as StepFailed, and the message says why
            message = f"{message} (it cannot be stored as it is: {problem})"
    return Failure(
        type=type_name(type(error)),
        message=_clean(message[: _SCANNED * LONGEST_MESSAGE])[:LONGEST_MESSAGE],
        trace=_trace(error),
        attempt=attempt,
        permanent=permanent,
        outage=outage,
        step=next(stopped_at(error), ""),
        data=data,
    )


def _message(error: BaseException) -> str:
    """Return the text of an error; that of a group names what is in it."""
    text = safe_text(error, str)
    if not isinstance(error, BaseExceptionGroup):
        return text
    group = cast("BaseExceptionGroup[BaseException]", error)
    return f"{text}: {'; '.join(f'{type(e).__name__}: {_message(e)}' for e in group.exceptions)}"


def stopped_at(error: BaseException) -> Iterator[str]:
    """Yield the journal entries that an error came from, also if the code has raised its own."""
    left, seen = [error], set[int]()
    while left:
        raised = left.pop()
        if id(raised) in seen:
            continue
        seen.add(id(raised))
        if isinstance(raised, JobError) and raised.step:
            yield raised.step
        elif isinstance(raised, BaseExceptionGroup):
            left += reversed(cast("BaseExceptionGroup[BaseException]", raised).exceptions)
        elif raised.__cause__ is not None:
            left.append(raised.__cause__)
        elif raised.__context__ is not None and not raised.__suppress_context__:
            left.append(raised.__context__)


def job_error(job_id: str, state: str, error: bytes | None, raises: Raises) -> Exception:
    """Return what people who wait for a job get if it ended without a result.

    It is what the job raised, if the job declares it; its cause is the `JobFailed` that they get
    otherwise.
    """
    failure = None if error is None else Failure.unpack(error)
    why = "no reason is known" if failure is None else failure.summary()
    failed = JobFailed(job_id, state, why)
    if failure is None:
        return failed
    failed.__cause__ = failure.as_cause()
    return failure.raised(raises, failed) or failed


def type_name(kind: type[Any]) -> str:
    """Return the name of a class as users import it."""
    module = "perdure.errors" if kind.__module__ == _ERRORS_MODULE else kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001  a broken __str__
        return f"(no traceback: {type(broken).__name__})"
    # The end says what happened and where, so the beginning is what goes.
    return _clean(text[-_SCANNED * LONGEST_TRACE :])[-LONGEST_TRACE:]


def _clean(text: str) -> str:
    """Remove secrets, and replace characters that no store accepts."""
    text = without_secrets(text)
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


# Exceptions that come back


class _Argument(Struct, omit_defaults=True):
    """One of the `args` of an exception: the value of an attribute, or one of its own."""

    attribute: str = ""
    value: Raw = _NO_DATA


class _Data(Struct):
    """What an exception holds."""

    attributes: dict[str, Raw]
    args: list[_Argument]


def _stored(error: Exception, limits: PayloadLimits) -> Raw:
    kind, held = type(error), dict(_attributes(error))
    what = f"{kind.__name__}.args"
    names = {id(value): name for name, value in held.items()}
    data = _Data(
        attributes={
            name: _raw(_codec(kind, name).encode(value, limits)) for name, value in held.items()
        },
        args=[
            _Argument(attribute=names[id(each)])
            if id(each) in names
            else _Argument(value=_raw(Codec[Any](Any, what).encode(each, limits)))
            for each in error.args
        ],
    )
    return Raw(msgspec.json.encode(data))


_QUOTED: Final = b'{"quoted_json":'


class _Quoted(Struct):
    """JSON as a text, since msgspec does not read JSON with lone surrogates."""

    quoted_json: str


def _raw(data: bytes) -> Raw:
    # What an exception holds may look like our quotation: then it is quoted, too.
    quoted = b"\\ud" in data or data.startswith(_QUOTED)
    return Raw(msgspec.json.encode(_Quoted(data.decode())) if quoted else data)


def _json(raw: Raw) -> bytes:
    data = bytes(raw)
    if data.startswith(_QUOTED):
        return msgspec.json.decode(data, type=_Quoted).quoted_json.encode()
    return data


def _attributes(error: Exception) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an exception was given, also those in slots."""
    slots = [name for each in type(error).__mro__ for name in _slots_of(each)]
    for name in dict.fromkeys([*slots, *vars(error)]):
        if not name.startswith("__") and hasattr(error, name):
            yield name, getattr(error, name)


def _slots_of(kind: type[Any]) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _restored(kind: type[Exception], data: Raw, cause: Exception | None) -> Exception:
    found = msgspec.json.decode(data, type=_Data)
    held = {name: _codec(kind, name).decode(_json(raw)) for name, raw in found.attributes.items()}
    args = [
        held[each.attribute] if each.attribute else read_plain(_json(each.value))
        for each in found.args
    ]
    # Without `__init__`: its parameters need not be what it has stored.
    error = kind.__new__(kind, *args)
    for name, value in ({"args": tuple(args), "__cause__": cause} | held).items():
        object.__setattr__(error, name, value)  # also in a frozen dataclass
    return error


def _declared(name: str, raises: Raises) -> type[Exception] | None:
    """Return the class of this name among those that are declared, and their subclasses.

    Its module may have changed: a program that is run as a script is called `__main__`.
    """
    family = list(_family(raises))
    last = name.rpartition(".")[2]
    exact = (kind for kind in family if type_name(kind) == name)
    return next(exact, None) or next((kind for kind in family if kind.__name__ == last), None)


def _family(raises: Raises) -> Iterator[type[Exception]]:
    for kind in raises:
        yield kind
        yield from _family(tuple(kind.__subclasses__()))


def _codec(kind: type[Exception], name: str) -> Codec[Any]:
    what = f"{kind.__name__}.{name}"
    try:
        return Codec(_types(kind).get(name, Any), what)
    except DefinitionError:  # a type that no store knows; its value may still be a plain one
        return Codec(Any, what)


@lru_cache(maxsize=1024)
def _types(kind: type[Exception]) -> dict[str, Any]:
    """Return the types of attributes: from annotations of the class, else of its `__init__`."""
    types: dict[str, Any] = {}
    for source in (cast("Any", kind).__init__, kind):
        with suppress(Exception):  # an annotation for type checkers only: any plain value
            types |= get_type_hints(source)
    return types
