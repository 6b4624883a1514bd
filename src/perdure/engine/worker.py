"""A worker: a supervision tree that claims jobs, runs them, and keeps its claims.

worker
 ├── jobs       a process for each running job, none restarted: its lease brings it back
 ├── keeper     renews all leases at once
 ├── reaper     frees the jobs of dead workers
 ├── calendar   submits what is scheduled
 ├── pruner     deletes what is old
 └── producer   claims jobs while there is room
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

from perdure.base.errors import StoreError
from perdure.base.retry import pause
from perdure.engine.calendar import follow_calendar
from perdure.engine.incarnation import Incarnation
from perdure.engine.keeper import keep, sign_on
from perdure.engine.node import Node
from perdure.engine.producer import produce
from perdure.engine.reaper import reap
from perdure.engine.verdict import Lost
from perdure.otp.spec import child
from perdure.otp.supervisor import Supervisor
from perdure.otp.task_supervisor import TaskSupervisor

_log = logging.getLogger("perdure.worker")

# A worker whose parts keep failing is better started anew from outside.
_RESTARTS, _WITHIN = 20, 60

# How often to look for ended jobs that are old enough to go, and how many at a time.
_PRUNE_EVERY, _PRUNE_AT_ONCE = 60.0, 500


@contextlib.asynccontextmanager
async def working(node: Node) -> AsyncGenerator[Node, None]:
    """Run a worker inside the block; at its end the worker drains."""
    incarnation = Incarnation(node.owner)
    jobs = f"perdure.jobs.{node.owner}"
    children = [
        TaskSupervisor.child(name=jobs),
        child(keep, node, id="keeper"),
        child(sign_on, node, id="sign_on"),
        child(reap, node, id="reaper"),
        child(follow_calendar, node, id="calendar"),
        child(prune, node, id="pruner"),
        child(produce, node, jobs, id="producer"),
    ]
    try:
        await node.store.beat(node.owner, node.info())
        async with Supervisor(children, max_restarts=_RESTARTS, max_seconds=_WITHIN):
            try:
                yield node
            finally:
                await drain(node)
        with contextlib.suppress(StoreError):
            await node.store.beat(node.owner, None)
    finally:
        node.close()
        incarnation.end()


async def drain(node: Node) -> None:
    """Let every job reach a safe point and go; after the grace, stop those that do not."""
    node.drain()
    try:
        async with asyncio.timeout(node.settings.drain_grace):
            await _empty(node)
    except TimeoutError:
        _log.warning("%d jobs reach no safe point: they are stopped", len(node.runs))
        for run in tuple(node.runs.values()):
            for operation in tuple(run.working):
                operation.interrupt(hard=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * node.settings.cancel_grace + 1):
                await _empty(node)
    for run in tuple(node.runs.values()):
        run.stop(Lost())


async def _empty(node: Node) -> None:
    while node.claimed:
        node.changed.clear()
        await node.changed.wait()


async def prune(node: Node) -> None:
    """Delete ended jobs that are older than they are kept; for ever."""
    while True:
        if node.settings.keep is not None:
            try:
                limit = await node.store.now() - node.settings.keep
                while await node.store.prune(limit, _PRUNE_AT_ONCE):
                    pass
            except StoreError as error:
                _log.warning("deleting old jobs: %s", error)
        await pause(_PRUNE_EVERY)
