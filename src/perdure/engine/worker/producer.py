"""The producer claims jobs while this worker has room, and otherwise waits for a reason to look.

Reasons to look again, from the fastest to the most reliable:

* `node.wanted` is set: something was submitted in this process, a run ended, or the store saw a
  write of another process. These are hints: they may be lost, or be false alarms.
* The next job falls due: its time is read from the store, so no hint is needed for it.
* The poll interval is over. This is what makes the rest safe: even if a hint is lost, the producer
  looks eventually. A worker would be correct with the poll alone, only slower.

A round first reads the news of the jobs that run here (cancel, pause, a message): a hint does not
say whether a job has become due, or a command was given to a job that runs here. Then it claims,
several jobs at a time: a claim is a transaction, and one for each job would be slow. So it does not
claim for every single slot that becomes free, only when a quarter of them are free, or when nothing
is running.
"""

import contextlib
from functools import partial

from perdure.base.errors import StoreError
from perdure.engine import events
from perdure.engine.run.executor import execute
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import every
from perdure.otp.task_supervisor import TaskSupervisor

# Jobs are claimed when at least one slot in this many is free.
_BATCHES = 4


async def produce(node: WorkerNode, jobs: str) -> None:
    """Claim and start jobs; runs for ever. `jobs` is the supervisor of their processes."""
    unwatch = node.store.watch(node.wanted.set)
    try:
        # Without an interval: each round returns how long to wait for a hint.
        await every(0.0, partial(_look, node, jobs), what="looking for work", wake=node.wanted)
    finally:
        unwatch()


async def _look(node: WorkerNode, jobs: str) -> float:
    node.looking = True
    try:
        if node.runs:
            asked_for = tuple(node.runs.values())
            node.apply_news(await node.store.news(node.owner), asked_for)
        if _has_room(node):
            await _claim_all(node, jobs)
    finally:
        node.looking = False
    return await _patience(node)


def _has_room(node: WorkerNode) -> bool:
    enough = max(1, node.settings.concurrency // _BATCHES)
    return node.free >= enough or (node.free > 0 and not node.runs)


async def _claim_all(node: WorkerNode, jobs: str) -> None:
    """Claim while there is work and room; with a Redis hint, in turn with other workers."""
    if node.hint is None:
        while _has_room(node) and await _claim(node, jobs):
            pass
        return
    async with node.hint.turn() as turn:
        while _has_room(node) and await _claim(node, jobs):
            await turn.renew()


async def _claim(node: WorkerNode, jobs: str) -> bool:
    """Claim as many jobs as there is room for, and start them; return False if there were none."""
    # The lease is counted from before the claim: the answer may take a while to arrive.
    settings, since = node.settings, node.loop.time()
    node.claiming = True  # a worker that stops waits for a claim that is under way
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


async def _patience(node: WorkerNode) -> float:
    """Return how many seconds to wait for a hint: until the next job is due, or the poll."""
    patience = node.settings.poll
    if node.free:
        with contextlib.suppress(StoreError):  # the next round will show it
            due = await node.store.next_due(list(node.queues))
            if due is not None:
                patience = min(patience, max(0.0, due - await node.store.now()))
    return patience
