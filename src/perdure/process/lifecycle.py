"""The life of a process: how it is started, asked to end, killed, and what happens at its end.

A start checks everything first, and then happens at once. The relations to the parent are set
before the child runs its first line, so that the death of a child is noticed however early it is.

A death happens in this order:

1. The coroutine has finished, with its cleanup.
2. The asyncio tasks that it started are stopped.
3. Names, timers and what higher layers attached to the process are released.
4. It counts as dead.
5. Its supervisor is notified, monitors get EXIT, unanswered requests fail.
6. Links get LINK_DOWN, or die too; not if the end was normal.
7. Done-callbacks run.

So a process that is notified of a death can take over the name, the socket and the role at once.

Steps 3 to 7 happen atomically, in `complete_exit`: no other code of the loop runs in between.
Only step 2 can take time, and only if there are such tasks: the process is ENDING meanwhile, and
the last task to finish completes the exit.

An exit signal interrupts once and lets the cleanup run. A kill repeats the interrupt, since code
may catch it; and code that catches every one is abandoned after `abandon_after`: the process counts
as dead, its coroutine is never stepped again, and a report says where it hangs.
"""

import asyncio
import ctypes
import inspect
import signal
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from difflib import get_close_matches
from functools import partial
from inspect import CO_COROUTINE
from types import CoroutineType, FunctionType, GeneratorType
from typing import Any

from perdure.base import telemetry
from perdure.base.errors import Killed, NameTaken, Shutdown, SpawnError, safe_text
from perdure.base.pid import MonitorRef, Pid
from perdure.process.event import Cancel, Exit, ExitResult, LinkDown
from perdure.process.exit_reason import UNREPORTED, Upgrade, linked_reason
from perdure.process.names import check_name
from perdure.process.process import (
    Function,
    Process,
    ProcessRuntime,
    Relations,
    RemoteProcess,
    SpawnOptions,
    SpawnTarget,
)
from perdure.process.relations import add_monitor, link, register, resolve_known
from perdure.process.report import report_abandoned, report_crash
from perdure.process.waiter import DEAD, ENDING, PARKED

SPAWN_EVENT = ("perdure", "process", "spawn")
EXIT_EVENT = ("perdure", "process", "exit")

# Spawns without options are most of them: they are recognised by identity.
PLAIN = SpawnOptions()
NO_VALUES: Mapping[str, Any] = {}

_NO_CONTEXT = Context()


# The start


def spawn_process(
    runtime: ProcessRuntime,
    parent: Process | None,
    function: Function | str,
    args: tuple[Any, ...],
    options: SpawnOptions,
) -> Process:
    """Start a process; if anything is wrong, nothing is created."""
    if isinstance(function, str):
        function, args, options = _by_id(runtime, function, args, options)
    values = parent.values if parent is not None else NO_VALUES
    if options is not PLAIN:
        if options.host is not None and (host := runtime.host_of(options.host)) is not None:
            return host.spawn(runtime, parent, function, args, options)
        check_name_is_free(runtime, options.name)
        if options.values:
            values = {**values, **options.values}
    coro = make_coroutine(function, args)
    child = runtime.process_class(runtime, function, args, coro, parent, values)
    runtime.processes[child.pid] = child
    if options is not PLAIN:
        apply_options(runtime, parent, child, options)
    scheduler = child.scheduler  # `enqueue` without the call
    scheduler.ready.append(child)
    if not scheduler.turn_scheduled:
        scheduler.schedule_turn()
    if telemetry.has_handlers(SPAWN_EVENT):
        emit_spawn_event(child)
    return child


def check_name_is_free(runtime: ProcessRuntime, name: str | None) -> None:
    """Raise `NameTaken` if a new process could not get this name."""
    if name is not None:
        check_name(name)
        if holder := runtime.names.get(name):
            raise NameTaken(name, holder.pid)


def apply_options(
    runtime: ProcessRuntime, parent: Process | None, child: Process, options: SpawnOptions
) -> None:
    """Give a new process its name, and its relations to its parent."""
    if options.name is not None:
        try:
            register(runtime.names, options.name, child)
        except NameTaken:  # by another loop, after it was checked: undo the start
            runtime.processes.pop(child.pid, None)
            child.pid.target = None
            child.coro.close()
            raise
    if parent is not None and options.link:
        link(parent, child)
    if parent is not None and options.monitor:
        add_monitor(parent, child)


