"""What is no search reads no more of a store that has more jobs: rows and steps are counted."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from perdure.jobs.model import JobQuery, TimeRange
from perdure.jobs.query_cost import is_bounded
from perdure.jobs.state import JobState
from perdure.store.open import open_store
from perdure.store.postgres.connection import PgSession, Target
from perdure.store.sqlite.connection import DatabaseFile, SqliteSession, connect
from perdure.store.statements import Session
from perdure.store.store import Store
from perdure.web.access.searches import BOUNDED
from tests.support.store import new_job

FEW, MANY = 200, 1600
START = 1e9
A_JOB = "j000007"

BOUNDED_QUERIES = {
    "all": JobQuery(),
    "of a tenant with few": JobQuery(tenant="globex"),
    "of a tenant with many": JobQuery(tenant="acme"),
    "of a tenant without any": JobQuery(tenant="nobody"),
    "before a place": JobQuery(tenant="acme", before=(START + 150, A_JOB)),
    "old ones": JobQuery(tenant="acme", created=TimeRange(before=START + 20)),
    "older than all": JobQuery(tenant="acme", created=TimeRange(before=START - 1)),
    "newer than all": JobQuery(tenant="acme", created=TimeRange(after=START * 2)),
    "of all tenants, old ones": JobQuery(created=TimeRange(before=START + 20)),
    "by id": JobQuery(tenant="acme", ids=(A_JOB,), states=(JobState.FAILED,)),
    "many children": JobQuery(tenant="acme", parent=A_JOB),
    "few children": JobQuery(tenant="acme", parent="j000008"),
    "by key": JobQuery(tenant="acme", key="june"),
    "by name": JobQuery(name="load"),
    "by state": JobQuery(states=(JobState.FAILED,)),
}
SEARCHES = {
    "words": JobQuery(tenant="acme", words=("nothing",)),
    "a prefix of names": JobQuery(tenant="acme", name_prefix="nothing"),
    "a state of a tenant": JobQuery(tenant="globex", states=(JobState.PENDING,)),
    "several states": JobQuery(states=(JobState.FAILED, JobState.PAUSED)),
    "a name of a tenant": JobQuery(tenant="globex", name="load"),
    "a user": JobQuery(tenant="acme", user="nobody"),
    "a queue": JobQuery(tenant="acme", queue="nothing"),
    "a wait": JobQuery(tenant="acme", waits="approval"),
    "an end": JobQuery(tenant="acme", ended=TimeRange(before=1.0)),
    "not of a name": JobQuery(tenant="acme", not_names=("load",)),
    "a label of a tenant": JobQuery(tenant="globex", labels={"team": "data"}),
    "a key of any tenant": JobQuery(key="nothing"),
}
VERBS: dict[str, tuple[Any, ...]] = {
    "job": (A_JOB, "acme"),
    "listed_job": (A_JOB, 90.0),
    "listed_jobs_of": ([A_JOB], 90.0),
    "whole_job": ("j000008", "acme", 90.0),
    "outcomes": ([A_JOB],),
    "journal_page": (A_JOB, 0, 10),
    "events": (A_JOB, 0, 10),
    "has_event": (A_JOB, ["x"], 0.0),
    "trace": (A_JOB,),
    "output": (A_JOB, "out", 0),
    "topics": (A_JOB,),
    "budget": (A_JOB,),
    "approval": ("x",),
    "approval_of_step": (A_JOB, "pay#1"),
    "effect_by_key": ("acme", "x"),
    "effect_of_business": ("acme", "x"),
    "entry_by_key": ("x",),
    "is_being_undone": (A_JOB,),
    "fork_refusal": (A_JOB, 1),
    "schedules": ("acme",),
    "saved_views": ("acme",),
    "error_marks": ("acme",),
    "tokens": ("acme",),
    "audit_newest": ("acme",),
    "audit_tenants": (),
    "fleet": (90.0,),
    "workers": (),
    "running_of": ("acme",),
    "definitions": (),
    "command_state": ("x",),
    "_server_time": (),
}


async def fill(store: Store, first: int, last: int) -> None:
    """Submit jobs; those of globex are the oldest."""
    await store.submit(
        [
            new_job(
                f"j{number:06}",
                tenant="globex" if number < 5 else "acme",
                name="load" if number % 2 else "work",
                key="june" if number == 100 else None,
                labels={"team": "data"},
            )
            for number in range(first, last)
        ]
    )


SPREAD = (
    f"UPDATE job SET created_at = {START} + CAST(substr(id, 2) AS INTEGER)",
    f"UPDATE label SET created_at = {START} + CAST(substr(job_id, 2) AS INTEGER)",
    f"UPDATE job SET parent = '{A_JOB}' WHERE id > 'j000010' AND name = 'work'",
    "UPDATE job SET parent = 'j000008' WHERE id BETWEEN 'j000010' AND 'j000020'",
)


class Work:
    """A session that counts what is read by it: steps of SQLite, rows of PostgreSQL."""

    def __init__(self, session: Session, count: Callable[[], int]) -> None:
        self._session = session
        self._count = count

    def of(self, name: str, *args: Any) -> int:
        before = self._count()
        getattr(Store, name).function(self._session, *args)
        return self._count() - before


@contextmanager
def sqlite_work(url: str) -> Generator[Work]:
    database = connect(DatabaseFile(url.removeprefix("sqlite:///")))
    for statement in SPREAD:
        database.execute(statement)
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    database.set_progress_handler(step, 10)
    try:
        yield Work(SqliteSession(database, None, set()), lambda: steps)
    finally:
        database.close()


_READ = b"SELECT sum(seq_tup_read + idx_tup_fetch)::int FROM pg_stat_xact_user_tables"


@contextmanager
def postgres_work(url: str) -> Generator[Work]:
    pg = Target(url).connect()

    def rows() -> int:
        found = pg.execute(_READ, prepare=False).fetchone()
        assert found is not None
        return found[0] or 0

    try:
        for statement in SPREAD:
            pg.execute(statement.encode())
        pg.execute(b"ANALYZE")
        with pg.transaction():
            yield Work(PgSession(pg, set()), rows)
    finally:
        pg.close()


async def measured(url: str, calls: dict[str, tuple[str, tuple[Any, ...]]]) -> dict[str, list[int]]:
    """Return how much each call reads with few jobs, and with many."""
    found: dict[str, list[int]] = {name: [] for name in calls}
    first = 0
    for last in (FEW, MANY):
        store = open_store(url)
        await store.open()
        await fill(store, first, last)
        await store.close()
        with (sqlite_work if url.startswith("sqlite") else postgres_work)(url) as work:
            for name, (verb, args) in calls.items():
                found[name].append(work.of(verb, *args))
        first = last
    return found


def grows(few: int, many: int) -> bool:
    return many > 2 * few + 20


async def test_a_bounded_query_reads_as_much_of_a_large_store_as_of_a_small_one(url: str) -> None:
    calls = {name: ("listed_jobs", (query, 90.0)) for name, query in BOUNDED_QUERIES.items()}
    found = await measured(url, calls)
    assert all(is_bounded(query) for query in BOUNDED_QUERIES.values())
    assert [f"{name}: {work}" for name, work in found.items() if grows(*work)] == []


async def test_every_other_query_is_a_search(url: str) -> None:
    assert not any(is_bounded(query) for query in SEARCHES.values())
    found = await measured(url, {"words": ("listed_jobs", (SEARCHES["words"], 90.0))})
    assert grows(*found["words"]), "what is measured does not say how much is read"


async def test_a_verb_that_is_no_search_reads_as_much_of_a_large_store_as_of_a_small_one(
    url: str,
) -> None:
    assert BOUNDED - VERBS.keys() == {"payload"}  # whose parts are found by their digests
    found = await measured(url, {name: (name, args) for name, args in VERBS.items()})
    assert [f"{name}: {work}" for name, work in found.items() if grows(*work)] == []
