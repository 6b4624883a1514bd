"""A worker: a supervision tree that claims jobs, runs them, and renews its leases.

worker
 ├── jobs             a process for each running job; never restarted: its lease runs out instead
 ├── lease_renewer    renews all leases at once
 ├── heartbeat        tells the store that this worker is alive
 ├── reaper           frees the jobs of dead workers
 ├── stuck_watch      alerts people to jobs without progress
 ├── loop_watch       names the step that blocks the event loop
 ├── agenda           wakes scheduler, approval_timers, outbox_sender and commands
 ├── commands         answers what operators ask of this worker
 ├── scheduler        submits the jobs of schedules
 ├── pruner           deletes old jobs
 ├── step_host        OS processes for the steps that need one
 ├── approval_timers  reminds people of approvals, and lets approvals expire
 ├── sends            a process for each message that is being sent, if the app has channels …
 ├── outbox_sender    … and the process that starts them
 └── producer         claims jobs while there is room

They start in this order, so nothing is claimed before everything else is running.

A worker stops in two steps. It *drains*: it claims nothing more, and releases every job at its next
safe point, after which any worker may continue it at once. Steps that reach no safe point within
the grace period are cancelled. Only then does the worker deregister. Its lock is released only if
no job is left behind: a job whose code may still run must not be taken over before this process is
dead.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from functools import partial

from perdure.base.errors import StoreError
from perdure.base.settings import Settings
from perdure.engine import events
from perdure.engine.journal.verdict import RunLost
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.process_step import keep_host
from perdure.engine.worker.agenda import keep_agenda
from perdure.engine.worker.commands import answer_commands
from perdure.engine.worker.lease_renewer import renew_leases, send_heartbeats
from perdure.engine.worker.loop_watch import watch_loop
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import (
    prune,
    run_approval_timers,
    send_outbox,
    watch_for_stuck_jobs,
)
from perdure.engine.worker.producer import produce
from perdure.engine.worker.reaper import reap
from perdure.engine.worker.scheduler import run_schedules
from perdure.engine.worker.worker_lock import WorkerLock
from perdure.otp.supervision.spec import ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.process.api import events as process_events
from perdure.process.event import Cancel
from perdure.process.runtime import AdoptedProcess, LoopRuntime

_log = logging.getLogger("perdure.worker")

# A worker whose parts keep failing is better restarted from outside.
_RESTARTS, _WITHIN = 20, 60

# The time to stop that a worker's process gets on top of the worker's own grace period.
_STOP_MARGIN = 10.0

# How long a stopping worker waits for a store that does not answer.
_DEREGISTER_TIMEOUT = 5.0


@contextlib.asynccontextmanager
async def working(node: WorkerNode) -> AsyncGenerator[WorkerNode, None]:
    """Run a worker inside the block; at its end the worker drains."""
    keys = await node.store.check_keys()  # without a key it would fail what it claims
    node.key = "" if keys is None else keys.writes
    node.fingerprint_key = await node.store.fingerprint_key()
    node.lock = lock = WorkerLock(node.fingerprint_key, node.owner)
    try:
        await node.register()
        try:
            async with Supervisor(_children(node), max_restarts=_RESTARTS, max_seconds=_WITHIN):
                with _signals_handled(node):
                    events.worker(events.WORKER_UP, node)
                    try:
                        yield node
                    finally:
                        await _drain(node)
        finally:
            await _deregister(node)  # even if the block raised: nothing else would
    finally:
        if node.hint is not None:
            await node.hint.close()
        node.close()
        events.worker(events.WORKER_DOWN, node)
        lock.release(jobs_left=bool(node.claimed))


def _children(node: WorkerNode) -> list[ChildSpec]:
    jobs = f"perdure.jobs.{node.owner}"
    return [
        TaskSupervisor.child(name=jobs),
        child(renew_leases, node, id="lease_renewer"),
        child(send_heartbeats, node, id="heartbeat"),
        child(reap, node, id="reaper"),
        child(watch_for_stuck_jobs, node, id="stuck_watch"),
        child(watch_loop, node, id="loop_watch"),
        child(keep_agenda, node, id="agenda"),
        child(answer_commands, node, id="commands"),
        child(run_schedules, node, id="scheduler"),
        child(prune, node, id="pruner"),
        child(keep_host, node, id="step_host"),
        child(run_approval_timers, node, id="approval_timers"),
        *(_outbox(node) if node.policy.all_channels else []),
        child(produce, node, jobs, id="producer"),
    ]


def _outbox(node: WorkerNode) -> list[ChildSpec]:
    sends = f"perdure.sends.{node.owner}"
    return [TaskSupervisor.child(name=sends), child(send_outbox, node, sends, id="outbox_sender")]


# The end


async def _drain(node: WorkerNode) -> None:
    """Release every job at a safe point; after the grace period, stop those that reach none."""
    node.stopping = True
    node.drain()
    events.worker(events.WORKER_DRAIN, node)
    await _wait_until_idle(node, node.settings.drain_grace, node.hurried)
    if node.claimed:
        _log.warning("jobs that reached no safe point are stopped: %d", len(node.claimed))
        for run in tuple(node.runs.values()):
            for operation in tuple(run.working):
                operation.interrupt(hard=True)
        await _wait_until_idle(node, 2 * node.settings.cancel_grace + 1)
    for run in tuple(node.runs.values()):
        run.stop(RunLost())


async def _wait_until_idle(
    node: WorkerNode, patience: float, hurried: asyncio.Event | None = None
) -> None:
    """Wait until no job is left, the time is over, or `hurry` was called."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while node.claimed or node.claiming:
                if hurried is not None and hurried.is_set():
                    return
                node.changed.clear()
                await node.changed.wait()


