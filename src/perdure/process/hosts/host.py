"""ProcessHost: where processes run, other than on the running loop.

    host = ProcessHost("cpu", kind="os", workers=2)
    await host.start()
    pid = process.spawn_monitored(crunch, 42, host="cpu")

A running host is a process: `_serve` waits for its end and carries it out, so a host can be
supervised, monitored and killed like anything else. `spawn` does not look up the `ProcessHost`
itself by name, but one of the three running hosts below, one for each kind.
"""

from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from perdure.base import telemetry
from perdure.base.duration import Duration, named_seconds
from perdure.base.errors import CallExit, HostDown, SpawnError
from perdure.base.machine import cores
from perdure.base.pid import Pid
from perdure.process.api import call, wait_exit
from perdure.process.channel import Channel, select
from perdure.process.event import Cancel
from perdure.process.hosts.node import Node, Proxy
from perdure.process.hosts.remote_host import (
    RemoteHost,
    inherited_values,
    pickled_call,
    set_target,
)
from perdure.process.hosts.root_node import RootNode, root_node_of
from perdure.process.hosts.signals import SpawnSignal, StartSignal
from perdure.process.hosts.workers import (
    HostLimits,
    HostWorker,
    OnDown,
    OnReady,
    OsWorker,
    ThreadWorker,
    WorkerOptions,
    WorkerPool,
    count_in,
)
from perdure.process.lifecycle import (
    PLAIN,
    apply_options,
    cancel,
    check_name_is_free,
    kill,
    make_coroutine,
    spawn_process,
    stop_gracefully,
)
from perdure.process.names import check_name
from perdure.process.process import Function, Process, ProcessRuntime, SpawnOptions, current
from perdure.process.relations import register
from perdure.process.request import Request
from perdure.process.runtime import INLINE

STARTED = ("perdure", "host", "started")
STOPPED = ("perdure", "host", "stopped")

Kind = Literal["inline", "threads", "os"]
_KINDS = ("inline", "threads", "os")

# The share of its own shutdown time that a host gives to its processes.
_SHARE = 0.7
_STOP_TIMEOUT = 10.0  # seconds


