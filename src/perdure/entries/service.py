"""What runs for an entry: the supervisor of a service, and the process of a host.

A service is a process that is kept running. Its supervisor is a kind of the restart loop: one
child, started again after a delay that grows with each failure. It differs from others in two
points. A service may say itself when it is ready, so there is a state between spawned and running,
with a time limit; and it can end for good, which ends its supervisor too, normally, so that it is
not restarted.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum
from random import Random
from typing import NamedTuple

from perdure.base import telemetry
from perdure.base.errors import Shutdown, StartError
from perdure.base.pid import Pid
from perdure.base.restart import Backoff, Restart, needs_restart
from perdure.base.retry import Retry
from perdure.entries.model import Lifecycle
from perdure.entries.resolve import HostPlan, ServicePlan
from perdure.otp.start import Ack
from perdure.otp.supervision.loop import RestartLoop, StopWanted, SupervisedChild
from perdure.otp.supervision.spec import ChildSpec, SpawnStart
from perdure.process.api import context, send
from perdure.process.event import Cancel, Exit, LinkDown, Message
from perdure.process.exit_reason import linked_reason
from perdure.process.hosts import ProcessHost
from perdure.process.lifecycle import find_spawn_id, kill, stop_gracefully
from perdure.process.process import Process, SpawnOptions, current
from perdure.process.relations import monitor

ENTRY_EVENT = ("perdure", "entry", "state")

_SUPERVISOR = "perdure.service.supervisor"  # the key of the supervisor in the context
_READY = "perdure.ready"


class ServiceState(StrEnum):
    """The state of a service."""

    STOPPED = "stopped"  # not started yet, or stopped by us
    STARTING = "starting"  # spawned, and not ready yet
    RUNNING = "running"
    RESTARTING = "restarting"  # it failed, and waits for its next start
    STOPPING = "stopping"
    EXITED = "exited"  # it ended by itself, without an error
    FAILED = "failed"  # it failed too often


ENDED = (ServiceState.EXITED, ServiceState.FAILED, ServiceState.STOPPED)


def ready() -> None:
    """Say that this service is ready, if its entry has `ready: true`.

    Until then it is only starting, and what depends on it waits.
    In a process that is not a service it does nothing.
    """
    supervisor = context().get(_SUPERVISOR)
    if isinstance(supervisor, Pid):
        send(supervisor, _READY)


class Service:
    """A service: what its entry says, and its state.

    Attributes:
        plan: What its entry says.
        state: Its state.
        pid: Its process; None if there is none now.
        starts: How often it was started since it last ran for `stable_threshold`.
        restarts: How often it was restarted in total.
        error: Why it last failed.
    """

    def __init__(self, plan: ServicePlan) -> None:
        """Describe it; nothing is started yet."""
        self.plan = plan
        self.state = ServiceState.STOPPED
        self.pid: Pid | None = None
        self.starts = 0
        self.restarts = 0
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<service {self.plan.id} {self.state}>"


def emit(id: str, state: ServiceState, **facts: object) -> None:
    """Emit the new state of a host or a service as a telemetry event."""
    telemetry.execute(ENTRY_EVENT, {}, {"id": id, "state": state.value, **facts})


class NextState(NamedTuple):
    """What happens to a service that ended: its new state, the starts that count, the delay."""

    state: ServiceState
    starts: int
    delay: float = 0.0


def after_end(
    lifecycle: Lifecycle,
    starts: int,
    age: float,
    error: BaseException | None,
    random: Random | None = None,
) -> NextState:
    """Return what happens to a service that ended; pure.

    Args:
        lifecycle: Its rules.
        starts: How often it was started since it was last stable.
        age: How long it ran this time.
        error: Why it ended; None for a normal end.
        random: The source of the jitter.
    """
    if not needs_restart(Restart.TRANSIENT, error):
        return NextState(ServiceState.EXITED, starts)
    plan = lifecycle.restart
    delays = Retry(
        initial_delay=plan.initial_delay,
        factor=plan.backoff_factor,
        max_delay=plan.max_delay,
        jitter=plan.jitter,
    )
    backoff = Backoff(delays, plan.max_attempts, lifecycle.stable_threshold)
    following = backoff.after_failure(starts, age, random)
    if following is None:
        return NextState(ServiceState.FAILED, starts)
    return NextState(ServiceState.RESTARTING, following.starts, following.delay)


async def run_service(
    ack: Ack, service: Service, changed: Callable[[], None], random: Random | None
) -> None:
    """Supervise a service until it has ended for good, or is stopped: the body of a process.

    Args:
        ack: Acknowledged when the service runs.
        service: What to run; its state is kept up to date.
        changed: Called after each change of the state.
        random: The source of the jitter.
    """
    reason = await ServiceLoop(service, changed, random).run(ack)
    if reason is not None:
        raise reason


class _Late(NamedTuple):
    """In the queue of a loop: the time for this process to get ready is over."""

    process: Process


class ServiceLoop(RestartLoop):
    """The supervisor of one service."""

    _child: SupervisedChild

    def __init__(
        self, service: Service, changed: Callable[[], None], random: Random | None
    ) -> None:
        super().__init__(f"Service {service.plan.id}", None)
        self._service = service
        self._changed = changed
        self._random = random
        self._lifecycle = service.plan.lifecycle
        self._running_since: float | None = None
        self._late = False
        self._ready_timer: asyncio.TimerHandle | None = None
        self._delay = 0.0
        service.starts = service.restarts = 0

    def children(self) -> Iterable[SupervisedChild]:
        return (self._child,)

    # Starting

    async def begin(self) -> None:
        plan = self._service.plan
        # Not by its id: the defaults of the entry are in the plan already, or were overridden.
        function = find_spawn_id(self.me.runtime.spawn_ids, plan.process).function
        values = {_SUPERVISOR: self.me.pid}
        start = SpawnStart(function, plan.input, SpawnOptions(plan.host, values=values))
        self._child = child = SupervisedChild(ChildSpec(plan.id, start, "transient"), self)
        self.me.at_exit(self._cancel_timer)
        try:
            await self.start(child)
        except StartError as error:
            if self._lifecycle.startup == "required":
                raise StopWanted(Shutdown(error.reason)) from error
            self.restart_failed(child, error)
        else:
            self._spawned(child)

    def begun(self) -> None:
        """Acknowledge an optional service at once; others are waited for until they run."""
        if self._lifecycle.startup == "optional":
            super().begun()

    async def start_again(self, child: SupervisedChild) -> bool:
        self._service.restarts += 1
        started = await super().start_again(child)
        if started:
            self._spawned(child)
        return started

    def restart_failed(self, child: SupervisedChild, error: StartError) -> None:
        self._service.starts += 1
        self._decide(error.reason)
        self.restart_later(child, self._delay)

    def _spawned(self, child: SupervisedChild) -> None:
        service = self._service
        process = child.process
        assert process is not None
        service.pid = process.pid
        service.starts += 1
        self._late = False
        if not self._lifecycle.ready:
            self._runs()
            return
        self._become(ServiceState.STARTING, pid=service.pid)
        limit = self._lifecycle.start_timeout
        self._ready_timer = self.me.loop.call_later(limit, self.inbox.put, _Late(process))

    def _runs(self) -> None:
        self._cancel_timer()
        self._running_since = self.me.loop.time()
        service = self._service
        self._become(ServiceState.RUNNING, pid=service.pid, host=service.plan.host)
        self.ack.ready(self.me)

    def take(self, told: object) -> None:
        if self._service.state is not ServiceState.STARTING:
            return
        if isinstance(told, Message) and told.topic == _READY:
            self._runs()
        elif isinstance(told, _Late) and told.process is self._child.process:
            self._late = True
            kill(told.process, "it was not ready in time")  # its end is reported to us

    def _cancel_timer(self) -> None:
        if self._ready_timer is not None:
            self._ready_timer.cancel()
            self._ready_timer = None

    # Ending

    async def child_ended(self, child: SupervisedChild, reason: BaseException | None) -> None:
        self._cancel_timer()
        self._service.pid = None
        if self._late:
            reason = TimeoutError("it was not ready in time")
        await super().child_ended(child, reason)

    def count_restart(self, child: SupervisedChild, reason: BaseException | None) -> None:  # noqa: ARG002
        self._decide(reason)

    async def restart(self, child: SupervisedChild) -> None:
        self.restart_later(child, self._delay)

    async def forget(self, child: SupervisedChild, reason: BaseException | None) -> None:  # noqa: ARG002
        self._decide(reason)

    def _decide(self, error: BaseException | None) -> None:
        """Enter the next state; if it is final, end with the service."""
        service, age = self._service, self._age()
        following = after_end(self._lifecycle, service.starts, age, error, self._random)
        service.starts, service.error, self._delay = following.starts, error, following.delay
        self._become(
            following.state, reason=error, age=age, delay=following.delay, starts=service.starts
        )
        if following.state is ServiceState.FAILED and not self.ack.done and error is not None:
            raise StopWanted(Shutdown(error))  # planned: the error is passed to those who wait
        if following.state in ENDED:
            self.ack.ready(self.me)
            raise StopWanted(None)

    def _become(self, state: ServiceState, **facts: object) -> None:
        self._service.state = state
        emit(self._service.plan.id, state, **facts)
        self._changed()

    def _age(self) -> float:
        """Return how long it ran; one that was never ready did not run at all."""
        since, self._running_since = self._running_since, None
        return 0.0 if since is None else self.me.loop.time() - since

    async def end_children(self) -> None:
        service = self._service
        if service.state in (ServiceState.EXITED, ServiceState.FAILED):
            return
        if service.pid is not None:
            self._become(ServiceState.STOPPING)
        await super().end_children()
        self._become(ServiceState.STOPPED, reason=service.error)

    def ask_to_end(self, child: SupervisedChild, process: Process) -> None:  # noqa: ARG002
        stop_gracefully(process, self._lifecycle.stop_timeout, self.me.pid, "the service stops")

    def stopped(self, child: SupervisedChild, process: Process) -> None:  # noqa: ARG002
        outcome = process.outcome
        self._service.pid = None
        self._service.error = None if outcome is None else outcome.error


# The process that starts a host, and stops it when its supervisor says so.


async def run_host(ack: Ack, plan: HostPlan, host: ProcessHost) -> None:
    """Start a host, and stop it at the end: the body of a process."""
    me = current("host")
    me.trap_links = True
    emit(plan.id, ServiceState.STARTING)
    await host.start()
    monitor(me, host.pid)
    try:
        emit(plan.id, ServiceState.RUNNING, kind=plan.size.kind, workers=host.workers)
        ack.ready(me)
        reason = await _end_wanted(me, plan.id, host.pid)
    finally:
        if host.running:  # otherwise it has ended by itself, which was reported
            emit(plan.id, ServiceState.STOPPING)
            await host.stop(plan.lifecycle.stop_timeout)
            emit(plan.id, ServiceState.STOPPED)
    if reason is not None:
        raise reason


async def _end_wanted(me: Process, id: str, host: Pid) -> BaseException | None:
    """Wait until the host must end or has ended; return the reason."""
    while True:
        match await me.events().receive():
            case Cancel():
                return None
            case LinkDown(sender=sender, error=error) if sender is me.parent:
                return linked_reason(sender, error)
            case Exit(sender=sender, result=result) if sender is host:
                state = ServiceState.STOPPED if result.ok else ServiceState.FAILED
                emit(id, state, reason=result.error)
                return result.error  # it gave up, and must be restarted
            case _:
                pass
