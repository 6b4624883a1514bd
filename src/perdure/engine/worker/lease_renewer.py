"""Renews the leases of a worker's jobs, and stops the jobs whose lease may have run out.

A job belongs to a worker for as long as it has the lease. Two things must hold:

* As long as the worker is alive, its leases are renewed, all in one write per heartbeat. A thread
  does that, not the event loop: a step that blocks the loop for a minute must not lose the job to
  another worker, which would run the same code at the same time.
* A dead worker must not renew. The thread would continue even if the loop were blocked for ever, so
  it renews only while the loop shows a pulse. A loop without a pulse for `stuck_after` counts as
  dead, and other workers take its jobs when their leases run out.

If renewals fail, because the store is unreachable, a worker cannot know whether another one owns
its jobs by now. So it stops them some time before their leases run out (`stop_before_expiry`): it
stops first, then others may begin. What it still writes afterwards is refused by the store: every
write is fenced by the epoch of the claim.
"""

import logging
import threading
from functools import partial

from perdure.base.errors import StoreError
from perdure.engine import events
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import Outage, every

_log = logging.getLogger("perdure.worker")

_PULSES_PER_HEARTBEAT = 10


async def renew_leases(node: WorkerNode) -> None:
    """Show the pulse of the loop, and stop runs that outlive their leases; runs for ever."""
    renewer = LeaseRenewer(node)
    renewer.start()
    pulse = partial(_pulse, node, renewer)
    try:
        await every(node.settings.heartbeat / _PULSES_PER_HEARTBEAT, pulse, what="renewing leases")
    finally:
        renewer.stop()


async def _pulse(node: WorkerNode, renewer: "LeaseRenewer") -> None:
    if not renewer.is_alive():  # the supervisor restarts both of us
        raise RuntimeError("the thread that renews the leases has ended")
    renewer.pulse = node.loop.time()
    node.stop_expired()


class LeaseRenewer(threading.Thread):
    """The thread that renews the leases of a worker until it is stopped."""

    def __init__(self, node: WorkerNode) -> None:
        super().__init__(name="perdure-lease-renewer", daemon=True)
        self._node = node
        self._end = threading.Event()
        self.pulse = node.loop.time()  # set by the loop
        self._outage = Outage("renewing leases", node.loop.time)

    def run(self) -> None:
        while not self._end.wait(self._node.settings.heartbeat):
            if self._node.loop.time() - self.pulse > self._node.settings.stuck_after:
                _log.error("the event loop is blocked: its leases are no longer renewed")
            else:
                self._renew()

    def _renew(self) -> None:
        node, since = self._node, self._node.loop.time()
        try:
            held = node.held()
            if not held:
                return
            kept = node.store.renew_blocking(node.owner, held, node.settings.lease)
            self._outage.over()
            if events.listens(events.LEASE_RENEW):
                events.leases_renewed(node, len(held), len(kept), node.loop.time() - since)
            if not self._end.is_set():
                node.loop.call_soon_threadsafe(node.renewed, held, kept, since)
        except StoreError as error:
            self._outage.failed(error)
        except Exception:  # noqa: BLE001 - without renewals every job of this worker would be lost
            _log.exception("renewing leases")

    def stop(self) -> None:
        """End soon, without another renewal."""
        self._end.set()


async def send_heartbeats(node: WorkerNode) -> None:
    """Write the heartbeat of this worker to the store periodically; runs for ever."""
    await every(node.settings.heartbeat, partial(_send_heartbeat, node), what="sending heartbeats")


async def _send_heartbeat(node: WorkerNode) -> None:
    await node.store.heartbeat(node.owner, node.info())
