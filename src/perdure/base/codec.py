r"""How arguments, results and checkpoints become bytes, and come back as they were.

The format is JSON, the same for every store. A value is read back before it is stored, and refused
with `Unstorable` if it would not come back equal, before anything has happened. Accepted are

* plain JSON values, with ints of up to 4300 digits and `-0.0` exact, and any text, also with NUL
  characters and lone surrogates;
* tuples, sets, bytes, dates, keys that are not strings, …, where the declared type says so;
* dataclasses, msgspec Structs, attrs classes and pydantic models, where it says so.

Refused are NaN and infinities, secrets, other objects, what is nested too deep, and what is larger
than its limit. Nothing is ever pickled.

A NUL character is stored as `\u0000` and a lone surrogate as `\ud800`, each spelled out in ASCII,
so databases accept both. msgspec neither writes nor reads lone surrogates: values that have them go
through `_write_escaped` and `_read_escaped`, which are slower.

`Codec` comes first. The second half finds *which* part of a value cannot be stored and why; it is
slow and thorough, and runs only after the codec has seen that something is wrong.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar, cast, overload
from uuid import UUID

import msgspec

from perdure.base.checked import Checked
from perdure.base.errors import (
    DefinitionError,
    Drift,
    PayloadTooLarge,
    Unstorable,
    WrongType,
    safe_text,
)
from perdure.base.schema import (
    adapted,
    check,
    fields_of,
    fitted,
    is_abstract,
    is_secret,
    read_unknown,
    write_unknown,
)

T = TypeVar("T")

PayloadKind: TypeAlias = Literal["argument", "result", "record", "checkpoint", "message"]

VERSION = b"perdure/1"  # part of every digest: change it whenever the way digests are made changes
CACHED_TYPES = 1024  # a program has far fewer types in its source
LONGEST_INT = 4300  # digits that the interpreter agrees to print and to read

_LARGEST_INT = 10**LONGEST_INT
_ATOMS = (bool, bytes, bytearray, memoryview, date, time, timedelta, UUID, Enum, msgspec.Raw)
_SURROGATE = b"\\ud"  # how `json` begins to write one
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_CHUNK = 2048  # bytes whose brackets are counted at once
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_write = msgspec.json.Encoder(enc_hook=write_unknown).encode
_write_sorted = msgspec.json.Encoder(enc_hook=write_unknown, order="sorted").encode


class PayloadLimits(Checked, frozen=True, kw_only=True):
    """The largest payloads, and how large ones are kept: bytes of JSON, and levels of nesting."""

    # All arguments of a step together; beyond `inline`, the journal keeps only their digest.
    argument: int = 64 * 1024 * 1024
    result: int = 16 * 1024 * 1024  # of a step
    # The arguments and the result of a job, the result of an effect: a single row holds them.
    record: int = 2 * 1024 * 1024
    checkpoint: int = 64 * 1024  # written repeatedly: keep a cursor in it, not results
    message: int = 256 * 1024
    depth: int = 200
    # What is larger is not in the journal itself: arguments are a digest, results are elsewhere.
    inline: int = 16 * 1024
    # Results and checkpoints from this size on are logged: they make a job slow before they end it.
    large: int = 10 * 1024
    # How much of the digested arguments a replay compares again, the newest first.
    compared: int = 16 * 1024 * 1024


LIMITS = PayloadLimits()


class Codec(Generic[T]):
    """Writes and reads values of one declared type.

    Attributes:
        what: What the values are, for messages: "the result of step 'convert'".
        kind: Which limit applies.
    """

    __slots__ = ("_declared", "_loose", "_read", "_read_escaped", "kind", "what")

    def __init__(
        self,
        declared: Any,
        what: str = "the value",
        kind: PayloadKind = "result",
        *,
        loose: bool | None = None,
    ) -> None:
        """Prepare to read and write values.

        Args:
            declared: The type; Any means any plain JSON value.
            what: What the values are, for messages.
            kind: Which limit applies.
            loose: Whether tuples may come back as lists; by default, if the type is abstract.

        Raises:
            DefinitionError: No value of this type can be stored.
        """
        self.what: str = what
        self.kind: PayloadKind = kind
        prepare = _prepare_once if isinstance(declared, Hashable) else _prepare
        try:
            self._read, self._read_escaped, abstract = prepare(declared)
        except (TypeError, NameError) as error:
            raise DefinitionError(f"{what} cannot have the type {declared!r}: {error}") from None
        self._declared, self._loose = declared, abstract if loose is None else loose

    def encode(self, value: T, limits: PayloadLimits = LIMITS) -> bytes:
        """Return the value as JSON.

        Raises:
            WrongType: The value is not of the declared type.
            PayloadTooLarge: It is larger than its limit.
            Unstorable: It would not come back equal; the message says which part.
        """
        try:
            data = _write(value)
            if len(data) > getattr(limits, self.kind):
                self._refuse_size(data, limits)
            back = self._read(data)
            # A level takes two brackets, so most values are too short to be too deep.
            shallow = len(data) <= 2 * limits.depth or _is_shallow(data, limits.depth)
            if back == value and shallow:
                return data
        except PayloadTooLarge:
            raise
        except UnicodeEncodeError:
            data, back = self._escape(value, limits)
            if back == value and _is_shallow(data, limits.depth):
                return data
        except Exception as error:  # noqa: BLE001  the next line finds out what is wrong and where
            self._refuse(value, limits, error)
        if depth(data) > limits.depth:
            raise Unstorable(f"{self.what}: {_too_deep(limits)}")
        self._look_closer(value, back)
        return data

    def decode(self, data: bytes) -> T:
        """Return the value that was stored.

        Raises:
            Drift: It was stored by code that declared a different type.
        """
        try:
            return self._read(data)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:  # ValueError: pydantic
            if _SURROGATE in data:
                with suppress(ValueError, msgspec.MsgspecError, RecursionError):
                    return self._read_escaped(data)
            were = "were" if _is_plural(self.what) else "was"
            text = f"{self.what} {were} stored in a form that the code no longer accepts"
            raise Drift(f"{text}: {on_one_line(error)}") from error

    def _escape(self, value: T, limits: PayloadLimits) -> tuple[bytes, T]:
        """Return a value that has lone surrogates as JSON, and what is read back."""
        try:
            data = _write_escaped(value)
            if len(data) > getattr(limits, self.kind):
                self._refuse_size(data, limits)
            return data, self._read_escaped(data)
        except PayloadTooLarge:
            raise
        except Exception as error:  # noqa: BLE001  as in `encode`
            self._refuse(value, limits, error)

    def _refuse_size(self, data: bytes, limits: PayloadLimits) -> NoReturn:
        most = getattr(limits, self.kind)
        are = "are" if _is_plural(self.what) else "is"
        raise PayloadTooLarge(
            f"{self.what} {are} {len(data):,} bytes, but `PayloadLimits.{self.kind}` allows "
            f"{most:,}: store the data elsewhere and pass a reference, or raise the limit"
        )

    def _look_closer(self, value: T, back: T) -> None:
        """Raise Unstorable if a value differs from what came back, unless only its `==` says so."""
        fit = fitted(value, self._declared)
        if found := flaw(value) or difference(fit, back, loose=self._loose):
            raise Unstorable(f"{_place(self.what, found.path)}: {found.why}")

    def _refuse(self, value: T, limits: PayloadLimits, error: Exception) -> NoReturn:
        if isinstance(error, RecursionError):
            raise Unstorable(f"{self.what}: {_too_deep(limits)}, or contains itself") from None
        found = flaw(value)
        if found is not None:
            raise Unstorable(f"{_place(self.what, found.path)}: {found.why}") from None
        if isinstance(error, Unstorable):  # hidden in a private attribute of a model
            raise Unstorable(f"{self.what}: {error}") from None
        are = "are" if _is_plural(self.what) else "is"
        text = f"{self.what} {are} not of the declared type: {on_one_line(error)}"
        raise WrongType(text) from None


def _is_plural(what: str) -> bool:
    return what.startswith("the arguments")


def _prepare(declared: Any) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any], bool]:
    """Return two functions that read values of a type, and whether the type is abstract."""
    stand_in = adapted(declared)
    check(stand_in)
    read = msgspec.json.Decoder(stand_in, dec_hook=read_unknown).decode
    return read, partial(_read_escaped, stand_in), is_abstract(declared)


_prepare_once = lru_cache(maxsize=CACHED_TYPES)(_prepare)


def _read_escaped(kind: Any, data: bytes) -> Any:
    """Return a value whose JSON has lone surrogates."""
    return msgspec.convert(json.loads(data), kind, str_keys=True, dec_hook=read_unknown)


def _write_escaped(value: Any, *, is_sorted: bool = False) -> bytes:
    """Return a value that has lone surrogates as JSON, which is ASCII."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=write_unknown)
    separators = (",", ":")
    text = json.dumps(plain, allow_nan=False, separators=separators, sort_keys=is_sorted)
    return text.encode()


