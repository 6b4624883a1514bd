"""ProcessHost: where processes run, other than on the running loop.

host = ProcessHost("cpu", kind="os", workers=2)
await host.start()
pid = process.spawn_monitored(crunch, 42, host="cpu")
"""

from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from perdure.base import telemetry
from perdure.base.duration import Duration, named_seconds
from perdure.base.errors import CallExit, HostDown, NameTakenAtBirth, SpawnError
from perdure.base.machine import cores
from perdure.base.pid import Pid
from perdure.process.api import call, joined
from perdure.process.channel import Channel, select
from perdure.process.death import kill
from perdure.process.event import Cancel
from perdure.process.hosts import signals
from perdure.process.hosts.node import Node
from perdure.process.hosts.proxy import StandIn
from perdure.process.hosts.remote_host import FarHost, be_born, inherited, portable_call
from perdure.process.hosts.root_node import FirstNode, first_node_of
from perdure.process.hosts.workers import Limits, OsWorker, Plan, Staff, ThreadWorker, count_in
from perdure.process.process import Process
from perdure.process.relations import check_name, register
from perdure.process.request import Request
from perdure.process.runtime import INLINE, Runtime
from perdure.process.signal import stop_politely
from perdure.process.spawn import PLAIN, Function, Options, give_birth, make_coroutine, relate
from perdure.process.waiter import current

# How each kind of host starts its workers, and a process on one of them.


class Launch(Protocol):
    """What a host does by its kind."""

    node: FirstNode
    failure: Channel[HostDown]

    def begin(self) -> None:
        """Start the workers."""
        ...

    async def all_ready(self) -> None:
        """Wait until they run."""
        ...

    def birth(
        self,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: Options,
        pid: Pid | None,
    ) -> Process:
        """Start a process on one of them."""
        ...

    async def stop(self, timeout: float) -> None:
        """End all."""
        ...

    def destroy(self, cause: str) -> None:
        """End all by force."""
        ...


def launcher(kind: str, node: FirstNode, plan: Plan, limits: Limits) -> Launch:
    """Give what a kind of host does."""
    kinds = {"inline": InlineLaunch, "threads": ThreadLaunch, "os": OsLaunch}
    return kinds[kind](node, plan, limits)


class InlineLaunch:
    """A host that is the running loop, with a name and a limit of its own."""

    def __init__(self, node: FirstNode, plan: Plan, limits: Limits) -> None:
        self.node = node
        self.failure: Channel[HostDown] = Channel()
        self._host = plan.host
        self._most = limits.max_processes
        self._processes: dict[Process, None] = {}

    def begin(self) -> None:
        """Have nothing to start."""

    async def all_ready(self) -> None:
        """Have nothing to wait for."""

    def birth(
        self,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: Options,
        pid: Pid | None,
    ) -> Process:
        """Start a process on this loop."""
        if pid is not None:
            raise SpawnError(f"host {self._host!r} takes no processes from workers")
        if self._most is not None and len(self._processes) >= self._most:
            raise SpawnError(f"host {self._host!r} has {self._most} processes, and takes no more")
        plain = options._replace(host=None)
        process = give_birth(self.node.runtime, parent, function, args, plain)
        self._processes[process] = None
        process.tie().at_death(lambda: self._processes.pop(process))
        return process

    async def stop(self, timeout: float) -> None:
        """End all processes of the host, and wait until they are gone."""
        for process in tuple(self._processes):
            stop_politely(process, timeout, why=f"host {self._host!r} stops")
        for process in tuple(self._processes):
            await joined(process)

    def destroy(self, cause: str) -> None:
        """Kill all processes of the host."""
        for process in tuple(self._processes):
            kill(process, cause)


class _Staffed:
    """A host with workers elsewhere."""

    def __init__(self, node: FirstNode, plan: Plan, limits: Limits) -> None:
        self.node = node
        self._plan = plan
        self._staff = Staff(node.runtime, plan.host, limits, self._hire)
        self.failure = self._staff.failure
        self.begin = self._staff.begin
        self.all_ready = self._staff.all_ready
        self.stop = self._staff.stop
        self.destroy = self._staff.destroy

    def _hire(self, label: str, on_ready: Any, on_down: Any) -> Any:
        raise NotImplementedError

    def _check_name(self, name: str | None) -> None:
        if name is not None:
            check_name(name)
            if holder := self.node.runtime.names.get(name):
                raise NameTakenAtBirth(name, holder.pid)

    def _tie(self, parent: Process | None, stand_in: StandIn, options: Options) -> StandIn:
        relate(self.node.runtime, parent, stand_in, options._replace(name=None))
        return stand_in


