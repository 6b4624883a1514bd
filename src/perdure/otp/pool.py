"""Pool: so many equal workers, kept alive.

A worker that crashes is started again under the same id, after a short delay.
One that ends normally is done, and nobody takes its place.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple, TypedDict, Unpack

from perdure.base import telemetry
from perdure.base.duration import Duration, named_seconds, spell
from perdure.base.errors import Shutdown, SpawnError
from perdure.base.pid import Pid
from perdure.otp.address import ServerRef, Via, pid_of
from perdure.otp.start import Ack, Stoppable, start
from perdure.otp.supervision.loop import times
from perdure.otp.supervision.spec import ChildSpec
from perdure.otp.supervision.strategy import Intensity, Restarts
from perdure.process.api import alive_or_raise, joined
from perdure.process.channel import Channel, select
from perdure.process.event import Cancel, Event, Exit, ExitResult, LinkDown
from perdure.process.process import Process
from perdure.process.relations import reach, spread
from perdure.process.signal import cancel, monitor, stop_politely
from perdure.process.spawn import Function, Options, check_function, give_birth
from perdure.process.timer import after
from perdure.process.waiter import current

# The inside of a pool: its workers, who died, who is to be started again, and when.

STARTED = ("perdure", "pool", "started")
WORKER_FAILED = ("perdure", "pool", "worker", "failed")
WORKER_DIED = ("perdure", "pool", "worker", "died")
HEALTH = ("perdure", "pool", "health")


@dataclass(frozen=True, slots=True)
class Worker:
    """A living worker of a pool; `started_at` is the time of the loop."""

    id: int
    pid: Pid
    started_at: float


@dataclass(frozen=True, slots=True)
class Plan:
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
        """Refuse what makes no sense, before anything runs."""
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
        """Give the limit of restarts; None: there is none."""
        limit = self.max_restarts
        return None if limit is None else Intensity(limit, self.max_seconds)


class Ending(NamedTuple):
    """Why the pool ends, and how long its workers may take."""

    reason: BaseException | None
    limit: float


class Crew:
    """The workers of one pool."""

    def __init__(self, plan: Plan) -> None:
        """Begin with no worker."""
        self.workers: dict[Pid, Worker] = {}
        self._plan = plan
        self._delay = named_seconds("restart_delay", plan.restart_delay)
        self._patience = named_seconds("shutdown", plan.shutdown)
        self._intensity = plan.intensity()
        self._crashes = None if self._intensity is None else Restarts(self._intensity)
        self._due: deque[tuple[float, int]] = deque()  # when which worker is started again
        self._starts: Counter[int] = Counter()  # of each worker
        self._me: Process

    async def run(self, ack: Ack) -> None:
        """Be the process of the pool."""
        self._me = me = current("pool")
        me.trap_links = True  # the death of a worker is an event to us, and not our own
        if me.parent is not None:
            monitor(me, me.parent)
        size = self._plan.size
        for worker_id in range(1, size + 1):
            if not self._start(worker_id):
                self._start_later(worker_id)
        self._tell(f"Supervisor started with {size} workers", STARTED, {"size": size})
        ack.ready(me)
        ending = await self._watch()
        await self._dismiss(ending.limit)
        if ending.reason is not None:
            raise ending.reason

    async def _watch(self) -> Ending:
        """Keep the workers alive until the pool is to end."""
        while True:
            # Each turn has new clocks: whatever happens starts the time to the check anew.
            restart, check = self._restart_clock(), self._check_clock()
            result = await select(self._me.events(), restart, check)
            if result.channel is check:
                self._check()
                continue
            by_time = result.channel is restart
            ending = self._start_again() if by_time else self._on_event(result.value)
            if ending is not None:
                return ending

    def _restart_clock(self) -> Channel[float]:
        return after(max(0.0, self._due[0][0] - self._me.loop.time())) if self._due else Channel()

    def _check_clock(self) -> Channel[float]:
        return Channel() if self._plan.health_check is None else after(self._plan.health_check)

    def _check(self) -> None:
        count = len(self.workers)
        self._tell(f"Health check: {count} active workers", HEALTH, {"active": count})

    def _on_event(self, event: Event) -> Ending | None:
        match event:
            case Cancel(deadline=deadline):
                left = inf if deadline is None else deadline - self._me.loop.time()
                # At the deadline we are killed ourselves: be done before.
                return Ending(None, max(0.0, min(self._patience, 0.9 * left)))
            case LinkDown(sender=sender, error=error) if sender is self._me.parent:
                return Ending(spread(sender, error), self._patience)
            case Exit(sender=sender) if sender is self._me.parent:
                return Ending(Shutdown("its parent ended"), self._patience)
            case Exit(sender=sender, result=end) if sender in self.workers:
                return self._on_death(self.workers.pop(sender), end)
            case _:
                return None  # the LINK_DOWN of a worker, whose EXIT says it all, or of a stranger

    def _on_death(self, worker: Worker, end: ExitResult) -> Ending | None:
        if end.ok:
            return None  # it is done, and nobody takes its place
        age = self._me.loop.time() - worker.started_at
        too_many = self._too_many()
        what = f"giving up: {too_many}" if too_many else "restarting"
        self._tell(
            f"Worker {worker.id} died after {int(age)}s, {what}",
            WORKER_DIED,
            {"age": age},
            worker=worker.id,
            reason=end.error,
        )
        return self._start_later(worker.id, too_many)

    # Starting

    def _start(self, worker_id: int) -> bool:
        """Start a worker, or tell why that failed."""
        options = Options(host=self._plan.host, link=True, monitor=True)
        me = self._me
        try:
            process = give_birth(me.runtime, me, self._plan.worker, (worker_id,), options)
        except SpawnError as error:
            text = f"Failed to start worker {worker_id}: {error}"
            self._tell(text, WORKER_FAILED, worker=worker_id, reason=error)
            return False
        self.workers[process.pid] = Worker(worker_id, process.pid, me.loop.time())
        process.tie().supervision = partial(self._place, worker_id, self._starts[worker_id])
        self._starts[worker_id] += 1
        return True

    def _place(self, worker_id: int, restarts: int) -> str:
        """Say where a worker stands, for the report of its crash."""
        name = " ".join(("Pool", *(self._me.tie().names or ())))
        return f"{name} {self._me.pid} as worker {worker_id}, restarted {times(restarts)} before"

    def _start_again(self) -> Ending | None:
        worker_id = self._due.popleft()[1]
        return None if self._start(worker_id) else self._start_later(worker_id, self._too_many())

    def _start_later(self, worker_id: int, too_many: str | None = None) -> Ending | None:
        if too_many:
            return Ending(Shutdown(too_many), self._patience)
        self._due.append((self._me.loop.time() + self._delay, worker_id))
        return None

    def _too_many(self) -> str | None:
        """Count one more crash; say so if that is one too many."""
        if self._intensity is None or self._crashes is None:
            return None
        if not self._crashes.too_many_with(self._me.loop.time()):
            return None
        window = spell(self._intensity.max_seconds)
        return f"more than {self._intensity.max_restarts} restarts within {window}"

    # Stopping

    async def _dismiss(self, limit: float) -> None:
        """End all workers at once, politely first, and wait until they are gone."""
        for pid in self.workers:
            process = reach(pid, self._me.runtime)
            if process is not None:  # else it has just died: its EXIT waits in the events
                stop_politely(process, limit, self._me.pid, "the pool ends")
        while self.workers:
            event = await self._me.events().receive()
            if isinstance(event, Exit):
                self.workers.pop(event.sender, None)

    # Telling

    def _tell(
        self,
        text: str,
        event: telemetry.Event,
        measurements: telemetry.Values | None = None,
        **metadata: object,
    ) -> None:
        if self._plan.report is not None:
            self._plan.report(text)
        telemetry.execute(event, measurements or {}, {"pool": self._me.pid, **metadata})


class PoolOptions(TypedDict, total=False):
    """The options of a pool, see `Pool.start_link`."""

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
        """Use `start_link` instead, which starts the pool."""
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
                `health_check`, the time without any event after which the pool reports, 60 s.
                `max_restarts` within `max_seconds`, the limit beyond which the pool gives up;
                by default there is none.
                `host`, where the workers run.
                `shutdown`, the time that workers get to end with the pool, 5 s.
                `report`, a function that gets a line of text about all that happens.

        Raises:
            NameTaken: Another process has the name.
            ValueError: An option is out of its range.
            TypeError: An option is unknown or has the wrong type.
            SpawnError: The worker is no `async def` function.
        """
        crew = Crew(Plan(worker, **options))
        process, _ = await start(cls, _serve, crew, name=name)
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
        """Describe a pool as the child of a supervisor."""
        Plan(worker, **options)
        begin = partial(cls.start_link, worker, name=name, **options)
        return ChildSpec(cls if id is name is None else id or name, begin, type="supervisor")

    def workers(self: ServerRef) -> list[Worker]:
        """Give the living workers, in the order of their ids.

        Raises:
            NoProcess: The pool has ended.
            TypeError: It is no pool.
        """
        process = alive_or_raise(pid_of(self, "workers"), "list its workers")
        if process.function is not _serve:
            raise TypeError(f"{self!r} is no pool")
        crew: Crew = process.args[1]
        living = [worker for worker in crew.workers.values() if worker.pid.target is not None]
        return sorted(living, key=lambda worker: worker.id)

    async def stop(self: ServerRef) -> None:
        """End the pool normally, its workers first, and wait until all are gone."""
        process = alive_or_raise(pid_of(self, "stop"), "stop it")
        cancel(process, current("stop").pid, None)
        await joined(process)


async def _serve(ack: Ack, crew: Crew) -> None:
    await crew.run(ack)
