"""Relations between processes (links, monitors, names), and resolving a pid to its process.

A pid leads to its process, wherever that runs. Code on another loop must not touch the process
itself: there a proxy takes its place, which forwards operations as signals (see
`perdure.process.hosts`). `resolve` returns one or the other.
"""

from perdure.base.errors import NameTaken, NoProcess, NotRegistered
from perdure.base.pid import MonitorRef, Pid
from perdure.process.event import Event, Exit, ExitResult, LinkDown
from perdure.process.names import Names, check_name
from perdure.process.process import Process, ProcessRuntime

Destination = Pid | str


def resolve(pid: Pid, runtime: ProcessRuntime) -> Process | None:
    """Return the process or its proxy on this runtime; None if the process is dead."""
    target: Process | None = pid.target
    if target is None or target.loop is runtime.loop or runtime.node is None:
        return target
    return runtime.node.proxy_of(pid)


def resolve_known(pid: Pid, runtime: ProcessRuntime) -> Process | None:
    """Return the process or the existing proxy on this runtime, even if it is dead elsewhere.

    Unlike `resolve` this never makes a proxy: removing a relation must not create one.
    """
    if runtime.node is not None and (proxy := runtime.node.proxies.get(pid)) is not None:
        return proxy
    target: Process | None = pid.target
    return None if target is None or target.loop is not runtime.loop else target


# Links


def link(one: Process, other: Process) -> None:
    """Link two processes; a second time, or to oneself, does nothing."""
    if one is other:
        return
    one.get_relations().add_link(other)
    other.get_relations().add_link(one)


def unlink(process: Process, pid: Pid, *, flush: bool) -> None:
    """Remove a link: no signal of it can come after this, and with `flush` no event is left."""
    peer = resolve_known(pid, process.runtime)
    if peer is not None and process.relations and peer.relations:
        process.relations.remove_link(peer)
        peer.relations.remove_link(process)
    if flush:

        def of_link(event: Event) -> bool:
            return isinstance(event, LinkDown) and event.sender is pid

        process.remove_events(of_link)


# Monitors


def monitor(watcher: Process, pid: Pid) -> MonitorRef:
    """Monitor a process; if it is dead, the watcher is notified at once."""
    target = resolve(pid, watcher.runtime)
    if target is None:
        ref = MonitorRef()
        watcher.notify(Exit(pid, ExitResult(None, NoProcess(pid)), ref))
        return ref
    return add_monitor(watcher, target)


def add_monitor(watcher: Process, target: Process) -> MonitorRef:
    """Monitor a process that is alive, or whose end is not known here yet."""
    ref = MonitorRef()
    target.get_relations().add_monitored_by(ref, watcher)
    watcher.get_relations().add_monitor(ref, target.pid)
    return ref


def unmonitor(watcher: Process, watched: Pid | MonitorRef, *, flush: bool) -> None:
    """Stop monitoring: one monitor by its ref, or all of a pid."""
    monitors = watcher.get_relations().monitors or {}
    if isinstance(watched, MonitorRef):
        refs = [watched] if watched in monitors else []
    else:
        refs = [ref for ref, pid in monitors.items() if pid is watched]
    for ref in refs:
        target = resolve_known(monitors.pop(ref), watcher.runtime)
        if target is not None and target.relations is not None:
            target.relations.remove_monitored_by(ref)
    if flush:

        def of_monitor(event: Event) -> bool:
            return isinstance(event, Exit) and watched in (event.ref, event.sender)

        watcher.remove_events(of_monitor)


# Names


def register(names: Names[Process], name: str, process: Process) -> None:
    """Give a process a name; giving it a second time does nothing.

    Raises:
        NameTaken: Another process holds it.
    """
    check_name(name)
    holder = names.claim(name, process)
    if holder is None:
        process.get_relations().add_name(name)
    elif holder.pid is not process.pid:
        raise NameTaken(name, holder.pid)


def unregister(names: Names[Process], name: str) -> bool:
    """Free a name; return whether a process held it."""
    check_name(name)
    holder = names.free(name)
    if holder is None:
        return False
    if holder.relations is not None:
        holder.relations.remove_name(name)
    return True


def holder_of(names: Names[Process], name: object) -> Process:
    """Return the process that holds a name.

    Raises:
        NotRegistered: Nobody does.
    """
    if not isinstance(name, str):
        raise TypeError(f"a destination is a Pid or a registered name, not {name!r}")
    holder = names.get(name)
    if holder is None:
        raise NotRegistered(name)
    return holder
