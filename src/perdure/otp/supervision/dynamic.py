"""DynamicSupervisor: starts empty, and gets independent children at run time.

`DynamicLoop` is its restart loop, which other supervisors of many like children build on.
"""

from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from perdure.base.duration import Duration
from perdure.base.errors import ChildError, MaxChildren, NoProcess
from perdure.base.pid import Pid
from perdure.base.restart import Intensity
from perdure.otp.address import ServerRef, Via
from perdure.otp.supervision.loop import RestartLoop, SupervisedChild
from perdure.otp.supervision.spec import (
    IGNORE,
    ChildLike,
    ChildSpec,
    RestartWord,
    Shutdowns,
    as_spec,
)
from perdure.otp.supervision.strategy import Strategy
from perdure.otp.supervision.supervisor import SupervisorHandle, request
from perdure.process.lifecycle import kill
from perdure.process.process import Process


class StartChild(NamedTuple):
    """The request to start a child."""

    spec: ChildSpec


class TerminatePid(NamedTuple):
    """The request to stop the child with this pid and forget it."""

    pid: Pid


class DynamicLoop(RestartLoop):
    """The restart loop of a dynamic supervisor: its children by their pids.

    One that is being restarted is still known by its last pid.
    """

    def __init__(self, label: str, intensity: Intensity, max_children: int | None = None) -> None:
        super().__init__(label, intensity)
        self.max_children = max_children
        self.by_pid: dict[Pid | None, SupervisedChild] = {}

    def children(self) -> Iterable[SupervisedChild]:
        return self.by_pid.values()

    def check_room(self) -> None:
        """Raise if there is no room for another child; those that are being restarted count.

        Raises:
            MaxChildren: The limit of children is reached.
            NoProcess: The supervisor is stopping.
        """
        if self.ending:
            raise self._stops()
        if self.max_children is not None and len(self.by_pid) >= self.max_children:
            raise MaxChildren(f"{self.label} has {len(self.by_pid)} children, and may have no more")

    def _stops(self) -> NoProcess:
        return NoProcess(self.me.pid, "start a child, for it is stopping")

    def admit(self, spec: ChildSpec, process: Process) -> SupervisedChild:
        """Add a new process as a child, synchronously; return the child.

        Raises:
            NoProcess: The supervisor is stopping; the process is killed before it runs a line.
        """
        if self.ending:
            kill(process, "its supervisor is stopping")
            raise self._stops()
        child = SupervisedChild(spec, self)
        self.watch(child, process, process.pid)
        self.by_pid[process.pid] = child
        return child

    async def restart(self, child: SupervisedChild) -> None:
        old = child.last_pid
        if await self.start_again(child):
            del self.by_pid[old]
            if child.last_pid is not old:  # else there is nothing to run any more
                self.by_pid[child.last_pid] = child

    async def forget(self, child: SupervisedChild, reason: BaseException | None) -> None:  # noqa: ARG002
        del self.by_pid[child.last_pid]

    async def answer(self, body: object) -> Any:
        match body:
            case StartChild(spec=spec):
                return await self._add(spec)
            case TerminatePid(pid=pid):
                return await self._terminate(pid)
            case _:
                return await super().answer(body)

    def id_of(self, child: SupervisedChild) -> None:
        """Return None: ids need not be unique here, so they identify no child."""

    async def _add(self, spec: ChildSpec) -> Any:
        self.check_room()
        child = SupervisedChild(spec, self)
        given = await self.start(child)
        if given is not IGNORE:
            self.by_pid[child.last_pid] = child
        return given

    async def _terminate(self, pid: Pid) -> None:
        child = self.by_pid.get(pid)
        if child is None:
            raise ChildError("not_found", pid)
        await self.stop([child])
        self.by_pid.pop(pid)