def write_plain(value: Any) -> bytes:
    """Return plain values as JSON, unchecked; also if a text has lone surrogates."""
    try:
        return _write(value)
    except UnicodeEncodeError:
        return _write_escaped(value)


def read_plain(data: bytes) -> Any:
    """Return stored JSON as plain values; also if a text has lone surrogates."""
    return json.loads(data) if _SURROGATE in data else msgspec.json.decode(data)


def encode(
    value: Any,
    declared: Any = Any,
    *,
    what: str = "the value",
    kind: PayloadKind = "result",
    limits: PayloadLimits = LIMITS,
) -> bytes:
    """Return a value as JSON; see `Codec.encode`."""
    return Codec[Any](declared, what, kind).encode(value, limits)


@overload
def decode(data: bytes, declared: type[T], *, what: str = ...) -> T: ...
@overload
def decode(data: bytes, declared: Any = ..., *, what: str = ...) -> Any: ...
def decode(data: bytes, declared: Any = Any, *, what: str = "the value") -> Any:
    """Return the value that was stored; see `Codec.decode`."""
    return Codec[Any](declared, what).decode(data)


def parse(text: bytes | str, what: str = "the text") -> Any:
    """Return the value of JSON that a person or a program wrote, read more strictly than usual.

    Raises:
        Unstorable: The text is not JSON, or an object has the same key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Unstorable(f"{what} must be JSON: {error}") from None


def canonical(value: Any) -> bytes:
    """Return a value as JSON with sorted keys: the same bytes for equal values.

    Only for keys and fingerprints; stored values keep their order.

    Raises:
        Unstorable: Some part of the value cannot be stored.
    """
    if found := flaw(value):
        raise Unstorable(f"{_place('the value', found.path)}: {found.why}")
    return _sorted(value)


def _sorted(value: Any) -> bytes:
    try:
        return _write_sorted(value)
    except UnicodeEncodeError:
        return _write_escaped(value, is_sorted=True)


def digest(*parts: bytes | str) -> str:
    """Return the SHA-256 of some parts, each after its length: `"a", "b"` is not `"ab"`."""
    hashed = [VERSION]
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hashed += (b"%d:" % len(data), data)
    return hashlib.sha256(b"".join(hashed)).hexdigest()


def fingerprint(name: str, *payloads: bytes) -> str:
    """Return a digest of stored JSON that does not depend on the order of keys."""
    return digest(name, *(_sorted(read_plain(payload)) for payload in payloads))


class Digest:
    """A digest to which parts are added one by one."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.sha256(VERSION)

    def add(self, part: bytes | str) -> None:
        """Add a part after its length."""
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        self._hash.update(b"%d:" % len(data))
        self._hash.update(data)

    def hex(self) -> str:
        """Return the digest of the parts so far."""
        return self._hash.hexdigest()