def emit_spawn_event(child: Process) -> None:
    """Emit the telemetry event of a start."""
    metadata = {"pid": child.pid, "parent": child.parent, "function": child.function}
    telemetry.execute(SPAWN_EVENT, {}, metadata)


def _by_id(
    runtime: ProcessRuntime, id: str, args: tuple[Any, ...], options: SpawnOptions
) -> tuple[Function, tuple[Any, ...], SpawnOptions]:
    """Return the function, arguments and options of a spawn by id, with the id's defaults."""
    target = find_spawn_id(runtime.spawn_ids, id)
    if target.host is not None and options.host is None:
        options = options._replace(host=target.host)
    return target.function, args or target.args, options


def find_spawn_id(spawn_ids: Mapping[str, SpawnTarget], id: str) -> SpawnTarget:
    """Return what an id stands for.

    Raises:
        SpawnError: The id is unknown; the message suggests similar ones.
    """
    target = spawn_ids.get(id)
    if target is not None:
        return target
    near = get_close_matches(id, spawn_ids)
    if near:
        raise SpawnError(f"unknown entry {id!r}: did you mean {' or '.join(map(repr, near))}?")
    raise SpawnError(f"unknown entry {id!r}: no entry of that id is loaded")


def make_coroutine(function: Function, args: tuple[Any, ...]) -> Coroutine[Any, Any, Any]:
    """Return the coroutine of a call, which has run none of its code yet.

    Raises:
        SpawnError: It is not a coroutine function, or does not accept these arguments.
    """
    # `is_plain` without the call.
    if type(function) is not FunctionType or not function.__code__.co_flags & CO_COROUTINE:
        check_function(function)
    try:
        coro = function(*args)
    except TypeError as error:
        raise SpawnError(
            f"cannot start {_name_of(function)} with {safe_text(args)}: {error}"
        ) from error
    if type(coro) is not CoroutineType:
        raise SpawnError(f"{_name_of(function)} returned {coro!r} instead of a coroutine")
    return coro  # pyright: ignore[reportUnknownVariableType]


def is_plain(function: object) -> bool:
    """Whether this is an undecorated `async def` function."""
    return type(function) is FunctionType and bool(function.__code__.co_flags & CO_COROUTINE)


def check_function(function: object, verb: str = "spawn") -> None:
    """Raise unless this is an `async def` function; it is not called."""
    method = getattr(function, "__call__", None)  # noqa: B004 - an instance with an async call
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method):
        return
    if isinstance(function, CoroutineType):
        function.close()
        raise SpawnError(
            f"{verb} takes the function and its arguments, not a coroutine: write "
            f"{verb}({function.__name__}, …) instead of {verb}({function.__name__}(…))"
        )
    raise SpawnError(f"a process runs an `async def` function: {_what_to_do(function)}")


def _what_to_do(function: object) -> str:
    name = _name_of(function)
    if not callable(function):
        return f"{name} is not a function"
    if inspect.isasyncgenfunction(function):
        return f"{name} is an async generator, for its code has a `yield`: send messages instead"
    return (
        f"{name} is not async: declare it `async def`; or, if it blocks, spawn an `async def` "
        f"function that calls `await process.offload({name}, …)`, or that runs on a host"
    )


