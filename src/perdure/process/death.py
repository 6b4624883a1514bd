"""The death of a process, in its order.

1. The coroutine has finished, with its cleanup.
2. The asyncio tasks that it started are stopped.
3. Names, timers and what higher layers hung on the process are released.
4. It counts as dead.
5. Its supervisor is told, monitors get EXIT, requests without answer fail.
6. Links get LINK_DOWN, or die too; not if the end was normal.
7. Joiners are woken.

So who hears of a death can at once take over its name, its socket, its place.
"""

import asyncio
import ctypes
import signal
from collections.abc import Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from perdure.base import telemetry
from perdure.base.errors import Killed
from perdure.process.event import Exit, ExitResult, LinkDown
from perdure.process.relations import SILENT, Bonds, Elsewhere, Upgrade, known, reason_of, spread
from perdure.process.report import report_abandoned, report_crash
from perdure.process.waiter import DEAD, ENDING, PARKED

if TYPE_CHECKING:
    from perdure.process.process import Process


_NO_CONTEXT = Context()

EXIT_EVENT = ("perdure", "process", "exit")


def finish(process: "Process", value: object, error: BaseException | None) -> None:
    """Begin the end: the coroutine has finished."""
    process.state = ENDING
    if process.outcome is None:
        if error is None:
            process.outcome = ExitResult(value)
        else:
            _judge(process, error)
    bonds = process.bonds
    if bonds is not None and bonds.tasks:
        cancel_tasks(bonds)
        insist(process)
    elif process.outcome is not None:
        bury(process, process.outcome)
    else:
        _settle(process)


def _judge(process: "Process", error: BaseException) -> None:
    """Decide how it ended, since nobody had before its code did."""
    if isinstance(error, Upgrade):
        process.tie().upgrade = error
    else:
        process.outcome = ExitResult(None, reason_of(error))
        _cut_own_frame(error)
        if isinstance(error, KeyboardInterrupt):
            process.runtime.interrupted(signal.SIGINT)


def _cut_own_frame(error: BaseException) -> None:
    """Cut our frame off a traceback: people look for their code, and it would keep the process."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _settle(process: "Process") -> None:
    outcome = process.outcome
    if outcome is None:
        _upgrade(process, process.tie())
    else:
        bury(process, outcome)


def _upgrade(process: "Process", bonds: Bonds) -> None:
    """Let the same process go on with new code, or fail in it."""
    upgrade, bonds.upgrade = bonds.upgrade, None
    assert upgrade is not None
    if bonds.repeat is not None:
        bonds.repeat.cancel()
        bonds.repeat = None
    try:
        process.drive(upgrade.function(*upgrade.args))
    except Exception as error:  # noqa: BLE001 - a mistake in the new code ends the process
        error.add_note("raised while the process was being upgraded")
        process.outcome = ExitResult(None, error)
        bury(process, process.outcome)
        return
    process.function, process.args = upgrade.function, upgrade.args
    process.must_cancel = False
    process.state = PARKED
    process.wake()


# Tasks of asyncio that belong to a process


def adopt_task(process: "Process", task: "asyncio.Task[Any]") -> None:
    """Make an asyncio task part of a process."""
    process.tie().add_task(task)
    task.add_done_callback(partial(_forget_task, process))


def _forget_task(process: "Process", task: "asyncio.Task[Any]") -> None:
    if process.state >= ENDING and not task.cancelled():
        task.exception()  # nobody is left to ask for it, so asyncio must not complain
    bonds = process.bonds
    if bonds is None:  # dead: it was abandoned
        return
    bonds.drop_task(task)
    if process.state == ENDING and not bonds.tasks:  # the last one was what the end waited for
        _settle(process)


def cancel_tasks(bonds: Bonds) -> None:
    """Cancel the asyncio tasks of a process that ends."""
    for task in tuple(bonds.tasks or ()):
        task.cancel()


# Kill


def kill(process: "Process", detail: object = None) -> None:
    """End a process by force: nothing that its code does changes the outcome any more."""
    if isinstance(process, Elsewhere):
        process.kill(detail)
    elif process.state != DEAD:
        process.outcome = ExitResult(None, Killed(detail))  # also over an exit signal it obeys
        _hurry(process)
        insist(process)


def _hurry(process: "Process") -> None:
    process.interrupt()
    if process.state == ENDING:
        cancel_tasks(process.tie())


def insist(process: "Process") -> None:
    """See to it that a process which must end does: repeat a kill, and in the end give it up."""
    if process.tie().repeat is None:
        _wait_and_insist(process, process.loop.time() + process.runtime.settings.abandon_after)


def _wait_and_insist(process: "Process", limit: float) -> None:
    pause = process.runtime.settings.kill_every
    process.tie().repeat = process.loop.call_later(pause, _insist_again, process, limit)


def _insist_again(process: "Process", limit: float) -> None:
    if process.loop.time() >= limit:
        stuck = Killed("tasks of its old code did not end")
        _abandon(process, process.outcome or ExitResult(None, stuck))
        return
    if process.outcome is not None and isinstance(process.outcome.error, Killed):
        _hurry(process)  # others may take their time to clean up
    _wait_and_insist(process, limit)


def _abandon(process: "Process", outcome: ExitResult) -> None:
    with suppress(Exception):  # no broken log handler stops the death
        report_abandoned(process)
    if process.state == PARKED:
        _leave_lines(process.coro)
    process.state = ENDING  # it is never stepped again
    freeze(process.coro)
    bury(process, outcome)


def _leave_lines(waiting: object) -> None:
    """End the wait of the kernel in which an abandoned process stands, and nothing else of it.

    Otherwise it would keep its place in the line of a channel, before the living, and its timer.
    """
    innermost = waiting
    while waiting is not None:
        innermost = waiting
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    if isinstance(innermost, GeneratorType):
        innermost.close()


def freeze(code: object) -> None:
    """Keep a coroutine or a task for ever, so that not even its deletion runs its code again.

    Python throws GeneratorExit into a coroutine that it deletes, also at the end of the program.
    Code that catches everything and goes on would then spin without end.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))


