"""Agent: state that is changed only by functions that are sent to it.

    kv = await Agent.start_link(dict, name="kv")
    await kv.update(lambda state: {**state, "x": 42})
    x = await kv.get(lambda state: state["x"])

The functions run inside the agent, one after another, in the order in which they arrive.
Every method may also be called on the class, with a pid or a name: `Agent.get("kv", function)`.
"""

import asyncio
import datetime as dt
import decimal
import fractions
import logging
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from math import inf
from pathlib import PurePosixPath, PureWindowsPath
from re import Pattern
from types import BuiltinFunctionType, CoroutineType, EllipsisType, FunctionType, NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Never,
    TypeAlias,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from msgspec import Struct

from perdure.base import telemetry
from perdure.base.duration import Duration, named_seconds, spell
from perdure.base.errors import BadReturn, SnapshotError, is_planned, safe_text
from perdure.base.pid import MonitorRef, Pid
from perdure.otp.address import ServerRef, Via, pid_of
from perdure.otp.server import DIRECTIVES, GenServer, NoReply, Reply, ServerStart, Stop, settled
from perdure.otp.server import send_request as ask
from perdure.otp.snapshot import Snapshot, checksum_of, encode_state, load, save, seal
from perdure.otp.start import Stoppable
from perdure.otp.supervision.spec import ChildSpec, RestartWord, Shutdowns
from perdure.process.event import LinkDown
from perdure.process.exit_reason import linked_reason
from perdure.process.process import current
from perdure.process.request import Request

T = TypeVar("T")
if TYPE_CHECKING:  # a default that only type checkers understand: `Agent` is an `Agent[Any]`
    from typing_extensions import TypeVar as TypeVarWithDefault

    S = TypeVarWithDefault("S", default=Any)
else:
    S = TypeVar("S")
A = TypeVar("A")  # as S, in methods that are also called on the class
Ts = TypeVarTuple("Ts")


# What replaces the agent when a method is called on the class. In the overloads it is joined by
# `Agent[Never]`, which no agent is: a checker drops an overload whose `self` fits no agent at all.
Name: TypeAlias = Pid | str | Via


class Behaviour(TypedDict, Generic[S], total=False):
    """The options of an agent.

    Attributes:
        host: Where the agent runs; the running loop by default.
        on_stop: Called with the state at a planned end, within the shutdown time;
            not at a crash or a kill.
        snapshot: Where the state is saved, and loaded from at the start.
        isolate: Return copies of what can be changed; True by default.
        allow_none: Let an update replace a dict, list or set by None; False by default.
        warn_after: Warn when one function blocks the agent for this long; "1s" by default.
    """

    host: str | None
    on_stop: Callable[[S], Any] | None
    snapshot: Snapshot[S] | None
    isolate: bool
    allow_none: bool
    warn_after: Duration


