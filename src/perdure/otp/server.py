"""The generic server: state that one process owns, behind requests that it serves in order.

class Counter(GenServer):
    async def init(self, start: int = 0) -> None:
        self.count = start

    async def handle_call(self, request: Add, frm: Request) -> int:
        self.count += request.amount
        return self.count

counter = await Counter.start_link(10)
total = await GenServer.call(counter, Add(5))
"""

import logging
from collections.abc import Hashable
from functools import partial
from typing import Any, Generic, TypeVar, overload

from perdure.base.duration import Duration
from perdure.base.errors import CallExit, CallTimeout, NameTaken, NoServer, safe_text
from perdure.base.pid import Pid
from perdure.otp.directive import Stop, check_reason
from perdure.otp.queue import request as ask
from perdure.otp.ref import ServerRef, pid_of
from perdure.otp.serving import CAST, StopOrder, serve
from perdure.otp.spec import IGNORE, ChildSpec, RestartWord, Shutdowns
from perdure.otp.start import start
from perdure.otp.stoppable import Stoppable
from perdure.otp.via import Via
from perdure.process.current import CURRENT, current
from perdure.process.event import Cancel, Message
from perdure.process.exits import same_reason
from perdure.process.names import check_name
from perdure.process.process import Process
from perdure.process.request import Request

_log = logging.getLogger("perdure.otp")

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Ask(Generic[R_co]):
    """Derive a request from `Ask[R]`, and type checkers know that its answer is an `R`."""

    __slots__ = ()


class GenServer:
    """Derive from it, and write the callbacks that you need.

    They run one after another inside the server's process; each may be `async def` or `def`.
    The state is in `self`.
    """

    # Callbacks

    def init(self, *args: Any, **_: Any) -> Any:
        """Make the first state, of the arguments that `start` was given.

        Returns:
            None, Continue or Timeout to go on; Stop or IGNORE not to begin.
        """
        if args:
            raise TypeError(f"{type(self).__qualname__} takes no arguments: it has no init")

    def handle_call(self, request: Any, frm: Request[Any]) -> Any:
        """Answer a request: return the answer, or Reply, NoReply or Stop."""
        raise NotImplementedError(
            f"{type(self).__qualname__} has no handle_call; {frm.sender} called it with "
            f"{safe_text(request)}"
        )

    def handle_cast(self, request: Any) -> Any:
        """Take a request that wants no answer: return None, Continue, Timeout or Stop."""
        raise NotImplementedError(
            f"{type(self).__qualname__} has no handle_cast; it was cast {safe_text(request)}"
        )

    def handle_info(self, message: Any) -> Any:
        """Take a message, an event or a `Timeout`: return None, Continue, Timeout or Stop.

        By default a `Cancel` ends the server normally, and anything else is logged.
        """
        if isinstance(message, Cancel):
            return Stop(None)
        _log.error("%s has no handle_info for %s", type(self).__qualname__, safe_text(message))
        return None

    def handle_continue(self, value: Any) -> Any:
        """Go on with what a `Continue` brought: return None, Continue, Timeout or Stop."""
        raise NotImplementedError(
            f"{type(self).__qualname__} has no handle_continue for {safe_text(value)}"
        )

    def terminate(self, reason: BaseException | None) -> Any:
        """Clean up; called at an end of its own, and when a parent stops a server that traps."""

    # Starting

    @classmethod
    async def start(
        cls,
        *args: Any,
        name: str | Via | None = None,
        timeout: Duration = None,
        host: str | None = None,
    ) -> "ServerHandle":
        """Start a server that is linked to nobody, and wait until `init` is done.

        Args:
            *args: The arguments of `init`.
            name: A name for it.
            timeout: How long `init` may take.
            host: Where it runs; the running loop by default.

        Returns:
            A handle; or `IGNORE`, which the type does not tell, if that is what `init` returned.

        Raises:
            StartError: `init` failed, stopped, or took too long; `reason` says why.
            NameTaken: Another process has the name.
        """
        return await _start(cls, args, name, timeout, link=False, host=host)

    @classmethod
    async def start_link(
        cls,
        *args: Any,
        name: str | Via | None = None,
        timeout: Duration = None,
        host: str | None = None,
    ) -> "ServerHandle":
        """Start a server that is linked to the caller; else as `start`."""
        return await _start(cls, args, name, timeout, link=True, host=host)

    @classmethod
    def child(
        cls,
        *args: Any,
        id: Hashable = None,
        name: str | Via | None = None,
        restart: RestartWord = "permanent",
        shutdown: Shutdowns = 5.0,
        host: str | None = None,
    ) -> ChildSpec:
        """Say how a supervisor starts and stops it; the id is the name or the class by default."""
        return ChildSpec(
            id=id if id is not None else name if isinstance(name, str) else cls.__qualname__,
            start=partial(cls.start_link, *args, name=name, host=host),
            restart=restart,
            shutdown=shutdown,
        )

    @classmethod
    def child_spec(cls, *args: Any) -> ChildSpec:
        """Say how a supervisor starts it, when it is given the class alone."""
        return cls.child(*args)

    # Talking to one

    @overload
    @staticmethod
    async def call(ref: ServerRef, request: Ask[R], timeout: Duration = 5.0) -> R: ...
    @overload
    @staticmethod
    async def call(ref: ServerRef, request: object, timeout: Duration = 5.0) -> Any: ...
    @staticmethod
    async def call(ref: ServerRef, request: object, timeout: Duration = 5.0) -> Any:
        """Ask a server and wait for its answer.

        Raises:
            CallTimeout: No answer came in time; a late one is dropped.
            CallExit: The server died, or was dead; `reason` says why.
            NoServer: Nobody has the name; a CallExit too.
        """
        if type(ref) is ServerHandle:  # without a call: this is the hot path
            return await ask(ref.pid, request, timeout)
        return await ask(pid_of(ref, "call"), request, timeout)

    @staticmethod
    def cast(ref: ServerRef, request: object) -> None:
        """Send a request that wants no answer; it does not matter whether anybody is there."""
        try:
            pid = pid_of(ref, "cast")
        except NoServer:
            return
        server: Process | None = pid.target
        if server is not None:
            sender = CURRENT.get(None)
            server.deliver(Message(CAST, request, sender.pid if sender is not None else None))

    @staticmethod
    def reply(frm: Request[R], value: R) -> bool:
        """Answer a request later, and from anywhere; tell whether it was still waited for."""
        return frm.reply(value)

    @staticmethod
    async def stop(
        ref: ServerRef, reason: BaseException | None = None, timeout: Duration = None
    ) -> None:
        """End a server, after what it has received before, and wait until it is dead.

        Raises:
            CallTimeout: It has not ended in time.
            CallExit: It ended for another reason, or was dead.
        """
        check_reason(reason)
        try:
            await ask(pid_of(ref, "stop"), StopOrder(reason), timeout)
        except CallTimeout:
            raise
        except CallExit as end:
            if not same_reason(end.reason, reason):
                raise


