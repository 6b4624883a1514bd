"""The reaper: frees the jobs of workers that are dead or do not renew their leases."""

import logging
import socket
from typing import Final

from perdure.base.codec import decode
from perdure.base.errors import JobError
from perdure.base.machine import boot_id
from perdure.engine.worker.lease_renewer import forget, is_dead
from perdure.engine.worker.node import WorkerInfo, WorkerNode
from perdure.engine.worker.periodic import repeat

_log = logging.getLogger("perdure.worker")

# A worker without a beat for so many leases is gone, wherever it ran.
# If it lives after all, its next beat registers it again.
_SILENT_LEASES: Final = 3


class Reaper:
    """Looks for jobs without a living owner."""

    def __init__(self, node: WorkerNode) -> None:
        self._node = node
        # After an outage of the store nobody could renew: so long an old lease proves nothing.
        self._grace_until = 0.0

    async def look(self) -> None:
        """Free what can be freed now."""
        node = self._node
        workers = await node.store.workers()
        dead = [owner for owner in self._neighbours(workers) if is_dead(owner)]
        in_grace = node.loop.time() < self._grace_until
        freed = await node.store.reap(0 if in_grace else node.settings.reap_limit, dead)
        for owner in dead:
            await node.store.beat(owner, None)
            forget(owner)
        silence = _SILENT_LEASES * node.settings.lease
        if not in_grace and any(age > silence for _, age, _ in workers):
            await node.store.forget_workers(silence)
        if freed:
            what = "1 job" if len(freed) == 1 else f"{len(freed)} jobs"
            _log.warning("took %s from workers that are gone: %s", what, ", ".join(freed[:10]))
            node.poke()

    def _neighbours(self, workers: list[tuple[str, float, bytes]]) -> list[str]:
        """List the other workers of this machine and boot."""
        here, boot = socket.gethostname(), boot_id()
        found: list[str] = []
        for owner, _, data in workers:
            try:
                info = decode(data, WorkerInfo)
            except JobError:
                continue  # of another version: its leases tell
            if owner != self._node.owner and (info.host, info.boot) == (here, boot):
                found.append(owner)
        return found

    def failed(self) -> None:
        """Take note that the store did not answer."""
        self._grace_until = self._node.loop.time() + 2 * self._node.settings.heartbeat


async def reap(node: WorkerNode) -> None:
    """Look again and again, for ever."""
    reaper = Reaper(node)
    every = node.settings.reap_every
    await repeat("looking for dead workers", reaper.look, every, node.loop.time, reaper.failed)
