"""LISTEN: the server notifies of changes by other processes: only hints, never relied upon.

It has a thread and a connection of its own, since a connection that waits for notifications can do
nothing else. If that is lost, it is reopened after a while; whatever was missed meanwhile is found
by polling, and the watchers are notified once when it listens again.
"""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

import psycopg

from perdure.base.errors import StoreError
from perdure.base.retry import Retry
from perdure.store.db_thread import SelfPipe
from perdure.store.postgres.connection import Pg, Target

_RECONNECT: Final = Retry(attempts=1_000_000, initial_delay="100ms", max_delay="5s", jitter=0.5)

_STOP_TIMEOUT: Final = 10.0  # longer than connecting takes


class PgListener:
    """A thread that listens from the first watch until the store is closed."""

    def __init__(self, target: Target, changed: Callable[[], None]) -> None:
        self._target = target
        self._changed = changed
        self._thread: threading.Thread | None = None
        self._self_pipe: SelfPipe | None = None
        self._ends = threading.Event()
        self._failures = 0

    def start(self) -> None:
        """Listen, unless a pooler is in between: it would not pass notifications on."""
        if self._thread is None and not self._target.pooled:
            self._self_pipe = SelfPipe()
            self._thread = threading.Thread(
                target=self._serve, name="perdure-listener", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ends.set()
        if self._self_pipe is not None and self._thread is not None:
            self._self_pipe.wake()
            self._thread.join(_STOP_TIMEOUT)
            if not self._thread.is_alive():
                self._self_pipe.close()

    def _serve(self) -> None:
        while not self._ends.is_set():
            try:
                with closing(self._target.connect()) as pg:
                    self._listen(pg)
            except (StoreError, psycopg.Error):
                self._failures += 1
                self._ends.wait(_RECONNECT.delay(self._failures))

    def _listen(self, pg: Pg) -> None:
        assert self._self_pipe is not None
        pg.execute(b"LISTEN perdure")
        self._failures = 0
        self._changed()  # whatever happened while nobody listened
        socket = pg.fileno()
        self._self_pipe.watch(socket)
        try:
            while not self._ends.is_set():
                self._self_pipe.wait(None)
                told = [notice.payload for notice in pg.notifies(timeout=0)]
                if self._target.schema in told:
                    self._changed()
        finally:
            self._self_pipe.unwatch(socket)
