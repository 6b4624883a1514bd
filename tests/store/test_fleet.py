"""Workers claim only what they know; what they know is published."""

import msgspec
import pytest

from perdure.jobs.fleet import Definitions, Known, PublishedJob, kind_of
from perdure.jobs.model import Claim, Command, JobChange, QueueLimit
from perdure.jobs.state import JobState
from perdure.store.store import Store
from tests.support.store import claim_one, claims, ends, new_job, releases, sql, started, write_of


def ids(found: list[Claim]) -> list[str]:
    return [claim.job.id for claim in found]


def definitions(*versions: str, steps: tuple[str, ...] = ()) -> Definitions:
    """Know the job `work` in some versions."""
    first, *others = versions
    return Definitions(
        jobs={"work": PublishedJob(version=first, accepts=tuple(others))}, steps=steps
    )


def known(*versions: str, steps: tuple[str, ...] = ()) -> Known:
    return definitions(*versions, steps=steps).known()


def plan(*steps: str) -> bytes:
    return msgspec.json.encode({"name": "p", "calls": [{"step": step} for step in steps]})


LIMITS = [QueueLimit(), QueueLimit(running=50, running_per_tenant=40)]


@pytest.mark.parametrize("limit", LIMITS, ids=["unlimited", "limited"])
async def test_a_worker_claims_only_the_names_and_versions_that_it_knows(
    store: Store, limit: QueueLimit
) -> None:
    await store.submit([new_job("old"), new_job("new", version="2"), new_job("x", name="other")])
    queues = {"default": limit}
    assert ids(await claims(store, known=known("3"), queues=queues)) == []
    assert ids(await claims(store, known=known("2"), queues=queues)) == ["new"]
    assert ids(await claims(store, known=known("2", "1"), queues=queues)) == ["old"]
    waiting = await store.job("x")
    assert waiting is not None
    assert (waiting.state, waiting.claims) == (JobState.PENDING, 0)


@pytest.mark.parametrize("limit", LIMITS, ids=["unlimited", "limited"])
async def test_jobs_of_several_kinds_are_claimed_by_priority_and_turn(
    store: Store, limit: QueueLimit
) -> None:
    await store.submit([new_job("a1"), new_job("b1", version="2"), new_job("a2")])
    await store.submit([new_job("b2", version="2", priority=9), new_job("a3")])
    queues = {"default": limit}
    first = await claims(store, 3, known=known("1", "2"), queues=queues)
    assert ids(first) == ["b2", "a1", "b1"]
    assert ids(await claims(store, 3, known=known("1", "2"), queues=queues)) == ["a2", "a3"]


async def test_a_timer_of_an_unknown_kind_falls_due_and_waits_for_who_knows_it(
    store: Store, url: str
) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, job=releases(due_at=claim.now + 3600)))
    sql(url, "UPDATE lease SET due_at = due_at - 7200")
    assert await claims(store, known=known("2")) == []
    assert await store.outlook(["default"], known("2")) == [("default", False, None)]
    assert await store.outlook(["default"], known("1")) == [("default", True, None)]
    assert ids(await claims(store, known=known("1"))) == ["a"]


@pytest.mark.parametrize("limit", LIMITS, ids=["unlimited", "limited"])
async def test_a_plan_is_claimed_by_a_worker_that_knows_all_of_its_steps(
    store: Store, limit: QueueLimit
) -> None:
    await store.submit([new_job("p", plan=plan("load", "pack", "load"))])
    queues = {"default": limit}
    for steps in ((), ("load",), ("pack", "other")):
        assert await claims(store, known=known("1", steps=steps), queues=queues) == []
        assert await store.outlook(["default"], known("1", steps=steps)) == [
            ("default", False, None)
        ]
    knows = known("1", steps=("other", "pack", "load"))
    assert await store.outlook(["default"], knows) == [("default", True, None)]
    assert ids(await claims(store, known=knows, queues=queues)) == ["p"]


async def test_a_job_that_is_retried_still_needs_its_version(store: Store) -> None:
    claim = await started(store, "a", version="7")
    await store.write(write_of(claim, job=ends(JobState.FAILED)))
    await store.command(Command(job_id="a", action="retry", actor="kim"))
    assert await claims(store, known=known("1")) == []
    assert ids(await claims(store, known=known("7"))) == ["a"]


async def test_an_undo_needs_the_version_of_its_job(store: Store) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, job=_undoing(claim)))
    assert await claims(store, known=known("2")) == []
    again = await claim_one(store, known=known("2", "1"))
    assert again.job.state is JobState.COMPENSATING


async def test_a_thousand_unknown_jobs_in_front_are_passed_over(store: Store) -> None:
    await store.submit([new_job(f"u{n:04}", name="unknown", priority=9) for n in range(1000)])
    await store.submit([new_job("a")])
    assert ids(await claims(store, 10, known=known("1"))) == ["a"]


async def test_what_workers_know_is_stored_once_for_all_that_know_the_same(store: Store) -> None:
    same = definitions("1", steps=("load",))
    digests = {await store.publish(same.pack()) for _ in range(3)}
    (digest,) = digests
    other = await store.publish(definitions("2").pack())
    for owner in ("w1", "w2"):
        await store.heartbeat(owner, b"{}", digest)
    found = {each.digest: each for each in await store.definitions()}
    assert set(found) == {digest, other}
    assert found[digest].definitions == same
    assert [found[each].workers for each in (digest, other)] == [2, 0]


async def test_old_definitions_are_forgotten_once_no_worker_runs_them(
    store: Store, url: str
) -> None:
    kept = await store.publish(definitions("1").pack())
    await store.heartbeat("w1", b"{}", kept)
    await store.publish(definitions("2").pack())
    sql(url, "UPDATE definitions SET published_at = 1")
    newest = await store.publish(definitions("3").pack())
    assert [each.digest for each in await store.definitions()] == [newest, kept]


def test_the_kind_of_a_plan_does_not_depend_on_the_order_of_its_steps() -> None:
    assert kind_of("p", "1", plan("a", "b")) == kind_of("q", "1", plan("b", "a", "a"))
    assert kind_of("p", "1", plan("a", "b")) != kind_of("p", "1", plan("a"))
    assert kind_of("p", "1", None) != kind_of("p", "2", None)


def _undoing(claim: Claim) -> JobChange:
    return releases(JobState.COMPENSATING, due_at=claim.now, error=b"{}")
