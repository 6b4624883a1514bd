"""The fields of an entry, as types; the description of each says what to write there.

`read_struct` turns plain values into them, every field by itself, so that all mistakes are found
at once.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from perdure.base.duration import required_seconds
from perdure.base.errors import Mistake, safe_text
from perdure.entries.yaml import Location

INDEX = "_index.yaml"
VERSION = "1.0"


class Seconds(float):
    """A duration that was read."""


_SPAN = 'a duration such as "500ms" or "1m30s"'

Span: TypeAlias = Annotated[Seconds, Meta(description=_SPAN)]
_QUOTED = "in quotes if YAML reads it as something else"

Name: TypeAlias = Annotated[str, Meta(description=f"a name, {_QUOTED}", min_length=1)]
Kind: TypeAlias = Annotated[
    str, Meta(description="process.host, process.py or process.service", min_length=1)
]
Text: TypeAlias = Annotated[str, Meta(description=f"text, {_QUOTED}", min_length=1)]
Flag: TypeAlias = Annotated[bool, Meta(description="true or false")]
Count: TypeAlias = Annotated[int, Meta(description="a whole number, 1 or more", ge=1)]
Times: TypeAlias = Annotated[int, Meta(description="a whole number, 0 or more", ge=0)]
Limit: TypeAlias = Annotated[int, Meta(description="a whole number; 0 = no limit", ge=0)]
Factor: TypeAlias = Annotated[float, Meta(description="a number, 1 or more", ge=1)]
Fraction: TypeAlias = Annotated[float, Meta(description="a number from 0 to 1", ge=0, le=1)]
Id: TypeAlias = Annotated[
    str, Meta(description="the id of an entry: namespace:name, or its name alone", min_length=1)
]
Ids: TypeAlias = Annotated[tuple[Id, ...], Meta(description="a list of ids of entries")]
Input: TypeAlias = Annotated[tuple[Any, ...], Meta(description="a list of arguments")]
HostKind: TypeAlias = Annotated[
    Literal["inline", "threads", "os"], Meta(description="one of inline, threads, os")
]
Startup: TypeAlias = Annotated[
    Literal["required", "optional"], Meta(description="required or optional")
]


class RestartPlan(Struct, frozen=True, kw_only=True):
    """How a service that failed is restarted."""

    initial_delay: Span = Seconds(1)
    max_delay: Span = Seconds(90)
    backoff_factor: Factor = 2.0
    jitter: Fraction = 0.1
    max_attempts: Limit = 0


class Lifecycle(Struct, frozen=True, kw_only=True):
    """When a host or a service starts, stops, and is restarted.

    Attributes:
        auto_start: Start it with the entries; by default hosts do, services do not.
        start_timeout: How long its start may take.
        stop_timeout: How long it may take to end before it is killed.
        stable_threshold: After it has run this long, its failed starts are forgotten.
        depends_on: What is started before it, and stopped after it.
        requires: An alias of `depends_on`.
        startup: Whether others, and the start as a whole, wait until it runs.
        ready: It counts as running once it calls `perdure.entries.ready()`, not when spawned.
        restart: How it is restarted.
    """

    auto_start: Flag | None = None
    start_timeout: Span = Seconds(10)
    stop_timeout: Span = Seconds(10)
    stable_threshold: Span = Seconds(5)
    depends_on: Ids = ()
    requires: Ids = ()
    startup: Startup = "required"
    ready: Flag = False
    restart: RestartPlan = RestartPlan()

    @property
    def needs(self) -> tuple[str, ...]:
        """What must be started before it."""
        return (*self.depends_on, *self.requires)


class HostSize(Struct, frozen=True, kw_only=True):
    """The block `host` of a host; all but the last are options of `ProcessHost`."""

    kind: HostKind = "threads"
    workers: Count | None = None
    max_processes: Count | None = None
    queue_size: Count | None = None
    dedicated: Flag | None = None
    blocked_after: Span | None = None
    kill_after: Span | None = None
    max_restarts: Times | None = None
    max_seconds: Span | None = None
    local_queue_size: Count | None = None


class Defaults(Struct, frozen=True, kw_only=True):
    """The default options of a spawn."""

    host: Id | None = None
    input: Input | None = None


class HostEntry(Struct, frozen=True, kw_only=True):
    """`process.host`: where processes run."""

    name: Name
    kind: Kind
    host: HostSize = HostSize()
    lifecycle: Lifecycle = Lifecycle()
    meta: Any = None


class ProcessEntry(Struct, frozen=True, kw_only=True):
    """`process.py`: a function that processes run; nothing runs until it is spawned."""

    name: Name
    kind: Kind
    source: Any = None
    module: Text | None = None
    method: Text = "main"
    modules: Any = None  # for other languages; in Python the imports say it
    imports: Any = None
    host: Id | None = None
    input: Input | None = None
    defaults: Defaults = Defaults()
    lifecycle: Lifecycle = Lifecycle()
    meta: Any = None


class ServiceEntry(Struct, frozen=True, kw_only=True):
    """`process.service`: a process that is kept running."""

    name: Name
    kind: Kind
    process: Id
    host: Id | None = None
    input: Input | None = None
    lifecycle: Lifecycle = Lifecycle()
    meta: Any = None


Entry: TypeAlias = HostEntry | ProcessEntry | ServiceEntry

KINDS: dict[str, type[Entry]] = {
    "process.host": HostEntry,
    "process.py": ProcessEntry,
    "process.service": ServiceEntry,
}


# From plain values to these types

S = TypeVar("S", bound=Struct)

LONGEST_SHOWN = 60  # characters of a wrong value in a message


def read_struct(kind: type[S], value: object, at: Location, mistakes: list[Mistake]) -> S | None:
    """Return a mapping as a struct, and add its mistakes to the list.

    An invalid value is treated as missing, so that the rest can be checked;
    returns None if a required one is missing.
    """
    if not isinstance(value, Mapping):
        mistakes.append(at.mistake(f"{_what(at)} {shown(value)}: write a mapping"))
        return None
    given = cast("Mapping[str, object]", value)
    known = {field.name: field for field in fields(kind)}
    for key in [key for key in given if key not in known]:
        place = at.inside(key)
        mistakes.append(place.mistake(f"unknown key {_path(place)!r}{instead(str(key), known)}"))
    for field in known.values():
        if field.required and given.get(field.name) is None:
            text = f"{_path(at.inside(field.name))!r} is missing: write {_wanted(field)}"
            mistakes.append(at.mistake(text))
    read = {
        key: _field(known[key], each, at.inside(key), mistakes)
        for key, each in given.items()
        if key in known and each is not None  # an empty value is the same as no key
    }
    good = {key: each for key, each in read.items() if each is not None}
    needed = (field.name for field in known.values() if field.required)
    return kind(**good) if all(name in good for name in needed) else None


def _field(field: FieldInfo, value: object, at: Location, mistakes: list[Mistake]) -> Any:
    kind: Any = field.type
    if isinstance(kind, type) and issubclass(kind, Struct):
        return read_struct(kind, value, at, mistakes)
    try:
        return msgspec.convert(value, cast("Any", kind), dec_hook=_decode)
    except msgspec.ValidationError:
        mistakes.append(at.mistake(f"{_what(at)} {shown(value)}: write {_wanted(field)}"))
        return None


def _decode(kind: type, value: Any) -> Any:
    if kind is Seconds:
        return Seconds(required_seconds(value))
    raise NotImplementedError(kind)


def _wanted(field: FieldInfo) -> str:
    """Return the description of a field's type."""
    for part in (field.type, *get_args(field.type)):
        for meta in getattr(part, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.description:
                return meta.description
    return "a value"


def _path(at: Location) -> str:
    return at.field(2)  # behind `entries` and the index


def _what(at: Location) -> str:
    return f"{_path(at)} is" if _path(at) else "it is"


def shown(value: object) -> str:
    """Return a wrong value as text for a message, as it would appear in a file."""
    match value:
        case None:
            return "missing"
        case bool():
            return str(value).lower()
        case date():
            return str(value)
        case _:
            text = safe_text(value)
            return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def instead(wrong: str, known: Iterable[str]) -> str:
    """Return a suggestion for a wrong word, or else the list of all allowed words."""
    known = list(known)
    near = get_close_matches(wrong, known, n=3)
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": write one of {', '.join(known)}" if known else ""
