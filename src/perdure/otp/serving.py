"""The life of a server: `init`, then one thing after another, then `terminate`."""

# What comes out of a `yield from` is unknown to the checker.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import asyncio
import inspect
import types
from collections.abc import Generator
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from perdure.base.errors import BadReturn, Killed, NameTaken, Shutdown, safe_text
from perdure.base.pid import Pid
from perdure.otp.directive import ABSENT, DIRECTIVES, Continue, NoReply, Reply, Stop, Timeout
from perdure.otp.queue import Queue, one_queue
from perdure.otp.spec import IGNORE
from perdure.otp.start import Ack
from perdure.otp.via import Via
from perdure.process.current import current
from perdure.process.event import Cancel, LinkDown, Message
from perdure.process.exits import ExitNow, Upgrade, spread
from perdure.process.mailbox import STREAK
from perdure.process.names import register
from perdure.process.process import Process
from perdure.process.request import Request
from perdure.process.waiter import PARK

if TYPE_CHECKING:
    from perdure.otp.server import GenServer

CAST = "@cast"  # the topic of casts; users cannot send to it


class StopOrder(NamedTuple):
    """The body of the request by which `GenServer.stop` ends a server."""

    reason: BaseException | None


class Ending(NamedTuple):
    """How a server is to end, and who waits for a last answer."""

    stop: Stop
    asked: Request[Any] | None = None


class Expiry:
    """A `Timeout` that runs; an object of its own, since users may return one `Timeout` often."""

    __slots__ = ("handle", "timeout")

    def __init__(self, timeout: Timeout) -> None:
        self.timeout = timeout
        self.handle: asyncio.TimerHandle | None = None


async def serve(
    ack: Ack, kind: "type[GenServer]", args: tuple[Any, ...], name: str | Via | None
) -> Any:
    """Be a server: the body of its process."""
    process = current()
    # What reports show, instead of this function.
    process.function, process.args = kind, args
    queue = one_queue(process)
    try:
        _take_name(process, name)  # only now that all goes into the one queue
    except NameTaken as taken:
        return taken
    server = kind()
    first = await settled(server.init(*args))
    if first is IGNORE:
        return IGNORE
    if isinstance(first, Stop):
        raise first.reason or Shutdown("init asked for a stop")
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
        self, process: Process, queue: Queue, server: "GenServer", parent: Pid | None
    ) -> None:
        self._process = process
        self._queue = queue
        self._server = server
        self._parent = parent
        self._expiry: Expiry | None = None
        self._releases = False

    async def live(self, first: Continue | Timeout | None) -> None:
        """Serve until something asks for the end, then terminate."""
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
        """Take one item after another: the core loop, with as few calls as can be."""
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
            if not streak:  # so many without a wait: now everybody else
                streak = STREAK
                yield from self._process.scheduler.breathe()
                continue  # a task inside may have taken it
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
        """Handle what is no request."""
        server = self._server
        if type(item) is Message and item.topic == CAST:
            callback, result = "handle_cast", server.handle_cast(item.payload)
        elif type(item) is Expiry:  # of a time-out that something else came before
            return None
        elif (reason := self._order(item)) is not None:
            return Ending(Stop(reason))
        else:
            callback, result = "handle_info", server.handle_info(item)
        stop = await self._follow(callback, await settled(result))
        return None if stop is None else Ending(stop)

    def _order(self, event: Any) -> BaseException | None:
        """Give the reason, if this is an order to end: from the parent, or from the runtime."""
        if type(event) is LinkDown and event.sender is self._parent:
            alive = event.sender.target is not None
            return event.error if alive else spread(event.sender, event.error)
        if type(event) is Cancel and event.sender is None:
            return Shutdown(event.reason)
        return None

    async def _follow(self, callback: str, result: Any) -> Stop | None:
        """Do what a callback asks for."""
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

    # Time-outs

    def _arm(self, timeout: Timeout) -> None:
        self._expiry = expiry = Expiry(timeout)
        if timeout.seconds == 0 and not len(self._queue):
            self._queue.put(expiry)
            return
        if not self._releases:  # a killed server leaves no timer
            self._releases = True
            self._process.tie().at_death(self._disarm)
        loop = self._process.loop
        expiry.handle = loop.call_later(timeout.seconds, self._queue.put, expiry)

    def _disarm(self) -> None:
        if self._expiry is not None and self._expiry.handle is not None:
            self._expiry.handle.cancel()
        self._expiry = None

    def _expired(self, item: Any) -> Any:
        """Turn the expiry that was waited for into its `Timeout`; all else ends the waiting."""
        if item is self._expiry:
            item = item.timeout
        elif type(item) is Expiry:  # an older one, which came just too late
            return item
        self._disarm()
        return item


async def settled(result: Any) -> Any:
    """Give what a callback returned, whether it is `async def` or not."""
    return await result if inspect.isawaitable(result) else result


def ends_by_itself(process: Process, error: BaseException) -> bool:
    """Tell whether the server's own code ends it, and no signal or kill from outside does."""
    if isinstance(error, ExitNow):  # by `process.exit` or `process.kill` in a callback
        assert process.outcome is not None
        return not isinstance(process.outcome.error, Killed)
    if isinstance(error, asyncio.CancelledError | Upgrade):
        return False
    return process.outcome is None


def bad_return(server: "GenServer", callback: str, value: object) -> NoReturn:
    """Refuse a value that means nothing there."""
    allowed = "None, Continue, Timeout, Stop or " + ("IGNORE" if callback == "init" else "NoReply")
    raise BadReturn(
        f"{type(server).__qualname__}.{callback} returned {safe_text(value)}; "
        f"it may return {allowed}"
    )
