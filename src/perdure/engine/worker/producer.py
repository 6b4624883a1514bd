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

After a hint it claims without asking, since somebody waits for the first step. A poll only reads,
and claims if there is something to claim: an idle worker writes nothing.
"""

import contextlib

from perdure.base.errors import StoreError
from perdure.engine import events
from perdure.engine.run.executor import execute
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import every
from perdure.jobs.model import QueueLimit
from perdure.otp.task_supervisor import TaskSupervisor
from perdure.store.verbs.claim import Outlook

# Jobs are claimed when at least one slot in this many is free.
_BATCHES = 4

# How long to wait for jobs that are ready, and that another worker was claiming just now.
_CONTENDED = 0.02


async def produce(node: WorkerNode, jobs: str) -> None:
    """Claim and start jobs; runs for ever. `jobs` is the supervisor of their processes."""
    producer = _Producer(node, jobs)
    unwatch = node.store.watch(node.wanted.set)
    try:
        # Without an interval: each round returns how long to wait for a hint.
        await every(0.0, producer.look, what="looking for work", wake=node.wanted)
    finally:
        unwatch()


class _Producer:
    """Looks for work, and remembers why it will look again."""

    def __init__(self, node: WorkerNode, jobs: str) -> None:
        self._node = node
        self._jobs = jobs
        self._polls_at: float | None = None  # a look from then on is a poll: nobody gave a hint

    async def look(self) -> float:
        """Do one round; return how many seconds to wait for a hint."""
        node = self._node
        is_poll = self._polls_at is not None and node.loop.time() >= self._polls_at
        node.looking = True
        try:
            if node.knows_more:
                await node.register()
            if node.runs:
                asked_for = tuple(node.runs.values())
                node.apply_news(await node.store.news(node.owner), asked_for)
            outlook: list[Outlook] | None = None
            if _has_room(node):
                outlook = await self._outlook() if is_poll else None
                if outlook is None or any(_is_due(queue) for queue in outlook):
                    await self._claim_all()
                    outlook = None
        finally:
            node.looking = False
        if outlook is None and node.free:
            with contextlib.suppress(StoreError):  # the next round will show it
                outlook = await self._outlook()
        return self._patience(outlook or [])

    async def _outlook(self) -> list[Outlook]:
        return await self._node.store.outlook(list(self._node.queues), self._node.known)

    def _patience(self, outlook: list[Outlook]) -> float:
        """Return how many seconds to wait for a hint: until the next job is due, or the poll."""
        node, poll = self._node, self._node.settings.poll
        waits = [_wait_for(queue, node.queues[queue.queue], poll) for queue in outlook]
        patience = min(waits, default=poll)
        self._polls_at = node.loop.time() + poll if patience >= poll else None
        return min(patience, poll)

    async def _claim_all(self) -> None:
        """Claim while there is work and room; with a Redis hint, in turn with other workers."""
        node = self._node
        if node.hint is None:
            while _has_room(node) and await self._claim():
                pass
            return
        async with node.hint.turn() as turn:
            while _has_room(node) and await self._claim():
                await turn.renew()

    async def _claim(self) -> bool:
        """Claim as many jobs as there is room for, and start them; False if there were none."""
        node, settings = self._node, self._node.settings
        # The lease is counted from before the claim: the answer may take a while to arrive.
        since = node.lease_time()
        node.claiming = True  # a worker that stops waits for a claim that is under way
        try:
            claims = await node.store.claim(
                node.owner, node.queues, node.free, settings.lease, node.known
            )
            events.claimed(node, claims)
            for claim in claims:
                node.claimed.add(claim.job.id)
                TaskSupervisor.start_child(self._jobs, execute, node, claim, since)
        finally:
            node.claiming = False
            node.changed.set()
        return bool(claims)


def _has_room(node: WorkerNode) -> bool:
    enough = max(1, node.settings.concurrency // _BATCHES)
    return node.free >= enough or (node.free > 0 and not node.runs)


def _is_due(queue: Outlook) -> bool:
    return queue.ready or (queue.due_in is not None and queue.due_in <= 0)


def _wait_for(queue: Outlook, limit: QueueLimit, poll: float) -> float:
    """Return how long to wait for a queue from which everything possible was claimed."""
    wait = poll if queue.due_in is None else max(0.0, queue.due_in)
    if not queue.ready:
        return wait
    if limit == QueueLimit():
        return min(wait, _CONTENDED)
    # What is ready waits for the limits: tokens come with time, room when a job ends: a hint.
    return min(wait, poll if limit.rate is None else max(_CONTENDED, limit.per / limit.rate))
