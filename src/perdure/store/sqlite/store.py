"""The store in one SQLite file, shared by the processes of one machine."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.base.clock import Clock, SystemClock
from perdure.base.errors import StoreFull
from perdure.jobs.model import Claim, QueueLimit
from perdure.store.db_thread import Lane
from perdure.store.sqlite.connection import DatabaseFile
from perdure.store.sqlite.writer import SqliteReader, SqliteRenewer, SqliteWriter
from perdure.store.statements import Session
from perdure.store.store import DurableStore

_LOG_SIZE: Final = 4_200_000  # a little more than SQLite lets the log grow to


def _durability(session: Session) -> dict[str, str]:
    found = {name: session.one(name) for name in ("journal_mode", "synchronous")}
    return {name: str(row[0]) for name, row in found.items() if row is not None}


class SqliteStore(DurableStore):
    """Jobs in a file: one thread writes, one reads.

    Args:
        path: The file; made if it is not there.
        clock: Tells the time instead of the machine: for tests.
        force_network: Do not refuse a network file system.
    """

    def __init__(
        self, path: str | Path, *, clock: Clock | None = None, force_network: bool = False
    ) -> None:
        super().__init__()
        file = DatabaseFile(path)
        self.path = file.path
        self._clock = clock or SystemClock()
        self._has_claimed = False
        writer = SqliteWriter(file, clock, self._tell_watchers, force=force_network)
        self._writer = self._control = Lane(
            "perdure-writer", writer, writer.at_once, heeded=lambda: bool(self._watchers)
        )
        self._renewer = SqliteRenewer(file, clock, force=force_network)
        self._reader = Lane("perdure-reader", SqliteReader(file, clock, force=force_network))

    async def now(self) -> float:
        return self._clock.time()

    async def durability(self) -> dict[str, str]:
        return await self._control.do(_durability)

    async def claim(
        self, owner: str, queues: Mapping[str, QueueLimit], free: int, lease: float
    ) -> list[Claim]:
        if not self._has_claimed:
            self._has_claimed = True
            await self._grow_log()
        return await super().claim(owner, queues, free, lease)

    async def _grow_log(self) -> None:
        """Give the log of changes its full size before work begins: see the table `pad`."""
        if _size(Path(f"{self.path}-wal")) >= _LOG_SIZE:
            return
        with suppress(StoreFull):  # it would only be faster
            # Two transactions: what comes and goes in one is never written.
            await self._control.do(lambda session: session.run("fill_pad", size=_LOG_SIZE))
            await self._control.do(lambda session: session.run("empty_pad"))

    def renew_blocking(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        return self._renewer.renew(owner, held, lease)

    async def close(self) -> None:
        await super().close()
        self._renewer.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
