"""GenServer: state that one process owns, behind requests that it serves in order.

    class Counter(GenServer):
        async def init(self, start: int = 0) -> None:
            self.count = start

        async def handle_call(self, request: Add, frm: Request) -> int:
            self.count += request.amount
            return self.count

    counter = await Counter.start_link(10)
    total = await GenServer.call(counter, Add(5))

Messages, events and requests come through one queue, in the order of their arrival. A server that
is called while it is idle answers *at once*: the caller lets it run a step right where it is,
instead of waiting for the scheduler twice. To both it looks as if the scheduler had happened to
choose that order, and a call costs half. A server that itself calls another waits as usual, so that
such steps do not nest; and after a number of steps in a row all others get a turn.
"""

# A type checker does not know what a `yield from` returns.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import asyncio
import inspect
import logging
import types
from collections import deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import starmap
from types import CoroutineType
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar, overload

from msgspec import Struct

from perdure.base.duration import Duration, required_seconds, seconds
from perdure.base.errors import (
    BadReturn,
    CallExit,
    CallTimeout,
    Killed,
    NameTaken,
    NoServer,
    Shutdown,
    safe_text,
)
from perdure.base.pid import Pid
from perdure.otp.address import ServerRef, Via, pid_of
from perdure.otp.start import Ack, Stoppable, begin, start
from perdure.otp.supervision.spec import IGNORE, ChildSpec, DirectStart, RestartWord, Shutdowns
from perdure.process.api import ask
from perdure.process.event import Cancel, LinkDown, Message
from perdure.process.exit_reason import ExitNow, Upgrade, linked_reason, same_reason
from perdure.process.names import check_name
from perdure.process.process import STREAK, MailboxChannel, Process, current
from perdure.process.relations import register
from perdure.process.request import Request
from perdure.process.waiter import (
    CURRENT,
    DEAD,
    PARK,
    PARKED,
    READY,
    RUNNING,
    RUNNING_TASKS,
    own_process,
)

# What a callback returns to say what happens next

T = TypeVar("T")


class Absent(Enum):
    """The type of `ABSENT` and of `NoReply`."""

    ABSENT = "absent"
    NO_REPLY = "no reply"

    def __repr__(self) -> str:
        return "NoReply" if self is Absent.NO_REPLY else "ABSENT"


ABSENT: Final = Absent.ABSENT
"""As the reply of a `Stop`: no reply is sent."""

NoReply: Final = Absent.NO_REPLY
"""Return this to continue; the caller gets its answer later, by `GenServer.reply`."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Call `handle_continue(value)` next, before anything else is received."""

    value: Any = None


@dataclass(frozen=True, slots=True, init=False)
class Timeout:
    """Call `handle_info` with this object if nothing is received for this long."""

    seconds: float

    def __init__(self, seconds: Duration) -> None:
        object.__setattr__(self, "seconds", required_seconds(seconds))