async def _deregister(node: WorkerNode) -> None:
    """Deregister this worker, and release jobs that were claimed at the very end."""
    try:
        async with asyncio.timeout(_DEREGISTER_TIMEOUT):
            if not node.claimed:
                await node.store.reap(0, [node.owner])
            await node.store.heartbeat(node.owner, None)
    except StoreError as error:
        _log.warning("deregistering this worker: %s", error)
    except TimeoutError:
        _log.warning("deregistering this worker: the store does not answer; the leases will expire")


# The process that a worker runs in


async def until_told_to_stop() -> None:
    """Wait for CANCEL, which a signal to the process is turned into."""
    while not isinstance(await process_events().receive(), Cancel):
        pass


def runtime_settings(bounds: WorkerSettings) -> Settings:
    """Return runtime settings that leave jobs enough time to reach a safe point."""
    return Settings(stop_timeout=bounds.drain_grace + 2 * bounds.cancel_grace + _STOP_MARGIN)


def tune_interpreter() -> None:
    """Make garbage collections rare and short, and hand the interpreter on sooner.

    Collections took a fifth of a busy worker's time. And the database thread that has committed, or
    the thread of a step, would wait for up to five milliseconds until the loop lets it continue.

    Only for a process that is nothing but a worker: what it has imported stays, and nearly all of
    its other objects are freed without the collector.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(0.001)
    gc.set_threshold(10_000, 4, 10)  # ended jobs are cycles: few, but they must not stay long


# SIGTERM and Ctrl-C: the first drains the worker, the second cancels its steps, the third kills.
#
# The runtime's own handler kills everything at the second signal, and would leave the jobs to their
# leases: no other worker could continue them before those run out.

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def _signals_handled(node: WorkerNode) -> Generator[None, None, None]:
    """Handle the signals inside the block, if the runtime would otherwise handle them."""
    runtime = node.runtime
    # On a loop that the runtime did not create, it has no handlers either.
    is_theirs = runtime.root is None or isinstance(runtime.root, AdoptedProcess)
    is_main_thread = threading.current_thread() is threading.main_thread()
    if is_theirs or not is_main_thread or not isinstance(runtime, LoopRuntime):
        yield
        return
    for number in _SIGNALS:
        with contextlib.suppress(NotImplementedError):  # not every loop supports it
            node.loop.add_signal_handler(number, partial(_handle_signal, node, runtime, number))
    try:
        yield
    finally:
        for number in _SIGNALS:
            with contextlib.suppress(NotImplementedError):
                node.loop.add_signal_handler(number, runtime.on_signal, number)


def _handle_signal(node: WorkerNode, runtime: LoopRuntime, number: signal.Signals) -> None:
    if not runtime.is_new_signal(number):
        return
    if runtime.received and not node.hurried.is_set():
        node.hurry()
    else:
        runtime.interrupted(number)
