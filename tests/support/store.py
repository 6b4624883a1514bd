"""What the tests of the stores share: jobs, entries, claims, and the way around the port."""

import sqlite3
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
from msgspec.structs import replace

from perdure.jobs.budget import Amount, Budget, BudgetLimits, BudgetRef, Reservation
from perdure.jobs.model import (
    Claim,
    EntryKind,
    JobChange,
    JournalEntry,
    NewJob,
    QueueLimit,
    SpendingChange,
    Write,
)
from perdure.jobs.outbox import Notice, NoticeState
from perdure.jobs.state import JobState, StepState
from perdure.store.db_thread import VerbCall
from perdure.store.postgres.connection import PgSession
from perdure.store.store import Store

QUEUES = {"default": QueueLimit()}
LEASE = 60.0
GONE = -1.0  # a lease that has run out as soon as it is given


def new_job(id: str, **values: Any) -> NewJob:
    given: dict[str, Any] = {
        "tenant": "acme",
        "user": "kim",
        "name": "work",
        "version": "1",
        "input": b'{"n": 1}',
    }
    return NewJob(id=id, **(given | values))


def entry(seq: int = 0, state: StepState = StepState.SUCCEEDED, **values: Any) -> JournalEntry:
    given: dict[str, Any] = {"kind": EntryKind.STEP, "name": "step", "id": f"step#{seq}"}
    if state == StepState.SUCCEEDED:
        given["output"] = b"1"
    return JournalEntry(seq=seq, state=state, **(given | values))


def write_of(claim: Claim, *entries: JournalEntry, **values: Any) -> Write:
    """A write of the owner of a claim."""
    owner = claim.job.owner
    assert owner is not None
    return Write(job_id=claim.job.id, owner=owner, epoch=claim.epoch, entries=entries, **values)


def settles(root: str, id: str, settled: Amount, **values: Any) -> SpendingChange:
    """A change of a budget without limits that settles a spending."""
    budget = BudgetRef(root, Budget(root=root), BudgetLimits())
    return SpendingChange(budget=budget, id=id, settled=settled, **values)


def ends(state: JobState = JobState.COMPLETED, **values: Any) -> JobChange:
    return JobChange(state=state, **values)


def releases(state: JobState = JobState.WAITING, **values: Any) -> JobChange:
    return JobChange(state=state, release=True, **values)


async def claims(store: Store, free: int = 100, owner: str = "w1", **values: Any) -> list[Claim]:
    given: dict[str, Any] = {"queues": QUEUES, "lease": LEASE}
    return await store.claim(owner, free=free, **(given | values))


async def claim_one(store: Store, owner: str = "w1", **values: Any) -> Claim:
    (claim,) = await claims(store, 1, owner, **values)
    return claim


async def started(store: Store, id: str = "a", **values: Any) -> Claim:
    """Submit a job and claim it."""
    await store.submit([new_job(id, **values)])
    return await claim_one(store)


def aside(claim: Claim, id: str, usd: float) -> Reservation:
    """Make the wish of the owner of a claim."""
    assert claim.job.owner is not None
    return Reservation(
        job_id=claim.job.id,
        owner=claim.job.owner,
        epoch=claim.epoch,
        root_id=claim.job.budget_of or claim.job.id,
        id=id,
        amount=Amount.of(usd=usd),
    )


async def notices(store: Store, job_id: str) -> list[Notice]:
    """Read all that was to be told about a job."""
    return await store.reader.call(VerbCall(_notices, (job_id,), {}))


def _notices(session: Any, job_id: str) -> list[Notice]:
    """Read them past the verbs: no program needs to know them by their job."""
    query = "SELECT data, state, due_at FROM notice WHERE job_id = {} ORDER BY id"
    if isinstance(session, PgSession):
        rows = session.pg.execute(query.format("%s").encode(), (job_id,)).fetchall()
    else:
        rows = session.database.execute(query.format("?"), (job_id,)).fetchall()
    return [
        replace(msgspec.json.decode(data, type=Notice), state=NoticeState(state), due_at=due_at)
        for data, state, due_at in rows
    ]


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Touch the tables directly, as nobody should."""
    if url.startswith("sqlite"):
        database = sqlite3.connect(urlsplit(url).path.removeprefix("/"), isolation_level=None)
        try:
            return database.execute(statement).fetchall()
        finally:
            database.close()
    base, _, schema = url.rpartition("&schema=")
    with psycopg.connect(base, autocommit=True, options=f"-c search_path={schema}") as pg:
        cursor = pg.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
