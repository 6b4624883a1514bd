"""The node: the boundary of a runtime to other loops, and the proxies of the processes there.

A program with hosts has several loops: the first one, one in each thread of a host, one in each
child OS process. Each has its own runtime with its own processes, and no code ever touches a
process of another loop. Instead there is one node per runtime, wires between the nodes, and
signals on the wires. This page says why that is enough to make the verbs mean the same everywhere.

**Proxies.** To code on this loop, a process of another one is a `Proxy`: an object of the same
interface, with its own relations. `send`, `cancel`, `kill` on it become signals; links, monitors
and open requests are kept in its relations *here*, exactly as with a local process. When the other
side reports the end, the proxy dies like any process and notifies everybody here. So the rules
of death are written once, in `lifecycle`, and an end crosses a wire once, however many watch it.

**One pid object per OS process.** A pid that is unpickled is looked up, so that pids can be
compared by identity. `pid.target` is the process or its proxy, and None when it is dead. In a
program with threads all loops share the pid, whose target is the real process; a loop finds its
own proxy in `proxies`. That is why code must use `resolve`, and never `pid.target` directly,
unless it only checks whether the process is alive.

**Order.** Signals between two nodes arrive in the order in which they were posted, and there is
exactly one path between any two processes: two paths could overtake each other. Everything about
one process therefore arrives in order too: a message before the EXIT of its sender, a link before
the death that it is about. Where a second path would arise, one side waits: a process that a
worker thread starts on a host keeps its messages until it is placed (`PendingSpawn`), and an OS
worker blocks until it knows whether its new process is its own (`RemoteHost`).

**Who is notified of an end.** A node keeps, for each process, the wires that observe its end
(`_exit_observers`). Most only need to know *that* it is gone, so that their proxy can be dropped;
the outcome crosses only to those who have a relation to it (`full`), because an outcome can be
large or impossible to pickle.

**Races, and who wins.** A process may die while a signal to it is on its way. Nothing is confirmed;
instead every `WatchSignal`, `LinkSignal` or request for a process that is dead by then is answered
with its end. So each question gets exactly one answer, early or late. A signal
to a dead process is dropped, as a message to a dead pid is.

**Threads.** Another thread must not touch anything here, not even to append to a mailbox, since the
scheduler runs without locks. It hands its signal to `receive_from_thread`, which puts it into a
deque (atomic) and wakes the loop once. The wake-up flag is cleared *before* the deque is drained:
a signal that comes during the drain either is drained, or wakes the loop again. Threads that share
the program's first loop share its names too, so `SharedProcess` delivers through the node whenever
the calling thread is not its own.

**Loss.** A wire that breaks (the child died, the thread was abandoned) ends all proxies behind it
with `HostDown`, and withdraws the requests that came over it. So nothing waits for an answer that
cannot come.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from itertools import count, islice
from threading import get_ident
from types import FrameType
from typing import Any, Protocol

from perdure.base import telemetry
from perdure.base.errors import HostBusy, Killed, MailboxFull, NoProcess, NotPortable, SpawnError
from perdure.base.pid import Pid
from perdure.process.event import Cancel, Event, ExitResult, Message
from perdure.process.hosts.pickling import RemoteRepr, load_call
from perdure.process.hosts.signals import (
    CancelSignal,
    ExitedSignal,
    ExitSignal,
    ForceExitSignal,
    InfoReplySignal,
    InfoRequestSignal,
    KillSignal,
    LinkSignal,
    ReplySignal,
    RequestFailedSignal,
    RequestSignal,
    SendSignal,
    Signal,
    SpawnSignal,
    StartSignal,
    StopGracefullySignal,
    UnlinkSignal,
    WatchSignal,
    WireLostSignal,
    WithdrawSignal,
)
from perdure.process.introspect import Info, info_of
from perdure.process.lifecycle import (
    cancel,
    emit_spawn_event,
    kill,
    make_coroutine,
    notify_related,
    release,
    stop_gracefully,
)
from perdure.process.process import Collector, Process, Relations, RemoteProcess
from perdure.process.relations import resolve, resolve_known
from perdure.process.request import Request
from perdure.process.runtime import AdoptedProcess, LoopRuntime
from perdure.process.waiter import DEAD, NO_WAITER, WAITING

UNDELIVERED_EVENT = ("perdure", "host", "undelivered")

MAX_INFOS = 2_000  # processes of which one worker sends infos

_log = logging.getLogger("perdure.host")


class Wire(Protocol):
    """A connection to another node: what is posted here arrives there, in order."""

    unanswered: dict[int, Request[Any]]  # requests from there that are not answered yet

    def post(self, signal: Signal) -> None:
        """Send a signal that must arrive."""
        ...

    def offer(self, signal: Signal) -> None:
        """Send a signal, unless too many are queued already.

        Raises:
            HostBusy: Too many are queued.
            NotPortable: It cannot be pickled.
        """
        ...

    def force(self, proxy: "Proxy", detail: object) -> None:
        """End a process that a kill did not end."""
        ...

    @property
    def grace(self) -> float | None:
        """How long a kill may take before it is forced; None if that is not up to this wire."""
        ...


Handler = Callable[[Wire, Any], object]


class Node:
    """What one runtime knows about others, and how it handles their signals."""

    def __init__(self, runtime: LoopRuntime) -> None:
        self.runtime = runtime
        self.proxies: dict[Pid, Proxy] = {}
        self.home: Wire | None = None  # to the root node, which knows all hosts
        self.numbers = count(1)  # of requests that cross a wire
        self.open_requests: dict[int, Request[Any]] = {}  # ours, that wait for an answer
        self.open_infos: dict[int, asyncio.Future[list[Info]]] = {}  # that we asked for
        # Wires that are notified of the end of a process; True: with its outcome.
        self._exit_observers: dict[Pid, dict[Wire, bool]] = {}
        self._closing = False
        # Whether other loops live in this interpreter, and how a pid leads to them.
        self.threaded = False
        self._route: Callable[[Pid], Wire | None] = lambda _: None
        self._thread = get_ident()
        self._from_threads: deque[tuple[Wire | None, Signal]] = deque()
        self._drain_scheduled = False
        self.handlers: dict[type, Handler] = {
            SendSignal: self._on_send,
            RequestSignal: self._on_request,
            ReplySignal: self._on_reply,
            RequestFailedSignal: self._on_request_failed,
            WithdrawSignal: self._on_withdraw,
            SpawnSignal: self._on_spawn,
            StartSignal: lambda wire, signal: self._start(wire, signal.process),
            WatchSignal: self._on_watch,
            ExitedSignal: self._on_exited,
            WireLostSignal: lambda wire, signal: self.wire_lost(wire, signal.reason),
            LinkSignal: self._on_link,
            UnlinkSignal: self._on_unlink,
            ExitSignal: self._on_exit_signal,
            ForceExitSignal: self._on_force_exit,
            CancelSignal: self._on_cancel,
            StopGracefullySignal: self._on_stop_gracefully,
            KillSignal: self._on_kill,
            InfoRequestSignal: self._on_info_request,
            InfoReplySignal: self._on_info_reply,
        }
        runtime.node = self

    # Proxies

    def proxy_of(self, pid: Pid) -> Process | None:
        """Return the proxy of a process; None if it is dead or cannot be reached."""
        proxy = self.proxies.get(pid)
        if proxy is None:
            wire = self._route(pid)
            if wire is None:
                return None
            proxy = self.add_proxy(pid, wire, full=True)
            wire.post(WatchSignal(pid, full=True))
        return proxy

    def add_proxy(
        self, pid: Pid, wire: Wire, *, full: bool, kind: "type[Proxy] | None" = None
    ) -> "Proxy":
        """Return a new proxy for a process that lives at the other end of a wire."""
        proxy = self.proxies[pid] = (kind or Proxy)(self, pid, wire, full=full)
        if pid.target is None:
            pid.target = proxy
        return proxy

    def remove_proxy(self, proxy: "Proxy") -> None:
        """Forget a proxy that died, and notify the nodes that observe it."""
        pid = proxy.pid
        self.proxies.pop(pid, None)
        # Even if the target is the process itself: a thread reports a death a moment before the
        # pid is marked there, and everybody who is notified must find the process dead.
        if not self._closing or pid.target is proxy:
            pid.target = None
        if not self._closing:
            assert proxy.outcome is not None
            self._notify_observers(pid, proxy.outcome)

    def wire_lost(self, wire: Wire, reason: BaseException) -> None:
        """End the proxies of all processes behind a lost wire, and forget its requests."""
        for observers in self._exit_observers.values():
            observers.pop(wire, None)
        while wire.unanswered:
            wire.unanswered.popitem()[1].withdraw()
        for proxy in [each for each in self.proxies.values() if each.wire is wire]:
            proxy.end(ExitResult(None, reason))

    def close(self, reason: BaseException) -> None:
        """End all proxies, since this loop ends; the processes themselves continue."""
        self._closing = True
        for proxy in tuple(self.proxies.values()):
            proxy.end(ExitResult(None, reason))

    # Who is notified of an end

    def observe_exit(self, process: Process, wire: Wire, *, full: bool) -> None:
        """Notify the other end of a wire when a process ends; with its outcome if `full`."""
        observers = self._exit_observers.get(process.pid)
        if observers is None:
            observers = self._exit_observers[process.pid] = {}
            if not isinstance(process, Proxy):
                process.at_exit(partial(self._exited, process))
        observers[wire] = full or observers.get(wire, False)
        if full and isinstance(process, Proxy):
            process.watch_in_full()

    def _exited(self, process: Process) -> None:
        outcome = process.outcome or ExitResult(None, Killed("it was abandoned"))
        self._notify_observers(process.pid, outcome)

    def _notify_observers(self, pid: Pid, outcome: ExitResult) -> None:
        for wire, full in self._exit_observers.pop(pid, {}).items():
            wire.post(ExitedSignal(pid, outcome if full else None))

    # Other threads

    def enable_threads(self, route: Callable[[Pid], Wire | None]) -> None:
        """Allow other loops in this interpreter; `route` returns the wire for a pid."""
        self.threaded = True
        self._route = route

    def is_other_thread(self) -> bool:
        """Whether the calling code is on another thread, which must not touch anything here."""
        return self.threaded and get_ident() != self._thread

    def receive_from_thread(self, signal: Signal, wire: Wire | None = None) -> bool:
        """Queue a signal from another thread for this loop; return False if the loop is closed."""
        self._from_threads.append((wire, signal))
        if not self._drain_scheduled:
            self._drain_scheduled = True
            try:
                self.runtime.loop.call_soon_threadsafe(self._drain, context=Context())
            except RuntimeError:  # the loop is closed: the thread has ended
                return False
        return True

    @property
    def waiting(self) -> int:
        """The number of queued signals from other threads."""
        return len(self._from_threads)

    def _drain(self) -> None:
        self._drain_scheduled = False  # before the look: what comes later schedules a drain again
        for _ in range(len(self._from_threads)):
            self.receive(*self._from_threads.popleft())
        if self._from_threads and not self._drain_scheduled:
            self._drain_scheduled = True
            self.runtime.loop.call_soon(self._drain, context=Context())

    # Signals

    def receive(self, wire: Wire | None, signal: Signal) -> None:
        """Handle a signal; an error in one must not stop the others."""
        try:
            self.handlers[type(signal)](wire, signal)  # pyright: ignore[reportArgumentType]
        except Exception:  # noqa: BLE001
            self.report_handler_error(signal)

    def report_handler_error(self, signal: Signal) -> None:
        """Log an error in the handler of a signal; called while it is handled."""
        _log.exception("a signal from another loop could not be handled: %.500r", signal)

    def report_lost(self, what: str, error: BaseException) -> None:
        """Log that something could not be delivered."""
        _log.error("%s was lost: %s", what, error)
        telemetry.execute(UNDELIVERED_EVENT, {}, {"what": what, "reason": error})

    def _on_send(self, _: Wire, signal: SendSignal) -> None:
        target = resolve(signal.dest, self.runtime)
        if target is None:
            return
        try:
            delivered = target.deliver(signal.message)
        except (MailboxFull, HostBusy):
            delivered = False
        if not delivered:
            metadata = {"pid": signal.dest, "topic": signal.message.topic}
            telemetry.execute(UNDELIVERED_EVENT, {}, metadata)

    # Requests

    def _on_request(self, wire: Wire, signal: RequestSignal) -> None:
        target = resolve(signal.dest, self.runtime)
        if target is None:
            wire.post(RequestFailedSignal(signal.number, NoProcess(signal.dest)))
            return
        number, open_requests = signal.number, target.get_relations().get_open_requests()
        request = wire.unanswered[number] = RemoteRequest(
            signal.dest,
            signal.body,
            signal.sender,
            NO_WAITER,
            open_requests,
            wire=wire,
            number=number,
        )
        open_requests[request] = None
        try:
            target.add_request(request)
        except (HostBusy, NotPortable) as error:  # it cannot be forwarded to another worker
            del wire.unanswered[number]
            wire.post(RequestFailedSignal(number, error))

    def _on_reply(self, _: Wire, signal: ReplySignal) -> None:
        request = self.open_requests.pop(signal.number, None)
        if request is not None:
            request.reply(signal.value)

    def _on_request_failed(self, _: Wire, signal: RequestFailedSignal) -> None:
        request = self.open_requests.pop(signal.number, None)
        if request is not None:
            request.fail(signal.reason)

    def _on_withdraw(self, wire: Wire, signal: WithdrawSignal) -> None:
        request = wire.unanswered.pop(signal.number, None)
        if request is not None:
            request.withdraw()

    # Starts

    def _on_spawn(self, wire: Wire, signal: SpawnSignal) -> None:
        try:
            function, args, values = load_call(signal.call, wire)
            coro = make_coroutine(function, args)
        except BaseException as error:  # noqa: BLE001 - whatever the import of user code raises
            reason = error if isinstance(error, SpawnError) else _cannot_start(error)
            wire.post(ExitedSignal(signal.pid, ExitResult(None, reason)))
            return
        process = self.runtime.process_class(self.runtime, function, args, coro, None, values)
        process.parent, process.pid = signal.parent, signal.pid
        signal.pid.target = process
        self.proxies.pop(signal.pid, None)  # its pid may have come before it
        if signal.name is not None:  # the root node has given it the name
            self.runtime.names[signal.name] = process
            process.get_relations().add_name(signal.name)
        self._start(wire, process)

    def _start(self, wire: Wire, process: Process) -> None:
        self.runtime.processes[process.pid] = process
        self.observe_exit(process, wire, full=True)
        process.enqueue()
        emit_spawn_event(process)

    # Relations

    def _on_watch(self, wire: Wire, signal: WatchSignal) -> None:
        target = resolve(signal.pid, self.runtime)
        if target is None:
            gone = ExitResult(None, NoProcess(signal.pid)) if signal.full else None
            wire.post(ExitedSignal(signal.pid, gone))
        else:
            self.observe_exit(target, wire, full=signal.full)

    def _on_exited(self, _: Wire, signal: ExitedSignal) -> None:
        proxy = self.proxies.get(signal.pid)
        if proxy is not None:
            proxy.end(signal.outcome or ExitResult(None, NoProcess(signal.pid)))

    def _on_link(self, wire: Wire, signal: LinkSignal) -> None:
        mine = resolve(signal.yours, self.runtime)
        if mine is None:
            return  # the other side watches it too, and is notified of its end by that
        peer = self.proxies.get(signal.mine) or self.add_proxy(signal.mine, wire, full=True)
        if peer.wire is wire:
            _relations_of(peer).add_link_here(mine)
            mine.get_relations().add_link(peer)

    def _on_unlink(self, _: Wire, signal: UnlinkSignal) -> None:
        mine, peer = resolve_known(signal.yours, self.runtime), self.proxies.get(signal.mine)
        if peer is not None and mine is not None and mine.relations is not None:
            mine.relations.remove_link(peer)
            _relations_of(peer).remove_link_here(mine)

    # Ends

    def _on_exit_signal(self, _: Wire, signal: ExitSignal) -> None:
        target = resolve(signal.dest, self.runtime)
        if target is not None:
            target.exit_signal(signal.sender, signal.reason)

    def _on_force_exit(self, _: Wire, signal: ForceExitSignal) -> None:
        target = resolve(signal.dest, self.runtime)
        if target is not None:
            target.force_exit(signal.outcome)

    def _on_cancel(self, _: Wire, signal: CancelSignal) -> None:
        target = resolve(signal.dest, self.runtime)
        if target is not None:
            cancel(target, signal.sender, signal.timeout, signal.reason)

    def _on_stop_gracefully(self, _: Wire, signal: StopGracefullySignal) -> None:
        target = resolve(signal.dest, self.runtime)
        if target is not None:
            stop_gracefully(target, signal.timeout, signal.sender, signal.why)

    def _on_kill(self, _: Wire, signal: KillSignal) -> None:
        target = resolve(signal.dest, self.runtime)
        if target is not None:
            kill(target, signal.detail)

    # Infos

    def _on_info_request(self, wire: Wire, signal: InfoRequestSignal) -> None:
        wanted, here = signal.pids, self.runtime.processes
        processes = here.values() if wanted is None else (here[p] for p in wanted if p in here)
        infos = [info_of(process) for process in islice(processes, MAX_INFOS)]
        wire.post(InfoReplySignal(signal.number, infos))

    def _on_info_reply(self, _: Wire, signal: InfoReplySignal) -> None:
        answer = self.open_infos.pop(signal.number, None)
        if answer is not None and not answer.done():
            answer.set_result(signal.infos)


def _cannot_start(error: BaseException) -> SpawnError:
    wrapped = SpawnError(f"its worker cannot start it: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


# Proxies


async def _runs_elsewhere() -> None:
    """Represent the code of a process about which nothing else is known here."""


class Proxy(RemoteProcess):
    """Represents a process of another loop on this one."""

    __slots__ = ("_collector", "_full", "node", "on_end", "wire")

    def __init__(self, node: Node, pid: Pid, wire: Wire, *, full: bool) -> None:
        runtime = node.runtime
        self.node = node
        self.wire = wire
        self.pid = pid
        self.runtime = runtime
        self.loop = runtime.loop
        self.scheduler = runtime.scheduler
        self.bound = runtime.mailbox_bound
        self.spawned_at = runtime.now()
        self.function, self.args, self.values, self.parent = _runs_elsewhere, (), {}, None
        self.state = WAITING
        self.trap_links = True  # a death here is reported to its node, not to it by its links
        self.must_cancel = False
        self.relations = self.outcome = self.future = self.reading = None
        self._direct_inbox = self._inbox = self._events = self._listeners = self._requests = None
        self._cancels = 0
        self._collector: Collector | None = None
        self._full = full  # whether the other side sends the outcome, and not only the end
        self.on_end: Callable[[], object] | None = None  # for the load of its worker

    def __repr__(self) -> str:
        return f"<proxy of {self.pid}>"

    def describe(
        self, function: Callable[..., Any], args: tuple[Any, ...], parent: Process | None
    ) -> None:
        """Set what it runs, for reports and listings."""
        self.function, self.args = function, args
        self.parent = None if parent is None else parent.pid

    def watch_in_full(self) -> None:
        """Ask the other side to send the outcome with the end."""
        if not self._full:
            self._full = True
            self.wire.post(WatchSignal(self.pid, full=True))

    def get_relations(self) -> Relations:
        if self.relations is None:
            self.relations = ProxyRelations(self)
            self.watch_in_full()
        return self.relations

    @property
    def collector(self) -> Collector | None:
        """The collector that takes its outcome before anybody else."""
        return self._collector

    @collector.setter
    def collector(self, collector: Collector | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.watch_in_full()
        self._collector = collector

    # What others do to it

    def deliver(self, message: Message) -> bool:
        if self.node.is_other_thread():
            return self.node.receive_from_thread(SendSignal(self.pid, message))
        if self.state == DEAD:
            return False
        self.wire.offer(SendSignal(self.pid, message))
        return True

    def add_request(self, request: Request[Any]) -> None:
        node = self.node
        number = next(node.numbers)
        node.open_requests[number] = request
        open_requests: Any = self.get_relations().get_open_requests()
        open_requests[request] = number
        try:
            self.wire.offer(RequestSignal(self.pid, number, request.body, request.sender))
        except BaseException:
            open_requests.pop(request, None)
            raise

    def notify(self, event: Event) -> None:
        if isinstance(event, Cancel):
            left = None if event.deadline is None else max(0.0, event.deadline - self.loop.time())
            self.wire.post(CancelSignal(self.pid, event.sender, left, event.reason))

    def exit_signal(self, sender: Pid, reason: BaseException) -> None:
        self.wire.post(ExitSignal(self.pid, sender, reason))

    def force_exit(self, outcome: ExitResult) -> None:
        self.wire.post(ForceExitSignal(self.pid, outcome))

    def stop_gracefully(self, timeout: float, sender: Pid | None, why: str | None) -> None:
        self.wire.post(StopGracefullySignal(self.pid, timeout, sender, why))

    def kill(self, detail: object) -> None:
        if self.state == DEAD:
            return
        self.wire.post(KillSignal(self.pid, detail))
        relations, grace = self.get_relations(), self.wire.grace
        if relations.kill_timer is None and grace is not None:
            relations.kill_timer = self.loop.call_later(grace, self.wire.force, self, detail)

    def get_stack(self, *, limit: int | None = None) -> list[FrameType]:  # noqa: ARG002
        """Return nothing: its frames are elsewhere."""
        return []

    def wake(self) -> None:
        """Do nothing: it never waits."""

    def interrupt(self) -> None:
        self.kill(None)

    # The end

    def end(self, outcome: ExitResult) -> None:
        """Die here too, like every process: release first, then notify, once."""
        if self.state == DEAD:
            return
        self.outcome = outcome
        relations = self.relations
        if relations is not None:
            release(self, relations)
        self.state = DEAD
        self.node.remove_proxy(self)
        if self.on_end is not None:
            self.on_end()
        if self._collector is not None:
            self._collector.collect(self, _collectable(outcome))
        if relations is not None:
            notify_related(self, relations, outcome)
            self.relations = None
        if self.runtime.exit_waiters:
            self.runtime.wake_exit_waiters()

    def abandon(self, detail: object) -> None:
        """Count it as dead, although it could not be ended."""
        self.end(ExitResult(None, Killed(detail)))


def _collectable(outcome: ExitResult) -> ExitResult:
    """Return a failure for a value that could not be pickled: a caller must not get its repr."""
    if not isinstance(outcome.value, RemoteRepr):
        return outcome
    return ExitResult(
        None, NotPortable(f"its value cannot cross to this OS process: {outcome.value}")
    )


def _relations_of(proxy: Proxy) -> "ProxyRelations":
    relations = proxy.get_relations()
    assert isinstance(relations, ProxyRelations)
    return relations


class ProxyRelations(Relations):
    """The relations of a proxy; links are kept on the other node too."""

    __slots__ = ("_proxy",)

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    def add_link(self, peer: Process) -> None:
        """Add a link to a peer, here and there."""
        super().add_link(peer)
        proxy = self._proxy
        proxy.node.observe_exit(peer, proxy.wire, full=True)
        proxy.wire.post(LinkSignal(peer.pid, proxy.pid))

    def remove_link(self, peer: Process) -> None:
        """Remove the link to a peer, here and there."""
        if self.links is not None and peer in self.links:
            super().remove_link(peer)
            self._proxy.wire.post(UnlinkSignal(peer.pid, self._proxy.pid))

    def add_link_here(self, peer: Process) -> None:
        """Add a link that the other node has made."""
        super().add_link(peer)

    def remove_link_here(self, peer: Process) -> None:
        """Remove a link that the other node has removed."""
        super().remove_link(peer)

    def get_open_requests(self) -> dict[Request[Any], None]:
        if self.open_requests is None:
            self.open_requests = _ProxyRequests(self._proxy)
        return self.open_requests


class _ProxyRequests(dict[Request[Any], Any]):
    """The open requests to a proxy, with their numbers."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    def pop(self, request: Request[Any], default: Any = None) -> Any:
        """Forget a request and return its number; if unanswered, withdraw it on the other side."""
        number = super().pop(request, default)
        node = self._proxy.node
        if number in node.open_requests:
            del node.open_requests[number]
            self._proxy.wire.post(WithdrawSignal(number))
        return number


