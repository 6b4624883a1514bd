"""Supervisor: starts its children in order, restarts them by a strategy, stops them in reverse.

    async with Supervisor([child(worker, 1), child(worker, 2, id="second")]):
        ...

`SupervisorHandle` is what the handles of all kinds of supervisors share; `OrderedLoop` and
`GroupLoop` are the restart loops of this kind. Their base is in `loop`, the pure decisions are in
`strategy` and in `perdure.base.restart`.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from types import MethodType
from typing import Any, Literal, NamedTuple, NoReturn, Self, TypeAlias, TypeVar

from perdure.base.duration import Duration
from perdure.base.errors import CallExit, ChildError, ProcError, Shutdown, StartError
from perdure.base.pid import Pid
from perdure.base.restart import Intensity, Restart
from perdure.base.result import Err
from perdure.otp.address import ServerRef, Via, pid_of
from perdure.otp.start import Stoppable, start
from perdure.otp.supervision.loop import (
    ChildInfo,
    CountChildren,
    Counts,
    RestartLoop,
    StopLoop,
    StopWanted,
    SupervisedChild,
    WhichChildren,
    loop_of,
    run_loop,
)
from perdure.otp.supervision.spec import (
    IGNORE,
    ChildLike,
    ChildSpec,
    RestartWord,
    Shutdowns,
    as_spec,
    as_specs,
)
from perdure.otp.supervision.strategy import (
    AutoShutdown,
    Strategy,
    affected,
    affected_again,
    ends_supervisor,
)
from perdure.process.api import call, resolve_alive
from perdure.process.exit_reason import same_reason

StrategyWord: TypeAlias = Strategy | Literal["one_for_one", "one_for_all", "rest_for_one"]
AutoShutdownWord: TypeAlias = AutoShutdown | Literal["never", "any_significant", "all_significant"]

# What the handles of all supervisors share

L = TypeVar("L", bound=RestartLoop)


async def request(ref: ServerRef, body: object, timeout: Duration = None) -> Any:
    """Send a request to a supervisor; return the answer, or raise it if it is an error."""
    answer = await call(pid_of(ref, "ask a supervisor"), body, timeout)
    if isinstance(answer, Err):
        raise answer.error  # pyright: ignore[reportUnknownMemberType]
    return answer.value


def loop_inside(ref: ServerRef, kind: type[L]) -> L:
    """Return the loop of a living supervisor of this kind, without a request.

    Raises:
        NoProcess: It is dead.
        TypeError: It is not such a supervisor.
    """
    process = resolve_alive(pid_of(ref, "look into"), "look into it")
    loop = loop_of(process)
    if not isinstance(loop, kind):
        raise TypeError(f"{ref!r} is not a supervisor of the required kind")
    loop.open(process)
    return loop


class ClassOnly:
    """A class method that refuses a call on an instance.

    Called on an instance, `start` would start another supervisor with other options: that of
    `DynamicSupervisor(name="jobs").start()` would have no name.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        if instance is None:
            return MethodType(self._method, owner)
        return partial(refuse_on_instance, owner.__name__, self._method.__name__)


def refuse_on_instance(kind: str, method: str, *_: object, **__: object) -> NoReturn:
    """Raise for a class method that was called on an instance."""
    raise TypeError(
        f"{method} is called on the class, and makes a supervisor of its own: write "
        f"`{kind}.{method}(…)`, or run the one that {kind}(…) describes with `async with`"
    )


