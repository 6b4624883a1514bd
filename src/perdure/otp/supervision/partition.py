"""PartitionSupervisor: several copies of one child; each key always leads to the same copy.

One process that everybody calls is a bottleneck; several, each for a part of the keys, are not.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias, cast

from perdure.base.duration import Duration
from perdure.base.errors import NoProcess, ProcError
from perdure.base.machine import cores
from perdure.base.pid import Pid
from perdure.base.restart import Intensity
from perdure.otp.address import ServerRef, Via
from perdure.otp.supervision.loop import RestartLoop, SupervisedChild
from perdure.otp.supervision.spec import (
    ChildLike,
    ChildSpec,
    DirectStart,
    RestartWord,
    Shutdowns,
    SpawnStart,
    as_spec,
)
from perdure.otp.supervision.strategy import Strategy
from perdure.otp.supervision.supervisor import (
    GroupLoop,
    StrategyWord,
    SupervisorHandle,
    loop_inside,
    request,
)

WithArguments: TypeAlias = Callable[[tuple[Any, ...], int], Sequence[Any]]
"""Returns the arguments of one partition, given those of the spec and its number."""


class Resize(NamedTuple):
    """The request to change the number of partitions."""

    partitions: int


class PartitionLoop(GroupLoop):
    """The restart loop of a partition supervisor."""

    def __init__(
        self, label: str, specs: Sequence[ChildSpec], strategy: Strategy, intensity: Intensity
    ) -> None:
        super().__init__(label, specs, intensity, strategy)
        self.specs = specs
        self.partitions = len(specs)

    def lookup(self, key: Hashable) -> Pid:
        """Return the process of a key."""
        if self.partitions == 0:
            raise ProcError(f"{self.label} has no partitions now: resize it first")
        number = partition_of(key, self.partitions)
        process = self.by_id[number].process
        if process is None or process.pid.target is None:
            raise NoProcess(None, f"use partition {number} of {self.label}, it is not running")
        return process.pid

    async def answer(self, body: object) -> Any:
        if isinstance(body, Resize):
            return await self._resize(body.partitions)
        return await super().answer(body)

    async def _resize(self, wanted: int) -> int:
        check_partitions(wanted, 0)
        if wanted > len(self.specs):
            raise ValueError(
                f"{self.label} was started with {len(self.specs)} partitions: "
                f"it can have fewer and so many again, but not {wanted}"
            )
        before = self.partitions
        for number in reversed(range(wanted, before)):
            self.partitions = number  # no key may lead there before it is stopped
            await self.stop([self.by_id[number]])
            del self.by_id[number]
        for number in range(before, wanted):
            child = self.by_id[number] = SupervisedChild(self.specs[number], self)
            await self._start_or_forget(child)
            self.partitions = number + 1
        return before

    async def _start_or_forget(self, child: SupervisedChild) -> None:
        try:
            await self.start(child)
        except ProcError:
            del self.by_id[child.spec.id]
            raise


def partition_of(key: Hashable, partitions: int) -> int:
    """Return the partition of a key: an integer by its value, others by their hash."""
    return (abs(key) if isinstance(key, int) else hash(key)) % partitions


class PartitionSupervisor(SupervisorHandle):
    """A supervisor of several like children, and the handle to it.

    Every method may also be called on the class, with a pid or a name in place of the instance:
    `PartitionSupervisor.lookup("counters", user)`.
    """

    def __init__(  # noqa: PLR0913 - all but two are the options of every supervisor
        self,
        spec: ChildLike,
        *,
        name: str | Via,
        partitions: int | None = None,
        with_arguments: WithArguments | None = None,
        strategy: StrategyWord = "one_for_one",
        max_restarts: int = 3,
        max_seconds: Duration = 5,
    ) -> None:
        """Describe it; nothing is started yet.

        Args:
            spec: What each partition is: a spec, a class with `child_spec()`, `(class, argument)`.
            name: The name of its process, by which keys are looked up.
            partitions: How many; by default the number of cores.
            with_arguments: Returns the arguments of one partition, given those of the spec and its
                number, so that each can know which it is.
            strategy: Which partitions are restarted together.
            max_restarts: It gives up after more restarts than this within `max_seconds`.
            max_seconds: The time in which restarts are counted.

        Raises:
            ValueError: An option is invalid.
            TypeError: An option or the child has the wrong type.
        """
        super().__init__(name)
        if name is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise ValueError("a PartitionSupervisor needs a name: keys are looked up by it")
        number = cores() if partitions is None else check_partitions(partitions, 1)
        self._specs = [_spec_of(spec, each, with_arguments) for each in range(number)]
        self._strategy = Strategy(strategy)
        self._intensity = Intensity(max_restarts, max_seconds)

    def _loop(self) -> RestartLoop:
        return PartitionLoop(self._label(), self._specs, self._strategy, self._intensity)

    @classmethod
    async def start(cls, spec: ChildLike, *, name: str | Via, **options: Any) -> Self:
        """Start all partitions without a link; the options are those of the class.

        Raises:
            StartError: A partition did not start; those before it are stopped again.
            NameTaken: Another process has the name.
        """
        described = cls(spec, name=name, **options)
        return await described._start(link=False)

    @classmethod
    async def start_link(cls, spec: ChildLike, *, name: str | Via, **options: Any) -> Self:
        """Start all partitions, linked to this process; the options are those of the class.

        Raises:
            StartError: A partition did not start; those before it are stopped again.
            NameTaken: Another process has the name.
        """
        described = cls(spec, name=name, **options)
        return await described._start(link=True)

    @classmethod
    def child(
        cls,
        spec: ChildLike,
        *,
        name: str | Via,
        id: Hashable = None,
        restart: RestartWord = "permanent",
        shutdown: Shutdowns = None,
        **options: Any,
    ) -> ChildSpec:
        """Return its spec as the child of a supervisor; the id is by default its name."""
        cls(spec, name=name, **options)  # a mistake is raised here, not at the start
        start = partial(cls.start_link, spec, name=name, **options)
        return ChildSpec(id if id is not None else name, start, restart, shutdown, "supervisor")

    def lookup(self: ServerRef, key: Hashable) -> Pid:
        """Return the process of a key: always the same one for the same number of partitions.

        Raises:
            NoProcess: It is being restarted, or the supervisor is dead.
            ProcError: There are no partitions now.
        """
        return loop_inside(self, PartitionLoop).lookup(key)

    def partitions(self: ServerRef) -> int:
        """Return the number of partitions."""
        return loop_inside(self, PartitionLoop).partitions

    async def resize(self: ServerRef, partitions: int) -> int:
        """Stop or start partitions until there are this many; return the old number.

        Raises:
            ValueError: It is below 0, or more than at the start.
        """
        return await request(self, Resize(check_partitions(partitions, 0)))


def check_partitions(partitions: object, least: int) -> int:
    """Return the number of partitions; raise if it is invalid."""
    if isinstance(partitions, bool) or not isinstance(partitions, int):
        raise TypeError(f"partitions is a whole number, not {partitions!r}")
    if partitions < least:
        raise ValueError(f"partitions is {least} or more, not {partitions}")
    return partitions


def _spec_of(given: ChildLike, number: int, with_arguments: WithArguments | None) -> ChildSpec:
    """Return the spec of one partition."""
    if with_arguments is None:
        spec = as_spec(given)
    elif isinstance(given, type):
        spec = as_spec((given, *with_arguments((), number)))
    elif isinstance(given, tuple):
        cls, *args = given
        spec = as_spec((cls, *with_arguments(tuple(args), number)))
    else:
        spec = replace(as_spec(given), start=_start_of(given, number, with_arguments))
    if spec.significant:
        raise ValueError("partitions cannot be significant: the supervisor only ends as a whole")
    return replace(spec, id=number)


def _start_of(spec: ChildSpec, number: int, with_arguments: WithArguments) -> Any:
    start: Any = spec.start
    if isinstance(start, SpawnStart | DirectStart):
        return replace(cast("Any", start), args=tuple(with_arguments(start.args, number)))
    if isinstance(start, partial):
        known = cast("partial[Any]", start)
        return partial(known.func, *with_arguments(known.args, number), **known.keywords)
    raise TypeError(
        "with_arguments needs a child whose arguments are known: child(fn, …), "
        "(class, argument), or a ChildSpec with a functools.partial as its start"
    )
