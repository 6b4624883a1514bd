"""The store in a PostgreSQL database, shared by a fleet."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from perdure.jobs.model import Claim, NewJob, QueueLimit, Submitted
from perdure.store.db_thread import Lane
from perdure.store.postgres.connection import Target
from perdure.store.postgres.listen import PgListener
from perdure.store.postgres.transaction import CommitWatch, SubmitAll, Take, Wait
from perdure.store.postgres.writer import PgLane, PgReader, PgRenewer, PgWriter
from perdure.store.store import DurableStore
from perdure.store.verbs.claim import UNLIMITED, Grant, claimed, load


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
        writer, control = PgWriter(target, suspects), PgWriter(target, suspects)
        self._writer = PgLane("perdure-writer", writer)
        self._control = Lane("perdure-control", control)
        self._reader = Lane("perdure-reader", PgReader(target))
        self._renewer = PgRenewer(target)
        self._listener = PgListener(target, self._tell_watchers)
        watched = {
            "writer": partial(_wait, self._writer, writer),
            "control": partial(_wait, self._control, control),
            "renewer": self._renewer.waiting,
        }
        self._watch = CommitWatch(target, watched)

    async def open(self) -> None:
        self._watch.start()
        try:
            await super().open()
        except BaseException:
            self._watch.stop()
            raise

    async def now(self) -> float:
        return await self._ask(lambda session: session.now())

    async def durability(self) -> dict[str, str]:
        return dict(await self._ask(lambda session: session.all("server_settings")))

    async def submit(self, jobs: Sequence[NewJob], actor: str = "") -> list[Submitted]:
        return await self._make_due(SubmitAll(jobs, actor))

    async def claim(
        self, owner: str, queues: Mapping[str, QueueLimit], free: int, lease: float
    ) -> list[Claim]:
        if any(limit != UNLIMITED for limit in queues.values()):
            return await super().claim(owner, queues, free, lease)
        grants: list[Grant] = await self._change(Take(owner, list(queues), free, lease))
        unread = [grant for grant in grants if grant.job is None]
        read: list[Claim] = []
        if unread:
            read = await self._ask(partial(load, grants=unread, lease=lease))
        claims = {claim.job.id: claim for claim in read}
        for grant in grants:
            if grant.job is not None:
                claims[grant.job_id] = claimed(grant, grant.job, lease)
        return [claims[grant.job_id] for grant in grants if grant.job_id in claims]

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
        self._watch.stop()


def _wait(lane: Lane, writer: PgWriter) -> Wait | None:
    since = lane.busy_since
    return None if since is None else Wait(since, writer.backend)
