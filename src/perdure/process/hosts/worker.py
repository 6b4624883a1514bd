"""A worker of a host, as the host sees it: a loop elsewhere, in a thread or in an OS process."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from perdure.process.hosts.stand_in import StandIn, Wire


class Plan(NamedTuple):
    """What a worker needs to know of its host."""

    host: str
    queue_size: int
    blocked_after: float | None
    kill_after: float | None


class Worker(Protocol):
    """A loop elsewhere."""

    label: str
    load: int  # processes that were placed on it and live
    ready: bool
    doomed: bool  # it is being killed: whatever is placed on it now dies with it
    sacrificed: bool  # ended by us, to end a process in it: no failure of its own

    @property
    def wire(self) -> Wire:
        """The way to it."""
        ...

    def begin(self) -> None:
        """Start it; `on_ready` or `on_down` is called later."""
        ...

    def stop(self, timeout: float) -> None:
        """Let it end its processes and itself; `on_down` is called at the end."""
        ...

    def destroy(self, cause: str) -> None:
        """End it by force, as far as that is possible; `on_down` is called."""
        ...

    def reap(self) -> None:
        """End it by force, and wait for that: the program's first loop ends."""
        ...


OnReady = Callable[[Worker], object]
OnDown = Callable[[Worker, str | None], object]
"""Called once, when a worker is gone: with the cause, or with None if it was stopped."""


def count_in(worker: Worker, stand_in: StandIn) -> None:
    """Let a process count as load of a worker until it ends."""
    worker.load += 1

    def leave() -> None:
        worker.load -= 1

    stand_in.on_end = leave
