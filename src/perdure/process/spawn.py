"""The birth of a process: everything is checked first, then it all happens at once.

The relation to the parent is set before the child runs its first line,
so that a child which dies at once still gives its notice.
"""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from inspect import CO_COROUTINE
from types import CoroutineType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.base import telemetry
from perdure.base.errors import NameTaken, NameTakenAtBirth, SpawnError, safe_text
from perdure.process.process import Process
from perdure.process.relations import check_name, find_entry, register
from perdure.process.signal import link, watch

if TYPE_CHECKING:
    from perdure.process.runtime import Runtime


Function = Callable[..., Coroutine[Any, Any, Any]]

SPAWN_EVENT = ("perdure", "process", "spawn")


class Options(NamedTuple):
    """How a process is born."""

    host: str | None = None
    name: str | None = None
    values: Mapping[str, Any] | None = None
    link: bool = False
    monitor: bool = False


PLAIN = Options()
NO_VALUES: Mapping[str, Any] = {}


def give_birth(
    runtime: "Runtime",
    parent: Process | None,
    function: Function | str,
    args: tuple[Any, ...],
    options: Options,
) -> Process:
    """Make a process; if anything is wrong, make nothing."""
    if isinstance(function, str):
        function, args, options = _by_entry(runtime, function, args, options)
    values = parent.values if parent is not None else NO_VALUES
    if options is not PLAIN:
        if options.host is not None and (host := runtime.host_of(options.host)) is not None:
            return host.birth(runtime, parent, function, args, options)
        _check(runtime, options)
        if options.values:
            values = {**values, **options.values}
    coro = make_coroutine(function, args)
    child = runtime.kind(runtime, function, args, coro, parent, values)
    runtime.processes[child.pid] = child
    if options is not PLAIN:
        relate(runtime, parent, child, options)
    scheduler = child.scheduler
    scheduler.ready.append(child)
    if not scheduler.awake:
        scheduler.rouse()
    if telemetry.has_handlers(SPAWN_EVENT):
        tell_of_birth(child)
    return child


def _by_entry(
    runtime: "Runtime", id: str, args: tuple[Any, ...], options: Options
) -> tuple[Function, tuple[Any, ...], Options]:
    """Complete a call by what the entry of that id says."""
    entry = find_entry(runtime.entries, id)
    if entry.host is not None and options.host is None:
        options = options._replace(host=entry.host)
    return entry.function, args or entry.args, options


def tell_of_birth(child: Process) -> None:
    """Tell those who count processes."""
    metadata = {"pid": child.pid, "parent": child.parent, "function": child.function}
    telemetry.execute(SPAWN_EVENT, {}, metadata)


def _check(runtime: "Runtime", options: Options) -> None:
    if options.name is not None:
        check_name(options.name)
        if holder := runtime.names.get(options.name):
            raise NameTakenAtBirth(options.name, holder.pid)


def relate(runtime: "Runtime", parent: Process | None, child: Process, options: Options) -> None:
    """Give a process that was just born its name, and its ties to its parent."""
    if options.name is not None:
        try:
            register(runtime.names, options.name, child)
        except NameTaken as taken:  # by another loop, since it was checked: it was never born
            runtime.processes.pop(child.pid, None)
            child.pid.target = None
            child.coro.close()
            raise NameTakenAtBirth(options.name, taken.pid) from None
    if parent is not None and options.link:
        link(parent, child)
    if parent is not None and options.monitor:
        watch(parent, child)


def make_coroutine(function: Function, args: tuple[Any, ...]) -> Coroutine[Any, Any, Any]:
    """Call a coroutine function, which runs none of its code yet.

    Raises:
        SpawnError: It is no coroutine function, or does not take these arguments.
    """
    # As `is_plain`, without the call.
    if type(function) is not FunctionType or not function.__code__.co_flags & CO_COROUTINE:
        check_function(function)
    try:
        coro = function(*args)
    except TypeError as error:
        raise SpawnError(
            f"cannot start {_spell(function)} with {safe_text(args)}: {error}"
        ) from error
    if type(coro) is not CoroutineType:
        raise SpawnError(f"{_spell(function)} gave {coro!r} instead of a coroutine")
    return coro  # pyright: ignore[reportUnknownVariableType]


def is_plain(function: object) -> bool:
    """Tell whether this is an `async def` function, with nothing around it."""
    return type(function) is FunctionType and bool(function.__code__.co_flags & CO_COROUTINE)


def check_function(function: object, verb: str = "spawn") -> None:
    """Refuse what is no `async def` function, without calling it."""
    method = getattr(function, "__call__", None)  # noqa: B004 - an instance with an async call
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method):
        return
    if isinstance(function, CoroutineType):
        function.close()
        raise SpawnError(
            f"{verb} takes the function and its arguments, not a coroutine: write "
            f"{verb}({function.__name__}, …) instead of {verb}({function.__name__}(…))"
        )
    raise SpawnError(
        f"a process runs an `async def` function; {_spell(function)} is none"
        + (_PLAIN_FUNCTION if callable(function) else "")
    )


_PLAIN_FUNCTION = (
    ": declare it `async def`; if it blocks or computes, call it by `await offload(…)` inside "
    "one, or run that on a host of threads or OS processes"
)


def _spell(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
