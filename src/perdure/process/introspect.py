"""`process.info`: a snapshot of a process, as seen from outside."""

import traceback
from dataclasses import dataclass, field

from perdure.base.pid import Pid
from perdure.process.process import Process, Relations
from perdure.process.report import call_of
from perdure.process.waiter import State


@dataclass(frozen=True, slots=True)
class Info:
    """A snapshot of one process."""

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


def info_of(process: Process) -> Info:
    """Return a snapshot of a process."""
    relations = process.relations or Relations()
    return Info(
        pid=process.pid,
        names=tuple(relations.names or ()),
        function=call_of(process),
        state=State(process.state),
        age=process.runtime.now() - process.spawned_at,
        trap_links=process.trap_links,
        mailbox=process.mailbox_length(),
        parent=process.parent,
        ancestors=_ancestors(process),
        links=frozenset(peer.pid for peer in relations.links or ()),
        monitors=tuple((relations.monitors or {}).values()),
        monitored_by=tuple(watcher.pid for watcher in (relations.monitored_by or {}).values()),
        tasks=len(relations.tasks or ()),
        callers=process.collector.callers if process.collector is not None else (),
        pending_tasks=sum(task.ended for task in relations.unawaited or ()),
        stack=tuple(
            f"{frame.filename}:{frame.lineno} in {frame.name}"
            for frame in traceback.StackSummary.extract(
                ((frame, frame.f_lineno) for frame in process.get_stack()), lookup_lines=False
            )
        ),
    )


def _ancestors(process: Process) -> tuple[Pid, ...]:
    """Return the parent, its parent, and so on, as far as they are alive to be asked."""
    ancestors: list[Pid] = []
    parent = process.parent
    while parent is not None:
        ancestors.append(parent)
        parent = parent.target.parent if parent.target is not None else None
    return tuple(ancestors)