def _name_of(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


# Asking it to end


def cancel(
    target: Process, sender: Pid | None, timeout: float | None, reason: object = None
) -> None:
    """Send CANCEL, and kill the process at the deadline; the earliest of several counts."""
    when = None if timeout is None else target.loop.time() + timeout
    target.notify(Cancel(sender, when, reason))
    if timeout is not None:
        _kill_after(target, timeout)


def _kill_after(target: Process, timeout: float) -> None:
    when, relations = target.loop.time() + timeout, target.get_relations()
    if timeout == 0:
        kill(target, "cancel timeout")
    elif relations.cancel_timer is None or when < relations.cancel_timer.when():
        if relations.cancel_timer is not None:
            relations.cancel_timer.cancel()
        relations.cancel_timer = target.loop.call_at(when, kill, target, "cancel timeout")


def stop_gracefully(
    target: Process, timeout: float, sender: Pid | None = None, why: str | None = None
) -> None:
    """Send CANCEL to a process that reads its events, and a shutdown signal to any other.

    A CANCEL that is never read would only delay the end until the deadline.
    """
    if isinstance(target, RemoteProcess):
        target.stop_gracefully(timeout, sender, why)
        _kill_after(target, timeout)  # its own loop may be blocked, and never see the deadline
        return
    reason = target.runtime.stop_reason
    cancel(target, sender, timeout, why or reason.detail)
    if not target.reads_events():
        target.force_exit(ExitResult(None, Shutdown(why) if why else reason))


# Killing it


def kill(process: Process, detail: object = None) -> None:
    """End a process by force: nothing that its code does changes the outcome any more."""
    if isinstance(process, RemoteProcess):
        process.kill(detail)
    elif process.state != DEAD:
        process.outcome = ExitResult(None, Killed(detail))  # also over an exit signal
        _interrupt_again(process)
        _start_kill_timer(process)


def _interrupt_again(process: Process) -> None:
    process.interrupt()
    if process.state == ENDING:
        _cancel_tasks(process.get_relations())


def _start_kill_timer(process: Process) -> None:
    """Make sure that a process which must end does: repeat the kill, and finally abandon it."""
    if process.get_relations().kill_timer is None:
        _set_kill_timer(process, process.loop.time() + process.runtime.settings.abandon_after)


def _set_kill_timer(process: Process, limit: float) -> None:
    pause = process.runtime.settings.kill_every
    timer = process.loop.call_later(pause, _on_kill_timer, process, limit)
    process.get_relations().kill_timer = timer


def _on_kill_timer(process: Process, limit: float) -> None:
    if process.loop.time() >= limit:
        stuck = Killed("tasks of its old code did not end")
        _abandon(process, process.outcome or ExitResult(None, stuck))
        return
    if process.outcome is not None and isinstance(process.outcome.error, Killed):
        _interrupt_again(process)  # any other end may take its time to clean up
    _set_kill_timer(process, limit)


def _abandon(process: Process, outcome: ExitResult) -> None:
    with suppress(Exception):  # a broken log handler must not stop the death
        report_abandoned(process)
    if process.state == PARKED:
        _leave_channels(process.coro)
    process.state = ENDING  # it is never stepped again
    keep_forever(process.coro)
    complete_exit(process, outcome)


def _leave_channels(waiting: object) -> None:
    """Remove an abandoned process from the kernel's queues, and touch nothing else of it.

    Otherwise it would keep its timer, and its place in a channel's queue before living processes.
    """
    innermost = waiting
    while waiting is not None:
        innermost = waiting
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    if isinstance(innermost, GeneratorType):
        innermost.close()


def keep_forever(code: object) -> None:
    """Leak a coroutine or a task, so that not even its deletion runs its code again.

    Python throws GeneratorExit into a coroutine that it deletes, also at the end of the program.
    Code that catches everything and continues would then spin for ever.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))


# Its asyncio tasks


def own_task(process: Process, task: "asyncio.Task[Any]") -> None:
    """Make an asyncio task part of a process, so that it ends with the process."""
    process.get_relations().add_task(task)
    task.add_done_callback(partial(_task_done, process))


def _task_done(process: Process, task: "asyncio.Task[Any]") -> None:
    if process.state >= ENDING and not task.cancelled():
        task.exception()  # nobody is left to ask for it, so asyncio must not complain
    relations = process.relations
    if relations is None:  # dead: it was abandoned
        return
    relations.remove_task(task)
    if process.state == ENDING and not relations.tasks:  # the exit waited for this last one
        _exit_or_upgrade(process)


def _cancel_tasks(relations: Relations) -> None:
    for task in tuple(relations.tasks or ()):
        task.cancel()


# The end


def finish(process: Process, value: object, error: BaseException | None) -> None:
    """Begin the end: the coroutine has returned, or raised."""
    process.state = ENDING
    if process.outcome is None:
        if error is None:
            process.outcome = ExitResult(value)
        else:
            _decide_outcome(process, error)
    relations = process.relations
    if relations is not None and relations.tasks:
        _cancel_tasks(relations)
        _start_kill_timer(process)
    else:
        _exit_or_upgrade(process)


def _decide_outcome(process: Process, error: BaseException) -> None:
    """Decide how it ended, since no signal had decided before its code raised."""
    if isinstance(error, Upgrade):
        process.get_relations().upgrade = error
        return
    cancelled = isinstance(error, asyncio.CancelledError)
    process.outcome = ExitResult(None, Killed("its task was cancelled") if cancelled else error)
    if error.__traceback__ is not None:
        # Cut our own frame off: people look for their code, and it would keep the process alive.
        error.__traceback__ = error.__traceback__.tb_next
    if isinstance(error, KeyboardInterrupt):
        process.runtime.interrupted(signal.SIGINT)


def _exit_or_upgrade(process: Process) -> None:
    if process.outcome is not None:
        complete_exit(process, process.outcome)
    else:
        _upgrade(process, process.get_relations())


def _upgrade(process: Process, relations: Relations) -> None:
    """Continue the same process with new code, or end it if that fails."""
    upgrade, relations.upgrade = relations.upgrade, None
    assert upgrade is not None
    if relations.kill_timer is not None:
        relations.kill_timer.cancel()
        relations.kill_timer = None
    try:
        process.set_code(upgrade.function(*upgrade.args))
    except Exception as error:  # noqa: BLE001 - a mistake in the new code ends the process
        error.add_note("raised while the process was being upgraded")
        process.outcome = ExitResult(None, error)
        complete_exit(process, process.outcome)
        return
    process.function, process.args = upgrade.function, upgrade.args
    process.must_cancel = False
    process.state = PARKED
    process.wake()


def complete_exit(process: Process, outcome: ExitResult) -> None:
    """Do steps 3 to 7 of a death."""
    runtime, relations, error = process.runtime, process.relations, outcome.error
    if error is not None and not isinstance(error, UNREPORTED) and process is not runtime.root:
        with suppress(Exception):  # a broken log handler must not stop the death
            process.context.run(report_crash, process, error)
    if relations is not None:
        release(process, relations)
    process.state = DEAD
    process.pid.target = None
    del runtime.processes[process.pid]
    if process.collector is not None:  # before links: who waits for it takes its failure there
        process.collector.collect(process, outcome)
    if relations is not None:
        notify_related(process, relations, outcome)
        process.relations = None
    process.close_mailbox()
    process.context = _NO_CONTEXT  # it refers to the process: a dead one must not keep itself
    if runtime.exit_waiters:
        runtime.wake_exit_waiters()
    if telemetry.has_handlers(EXIT_EVENT):
        telemetry.execute(
            EXIT_EVENT,
            {"lifetime": runtime.now() - process.spawned_at},
            {"pid": process.pid, "function": process.function, "result": outcome},
        )


def release(process: Process, relations: Relations) -> None:
    """Release timers, names, and what higher layers attached to a process that dies."""
    if relations.cancel_timer is not None:
        relations.cancel_timer.cancel()
    if relations.kill_timer is not None:
        relations.kill_timer.cancel()
    if relations.names is not None:
        for name in tuple(relations.names):
            process.runtime.names.release(name, process)
    if relations.cleanups is not None:
        for cleanup in relations.cleanups:
            cleanup()


def notify_related(process: Process, relations: Relations, outcome: ExitResult) -> None:
    """Notify the processes related to a dead one, in the order of steps 5 to 7."""
    supervisor = None
    if relations.supervision is not None:
        supervisor = relations.supervision.supervisor
        relations.supervision.ended(process, outcome)
    if relations.monitors is not None:
        _remove_monitors(process, relations.monitors)
    if relations.monitored_by is not None or relations.open_requests is not None:
        _notify_monitors(process, relations, outcome)
    if relations.links is not None:
        _notify_links(process, relations.links, outcome.error, supervisor)
    if relations.callbacks is not None:
        for callback, context in relations.callbacks:
            process.loop.call_soon(callback, process, context=context)


def _remove_monitors(process: Process, monitors: Mapping[MonitorRef, Pid]) -> None:
    for ref, pid in monitors.items():
        target = resolve_known(pid, process.runtime)
        if target is not None and target.relations is not None:
            target.relations.remove_monitored_by(ref)


def _notify_monitors(process: Process, relations: Relations, outcome: ExitResult) -> None:
    """Notify its monitors, and fail the requests that wait for its answer."""
    for ref, watcher in (relations.monitored_by or {}).items():
        watcher.get_relations().remove_monitor(ref)
        watcher.notify(Exit(process.pid, outcome, ref))
    for request in tuple(relations.open_requests or ()):
        request.fail(outcome.error)


def _notify_links(
    process: Process,
    peers: Mapping[Process, None],
    reason: BaseException | None,
    supervisor: Process | None,
) -> None:
    for peer in peers:
        del peer.relations.links[process]  # pyright: ignore[reportOptionalMemberAccess, reportOptionalSubscript]
        if reason is None or peer is supervisor:  # which has been told
            continue
        if peer.trap_links:
            peer.notify(LinkDown(process.pid, reason))
        elif peer.outcome is None:
            peer.force_exit(ExitResult(None, linked_reason(process.pid, reason)))
