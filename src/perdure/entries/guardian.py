"""Who keeps a service running: a process that starts it, restarts it and stops it."""

from collections.abc import Callable
from random import Random
from typing import Any

from perdure.base import telemetry
from perdure.base.errors import Shutdown, SpawnError
from perdure.base.pid import Pid
from perdure.entries.plan import ServicePlan
from perdure.entries.restart import State, judge
from perdure.otp.start import Ack
from perdure.process.channel import Channel, select
from perdure.process.current import current
from perdure.process.entry import find_entry
from perdure.process.event import Cancel, Exit, LinkDown, Message
from perdure.process.exits import spread
from perdure.process.messaging import send
from perdure.process.process import Process
from perdure.process.reach import reach
from perdure.process.signal import stop_politely
from perdure.process.spawner import spawner
from perdure.process.timer import after
from perdure.process.verbs import context, kill

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
