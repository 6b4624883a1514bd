"""The reaper frees the jobs of workers that are dead, or that do not renew their leases.

A lease that has run out proves that its worker may not continue; a free lock (`worker_lock`) proves
that it is dead. But after an outage of the store an old lease proves nothing: nobody could renew,
and all leases look old. So for a while after each failure no lease counts as expired, and the
living workers renew theirs first.
"""

import logging
import socket
from typing import Final

from perdure.base.codec import decode
from perdure.base.errors import JobError
from perdure.base.machine import boot_id
from perdure.engine.worker.node import WorkerInfo, WorkerNode
from perdure.engine.worker.periodic import every
from perdure.engine.worker.worker_lock import is_dead, remove_lock

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

    async def look(self) -> None:
        """Free what can be freed now."""
        node = self._node
        workers = await node.store.workers()
        dead = [owner for owner in self._neighbours(workers) if is_dead(owner)]
        in_grace = node.loop.time() < self._grace_until
        freed = await node.store.reap(0 if in_grace else node.settings.reap_limit, dead)
        for owner in dead:
            await node.store.heartbeat(owner, None)
            remove_lock(owner)
        silence = _SILENT_LEASES * node.settings.lease
        if not in_grace and any(age > silence for _, age, _ in workers):
            await node.store.forget_workers(silence)
        if freed:
            what = "1 job" if len(freed) == 1 else f"{len(freed)} jobs"
            _log.warning("took %s from workers that are gone: %s", what, ", ".join(freed[:10]))
            node.poke()

    def _neighbours(self, workers: list[tuple[str, float, bytes]]) -> list[str]:
        """Return the other workers on this machine, of the same boot."""
        here, boot = socket.gethostname(), boot_id()
        found: list[str] = []
        for owner, _, data in workers:
            try:
                info = decode(data, WorkerInfo)
            except JobError:
                continue  # another version of perdure: only its leases count
            if owner != self._node.owner and (info.host, info.boot) == (here, boot):
                found.append(owner)
        return found

    def failed(self) -> None:
        """Record that the store did not answer."""
        self._grace_until = self._node.loop.time() + 2 * self._node.settings.heartbeat
