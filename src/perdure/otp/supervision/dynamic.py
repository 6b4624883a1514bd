"""DynamicSupervisor: starts empty, gets children at run time, each for itself.

`DynamicChildren` is its inside, on which other supervisors of many like children build.
"""

from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from perdure.base.duration import Duration
from perdure.base.errors import ChildError, MaxChildren, NoProcess
from perdure.base.pid import Pid
from perdure.otp.address import ServerRef, Via
from perdure.otp.supervision.loop import Oversight, Ward
from perdure.otp.supervision.spec import IGNORE, Child, ChildSpec, RestartWord, Shutdowns, as_spec
from perdure.otp.supervision.strategy import Fate, Intensity, Strategy, fate
from perdure.otp.supervision.supervisor import Supervised, request
from perdure.process.death import kill
from perdure.process.process import Process

# The requests


class StartChild(NamedTuple):
    """Start a child."""

    spec: ChildSpec


class TerminateChild(NamedTuple):
    """Stop a child and forget it."""

    pid: Pid


class DynamicChildren(Oversight):
    """The children of a dynamic supervisor, by their pids.

    One that is being restarted is still known by its last pid.
    """

    def __init__(self, label: str, intensity: Intensity, max_children: int | None = None) -> None:
        super().__init__(label, intensity)
        self.max_children = max_children
        self.children: dict[Pid | None, Ward] = {}

    def wards(self) -> Iterable[Ward]:
        return self.children.values()

    def check_room(self) -> None:
        """Refuse one child too many; those that are being restarted count too.

        Raises:
            MaxChildren: There are as many as there may be.
            NoProcess: The supervisor is stopping.
        """
        if self.ending:
            raise self._stops()
        if self.max_children is not None and len(self.children) >= self.max_children:
            raise MaxChildren(
                f"{self.label} has {len(self.children)} children, and may have no more"
            )

    def _stops(self) -> NoProcess:
        return NoProcess(self.me.pid, "start a child, for it is stopping")

    def admit(self, spec: ChildSpec, process: Process) -> Ward:
        """Take in a process that was just born, at once and without a request.

        Raises:
            NoProcess: The supervisor is stopping; the process is killed before it runs a line.
        """
        if self.ending:
            kill(process, "its supervisor is stopping")
            raise self._stops()
        ward = Ward(spec)
        self.adopt(ward, process.pid, process.pid)
        self.children[process.pid] = ward
        return ward

    async def ended(self, ward: Ward, reason: BaseException | None) -> None:
        if fate(ward.spec.restart, reason) is Fate.RESTART:
            self.count_restart(ward, reason)
            await self._restart(ward)
        else:
            del self.children[ward.last_pid]

    async def try_again(self, ward: Ward) -> None:
        self.count_restart(ward, ward.failure)
        await self._restart(ward)

    async def _restart(self, ward: Ward) -> None:
        old = ward.last_pid
        if await self.restart(ward):
            del self.children[old]
            if ward.last_pid is not old:  # else there is nothing to run any more
                self.children[ward.last_pid] = ward

    async def end_children(self) -> None:
        await self.stop(tuple(self.children.values()))

    # Requests

    async def answer(self, body: object) -> Any:
        match body:
            case StartChild(spec=spec):
                return await self._add(spec)
            case TerminateChild(pid=pid):
                return await self._terminate(pid)
            case _:
                return await super().answer(body)

    def id_of(self, ward: Ward) -> None:
        """Give none: ids need not differ here, so they name nobody."""

    async def _add(self, spec: ChildSpec) -> Any:
        self.check_room()
        ward = Ward(spec)
        given = await self.start(ward)
        if given is not IGNORE:
            self.children[ward.last_pid] = ward
        return given

    async def _terminate(self, pid: Pid) -> None:
        ward = self.children.get(pid)
        if ward is None:
            raise ChildError("not_found", pid)
        await self.stop([ward])
        self.children.pop(pid)


class DynamicSupervisor(Supervised):
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
            max_restarts: With more restarts than this within `max_seconds` it gives up.
            max_seconds: The time in which restarts are counted.
            strategy: There is only one.

        Raises:
            ValueError: An option is bad.
            TypeError: An option has the wrong type.
        """
        super().__init__(name)
        check_one_for_one(strategy)
        self._max_children = check_max_children(max_children)
        self._intensity = Intensity(max_restarts, max_seconds)

    def _oversight(self) -> Oversight:
        return DynamicChildren(self._label(), self._intensity, self._max_children)

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
        """Start a supervisor without children, linked to this process.

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
        return await described.start()

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
        """Describe it as the child of a supervisor; `options` are those of `start_link`.

        The id is by default its name, or else the name of the class.
        """
        cls(name=name, **options)  # a mistake is told here, and not at the start
        start = partial(cls.start_link, name=name, **options)
        known_as = next(each for each in (id, name, cls.__name__) if each is not None)
        return ChildSpec(known_as, start, restart, shutdown, "supervisor", significant)

    async def start_child(self: ServerRef, spec: Child) -> Any:
        """Start a child; give its pid, its handle, or `IGNORE` if there is nothing to run.

        The ids of its children need not differ.

        Raises:
            MaxChildren: It has as many as it may have.
            StartError: The child did not start.
            ValueError: The child is significant, which means nothing here.
        """
        checked = as_spec(spec)
        if checked.significant:
            raise ValueError(f"child {checked.id!r} is significant, which means nothing here")
        return await request(self, StartChild(checked))

    async def terminate_child(self: ServerRef, pid: Pid) -> None:
        """Stop a child and forget it, also one that is being restarted.

        Raises:
            ChildError: It is no child.
        """
        await request(self, TerminateChild(pid))


def check_one_for_one(strategy: object) -> None:
    """Refuse the other strategies: children that come and go have no order."""
    if strategy != Strategy.ONE_FOR_ONE:
        raise ValueError(f"the only strategy here is 'one_for_one', not {strategy!r}")


def check_max_children(max_children: object) -> int | None:
    """Refuse what cannot be a number of children."""
    if max_children is None:
        return None
    if isinstance(max_children, bool) or not isinstance(max_children, int):
        raise TypeError(f"max_children is a whole number or None, not {max_children!r}")
    if max_children < 0:
        raise ValueError(f"max_children is 0 or more, not {max_children}")
    return max_children
