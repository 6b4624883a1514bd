"""What can be seen of a process from outside."""

import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.base.pid import Pid
from perdure.process.relations import Bonds
from perdure.process.report import call_of
from perdure.process.waiter import State

if TYPE_CHECKING:
    from perdure.process.process import Process


@dataclass(frozen=True, slots=True)
class Info:
    """A picture of one process at one moment."""

    pid: Pid
    names: tuple[str, ...]
    function: str
    state: State
    age: float
    trap_links: bool
    mailbox: int
    parent: Pid | None
    ancestors: tuple[Pid, ...]
    links: frozenset[Pid]
    monitors: tuple[Pid, ...]
    monitored_by: tuple[Pid, ...]
    tasks: int
    callers: tuple[Pid, ...]
    pending_tasks: int
    stack: tuple[str, ...] = field(repr=False)


def picture(process: "Process") -> Info:
    """Take the picture."""
    bonds = process.bonds or Bonds()
    return Info(
        pid=process.pid,
        names=tuple(bonds.names or ()),
        function=call_of(process),
        state=State(process.state),
        age=process.runtime.now() - process.born,
        trap_links=process.trap_links,
        mailbox=process.mailbox_length(),
        parent=process.parent,
        ancestors=_ancestors(process),
        links=frozenset(peer.pid for peer in bonds.links or ()),
        monitors=tuple((bonds.watching or {}).values()),
        monitored_by=tuple(watcher.pid for watcher in (bonds.watchers or {}).values()),
        tasks=len(bonds.tasks or ()),
        callers=process.collector.callers if process.collector is not None else (),
        pending_tasks=sum(task.ended for task in bonds.uncollected or ()),
        stack=tuple(
            f"{frame.filename}:{frame.lineno} in {frame.name}"
            for frame in traceback.StackSummary.extract(
                ((frame, frame.f_lineno) for frame in process.get_stack()), lookup_lines=False
            )
        ),
    )


def _ancestors(process: "Process") -> tuple[Pid, ...]:
    """Name the parent, its parent, and so on, as far as they are alive to be asked."""
    ancestors: list[Pid] = []
    parent = process.parent
    while parent is not None:
        ancestors.append(parent)
        parent = parent.target.parent if parent.target is not None else None
    return tuple(ancestors)