def depth(data: bytes) -> int:
    """Return how deeply JSON is nested."""
    brackets = _TEXT.sub(b"", data).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


def _is_shallow(data: bytes, most: int) -> bool:
    """Whether JSON is certainly not nested too deep; quick, and False if in doubt.

    Brackets inside strings are counted too, which can only give a wrong True if somebody built the
    string for it; then the recursion limit of the interpreter still holds.
    """
    level = 0
    for start in range(0, len(data), _CHUNK):
        end = start + _CHUNK
        opened = data.count(b"[", start, end) + data.count(b"{", start, end)
        if level + opened > most:
            return False
        level += opened - data.count(b"]", start, end) - data.count(b"}", start, end)
        if level < 0:
            return False
    return True


def _too_deep(limits: PayloadLimits) -> str:
    return f"it is nested deeper than the {limits.depth} levels of `PayloadLimits.depth`"


def _place(what: str, path: str) -> str:
    return f"{what}, at {path.strip('. ')}" if path else what


def on_one_line(error: BaseException | None) -> str:
    """Return the message of an error on one line, without the links that pydantic adds."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if not line.startswith("For further information"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen = Counter(key for key, _ in pairs)
        twice = next(key for key, times in seen.items() if times > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


# Which part of a value cannot be stored, and why.


class Flaw(NamedTuple):
    """What is wrong, and where: `.rows[3].price`."""

    path: str
    why: str


def flaw(value: Any, path: str = "") -> Flaw | None:
    """Return the first part that JSON cannot hold; None if there is none."""
    why = _flaw_of_one(value)
    if why:
        return Flaw(path, why)
    return next((found for at, part in _inside(value, path) if (found := flaw(part, at))), None)


def difference(value: Any, back: Any, *, loose: bool = False, path: str = "") -> Flaw | None:
    """Return the first difference between a value and what was read back; None if equal.

    Args:
        value: The value to store.
        back: What would be read back.
        loose: Tuples may come back as lists, since the declared type is only `Sequence`.
        path: The path to both.
    """
    if not _same_kind(value, back, loose=loose):
        return Flaw(path, _turned_into(value, back))
    mine, theirs = list(_inside(value, path)), dict(_inside(back, path))
    if [at for at, _ in mine] != list(theirs):
        return Flaw(path, _other_parts(value, back))
    if not mine and not _equal(value, back):
        return Flaw(path, f"it would come back as {_shown(back)}")
    pairs = ((at, part, theirs[at]) for at, part in mine)
    found = (difference(one, other, loose=loose, path=at) for at, one, other in pairs)
    return next((each for each in found if each), None)


def _same_kind(value: Any, back: Any, *, loose: bool) -> bool:
    if type(value) is type(back) or _equal(value, back):
        return True
    return loose and isinstance(value, list | tuple) and isinstance(back, list | tuple)


def _flaw_of_one(value: Any) -> str:
    """Return what is wrong with a value itself, not with the parts inside it."""
    if is_secret(type(value)):
        return "it is a secret, and secrets are never stored: read it inside the step"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"JSON cannot represent {value}: use None"
    if isinstance(value, Decimal):
        return f"{value} is not equal to itself: use None" if value.is_nan() else ""
    if isinstance(value, int) and not -_LARGEST_INT < value < _LARGEST_INT:
        return f"it is an int of more than {LONGEST_INT} digits"
    return "" if _is_known(value) else f"{_kind(value)} cannot be stored: {_advice(value)}"


def _is_known(value: Any) -> bool:
    plain = (
        value is None
        or isinstance(value, str)
        or type(value) in (int, list, tuple, dict, set, frozenset)
    )
    return plain or isinstance(value, _ATOMS) or fields_of(value) is not None


def _inside(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with its path."""
    if isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield f"{path} (key {_shown(key)})", key
            yield (f"{path}.{key}" if _is_name(key) else f"{path}[{_shown(key)}]"), part
    elif isinstance(value, list | tuple):
        yield from _numbered(cast("list[Any]", value), path)
    elif isinstance(value, set | frozenset):
        yield from _numbered(sorted(cast("set[Any]", value), key=repr), path)
    else:
        for name, part in (fields_of(value) or {}).items():
            yield f"{path}.{name}", part


