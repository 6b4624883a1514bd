"""The store in one SQLite file, shared by the processes of one machine.

One thread writes and one reads; they see the same file through connections of their own, and WAL
lets the reader continue while the writer commits. Leases are renewed over a third connection, and
searches, which may take long, have threads and connections of their own.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.base.clock import Clock, SystemClock
from perdure.base.encryption import Encryption
from perdure.base.errors import StoreFull
from perdure.jobs.fleet import Known
from perdure.jobs.model import Claim, QueueLimit
from perdure.store.db_thread import DbThread, SearchThread
from perdure.store.sqlite.connection import DatabaseFile
from perdure.store.sqlite.writer import (
    SqliteReader,
    SqliteRenewer,
    SqliteSearcher,
    SqliteWriter,
)
from perdure.store.statements import Session
from perdure.store.store import SEARCHERS, Store, changes

_WAL_SIZE: Final = 4_200_000  # a little more than SQLite lets the log grow to


def _durability(session: Session) -> dict[str, str]:
    """Return the settings that make a commit durable, by name."""
    found = {name: session.one(name) for name in ("journal_mode", "synchronous")}
    return {name: str(row[0]) for name, row in found.items() if row is not None}


def _grow_pad(session: Session) -> None:
    session.run("fill_pad", size=_WAL_SIZE)


def _clear_pad(session: Session) -> None:
    session.run("empty_pad")


class SqliteStore(Store):
    """Jobs in a file.

    Args:
        path: The file; created if it does not exist.
        clock: Replaces the machine's clock: for tests.
        force_network: Do not refuse a network file system.
        kill_stopped_writer: Kill a process that holds the write lock while it is stopped.
        keys: The keys that encrypt payloads; None: nothing is encrypted.
        shows_locked: Show a text in the place of a payload for which there is no key.
    """

    durability = changes(_durability)  # on the connection that writes: its settings count
    _fill_pad = changes(_grow_pad)
    _empty_pad = changes(_clear_pad)

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        force_network: bool = False,
        kill_stopped_writer: bool = False,
        keys: Encryption | None = None,
        shows_locked: bool = False,
    ) -> None:
        file = DatabaseFile(path, force_network=force_network, kill_stopped=kill_stopped_writer)
        writer = DbThread(
            "perdure-writer",
            SqliteWriter(file, clock, self.tell_watchers, keys=keys),
            keys=keys,
            announce=self.tell_watchers,
            announce_output=self.tell_readers,
            is_watched=lambda: bool(self._watchers),
        )
        super().__init__(
            writer=writer,
            control=writer,
            reader=DbThread(
                "perdure-reader", SqliteReader(file, clock, keys, shows_locked=shows_locked)
            ),
            searchers=[
                SearchThread(
                    f"perdure-search-{number}",
                    SqliteSearcher(file, clock, keys, shows_locked=shows_locked),
                )
                for number in range(SEARCHERS)
            ],
            renewer=SqliteRenewer(file, clock),
            clock=clock or SystemClock(),
        )
        self.path = file.path
        self._wal = Path(f"{file.path}-wal")
        self._has_claimed = False

    async def claim(
        self,
        owner: str,
        queues: Mapping[str, QueueLimit],
        free: int,
        lease: float,
        known: Known | None = None,
    ) -> list[Claim]:
        if not self._has_claimed:
            self._has_claimed = True
            await self._grow_wal()
        return await super().claim(owner, queues, free, lease, known)

    async def _grow_wal(self) -> None:
        """Grow the write-ahead log to its full size before work begins: see the table `pad`."""
        if self._wal.exists() and self._wal.stat().st_size >= _WAL_SIZE:
            return
        with suppress(StoreFull):  # it would only be faster
            # Two transactions: what comes and goes in one is never written.
            await self._fill_pad()
            await self._empty_pad()

    async def close(self) -> None:
        await super().close()
        self._renewer.close()