class SupervisorHandle(Stoppable):
    """The handle to a supervisor, which runs between its start and its stop."""

    def __init_subclass__(cls) -> None:
        """Keep the class methods that make a supervisor off its instances."""
        super().__init_subclass__()
        for name in ("start", "start_link", "child"):
            if isinstance(vars(cls).get(name), classmethod):
                setattr(cls, name, ClassOnly(vars(cls)[name].__func__))

    def __init__(self, name: str | Via | None) -> None:
        self.name = name
        self._pid: Pid | None = None

    def __repr__(self) -> str:
        return f"<{self._label()} {self._pid or 'not started'}>"

    @property
    def pid(self) -> Pid:
        """Its process.

        Raises:
            ProcError: It was not started.
        """
        if self._pid is None:
            kind = type(self).__name__
            raise ProcError(
                f"this {kind} was not started: use `async with`, or `await {kind}.start_link(…)`"
            )
        return self._pid

    def _label(self) -> str:
        return type(self).__name__ if self.name is None else f"{type(self).__name__} {self.name}"

    def _loop(self) -> RestartLoop:
        raise NotImplementedError

    async def _start(self, *, link: bool) -> Self:
        """Start it and wait until its children have started."""
        if self._pid is not None and self._pid.target is not None:
            raise ProcError(f"{self!r} runs already")
        label = self.name or type(self)
        try:
            process, ready = await start(label, run_loop, self._loop(), name=self.name, link=link)
        except StartError as error:
            raise _first_child_error(error) from error.reason
        if not ready:
            raise StartError(label, Shutdown("it was stopped while its children started"))
        self._pid = process.pid
        return self

    async def which_children(self: ServerRef) -> list[ChildInfo]:
        """Return the children, last started first."""
        return await request(self, WhichChildren())

    async def count_children(self: ServerRef) -> Counts:
        """Return the numbers of specs, running children, supervisors and workers."""
        return await request(self, CountChildren())

    async def stop(
        self: ServerRef, reason: BaseException | None = None, timeout: Duration = None
    ) -> None:
        """Stop all children and end, normally unless a reason is given; wait for the end.

        Raises:
            CallExit: It was dead already, or ended for another reason.
            CallTimeout: It did not end in time, and continues to stop.
        """
        try:
            await request(self, StopLoop(reason), timeout)
        except CallExit as error:
            if not same_reason(error.reason, reason):
                raise

    async def __aenter__(self) -> Self:
        return await self._start(link=True)


def _first_child_error(error: StartError) -> StartError:
    """Return the error of the child that failed, which ended the supervisor."""
    if isinstance(error.reason, Shutdown) and isinstance(error.reason.detail, StartError):
        return error.reason.detail
    return error


# The requests


class AddChild(NamedTuple):
    """Add a child and start it."""

    spec: ChildSpec


class RestartChild(NamedTuple):
    """Start a child that does not run."""

    id: Hashable


class TerminateChild(NamedTuple):
    """Stop a child."""

    id: Hashable


class DeleteChild(NamedTuple):
    """Forget a child that does not run."""

    id: Hashable