class Agent(Stoppable, Generic[S]):
    """A running agent: what `start` returns. `async with` stops it at the end."""

    __slots__ = ("pid",)

    def __init__(self, pid: Pid) -> None:
        self.pid = pid

    def __repr__(self) -> str:
        return f"<Agent {self.pid}>"

    # Starting

    @overload
    @staticmethod
    async def start(
        init: Callable[[], Coroutine[Any, Any, A]],
        *,
        name: str | Via | None = None,
        timeout: Duration = None,
        **behaviour: Unpack[Behaviour[A]],
    ) -> "Agent[A]": ...
    @overload
    @staticmethod
    async def start(
        init: Callable[[], A],
        *,
        name: str | Via | None = None,
        timeout: Duration = None,
        **behaviour: Unpack[Behaviour[A]],
    ) -> "Agent[A]": ...
    @staticmethod
    async def start(
        init: Callable[[], Any],
        *,
        name: str | Via | None = None,
        timeout: Duration = None,
        **behaviour: Unpack[Behaviour[Any]],
    ) -> "Agent[Any]":
        """Start an agent without a link, and wait until it has its first state.

        Args:
            init: Returns the first state; runs inside the agent.
            name: A name for its process.
            timeout: How long `init` may take.
            **behaviour: See `Behaviour`.

        Raises:
            StartError: `init` failed or took too long, or the snapshot cannot be used.
            NameTaken: Another process has the name.
        """
        return await _start_of(init, name, behaviour).start(timeout, link=False)

    @overload
    @staticmethod
    async def start_link(
        init: Callable[[], Coroutine[Any, Any, A]],
        *,
        name: str | Via | None = None,
        timeout: Duration = None,
        **behaviour: Unpack[Behaviour[A]],
    ) -> "Agent[A]": ...
    @overload
    @staticmethod
    async def start_link(
        init: Callable[[], A],
        *,
        name: str | Via | None = None,
        timeout: Duration = None,
        **behaviour: Unpack[Behaviour[A]],
    ) -> "Agent[A]": ...
    @staticmethod
    async def start_link(
        init: Callable[[], Any],
        *,
        name: str | Via | None = None,
        timeout: Duration = None,
        **behaviour: Unpack[Behaviour[Any]],
    ) -> "Agent[Any]":
        """Start an agent that is linked to the caller; otherwise like `start`."""
        return await _start_of(init, name, behaviour).start(timeout, link=True)

    @staticmethod
    def child(
        init: Callable[[], Any],
        *,
        id: Hashable = None,
        name: str | Via | None = None,
        restart: RestartWord = "permanent",
        shutdown: Shutdowns = 5.0,
        **behaviour: Unpack[Behaviour[Any]],
    ) -> ChildSpec:
        """Return the spec of an agent as a supervisor's child; the id is by default its name."""
        return ChildSpec(
            id=id if id is not None else name if isinstance(name, str) else "Agent",
            start=_start_of(init, name, behaviour),
            restart=restart,
            shutdown=shutdown,
        )

    @staticmethod
    def child_spec(init: Callable[[], Any]) -> ChildSpec:
        """Return the spec of an agent for a supervisor that is given `(Agent, init)`."""
        return Agent.child(init)

    # Functions on the state

    @overload
    async def get(
        self: "Agent[A]",
        fn: Callable[[A, *Ts], Coroutine[Any, Any, T]],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> T: ...
    @overload
    async def get(
        self: "Agent[A]",
        fn: Callable[[A, *Ts], T],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> T: ...
    @overload
    async def get(
        self: "Name | Agent[Never]",
        fn: Callable[[Any, *Ts], Coroutine[Any, Any, T]],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> T: ...
    @overload
    async def get(
        self: "Name | Agent[Never]",
        fn: Callable[[Any, *Ts], T],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> T: ...
    async def get(
        self: ServerRef,
        fn: Callable[..., Any],
        *args: Any,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> Any:
        """Return `fn(state, *args)`; the state stays as it is.

        Args:
            fn: Any function, `async def` or not; it runs inside the agent.
            *args: Its arguments after the state.
            timeout: How long to wait.
            isolate: False returns the object itself, not a copy.

        Raises:
            CallTimeout: No answer in time; the agent still finishes the function.
            CallExit: The function raised, which ended the agent, or the agent is dead.
        """
        pid = self.pid if type(self) is Agent else pid_of(self, "get")
        return await ask(pid, (AgentServer.got, fn, args, isolate), timeout)

    @overload
    async def update(
        self: "Agent[A]",
        fn: Callable[[A, *Ts], Coroutine[Any, Any, A]],
        *args: *Ts,
        timeout: Duration = 5.0,
        allow_none: bool | None = None,
    ) -> None: ...
    @overload
    async def update(
        self: "Agent[A]",
        fn: Callable[[A, *Ts], A],
        *args: *Ts,
        timeout: Duration = 5.0,
        allow_none: bool | None = None,
    ) -> None: ...
    @overload
    async def update(
        self: "Name | Agent[Never]",
        fn: Callable[[Any, *Ts], Any],
        *args: *Ts,
        timeout: Duration = 5.0,
        allow_none: bool | None = None,
    ) -> None: ...
    async def update(
        self: ServerRef,
        fn: Callable[..., Any],
        *args: Any,
        timeout: Duration = 5.0,
        allow_none: bool | None = None,
    ) -> None:
        """Make `fn(state, *args)` the new state; raises like `get`."""
        pid = self.pid if type(self) is Agent else pid_of(self, "update")
        await ask(pid, (AgentServer.updated, fn, args, allow_none), timeout)

    @overload
    async def get_and_update(
        self: "Agent[A]",
        fn: Callable[[A, *Ts], Coroutine[Any, Any, tuple[T, A]]],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> T: ...
    @overload
    async def get_and_update(
        self: "Agent[A]",
        fn: Callable[[A, *Ts], tuple[T, A]],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> T: ...
    @overload
    async def get_and_update(
        self: "Name | Agent[Never]",
        fn: Callable[[Any, *Ts], Coroutine[Any, Any, tuple[T, Any]]],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> T: ...
    @overload
    async def get_and_update(
        self: "Name | Agent[Never]",
        fn: Callable[[Any, *Ts], tuple[T, Any]],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> T: ...
    async def get_and_update(
        self: ServerRef,
        fn: Callable[..., Any],
        *args: Any,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> Any:
        """Call `fn(state, *args)` for a pair of reply and new state; return the reply."""
        pid = self.pid if type(self) is Agent else pid_of(self, "get_and_update")
        return await ask(pid, (AgentServer.swapped, fn, args, isolate), timeout)

    @overload
    def cast(
        self: "Agent[A]", fn: Callable[[A, *Ts], A | Coroutine[Any, Any, A]], *args: *Ts
    ) -> None: ...
    @overload
    def cast(self: "Name | Agent[Never]", fn: Callable[[Any, *Ts], Any], *args: *Ts) -> None: ...
    def cast(self: ServerRef, fn: Callable[..., Any], *args: Any) -> None:
        """Update without waiting; dropped if no process has the name."""
        GenServer.cast(self, (AgentServer.updated, fn, args, None))

    async def stop(
        self: ServerRef, reason: BaseException | None = None, timeout: Duration = None
    ) -> None:
        """Stop the agent after all earlier requests, and wait until it is dead.

        Raises:
            CallTimeout: It has not ended in time.
            CallExit: It ended for another reason, or was dead.
        """
        await GenServer.stop(self, reason, timeout)


def _start_of(init: object, name: str | Via | None, behaviour: Any) -> ServerStart:
    """Return how an agent is started; raise for bad options before anything runs."""
    if not callable(init):
        raise TypeError(
            f"an agent starts with a function that returns its first state, not {init!r}"
        )
    host: str | None = behaviour.get("host")
    options = AgentOptions(**{key: behaviour[key] for key in behaviour if key != "host"})
    options.patience()
    return ServerStart(AgentServer, (init, options), {}, name, host, _handle)


def _handle(pid: Pid, _: object) -> Agent[Any]:
    return Agent(pid)


# The process behind an agent: it holds the state, and runs the functions that it is sent

_log = logging.getLogger("perdure.otp")

SLOW_EVENT = ("perdure", "agent", "slow")
LARGE_EVENT = ("perdure", "agent", "large")
_LARGE = 10_000  # entries: from here on, one queue for all readers and a copy for each hurt
_COLLECTIONS: Final = frozenset({dict, list, set, frozenset, tuple, deque})
_PAIR = 2

# A request to an agent: what to do with the result, the function, its further
# arguments, and the option of that call (None: as the agent was started).
Order: TypeAlias = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], bool | None]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent behaves."""

    on_stop: Callable[[Any], Any] | None = None
    snapshot: Snapshot[Any] | None = None
    isolate: bool = True
    allow_none: bool = False
    warn_after: Duration = "1s"

    def __repr__(self) -> str:
        """Return only the options that were set, for reports."""
        chosen = (each for each in fields(self) if getattr(self, each.name) != each.default)
        return ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in chosen)

    def patience(self) -> float:
        """Return the seconds after which a function counts as slow."""
        return inf if self.warn_after is None else named_seconds("warn_after", self.warn_after)


class SaveTick:
    """Arrives when it is time to save."""


SAVE_TICK = SaveTick()

NOBODY: Any = None  # the caller of a cast: nobody waits for an answer


class AgentServer(GenServer):
    """A server whose requests are functions."""

    __module__, __qualname__ = "perdure.otp", "Agent"  # the name that reports show
    __portable_name__ = ("perdure.otp.agent", "AgentServer")  # for other OS processes

    async def init(self, first: Callable[[], Any], options: AgentOptions) -> None:
        """Load the state from the snapshot, or else call the function."""
        self._process = process = current()
        self._options = options
        self._isolate = options.isolate
        self._now = process.runtime.clock.monotonic
        self._patience = options.patience()
        self._told: set[str] = set()  # the functions that were named in the log
        self._large = _LARGE
        self._saved = ""  # the checksum of what is in the file
        self._timer: asyncio.TimerHandle | None = None
        if options.on_stop is not None or options.snapshot is not None:
            process.trap_links = True  # a stop by the supervisor leaves time to save
        if options.snapshot is None:
            self.state = await settled(first())
        else:
            self.state = await self._restored(first, options.snapshot)
            process.at_exit(self._stop_timer)
            self._start_timer(options.snapshot)

    # Functions

    def handle_call(self, request: Order, frm: Request[Any]) -> Any:
        """Run a function on the state; an `async def` one blocks the agent until it is done."""
        finish, function, args, option = request
        now = self._now
        limit = now() + self._patience
        result = function(self.state, *args) if args else function(self.state)
        if type(result) is CoroutineType:
            return self._later(request, result, frm)
        if now() >= limit:
            self._warn(function, now() - limit + self._patience)
        return finish(self, result, option, frm)

    async def _later(self, request: Order, coroutine: Any, frm: Request[Any]) -> Any:
        finish, function, _, option = request
        timer = None
        if self._patience < inf:
            timer = self._process.loop.call_later(
                self._patience, self._warn, function, self._patience
            )
        try:
            result = await coroutine
        finally:
            if timer is not None:
                timer.cancel()
        return finish(self, result, option, frm)

    async def handle_cast(self, request: Order) -> None:
        """Run an update that nobody waits for."""
        result = self.handle_call(request, NOBODY)
        if type(result) is CoroutineType:
            await result

    def got(self, value: Any, isolate: bool | None, frm: Request[Any]) -> Any:  # noqa: FBT001
        """Return the answer to a `get`."""
        if self._isolate if isolate is None else isolate:
            try:
                value = isolated(value)
            except TypeError as error:  # the caller's mistake, and no reason to lose the state
                frm.fail(error)
                return NoReply
        return Reply(value) if type(value) in DIRECTIVES else value

    def updated(self, state: Any, allow_none: bool | None, _: object) -> None:  # noqa: FBT001
        """Set a new state."""
        if state is None and isinstance(self.state, dict | list | set):
            self._check_none(allow_none)
        self.state: Any = state
        if type(state) in _COLLECTIONS and len(self.state) >= self._large:
            self._report_size(len(self.state))

    def swapped(self, pair: Any, isolate: bool | None, frm: Request[Any]) -> Any:  # noqa: FBT001
        """Set a new state, and return the answer."""
        if not isinstance(pair, tuple) or len(pair) != _PAIR:  # pyright: ignore[reportUnknownArgumentType]
            raise BadReturn(
                f"the function of get_and_update returned {safe_text(pair)}; "  # pyright: ignore[reportUnknownArgumentType]
                "it must return a pair: the reply and the new state"
            )
        value, state = pair  # pyright: ignore[reportUnknownVariableType]
        answer = self.got(value, isolate, frm)
        if answer is not NoReply:
            self.updated(state, None, frm)
        return answer

    def _check_none(self, allow_none: bool | None) -> None:  # noqa: FBT001
        if not (self._options.allow_none if allow_none is None else allow_none):
            raise BadReturn(
                f"the function returned None as the new state, which was a "
                f"{type(self.state).__name__}: return the new state, even if the old one was "
                "changed in place (if None is meant, allow_none=True)"
            )

    def _warn(self, function: Callable[..., Any], held: float) -> None:
        name = getattr(function, "__qualname__", None) or safe_text(function)
        if name not in self._told:
            self._told.add(name)
            _log.warning(
                "agent %s has been held for %s by %s: nobody else can use it meanwhile; do the "
                "work in a task and send the agent only the result, or write a GenServer that "
                "replies later",
                *(self._process.pid, spell(held), name),
            )
        telemetry.execute(
            SLOW_EVENT, {"held": held}, {"pid": self._process.pid, "function": function}
        )

    def _report_size(self, size: int) -> None:
        """Say once that the state has become too large for an agent."""
        self._large = inf
        _log.warning(
            "the state of agent %s has %d entries: every reader waits in one queue, and gets a "
            "copy of what it asks for. A Table is read at once by all; a GenServer knows which "
            "part is asked for",
            *(self._process.pid, size),
        )
        telemetry.execute(LARGE_EVENT, {"entries": size}, {"pid": self._process.pid})

    # Events

    async def handle_info(self, message: Any) -> Any:
        """Save when it is time; end with a linked process."""
        if message is SAVE_TICK and self._options.snapshot is not None:
            await self._save_now_and_then(self._options.snapshot)
            return None
        if isinstance(message, LinkDown):
            alive = message.sender.target is not None
            return Stop(message.error if alive else linked_reason(message.sender, message.error))
        return super().handle_info(message)

    async def terminate(self, reason: BaseException | None) -> None:
        """Save at a planned end; after a failure, the last snapshot remains."""
        self._stop_timer()
        if not is_planned(reason):
            return
        if self._options.snapshot is not None:
            await self._save(self._options.snapshot)
        if self._options.on_stop is not None:
            await settled(self._options.on_stop(self.state))

    # Snapshots; files are read and written in a thread, since a disk can be slow

    async def _restored(self, first: Callable[[], Any], snapshot: Snapshot[Any]) -> Any:
        loaded = await asyncio.to_thread(load, snapshot)
        if loaded is not None:
            self._saved = loaded.checksum
            return loaded.state
        state = await settled(first())
        encode_state(state)  # one that can never be saved is refused now
        return state

    async def _save(self, snapshot: Snapshot[Any]) -> None:
        state = encode_state(self.state)
        checksum = checksum_of(state, snapshot.version)
        if checksum != self._saved:
            content = seal(state, snapshot.version, self._process.runtime.clock.time())
            await asyncio.to_thread(save, snapshot, content)
            self._saved = checksum

    async def _save_now_and_then(self, snapshot: Snapshot[Any]) -> None:
        try:
            await self._save(snapshot)
        except SnapshotError as error:  # the disk may have room again next time
            _log.error("agent %s: %s; it goes on", self._process.pid, error)
        self._start_timer(snapshot)

    def _start_timer(self, snapshot: Snapshot[Any]) -> None:
        if snapshot.every is not None:
            process: Any = self._process
            self._timer = process.loop.call_later(snapshot.every, process.requests().put, SAVE_TICK)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


# What an agent returns of its state: a copy, unless the value is immutable

ATOMS: Final[frozenset[type]] = frozenset(
    {
        *(NoneType, bool, int, float, complex, str, bytes, range, type, EllipsisType),
        *(FunctionType, BuiltinFunctionType, Pattern, Pid, MonitorRef, uuid.UUID),
        *(decimal.Decimal, fractions.Fraction, PurePosixPath, PureWindowsPath),
        *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone),
    }
)
"""Types whose values are deeply immutable."""


def isolated(value: T) -> T:
    """Return the value itself if it is deeply immutable, otherwise a deep copy.

    Raises:
        TypeError: It is mutable, and cannot be copied.
    """
    if type(value) in ATOMS or is_immutable(value):
        return value
    try:
        return deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"a {type(value).__qualname__} cannot be copied ({error}): return a part of the state "
            "that can, or share the object itself with isolate=False"
        ) from error


def is_immutable(value: Any) -> bool:
    """Whether the value is deeply immutable."""
    if type(value) in ATOMS or isinstance(value, Enum):
        return True
    if type(value) is frozenset or (isinstance(value, tuple) and not hasattr(value, "__dict__")):  # pyright: ignore[reportUnknownArgumentType]
        return all(map(is_immutable, value))  # pyright: ignore[reportUnknownArgumentType]
    names = _frozen_fields(value)
    return names is not None and all(is_immutable(getattr(value, name)) for name in names)  # pyright: ignore[reportUnknownArgumentType]


def _frozen_fields(value: Any) -> tuple[str, ...] | None:
    """Return the fields of a frozen record; None if it is something else."""
    if isinstance(value, Struct):
        return value.__struct_fields__ if value.__struct_config__.frozen else None
    if is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
        return tuple(field.name for field in fields(value))
    return None
