"""Links, monitors and cancels: who is told when a process ends, and who ends with it."""

from typing import TYPE_CHECKING

from perdure.base.errors import NoProcess, Shutdown
from perdure.base.pid import MonitorRef, Pid
from perdure.process.death import kill
from perdure.process.event import Cancel, Event, Exit, ExitResult, LinkDown
from perdure.process.relations import Elsewhere, known, reach

if TYPE_CHECKING:
    from perdure.process.process import Process


def link(one: "Process", other: "Process") -> None:
    """Tie two processes together; a second time, or to oneself, does nothing."""
    if one is other:
        return
    one.tie().add_link(other)
    other.tie().add_link(one)


def unlink(process: "Process", pid: Pid, *, flush: bool) -> None:
    """Untie; after this no signal of the link can come, and with `flush` no notice is left."""
    peer = known(pid, process.runtime)
    if peer is not None and process.bonds and peer.bonds:
        process.bonds.drop_link(peer)
        peer.bonds.drop_link(process)
    if flush:

        def of_link(event: Event) -> bool:
            return isinstance(event, LinkDown) and event.sender is pid

        process.flush(of_link)


def monitor(watcher: "Process", pid: Pid) -> MonitorRef:
    """Watch a process; of a dead one the watcher is told at once."""
    target = reach(pid, watcher.runtime)
    if target is None:
        ref = MonitorRef()
        watcher.notify(Exit(pid, ExitResult(None, NoProcess(pid)), ref))
        return ref
    return watch(watcher, target)


def watch(watcher: "Process", target: "Process") -> MonitorRef:
    """Watch a process that is alive, or whose end has not been told here."""
    ref = MonitorRef()
    target.tie().add_watcher(ref, watcher)
    watcher.tie().add_watching(ref, target.pid)
    return ref


def unmonitor(watcher: "Process", watched: Pid | MonitorRef, *, flush: bool) -> None:
    """Stop watching: one monitor by its ref, or all of a pid."""
    watching = watcher.tie().watching or {}
    if isinstance(watched, MonitorRef):
        refs = [watched] if watched in watching else []
    else:
        refs = [ref for ref, pid in watching.items() if pid is watched]
    for ref in refs:
        target = known(watching.pop(ref), watcher.runtime)
        if target is not None:
            target.tie().drop_watcher(ref)
    if flush:

        def of_monitor(event: Event) -> bool:
            return isinstance(event, Exit) and watched in (event.ref, event.sender)

        watcher.flush(of_monitor)


def cancel(
    target: "Process", sender: Pid | None, timeout: float | None, reason: object = None
) -> None:
    """Ask a process to end; of several deadlines the earliest counts."""
    when = None if timeout is None else target.loop.time() + timeout
    target.notify(Cancel(sender, when, reason))
    if timeout is not None:
        _kill_after(target, timeout)


def _kill_after(target: "Process", timeout: float) -> None:
    when, bonds = target.loop.time() + timeout, target.tie()
    if timeout == 0:
        kill(target, "cancel timeout")
    elif bonds.deadline is None or when < bonds.deadline.when():
        if bonds.deadline is not None:
            bonds.deadline.cancel()
        bonds.deadline = target.loop.call_at(when, kill, target, "cancel timeout")


def stop_politely(
    target: "Process", timeout: float, sender: Pid | None = None, why: str | None = None
) -> None:
    """End a process by CANCEL if it reads its events, else by a shutdown.

    A CANCEL that nobody reads would only make everybody wait for the deadline.
    """
    if isinstance(target, Elsewhere):  # whether it reads its events is known only there
        target.stop_politely(timeout, sender, why)
        _kill_after(target, timeout)  # its own loop may be blocked, and never hear of a deadline
        return
    cancel(target, sender, timeout, why or target.runtime.stopping.detail)
    if not target.asked_for_events():
        target.condemn(ExitResult(None, Shutdown(why) if why else target.runtime.stopping))
