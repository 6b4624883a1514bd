"""The store in a PostgreSQL database, shared by a fleet."""

import asyncio
from collections.abc import Callable, Sequence

from perdure.store.durable import DurableStore
from perdure.store.lane import Lane
from perdure.store.postgres.connection import Target
from perdure.store.postgres.listener import PgListener
from perdure.store.postgres.reader import PgReader
from perdure.store.postgres.renewer import PgRenewer
from perdure.store.postgres.writer import PgWriter


class PostgresStore(DurableStore):
    """Jobs in a schema: one connection for the writes of owners, one for all other changes.

    Args:
        url: `postgresql://user@host/database`, as libpq reads it; `?schema=name` chooses the
            schema (`perdure`), `?pgbouncer=1` keeps nothing in sessions.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        target = Target(url)
        suspects: set[tuple[str, int]] = set()
        self._writer = Lane("perdure-writer", PgWriter(target, suspects))
        self._control = Lane("perdure-control", PgWriter(target, suspects))
        self._reader = Lane("perdure-reader", PgReader(target))
        self._renewer = PgRenewer(target)
        self._listener = PgListener(target, self._tell_watchers)

    async def now(self) -> float:
        return await self._ask(lambda session: session.now())

    def renew_blocking(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        return self._renewer.renew(owner, held, lease)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._listener.start()
        return super().watch(changed)

    async def close(self) -> None:
        # Both may be in the middle of something that waits for the server.
        await asyncio.to_thread(self._listener.stop)
        await super().close()
        await asyncio.to_thread(self._renewer.close)
