"""Events that say what happens, and handlers that count, log or trace them.

The code that does the work only emits: `execute(("perdure", "job", "end"), {...}, {...})`.
Handlers run synchronously, in the process (and thread) of the emitter. A handler that raises is
detached and reported, and harms neither the others nor the emitter.

The functions of this module belong to one `Telemetry`, the table of the whole OS process. This
global is deliberate: emitters and handlers must meet without knowing each other. A component that
wants a table of its own makes a `Telemetry`.
"""

import inspect
import itertools
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeAlias, cast

# pyright: reportUnusedImport=false
from perdure.base import visible as _visible  # noqa: F401  makes the logs of the package readable
from perdure.base.clock import Clock, SystemClock

Event: TypeAlias = tuple[str, ...]
"""The name of an event: a non-empty tuple of strings, from general to specific."""

Values: TypeAlias = Mapping[str, Any]

Handler: TypeAlias = Callable[[Event, Values, Values, Any], object]
"""Called with the event, its measurements, its metadata, and the config given to `attach`."""

HANDLER_FAILURE: Event = ("telemetry", "handler", "failure")

KNOWN_EVENTS = 4096  # names without a handler that are remembered; a program has a few hundred

_NOTHING: Values = MappingProxyType({})
_CONTEXT = "telemetry_span_context"
_log = logging.getLogger("perdure.telemetry")


@dataclass(frozen=True, slots=True, eq=False)
class Attached:
    """One handler on one event; an id on several events has one for each."""

    id: Hashable
    event: Event
    handler: Handler
    config: object


class Telemetry:
    """A table of handlers; all methods are thread-safe."""

    __slots__ = ("_by_event", "_by_id", "_clock", "_lock", "_spans")

    def __init__(self, clock: Clock | None = None) -> None:
        """Start with no handler.

        Args:
            clock: Measures spans; by default the clock of the machine.
        """
        self._clock = clock or SystemClock()
        self._spans = itertools.count(1)
        # Writers hold the lock and replace tuples; `execute` reads without it.
        self._lock = Lock()
        self._by_id: dict[Hashable, tuple[Attached, ...]] = {}
        self._by_event: dict[Event, tuple[Attached, ...]] = {}

    def attach(
        self,
        id: Hashable,
        event: Event,
        handler: Handler,
        config: object = None,
    ) -> None:
        """Call `handler` at each such event, until `detach(id)` or until it raises.

        Raises:
            ValueError: The id is taken, or the event is empty.
            TypeError: The event is not a tuple of strings, or the handler not a plain function.
        """
        self.attach_many(id, (event,), handler, config)

    def attach_many(
        self,
        id: Hashable,
        events: Iterable[Event],
        handler: Handler,
        config: object = None,
    ) -> None:
        """Attach one handler to many events, to be detached from all of them together.

        Raises:
            ValueError: The id is taken, there is no event, or an event is empty.
            TypeError: An event is not a tuple of strings, or the handler not a plain function.
        """
        _check_handler(handler)
        wanted = dict.fromkeys(_checked(event) for event in events)
        if not wanted:
            raise ValueError(f"telemetry handler {id!r} needs at least one event")
        entries = tuple(Attached(id, event, handler, config) for event in wanted)
        with self._lock:
            if id in self._by_id:
                raise ValueError(f"telemetry handler {id!r} is already attached: detach it first")
            self._by_id[id] = entries
            for entry in entries:
                self._by_event[entry.event] = (*self._by_event.get(entry.event, ()), entry)

    def detach(self, id: Hashable) -> None:
        """Detach the handler from all its events.

        Raises:
            LookupError: No handler has this id.
        """
        with self._lock:
            if id not in self._by_id:
                raise LookupError(f"no telemetry handler {id!r} is attached")
            self._remove(id)

    def list_handlers(self, prefix: Event = ()) -> list[Attached]:
        """Return the handlers of all events that begin with `prefix`, in order of attachment.

        Raises:
            TypeError: The prefix is not a tuple of strings.
        """
        if prefix:
            _checked(prefix)
        elif prefix != ():
            raise _wrong_type(prefix)
        with self._lock:
            entries = [entry for many in self._by_id.values() for entry in many]
        return [entry for entry in entries if entry.event[: len(prefix)] == prefix]

    def execute(
        self, event: Event, measurements: Values = _NOTHING, metadata: Values = _NOTHING
    ) -> None:
        """Emit an event to the handlers of exactly this name.

        Without a handler, this costs one dictionary lookup.

        Raises:
            ValueError: The event is empty.
            TypeError: The event is not a tuple of strings.
        """
        try:
            attached = self._by_event.get(event)
        except TypeError:  # not hashable, hence not a tuple of strings
            attached = None
        if attached is None:
            self._admit(event)
            return
        for entry in attached:
            try:
                entry.handler(event, measurements, metadata, entry.config)
            except (KeyboardInterrupt, SystemExit):
                raise  # meant for the whole program; it can be raised anywhere
            except BaseException as error:  # noqa: BLE001  an exit raised by a handler is its failure
                self._fail(entry, error)

    @property
    def has_handlers(self) -> Callable[[Event], object]:
        """Whether an event has handlers, for emitters whose metadata is expensive to build.

        It is the dictionary lookup itself, without a call around it; only its truth counts.
        """
        return self._by_event.get

    def span(self, prefix: Event, /, **metadata: object) -> "Span":
        """Return a span that measures a piece of work, in sync and async code alike.

        `with span(("app", "fetch"), url=url) as work: ...; work.update(status=200)`

        Raises:
            ValueError: The prefix is empty.
            TypeError: The prefix is not a tuple of strings.
        """
        metadata.setdefault(_CONTEXT, next(self._spans))
        return Span(self, self._clock, _checked(prefix), metadata)

    def _admit(self, event: Event) -> None:
        """Check an unknown name, and remember it so that it is checked only once."""
        _checked(event)
        if len(self._by_event) < KNOWN_EVENTS:
            with self._lock:
                self._by_event.setdefault(event, ())

    def _remove(self, id: Hashable) -> None:
        for entry in self._by_id.pop(id):
            left = tuple(each for each in self._by_event[entry.event] if each is not entry)
            self._by_event[entry.event] = left

    def _fail(self, entry: Attached, error: BaseException) -> None:
        """Detach a handler, then report it; in this order, the report cannot reach it again."""
        with self._lock:
            # Another handler may have the id by now, if this one was detached while it ran.
            if entry in self._by_id.get(entry.id, ()):
                self._remove(entry.id)
        _log.error(
            "telemetry handler %r failed at event %r and is detached from all its events",
            entry.id,
            entry.event,
            exc_info=error,
        )
        self.execute(
            HANDLER_FAILURE,
            {"monotonic_time": self._clock.monotonic_ns(), "system_time": self._clock.time_ns()},
            {
                "event_name": entry.event,
                "handler_id": entry.id,
                "handler_config": entry.config,
                **_failure(error, error.__traceback__),
            },
        )


