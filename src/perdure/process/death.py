"""The death of a process, in its order.

1. The coroutine has finished, with its cleanup.
2. The asyncio tasks that it started are stopped.
3. Names, timers and what higher layers hung on the process are released.
4. It counts as dead.
5. Monitors get EXIT, requests without answer fail.
6. Links get LINK_DOWN, or die too; not if the end was normal.
7. Joiners are woken.

So who hears of a death can at once take over its name, its socket, its place.
"""

import asyncio
import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.base import telemetry
from perdure.base.errors import Killed
from perdure.process.event import Exit, ExitResult
from perdure.process.exits import Upgrade, closes_silently, spread, verdict
from perdure.process.report import report_abandoned, report_crash
from perdure.process.tasklike import DEAD, ENDING, PARKED

if TYPE_CHECKING:
    from perdure.process.process import Process

EXIT_EVENT = ("perdure", "process", "exit")


def finish(process: "Process", value: object, error: BaseException | None) -> None:
    """Begin the end: the coroutine has finished."""
    process.state = ENDING
    if isinstance(error, Upgrade) and process.outcome is None:
        error = _upgrade(process, error)
    elif process.outcome is None:
        process.outcome = verdict(value, error)
    if isinstance(error, KeyboardInterrupt):
        process.runtime.interrupted()
    if process.tasks:
        cancel_tasks(process)
        insist(process)
    else:
        _settle(process)


def _upgrade(process: "Process", upgrade: Upgrade) -> None:
    try:
        process.coro = upgrade.function(*upgrade.args)
    except Exception as error:  # noqa: BLE001 - a mistake in the new code ends the process
        error.add_note("raised while the process was being upgraded")
        process.outcome = ExitResult(None, error)
    else:
        process.function, process.args = upgrade.function, upgrade.args
        process.must_cancel = False


def _settle(process: "Process") -> None:
    if process.outcome is None:  # upgraded: the same process runs on, with new code
        process.state = PARKED
        process.wake()
    else:
        bury(process, process.outcome)


# Tasks of asyncio that belong to a process


def adopt_task(process: "Process", task: "asyncio.Task[Any]") -> None:
    """Make an asyncio task part of a process."""
    if process.tasks is None:
        process.tasks = set()
    process.tasks.add(task)
    task.add_done_callback(partial(_forget_task, process))


def _forget_task(process: "Process", task: "asyncio.Task[Any]") -> None:
    if process.tasks is None:
        return
    process.tasks.discard(task)
    if process.state == ENDING:
        if not task.cancelled():
            task.exception()  # nobody is left to ask for it, so asyncio must not complain
        if not process.tasks:  # the last one was what the end waited for
            _settle(process)


def cancel_tasks(process: "Process") -> None:
    """Cancel the asyncio tasks of a process that ends."""
    for task in tuple(process.tasks or ()):
        task.cancel()


# Kill


def kill(process: "Process", detail: object = None) -> None:
    """End a process by force: nothing that its code does changes the outcome any more."""
    if process.state < ENDING:
        process.outcome = ExitResult(None, Killed(detail))  # also over an exit signal it obeys
        process.interrupt()
        insist(process)


def insist(process: "Process") -> None:
    """See to it that a process which must end does: repeat a kill, and in the end give it up."""
    if not process.insisting:
        process.insisting = True
        _wait_and_insist(process, process.loop.time() + process.runtime.settings.abandon_after)


def _wait_and_insist(process: "Process", limit: float) -> None:
    pause = process.runtime.settings.kill_every
    process.loop.call_later(pause, _insist_again, process, limit)


def _insist_again(process: "Process", limit: float) -> None:
    if process.state == DEAD or process.outcome is None:
        process.insisting = False
    elif process.loop.time() >= limit:
        _abandon(process, process.outcome)
    else:
        if isinstance(process.outcome.error, Killed):  # others may take their time to clean up
            process.interrupt()
            if process.state == ENDING:
                cancel_tasks(process)
        _wait_and_insist(process, limit)


def _abandon(process: "Process", outcome: ExitResult) -> None:
    report_abandoned(process)
    process.state = ENDING  # it is never stepped again
    _freeze(process.coro)
    bury(process, outcome)


def _freeze(coro: object) -> None:
    """Keep a coroutine for ever, so that not even its deletion runs its code again.

    Python throws GeneratorExit into a coroutine that it deletes, also at the end of the program.
    Code that catches everything and goes on would then spin without end.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))


# The grave


def bury(process: "Process", outcome: ExitResult) -> None:
    """Do what is left to do, from step 3 on."""
    runtime = process.runtime
    _release(process)
    process.state = DEAD
    process.pid.target = None
    del runtime.processes[process.pid]
    _tell_watchers(process, outcome)
    _tell_links(process, outcome.error)
    process.close_mailbox()
    process.call_callbacks()
    runtime.buried(process)
    if not closes_silently(outcome.error) and process is not runtime.root:
        report_crash(process, outcome)
    if telemetry.has_handlers(EXIT_EVENT):
        telemetry.execute(
            EXIT_EVENT,
            {"lifetime": process.loop.time() - process.born},
            {"pid": process.pid, "function": process.function, "result": outcome},
        )


def _release(process: "Process") -> None:
    if process.deadline is not None:
        process.deadline.cancel()
        process.deadline = None
    if process.names is not None:
        for name in process.names:
            del process.runtime.names[name]
    if process.releases is not None:
        for release in process.releases:
            release()
        process.releases = None
    process.names = process.tasks = None


def _tell_watchers(process: "Process", outcome: ExitResult) -> None:
    if process.watching is not None:
        for ref, watched in process.watching.items():
            if watched.target is not None:
                del watched.target.watchers[ref]
        process.watching = None
    if process.watchers is not None:
        for ref, watcher in process.watchers.items():
            del watcher.watching[ref]  # pyright: ignore[reportOptionalSubscript]
            watcher.notify(Exit(process.pid, outcome, ref))
        process.watchers = None
    if process.calls is not None:
        for request in tuple(process.calls):
            request.fail(outcome.error)
        process.calls = None


def _tell_links(process: "Process", reason: BaseException | None) -> None:
    if process.links is None:
        return
    for peer in process.links:
        peer.links.discard(process)  # pyright: ignore[reportOptionalMemberAccess]
        if reason is not None:
            peer.exit_signal(process.pid, spread(process.pid, reason), told=reason)
    process.links = None