class DynamicSupervisor(SupervisorHandle):
    """A supervisor of children that come and go, and the handle to it.

    Every method may also be called on the class, with a pid or a name in place of the instance.
    """

    def __init__(
        self,
        *,
        name: str | Via | None = None,
        max_children: int | None = None,
        max_restarts: int = 3,
        max_seconds: Duration = 5,
        strategy: Literal["one_for_one"] = "one_for_one",
    ) -> None:
        """Describe it; nothing is started yet.

        Args:
            name: A name for its process.
            max_children: How many children it may have; None = no limit.
            max_restarts: It gives up after more restarts than this within `max_seconds`.
            max_seconds: The time in which restarts are counted.
            strategy: Only `"one_for_one"` is possible.

        Raises:
            ValueError: An option is invalid.
            TypeError: An option has the wrong type.
        """
        super().__init__(name)
        check_one_for_one(strategy)
        self._max_children = check_max_children(max_children)
        self._intensity = Intensity(max_restarts, max_seconds)

    def _loop(self) -> RestartLoop:
        return DynamicLoop(self._label(), self._intensity, self._max_children)

    @classmethod
    async def start(
        cls,
        *,
        name: str | Via | None = None,
        max_children: int | None = None,
        max_restarts: int = 3,
        max_seconds: Duration = 5,
        strategy: Literal["one_for_one"] = "one_for_one",
    ) -> Self:
        """Start a supervisor without children and without a link.

        Raises:
            NameTaken: Another process has the name.
        """
        described = cls(
            name=name,
            max_children=max_children,
            max_restarts=max_restarts,
            max_seconds=max_seconds,
            strategy=strategy,
        )
        return await described._start(link=False)

    @classmethod
    async def start_link(
        cls,
        *,
        name: str | Via | None = None,
        max_children: int | None = None,
        max_restarts: int = 3,
        max_seconds: Duration = 5,
        strategy: Literal["one_for_one"] = "one_for_one",
    ) -> Self:
        """Start a supervisor without children that is linked to this process.

        Raises:
            NameTaken: Another process has the name.
        """
        described = cls(
            name=name,
            max_children=max_children,
            max_restarts=max_restarts,
            max_seconds=max_seconds,
            strategy=strategy,
        )
        return await described._start(link=True)

    @classmethod
    def child(
        cls,
        *,
        id: Hashable = None,
        name: str | Via | None = None,
        restart: RestartWord = "permanent",
        shutdown: Shutdowns = None,
        significant: bool = False,
        **options: Any,
    ) -> ChildSpec:
        """Return its spec as the child of a supervisor; `options` are those of `start_link`.

        The id is by default its name, or else the name of the class.
        """
        cls(name=name, **options)  # a mistake is raised here, not at the start
        start = partial(cls.start_link, name=name, **options)
        known_as = next(each for each in (id, name, cls.__name__) if each is not None)
        return ChildSpec(known_as, start, restart, shutdown, "supervisor", significant)

    async def start_child(self: ServerRef, spec: ChildLike) -> Any:
        """Start a child; return its pid, its handle, or `IGNORE` if there is nothing to run.

        The ids of its children need not be unique.

        Raises:
            MaxChildren: The limit of children is reached.
            StartError: The child did not start.
            ValueError: The child is significant, which has no meaning here.
        """
        checked = as_spec(spec)
        if checked.significant:
            raise ValueError(
                f"child {checked.id!r} is significant, which a dynamic supervisor does not support"
            )
        return await request(self, StartChild(checked))

    async def terminate_child(self: ServerRef, pid: Pid) -> None:
        """Stop and forget a child, even one that is being restarted.

        Raises:
            ChildError: It is not a child.
        """
        await request(self, TerminatePid(pid))


def check_one_for_one(strategy: object) -> None:
    """Raise for the other strategies: dynamic children have no order."""
    if strategy != Strategy.ONE_FOR_ONE:
        raise ValueError(f"the only strategy here is 'one_for_one', not {strategy!r}")


def check_max_children(max_children: object) -> int | None:
    """Return the limit of children; raise if it is invalid."""
    if max_children is None:
        return None
    if isinstance(max_children, bool) or not isinstance(max_children, int):
        raise TypeError(f"max_children is a whole number or None, not {max_children!r}")
    if max_children < 0:
        raise ValueError(f"max_children is 0 or more, not {max_children}")
    return max_children
