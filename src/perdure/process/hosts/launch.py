"""How each kind of host starts its workers, and a process on one of them."""

from functools import partial
from typing import Any, Protocol

from perdure.base.errors import HostDown, NameTakenAtBirth, SpawnError
from perdure.base.pid import Pid
from perdure.process.birth import (
    Function,
    Options,
    give_birth,
    make_coroutine,
    relate,
)
from perdure.process.channel import Channel
from perdure.process.death import kill
from perdure.process.hosts import signals
from perdure.process.hosts.far_host import inherited, portable_call
from perdure.process.hosts.first_node import FirstNode
from perdure.process.hosts.os_worker import OsWorker
from perdure.process.hosts.staff import Limits, Staff
from perdure.process.hosts.stand_in import StandIn
from perdure.process.hosts.thread_worker import ThreadWorker
from perdure.process.hosts.unborn import be_born
from perdure.process.hosts.worker import Plan, count_in
from perdure.process.names import check_name, register
from perdure.process.process import Process
from perdure.process.signal import stop_politely
from perdure.process.spawner import joined


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
