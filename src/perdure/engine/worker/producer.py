"""The producer: claims jobs while there is room, and otherwise waits for a reason to look again."""

import asyncio

from perdure.base.errors import StoreError
from perdure.base.retry import pause
from perdure.engine import events
from perdure.engine.run.executor import execute
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import Outage
from perdure.otp.task_supervisor import TaskSupervisor

# Claims are made for several jobs at once: when this part of the room is free.
_BATCH = 4


async def produce(node: WorkerNode, jobs: str) -> None:
    """Claim and start jobs, for ever. `jobs` is the supervisor of their processes."""
    unwatch = node.store.watch(node.wanted.set)
    outage = Outage("looking for work", node.loop.time)
    try:
        while True:
            node.wanted.clear()
            node.looking = True
            try:
                await _round(node, jobs)
                outage.over()
            except StoreError as error:
                outage.failed(error)
            node.looking = False
            if outage.delay:  # what is due is known, and cannot be had: a hint would change nothing
                await pause(outage.delay)
            else:
                await _reason_to_look(node)
    finally:
        unwatch()


async def _round(node: WorkerNode, jobs: str) -> None:
    """Hear the news and claim what there is room for."""
    if node.runs:
        asked_for = tuple(node.runs.values())
        node.hear(await node.store.news(node.owner), asked_for)
    if _has_room(node):
        await _claim_all(node, jobs)


def _has_room(node: WorkerNode) -> bool:
    enough = max(1, node.settings.concurrency // _BATCH)
    return node.free >= enough or (node.free > 0 and not node.runs)


async def _claim_all(node: WorkerNode, jobs: str) -> None:
    """Claim as long as there is something, and room; in one's turn, if there are turns."""
    if node.hint is None:
        while _has_room(node) and await _claim(node, jobs):
            pass
        return
    async with node.hint.turn() as turn:
        while _has_room(node) and await _claim(node, jobs):
            await turn.renew()


async def _claim(node: WorkerNode, jobs: str) -> bool:
    """Claim what there is room for; tell whether there was anything."""
    settings, since = node.settings, node.loop.time()
    node.claiming = True  # a worker that stops waits for what is claimed at this moment
    try:
        claims = await node.store.claim(node.owner, node.queues, node.free, settings.lease)
        events.claimed(node, claims)
        for claim in claims:
            node.claimed.add(claim.job.id)
            TaskSupervisor.start_child(jobs, execute, node, claim, since)
    finally:
        node.claiming = False
        node.changed.set()
    return bool(claims)


async def _reason_to_look(node: WorkerNode) -> None:
    """Wait for a hint, the time of the next job, or the poll that is the truth."""
    patience = node.settings.poll
    if node.free:
        try:
            due = await node.store.next_due(list(node.queues))
            if due is not None:
                patience = min(patience, max(0.0, due - await node.store.now()))
        except StoreError:
            pass
    try:
        async with asyncio.timeout(patience):
            await node.wanted.wait()
    except TimeoutError:
        return