class OsLaunch(_Staffed):
    """A host of OS processes."""

    def _hire(self, label: str, on_ready: Any, on_down: Any) -> OsWorker:
        return OsWorker(self.node, self._plan, label, on_ready, on_down)

    def birth(
        self,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: Options,
        pid: Pid | None,
    ) -> Process:
        """Start a process in a child; the pid is there at once, the start travels."""
        self._check_name(options.name)
        code = portable_call(self._plan.host, parent, function, args, options)
        worker = self._staff.pick()
        stand_in = self.node.meet(pid or Pid(self._plan.host, None), worker.wire, full=True)
        stand_in.describe(function, args, parent)
        if options.name is not None:
            self.node.name_newborn(options.name, stand_in)
        count_in(worker, stand_in)
        origin = None if parent is None else parent.pid
        worker.wire.post(signals.Spawn(stand_in.pid, origin, options.name, code))
        if pid is not None:
            be_born(pid, stand_in, stand_in.deliver)
        return self._tie(parent, stand_in, options)


class ThreadLaunch(_Staffed):
    """A host of threads."""

    def _hire(self, label: str, on_ready: Any, on_down: Any) -> ThreadWorker:
        return ThreadWorker(self.node, self._plan, label, on_ready, on_down)

    def birth(
        self,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: Options,
        pid: Pid | None,
    ) -> Process:
        """Make a process here, and start it in a thread."""
        self._check_name(options.name)
        values = inherited(parent, options)
        coro = make_coroutine(function, args)
        try:
            worker: Any = self._staff.pick()
        except SpawnError:
            coro.close()
            raise
        runtime = worker.node.runtime
        process = runtime.kind(runtime, function, args, coro, parent, values)
        if pid is not None:
            process.pid = pid
            be_born(pid, process, partial(Process.deliver, process))  # which nobody knows yet
        if options.name is not None:
            register(self.node.runtime.names, options.name, process)
        worker.wire.post(signals.Start(process))
        stand_in = self.node.meet(process.pid, worker.wire, full=True)
        stand_in.describe(function, args, parent)
        count_in(worker, stand_in)
        return self._tie(parent, stand_in, options)


STARTED = ("perdure", "host", "started")
STOPPED = ("perdure", "host", "stopped")

Kind = Literal["inline", "threads", "os"]
_KINDS = ("inline", "threads", "os")

# Of the time until it is killed itself, so much a host gives to its processes.
_SHARE = 0.7


