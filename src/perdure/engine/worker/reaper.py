"""The reaper frees the jobs of workers that are dead, or that do not renew their leases.

A lease that has run out proves that its worker may not continue; a free lock (`worker_lock`) proves
that it is dead. But after an outage of the store an old lease proves nothing: nobody could renew,
and all leases look old. So it is when somebody has set PostgreSQL's clock forward. So for a while
after each failure, and after each jump of that clock, no lease counts as expired, and the living
workers renew theirs first.

Neighbours on the same machine are watched through their locks, which costs the store nothing. The
leases of all other workers are read by each worker in turn: the larger the fleet, the less often
each one looks, so that the fleet as a whole looks every `expiry_every` seconds, whatever its size.
A look is a SELECT; only if it finds something does the worker write. A machine that died is found
when its leases have run out and somebody looks: after `lease` and on average `expiry_every`, at
most 1.5 times `expiry_every` for each living worker.
"""

import logging
import random
from collections.abc import Sequence
from typing import Final

from perdure.base.codec import encode
from perdure.engine import events
from perdure.engine.people.attention import for_channels
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import every
from perdure.jobs.fleet import fleet_worker
from perdure.jobs.outbox import Notice, NoticeKind

_log = logging.getLogger("perdure.worker")

# A worker without a heartbeat for this many lease durations is gone, wherever it ran.
# If it is alive after all, its next heartbeat registers it again.
_SILENT_LEASES: Final = 3


async def reap(node: WorkerNode) -> None:
    """Free jobs without a living owner, periodically; runs for ever."""
    reaper = Reaper(node)
    await every(
        node.settings.reap_every,
        reaper.look,
        what="looking for dead workers",
        on_failure=reaper.failed,
    )


class Reaper:
    """Frees jobs without a living owner."""

    def __init__(self, node: WorkerNode) -> None:
        self._node = node
        self._grace_until = 0.0  # an old lease proves nothing until then
        self._looked_at: float | None = None
        self._ahead: float | None = (
            None  # how far the clock of the leases is ahead of ours, at most
        )
        # The looks of workers that started together drift apart.
        self._random = random.Random(node.owner)
        self._jitter = 1.0

    async def look(self) -> None:
        """Free what can be freed now."""
        node = self._node
        dead = [] if node.lock is None else node.lock.dead_neighbours()
        freed = await node.store.reap(0, dead) if dead else []
        await self._alert(dead, "its process has died")
        for owner in dead:
            await node.store.heartbeat(owner, None)
            assert node.lock is not None
            node.lock.forget(owner)
        if self._is_my_turn():
            freed += await self.free_expired()
        if freed or dead:
            events.leases_taken(node, len(freed), len(dead))
        if freed:
            what = "1 job" if len(freed) == 1 else f"{len(freed)} jobs"
            _log.warning("took %s from workers that are gone: %s", what, ", ".join(freed[:10]))
            node.poke()

    def _is_my_turn(self) -> bool:
        """Whether this worker looks for expired leases now."""
        node, now = self._node, self._node.loop.time()
        if now < self._grace_until:
            return False
        interval = node.settings.expiry_every * max(1, node.fleet_size) * self._jitter
        if self._looked_at is not None and now < self._looked_at + interval:
            return False
        self._looked_at, self._jitter = now, self._random.uniform(0.5, 1.5)
        return True

    async def free_expired(self) -> list[str]:
        """Free jobs whose leases have run out, and forget workers that are gone."""
        node = self._node
        silence, since = _SILENT_LEASES * node.settings.lease, node.lease_time()
        found = await node.store.expired(silence)
        if self._has_jumped(found.clock - node.lease_time(), found.clock - since):
            _log.warning("the clock of the store was set forward: leases are judged a little later")
            self.failed()
            return []
        if found.worker:
            gone = [each.owner for each in await node.store.workers() if each.silent_for > silence]
            await self._alert(gone, f"it sent no heartbeat for {silence:g} seconds")
            await node.store.forget_workers(silence)
        # By the time of the look: the clock may jump before the answer is here.
        limit = node.settings.reap_limit
        return await node.store.reap(limit, clock=found.clock) if found.lease else []

    def _has_jumped(self, least: float, most: float) -> bool:
        """Whether the clock of the leases has gained on ours since an earlier look.

        Then leases look older than they are. Half of the time by which workers stop before the end
        of a lease is tolerated; the other half is left for how late they notice it.

        Args:
            least: By how many seconds it is ahead of ours at least, in this look …
            most: … and at most: the answer took a while.
        """
        known, tolerance = self._ahead, self._node.settings.stop_before_expiry / 2
        jumped = known is not None and least - known > tolerance
        self._ahead = most if known is None or jumped else min(known, most)
        return jumped

    async def _alert(self, dead: Sequence[str], why: str) -> None:
        """Tell the channels for alerts that workers are gone, once however many workers see it.

        Before they are forgotten: a worker that dies in between leaves it to the next one.
        """
        node, channels = self._node, self._node.policy.alerts
        if not dead or not channels:
            return
        rows = {each.owner: each for each in await node.store.workers()}
        told: list[Notice] = []
        for owner in dead:
            known = fleet_worker(rows[owner], None) if owner in rows else None
            where = f"worker {owner}" if known is None else f"process {known.pid} on {known.host}"
            alert = Notice(
                id="dead",
                tenant="",
                kind=NoticeKind.WORKER_DEAD,
                job_id=f"worker {owner}",
                channel="",
                data=encode({"text": f"{where}: {why}; other workers continue its jobs"}),
            )
            told += for_channels(channels, alert, alerts=channels)
        await node.store.alert_workers(told)
        node.notices_due.set()

    def failed(self) -> None:
        """Judge no lease for a while: nobody could renew, or the clock was set."""
        self._grace_until = self._node.loop.time() + 2 * self._node.settings.heartbeat
