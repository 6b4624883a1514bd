"""The process behind an agent: it holds the state, and runs the functions that it is sent."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from types import CoroutineType
from typing import Any, TypeAlias

from perdure.base import telemetry
from perdure.base.duration import Duration, named_seconds, spell
from perdure.base.errors import BadReturn, SnapshotError, is_planned, safe_text
from perdure.otp.directive import DIRECTIVES, NoReply, Reply, Stop
from perdure.otp.isolation import isolated
from perdure.otp.server import GenServer
from perdure.otp.serving import settled
from perdure.otp.snapshot import Snapshot, checksum_of, encode_state, load, save, seal
from perdure.process.current import current
from perdure.process.event import LinkDown
from perdure.process.exits import spread
from perdure.process.request import Request

_log = logging.getLogger("perdure.otp")

SLOW_EVENT = ("perdure", "agent", "slow")
_PAIR = 2

# What is asked of an agent: what to do with the result, the function, its further
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
        """Show only what was chosen, for reports; nothing is shown as nothing there."""
        chosen = (each for each in fields(self) if getattr(self, each.name) != each.default)
        return ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in chosen)

    def patience(self) -> float:
        """Give the seconds after which a function counts as slow."""
        return inf if self.warn_after is None else named_seconds("warn_after", self.warn_after)


class Tick:
    """Arrives when it is time to save."""


TICK = Tick()

NOBODY: Any = None  # who waits for the answer to a cast


class AgentServer(GenServer):
    """A server whose requests are functions."""

    __module__, __qualname__ = "perdure", "Agent"  # as which people know it: for reports
    __portable_name__ = ("perdure.otp.agent_server", "AgentServer")  # for other OS processes

    async def init(self, first: Callable[[], Any], options: AgentOptions) -> None:
        """Take the state from the snapshot, else from the function."""
        self._process = process = current()
        self._options = options
        self._isolate = options.isolate
        self._now = process.runtime.clock.monotonic
        self._patience = options.patience()
        self._saved = ""  # the checksum of what is in the file
        self._timer: asyncio.TimerHandle | None = None
        if options.on_stop is not None or options.snapshot is not None:
            process.trap_links = True  # a stop by the supervisor leaves time to save
        if options.snapshot is None:
            self.state = await settled(first())
        else:
            self.state = await self._restored(first, options.snapshot)
            process.tie().at_death(self._stop_timer)
            self._start_timer(options.snapshot)

    # Functions

    def handle_call(self, request: Order, frm: Request[Any]) -> Any:
        """Run a function on the state; `async def` ones hold the agent until they are done."""
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
        """Answer with a value."""
        if self._isolate if isolate is None else isolate:
            try:
                value = isolated(value)
            except TypeError as error:  # the caller's mistake, and no reason to lose the state
                frm.fail(error)
                return NoReply
        return Reply(value) if type(value) in DIRECTIVES else value

    def updated(self, state: Any, allow_none: bool | None, _: object) -> None:  # noqa: FBT001
        """Take a new state."""
        if state is None and isinstance(self.state, dict | list | set):
            self._check_none(allow_none)
        self.state = state

    def swapped(self, pair: Any, isolate: bool | None, frm: Request[Any]) -> Any:  # noqa: FBT001
        """Take a new state and answer with a value."""
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
        _log.warning(
            "agent %s has been held for %s by %s: nobody else can use it meanwhile; "
            "do the work outside, and send it only the result",
            self._process.pid,
            spell(held),
            name,
        )
        telemetry.execute(
            SLOW_EVENT, {"held": held}, {"pid": self._process.pid, "function": function}
        )

    # Events

    async def handle_info(self, message: Any) -> Any:
        """Save when it is time; end with whatever it is linked to."""
        if message is TICK and self._options.snapshot is not None:
            await self._save_now_and_then(self._options.snapshot)
            return None
        if isinstance(message, LinkDown):
            alive = message.sender.target is not None
            return Stop(message.error if alive else spread(message.sender, message.error))
        return super().handle_info(message)

    async def terminate(self, reason: BaseException | None) -> None:
        """Save at a planned end; after a failure, what was saved before counts."""
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
            self._timer = process.loop.call_later(snapshot.every, process.requests().put, TICK)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