class ServerHandle(Stoppable):
    """A running server: what `start` gives. `async with` stops it at the end."""

    __slots__ = ("kind", "pid")

    def __init__(self, pid: Pid, kind: type[GenServer]) -> None:
        self.pid = pid
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind.__qualname__} {self.pid}>"

    @overload
    async def call(self, request: Ask[R], timeout: Duration = 5.0) -> R: ...
    @overload
    async def call(self, request: object, timeout: Duration = 5.0) -> Any: ...
    async def call(self, request: object, timeout: Duration = 5.0) -> Any:
        """Ask it and wait for its answer, as `GenServer.call`."""
        return await ask(self.pid, request, timeout)

    def cast(self, request: object) -> None:
        """Send a request that wants no answer."""
        GenServer.cast(self.pid, request)

    async def stop(self, reason: BaseException | None = None, timeout: Duration = None) -> None:
        """End it and wait until it is dead, as `GenServer.stop`."""
        await GenServer.stop(self.pid, reason, timeout)


async def _start(
    cls: type[GenServer],
    args: tuple[Any, ...],
    name: str | Via | None,
    timeout: Duration,
    *,
    link: bool,
    host: str | None,
) -> Any:
    pid = await start_server(cls, args, name, timeout, link=link, host=host)
    return pid if pid is IGNORE else ServerHandle(pid, cls)


async def start_server(
    kind: type[GenServer],
    args: tuple[Any, ...],
    name: str | Via | None,
    timeout: Duration,
    *,
    link: bool,
    host: str | None = None,
) -> Any:
    """Start the process of a server; give its pid, or IGNORE."""
    _check_free(name)
    process, value = await start(
        kind, serve, kind, args, name, link=link, timeout=timeout, host=host
    )
    if isinstance(value, NameTaken):
        raise value
    return IGNORE if value is IGNORE else process.pid


def _check_free(name: str | Via | None) -> None:
    if isinstance(name, Via):
        name.check_free()
    elif name is not None:
        check_name(name)
        if holder := current("start").runtime.names.get(name):
            raise NameTaken(name, holder.pid)