def _numbered(values: Iterable[Any], path: str) -> Iterator[tuple[str, Any]]:
    return ((f"{path}[{index}]", part) for index, part in enumerate(values))


def _equal(value: Any, back: Any) -> bool:
    try:
        return bool(value == back)
    except Exception:  # noqa: BLE001  a broken __eq__ only means that they differ
        return False


def _other_parts(value: Any, back: Any) -> str:
    if isinstance(value, dict) and isinstance(back, dict):
        mine = cast("dict[Any, Any]", value)
        for key in mine:
            if key not in back and not isinstance(key, str):
                return f"its key {_shown(key)} would come back as str: declare the type of its keys"
    return "it would come back with different parts"


def _turned_into(value: Any, back: Any) -> str:
    return (
        f"{_kind(value)} would come back as {_kind(back)}: "
        "declare its type in the annotations of the function"
    )


def _advice(value: Any) -> str:
    base = next((each for each in (str, int, float) if isinstance(value, each)), None)
    if base:
        return f"make it a plain {base.__name__}"
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of numpy, or like it
        return "write `.tolist()`, which makes plain values of it"
    return "use plain JSON values, a dataclass, a Struct or a model"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__qualname__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} `{name}`"


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _shown(value: Any) -> str:
    text = safe_text(value, ascii)
    return text if len(text) <= 40 else f"{text[:37]}…"  # noqa: PLR2004  enough to recognise it
