"""Renews the leases of a worker's jobs, and stops the jobs whose lease may have run out.

A job belongs to a worker for as long as it has the lease. Two things must hold:

* As long as the worker is alive, its leases are renewed, all in one write per heartbeat. A thread
  does that, not the event loop: a step that blocks the loop for a minute must not lose the job to
  another worker, which would run the same code at the same time.
* A dead worker must not renew. The thread would continue even if the loop were blocked for ever, so
  it renews only while the loop shows a pulse. A loop without a pulse for `stuck_after` counts as
  dead, and other workers take its jobs when their leases run out. All but those whose code is
  running here: the one that blocks the loop, and those with a step in a thread or OS process.
  They may only be slow, and a second start would do their work twice.

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
from perdure.engine.worker.loop_watch import find_blocker
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
    now = node.loop.time()
    if events.listens(events.LOOP_LAG):
        interval = node.settings.heartbeat / _PULSES_PER_HEARTBEAT
        events.loop_lag(node, max(0.0, now - renewer.pulse - interval))
    renewer.pulse = node.pulse_at = now
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
            try:
                self._renew(self._held())
            except StoreError as error:
                self._outage.failed(error)
            except Exception:  # noqa: BLE001 - without renewals all jobs of this worker are lost
                _log.exception("renewing leases")

    def _held(self) -> list[tuple[str, int]]:
        """Return the leases to renew: all, or those of running code if the loop is blocked."""
        if self._node.loop.time() - self.pulse > self._node.settings.stuck_after:
            return self._held_by_running_code()
        return self._node.held()

    def _held_by_running_code(self) -> list[tuple[str, int]]:
        blocker = find_blocker(self._node)
        run = None if blocker is None else blocker.run
        what = "something unknown" if blocker is None else blocker.describe()
        held = self._node.held_by_running_code(run)
        _log.error(
            "%s reported no progress and blocks the event loop: give it `timeout=` and "
            "isolation='process', or report progress. Other jobs of this worker are left to other "
            "workers; those whose code runs here (%d) are kept, and not started a second time",
            *(what, len(held)),
        )
        return held

    def _renew(self, held: list[tuple[str, int]]) -> None:
        node, since = self._node, self._node.lease_time()
        if not held:
            return
        kept = node.store.renew_blocking(node.owner, held, node.settings.lease)
        self._outage.over()
        if events.listens(events.LEASE_RENEW):
            events.leases_renewed(node, len(held), len(kept), node.lease_time() - since)
        if not self._end.is_set():
            node.loop.call_soon_threadsafe(node.renewed, held, kept, since)

    def stop(self) -> None:
        """End soon, without another renewal."""
        self._end.set()


async def send_heartbeats(node: WorkerNode) -> None:
    """Write the heartbeat of this worker to the store periodically; runs for ever."""
    await every(node.settings.heartbeat, partial(_send_heartbeat, node), what="sending heartbeats")


async def _send_heartbeat(node: WorkerNode) -> None:
    await node.register()
