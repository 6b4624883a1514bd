"""What is measured of Perdure alone: claims among finished jobs, many children, effects."""

import asyncio
import sqlite3
import statistics
import time
from typing import Any

from bench.durable.contenders import perdure
from bench.durable.marks import reading
from bench.durable.place import SQLITE, Place, fresh
from bench.durable.plan import Figures, Size
from bench.durable.worker import working
from bench.durable.workload import NANOSECONDS, all_steps, rate
from perdure.jobs.model import EntryKind, JobChange, JournalEntry, NewJob, QueueLimit, Write
from perdure.jobs.state import JobState, StepState
from perdure.store.open import open_store
from perdure.store.store import Store

_OWNER = "bench"
_QUEUES = {"default": QueueLimit()}
_LEASE = 60.0
_ROUNDS = 20
_CLAIMS = 10  # of each round …
_AT_ONCE = 10  # … and jobs of each claim
_CHILDREN_AT_ONCE = 10


def claims(_: str, place: Place, size: Size) -> Figures:
    """Claim in turn from an empty store and from one that is full of finished jobs."""
    with fresh(place.store, place.folder.parent, place.server) as full:
        return asyncio.run(_claims(place, full, size.jobs))


async def _claims(empty: Place, full: Place, finished: int) -> Figures:
    without, among = open_store(empty.url), open_store(full.url)
    await without.open()
    await among.open()
    try:
        await _finish_one(among)
        _copy_job(full, finished)
        pairs = [(await _rate(without, n), await _rate(among, n)) for n in range(_ROUNDS)]
    finally:
        await without.close()
        await among.close()
    return {
        "claims": statistics.median(first for first, _ in pairs),
        "claims_full": statistics.median(second for _, second in pairs),
        "claim_ratio": statistics.median(second / first for first, second in pairs),
    }


async def _rate(store: Store, number: int) -> float:
    """Return the jobs claimed in a second."""
    await store.submit([_job(f"{number}-{job}") for job in range(_CLAIMS * _AT_ONCE)])
    since = time.perf_counter()
    for _ in range(_CLAIMS):
        claimed = await store.claim(_OWNER, _QUEUES, _AT_ONCE, _LEASE)
        assert len(claimed) == _AT_ONCE
    return _CLAIMS * _AT_ONCE / (time.perf_counter() - since)


async def _finish_one(store: Store) -> None:
    """Leave one finished job, to be copied."""
    await store.submit([_job("first")])
    (claim,) = await store.claim(_OWNER, _QUEUES, 1, _LEASE)
    entry = JournalEntry(
        seq=1,
        id="step#1",
        kind=EntryKind.STEP,
        name="step",
        state=StepState.SUCCEEDED,
        input=b"[0]",
        output=b"0",
    )
    end = JobChange(state=JobState.COMPLETED, result=b"null")
    await store.write(
        Write(job_id=claim.job.id, owner=_OWNER, epoch=claim.epoch, entries=(entry,), job=end)
    )


def _job(id: str) -> NewJob:
    return NewJob(
        id=id, tenant="default", user="", name="row", version="1", input=b"[0, 1]", queue="default"
    )


# Every table that keeps something of a finished job, and its column with the job's id.
_TABLES = {"job": "id", "journal": "job_id", "event": "job_id"}
# Columns that the database fills by itself.
_OWN = {"event": {"no"}}

_NUMBERS = {
    "sqlite": "(with recursive n(i) as (select 1 union all select i + 1 from n where i < {0}) "
    "select i from n)",
    "postgres": "(select i from generate_series(1, {0}) as i)",
}
_ID = {"sqlite": "printf('%032x', i)", "postgres": "lpad(to_hex(i), 32, '0')"}


def _copy_job(place: Place, jobs: int) -> None:
    """Copy the only job of a store so many times, faster than any worker could run them."""
    connection: Any
    if place.store == SQLITE:
        connection = sqlite3.connect(place.file, isolation_level=None, timeout=30)
    else:
        import psycopg

        connection = psycopg.connect(place.url, autocommit=True)
        connection.execute("set search_path = perdure")
    try:
        for table, id in _TABLES.items():
            connection.execute(_copy_statement(connection, place.store, table, id, jobs))
        connection.execute("analyze")
    finally:
        connection.close()


def _copy_statement(connection: Any, store: str, table: str, id: str, jobs: int) -> str:
    found = connection.execute(f"select * from {table} limit 0").description
    names = [column[0] for column in found if column[0] not in _OWN.get(table, ())]
    given = ", ".join(f'"{name}"' for name in names)
    copied = ", ".join(_ID[store] if name == id else f'one."{name}"' for name in names)
    numbers = _NUMBERS[store].format(jobs)
    return f"insert into {table} ({given}) select {copied} from {table} as one, {numbers} as n"


def children(name: str, place: Place, size: Size) -> Figures:
    """A job with many children: the seconds from its submission until it goes on after them all."""
    perdure.prepare(place)
    with (
        reading(place.marks) as marks,
        perdure.client(place) as client,
        working(name, place, marks, _CHILDREN_AT_ONCE) as worker,
    ):
        worker.wait_until_ready()
        since = time.monotonic_ns()
        client.submit_family(size.jobs, size.jobs)
        done = all_steps(worker, range(size.jobs, size.jobs + 1), 1, size.limit)
    return {"children_s": (done[-1].at - since) / NANOSECONDS}


def effect(name: str, place: Place, size: Size) -> Figures:
    """Run steps without and with an effect in turn, in one worker."""
    perdure.prepare(place)
    rates: list[float] = []
    with (
        reading(place.marks) as marks,
        perdure.client(place) as client,
        working(name, place, marks) as worker,
    ):
        worker.wait_until_ready()
        for job in range(size.jobs * 2):
            client.submit(job, size.steps, effects=bool(job % 2))
            done = all_steps(worker, range(job, job + 1), size.steps, size.limit)
            rates.append(rate(done))
    # Neighbours are compared, since the speed of a shared disk changes all the time.
    pairs = zip(rates[::2], rates[1::2], strict=True)
    return {"effect_ratio": statistics.median(without / with_one for without, with_one in pairs)}
