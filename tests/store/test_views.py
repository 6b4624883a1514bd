"""The views for people who query by hand: JSON and times that a database understands."""

import sqlite3
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from perdure.jobs.model import JobEvent
from perdure.jobs.output import OutputBatch, OutputChunk
from perdure.store.store import Store
from tests.support.store import ends, entry, new_job, sql, started, write_of


def moment(found: Any) -> float:
    """Return a time that a view shows as UNIX seconds."""
    if isinstance(found, datetime):
        return found.timestamp()
    return datetime.strptime(found, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()


async def test_jobs_are_shown_with_json_and_times(store: Store, url: str) -> None:
    claim = await started(store, input=b'{"order": {"no": 7}}', labels={"team": "data"})
    emitted = OutputChunk(
        topic="t", no=3, step="step#1", attempt=1, part=0, pieces=(b'{"word": "a"}', b'"b"')
    )
    noted = JobEvent(type="noted", data={"why": "x"}, actor="kim")
    await store.write(
        write_of(
            claim,
            entry(1, started_at=100.0, ended_at=102.5),
            output=OutputBatch(chunks=(emitted,)),
            events=(noted,),
            job=ends(result=b'{"sum": 3}'),
        )
    )
    await store.submit([new_job("b", parent="a", parent_seq=2)])
    (found,) = sql(
        url,
        "SELECT input->'order'->>'no', result->>'sum', labels->>'team', created_at, ended_at, "
        "root, deadline_at FROM perdure_jobs WHERE id = 'a'",
    )
    job = await store.job("a")
    assert job is not None
    assert job.ended_at is not None
    assert [str(each) for each in found[:3]] == ["7", "3", "data"]
    assert moment(found[3]) == pytest.approx(job.created_at, abs=0.002)
    assert moment(found[4]) == pytest.approx(job.ended_at, abs=0.002)
    assert found[5:] == ("a", None)
    ((child, labels),) = sql(
        url, "SELECT id, labels->>'team' FROM perdure_jobs WHERE root = 'a' AND id <> 'a'"
    )
    assert (child, labels) == ("b", None)
    ((step, seconds, at),) = sql(url, "SELECT id, seconds, started_at FROM perdure_steps")
    assert (step, seconds, moment(at)) == ("step#1", 2.5, 100.0)
    pieces = sql(url, "SELECT position, value->>'word', step FROM perdure_output ORDER BY position")
    assert pieces == [(2, "a", "step#1"), (3, None, "step#1")]
    told = sql(url, "SELECT data->>'why', actor FROM perdure_events WHERE type = 'noted'")
    assert told == [("x", "kim")]
    assert sql(url, "SELECT * FROM perdure_effects") == []
    assert sql(url, "SELECT * FROM perdure_approvals") == []


async def test_a_payload_that_the_database_cannot_hold_as_json_breaks_no_query(
    store: Store, url: str
) -> None:
    nul, lone = b'{"a": "x\\u0000y"}', b'{"a": "\\ud800"}'
    await store.submit([new_job("a", input=nul), new_job("b", input=lone), new_job("c")])
    claim = await started(store, "d")
    emitted = OutputChunk(topic="t", no=1, step="", attempt=0, part=0, pieces=(b'"\\u0000"',))
    await store.write(write_of(claim, output=OutputBatch(chunks=(emitted,))))
    assert len(sql(url, "SELECT id, input, result FROM perdure_jobs ORDER BY id")) == 4
    ((whole,),) = sql(url, "SELECT input->>'n' FROM perdure_jobs WHERE id = 'c'")
    assert str(whole) == "1"
    assert len(sql(url, "SELECT position, value FROM perdure_output")) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE perdure_events SET actor = 'mallory'",
        "DELETE FROM perdure_jobs",
        "INSERT INTO perdure_effects (job_id) VALUES ('a')",
    ],
)
async def test_the_views_cannot_be_written_to(store: Store, url: str, statement: str) -> None:
    await store.submit([new_job("a")])
    with pytest.raises((sqlite3.Error, psycopg.Error), match="view"):
        sql(url, statement)
    assert sql(url, "SELECT count(*) FROM perdure_jobs") == [(1,)]
