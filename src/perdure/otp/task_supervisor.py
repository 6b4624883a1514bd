"""TaskSupervisor: tasks that belong to a supervisor, and not only to the process that made them.

    async with TaskSupervisor(name="fetchers", max_children=100) as fetchers:
        task = fetchers.create(fetch, url)
        page = await task

It is stopped with its tree, and its tasks with it.
"""

from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from perdure.base.pid import Pid
from perdure.otp.address import ServerRef
from perdure.otp.stream import AsyncStream, Work, check_options
from perdure.otp.supervision.dynamic import DynamicLoop, DynamicSupervisor
from perdure.otp.supervision.spec import (
    WORKER_SHUTDOWN,
    ChildSpec,
    RestartWord,
    Shutdowns,
    SpawnStart,
)
from perdure.otp.supervision.supervisor import loop_inside
from perdure.otp.task import (
    NoResult,
    ResultSlot,
    Task,
    bound,
    callers_of,
    line_of_caller,
)
from perdure.process.lifecycle import PLAIN, spawn_process
from perdure.process.process import Function, Process, current
from perdure.process.relations import link

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class TaskSupervisor(DynamicSupervisor):
    """A supervisor of tasks, and the handle to it.

    It starts empty. `restart` in its own `child` is about the supervisor;
    tasks are not restarted, except those of `start_child` that ask for it.
    Every method may also be called on the class, with a pid or a name in place of the instance:
    `TaskSupervisor.create("fetchers", fetch, url)`.
    """

    @classmethod
    def child_spec(cls, name: str | None = None) -> ChildSpec:
        """Return its spec for a list of children: `TaskSupervisor`, or `(TaskSupervisor, name)`."""
        return cls.child(name=name)

    def create(
        self: ServerRef,
        fn: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Task[T]:
        """Start a task under the supervisor, linked to the caller, which must collect the result.

        Raises:
            MaxChildren: The supervisor has as many children as it may have.
            NoProcess: The supervisor is dead.
            SpawnError: The task cannot be started.
        """
        return _create(self, bound(fn, kwargs), args, linked=True)

    def create_nolink(
        self: ServerRef,
        fn: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Task[T]:
        """Start a task under the supervisor without a link; its failure is part of the result.

        Raises:
            MaxChildren: The supervisor has as many children as it may have.
            NoProcess: The supervisor is dead.
            SpawnError: The task cannot be started.
        """
        return _create(self, bound(fn, kwargs), args, linked=False)

    def start_child(  # pyright: ignore[reportIncompatibleMethodOverride] - it takes the task itself
        self: ServerRef,
        fn: Callable[..., Coroutine[Any, Any, Any]],
        *args: Any,
        restart: RestartWord = "temporary",
        shutdown: Shutdowns = WORKER_SHUTDOWN,
    ) -> Pid:
        """Start a task without a result, and return its pid; it may be restarted.

        Args:
            fn: An `async def` function.
            *args: Its arguments, the same at each restart.
            restart: When it is started again.
            shutdown: Seconds that it may take to stop; or `BRUTAL_KILL`.

        Raises:
            MaxChildren: The supervisor has as many children as it may have.
            NoProcess: The supervisor is dead.
            SpawnError: The task cannot be started.
        """
        caller = current("TaskSupervisor.start_child")
        process = _start_child(self, fn, args, restart, shutdown)
        process.collector = NoResult((caller.pid, *callers_of(caller)))
        return process.pid

    def children(self: ServerRef) -> list[Pid]:
        """Return the running tasks, oldest first, without those that are being restarted."""
        processes = [child.process for child in _inside(self).children()]
        return [process.pid for process in processes if process and not process.done()]

    def async_stream(
        self: ServerRef,
        items: Iterable[A] | AsyncIterable[A],
        fn: Work[A, T],
        **options: Any,
    ) -> AsyncStream[T]:
        """Return a stream like `perdure.otp.async_stream` whose items are supervised children.

        Raises:
            ValueError: An option is out of its range.
            TypeError: An option has the wrong type.
        """
        shutdown = options.pop("shutdown", WORKER_SHUTDOWN)
        launch = partial(_launch, self, shutdown)
        return AsyncStream(items, fn, check_options(**options)._replace(launch=launch))

    def async_stream_nolink(
        self: ServerRef,
        items: Iterable[A] | AsyncIterable[A],
        fn: Work[A, T],
        **options: Any,
    ) -> AsyncStream[T]:
        """Return a stream whose items continue when the consumer dies; closing it still ends them.

        Raises:
            ValueError: An option is out of its range.
            TypeError: An option has the wrong type, or is `fail_fast`, which needs links.
        """
        if options.pop("fail_fast", False):
            raise TypeError("fail_fast needs links: use async_stream instead")
        shutdown = options.pop("shutdown", WORKER_SHUTDOWN)
        launch = partial(_launch, self, shutdown)
        checked = check_options(**options)._replace(launch=launch, outlives=True)
        return AsyncStream(items, fn, checked)


def _inside(ref: ServerRef) -> DynamicLoop:
    return loop_inside(ref, DynamicLoop)


def _create(ref: ServerRef, fn: Function, args: tuple[Any, ...], *, linked: bool) -> Task[Any]:
    owner = current("TaskSupervisor.create")
    slot = ResultSlot(owner, line_of_caller(2))
    process = _start_child(ref, fn, args)
    if linked:
        link(owner, process)
    slot.fill_from(process)
    return Task(slot)


def _start_child(
    ref: ServerRef,
    fn: Function,
    args: tuple[Any, ...],
    restart: RestartWord = "temporary",
    shutdown: Shutdowns = WORKER_SHUTDOWN,
) -> Process:
    """Start a child of the supervisor and return its process, which has not run yet."""
    supervisor = _inside(ref)
    _check_room(supervisor)
    start = SpawnStart(fn, args)
    spec = ChildSpec(getattr(fn, "__name__", "task"), start, restart, shutdown)
    process = spawn_process(supervisor.me.runtime, supervisor.me, fn, args, PLAIN)
    supervisor.admit(spec, process)
    return process


def _check_room(supervisor: DynamicLoop) -> None:
    """Raise if the supervisor is full; a child that has just ended does not count."""
    limit, children = supervisor.max_children, supervisor.by_pid.values()
    if limit is not None and len(children) >= limit:
        gone = sum(child.process is not None and child.process.done() for child in children)
        if len(children) - gone >= limit:
            supervisor.check_room()


def _launch(ref: ServerRef, shutdown: Shutdowns, fn: Function, value: object) -> Process:
    return _start_child(ref, fn, (value,), shutdown=shutdown)
