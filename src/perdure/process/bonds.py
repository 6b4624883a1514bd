"""What ties a process to others; most processes have few ties, and idle ones should be small."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from perdure.base.pid import Pid, Ref
from perdure.process.event import ExitResult
from perdure.process.exits import Upgrade

if TYPE_CHECKING:
    from perdure.process.process import Process
    from perdure.process.request import Request

Callback = Callable[[Any], object]


class Collector(Protocol):
    """Who takes the outcome of a process before anybody else: a task, a stream."""

    callers: tuple[Pid, ...]  # whose request the process works on, nearest first

    def collect(self, process: "Process", outcome: ExitResult) -> None:
        """Take the outcome; the process is dead, and its links are not told yet."""
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
        self.watchers: dict[Ref, Process] | None = None  # who monitors it
        self.watching: dict[Ref, Pid] | None = None  # whom it monitors
        self.calls: dict[Request[Any], None] | None = None  # requests that wait for its answer
        self.tasks: dict[asyncio.Task[Any], None] | None = None  # asyncio tasks that it started
        self.names: list[str] | None = None
        self.releases: list[Callable[[], None]] | None = None  # called at its death, before EXIT
        self.callbacks: list[tuple[Callback, Context | None]] | None = None  # done-callbacks
        self.deadline: asyncio.TimerHandle | None = None  # of the earliest cancel
        self.repeat: asyncio.TimerHandle | None = None  # the next repetition of a kill
        self.label: str | None = None  # a name for tools
        self.supervision: Callable[[], str] | None = None  # says who supervises it, for reports
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

    def add_watcher(self, ref: Ref, watcher: "Process") -> None:
        """Be monitored."""
        if self.watchers is None:
            self.watchers = {}
        self.watchers[ref] = watcher

    def drop_watcher(self, ref: Ref) -> None:
        """Be monitored no more."""
        if self.watchers is not None:
            self.watchers.pop(ref, None)

    def add_watching(self, ref: Ref, pid: Pid) -> None:
        """Monitor."""
        if self.watching is None:
            self.watching = {}
        self.watching[ref] = pid

    def drop_watching(self, ref: Ref) -> None:
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
