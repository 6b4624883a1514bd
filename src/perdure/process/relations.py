"""How a process ends: the pure part."""

import asyncio
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from difflib import get_close_matches
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from perdure.base.errors import (
    Killed,
    LinkedProcessDown,
    NameTaken,
    NotRegistered,
    Shutdown,
    SpawnError,
)
from perdure.base.pid import MonitorRef, Pid
from perdure.process.event import ExitResult

if TYPE_CHECKING:
    from perdure.process.process import Process
    from perdure.process.request import Request
    from perdure.process.runtime import Runtime


class ExitNow(BaseException):
    """Carries `exit()` out of the user's code; what it means is decided before it is raised."""


class Upgrade(BaseException):
    """Carries `upgrade()` out of the user's code."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(function)
        self.function = function
        self.args = args


# The outcome of `exit(None)`: a normal end, without even the value None.
LEFT = ExitResult()


def reason_of(error: BaseException) -> BaseException:
    """Give the exit reason for what came out of a process's code."""
    if isinstance(error, CancelledError):
        return Killed("its task was cancelled")
    return error


def spread(dead: Pid, reason: BaseException) -> BaseException:
    """Give the reason with which the death of `dead` ends a process that is linked to it.

    A shutdown passes unchanged; any other reason is wrapped,
    since one exception object must not end up in the traceback of many.
    """
    return reason if isinstance(reason, Shutdown) else LinkedProcessDown(dead, reason)


def same_reason(one: BaseException | None, other: BaseException | None) -> bool:
    """Tell whether two reasons are one, be it that one of them came from another OS process."""
    return one is other or (
        type(one) is type(other) and getattr(one, "args", ()) == getattr(other, "args", ())
    )


# Ends that need no crash report: planned, or told already at their cause.
SILENT = (Shutdown, Killed, LinkedProcessDown)


# What ties a process to others; most processes have few ties, and idle ones should be small.

Callback = Callable[[Any], object]


class Collector(Protocol):
    """Who takes the outcome of a process before anybody else: a task, a stream."""

    callers: tuple[Pid, ...]  # whose request the process works on, nearest first

    def collect(self, process: "Process", outcome: ExitResult) -> None:
        """Take the outcome; the process is dead, and its links are not told yet."""
        ...


class Supervision(Protocol):
    """A process as the child of a supervisor.

    It is the one notice that a supervisor gets of an end: a monitor beside the link would tell
    it twice of each failure, and a link alone tells nothing of a normal end.
    """

    supervisor: "Process"  # linked to it, but told of the end by `ended`, and by no LINK_DOWN

    def ended(self, process: "Process", outcome: ExitResult) -> None:
        """Take note of the end; the process is dead, and its monitors and links are not told."""
        ...

    def describe(self) -> str:
        """Return who supervises it, and as what, for reports."""
        ...


class Bonds:
    """The ties of one process, made with the first of them."""

    __slots__ = (
        "callbacks",
        "calls",
        "deadline",
        "label",
        "links",
        "names",
        "releases",
        "repeat",
        "supervision",
        "tasks",
        "uncollected",
        "upgrade",
        "watchers",
        "watching",
    )

    # Dicts where sets would do: what happens at death happens in the order of the ties,
    # so that a run can be repeated. Each container is made with its first member.

    def __init__(self) -> None:
        self.links: dict[Process, None] | None = None
        self.watchers: dict[MonitorRef, Process] | None = None  # who monitors it
        self.watching: dict[MonitorRef, Pid] | None = None  # whom it monitors
        self.calls: dict[Request[Any], None] | None = None  # requests that wait for its answer
        self.tasks: dict[asyncio.Task[Any], None] | None = None  # asyncio tasks that it started
        self.names: list[str] | None = None
        self.releases: list[Callable[[], None]] | None = None  # called at its death, before EXIT
        self.callbacks: list[tuple[Callback, Context | None]] | None = None  # done-callbacks
        self.deadline: asyncio.TimerHandle | None = None  # of the earliest cancel
        self.repeat: asyncio.TimerHandle | None = None  # the next repetition of a kill
        self.label: str | None = None  # a name for tools
        self.supervision: Supervision | None = None  # by whom it is supervised
        self.upgrade: Upgrade | None = None  # the code to go on with
        self.uncollected: dict[Any, None] | None = None  # its tasks whose result nobody took

    def add_link(self, peer: "Process") -> None:
        """Tie to a peer."""
        if self.links is None:
            self.links = {}
        self.links[peer] = None

    def drop_link(self, peer: "Process") -> None:
        """Untie from a peer."""
        if self.links is not None:
            self.links.pop(peer, None)

    def add_watcher(self, ref: MonitorRef, watcher: "Process") -> None:
        """Be monitored."""
        if self.watchers is None:
            self.watchers = {}
        self.watchers[ref] = watcher

    def drop_watcher(self, ref: MonitorRef) -> None:
        """Be monitored no more."""
        if self.watchers is not None:
            self.watchers.pop(ref, None)

    def add_watching(self, ref: MonitorRef, pid: Pid) -> None:
        """Monitor."""
        if self.watching is None:
            self.watching = {}
        self.watching[ref] = pid

    def drop_watching(self, ref: MonitorRef) -> None:
        """Monitor no more."""
        if self.watching is not None:
            self.watching.pop(ref, None)

    def open_calls(self) -> "dict[Request[Any], None]":
        """Give the requests that wait for an answer, to add one."""
        if self.calls is None:
            self.calls = {}
        return self.calls

    def add_task(self, task: "asyncio.Task[Any]") -> None:
        """Own a task."""
        if self.tasks is None:
            self.tasks = {}
        self.tasks[task] = None

    def drop_task(self, task: "asyncio.Task[Any]") -> None:
        """Own a task no more."""
        if self.tasks is not None:
            self.tasks.pop(task, None)

    def add_name(self, name: str) -> None:
        """Have a name."""
        if self.names is None:
            self.names = []
        self.names.append(name)

    def drop_name(self, name: str) -> None:
        """Have a name no more."""
        if self.names is not None:
            self.names.remove(name)

    def at_death(self, release: Callable[[], None]) -> None:
        """Call something when the process is about to count as dead."""
        if self.releases is None:
            self.releases = []
        self.releases.append(release)

    def add_callback(self, callback: Callback, context: Context | None) -> None:
        """Call something when the process is dead."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((callback, context))

    def drop_callback(self, callback: Callback) -> int:
        """Forget all entries of a callback; tell how many there were."""
        before = self.callbacks or []
        self.callbacks = [entry for entry in before if entry[0] != callback]
        return len(before) - len(self.callbacks)


# Names: a living process can be found by a text.

Destination = Pid | str


class Names(dict[str, "Process"]):
    """The table of names of a program; loops in several threads may share one."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        # Told of each name, its holder, and whether that has got it or has it no more.
        self.on_change: Callable[[str, Process, bool], None] | None = None

    def claim(self, name: str, process: "Process") -> "Process | None":
        """Give a name to a process if nobody has it, else give who has."""
        with self._lock:
            holder = self.get(name)
            if holder is not None:
                return holder
            self[name] = process
        if self.on_change is not None:
            self.on_change(name, process, True)
        return None

    def free(self, name: str) -> "Process | None":
        """Take a name from whoever has it; give who that was."""
        holder = self.pop(name, None)
        if holder is not None and self.on_change is not None:
            self.on_change(name, holder, False)
        return holder

    def let_go(self, name: str, process: "Process") -> None:
        """Free the name of a process that dies, unless another has it by now."""
        with self._lock:
            if self.get(name) is not process:
                return
            del self[name]
        if self.on_change is not None:
            self.on_change(name, process, False)


