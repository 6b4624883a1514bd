"""The stand-in of a process that runs on another loop.

To everybody on this loop it looks like the process: it has ties, a pid, an end.
What is done to it goes over a wire as a signal;
when the wire tells of the end, the stand-in dies the ordinary death, and so tells all who are
tied to it here: monitors, links, callers, tasks.
"""

from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from perdure.base.errors import Killed, NotPortable
from perdure.base.pid import Pid
from perdure.process.death import release, tell
from perdure.process.event import Cancel, Event, ExitResult, Message
from perdure.process.hosts import signals
from perdure.process.hosts.pickling import RemoteCopy
from perdure.process.process import Process
from perdure.process.relations import Bonds, Collector, Elsewhere
from perdure.process.request import Request
from perdure.process.waiter import DEAD, WAITING

if TYPE_CHECKING:
    from perdure.process.hosts.node import Node


class Wire(Protocol):
    """The way to another node: what is posted here arrives there, in order."""

    asked: dict[int, Request[Any]]  # requests from there that are not answered yet

    def post(self, signal: signals.Signal) -> None:
        """Send a signal that must arrive."""
        ...

    def offer(self, signal: signals.Signal) -> None:
        """Send a signal, if not too many wait already.

        Raises:
            HostBusy: Too many wait.
            NotPortable: It cannot cross.
        """
        ...

    def force(self, stand_in: "StandIn", detail: object) -> None:
        """End a process that a kill did not end."""
        ...

    @property
    def grace(self) -> float | None:
        """How long a kill may take before it is forced; None: others see to it."""
        ...


async def _elsewhere() -> None:
    """Stand for the code of a process of which nothing else is known here."""


