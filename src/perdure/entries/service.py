"""Whether and when a service that ended is started again; pure."""

from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import Any, NamedTuple

from perdure.base import telemetry
from perdure.base.errors import Shutdown, SpawnError, is_planned
from perdure.base.pid import Pid
from perdure.base.retry import Retry
from perdure.entries.model import Lifecycle
from perdure.entries.resolve import HostPlan, ServicePlan
from perdure.otp.start import Ack
from perdure.process.api import context, kill, send, spawner
from perdure.process.channel import Channel, select
from perdure.process.event import Cancel, Exit, LinkDown, Message
from perdure.process.hosts import ProcessHost
from perdure.process.process import Process
from perdure.process.relations import find_entry, reach, spread
from perdure.process.signal import monitor, stop_politely
from perdure.process.timer import after
from perdure.process.waiter import current


class State(StrEnum):
    """How a service fares."""

    STOPPED = "stopped"  # not started yet, or stopped by us
    STARTING = "starting"  # spawned, and not ready yet
    RUNNING = "running"
    RESTARTING = "restarting"  # it failed, and waits for its next start
    STOPPING = "stopping"
    EXITED = "exited"  # it ended by itself, without an error
    FAILED = "failed"  # it failed too often


class Verdict(NamedTuple):
    """What happens to a service that ended: its state, the starts that count, the delay."""

    state: State
    starts: int
    delay: float = 0.0


def judge(
    lifecycle: Lifecycle,
    starts: int,
    age: float,
    error: BaseException | None,
    random: Random | None = None,
) -> Verdict:
    """Decide about a service that ended.

    Args:
        lifecycle: Its rules.
        starts: How often it was started since it last was stable.
        age: How long it ran this time.
        error: Why it ended; None: normally.
        random: The source of the jitter.
    """
    if is_planned(error):
        return Verdict(State.EXITED, starts)
    plan = lifecycle.restart
    if age >= lifecycle.stable_threshold:
        starts = 0
    if plan.max_attempts and starts >= plan.max_attempts:
        return Verdict(State.FAILED, starts)
    pauses = Retry(
        initial_delay=plan.initial_delay,
        factor=plan.backoff_factor,
        max_delay=plan.max_delay,
        jitter=plan.jitter,
    )
    return Verdict(State.RESTARTING, starts, pauses.delay(max(1, starts), random))


# Who keeps a service running: a process that starts it, restarts it and stops it.

GUARDIAN = "perdure.guardian"  # the key under which a service finds it in its context
READY = "perdure.ready"

ENDED = (State.EXITED, State.FAILED, State.STOPPED)

Changed = Callable[[], None]


class _StopWanted(Exception):
    """Leads out of the loop, to the stop; `reason` is that of the guardian's own end."""

    def __init__(self, reason: BaseException | None) -> None:
        super().__init__(reason)
        self.reason = reason


def ready() -> None:
    """Say that this service is ready, if its entry has `ready: true`.

    Until then it is only starting, and what depends on it waits.
    In a process that is no service it does nothing.
    """
    guardian = context().get(GUARDIAN)
    if isinstance(guardian, Pid):
        send(guardian, READY)


