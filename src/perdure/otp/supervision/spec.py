"""Child specs: how a child is started, restarted and stopped, for every kind of supervisor."""

import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast

from perdure.base.duration import Duration, named_seconds
from perdure.base.pid import Pid
from perdure.base.restart import Restart
from perdure.otp.start import Ack
from perdure.process.lifecycle import PLAIN, check_function, spawn_process
from perdure.process.process import Function, Process, SpawnOptions, current


class BrutalKill(Enum):
    """The type of `BRUTAL_KILL`."""

    BRUTAL_KILL = "brutal_kill"

    def __repr__(self) -> str:
        return "BRUTAL_KILL"


class Ignore(Enum):
    """The type of `IGNORE`."""

    IGNORE = "ignore"

    def __repr__(self) -> str:
        return "IGNORE"


class Default(Enum):
    """The type of `DEFAULT`."""

    DEFAULT = "default"

    def __repr__(self) -> str:
        return "DEFAULT"


BRUTAL_KILL: Final = BrutalKill.BRUTAL_KILL
"""As a shutdown: kill at once, without asking."""

IGNORE: Final = Ignore.IGNORE
"""As the result of a start: there is nothing to run, which is not an error."""

DEFAULT: Final = Default.DEFAULT
"""As an option: not given."""


class ChildType(StrEnum):
    """Whether a child is a worker or a supervisor."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"


RestartWord: TypeAlias = Restart | Literal["permanent", "transient", "temporary"]
TypeWord: TypeAlias = ChildType | Literal["worker", "supervisor"]
Shutdowns: TypeAlias = Duration | BrutalKill

StartFunction = Callable[[], Awaitable[Any]]
"""Starts a child in the supervisor's process; returns a pid, a handle with `.pid`, or IGNORE."""

E = TypeVar("E", bound=StrEnum)

WORKER_SHUTDOWN = 5.0


@dataclass(frozen=True, slots=True, init=False)
class ChildSpec:
    """One child of a supervisor.

    Attributes:
        id: Names it in its supervisor.
        start: Starts it; called in the supervisor's process, at the start and at each restart.
            It returns the pid of a process that it linked to, a handle with a `pid`, or `IGNORE`.
        restart: When it is restarted.
        shutdown: Seconds that it may take to stop before it is killed;
            None = no limit, which is the default for supervisors; `BRUTAL_KILL` = none at all.
        type: Worker or supervisor; only for counts and listings.
        significant: Whether its end can end the supervisor, see `auto_shutdown` there.
    """

    id: Hashable
    start: StartFunction
    restart: Restart
    shutdown: float | BrutalKill | None
    type: ChildType
    significant: bool

    def __init__(
        self,
        id: Hashable,
        start: StartFunction,
        restart: RestartWord = "permanent",
        shutdown: Shutdowns | Default = DEFAULT,
        type: TypeWord = "worker",  # noqa: A002 - OTP's word
        significant: bool = False,  # noqa: FBT001, FBT002 - the fields of a record, in order
    ) -> None:
        """Check every field.

        Raises:
            ValueError: A field is missing, out of its range, or does not fit another one.
            TypeError: A field has the wrong type.
        """
        _check_id(id)
        what = f"child {id!r}"
        kind = _word(what, "type", ChildType, type)
        again = _word(what, "restart", Restart, restart)
        _check_start(what, start)
        _check_significant(what, again, significant)
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "restart", again)
        object.__setattr__(self, "shutdown", _shutdown(what, shutdown, kind))
        object.__setattr__(self, "type", kind)
        object.__setattr__(self, "significant", significant)


@dataclass(frozen=True, slots=True)
class SpawnStart:
    """The start function of a plain process, which is started as soon as it is spawned."""

    function: Function | str
    args: tuple[Any, ...]
    options: SpawnOptions = PLAIN

    async def __call__(self) -> Pid:
        parent = current("child")
        options = self.options._replace(link=True)
        return spawn_process(parent.runtime, parent, self.function, self.args, options).pid


class DirectStart:
    """A start function that a supervisor can also run step by step, without calling it.

    What an arbitrary start function does is unknown, so the supervisor runs it in a task and
    receives meanwhile. This one it knows: it spawns the process, watches it from then on,
    and waits for the acknowledgement in its own inbox. So a restart needs no task and takes one
    turn of the scheduler.
    """

    __slots__ = ()

    args: tuple[Any, ...]

    def is_direct(self) -> bool:
        """Whether the process runs on the supervisor's own loop."""
        raise NotImplementedError

    def begin(self, supervisor: Process, wake: Callable[[], object]) -> tuple[Process, Ack]:
        """Spawn and return the process; `wake` is called when it acknowledges its start."""
        raise NotImplementedError

    def handle(self, process: Process, value: Any) -> Any:
        """Return what the start function would return, or raise what it would raise."""
        raise NotImplementedError

    async def __call__(self) -> Any:
        raise NotImplementedError


class HasChildSpec(Protocol):
    """A class that knows how its instances are supervised."""

    @classmethod
    def child_spec(cls, *args: Any) -> ChildSpec:
        """Return the spec."""
        ...


ChildLike: TypeAlias = ChildSpec | type[HasChildSpec] | tuple[type[HasChildSpec], Any]
"""An element of a list of children: a spec, a class, or a class with an argument."""