class Reply(Struct, Generic[T], frozen=True):
    """Answer with `value`; needed only with `then`, or if the value is one of these types."""

    value: T
    then: Continue | Timeout | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the server with this reason, after `terminate`; None is a normal end.

    A `reply` is sent when `terminate` is done; without one, the caller gets a `CallExit`.
    """

    reason: BaseException | None = None
    reply: Any = ABSENT

    def __post_init__(self) -> None:
        check_reason(self.reason)


def check_reason(reason: object) -> None:
    """Raise unless this can be an exit reason."""
    if reason is not None and not isinstance(reason, BaseException):
        raise TypeError(f"an exit reason is an exception, or None for normal; not {reason!r}")


# Everything else that `handle_call` returns is the answer.
DIRECTIVES: Final = frozenset({Absent, Continue, Timeout, Reply, Stop})


_log = logging.getLogger("perdure.otp")

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Ask(Generic[R_co]):
    """Base of requests whose answer is an `R`, known as such to type checkers."""

    __slots__ = ()


class GenServer:
    """Base class of servers: override the callbacks that you need.

    They run one after another inside the server's process; each may be `async def` or `def`.
    The state is in `self`.
    """

    # Callbacks

    def init(self, *args: Any, **kwargs: Any) -> Any:
        """Create the first state from the arguments of `start`.

        Returns:
            None, Continue or Timeout to run; Stop or IGNORE not to start.
        """
        if args or kwargs:
            raise TypeError(f"{type(self).__qualname__} takes no arguments: it has no init")

    def handle_call(self, request: Any, frm: Request[Any]) -> Any:
        """Handle a call: return the answer, or Reply, NoReply or Stop."""
        raise NotImplementedError(
            f"{type(self).__qualname__} has no handle_call; {frm.sender} called it with "
            f"{safe_text(request)}"
        )

    def handle_cast(self, request: Any) -> Any:
        """Handle a cast, which has no answer: return None, Continue, Timeout or Stop."""
        raise NotImplementedError(
            f"{type(self).__qualname__} has no handle_cast; it was cast {safe_text(request)}"
        )

    def handle_info(self, message: Any) -> Any:
        """Handle a message, an event or a `Timeout`: return None, Continue, Timeout or Stop.

        By default a `Cancel` ends the server normally, and anything else is logged.
        """
        if isinstance(message, Cancel):
            return Stop(None)
        _log.error("%s has no handle_info for %s", type(self).__qualname__, safe_text(message))
        return None

    def handle_continue(self, value: Any) -> Any:
        """Handle the value of a `Continue`: return None, Continue, Timeout or Stop."""
        raise NotImplementedError(
            f"{type(self).__qualname__} has no handle_continue for {safe_text(value)}"
        )

    def terminate(self, reason: BaseException | None) -> Any:
        """Clean up; called when the server stops itself, or traps links and its parent stops it."""

    # Starting

    @classmethod
    async def start(
        cls,
        *args: Any,
        name: str | Via | None = None,
        timeout: Duration = None,
        host: str | None = None,
        **kwargs: Any,
    ) -> "ServerHandle":
        """Start a server without a link, and wait until `init` is done.

        Args:
            *args: The arguments of `init`.
            name: A name for it.
            timeout: How long `init` may take.
            host: Where it runs; the running loop by default.
            **kwargs: The keyword arguments of `init`.

        Returns:
            A handle; or `IGNORE`, which the type does not show, if `init` returned that.

        Raises:
            StartError: `init` failed, stopped, or took too long; `reason` says why.
            NameTaken: Another process has the name.
        """
        return await ServerStart(cls, args, kwargs, name, host).start(timeout, link=False)

    @classmethod
    async def start_link(
        cls,
        *args: Any,
        name: str | Via | None = None,
        timeout: Duration = None,
        host: str | None = None,
        **kwargs: Any,
    ) -> "ServerHandle":
        """Start a server that is linked to the caller; otherwise like `start`."""
        return await ServerStart(cls, args, kwargs, name, host).start(timeout, link=True)

    @classmethod
    def child(
        cls,
        *args: Any,
        id: Hashable = None,
        name: str | Via | None = None,
        restart: RestartWord = "permanent",
        shutdown: Shutdowns = 5.0,
        host: str | None = None,
        **kwargs: Any,
    ) -> ChildSpec:
        """Return the spec of the server as the child of a supervisor.

        The id is by default the name, or else the class; other keywords are those of `init`.
        """
        start: Any = ServerStart(cls, args, kwargs, name, host)
        if cls.start_link.__func__ is not GenServer.start_link.__func__:  # it starts differently
            start = partial(cls.start_link, *args, name=name, host=host, **kwargs)
        return ChildSpec(
            id=id if id is not None else name if isinstance(name, str) else cls.__qualname__,
            start=start,
            restart=restart,
            shutdown=shutdown,
        )

    @classmethod
    def child_spec(cls, *args: Any) -> ChildSpec:
        """Return the spec of the server for a supervisor that is given only the class."""
        return cls.child(*args)

    # Requests

    @overload
    @staticmethod
    async def call(ref: ServerRef, request: Ask[R], timeout: Duration = 5.0) -> R: ...
    @overload
    @staticmethod
    async def call(ref: ServerRef, request: object, timeout: Duration = 5.0) -> Any: ...
    @staticmethod
    async def call(ref: ServerRef, request: object, timeout: Duration = 5.0) -> Any:
        """Send a request to a server, wait for the answer, and return it.

        Raises:
            CallTimeout: No answer came in time; a late one is dropped.
            CallExit: The server died, or was dead; `reason` says why.
            NoServer: No process has the name; also a CallExit.
        """
        if type(ref) is ServerHandle:  # without a call: this is the hot path
            return await send_request(ref.pid, request, timeout)
        return await send_request(pid_of(ref, "call"), request, timeout)

    @staticmethod
    def cast(ref: ServerRef, request: object) -> None:
        """Send a request without an answer; dropped if no process has the name."""
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
        """Answer a request later, from anywhere; return whether the caller still waits for it."""
        return frm.reply(value)

    @staticmethod
    async def stop(
        ref: ServerRef, reason: BaseException | None = None, timeout: Duration = None
    ) -> None:
        """Stop a server after all earlier requests, and wait until it is dead.

        Raises:
            CallTimeout: It has not ended in time.
            CallExit: It ended for another reason, or was dead.
        """
        check_reason(reason)
        try:
            await send_request(pid_of(ref, "stop"), StopOrder(reason), timeout)
        except CallTimeout:
            raise
        except CallExit as end:
            if not same_reason(end.reason, reason):
                raise


class ServerHandle(Stoppable):
    """A running server: what `start` returns. `async with` stops it at the end."""

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
        """Send a request and return the answer, like `GenServer.call`."""
        return await send_request(self.pid, request, timeout)

    def cast(self, request: object) -> None:
        """Send a request without an answer."""
        GenServer.cast(self.pid, request)

    async def stop(self, reason: BaseException | None = None, timeout: Duration = None) -> None:
        """Stop it and wait until it is dead, like `GenServer.stop`."""
        await GenServer.stop(self.pid, reason, timeout)


@dataclass(frozen=True, slots=True)
class ServerStart(DirectStart):
    """How a server is started; for a supervisor, the start function of the child."""

    kind: type[GenServer]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str | Via | None = None
    host: str | None = None
    make_handle: Callable[[Pid, Any], Any] = ServerHandle

    async def __call__(self) -> Any:
        return await self.start(None, link=True)

    async def start(self, timeout: Duration, *, link: bool) -> Any:
        """Start the server; return its handle, or IGNORE."""
        _check_free(self.name)
        process, value = await start(
            self.kind, serve, *self._rest(), link=link, timeout=timeout, host=self.host
        )
        return self.handle(process, value)

    def is_direct(self) -> bool:
        return self.host is None

    def begin(self, supervisor: Process, wake: Callable[[], object]) -> tuple[Process, Ack]:
        _check_free(self.name)
        ack = Ack(supervisor, wake, linked=True)
        return begin(supervisor, serve, (ack, *self._rest()), None), ack

    def _rest(self) -> tuple[Any, ...]:
        return self.kind, self.args, self.kwargs, self.name

    def handle(self, process: Process, value: Any) -> Any:
        if isinstance(value, NameTaken):
            raise value
        return IGNORE if value is IGNORE else self.make_handle(process.pid, self.kind)


def _check_free(name: str | Via | None) -> None:
    if isinstance(name, Via):
        name.check_free()
    elif name is not None:
        check_name(name)
        if holder := current("start").runtime.names.get(name):
            raise NameTaken(name, holder.pid)


# The life of a server: `init`, then one thing after another, then `terminate`

CAST = "@cast"  # the topic of casts; users cannot send to it


class StopOrder(NamedTuple):
    """The body of the request by which `GenServer.stop` ends a server."""

    reason: BaseException | None


class Ending(NamedTuple):
    """How a server must end, and the request that still waits for an answer."""

    stop: Stop
    asked: Request[Any] | None = None


class Expiry:
    """A running `Timeout`; a separate object, since a `Timeout` may be returned repeatedly."""

    __slots__ = ("handle", "timeout")

    def __init__(self, timeout: Timeout) -> None:
        self.timeout = timeout
        self.handle: asyncio.TimerHandle | None = None


class KeywordArgument(NamedTuple):
    """A keyword argument of `init`, for reports."""

    name: str
    value: Any

    def __repr__(self) -> str:
        return f"{self.name}={self.value!r}"


async def serve(
    ack: Ack,
    kind: "type[GenServer]",
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | Via | None,
) -> Any:
    """Run a server: the body of its process."""
    process = current()
    # What reports show, instead of this function.
    process.function = kind
    process.args = (*args, *starmap(KeywordArgument, kwargs.items())) if kwargs else args
    queue = one_queue(process)
    try:
        _take_name(process, name)  # only now, when everything goes into the one queue
    except NameTaken as taken:
        return taken
    server = kind()
    first = server.init(*args, **kwargs)
    if first is not None:
        first = await settled(first)
    if first is IGNORE:
        return IGNORE
    if isinstance(first, Stop):
        raise first.reason or Shutdown("init returned Stop")
    if first is not None and not isinstance(first, Continue | Timeout):
        bad_return(server, "init", first)
    parent = process.parent if ack.linked else None
    ack.ready(process)
    await Serving(process, queue, server, parent).live(first)
    return None


def _take_name(process: Process, name: str | Via | None) -> None:
    if isinstance(name, Via):
        name.check_free()
        name.give(process)
    elif name is not None:
        register(process.runtime.names, name, process)


class Serving:
    """The loop of one server."""

    __slots__ = ("_expiry", "_parent", "_process", "_queue", "_releases", "_server")

    def __init__(
        self, process: Process, queue: "ServerQueue", server: "GenServer", parent: Pid | None
    ) -> None:
        self._process = process
        self._queue = queue
        self._server = server
        self._parent = parent
        self._expiry: Expiry | None = None
        self._releases = False

    async def live(self, first: Continue | Timeout | None) -> None:
        """Serve until the server must end, then terminate."""
        server, process = self._server, self._process
        try:
            stop = await self._follow("init", first)
            ending = Ending(stop) if stop is not None else await self._serve()
        except BaseException as error:
            if ends_by_itself(process, error):
                reason = process.outcome.error if process.outcome is not None else error
                await settled(server.terminate(reason))
            raise
        await settled(server.terminate(ending.stop.reason))
        if ending.asked is not None and ending.stop.reply is not ABSENT:
            ending.asked.reply(ending.stop.reply)
        if ending.stop.reason is not None:
            raise ending.stop.reason

    @types.coroutine
    def _serve(self) -> Generator[Any, Any, Ending]:  # noqa: C901, PLR0912
        """Handle items until the server must end: the core loop, with as few calls as possible."""
        server, queue = self._server, self._queue
        items, streak = queue.items, STREAK
        waiting: Any
        while True:
            while not items:
                streak, queue.idle = STREAK, True
                try:
                    yield PARK
                finally:
                    queue.idle = False
            streak -= 1
            if not streak:  # too many without a wait: let all others run
                streak = STREAK
                yield from self._process.scheduler.yield_if_due()
                continue  # a task of this process may have taken it
            item: Any = items.popleft()
            if self._expiry is not None:
                item = self._expired(item)
            if isinstance(item, Request):
                body: Any = item.body
                if type(body) is StopOrder:
                    return Ending(Stop(body.reason))
                result: Any = server.handle_call(body, item)
                if type(result) is CoroutineType:
                    result = yield from result
                if type(result) not in DIRECTIVES:
                    item.reply(result)
                    continue
                waiting = self._after_call(item, result)
            else:
                waiting = self._other(item)
            ending = yield from waiting
            if ending is not None:
                return ending

    async def _after_call(self, asked: Request[Any], result: Any) -> Ending | None:
        if isinstance(result, Stop):
            return Ending(result, asked)
        if isinstance(result, Reply):
            asked.reply(result.value)
            result = result.then
        stop = await self._follow("handle_call", result)
        return None if stop is None else Ending(stop)

    async def _other(self, item: Any) -> Ending | None:
        """Handle what is not a request."""
        server = self._server
        if type(item) is Message and item.topic == CAST:
            callback, result = "handle_cast", server.handle_cast(item.payload)
        elif type(item) is Expiry:  # a timeout that was overtaken by something else
            return None
        elif (reason := self._order(item)) is not None:
            return Ending(Stop(reason))
        else:
            callback, result = "handle_info", server.handle_info(item)
        stop = await self._follow(callback, await settled(result))
        return None if stop is None else Ending(stop)

    def _order(self, event: Any) -> BaseException | None:
        """Return the reason if the parent or the runtime asks the server to stop; else None."""
        if type(event) is LinkDown and event.sender is self._parent:
            alive = event.sender.target is not None
            return event.error if alive else linked_reason(event.sender, event.error)
        if type(event) is Cancel and event.sender is None:
            return Shutdown(event.reason)
        return None

    async def _follow(self, callback: str, result: Any) -> Stop | None:
        """Apply what a callback returned; return a Stop if the server must end."""
        while isinstance(result, Continue):
            callback = "handle_continue"
            result = await settled(self._server.handle_continue(result.value))
        if result is None or result is NoReply:
            return None
        if isinstance(result, Timeout):
            self._arm(result)
            return None
        if not isinstance(result, Stop) or result.reply is not ABSENT:
            bad_return(self._server, callback, result)
        return result

    # Timeouts

    def _arm(self, timeout: Timeout) -> None:
        self._expiry = expiry = Expiry(timeout)
        if timeout.seconds == 0 and not len(self._queue):
            self._queue.put(expiry)
            return
        if not self._releases:  # a killed server leaves no timer
            self._releases = True
            self._process.at_exit(self._disarm)
        loop = self._process.loop
        expiry.handle = loop.call_later(timeout.seconds, self._queue.put, expiry)

    def _disarm(self) -> None:
        if self._expiry is not None and self._expiry.handle is not None:
            self._expiry.handle.cancel()
        self._expiry = None

    def _expired(self, item: Any) -> Any:
        """Return the `Timeout` of the pending expiry; any other item cancels the wait."""
        if item is self._expiry:
            item = item.timeout
        elif type(item) is Expiry:  # an older one, which came too late
            return item
        self._disarm()
        return item


async def settled(result: Any) -> Any:
    """Return the result of a callback, whether it is `async def` or not."""
    return await result if inspect.isawaitable(result) else result


def ends_by_itself(process: Process, error: BaseException) -> bool:
    """Whether the server's own code ends it, not a signal or kill from outside."""
    if isinstance(error, ExitNow):  # by `process.exit` or `process.kill` in a callback
        assert process.outcome is not None
        return not isinstance(process.outcome.error, Killed)
    if isinstance(error, asyncio.CancelledError | Upgrade):
        return False
    return process.outcome is None


