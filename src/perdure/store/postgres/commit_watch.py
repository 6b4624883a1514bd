"""Warn of slow transactions, above all of commits that wait for a missing standby.

Where `synchronous_standby_names` asks for a standby that does not answer, a commit waits for ever,
and no timeout of the server ends that. We do not cancel it either: a commit whose wait is
cancelled counts as done, although no standby has it.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import psycopg

from perdure.base.clock import SystemClock
from perdure.base.errors import StoreError
from perdure.store.postgres.connection import Target

_log = logging.getLogger("perdure.store")

_LOOK_EVERY: Final = 2.0
_WARN_AFTER: Final = 10.0
_AGAIN_AFTER: Final = 60.0
_CLOCK: Final = SystemClock()
_ASK: Final = b"SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %s"
_STANDBY: Final = (
    "a commit has waited for %d s at %s for a synchronous standby that is missing or does not "
    "answer. It is not cancelled, as it would then count as done without the standby. Bring the "
    "standby back, or change synchronous_standby_names"
)
_OTHER: Final = "a transaction has been running for %d s at %s: it waits for %s"


class Wait(NamedTuple):
    """What is under way on a connection."""

    since: float  # by the monotonic clock
    backend: int | None  # the server's process, if it can be known


Waiting = Callable[[], Wait | None]


class CommitWatch:
    """A thread that checks the connections of a store every two seconds."""

    def __init__(self, target: Target, connections: Mapping[str, Waiting]) -> None:
        self._target = target
        self._connections = connections
        self._told: dict[str, tuple[float, float]] = {}  # of which wait, and when
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="perdure-commits", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._ends.set()

    def _serve(self) -> None:
        while not self._ends.wait(_LOOK_EVERY):
            for name, waiting in self._connections.items():
                wait = waiting()
                if wait is not None:
                    self._look(name, wait, _CLOCK.monotonic())

    def _look(self, name: str, wait: Wait, now: float) -> None:
        since, at = self._told.get(name, (0.0, 0.0))
        is_known = since == wait.since
        if now - wait.since < _WARN_AFTER or (is_known and now - at < _AGAIN_AFTER):
            return
        self._told[name] = wait.since, now
        reason = self._reason(wait.backend)
        if reason == "SyncRep":
            _log.warning(_STANDBY, now - wait.since, self._target)
        else:
            _log.warning(_OTHER, now - wait.since, self._target, reason)

    def _reason(self, backend: int | None) -> str:
        """Ask the server, over another connection, what a process of it waits for."""
        try:
            with self._target.connect() as pg:
                found = pg.execute(_ASK, (backend,)).fetchone() if backend else None
        except (psycopg.Error, StoreError):
            return "the server, which cannot be asked why"
        if found is None or found[1] is None:
            return "the server"
        return found[1] if found[1] == "SyncRep" else f"{found[0]} {found[1]}"
