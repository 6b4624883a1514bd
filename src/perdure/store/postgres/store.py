"""The store in a PostgreSQL database, shared by a fleet.

A process has three connections: one makes the fenced writes of owners, one all other changes, so
that a slow claim never delays the result of a step, and one reads and listens. Leases are renewed
over the second one, whose thread goes on while the loop is blocked. Searches, which may take long,
have up to two connections more, in processes that are asked for them.
"""

from collections.abc import Callable, Sequence
from functools import partial

from perdure.base.encryption import Encryption
from perdure.store.db_thread import DbThread, SearchThread, VerbCall
from perdure.store.postgres.connection import Target
from perdure.store.postgres.reader import PgReader, PgSearcher
from perdure.store.postgres.transaction import CommitWatch, PendingTransaction
from perdure.store.postgres.writer import PgWriter
from perdure.store.statements import Session
from perdure.store.store import SEARCHERS, Store, reads
from perdure.store.verbs.claim import renew


def _durability(session: Session) -> dict[str, str]:
    """Return the settings that make a commit durable, by name."""
    return {name: setting for name, setting in session.all("server_settings")}  # noqa: C416  rows are no pairs to the type checker


class PostgresStore(Store):
    """Jobs in a schema of a database.

    Args:
        url: `postgresql://user@host/database`, as libpq reads it; `?schema=name` chooses the
            schema (`perdure`), `?pgbouncer=1` keeps nothing in sessions, and `?listen_url=…`, the
            percent-encoded URL of the server behind the pooler, lets it still be notified.
        keys: The keys that encrypt payloads; None: nothing is encrypted.
        shows_locked: Show a text in the place of a payload for which there is no key.
    """

    durability = reads(_durability)

    def __init__(
        self, url: str, *, keys: Encryption | None = None, shows_locked: bool = False
    ) -> None:
        target = Target(url)
        unproven_claims: set[tuple[str, int]] = set()
        writer = PgWriter(target, unproven_claims, keys)
        control = PgWriter(target, unproven_claims, keys)
        reader = PgReader(
            target.direct, self.tell_watchers, self.tell_readers, keys, shows_locked=shows_locked
        )
        control_thread = DbThread("perdure-control", control, announce=self.tell_watchers)
        super().__init__(
            writer=DbThread(
                "perdure-writer",
                writer,
                announce=self.tell_watchers,
                announce_output=self.tell_readers,
                keys=keys,
            ),
            control=control_thread,
            reader=DbThread("perdure-reader", reader, is_watched=lambda: bool(self._watchers)),
            searchers=[
                SearchThread(
                    f"perdure-search-{number}",
                    PgSearcher(target, keys, shows_locked=shows_locked),
                )
                for number in range(SEARCHERS)
            ],
            renewer=_Renewer(control_thread),
        )
        self._commit_watch = CommitWatch(
            target,
            {
                "writer": partial(_pending, self.writer, writer),
                "control": partial(_pending, self.control, control),
            },
        )

    async def open(self) -> None:
        self._commit_watch.start()
        try:
            await super().open()
        except BaseException:
            self._commit_watch.stop()
            raise

    def watch(self, changed: Callable[[], None], *, output: bool = False) -> Callable[[], None]:
        watched = super().watch(changed, output=output)
        self.reader.look_up()  # it listens from the first watch on
        return watched

    async def close(self) -> None:
        await super().close()
        self._commit_watch.stop()


class _Renewer:
    """Renews leases from any thread, over the connection of a database thread."""

    def __init__(self, thread: DbThread) -> None:
        self._thread = thread

    def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        """Renew leases, waiting for the server; return the jobs whose leases were renewed."""
        return self._thread.call_blocking(VerbCall(renew, (owner, held, lease), {}))

    def close(self) -> None:
        """Do nothing: the connection is the thread's."""


def _pending(thread: DbThread, writer: PgWriter) -> PendingTransaction | None:
    since = thread.busy_since
    return None if since is None else PendingTransaction(since, writer.backend)