class OrderedLoop(RestartLoop):
    """The restart loop of a supervisor with ordered children, each restarted by itself."""

    def __init__(
        self,
        label: str,
        specs: Iterable[ChildSpec],
        intensity: Intensity,
        auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
    ) -> None:
        super().__init__(label, intensity)
        self.auto_shutdown = auto_shutdown
        self.by_id = {spec.id: SupervisedChild(spec, self) for spec in specs}

    def children(self) -> Iterable[SupervisedChild]:
        return self.by_id.values()

    async def begin(self) -> None:
        for child in tuple(self.by_id.values()):
            await self._start_first(child)

    async def _start_first(self, child: SupervisedChild) -> Any:
        given = await self.start(child)
        if given is IGNORE and child.spec.restart is Restart.TEMPORARY:
            self.by_id.pop(child.spec.id, None)
        return given

    async def forget(self, child: SupervisedChild, reason: BaseException | None) -> None:  # noqa: ARG002
        if child.spec.restart is Restart.TEMPORARY:
            del self.by_id[child.spec.id]
        if child.spec.significant:
            self._significant_ended(child)

    def _significant_ended(self, child: SupervisedChild) -> None:
        others = [each for each in self.by_id.values() if each.spec.significant]
        active = any(each is not child and each.pid is not None for each in others)
        if ends_supervisor(self.auto_shutdown, others_active=active):
            raise StopWanted(Shutdown(f"significant child {child.spec.id!r} ended"))

    async def stop_in_order(self, children: Iterable[SupervisedChild]) -> None:
        """Stop children one after another, the last first."""
        for child in reversed(tuple(children)):
            await self.stop([child])

    async def end_children(self) -> None:
        await self.stop_in_order(self.by_id.values())

    # Requests

    async def answer(self, body: object) -> Any:
        match body:
            case AddChild(spec=spec):
                return await self._add(spec)
            case RestartChild(id=id):
                return await self.start(self._idle(id))
            case TerminateChild(id=id):
                return await self._terminate(self._known(id))
            case DeleteChild(id=id):
                del self.by_id[self._idle(id).spec.id]
                return None
            case _:
                return await super().answer(body)

    async def _add(self, spec: ChildSpec) -> Any:
        check_significant([spec], self.auto_shutdown)
        known = self.by_id.get(spec.id)
        if known is not None and known.pid is None:
            raise ChildError("already_present", spec.id)
        if known is not None:
            pid = None if known.process is None else known.process.pid
            raise ChildError("already_started", spec.id, pid)
        child = self.by_id[spec.id] = SupervisedChild(spec, self)
        try:
            return await self._start_first(child)
        except StartError:
            del self.by_id[spec.id]
            raise

    async def _terminate(self, child: SupervisedChild) -> None:
        await self.stop([child])
        if child.spec.restart is Restart.TEMPORARY:
            del self.by_id[child.spec.id]

    def _known(self, id: Hashable) -> SupervisedChild:
        child = self.by_id.get(id)
        if child is None:
            raise ChildError("not_found", id)
        return child

    def _idle(self, id: Hashable) -> SupervisedChild:
        child = self._known(id)
        if child.process is not None:
            raise ChildError("running", id, child.process.pid)
        if child.restarting:
            raise ChildError("restarting", id)
        return child


class GroupLoop(OrderedLoop):
    """The restart loop of a supervisor whose children are restarted together."""

    def __init__(
        self,
        label: str,
        specs: Iterable[ChildSpec],
        intensity: Intensity,
        strategy: Strategy,
        auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
    ) -> None:
        super().__init__(label, specs, intensity, auto_shutdown)
        self.strategy = strategy

    async def restart(self, child: SupervisedChild) -> None:
        await self._restart_all(affected(self.strategy, list(self.by_id), child.spec.id))

    async def retry(self, child: SupervisedChild) -> None:
        await self._restart_all(affected_again(self.strategy, list(self.by_id), child.spec.id))

    async def _restart_all(self, ids: list[Hashable]) -> None:
        """Stop these children in reverse order, and start them in order."""
        group = [self.by_id[id] for id in ids]
        await self.stop_in_order(group)
        for child in group:
            if child.spec.restart is Restart.TEMPORARY:
                del self.by_id[child.spec.id]
            elif not await self.start_again(child):
                return  # the rest is started together with this one


def check_significant(specs: Iterable[ChildSpec], auto_shutdown: AutoShutdown) -> None:
    """Raise for significant children where their end has no meaning."""
    for spec in specs:
        if spec.significant and auto_shutdown is AutoShutdown.NEVER:
            raise ValueError(
                f"child {spec.id!r} is significant, but the supervisor has auto_shutdown='never': "
                "set it to 'any_significant' or 'all_significant'"
            )