def bad_return(server: "GenServer", callback: str, value: object) -> NoReturn:
    """Raise BadReturn for a value that a callback may not return."""
    allowed = "None, Continue, Timeout, Stop or " + ("IGNORE" if callback == "init" else "NoReply")
    raise BadReturn(
        f"{type(server).__qualname__}.{callback} returned {safe_text(value)}; "
        f"it may return {allowed}"
    )


# The queue of a server, and calls that are answered inline

_LONG = 1e9  # seconds; longer timeouts are validated with more care


class ServerQueue(MailboxChannel[Any]):
    """The queue of everything that a server receives."""

    __slots__ = ("_calls", "idle", "items")

    def __init__(self, owner: Process) -> None:
        super().__init__(owner)
        self._items = self.items = deque[Any]()  # always the same, so that the server may keep it
        self.requested = True
        self.idle = False  # whether the server waits for the next item, and for nothing else
        self._calls = owner.get_relations().get_open_requests()

    def put(self, value: Any) -> None:
        """Add an item, and wake the server."""
        if self.idle:
            self.items.append(value)
            owner: Any = self.owner
            owner.wake()
        else:  # it is busy, or its own code reads the inbox in a callback
            super().put(value)

    def remove(self, unwanted: Callable[[Any], bool]) -> list[Any]:
        """Remove the unwanted items, and return them in order."""
        items = list(self.items)
        self.items.clear()
        self.items.extend(item for item in items if not unwanted(item))
        return [item for item in items if unwanted(item)]

    def serve_at_once(self, body: object, caller: Process) -> "Request[Any] | None":
        """Let the server handle a request now, if it is idle; return the request, or None."""
        owner: Any = self.owner
        if not self.idle or owner.state != PARKED:
            return None
        scheduler = owner.scheduler
        scheduler.inline_calls_left -= 1
        if scheduler.inline_calls_left <= 0:  # too many in a row: let all others run
            scheduler.inline_calls_left = scheduler.max_inline_calls
            return None
        loop = owner.loop
        asked: Request[Any] = Request(owner.pid, body, caller.pid, caller, None)
        self.items.append(asked)
        owner.state = READY
        RUNNING_TASKS[loop] = owner
        try:
            owner.step()
        finally:
            RUNNING_TASKS[loop] = caller
        if not asked.done:
            self._keep(asked)
        return asked

    def _keep(self, asked: Request[Any]) -> None:
        """Track a request that was not answered inline, so that the server's death fails it."""
        owner: Any = self.owner
        if owner.state == DEAD:
            asked.fail(owner.outcome.error)
        else:
            asked.track(self._calls)


