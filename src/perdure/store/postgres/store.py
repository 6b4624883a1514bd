"""The store in a PostgreSQL database, shared by a fleet.

One connection makes the fenced writes of owners, one all other changes, one reads, one renews
leases, and one listens, so that a slow claim never delays the result of a step.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from perdure.store.db_thread import DbThread
from perdure.store.postgres.connection import Target
from perdure.store.postgres.listen import PgListener
from perdure.store.postgres.transaction import CommitWatch, PendingTransaction
from perdure.store.postgres.writer import PgReader, PgRenewer, PgWriter
from perdure.store.statements import Session
from perdure.store.store import Store, reads


def _durability(session: Session) -> dict[str, str]:
    """Return the settings that make a commit durable, by name."""
    return {name: setting for name, setting in session.all("server_settings")}  # noqa: C416  rows are no pairs to the type checker


class PostgresStore(Store):
    """Jobs in a schema of a database.

    Args:
        url: `postgresql://user@host/database`, as libpq reads it; `?schema=name` chooses the
            schema (`perdure`), `?pgbouncer=1` keeps nothing in sessions.
    """

    durability = reads(_durability)

    def __init__(self, url: str) -> None:
        target = Target(url)
        unproven_claims: set[tuple[str, int]] = set()
        writer, control = PgWriter(target, unproven_claims), PgWriter(target, unproven_claims)
        renewer = PgRenewer(target)
        super().__init__(
            writer=DbThread("perdure-writer", writer, announce=self.tell_watchers),
            control=DbThread("perdure-control", control, announce=self.tell_watchers),
            reader=DbThread("perdure-reader", PgReader(target)),
            renewer=renewer,
        )
        self._listener = PgListener(target, self.tell_watchers)
        self._commit_watch = CommitWatch(
            target,
            {
                "writer": partial(_pending, self.writer, writer),
                "control": partial(_pending, self.control, control),
                "renewer": renewer.pending,
            },
        )

    async def open(self) -> None:
        self._commit_watch.start()
        try:
            await super().open()
        except BaseException:
            self._commit_watch.stop()
            raise

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._listener.start()
        return super().watch(changed)

    async def close(self) -> None:
        # Both may be in the middle of something that waits for the server.
        await asyncio.to_thread(self._listener.stop)
        await super().close()
        await asyncio.to_thread(self._renewer.close)
        self._commit_watch.stop()


def _pending(thread: DbThread, writer: PgWriter) -> PendingTransaction | None:
    since = thread.busy_since
    return None if since is None else PendingTransaction(since, writer.backend)
