"""Links, monitors and cancels: who is told when a process ends, and who ends with it."""

import asyncio
from typing import TYPE_CHECKING

from perdure.base.errors import NoProcess
from perdure.base.pid import Pid, Ref
from perdure.process.death import kill
from perdure.process.event import Cancel, Event, Exit, ExitResult, LinkDown

if TYPE_CHECKING:
    from perdure.process.process import Process


def link(one: "Process", other: "Process") -> None:
    """Tie two processes together; a second time, or to oneself, does nothing."""
    if one is other:
        return
    for process, peer in ((one, other), (other, one)):
        if process.links is None:
            process.links = set()
        process.links.add(peer)


def unlink(process: "Process", pid: Pid, *, flush: bool) -> None:
    """Untie; after this no signal of the link can come, and with `flush` no notice is left."""
    peer: Process | None = pid.target
    if peer is not None and process.links and peer in process.links:
        process.links.discard(peer)
        if peer.links:
            peer.links.discard(process)
    if flush:

        def of_link(event: Event) -> bool:
            return isinstance(event, LinkDown) and event.sender is pid

        process.flush(of_link)


def monitor(watcher: "Process", pid: Pid) -> Ref:
    """Watch a process; of a dead one the watcher is told at once."""
    ref = Ref()
    target: Process | None = pid.target
    if target is None:
        watcher.notify(Exit(pid, ExitResult(None, NoProcess(pid)), ref))
        return ref
    if target.watchers is None:
        target.watchers = {}
    if watcher.watching is None:
        watcher.watching = {}
    target.watchers[ref] = watcher
    watcher.watching[ref] = pid
    return ref


def unmonitor(watcher: "Process", watched: Pid | Ref, *, flush: bool) -> None:
    """Stop watching: one monitor by its ref, or all of a pid."""
    watching = watcher.watching or {}
    if isinstance(watched, Ref):
        refs = [watched] if watched in watching else []
    else:
        refs = [ref for ref, pid in watching.items() if pid is watched]
    for ref in refs:
        del watching.pop(ref).target.watchers[ref]
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
    if when is None:
        return
    if timeout == 0:
        kill(target, "cancel timeout")
    elif target.deadline is None or when < target.deadline.when():
        if target.deadline is not None:
            target.deadline.cancel()
        target.deadline = _arm(target, when)


def _arm(target: "Process", when: float) -> asyncio.TimerHandle:
    return target.loop.call_at(when, kill, target, "cancel timeout")


def stop_politely(target: "Process", timeout: float) -> None:
    """End a process that need not know why: CANCEL if it reads its events, else a shutdown.

    A CANCEL that nobody reads would only make everybody wait for the deadline.
    """
    cancel(target, None, timeout, "the runtime stops")
    if not target.events_asked:
        target.condemn(ExitResult(None, target.runtime.stopping))