def child(  # noqa: PLR0913  what is said of a child is said at once
    what: Function | str | ChildLike | type[Any],
    *args: Any,
    id: Hashable = None,
    name: str | None = None,
    host: str | None = None,
    restart: RestartWord | Default = DEFAULT,
    shutdown: Shutdowns | Default = DEFAULT,
    significant: bool | Default = DEFAULT,
) -> ChildSpec:
    """Return the spec of a child: a process function with its arguments.

    Also takes a class with `child_spec`, or a spec, to change some of its fields.

    Args:
        what: An `async def` function (or the id of a loaded entry), a class, or a spec.
        *args: The arguments of the function or of `child_spec`.
        id: Names it in its supervisor; by default the name of the function.
        name: A name that the process has from its start; only for functions.
        host: Where the process runs; only for functions.
        restart: When it is restarted; by default always.
        shutdown: Seconds that it may take to stop; 5 by default.
        significant: Whether its end can end the supervisor.

    Raises:
        ValueError: A field is invalid.
        TypeError: A field has the wrong type, or `what` cannot be a child.
        SpawnError: `what` is not an `async def` function.
    """
    given = {
        "id": DEFAULT if id is None else id,
        "restart": restart,
        "shutdown": shutdown,
        "significant": significant,
    }
    changes = {key: value for key, value in given.items() if value is not DEFAULT}
    if isinstance(what, ChildSpec | tuple | type):
        if name is not None or host is not None:
            raise TypeError("name= and host= are only for a process function: a server has its own")
        spec = as_spec((what, *args) if args else what)  # pyright: ignore[reportUnknownArgumentType]
        return replace(spec, **changes)
    check_function_or_entry(what)
    changes.setdefault("id", name or _name_of(what))
    options = PLAIN if name is None and host is None else SpawnOptions(host, name)
    return ChildSpec(start=SpawnStart(what, args, options), **cast("dict[str, Any]", changes))


def check_function_or_entry(what: Function | str) -> None:
    """Raise unless it can be spawned."""
    if not isinstance(what, str):
        check_function(what, "child")


def as_spec(given: object) -> ChildSpec:
    """Return the spec of one of the short forms.

    Raises:
        TypeError: It is none of these forms.
    """
    if isinstance(given, ChildSpec):
        return given
    if inspect.iscoroutinefunction(given):
        raise TypeError(f"{given!r} is a function: write child({_name_of(given)}, …)")
    form = cast("tuple[Any, ...]", given if type(given) is tuple else (given,))
    if form and isinstance(form[0], type):
        return _spec_of_class(form[0], form[1:])
    raise TypeError(
        f"a child is a ChildSpec, a class with child_spec(), or (class, argument); not {given!r}"
    )


def as_specs(children: Iterable[object]) -> list[ChildSpec]:
    """Return the specs of a list of children.

    Raises:
        ValueError: Two have the same id.
        TypeError: One is not a child.
    """
    if isinstance(children, str | ChildSpec | type):
        raise TypeError(f"children is a list, not {children!r}")
    specs = [as_spec(each) for each in children]
    seen: set[Hashable] = set()
    for spec in specs:
        if spec.id in seen:
            raise ValueError(
                f"two children have the id {spec.id!r}: give one of them another, "
                "for example child(…, id=…)"
            )
        seen.add(spec.id)
    return specs


def _spec_of_class(cls: type[Any], args: tuple[Any, ...]) -> ChildSpec:
    make = getattr(cls, "child_spec", None)
    if make is None:
        raise TypeError(f"{cls.__qualname__} has no child_spec(): give it one, or use a ChildSpec")
    spec: object = make(*args)
    if not isinstance(spec, ChildSpec):
        raise TypeError(f"{cls.__qualname__}.child_spec() returned {spec!r} instead of a ChildSpec")
    return spec


def _name_of(function: object) -> str | None:
    return function if isinstance(function, str) else getattr(function, "__name__", None)


def _check_id(id: object) -> None:
    if id is None:
        raise ValueError("a child needs an id: ChildSpec(id=…) or child(…, id=…)")
    try:
        hash(id)
    except TypeError:
        raise TypeError(f"the id of a child must be hashable, such as text; not {id!r}") from None


def _check_start(what: str, start: object) -> None:
    if not callable(start):
        raise TypeError(
            f"{what}: start is a function without arguments that starts it, not {start!r}"
        )


def _check_significant(what: str, restart: Restart, significant: object) -> None:
    if not isinstance(significant, bool):
        raise TypeError(f"{what}: significant is True or False, not {significant!r}")
    if significant and restart is Restart.PERMANENT:
        raise ValueError(
            f"{what}: a significant child cannot be permanent, since it is always restarted; "
            "make it transient or temporary"
        )


def _word(what: str, field: str, words: type[E], value: object) -> E:
    try:
        return words(value)
    except ValueError:
        raise ValueError(f"{what}: {field} is one of {', '.join(words)}; not {value!r}") from None


def _shutdown(
    what: str, shutdown: Shutdowns | Default, kind: ChildType
) -> float | BrutalKill | None:
    if isinstance(shutdown, Default):
        return None if kind is ChildType.SUPERVISOR else WORKER_SHUTDOWN
    if shutdown is None or isinstance(shutdown, BrutalKill):
        return shutdown
    return named_seconds(f"{what}: shutdown", shutdown)
