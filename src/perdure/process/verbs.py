"""The verbs of living together: who I am, names, options, monitors, links, and ends.

They only change bookkeeping, so they are plain functions and cannot be interrupted half-way.
"""

import asyncio
import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NoReturn

from perdure.base.duration import Duration, seconds
from perdure.base.errors import Killed, NoProcess
from perdure.base.pid import Pid, Ref
from perdure.base.settings import Overflow
from perdure.process import death, names, signal
from perdure.process.current import current
from perdure.process.event import ExitResult
from perdure.process.exits import LEFT, ExitNow
from perdure.process.introspect import Info, picture
from perdure.process.mailbox import Bound
from perdure.process.messaging import alive_or_raise, locate
from perdure.process.names import Destination

# Who I am, and who is there


def self_pid() -> Pid:
    """Give the pid of the running process."""
    return current("self_pid").pid


def context() -> Mapping[str, Any]:
    """Give the values that this process inherited or was spawned with."""
    return MappingProxyType(dict(current("context").values))


def alive(dest: Destination) -> bool:
    """Tell whether a process lives; False already when its EXIT is received."""
    if isinstance(dest, Pid):
        return dest.target is not None
    return whereis(dest) is not None


def info(dest: Destination) -> Info:
    """Take a picture of a process.

    Raises:
        NoProcess: It is dead.
    """
    return picture(alive_or_raise(dest, "look at it"))


def processes() -> list[Info]:
    """Take a picture of every process, oldest first."""
    return [picture(process) for process in current("processes").runtime.processes.values()]


# Names


def register(name: str, pid: Pid | None = None) -> None:
    """Give a process, by default this one, a name; it may have many.

    Raises:
        NameTaken: Another process has it.
        NoProcess: The process is dead.
    """
    me = current("register")
    names.register(me.runtime.names, name, me if pid is None else alive_or_raise(pid, "register"))


def unregister(name: str) -> bool:
    """Free a name; tell whether anybody had it."""
    return names.unregister(current("unregister").runtime.names, name)


def whereis(name: str) -> Pid | None:
    """Find the process with a name."""
    names.check_name(name)
    holder = current("whereis").runtime.names.get(name)
    return holder.pid if holder is not None else None


def pid_of(name: str) -> Pid:
    """Find the process with a name.

    Raises:
        NotRegistered: Nobody has it.
    """
    return names.holder_of(current("pid_of").runtime.names, name).pid


@contextlib.contextmanager
def registered(name: str) -> Generator[None, None, None]:
    """Have a name inside the `with` block."""
    register(name)
    try:
        yield
    finally:
        if whereis(name) is self_pid():
            unregister(name)