class StandIn(Process, Elsewhere):
    """What stands in, on one loop, for a process of another."""

    __slots__ = ("_collector", "_full", "node", "on_end", "wire")

    def __init__(self, node: "Node", pid: Pid, wire: Wire, *, full: bool) -> None:
        runtime = node.runtime
        self.node = node
        self.wire = wire
        self.pid = pid
        self.runtime = runtime
        self.loop = runtime.loop
        self.scheduler = runtime.scheduler
        self.bound = runtime.bound
        self.born = runtime.now()
        self.function, self.args, self.values, self.parent = _elsewhere, (), {}, None
        self.state = WAITING
        self.trap_links = True  # a death here is told by `Exited`, and not by its links
        self.must_cancel = False
        self.bonds = self.outcome = self.future = self.reading = None
        self._direct = self._inbox = self._events = self._listeners = self._requests = None
        self._cancels = 0
        self._collector: Collector | None = None
        self._full = full
        self.on_end: Callable[[], object] | None = None  # for the worker that it counts as load

    def __repr__(self) -> str:
        return f"<stand-in of {self.pid}>"

    def describe(
        self, function: Callable[..., Any], args: tuple[Any, ...], parent: Process | None
    ) -> None:
        """Know what it runs, for reports and listings."""
        self.function, self.args = function, args
        self.parent = None if parent is None else parent.pid

    def attend(self) -> None:
        """See to it that the end is told in full."""
        if not self._full:
            self._full = True
            self.wire.post(signals.Watch(self.pid, full=True))

    def tie(self) -> Bonds:
        if self.bonds is None:
            self.bonds = RemoteBonds(self)
            self.attend()
        return self.bonds

    @property
    def collector(self) -> Collector | None:
        """Who takes its outcome before anybody else."""
        return self._collector

    @collector.setter
    def collector(self, collector: Collector | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.attend()
        self._collector = collector

    # What others do to it

    def deliver(self, message: Message) -> bool:
        if self.node.is_outside():
            return self.node.take_in(signals.Send(self.pid, message))
        if self.state == DEAD:
            return False
        self.wire.offer(signals.Send(self.pid, message))
        return True

    def ask(self, request: Request[Any]) -> None:
        node = self.node
        number = next(node.numbers)
        node.calls[number] = request
        calls: Any = self.bonds and self.bonds.calls  # where it stands already, made by `tie`
        calls[request] = number
        try:
            self.wire.offer(signals.Ask(self.pid, number, request.body, request.sender))
        except BaseException:
            calls.pop(request, None)
            raise

    def notify(self, event: Event) -> None:
        if isinstance(event, Cancel):
            left = None if event.deadline is None else max(0.0, event.deadline - self.loop.time())
            self.wire.post(signals.CancelAsk(self.pid, event.sender, left, event.reason))

    def exit_signal(self, sender: Pid, reason: BaseException) -> None:
        self.wire.post(signals.ExitSignal(self.pid, sender, reason))

    def condemn(self, outcome: ExitResult) -> None:
        self.wire.post(signals.Condemn(self.pid, outcome))

    def stop_politely(self, timeout: float, sender: Pid | None, why: str | None) -> None:
        self.wire.post(signals.StopPolitely(self.pid, timeout, sender, why))

    def kill(self, detail: object) -> None:
        if self.state == DEAD:
            return
        self.wire.post(signals.Kill(self.pid, detail))
        bonds, grace = self.tie(), self.wire.grace
        if bonds.repeat is None and grace is not None:
            bonds.repeat = self.loop.call_later(grace, self.wire.force, self, detail)

    def get_stack(self, *, limit: int | None = None) -> list[FrameType]:  # noqa: ARG002
        """Give nothing: its frames are elsewhere."""
        return []

    def asked_for_events(self) -> bool:
        return True

    def wake(self) -> None:
        """Do nothing: it never waits."""

    def interrupt(self) -> None:
        self.kill(None)

    # The end

    def end(self, outcome: ExitResult) -> None:
        """Die here too, as every process does: ties are released, then all are told, once."""
        if self.state == DEAD:
            return
        self.outcome = outcome
        bonds = self.bonds
        if bonds is not None:
            release(self, bonds)
        self.state = DEAD
        self.node.forget(self)
        if self.on_end is not None:
            self.on_end()
        if self._collector is not None:
            self._collector.collect(self, collected(outcome))
        if bonds is not None:
            tell(self, bonds, outcome)
            self.bonds = None
        if self.runtime.burials:
            self.runtime.tell_of_burial()

    def abandon(self, detail: object) -> None:
        """Count it as dead, though nobody could end it."""
        self.end(ExitResult(None, Killed(detail)))


def collected(outcome: ExitResult) -> ExitResult:
    """Make a failure of a value that could not cross: who waits for it must not get a picture."""
    if not isinstance(outcome.value, RemoteCopy):
        return outcome
    return ExitResult(
        None, NotPortable(f"its value cannot cross to this OS process: {outcome.value}")
    )


class RemoteBonds(Bonds):
    """The ties of a stand-in; of links the other node must know too."""

    __slots__ = ("_stand_in",)

    def __init__(self, stand_in: StandIn) -> None:
        super().__init__()
        self._stand_in = stand_in

    def add_link(self, peer: Process) -> None:
        """Tie to a peer, here and there."""
        super().add_link(peer)
        here = self._stand_in
        here.node.observe(peer, here.wire, full=True)
        here.wire.post(signals.Link(peer.pid, here.pid))

    def drop_link(self, peer: Process) -> None:
        """Untie from a peer, here and there."""
        if self.links is not None and peer in self.links:
            super().drop_link(peer)
            here = self._stand_in
            here.wire.post(signals.Unlink(peer.pid, here.pid))

    def tie_here(self, peer: Process) -> None:
        """Tie to a peer, here only: the other node has begun it."""
        super().add_link(peer)

    def untie_here(self, peer: Process) -> None:
        """Untie from a peer, here only."""
        super().drop_link(peer)

    def open_calls(self) -> dict[Request[Any], None]:
        """Give the requests that wait for an answer."""
        if self.calls is None:
            self.calls = OpenCalls(self._stand_in)
        return self.calls


class OpenCalls(dict[Request[Any], Any]):
    """The open requests to a stand-in, with their numbers."""

    def __init__(self, stand_in: StandIn) -> None:
        super().__init__()
        self._stand_in = stand_in

    def pop(self, request: Request[Any], default: Any = None) -> Any:
        """Forget a request that is over; if there was no answer, take the question back."""
        number = super().pop(request, default)
        stand_in = self._stand_in
        if number in stand_in.node.calls:
            del stand_in.node.calls[number]
            stand_in.wire.post(signals.Withdraw(number))
        return number


# A request that came from another loop: its answer goes back over the wire.


class FarRequest(Request[Any], kw_only=True, eq=False):
    """What stands here for a request whose caller waits elsewhere."""

    wire: Wire
    number: int

    def _close(self, calls: dict[Request[Any], None]) -> None:
        """Send the answer; if there is none, the caller learns of the server's death by itself."""
        calls.pop(self, None)
        wire, number = self.wire, self.number
        if wire.asked.pop(number, None) is None or self._error is not None:
            return  # the caller has given up, or the server is dead
        try:
            wire.post(signals.Answer(number, self._value))
        except NotPortable as error:
            wire.post(signals.NoAnswer(number, error))
