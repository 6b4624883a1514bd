"""The keeper of the leases: a thread renews them all at once, as long as the loop gets on.

A thread, because a loop that is held up for a minute must not lose its jobs;
gated by a pulse of the loop, because one that is held up for ever must.
"""

import logging
import threading
from functools import partial

from perdure.base.errors import StoreError
from perdure.base.retry import pause
from perdure.engine import tell
from perdure.engine.node import Node
from perdure.engine.outage import Outage, repeat

_log = logging.getLogger("perdure.worker")

# So often in the time of one beat the loop shows that it gets on.
_PULSES_PER_BEAT = 10


class Heart(threading.Thread):
    """Renews the leases of a node until it is stopped."""

    def __init__(self, node: Node) -> None:
        super().__init__(name="perdure-heart", daemon=True)
        self._node = node
        self._end = threading.Event()
        self.pulse = node.loop.time()  # set by the loop
        self._outage = Outage("renewing leases", node.loop.time)

    def run(self) -> None:
        while not self._end.wait(self._node.settings.beat):
            if self._node.loop.time() - self.pulse > self._node.settings.stuck_after:
                _log.error("the event loop stands still: its leases are not renewed any more")
            else:
                self._beat()

    def _beat(self) -> None:
        node, since = self._node, self._node.loop.time()
        try:
            held = node.held()
            if not held:
                return
            kept = node.store.renew_blocking(node.owner, held, node.settings.lease)
            self._outage.over()
            if tell.listens(tell.LEASE_RENEW):
                tell.leases_renewed(node, len(held), len(kept), node.loop.time() - since)
            if not self._end.is_set():
                node.loop.call_soon_threadsafe(node.renewed, held, kept, since)
        except StoreError as error:
            self._outage.failed(error)
        except Exception:  # noqa: BLE001 - without a heart every job of this worker would be lost: beat on
            _log.exception("renewing leases")

    def stop(self) -> None:
        """End soon, without another beat."""
        self._end.set()


async def keep(node: Node) -> None:
    """Show the pulse of the loop, and stop what outlives its lease; for ever."""
    heart = Heart(node)
    heart.start()
    try:
        while heart.is_alive():  # else somebody starts both of us anew
            heart.pulse = node.loop.time()
            node.distrust()
            await pause(node.settings.beat / _PULSES_PER_BEAT)
        raise RuntimeError("the thread that renews the leases has ended")
    finally:
        heart.stop()


async def sign_on(node: Node) -> None:
    """Say again and again that this worker lives; for ever."""
    work = partial(_beat, node)
    await repeat("signing on", work, node.settings.beat, node.loop.time)


async def _beat(node: Node) -> None:
    await node.store.beat(node.owner, node.info())
