"""The agent: state that is changed only by functions which are sent to it.

    kv = await Agent.start_link(dict, name="kv")
    await kv.update(lambda state: {**state, "x": 42})
    x = await kv.get(lambda state: state["x"])

The functions run inside the agent, one after another, in the order in which they arrive.
Every method may also be called on the class, with a pid or a name: `Agent.get("kv", function)`.
"""

from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Never,
    TypeAlias,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from perdure.base.duration import Duration
from perdure.base.pid import Pid
from perdure.otp.agent_server import AgentOptions, AgentServer
from perdure.otp.queue import request as ask
from perdure.otp.ref import ServerRef, pid_of
from perdure.otp.server import GenServer, start_server
from perdure.otp.snapshot import Snapshot
from perdure.otp.spec import ChildSpec, RestartWord, Shutdowns
from perdure.otp.stoppable import Stoppable
from perdure.otp.via import Via

if TYPE_CHECKING:  # a default only type checkers understand: `Agent` alone is an `Agent[Any]`
    from typing_extensions import TypeVar as TypeVarWithDefault

    S = TypeVarWithDefault("S", default=Any)
else:
    S = TypeVar("S")
A = TypeVar("A")  # as S, in methods that are also called on the class
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_GOT, _UPDATED, _SWAPPED = AgentServer.got, AgentServer.updated, AgentServer.swapped


# What stands for an agent when a method is called on the class. In the overloads it is joined by
# `Agent[Never]`, which no agent is: a checker drops an overload whose `self` fits no agent at all.
Name: TypeAlias = Pid | str | Via


class Behaviour(TypedDict, Generic[S], total=False):
    """The options of an agent.

    Attributes:
        host: Where the agent runs; the running loop by default.
        on_stop: Called with the state at a planned end, inside the time for the shutdown;
            not at a crash or a kill.
        snapshot: Where the state is saved, and loaded from at the start.
        isolate: Give copies of what can be changed; True by default.
        allow_none: Let an update replace a dict, list or set by None; False by default.
        warn_after: Warn when one function holds the agent for so long; "1s" by default.
    """

    host: str | None
    on_stop: Callable[[S], Any] | None
    snapshot: Snapshot[S] | None
    isolate: bool
    allow_none: bool
    warn_after: Duration


class Agent(Stoppable, Generic[S]):
    """A running agent: what `start` gives. `async with` stops it at the end."""

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
        """Start an agent that is linked to nobody, and wait until it has its first state.

        Args:
            init: Gives the first state; runs inside the agent.
            name: A name for it.
            timeout: How long `init` may take.
            **behaviour: See `Behaviour`.

        Raises:
            StartError: `init` failed or took too long, or the snapshot cannot be used.
            NameTaken: Another process has the name.
        """
        args, host = _checked(init, behaviour)
        pid = await start_server(AgentServer, args, name, timeout, link=False, host=host)
        return Agent(pid)

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
        """Start an agent that is linked to the caller; else as `start`."""
        args, host = _checked(init, behaviour)
        pid = await start_server(AgentServer, args, name, timeout, link=True, host=host)
        return Agent(pid)

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
        """Say how a supervisor starts and stops it; the id is the name by default."""
        _checked(init, behaviour)
        start: Any = partial(Agent.start_link, init, name=name, **behaviour)
        return ChildSpec(
            id=id if id is not None else name if isinstance(name, str) else "Agent",
            start=start,
            restart=restart,
            shutdown=shutdown,
        )

    @staticmethod
    def child_spec(init: Callable[[], Any]) -> ChildSpec:
        """Say how a supervisor starts it, when it is given `(Agent, init)`."""
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
        fn: Callable[[Any, *Ts], Any],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> Any: ...
    async def get(
        self: ServerRef,
        fn: Callable[..., Any],
        *args: Any,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> Any:
        """Give `fn(state, *args)`; the state stays as it is.

        Args:
            fn: Any function, `async def` or not; it runs inside the agent.
            *args: Its arguments after the state.
            timeout: How long to wait.
            isolate: False gives the very object, not a copy.

        Raises:
            CallTimeout: No answer in time; the agent still finishes the function.
            CallExit: The function raised and the agent died of it, or the agent is dead.
        """
        pid = self.pid if type(self) is Agent else pid_of(self, "get")
        return await ask(pid, (_GOT, fn, args, isolate), timeout)

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
        """Make `fn(state, *args)` the new state; raises as `get`."""
        pid = self.pid if type(self) is Agent else pid_of(self, "update")
        await ask(pid, (_UPDATED, fn, args, allow_none), timeout)

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
        fn: Callable[[Any, *Ts], Any],
        *args: *Ts,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> Any: ...
    async def get_and_update(
        self: ServerRef,
        fn: Callable[..., Any],
        *args: Any,
        timeout: Duration = 5.0,
        isolate: bool | None = None,
    ) -> Any:
        """Let `fn(state, *args)` give a pair: the reply, and the new state; raises as `get`."""
        pid = self.pid if type(self) is Agent else pid_of(self, "get_and_update")
        return await ask(pid, (_SWAPPED, fn, args, isolate), timeout)

    @overload
    def cast(
        self: "Agent[A]", fn: Callable[[A, *Ts], A | Coroutine[Any, Any, A]], *args: *Ts
    ) -> None: ...
    @overload
    def cast(self: "Name | Agent[Never]", fn: Callable[[Any, *Ts], Any], *args: *Ts) -> None: ...
    def cast(self: ServerRef, fn: Callable[..., Any], *args: Any) -> None:
        """Update, and wait for nothing; it does not matter whether anybody is there."""
        GenServer.cast(self, (_UPDATED, fn, args, None))

    async def stop(
        self: ServerRef, reason: BaseException | None = None, timeout: Duration = None
    ) -> None:
        """End it, after all that was asked before, and wait until it is dead.

        Raises:
            CallTimeout: It has not ended in time.
            CallExit: It ended for another reason, or was dead.
        """
        await GenServer.stop(self, reason, timeout)


def _checked(init: object, behaviour: Any) -> tuple[tuple[Any, AgentOptions], str | None]:
    """Refuse bad options at the call, before anything runs."""
    if not callable(init):
        raise TypeError(f"an agent starts with a function that gives its first state, not {init!r}")
    host: str | None = behaviour.get("host")
    options = AgentOptions(**{key: behaviour[key] for key in behaviour if key != "host"})
    options.patience()
    return (init, options), host
