"""The border of a runtime to other loops: who is known here that lives elsewhere, and the reverse.

One node for each runtime that has to do with others: the program's first loop, each thread of a
host, each OS process of a host.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from itertools import count
from threading import get_ident
from typing import Any

from perdure.base import telemetry
from perdure.base.errors import HostBusy, Killed, MailboxFull, NoProcess, NotPortable, SpawnError
from perdure.base.pid import Pid
from perdure.process import death, signal
from perdure.process.event import ExitResult, Message
from perdure.process.hosts import signals
from perdure.process.hosts.pickling import load_call
from perdure.process.hosts.proxy import FarRequest, RemoteBonds, StandIn, Wire
from perdure.process.hosts.remote_info import Pictures, answer_looks
from perdure.process.process import Process
from perdure.process.relations import known, reach
from perdure.process.request import Request
from perdure.process.runtime import AdoptedProcess, Runtime
from perdure.process.spawn import SPAWN_EVENT, make_coroutine
from perdure.process.waiter import NOBODY

UNDELIVERED_EVENT = ("perdure", "host", "undelivered")

_log = logging.getLogger("perdure.host")

Handler = Callable[[Wire, Any], object]


class Node:
    """What one runtime knows of others, and what it does when they send a signal."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.stand_ins: dict[Pid, StandIn] = {}
        self.home: Wire | None = None  # to the first node, which knows all hosts
        self._thread = get_ident()
        self.threaded = False
        self._route: Callable[[Pid], Wire | None] = lambda _: None
        self._observers: dict[Pid, dict[Wire, bool]] = {}  # who is told of an end; True: in full
        self.numbers = count(1)
        self.looks: dict[int, asyncio.Future[Pictures]] = {}  # that wait for their pictures
        self.calls: dict[int, Request[Any]] = {}  # ours, that wait for an answer from elsewhere
        self._inbox: deque[tuple[Wire | None, signals.Signal]] = deque()
        self._roused = False
        self._closing = False
        self.handlers: dict[type, Handler] = {
            signals.Send: self._on_send,
            signals.Ask: self._on_ask,
            signals.Answer: self._on_answer,
            signals.NoAnswer: self._on_no_answer,
            signals.Withdraw: self._on_withdraw,
            signals.Spawn: self._on_spawn,
            signals.Start: self._on_start,
            signals.Watch: self._on_watch,
            signals.Exited: self._on_exited,
            signals.Lost: lambda wire, told: self.lose(wire, told.reason),
            signals.Link: self._on_link,
            signals.Unlink: self._on_unlink,
            signals.ExitSignal: self._on_exit_signal,
            signals.Condemn: self._on_condemn,
            signals.CancelAsk: self._on_cancel,
            signals.StopPolitely: self._on_stop_politely,
            signals.Kill: self._on_kill,
        }
        answer_looks(self)
        runtime.node = self

    # Stand-ins

    def share(self, route: Callable[[Pid], Wire | None]) -> None:
        """Live beside other loops in this interpreter, to which a pid leads by this route."""
        self.threaded = True
        self._route = route

    def is_outside(self) -> bool:
        """Tell whether another thread runs this, which must not touch anything here."""
        return self.threaded and get_ident() != self._thread

    def stand_in(self, pid: Pid) -> Process | None:
        """Give what stands in here for a process; it is dead if there is no way to it."""
        stand_in = self.stand_ins.get(pid)
        if stand_in is None:
            wire = self._route(pid)
            if wire is None:
                return None
            stand_in = self.meet(pid, wire, full=True)
            wire.post(signals.Watch(pid, full=True))
        return stand_in

    def meet(self, pid: Pid, wire: Wire, *, full: bool, kind: type[StandIn] = StandIn) -> StandIn:
        """Make a stand-in for a process that lives at the other end of a wire."""
        stand_in = self.stand_ins[pid] = kind(self, pid, wire, full=full)
        if pid.target is None:
            pid.target = stand_in
        return stand_in

    def forget(self, stand_in: StandIn) -> None:
        """Let go of a stand-in that died, and tell those beyond."""
        pid = stand_in.pid
        self.stand_ins.pop(pid, None)
        # Also if it leads to the process itself: a thread tells of a death a moment before it is
        # marked there, and whoever hears of it must find it dead.
        if not self._closing or pid.target is stand_in:
            pid.target = None
        if not self._closing:
            assert stand_in.outcome is not None
            self._tell_observers(pid, stand_in.outcome)

    def lose(self, wire: Wire, reason: BaseException) -> None:
        """Bury all that lived at the other end of a wire that is cut, and forget what it asked."""
        for observers in self._observers.values():
            observers.pop(wire, None)
        while wire.asked:
            wire.asked.popitem()[1].give_up()
        for stand_in in [each for each in self.stand_ins.values() if each.wire is wire]:
            stand_in.end(ExitResult(None, reason))

    def close(self, reason: BaseException) -> None:
        """Let go of all stand-ins, for this loop ends; those for whom they stand live on."""
        self._closing = True
        for stand_in in tuple(self.stand_ins.values()):
            stand_in.end(ExitResult(None, reason))

    # Who is told of an end

    def observe(self, process: Process, wire: Wire, *, full: bool) -> None:
        """Tell the other end of a wire when a process ends."""
        observers = self._observers.get(process.pid)
        if observers is None:
            observers = self._observers[process.pid] = {}
            if not isinstance(process, StandIn):
                process.tie().at_death(partial(self._ended, process))
        observers[wire] = full or observers.get(wire, False)
        if full and isinstance(process, StandIn):
            process.attend()

    def _ended(self, process: Process) -> None:
        outcome = process.outcome or ExitResult(None, Killed("it was abandoned"))
        self._tell_observers(process.pid, outcome)

    def _tell_observers(self, pid: Pid, outcome: ExitResult) -> None:
        for wire, full in self._observers.pop(pid, {}).items():
            wire.post(signals.Exited(pid, outcome if full else None))

    # Signals come in

    def take_in(self, signal: signals.Signal, wire: Wire | None = None) -> bool:
        """Take a signal from another thread: it is dealt with on this loop, in order."""
        self._inbox.append((wire, signal))
        if not self._roused:
            self._roused = True
            try:
                self.runtime.loop.call_soon_threadsafe(self._drain, context=Context())
            except RuntimeError:  # its loop is closed: the thread has ended
                return False
        return True

    @property
    def waiting(self) -> int:
        """How many signals of other threads wait."""
        return len(self._inbox)

    def _drain(self) -> None:
        self._roused = False  # before the look: what comes later must rouse again
        for _ in range(len(self._inbox)):
            self.receive(*self._inbox.popleft())
        if self._inbox and not self._roused:
            self._roused = True
            self.runtime.loop.call_soon(self._drain, context=Context())

    def receive(self, wire: Wire | None, signal: signals.Signal) -> None:
        """Deal with a signal; a mistake in one must not stop the others."""
        try:
            self.handlers[type(signal)](wire, signal)  # pyright: ignore[reportArgumentType]
        except Exception:  # noqa: BLE001
            self.report_mistake(signal)

    def report_mistake(self, signal: signals.Signal) -> None:
        """Tell people of an error in dealing with a signal; called while it is handled."""
        _log.exception("a signal of another loop could not be dealt with: %.500r", signal)

    def report_lost(self, what: str, error: BaseException) -> None:
        """Tell people of something that could not be taken in."""
        _log.error("%s was lost: %s", what, error)
        telemetry.execute(UNDELIVERED_EVENT, {}, {"what": what, "reason": error})

    def _on_send(self, _: Wire, told: signals.Send) -> None:
        target = reach(told.dest, self.runtime)
        if target is None:
            return
        try:
            delivered = target.deliver(told.message)
        except (MailboxFull, HostBusy):
            delivered = False
        if not delivered:
            telemetry.execute(
                UNDELIVERED_EVENT, {}, {"pid": told.dest, "topic": told.message.topic}
            )

    # Requests

    def _on_ask(self, wire: Wire, told: signals.Ask) -> None:
        target = reach(told.dest, self.runtime)
        if target is None:
            wire.post(signals.NoAnswer(told.number, NoProcess(told.dest)))
            return
        number, calls = told.number, target.tie().open_calls()
        request = wire.asked[number] = FarRequest(
            told.dest, told.body, told.sender, NOBODY, calls, wire=wire, number=number
        )
        calls[request] = None
        try:
            target.ask(request)
        except (HostBusy, NotPortable) as error:  # it is to go on to another worker, and cannot
            del wire.asked[number]
            wire.post(signals.NoAnswer(number, error))

    def _on_answer(self, _: Wire, told: signals.Answer) -> None:
        request = self.calls.pop(told.number, None)
        if request is not None:
            request.reply(told.value)

    def _on_no_answer(self, _: Wire, told: signals.NoAnswer) -> None:
        request = self.calls.pop(told.number, None)
        if request is not None:
            request.fail(told.reason)

    def _on_withdraw(self, wire: Wire, told: signals.Withdraw) -> None:
        request = wire.asked.pop(told.number, None)
        if request is not None:
            request.give_up()

    # Births

    def _on_spawn(self, wire: Wire, told: signals.Spawn) -> None:
        try:
            function, args, values = load_call(told.call, wire)
            coro = make_coroutine(function, args)
        except BaseException as error:  # noqa: BLE001 - whatever the import of user code raises
            reason = error if isinstance(error, SpawnError) else _cannot_start(error)
            wire.post(signals.Exited(told.pid, ExitResult(None, reason)))
            return
        process = self.runtime.kind(self.runtime, function, args, coro, None, values)
        process.parent, process.pid = told.parent, told.pid
        told.pid.target = process
        self.stand_ins.pop(told.pid, None)  # its pid may have come before it
        if told.name is not None:  # the first node has given it the name
            self.runtime.names[told.name] = process
            process.tie().add_name(told.name)
        self._begin(wire, process)

    def _on_start(self, wire: Wire, told: signals.Start) -> None:
        self._begin(wire, told.process)

    def _begin(self, wire: Wire, process: Process) -> None:
        self.runtime.processes[process.pid] = process
        self.observe(process, wire, full=True)
        process.start()
        telemetry.execute(
            SPAWN_EVENT,
            {},
            {"pid": process.pid, "parent": process.parent, "function": process.function},
        )

    # Ties

    def _on_watch(self, wire: Wire, told: signals.Watch) -> None:
        target = reach(told.pid, self.runtime)
        if target is None:
            gone = ExitResult(None, NoProcess(told.pid)) if told.full else None
            wire.post(signals.Exited(told.pid, gone))
        else:
            self.observe(target, wire, full=told.full)

    def _on_exited(self, _: Wire, told: signals.Exited) -> None:
        stand_in = self.stand_ins.get(told.pid)
        if stand_in is not None:
            stand_in.end(told.outcome or ExitResult(None, NoProcess(told.pid)))

    def _on_link(self, wire: Wire, told: signals.Link) -> None:
        mine = reach(told.yours, self.runtime)
        if mine is None:
            return  # the other side has asked to be told of its end, and is told by that
        peer = self.stand_ins.get(told.mine) or self.meet(told.mine, wire, full=True)
        if peer.wire is wire:
            _bonds(peer).tie_here(mine)
            mine.tie().add_link(peer)

    def _on_unlink(self, _: Wire, told: signals.Unlink) -> None:
        mine, peer = known(told.yours, self.runtime), self.stand_ins.get(told.mine)
        if peer is not None and mine is not None and mine.bonds is not None:
            mine.bonds.drop_link(peer)
            _bonds(peer).untie_here(mine)

    # Ends

    def _on_exit_signal(self, _: Wire, told: signals.ExitSignal) -> None:
        target = reach(told.dest, self.runtime)
        if target is not None:
            target.exit_signal(told.sender, told.reason)

    def _on_condemn(self, _: Wire, told: signals.Condemn) -> None:
        target = reach(told.dest, self.runtime)
        if target is not None:
            target.condemn(told.outcome)

    def _on_cancel(self, _: Wire, told: signals.CancelAsk) -> None:
        target = reach(told.dest, self.runtime)
        if target is not None:
            signal.cancel(target, told.sender, told.timeout, told.reason)

    def _on_stop_politely(self, _: Wire, told: signals.StopPolitely) -> None:
        target = reach(told.dest, self.runtime)
        if target is not None:
            signal.stop_politely(target, told.timeout, told.sender, told.why)

    def _on_kill(self, _: Wire, told: signals.Kill) -> None:
        target = reach(told.dest, self.runtime)
        if target is not None:
            death.kill(target, told.detail)


def _bonds(stand_in: StandIn) -> RemoteBonds:
    bonds = stand_in.tie()
    assert isinstance(bonds, RemoteBonds)
    return bonds


def _cannot_start(error: BaseException) -> SpawnError:
    wrapped = SpawnError(f"its worker cannot start it: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


# Processes of a program that has more than one thread: what other threads do is taken in order.


class SharedProcess(Process):
    """A process whose pid is known to other threads too."""

    __slots__ = ()

    def deliver(self, message: Message) -> bool:
        """Take a message in; from another thread by way of the loop."""
        node = self.runtime.node
        assert isinstance(node, Node)
        if node.is_outside():
            return node.take_in(signals.Send(self.pid, message))
        return Process.deliver(self, message)


class SharedRoot(AdoptedProcess):
    """An adopted root process whose pid is known to other threads too."""

    __slots__ = ()

    deliver = SharedProcess.deliver


def share(runtime: Runtime) -> None:
    """Make all processes of a runtime, and those to come, ready for other threads."""
    runtime.kind = SharedProcess
    for process in runtime.processes.values():
        if type(process) is Process:
            process.__class__ = SharedProcess
        elif type(process) is AdoptedProcess:
            process.__class__ = SharedRoot