class Supervisor(SupervisorHandle):
    """A supervisor, and the handle to it.

    `async with Supervisor([...])` runs it for the block, `Supervisor.start_link([...])` until
    `stop` or until this process ends.
    Every method may also be called on the class, with a pid or a name in place of the instance:
    `Supervisor.which_children("app")`.
    """

    def __init__(
        self,
        children: Iterable[ChildLike],
        *,
        strategy: StrategyWord = "one_for_one",
        max_restarts: int = 3,
        max_seconds: Duration = 5,
        auto_shutdown: AutoShutdownWord = "never",
        name: str | Via | None = None,
    ) -> None:
        """Describe it; nothing is started yet.

        Args:
            children: Specs, classes with `child_spec()`, or `(class, argument)`; started in order.
            strategy: Which children are restarted together.
            max_restarts: It gives up after more restarts than this within `max_seconds`.
            max_seconds: The time in which restarts are counted.
            auto_shutdown: Whether the end of significant children ends it.
            name: A name for its process.

        Raises:
            ValueError: An option or a spec is invalid, or two ids are the same.
            TypeError: An option or a child has the wrong type.
        """
        super().__init__(name)
        self._specs = as_specs(children)
        self._strategy = Strategy(strategy)
        self._intensity = Intensity(max_restarts, max_seconds)
        self._auto_shutdown = AutoShutdown(auto_shutdown)
        check_significant(self._specs, self._auto_shutdown)

    def _loop(self) -> RestartLoop:
        label, specs, intensity = self._label(), self._specs, self._intensity
        if self._strategy is Strategy.ONE_FOR_ONE:
            return OrderedLoop(label, specs, intensity, self._auto_shutdown)
        return GroupLoop(label, specs, intensity, self._strategy, self._auto_shutdown)

    @classmethod
    async def start(
        cls,
        children: Iterable[ChildLike],
        *,
        strategy: StrategyWord = "one_for_one",
        max_restarts: int = 3,
        max_seconds: Duration = 5,
        auto_shutdown: AutoShutdownWord = "never",
        name: str | Via | None = None,
    ) -> Self:
        """Start a supervisor without a link, and wait until its children have started.

        Raises:
            StartError: A child did not start; those before it are stopped again.
            NameTaken: Another process has the name.
        """
        described = cls(
            children,
            strategy=strategy,
            max_restarts=max_restarts,
            max_seconds=max_seconds,
            auto_shutdown=auto_shutdown,
            name=name,
        )
        return await described._start(link=False)

    @classmethod
    async def start_link(
        cls,
        children: Iterable[ChildLike],
        *,
        strategy: StrategyWord = "one_for_one",
        max_restarts: int = 3,
        max_seconds: Duration = 5,
        auto_shutdown: AutoShutdownWord = "never",
        name: str | Via | None = None,
    ) -> Self:
        """Start a supervisor that is linked to this process; otherwise like `start`.

        Raises:
            StartError: A child did not start; those before it are stopped again.
            NameTaken: Another process has the name.
        """
        described = cls(
            children,
            strategy=strategy,
            max_restarts=max_restarts,
            max_seconds=max_seconds,
            auto_shutdown=auto_shutdown,
            name=name,
        )
        return await described._start(link=True)

    @classmethod
    def child(
        cls,
        children: Iterable[ChildLike],
        *,
        id: Hashable = None,
        name: str | Via | None = None,
        restart: RestartWord = "permanent",
        shutdown: Shutdowns = None,
        significant: bool = False,
        **options: Any,
    ) -> ChildSpec:
        """Return the spec of a supervisor as a child; `options` are those of `start_link`.

        The id is by default its name.
        """
        specs = as_specs(children)
        cls(specs, name=name, **options)  # a mistake is raised here, not at the start
        start = partial(cls.start_link, specs, name=name, **options)
        return ChildSpec(
            id if id is not None else name, start, restart, shutdown, "supervisor", significant
        )

    async def start_child(self: ServerRef, spec: ChildLike) -> Any:
        """Add a child and start it; return its pid or handle.

        Raises:
            ChildError: There is a child with this id.
            StartError: It did not start, and was not added.
        """
        return await request(self, AddChild(as_spec(spec)))

    async def restart_child(self: ServerRef, id: Hashable) -> Any:
        """Start a child that does not run; return its pid or handle.

        Raises:
            ChildError: There is none with this id, or it runs.
            StartError: It did not start.
        """
        return await request(self, RestartChild(id))

    async def terminate_child(self: ServerRef, id: Hashable) -> None:
        """Stop a child; it stays known unless it is temporary, and is not restarted.

        Raises:
            ChildError: There is none with this id.
        """
        await request(self, TerminateChild(id))

    async def delete_child(self: ServerRef, id: Hashable) -> None:
        """Forget a child that does not run.

        Raises:
            ChildError: There is none with this id, or it runs.
        """
        await request(self, DeleteChild(id))
