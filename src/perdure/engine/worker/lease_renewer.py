"""Whether a worker on this machine lives: it holds a lock on a file as long as it does.

The system frees the lock when the process dies, however it dies, and not before:
a stopped process still holds it. So the neighbours know of a death at once, and are never wrong.
"""

import fcntl
import logging
import os
import threading
from functools import partial
from pathlib import Path

from perdure.base.errors import StoreError
from perdure.base.machine import made_private, temporary_folder
from perdure.base.retry import pause
from perdure.engine import events
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import Outage, repeat


def _lock_of(owner: str) -> Path:
    # Where another user could put files, he could make a living worker look dead.
    return made_private(temporary_folder()) / f"{owner}.lock"


class WorkerLock:
    """The proof that this worker lives."""

    def __init__(self, owner: str) -> None:
        self._path = _lock_of(owner)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def end(self, *, in_order: bool = True) -> None:
        """Say that it is over; not in order: jobs are left behind, for whom only a death counts."""
        if in_order:
            self._path.unlink(missing_ok=True)
            os.close(self._file)


def is_dead(owner: str) -> bool:
    """Tell whether a worker of this machine and boot has died. Unknown counts as alive."""
    path = _lock_of(owner)
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(file)


def forget(owner: str) -> None:
    """Remove what a dead worker left."""
    _lock_of(owner).unlink(missing_ok=True)


# The keeper of the leases: a thread renews them all at once, as long as the loop gets on.
#
# A thread, because a loop that is held up for a minute must not lose its jobs;
# gated by a pulse of the loop, because one that is held up for ever must.

_log = logging.getLogger("perdure.worker")

# So often in the time of one beat the loop shows that it gets on.
_PULSES_PER_BEAT = 10


class LeaseRenewer(threading.Thread):
    """Renews the leases of a node until it is stopped."""

    def __init__(self, node: WorkerNode) -> None:
        super().__init__(name="perdure-heart", daemon=True)
        self._node = node
        self._end = threading.Event()
        self.pulse = node.loop.time()  # set by the loop
        self._outage = Outage("renewing leases", node.loop.time)

    def run(self) -> None:
        while not self._end.wait(self._node.settings.heartbeat):
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
            if events.listens(events.LEASE_RENEW):
                events.leases_renewed(node, len(held), len(kept), node.loop.time() - since)
            if not self._end.is_set():
                node.loop.call_soon_threadsafe(node.renewed, held, kept, since)
        except StoreError as error:
            self._outage.failed(error)
        except Exception:  # noqa: BLE001 - without a heart every job of this worker would be lost: beat on
            _log.exception("renewing leases")

    def stop(self) -> None:
        """End soon, without another beat."""
        self._end.set()


async def keep(node: WorkerNode) -> None:
    """Show the pulse of the loop, and stop what outlives its lease; for ever."""
    heart = LeaseRenewer(node)
    heart.start()
    try:
        while heart.is_alive():  # else somebody starts both of us anew
            heart.pulse = node.loop.time()
            node.distrust()
            await pause(node.settings.heartbeat / _PULSES_PER_BEAT)
        raise RuntimeError("the thread that renews the leases has ended")
    finally:
        heart.stop()


async def sign_on(node: WorkerNode) -> None:
    """Say again and again that this worker lives; for ever."""
    work = partial(_beat, node)
    await repeat("signing on", work, node.settings.heartbeat, node.loop.time)


async def _beat(node: WorkerNode) -> None:
    await node.store.beat(node.owner, node.info())