def check_name(name: object) -> None:
    """Refuse what cannot be a name."""
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {name!r}")
    if not name:
        raise ValueError("a name must not be empty")


def register(names: Names, name: str, process: "Process") -> None:
    """Give a process a name; to give it again is fine, to take it from another is not."""
    check_name(name)
    holder = names.claim(name, process)
    if holder is None:
        process.tie().add_name(name)
    elif holder.pid is not process.pid:
        raise NameTaken(name, holder.pid)


def unregister(names: Names, name: str) -> bool:
    """Free a name; tell whether anybody had it."""
    check_name(name)
    holder = names.free(name)
    if holder is None:
        return False
    if holder.bonds is not None:
        holder.bonds.drop_name(name)
    return True


def holder_of(names: Names, name: object) -> "Process":
    """Find the process with a name.

    Raises:
        NotRegistered: Nobody has it.
    """
    if not isinstance(name, str):
        raise TypeError(f"a destination is a Pid or a registered name, not {name!r}")
    holder = names.get(name)
    if holder is None:
        raise NotRegistered(name)
    return holder


# What a loop may touch of a process: the process itself, or what stands in for it here.
#
# A pid leads to its process, wherever that runs.
# Code on another loop must not touch it: there a stand-in takes its place, which passes on by
# signals what is done to it (see `perdure.process.hosts`).


class Elsewhere:
    """What a stand-in does otherwise than a process, since it cannot know how the other stands."""

    __slots__ = ()

    def kill(self, detail: object) -> None:
        """End it by force."""
        raise NotImplementedError

    def stop_politely(self, timeout: float, sender: Pid | None, why: str | None) -> None:
        """End it by CANCEL if it reads its events, else by a shutdown."""
        raise NotImplementedError


def reach(pid: Pid, runtime: "Runtime") -> "Process | None":
    """Give what code of this runtime may touch; None if the process is dead."""
    target: Process | None = pid.target
    if target is None or target.loop is runtime.loop or runtime.node is None:
        return target
    return runtime.node.stand_in(pid)


def known(pid: Pid, runtime: "Runtime") -> "Process | None":
    """Give what this runtime has of a process, and make nothing; also if it is dead elsewhere."""
    if runtime.node is not None and (stand_in := runtime.node.stand_ins.get(pid)) is not None:
        return stand_in
    target: Process | None = pid.target
    return None if target is None or target.loop is not runtime.loop else target


# Functions that can be spawned by an id: what a layer above has loaded.


class Entry(NamedTuple):
    """A function with an id, and what its spawn need not say."""

    function: Callable[..., Coroutine[Any, Any, Any]]
    host: str | None = None
    args: tuple[Any, ...] = ()


def find_entry(entries: Mapping[str, Entry], id: str) -> Entry:
    """Give the entry of an id.

    Raises:
        SpawnError: There is none; the text has the ids that are near.
    """
    entry = entries.get(id)
    if entry is not None:
        return entry
    near = get_close_matches(id, entries)
    if near:
        raise SpawnError(f"unknown entry {id!r}: did you mean {' or '.join(map(repr, near))}?")
    raise SpawnError(f"unknown entry {id!r}: no entry of that id is loaded")