class Span:
    """A piece of work that emits its start and its stop or exception; made by `span`.

    `prefix + ("start",)` has `monotonic_time` and `system_time`, `prefix + ("stop",)` and
    `prefix + ("exception",)` have `duration` and `monotonic_time`, all in integer nanoseconds.
    An exception adds `kind` ("error", or "exit" for a cancellation or the end of a process),
    `reason` (the exception) and `stacktrace` (its traceback) to the metadata, and propagates.
    """

    __slots__ = ("_clock", "_measurements", "_metadata", "_prefix", "_started", "_telemetry")

    def __init__(
        self, telemetry: Telemetry, clock: Clock, prefix: Event, metadata: dict[str, object]
    ) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._prefix = prefix
        self._metadata = metadata
        self._measurements: dict[str, object] = {}
        self._started = 0

    def update(self, **metadata: object) -> None:
        """Add metadata for the end of the span; that of the start stays unless named here."""
        context = self._metadata[_CONTEXT]
        # A new dict, because the handlers of the start may have kept theirs.
        self._metadata = {**self._metadata, **metadata, _CONTEXT: context}

    def measure(self, **measurements: object) -> None:
        """Add measurements for the end of the span; the span's own times take precedence."""
        self._measurements.update(measurements)

    def __enter__(self) -> Self:
        now = self._started = self._clock.monotonic_ns()
        times = {"monotonic_time": now, "system_time": self._clock.time_ns()}
        self._telemetry.execute((*self._prefix, "start"), times, self._metadata)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        now = self._clock.monotonic_ns()
        times = {**self._measurements, "duration": now - self._started, "monotonic_time": now}
        if error is None:
            self._telemetry.execute((*self._prefix, "stop"), times, self._metadata)
        else:
            metadata = {**self._metadata, **_failure(error, trace)}
            self._telemetry.execute((*self._prefix, "exception"), times, metadata)


def _failure(error: BaseException, trace: TracebackType | None) -> dict[str, object]:
    kind = "error" if isinstance(error, Exception) else "exit"
    return {"kind": kind, "reason": error, "stacktrace": trace}


def _checked(event: object) -> Event:
    if not isinstance(event, tuple):
        raise _wrong_type(event)
    parts = cast("tuple[object, ...]", event)
    if not parts:
        raise ValueError("a telemetry event is a non-empty tuple of str, not ()")
    for part in parts:  # a plain loop, since every span passes here
        if not isinstance(part, str):
            raise _wrong_type(parts)
    return cast("Event", parts)


def _wrong_type(event: object) -> TypeError:
    return TypeError(
        f'a telemetry event is a non-empty tuple of str such as ("app", "start"), not {event!r}'
    )


def _check_handler(handler: object) -> None:
    if not callable(handler):
        raise TypeError(f"a telemetry handler must be callable, not {handler!r}")
    if inspect.iscoroutinefunction(handler):
        raise TypeError(f"a telemetry handler runs synchronously: make {handler!r} a plain def")


_default = Telemetry()

attach = _default.attach
attach_many = _default.attach_many
detach = _default.detach
execute = _default.execute
has_handlers = _default.has_handlers
list_handlers = _default.list_handlers
span = _default.span
