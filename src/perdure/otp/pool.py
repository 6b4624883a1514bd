"""Pool: a fixed number of equal workers, kept alive.

A worker that crashes is started again under the same id, after a short delay.
One that ends normally is done, and is not replaced.

A pool is a kind of the restart loop that supervisors run on. It differs in what it reports: lines
of text for people and telemetry of its own, instead of a supervisor's reports.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TypedDict, Unpack

from perdure.base import telemetry
from perdure.base.duration import Duration, named_seconds
from perdure.base.errors import Shutdown, StartError
from perdure.base.pid import Pid
from perdure.base.restart import Intensity
from perdure.otp.address import ServerRef, Via, pid_of
from perdure.otp.start import Ack, Stoppable, start
from perdure.otp.supervision.loop import RestartLoop, StopWanted, SupervisedChild
from perdure.otp.supervision.spec import ChildSpec, SpawnStart
from perdure.process.api import resolve_alive, wait_exit
from perdure.process.event import Cancel
from perdure.process.lifecycle import cancel, check_function, stop_gracefully
from perdure.process.process import Function, Process, SpawnOptions, current

STARTED = ("perdure", "pool", "started")
WORKER_FAILED = ("perdure", "pool", "worker", "failed")
WORKER_DIED = ("perdure", "pool", "worker", "died")
HEALTH = ("perdure", "pool", "health")


class PoolOptions(TypedDict, total=False):
    """The options of a pool; see `Pool.start_link`."""

    size: int
    restart_delay: Duration
    health_check: Duration
    max_restarts: int | None
    max_seconds: Duration
    host: str | None
    shutdown: Duration
    report: Callable[[str], object] | None


class Pool(Stoppable):
    """A pool; this is the handle to it.

    Every method may also be called on the class, with the pool's name or pid in place of
    the handle: `Pool.workers("fetchers")`.
    """

    __slots__ = ("pid",)

    def __init__(self, pid: Pid) -> None:
        """Make only the handle; `start_link` starts a pool."""
        self.pid = pid

    def __repr__(self) -> str:
        return f"<pool {self.pid}>"

    @classmethod
    async def start_link(
        cls,
        worker: Function | str,
        *,
        name: str | Via | None = None,
        **options: Unpack[PoolOptions],
    ) -> "Pool":
        """Start a pool, linked to this process, and all its workers.

        Args:
            worker: An `async def` function, or the id of a loaded entry.
                It is called with the worker's id, which counts from 1.
            name: The name of the pool's process.
            **options: `size`, the number of workers, 4.
                `restart_delay`, the time between a crash and the new worker, 100 ms.
                `health_check`, how long without any event until the pool reports, 60 s.
                `max_restarts` within `max_seconds`, the limit beyond which the pool gives up;
                by default there is none.
                `host`, where the workers run.
                `shutdown`, how long workers may take to end with the pool, 5 s.
                `report`, a function that is called with a line of text for each event.

        Raises:
            NameTaken: Another process has the name.
            ValueError: An option is out of its range.
            TypeError: An option is unknown or has the wrong type.
            SpawnError: The worker is not an `async def` function.
        """
        loop = PoolLoop(PoolPlan(worker, **options))
        process, _ = await start(cls, _serve, loop, name=name)
        return cls(process.pid)

    @classmethod
    def child(
        cls,
        worker: Function | str,
        *,
        id: Hashable = None,
        name: str | Via | None = None,
        **options: Unpack[PoolOptions],
    ) -> ChildSpec:
        """Return the spec of a pool as the child of a supervisor."""
        PoolPlan(worker, **options)  # a mistake is raised here, not at the start
        begin = partial(cls.start_link, worker, name=name, **options)
        return ChildSpec(cls if id is name is None else id or name, begin, type="supervisor")

    def workers(self: ServerRef) -> list["PoolWorker"]:
        """Return the living workers, in the order of their ids.

        Raises:
            NoProcess: The pool has ended.
            TypeError: It is not a pool.
        """
        process = resolve_alive(pid_of(self, "workers"), "list its workers")
        if process.function is not _serve:
            raise TypeError(f"{self!r} is not a pool")
        loop: PoolLoop = process.args[1]
        return loop.workers()

    async def stop(self: ServerRef) -> None:
        """Stop the pool normally, its workers first, and wait until all have ended."""
        process = resolve_alive(pid_of(self, "stop"), "stop it")
        cancel(process, current("stop").pid, None)
        await wait_exit(process)


# The process of a pool


@dataclass(frozen=True, slots=True)
class PoolWorker:
    """A living worker of a pool; `started_at` is the time of the loop."""

    id: int
    pid: Pid
    started_at: float


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """How a pool works; see `Pool.start_link`."""

    worker: Function | str
    size: int = 4
    restart_delay: Duration = "100ms"
    health_check: Duration = "60s"
    max_restarts: int | None = None
    max_seconds: Duration = 5
    host: str | None = None
    shutdown: Duration = 5.0
    report: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        """Check the options before anything runs."""
        if not isinstance(self.worker, str):
            check_function(self.worker, "Pool.start_link")
        if isinstance(self.size, bool) or not isinstance(self.size, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"size is a whole number, not {self.size!r}")
        if self.size < 1:
            raise ValueError(f"size is 1 or more, not {self.size}")
        named_seconds("restart_delay", self.restart_delay)
        named_seconds("shutdown", self.shutdown)
        if self.health_check is not None and named_seconds("health_check", self.health_check) == 0:
            raise ValueError("health_check must be longer than 0; None: no health check")
        if self.report is not None and not callable(self.report):
            raise TypeError(f"report is a function that takes a text, not {self.report!r}")
        self.intensity()

    def intensity(self) -> Intensity | None:
        """Return the restart limit; None if there is none."""
        limit = self.max_restarts
        return None if limit is None else Intensity(limit, self.max_seconds)

    def child_spec(self, worker_id: int) -> ChildSpec:
        """Return the spec of one worker."""
        start = SpawnStart(self.worker, (worker_id,), SpawnOptions(self.host))
        return ChildSpec(worker_id, start, "transient", self.shutdown)


_HEALTH_CHECK_DUE = object()


class PoolLoop(RestartLoop):
    """The restart loop of a pool."""

    def __init__(self, plan: PoolPlan) -> None:
        super().__init__("Pool", plan.intensity())
        self._plan = plan
        self._delay = named_seconds("restart_delay", plan.restart_delay)
        self._shutdown = named_seconds("shutdown", plan.shutdown)
        self._by_id: dict[int, SupervisedChild] = {}
        self._health_timer: asyncio.TimerHandle | None = None

    def children(self) -> Iterable[SupervisedChild]:
        return self._by_id.values()

    def workers(self) -> list[PoolWorker]:
        """Return the living workers, in the order of their ids."""
        return [
            PoolWorker(worker_id, child.process.pid, child.since)
            for worker_id, child in self._by_id.items()
            if child.process is not None and child.process.pid.target is not None
        ]

    async def begin(self) -> None:
        size = self._plan.size
        for worker_id in range(1, size + 1):
            child = self._by_id[worker_id] = SupervisedChild(self._plan.child_spec(worker_id), self)
            try:
                await self.start(child)
            except StartError as error:
                self._report_failed(child, error)
                self.restart_later(child, self._delay)
        self._tell(f"Supervisor started with {size} workers", STARTED, {"size": size})
        self.me.at_exit(self._cancel_health_check)
        self._await_health_check()

    # Restarts

    def needs_restart(self, child: SupervisedChild, reason: BaseException | None) -> bool:  # noqa: ARG002
        """Whether a worker is restarted; also after a shutdown from outside."""
        return reason is not None

    def count_restart(self, child: SupervisedChild, reason: BaseException | None) -> None:
        age = self.me.loop.time() - child.since
        too_many = self._one_more()
        what = f"giving up: {too_many}" if too_many else "restarting"
        self._tell(
            f"Worker {child.spec.id} died after {int(age)}s, {what}",
            WORKER_DIED,
            {"age": age},
            worker=child.spec.id,
            reason=reason,
        )
        if too_many:
            raise StopWanted(Shutdown(too_many))

    async def restart(self, child: SupervisedChild) -> None:
        self.restart_later(child, self._delay)

    def restart_failed(self, child: SupervisedChild, error: StartError) -> None:
        self._report_failed(child, error)
        if too_many := self._one_more():
            raise StopWanted(Shutdown(too_many))
        self.restart_later(child, self._delay)

    async def forget(self, child: SupervisedChild, reason: BaseException | None) -> None:  # noqa: ARG002
        """Forget a worker that is done and not replaced."""
        self._by_id = {id: each for id, each in self._by_id.items() if each is not child}

    def _one_more(self) -> str | None:
        """Count one more failure; return a message if that is one too many."""
        limit = self.history.intensity
        if limit is None or not self.history.record(self.me.loop.time()):
            return None
        return f"more than {limit.max_restarts} restarts within {limit.window}"

    # Health checks: due when nothing has happened for a while

    def take(self, told: object) -> None:
        if told is not _HEALTH_CHECK_DUE:
            super().take(told)
            return
        active = len([child for child in self._by_id.values() if child.process is not None])
        self._tell(f"Health check: {active} active workers", HEALTH, {"active": active})

    async def work(self) -> None:
        await super().work()
        self._await_health_check()

    def _await_health_check(self) -> None:
        self._cancel_health_check()
        if self._plan.health_check is not None:
            delay = named_seconds("health_check", self._plan.health_check)
            self._health_timer = self.me.loop.call_later(delay, self.inbox.put, _HEALTH_CHECK_DUE)

    def _cancel_health_check(self) -> None:
        if self._health_timer is not None:
            self._health_timer.cancel()

    # Stopping: CANCEL for workers that read their events, a shutdown for the others

    def cancelled(self, event: Cancel) -> None:
        left = inf if event.deadline is None else event.deadline - self.me.loop.time()
        # At the deadline the pool itself is killed, so finish before.
        self._shutdown = max(0.0, min(self._shutdown, 0.9 * left))
        raise StopWanted(None)

    def parent_ended(self, parent: Pid, error: BaseException | None) -> None:
        if error is None or parent.target is None:
            raise StopWanted(Shutdown("its parent ended"))
        super().parent_ended(parent, error)

    def ask_to_end(self, child: SupervisedChild, process: Process) -> None:  # noqa: ARG002
        stop_gracefully(process, self._shutdown, self.me.pid, "the pool ends")

    def stopped(self, child: SupervisedChild, process: Process) -> None:
        """Report nothing: how workers end with their pool is their own business."""

    # Reporting

    def place_of(self, child: SupervisedChild) -> str:
        name = " ".join((self.label, *(self.me.get_relations().names or ())))
        return f"{name} {self.me.pid} as worker {child.spec.id}"

    def _report_failed(self, child: SupervisedChild, error: StartError) -> None:
        text = f"Failed to start worker {child.spec.id}: {error.reason}"
        self._tell(text, WORKER_FAILED, worker=child.spec.id, reason=error.reason)

    def _tell(
        self,
        text: str,
        event: telemetry.Event,
        measurements: telemetry.Values | None = None,
        **metadata: object,
    ) -> None:
        if self._plan.report is not None:
            self._plan.report(text)
        telemetry.execute(event, measurements or {}, {"pool": self.me.pid, **metadata})


async def _serve(ack: Ack, loop: PoolLoop) -> None:
    """Run the process of a pool."""
    reason = await loop.run(ack)
    if reason is not None:
        raise reason
