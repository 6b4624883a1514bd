"""What may stand in an entry, as types; the description of a field says what to write there."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

INDEX = "_index.yaml"
VERSION = "1.0"


class Seconds(float):
    """A duration, once it is read."""


_SPAN = 'a duration such as "500ms" or "1m30s"'

Span: TypeAlias = Annotated[Seconds, Meta(description=_SPAN)]
_QUOTED = "in quotes if YAML takes it for something else"

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
    """How a service that failed comes back."""

    initial_delay: Span = Seconds(1)
    max_delay: Span = Seconds(90)
    backoff_factor: Factor = 2.0
    jitter: Fraction = 0.1
    max_attempts: Limit = 0


class Lifecycle(Struct, frozen=True, kw_only=True):
    """When something starts, stops, and is started again.

    Attributes:
        auto_start: Start it when the entries are entered; by default hosts do, services do not.
        start_timeout: How long its start may take.
        stop_timeout: How long it may take to end before it is killed.
        stable_threshold: Having run so long, its failed starts are forgotten.
        depends_on: What is started before it, and stopped after it.
        requires: Another word for `depends_on`.
        startup: Whether others, and the start of the whole, wait until it runs.
        ready: It runs when it says so, by `perdure.ready()`, and not as soon as it is spawned.
        restart: How it comes back.
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
        """What is started before it."""
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
    """What a process gets when its spawn does not say it."""

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
    modules: Any = None  # of other languages; Python's imports say it all
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