# Options


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options of a process.

    Attributes:
        trap_links: Get a `LinkDown` event instead of dying with a linked process.
        mailbox_limit: How many messages may wait in one channel; None = no limit.
        overflow: What happens to one message more.
    """

    trap_links: bool = False
    mailbox_limit: int | None = None
    overflow: Overflow = Overflow.REJECT


def get_options() -> ProcessOptions:
    """Give the options of this process."""
    me = current("get_options")
    return ProcessOptions(me.trap_links, me.bound.limit, me.bound.overflow)


def set_options(**options: Any) -> None:
    """Change options of this process: all of them, or on any mistake none.

    Raises:
        ValueError: An option is unknown, or its value is out of range.
        TypeError: A value has the wrong type.
    """
    me = current("set_options")
    checked = {name: _check_option(name, value) for name, value in options.items()}
    me.trap_links = checked.get("trap_links", me.trap_links)
    limit = checked.get("mailbox_limit", me.bound.limit)
    me.set_bound(Bound(limit, checked.get("overflow", me.bound.overflow)))


def _check_option(name: str, value: Any) -> Any:
    match name:
        case "trap_links":
            if not isinstance(value, bool):
                raise TypeError(f"trap_links is True or False, not {value!r}")
            return value
        case "mailbox_limit":
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise TypeError(f"mailbox_limit is a number or None, not {value!r}")
            if value is not None and value < 1:
                raise ValueError(f"mailbox_limit is at least 1, not {value!r}")
            return value
        case "overflow":
            return Overflow(value)
        case _:
            known = ", ".join(option.name for option in fields(ProcessOptions))
            raise ValueError(f"option {name!r} is not supported; the options are {known}")


@contextlib.contextmanager
def trap_links() -> Generator[None, None, None]:
    """Trap links inside the `with` block."""
    before = get_options().trap_links
    set_options(trap_links=True)
    try:
        yield
    finally:
        set_options(trap_links=before)


# Monitors and links


def monitor(dest: Destination) -> Ref:
    """Get one EXIT event when the process ends; of a dead one at once, with `NoProcess`.

    Each call is a monitor of its own, with its own event.
    """
    me = current("monitor")
    target = locate(dest, "monitor")
    return signal.monitor(me, target.pid if target is not None else _pid(dest))


def unmonitor(watched: Destination | Ref, *, flush: bool = True) -> None:
    """Stop monitoring: one monitor by its ref, or all of a process.

    With `flush` an event that already waits is taken out too, so none comes after this.
    """
    me = current("unmonitor")
    if not isinstance(watched, Ref):
        target = locate(watched, "unmonitor")
        watched = target.pid if target is not None else _pid(watched)
    signal.unmonitor(me, watched, flush=flush)


@contextlib.contextmanager
def monitored(dest: Destination) -> Generator[Ref, None, None]:
    """Monitor a process inside the `with` block."""
    ref = monitor(dest)
    try:
        yield ref
    finally:
        unmonitor(ref)


def link(dest: Destination) -> None:
    """Share fate with a process: if one of the two ends abnormally, so does the other.

    Raises:
        NoProcess: It is dead.
    """
    me = current("link")
    signal.link(me, alive_or_raise(dest, "link to it"))


def unlink(dest: Destination, *, flush: bool = True) -> None:
    """End a link; always succeeds, also if there is none or the process is dead.

    With `flush` a `LinkDown` that already waits is taken out too.
    """
    me = current("unlink")
    target = locate(dest, "unlink")
    signal.unlink(me, target.pid if target is not None else _pid(dest), flush=flush)


# Ends


def cancel(dest: Destination, timeout: Duration = None, reason: object = None) -> None:
    """Ask a process to end: it gets a `Cancel` event, and is killed when the time is up.

    Without a timeout it is only asked. Of several deadlines the earliest counts.

    Raises:
        NoProcess: It is dead.
    """
    me = current("cancel")
    limit = seconds(timeout)
    signal.cancel(alive_or_raise(dest, "cancel it"), me.pid, limit, reason)


def kill(dest: Destination) -> None:
    """End a process by force. What its code does cannot change that any more.

    Its `finally` blocks run, but each wait in them is interrupted again;
    if it still does not end, it is abandoned: counted as dead, and reported.

    Raises:
        NoProcess: It is dead.
    """
    me = current("kill")
    target = alive_or_raise(dest, "kill it")
    if target is me and me.runs_now():
        me.outcome = ExitResult(None, Killed())
        raise ExitNow
    death.kill(target)


def exit(reason: BaseException | None = None, dest: Destination | None = None) -> None:  # noqa: A001
    """End oneself, or send an exit signal to another process.

    Without `dest` it does not return.
    Another process ends with this reason, unless it traps links: then it gets a `LinkDown`.
    To another, None (normal) is ignored.

    Raises:
        NoProcess: The other process is dead.
        TypeError: The reason is no exception.
    """
    if reason is not None and not isinstance(reason, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"an exit reason is an exception, or None for normal; not {reason!r}")
    me = current("exit")
    target = me if dest is None else alive_or_raise(dest, "signal it")
    if target is not me:
        if reason is not None:
            target.exit_signal(me.pid, reason)
        return
    outcome = LEFT if reason is None else ExitResult(None, reason)
    if me.runs_now():
        me.outcome = me.outcome or outcome
        raise ExitNow
    me.condemn(outcome)  # from a task inside it
    raise asyncio.CancelledError


def fail(text: str) -> NoReturn:
    """End this process, or whatever catches errors in it, with an error of this text."""
    raise RuntimeError(text)


def _pid(dest: Destination) -> Pid:
    if not isinstance(dest, Pid):  # a name was resolved before
        raise NoProcess
    return dest
