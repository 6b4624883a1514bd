"""A PostgreSQL server that refuses statements now and then: it is full, too slow or locked."""

from pathlib import Path

import pytest

import perdure
from perdure.engine.settings import WorkerSettings
from tests.support.healthy_jobs import STORIES, Corpus
from tests.support.store import sql

# SQLSTATE, as a server reports it: what it is about.
FAULTS = {
    "53100": "disk full",
    "53200": "out of memory",
    "55P03": "lock_timeout",
    "57014": "statement_timeout",
    "58030": "an error of the disk",
    "40001": "a serialization failure",
    "40P01": "a deadlock",
}
# A lease outlives some renewals that are refused, as the real one does.
PATIENT = WorkerSettings(
    concurrency=20, lease="60s", stop_before_expiry="5s", heartbeat="500ms", poll="200ms",
    keep_in_memory="20ms", cancel_grace="100ms", drain_grace="2s", start_record_after="20ms",
)  # fmt: skip
TABLES = ("approval", "effect", "event", "job", "journal", "lease", "message", "payload", "budget")


def refuse_now_and_then(url: str, code: str, every: int) -> None:
    """Let every so many statements of a session that asks for it fail, whatever it is."""
    sql(url, "CREATE SEQUENCE faults")  # not undone by a rollback
    sql(
        url,
        f"""CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF current_setting('perdure.faults', true) = 'on' AND nextval('faults') % {every} = 0 THEN
            RAISE EXCEPTION 'refused on purpose' USING ERRCODE = '{code}';
          END IF;
          RETURN NULL;
        END $$""",
    )
    for table in TABLES:
        when = f"BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH STATEMENT"
        sql(url, f"CREATE TRIGGER fault {when} EXECUTE FUNCTION fault()")


def with_faults(url: str) -> str:
    base, _, schema = url.rpartition("&schema=")
    return f"{base}&options=-c%20perdure.faults%3Don&schema={schema}"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("code", FAULTS)
def test_jobs_end_as_they_should_though_the_server_refuses_statements(
    postgres_url: str, tmp_path: Path, code: str
) -> None:
    async def main() -> None:
        people = Corpus(postgres_url, tmp_path)
        workers = Corpus(with_faults(postgres_url), tmp_path, worker=PATIENT)
        async with people.app as app, workers.app as worker:
            store = await app.store()
            refuse_now_and_then(postgres_url, code, 41)
            async with worker.running():
                for told in STORIES.values():
                    await told(people)
            assert await store.violations() == []
        assert sql(postgres_url, "SELECT last_value FROM faults")[0][0] > 41

    perdure.run(main)