# The grave


def bury(process: "Process", outcome: ExitResult) -> None:
    """Do what is left to do, from step 3 on."""
    runtime, bonds, error = process.runtime, process.bonds, outcome.error
    if error is not None and not isinstance(error, SILENT) and process is not runtime.root:
        _report(process, error)
    if bonds is not None:
        release(process, bonds)
    process.state = DEAD
    process.pid.target = None
    del runtime.processes[process.pid]
    if process.collector is not None:  # before links: who waits for it takes its failure there
        process.collector.collect(process, outcome)
    if bonds is not None:
        tell(process, bonds, outcome)
        process.bonds = None
    process.close_mailbox()
    process.context = _NO_CONTEXT  # it knows the process: a dead one must not keep itself
    if runtime.burials:
        runtime.tell_of_burial()
    if telemetry.has_handlers(EXIT_EVENT):
        telemetry.execute(
            EXIT_EVENT,
            {"lifetime": runtime.now() - process.born},
            {"pid": process.pid, "function": process.function, "result": outcome},
        )


def tell(process: "Process", bonds: Bonds, outcome: ExitResult) -> None:
    """Tell those who are tied to it, in order: supervisor, monitors, callers, links, joiners."""
    supervisor = None
    if bonds.supervision is not None:
        supervisor = bonds.supervision.supervisor
        bonds.supervision.ended(process, outcome)
    if bonds.watchers or bonds.watching or bonds.calls:
        _tell_watchers(process, bonds, outcome)
    if bonds.links is not None:
        _tell_links(process, bonds.links, outcome.error, supervisor)
    if bonds.callbacks is not None:
        for callback, context in bonds.callbacks:
            process.loop.call_soon(callback, process, context=context)


def _report(process: "Process", error: BaseException) -> None:
    """Report a crash, in the context of who crashed; no broken log handler stops the death."""
    with suppress(Exception):
        process.context.run(report_crash, process, error)


def release(process: "Process", bonds: Bonds) -> None:
    """Let go of timers, names, and what higher layers hung on a process that dies."""
    if bonds.deadline is not None:
        bonds.deadline.cancel()
    if bonds.repeat is not None:
        bonds.repeat.cancel()
    if bonds.names is not None:
        for name in tuple(bonds.names):
            process.runtime.names.let_go(name, process)
    if bonds.releases is not None:
        for release in bonds.releases:
            release()


def _tell_watchers(process: "Process", bonds: Bonds, outcome: ExitResult) -> None:
    pid = process.pid
    if bonds.watching is not None:
        for ref, watched in bonds.watching.items():
            target = known(watched, process.runtime)
            if target is not None:
                target.tie().drop_watcher(ref)
    if bonds.watchers is not None:
        for ref, watcher in bonds.watchers.items():
            watcher.tie().drop_watching(ref)
            watcher.notify(Exit(pid, outcome, ref))
    if bonds.calls is not None:
        for request in tuple(bonds.calls):
            request.fail(outcome.error)


def _tell_links(
    process: "Process",
    peers: "Iterable[Process]",
    reason: BaseException | None,
    supervisor: "Process | None",
) -> None:
    for peer in peers:
        del peer.bonds.links[process]  # pyright: ignore[reportOptionalMemberAccess, reportOptionalSubscript]
        if reason is None or peer is supervisor:  # which has been told
            continue
        if peer.trap_links:
            peer.notify(LinkDown(process.pid, reason))
        elif peer.outcome is None:
            peer.condemn(ExitResult(None, spread(process.pid, reason)))