class Service:
    """A service: what it is to be, and how it fares.

    Attributes:
        plan: What its entry says.
        state: How it fares.
        pid: Its process; None if there is none now.
        starts: How often it was started since it last ran for `stable_threshold`.
        restarts: How often it was started again in all.
        error: Why it last failed.
    """

    def __init__(self, plan: ServicePlan, random: Random | None = None) -> None:
        """Describe it; nothing is started yet."""
        self.plan = plan
        self.state = State.STOPPED
        self.pid: Pid | None = None
        self.starts = 0
        self.restarts = 0
        self.error: BaseException | None = None
        self.changed: Changed = lambda: None
        self._random = random
        self._running_since: float | None = None
        self._clock: Channel[Any] = Channel()
        self._late = False
        self._me: Process
        self._ack: Ack

    def __repr__(self) -> str:
        return f"<service {self.plan.id} {self.state}>"

    # Its guardian's life

    async def guard(self, ack: Ack) -> None:
        """Be the guardian: until the service has ended for good, or is stopped."""
        self._me, self._ack = current("service"), ack
        self._me.trap_links = True  # its failure is an event to us, and not our own
        self.starts = self.restarts = 0
        try:
            self._start_first()
            while self.state not in ENDED:
                await self._next()
        except _StopWanted as stop:
            await self._stop()
            if stop.reason is not None:
                raise stop.reason from None
            return
        if self.state is State.FAILED and not ack.done and self.error is not None:
            raise Shutdown(self.error)  # planned: the error is told to who waits for the start
        ack.ready(self._me)

    async def _next(self) -> None:
        events, inbox = self._me.events(), self._me.inbox()
        told = await select(events, inbox, self._clock)
        if told.channel is self._clock:
            self._time_is_up()
        else:
            self._hear(told.value)

    def _hear(self, told: object) -> None:
        match told:
            case Exit(sender=sender, result=result) if sender is self.pid:
                self._ended(result.error)
            case Message(topic="perdure.ready") if self.state is State.STARTING:
                self._runs()
            case Cancel():
                raise _StopWanted(None)
            case LinkDown(sender=sender, error=error) if sender is self._me.parent:
                raise _StopWanted(spread(sender, error))
            case _:
                pass  # the LINK_DOWN of the service, whose EXIT says it all

    def _time_is_up(self) -> None:
        self._clock = Channel()
        if self.state is State.RESTARTING:
            self.restarts += 1
            self._start_again()
        elif self.state is State.STARTING and self.pid is not None:
            self._late = True
            kill(self.pid)  # its EXIT follows

    # Starting

    def _start_first(self) -> None:
        if self.plan.lifecycle.startup == "optional":
            self._start_again()
            self._ack.ready(self._me)
            return
        try:
            self._start()
        except SpawnError as error:
            raise Shutdown(error) from error

    def _start_again(self) -> None:
        try:
            self._start()
        except SpawnError as error:
            self.starts += 1
            self._ended(error)

    def _start(self) -> None:
        plan = self.plan
        # Not by its id: the defaults of the entry are in the plan already, or were overruled.
        function = find_entry(self._me.runtime.entries, plan.process).function
        birth = spawner(host=plan.host, context={GUARDIAN: self._me.pid})
        self.pid = birth.spawn_linked_monitored(function, *plan.input)
        self.starts += 1
        self._late = False
        if plan.lifecycle.ready:
            self._become(State.STARTING, pid=self.pid)
            self._clock = after(plan.lifecycle.start_timeout)
        else:
            self._runs()

    def _runs(self) -> None:
        self._clock = Channel()
        self._running_since = self._me.loop.time()
        self._become(State.RUNNING, pid=self.pid, host=self.plan.host)
        self._ack.ready(self._me)

    # Ending

    def _ended(self, error: BaseException | None) -> None:
        self.pid, self._clock = None, Channel()
        lifecycle, age = self.plan.lifecycle, self._age()
        if self._late:
            error = TimeoutError("it was not ready in time")
        verdict = judge(lifecycle, self.starts, age, error, self._random)
        self.starts, self.error = verdict.starts, error
        if verdict.state is State.RESTARTING:
            self._clock = after(verdict.delay)
        self._become(verdict.state, reason=error, age=age, delay=verdict.delay, starts=self.starts)

    def _age(self) -> float:
        """Give how long it ran; one that was never ready did not run at all."""
        since, self._running_since = self._running_since, None
        return 0.0 if since is None else self._me.loop.time() - since

    async def _stop(self) -> None:
        """End the process: politely, by force when the time is up."""
        if self.pid is not None:
            self._become(State.STOPPING)
            self._ask_to_end(self.pid)
        while self.pid is not None:
            match await self._me.events().receive():
                case Exit(sender=sender, result=result) if sender is self.pid:
                    self.pid, self.error = None, result.error
                case _:
                    pass
        self._become(State.STOPPED, reason=self.error)

    def _ask_to_end(self, pid: Pid) -> None:
        process = reach(pid, self._me.runtime)
        if process is not None:  # else it has just died: its EXIT waits in the events
            limit = self.plan.lifecycle.stop_timeout
            stop_politely(process, limit, self._me.pid, "the service stops")

    def _become(self, state: State, **facts: object) -> None:
        self.state = state
        tell(self.plan.id, state, **facts)
        self.changed()


ENTRY_EVENT = ("perdure", "entry", "state")


def tell(id: str, state: State, **facts: object) -> None:
    """Tell that something that an entry declares has another state."""
    telemetry.execute(ENTRY_EVENT, {}, {"id": id, "state": state.value, **facts})


# Who keeps a host running: a process that starts it, and stops it when its supervisor says so.


async def keep(ack: Ack, plan: HostPlan, host: ProcessHost) -> None:
    """Be the keeper of a host."""
    me = current("host")
    me.trap_links = True
    tell(plan.id, State.STARTING)
    await host.start()
    monitor(me, host.pid)
    try:
        tell(plan.id, State.RUNNING, kind=plan.size.kind, workers=host.workers)
        ack.ready(me)
        reason = await _end_wanted(me, plan.id, host.pid)
    finally:
        if host.running:  # else it has ended by itself, which was told
            tell(plan.id, State.STOPPING)
            await host.stop(plan.lifecycle.stop_timeout)
            tell(plan.id, State.STOPPED)
    if reason is not None:
        raise reason


async def _end_wanted(me: Process, id: str, host: Pid) -> BaseException | None:
    """Wait until the keeper is to end; give the reason."""
    while True:
        match await me.events().receive():
            case Cancel():
                return None
            case LinkDown(sender=sender, error=error) if sender is me.parent:
                return spread(sender, error)
            case Exit(sender=sender, result=result) if sender is host:
                state = State.STOPPED if result.ok else State.FAILED
                tell(id, state, reason=result.error)
                return result.error  # it gave up, and is to be started anew
            case _:
                pass