class ProcessHost:
    """A place for processes: the running loop, threads, or OS processes.

    It is known to `spawn(…, host=name)` from its start to its stop.
    `async with` starts and stops it.
    """

    def __init__(  # noqa: PLR0913 - the options of a host
        self,
        name: str,
        kind: Kind = "inline",
        workers: int | None = None,
        max_processes: int | None = None,
        *,
        dedicated: bool = False,
        queue_size: int = 65_536,
        blocked_after: Duration | Literal["default"] = "default",
        kill_after: Duration = None,
        max_restarts: int = 20,
        max_seconds: Duration = 60,
    ) -> None:
        """Describe it; nothing runs yet.

        Args:
            name: By which spawns find it.
            kind: `"inline"`, the running loop; `"threads"`, a loop in each of `workers` threads;
                `"os"`, a loop in each of `workers` child OS processes.
            workers: How many; as many as there are cores by default.
            max_processes: How many processes may live on it; None = no limit.
            dedicated: Give each worker one process only, so that it can be killed for real
                when it never waits.
            queue_size: How many signals may wait on the way to one worker.
            blocked_after: When an OS worker whose loop does not answer for so long is killed;
                None = never, which is the default of dedicated workers; otherwise 60 s.
            kill_after: How long a killed process may take before its OS process is killed,
                even with others in it; by default 1 s if it is dedicated,
                and else only if it is alone there.
            max_restarts: So many workers may die within `max_seconds` before the host gives up.
            max_seconds: See there.

        Raises:
            ValueError: An option is out of its range.
            TypeError: An option has the wrong type.
        """
        check_name(name)
        if name == INLINE:
            raise ValueError(f"{INLINE!r} is the name of the running loop: choose another")
        if kind not in _KINDS:
            raise ValueError(f"the kind of a host is one of {', '.join(_KINDS)}; not {kind!r}")
        self.name = name
        self.kind: Kind = kind
        self.workers = 1 if kind == "inline" else _count("workers", workers or cores())
        self.max_processes = (
            None if max_processes is None else _count("max_processes", max_processes)
        )
        self._limits = Limits(
            self.workers,
            self.max_processes,
            dedicated,
            max_restarts,
            named_seconds("max_seconds", max_seconds),
        )
        self._plan = Plan(
            name,
            _count("queue_size", queue_size),
            _blocked_after(blocked_after, dedicated=dedicated),
            _kill_after(kill_after, dedicated=dedicated),
        )
        self._pid: Pid | None = None
        self._launch: Launch | None = None
        self._running = False

    def __repr__(self) -> str:
        state = "running" if self._running else "not running"
        return f"<host {self.name!r}: {self.kind}, {self.workers} workers, {state}>"

    @property
    def running(self) -> bool:
        """Whether processes can be started on it."""
        return self._running

    @property
    def pid(self) -> Pid:
        """The process that keeps the host; monitor it to learn when the host gives up.

        Raises:
            SpawnError: It was not started.
        """
        if self._pid is None:
            raise SpawnError(f"host {self.name!r} was not started")
        return self._pid

    # Begin and end

    async def start(self) -> Self:
        """Start it, and wait until all its workers run.

        Raises:
            SpawnError: It runs already, or another of its name does.
            HostDown: Its workers cannot be started.
        """
        me = current("ProcessHost.start")
        runtime = me.runtime
        if self._running or self.name in runtime.hosts:
            raise SpawnError(f"a host {self.name!r} runs already")
        first = first_node_of(runtime)
        self._launch = launcher(self.kind, first, self._plan, self._limits)
        runtime.hosts[self.name] = self
        self._running = True
        keeper: Process | None = None
        try:
            self._launch.begin()
            keeper = give_birth(runtime, me, _keep, (self,), PLAIN)
            keeper.tie().at_death(partial(self._abort, runtime, self._launch))
            self._pid = keeper.pid
            await self._launch.all_ready()
        except BaseException:
            self._close(runtime)
            self._launch.destroy("it could not be started")
            if keeper is not None:
                kill(keeper, "its host could not be started")
            raise
        first.tell_hosts()
        telemetry.execute(STARTED, {"workers": self.workers}, {"host": self.name})
        return self

    async def stop(self, timeout: Duration = "10s") -> None:
        """End it: CANCEL to all its processes, and after `timeout` a kill; wait until it is gone.

        One that does not run is left as it is.
        """
        limit = named_seconds("timeout", timeout)
        current("ProcessHost.stop")
        if self._pid is not None and self._pid.target is not None:
            try:
                await call(self._pid, limit, None)
            except CallExit as ended:
                if ended.reason is not None:
                    raise
                # else another has stopped it meanwhile

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # Inside

    def birth(
        self,
        runtime: Runtime,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: Options,
        pid: Pid | None = None,
    ) -> Process:
        """Start a process on it; called by `spawn`."""
        node: Any = runtime.node
        if self._launch is None or not self._running:
            raise SpawnError(f"host {self.name!r} does not run")
        if node is not self._launch.node:
            assert isinstance(node, Node)
            return FarHost(self.name, node).birth(runtime, parent, function, args, options)
        return self._launch.birth(parent, function, args, options, pid)

    async def keep(self, me: Process) -> None:
        """Be the process of the host: wait for its end, and carry it out."""
        assert self._launch is not None
        launch, runtime = self._launch, me.runtime
        request: Request[Any] | None = None
        limit = 0.0
        match (await select(me.requests(), me.events(), launch.failure)).value:
            case Request(body=body) as request:  # pyright: ignore[reportUnknownVariableType]
                limit = body
            case Cancel(deadline=deadline):
                left = runtime.settings.stop_timeout if deadline is None else deadline
                limit = max(0.0, left - (0 if deadline is None else me.loop.time())) * _SHARE
            case HostDown() as failure:
                raise failure
            case _:
                pass
        self._close(runtime)
        await launch.stop(limit)
        telemetry.execute(STOPPED, {}, {"host": self.name})
        if request is not None:
            request.reply(None)

    def _abort(self, runtime: Runtime, launch: Launch) -> None:
        """End what is left, by force: the process of the host dies."""
        self._close(runtime)
        launch.destroy("its host was killed")

    def _close(self, runtime: Runtime) -> None:
        """Take no more processes."""
        self._running = False
        if runtime.hosts.get(self.name) is self:
            del runtime.hosts[self.name]
            first_node_of(runtime).tell_hosts()


async def _keep(host: ProcessHost) -> None:
    await host.keep(current("host"))


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} is 1 or more, not {value}")
    return value


def _blocked_after(given: Duration, *, dedicated: bool) -> float | None:
    if given == "default":
        return None if dedicated else 60.0
    return None if given is None else named_seconds("blocked_after", given)


def _kill_after(given: Duration, *, dedicated: bool) -> float | None:
    if given is None:
        return 1.0 if dedicated else None
    return named_seconds("kill_after", given)