def one_queue(process: Process) -> "ServerQueue":
    """Return one queue for everything that a process receives; queued items come first."""
    queue = ServerQueue(process)
    process.merge_channels(queue)
    return queue


@types.coroutine
def send_request(pid: Pid, body: object, timeout: Duration) -> Generator[Any, None, Any]:
    """Send a request and wait for the answer; like `process.call`, if it is not a server.

    Raises:
        CallTimeout: No reply came in time; a late one is dropped.
        CallExit: The process died, or was dead; `reason` says why.
    """
    server: Any = pid.target
    caller: Any = own_process(None)
    # A server that calls another waits as usual, so that such steps do not nest.
    if (
        server is not None
        and caller is not None
        and caller.state == RUNNING
        and (server.loop is caller.loop)
    ):
        queue = server._requests  # noqa: SLF001 - the field of our queue
        if type(queue) is ServerQueue and type(caller._requests) is not ServerQueue:  # noqa: SLF001
            # The plain number of nearly all calls, without two calls more.
            if type(timeout) is float and 0.0 <= timeout < _LONG:
                limit = timeout
            else:
                limit = seconds(timeout)
            asked = queue.serve_at_once(body, caller)
            if asked is not None:
                if asked.done and not caller.must_cancel:
                    return asked.inline_answer()
                return (yield from _answer(asked, caller, limit))
    waiting: Any = ask(server, pid, body, timeout)
    return (yield from waiting)


def _answer(asked: Request[Any], caller: Process, limit: float | None) -> Generator[Any, None, Any]:
    """Wait for a server that does not answer inline."""
    if asked.done:  # it died, and the caller with it
        yield PARK
    elif limit is not None:
        caller.runtime.deadlines.add(limit, asked)
    try:
        while not asked.done:
            yield PARK
    finally:
        asked.withdraw()
    return asked.answer()