class RemoteRequest(Request[Any], kw_only=True, eq=False):
    """A request from another loop: its answer goes back over the wire."""

    wire: Wire
    number: int

    def _close(self, open_requests: dict[Request[Any], None]) -> None:
        """Send the answer, if any; without one, the caller is notified of the server's death."""
        open_requests.pop(self, None)
        wire, number = self.wire, self.number
        if wire.unanswered.pop(number, None) is None or self._error is not None:
            return  # the caller has withdrawn it, or the server is dead
        try:
            wire.post(ReplySignal(number, self._value))
        except NotPortable as error:
            wire.post(RequestFailedSignal(number, error))


# Processes of a program that has more than one thread


class SharedProcess(Process):
    """A process whose pid is known to other threads too."""

    __slots__ = ()

    def deliver(self, message: Message) -> bool:
        """Put a message into the mailbox, through the loop if called from another thread."""
        node = self.runtime.node
        assert isinstance(node, Node)
        if node.is_other_thread():
            return node.receive_from_thread(SendSignal(self.pid, message))
        return Process.deliver(self, message)


class SharedRoot(AdoptedProcess):
    """An adopted root process whose pid is known to other threads too."""

    __slots__ = ()

    deliver = SharedProcess.deliver


def share_processes(runtime: LoopRuntime) -> None:
    """Make current and future processes of a runtime safe to reach from other threads."""
    runtime.process_class = SharedProcess
    for process in runtime.processes.values():
        if type(process) is Process:
            process.__class__ = SharedProcess
        elif type(process) is AdoptedProcess:
            process.__class__ = SharedRoot