class ProcessHost:
    """A place for processes: the running loop, threads, or OS processes.

    It is known to `spawn(…, host=name)` from its start to its stop.
    `async with` starts it, and ends it as a program ends: processes that read their events get
    CANCEL, all others are interrupted.
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
            name: The name to pass to `spawn(…, host=name)`.
            kind: `"inline"`, the running loop; `"threads"`, a loop in each of `workers` threads;
                `"os"`, a loop in each of `workers` child OS processes.
            workers: The number of workers; by default the number of cores.
            max_processes: How many processes may live on it; None = no limit.
            dedicated: Give each worker one process only, so that it can be killed for real
                if it never waits.
            queue_size: How many signals may wait on the way to one worker.
            blocked_after: How long the loop of an OS worker may be unresponsive until it is killed;
                None = never, which is the default of dedicated workers; otherwise 60 s.
            kill_after: How long a killed process may take before its OS process is killed,
                even with others in it; by default 1 s if it is dedicated,
                and otherwise only if it is alone there.
            max_restarts: How many workers may die within `max_seconds` before the host gives up.
            max_seconds: The period for `max_restarts`.

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
        self._limits = HostLimits(
            self.workers,
            self.max_processes,
            dedicated,
            max_restarts,
            named_seconds("max_seconds", max_seconds),
        )
        self._worker_options = WorkerOptions(
            name,
            _count("queue_size", queue_size),
            _blocked_after(blocked_after, dedicated=dedicated),
            _kill_after(kill_after, dedicated=dedicated),
        )
        self._pid: Pid | None = None
        self._active: ActiveHost | None = None

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        return f"<host {self.name!r}: {self.kind}, {self.workers} workers, {state}>"

    @property
    def running(self) -> bool:
        """Whether the host runs, so that processes can be started on it."""
        return self._active is not None

    @property
    def pid(self) -> Pid:
        """The process of the host; monitor it to learn when the host gives up.

        Raises:
            SpawnError: It was not started.
        """
        if self._pid is None:
            raise SpawnError(f"host {self.name!r} was not started")
        return self._pid

    async def start(self) -> Self:
        """Start the host, and wait until all its workers run.

        Raises:
            SpawnError: It runs already, or another of its name does.
            HostDown: Its workers cannot be started.
        """
        me = current("ProcessHost.start")
        runtime = me.runtime
        if self.running or self.name in runtime.hosts:
            raise SpawnError(f"a host {self.name!r} runs already")
        root_node = root_node_of(runtime)
        kinds = {"inline": InlineHost, "threads": ThreadHost, "os": OsHost}
        active = kinds[self.kind](root_node, self._worker_options, self._limits)
        self._active = runtime.hosts[self.name] = active
        server: Process | None = None
        try:
            active.start()
            server = spawn_process(runtime, me, self._serve, (), PLAIN)
            server.at_exit(partial(self._abort, runtime, active))
            self._pid = server.pid
            await active.all_ready()
        except BaseException:
            self._abort(runtime, active, "it could not be started")
            if server is not None:
                kill(server, "its host could not be started")
            raise
        root_node.tell_hosts()
        telemetry.execute(STARTED, {"workers": self.workers}, {"host": self.name})
        return self

    async def stop(self, timeout: Duration = _STOP_TIMEOUT) -> None:
        """Stop the host: send CANCEL to its processes, kill them after `timeout`, wait for the end.

        Until then they may finish, even those that do not read their events.
        Stopping a host that does not run does nothing.
        """
        await self._stop(named_seconds("timeout", timeout), interrupt=False)

    async def _stop(self, timeout: float, *, interrupt: bool) -> None:
        current("ProcessHost.stop")
        if self._pid is not None and self._pid.target is not None:
            try:
                await call(self._pid, (timeout, interrupt), None)
            except CallExit as ended:
                if ended.reason is not None:
                    raise
                # otherwise somebody else has stopped it meanwhile

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop(_STOP_TIMEOUT, interrupt=True)

    async def _serve(self) -> None:
        """Run the process of the host: wait until it must end, and shut it down."""
        me, active = current("host"), self._active
        if active is None:  # its start has failed
            return
        request: Request[Any] | None = None
        limit, interrupt = 0.0, True
        match (await select(me.requests(), me.events(), active.failure)).value:
            case Request(body=body) as request:  # pyright: ignore[reportUnknownVariableType]
                limit, interrupt = body
            case Cancel(deadline=deadline):
                left = me.runtime.settings.stop_timeout if deadline is None else deadline
                limit = max(0.0, left - (0 if deadline is None else me.loop.time())) * _SHARE
            case HostDown() as failure:
                raise failure
            case _:
                pass
        self._close(me.runtime)
        await active.stop(limit, interrupt=interrupt)
        telemetry.execute(STOPPED, {}, {"host": self.name})
        if request is not None:
            request.reply(None)

    def _abort(
        self, runtime: ProcessRuntime, active: "ActiveHost", why: str = "its host was killed"
    ) -> None:
        """Forcibly end what is left."""
        self._close(runtime)
        active.destroy(why)

    def _close(self, runtime: ProcessRuntime) -> None:
        """Accept no more processes."""
        active, self._active = self._active, None
        if active is not None and runtime.hosts.get(self.name) is active:
            del runtime.hosts[self.name]
            root_node_of(runtime).tell_hosts()


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


# The running hosts, one class for each kind


class ActiveHost(Protocol):
    """What the three kinds have in common."""

    failure: Channel[HostDown]  # has a value when the host gives up

    def start(self) -> None:
        """Start the workers."""
        ...

    async def all_ready(self) -> None:
        """Wait until the workers run."""
        ...

    def spawn(
        self,
        runtime: ProcessRuntime,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: SpawnOptions,
        pid: Pid | None = None,
    ) -> Process:
        """Start a process on one of the workers and return it; `pid` is given by another node."""
        ...

    async def stop(self, timeout: float, *, interrupt: bool) -> None:
        """End all processes and workers, and wait until they are gone."""
        ...

    def destroy(self, cause: str) -> None:
        """Forcibly end all processes and workers."""
        ...


class InlineHost:
    """A host that is the running loop, with a name and a limit of its own."""

    def __init__(self, node: RootNode, options: WorkerOptions, limits: HostLimits) -> None:
        self.failure: Channel[HostDown] = Channel()
        self._node = node
        self._name = options.host
        self._max_processes = limits.max_processes
        self._processes: dict[Process, None] = {}

    def start(self) -> None:
        """Do nothing: there are no workers."""

    async def all_ready(self) -> None:
        """Do nothing: there are no workers."""

    def spawn(
        self,
        runtime: ProcessRuntime,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: SpawnOptions,
        pid: Pid | None = None,
    ) -> Process:
        if runtime.node is not self._node:
            return _by_root_node(self._name, runtime).spawn(
                runtime, parent, function, args, options
            )
        if pid is not None:
            raise SpawnError(
                f"host {self._name!r} is inline: other hosts' workers cannot start processes on it"
            )
        limit = self._max_processes
        if limit is not None and len(self._processes) >= limit:
            raise SpawnError(f"host {self._name!r} is full: it has {limit} processes")
        process = spawn_process(runtime, parent, function, args, options._replace(host=None))
        self._processes[process] = None
        process.at_exit(lambda: self._processes.pop(process))
        return process

    async def stop(self, timeout: float, *, interrupt: bool) -> None:
        why = f"host {self._name!r} stops"
        for process in tuple(self._processes):
            if interrupt:
                stop_gracefully(process, timeout, why=why)
            else:
                cancel(process, None, timeout, why)
        for process in tuple(self._processes):
            await wait_exit(process)

    def destroy(self, cause: str) -> None:
        for process in tuple(self._processes):
            kill(process, cause)


def _by_root_node(name: str, runtime: ProcessRuntime) -> RemoteHost:
    """Return a host as seen from a thread of another host: the root node starts its processes."""
    node: object = runtime.node
    assert isinstance(node, Node)
    return RemoteHost(name, node)


class WorkerHost:
    """A host with workers elsewhere."""

    def __init__(self, node: RootNode, options: WorkerOptions, limits: HostLimits) -> None:
        self._node = node
        self._options = options
        self._pool = WorkerPool(node.runtime, options.host, limits, self._new_worker)
        self.failure = self._pool.failure
        self.start = self._pool.start
        self.all_ready = self._pool.all_ready
        self.stop = self._pool.stop
        self.destroy = self._pool.destroy

    def _new_worker(self, label: str, on_ready: OnReady, on_down: OnDown) -> HostWorker:
        raise NotImplementedError

    def _spawn(
        self,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: SpawnOptions,
        pid: Pid | None,
    ) -> Proxy:
        raise NotImplementedError

    def spawn(
        self,
        runtime: ProcessRuntime,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: SpawnOptions,
        pid: Pid | None = None,
    ) -> Process:
        if runtime.node is not self._node:
            return _by_root_node(self._options.host, runtime).spawn(
                runtime, parent, function, args, options
            )
        check_name_is_free(runtime, options.name)
        proxy = self._spawn(parent, function, args, options, pid)
        apply_options(runtime, parent, proxy, options._replace(name=None))
        return proxy


class OsHost(WorkerHost):
    """A host of child OS processes."""

    def _new_worker(self, label: str, on_ready: OnReady, on_down: OnDown) -> HostWorker:
        return OsWorker(self._node, self._options, label, on_ready, on_down)

    def _spawn(
        self,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: SpawnOptions,
        pid: Pid | None,
    ) -> Proxy:
        """Start a process in a child; return its proxy at once, before it has started there."""
        packed = pickled_call(self._options.host, parent, function, args, options)
        worker = self._pool.pick()
        pid_ = pid or Pid(self._options.host, None)
        proxy = self._node.add_proxy(pid_, worker.wire, full=True)
        proxy.describe(function, args, parent)
        if options.name is not None:
            self._node.register_spawned(options.name, proxy)
        count_in(worker, proxy)
        origin = None if parent is None else parent.pid
        worker.wire.post(SpawnSignal(proxy.pid, origin, options.name, packed))
        if pid is not None:
            set_target(pid, proxy, proxy.deliver)
        return proxy


class ThreadHost(WorkerHost):
    """A host of threads."""

    def _new_worker(self, label: str, on_ready: OnReady, on_down: OnDown) -> HostWorker:
        return ThreadWorker(self._node, self._options, label, on_ready, on_down)

    def _spawn(
        self,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: SpawnOptions,
        pid: Pid | None,
    ) -> Proxy:
        """Make a process here, start it in a thread, and return its proxy."""
        values = inherited_values(parent, options)
        coro = make_coroutine(function, args)
        try:
            worker: Any = self._pool.pick()
        except SpawnError:
            coro.close()
            raise
        runtime = worker.node.runtime
        process = runtime.process_class(runtime, function, args, coro, parent, values)
        if pid is not None:
            process.pid = pid
            set_target(pid, process, partial(Process.deliver, process))  # nobody else knows it yet
        if options.name is not None:
            register(self._node.runtime.names, options.name, process)
        worker.wire.post(StartSignal(process))
        proxy = self._node.add_proxy(process.pid, worker.wire, full=True)
        proxy.describe(function, args, parent)
        count_in(worker, proxy)
        return proxy
