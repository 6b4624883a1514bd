"""A worker: a supervision tree that claims jobs, runs them, and keeps its claims.

worker
 ├── jobs       a process for each running job, none restarted: its lease brings it back
 ├── keeper     renews all leases at once
 ├── reaper     frees the jobs of dead workers
 ├── lookout    tells people of jobs that do not get on
 ├── calendar   submits what is scheduled
 ├── pruner     deletes what is old
 ├── clerk      reminds of approvals, and lets them expire
 ├── courier    tells people what they must be told, if the app has channels …
 ├── deliveries … a process for each message that is under way
 ├── step_host  OS processes for the steps that want one
 └── producer   claims jobs while there is room
"""

import asyncio
import contextlib
import gc
import logging
import signal
import threading
from collections.abc import AsyncGenerator, Generator
from functools import partial

from perdure.base.errors import StoreError
from perdure.base.settings import Settings
from perdure.engine import events
from perdure.engine.journal.verdict import Lost
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.process_step import keep_host
from perdure.engine.worker.lease_renewer import WorkerLock, keep, sign_on
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import (
    deliver_notices,
    follow_calendar,
    look_out,
    repeat,
    watch_clock,
)
from perdure.engine.worker.producer import produce
from perdure.engine.worker.reaper import reap
from perdure.otp.supervision.spec import ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.process.api import events as process_events
from perdure.process.event import Cancel
from perdure.process.runtime import AdoptedProcess

# SIGTERM and Ctrl-C for a worker: the first drains, the second cancels its steps, the third kills.
#
# The runtime by itself kills everything at the second one, and would leave the jobs to their
# leases.

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def obeyed_signals(node: WorkerNode) -> Generator[None, None, None]:
    """Handle the signals inside the block, where they would otherwise be the runtime's."""
    root = node.runtime.root
    theirs = root is None or isinstance(root, AdoptedProcess)  # the loop is somebody else's
    if theirs or threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in _SIGNALS:
        with contextlib.suppress(NotImplementedError):  # not every loop can
            node.loop.add_signal_handler(number, partial(_obey, node, number))
    try:
        yield
    finally:
        for number in _SIGNALS:
            with contextlib.suppress(NotImplementedError):
                node.loop.add_signal_handler(number, node.runtime.on_signal, number)


def _obey(node: WorkerNode, number: signal.Signals) -> None:
    if not node.runtime.hears(number):
        return
    if node.runtime.received and not node.hurried.is_set():
        node.hurry()
    else:
        node.runtime.interrupted(number)


_log = logging.getLogger("perdure.worker")

# A worker whose parts keep failing is better started anew from outside.
_RESTARTS, _WITHIN = 20, 60

# What a worker gets to come to its end after it was told to, on top of its own grace.
_STOP_MARGIN = 10.0

# How long a worker waits for a store that does not take its good-bye.
_SIGN_OFF = 5.0

# How often to look for ended jobs that are old enough to go, and how many at a time.
_PRUNE_EVERY, _PRUNE_AT_ONCE = 60.0, 500


@contextlib.asynccontextmanager
async def working(node: WorkerNode) -> AsyncGenerator[WorkerNode, None]:
    """Run a worker inside the block; at its end the worker drains."""
    incarnation = WorkerLock(node.owner)
    jobs = f"perdure.jobs.{node.owner}"
    children = [
        TaskSupervisor.child(name=jobs),
        child(keep, node, id="keeper"),
        child(sign_on, node, id="sign_on"),
        child(reap, node, id="reaper"),
        child(look_out, node, id="lookout"),
        child(follow_calendar, node, id="calendar"),
        child(prune, node, id="pruner"),
        child(keep_host, node, id="step_host"),
        child(watch_clock, node, id="clerk"),
        *(_telling(node) if node.policy.channels else []),
        child(produce, node, jobs, id="producer"),
    ]
    try:
        await node.store.beat(node.owner, node.info())
        node.fingerprint_key = await node.store.fingerprint_key()
        try:
            async with Supervisor(children, max_restarts=_RESTARTS, max_seconds=_WITHIN):
                with obeyed_signals(node):
                    events.worker(events.WORKER_UP, node)
                    try:
                        yield node
                    finally:
                        await drain(node)
        finally:
            await sign_off(node)  # also if the block raised: nobody else knows
    finally:
        if node.hint is not None:
            await node.hint.close()
        node.close()
        events.worker(events.WORKER_DOWN, node)
        # What was not let go in order is free when this process is dead, and not before.
        incarnation.end(in_order=not node.claimed)


def _telling(node: WorkerNode) -> list[ChildSpec]:
    deliveries = f"perdure.deliveries.{node.owner}"
    return [
        TaskSupervisor.child(name=deliveries),
        child(deliver_notices, node, deliveries, id="courier"),
    ]


async def drain(node: WorkerNode) -> None:
    """Let every job reach a safe point and go; after the grace, stop those that do not."""
    node.drain()
    events.worker(events.WORKER_DRAIN, node)
    await _empty(node, node.settings.drain_grace, node.hurried)
    if node.claimed:
        _log.warning("%d jobs reach no safe point: they are stopped", len(node.claimed))
        for run in tuple(node.runs.values()):
            for operation in tuple(run.working):
                operation.interrupt(hard=True)
        await _empty(node, 2 * node.settings.cancel_grace + 1)
    for run in tuple(node.runs.values()):
        run.stop(Lost())


async def _empty(node: WorkerNode, patience: float, hurried: asyncio.Event | None = None) -> None:
    """Wait until no job is here, or nobody wants to wait any longer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while node.claimed or node.claiming:
                if hurried is not None and hurried.is_set():
                    return
                node.changed.clear()
                await node.changed.wait()


async def sign_off(node: WorkerNode) -> None:
    """Say that this worker has gone; jobs that were claimed at the last moment go to others."""
    try:
        async with asyncio.timeout(_SIGN_OFF):
            if not node.claimed:
                await node.store.reap(0, [node.owner])
            await node.store.beat(node.owner, None)
    except StoreError as error:
        _log.warning("signing off: %s", error)
    except TimeoutError:
        _log.warning("signing off: the store does not answer; others will see that we are gone")


async def prune(node: WorkerNode) -> None:
    """Delete ended jobs that are older than they are kept; for ever."""
    await repeat("deleting old jobs", partial(_prune, node), _PRUNE_EVERY, node.loop.time)


async def _prune(node: WorkerNode) -> None:
    if node.settings.keep is not None:
        limit = await node.store.now() - node.settings.keep
        while await node.store.prune(limit, _PRUNE_AT_ONCE):
            pass


async def until_told_to_stop() -> None:
    """Wait for CANCEL: what a signal to the process comes to."""
    while not isinstance(await process_events().receive(), Cancel):
        pass


def runtime_settings(bounds: WorkerSettings) -> Settings:
    """Give a worker's process the time that its jobs may take to reach a safe point."""
    return Settings(stop_timeout=bounds.drain_grace + 2 * bounds.cancel_grace + _STOP_MARGIN)


def spare_collections() -> None:
    """Let garbage collections be few and short: they took a fifth of a busy worker's time.

    Only where the whole process is a worker: what it has imported stays, and nearly all
    that it makes goes by itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 4, 10)  # ended jobs are rings of objects: few, but not for long
