"""What ties a process to others; most processes have few ties, and idle ones should be small."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from perdure.base.pid import Pid, Ref

if TYPE_CHECKING:
    from perdure.process.process import Process
    from perdure.process.request import Request

Callback = Callable[[Any], object]


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
        "tasks",
        "watchers",
        "watching",
    )

    def __init__(self) -> None:
        self.links: set[Process] = set()
        self.watchers: dict[Ref, Process] = {}  # who monitors it
        self.watching: dict[Ref, Pid] = {}  # whom it monitors
        self.names: list[str] = []
        self.calls: set[Request[Any]] = set()  # requests that wait for its answer
        self.tasks: set[asyncio.Task[Any]] = set()  # asyncio tasks that it started
        self.releases: list[Callable[[], None]] = []  # called at its death, before EXIT
        self.callbacks: list[tuple[Callback, Context | None]] = []  # done-callbacks
        self.deadline: asyncio.TimerHandle | None = None  # of the earliest cancel
        self.repeat: asyncio.TimerHandle | None = None  # the next repetition of a kill
        self.label: str | None = None  # a name for tools
