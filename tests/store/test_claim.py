"""Claiming: who gets which job, in which order, for how long."""

from perdure.jobs.model import Claim, JobEvent, JournalEntry, QueueLimit
from perdure.jobs.state import JobState, StepState
from perdure.store.store import Store
from tests.support.store import (
    GONE,
    LEASE,
    claim_one,
    claims,
    ends,
    entry,
    new_job,
    releases,
    sql,
    started,
    write_of,
)


def ids(found: list[Claim]) -> list[str]:
    return [claim.job.id for claim in found]


async def due_in(store: Store) -> float | None:
    ((_, _, seconds),) = await store.outlook(["default"])
    return seconds


async def test_a_claim_makes_the_job_running_and_brings_all_of_it(store: Store) -> None:
    claim = await started(store, "a")
    assert (claim.job.state, claim.job.owner) == (JobState.RUNNING, "w1")
    assert (claim.epoch, claim.job.claims, claim.news) == (1, 1, 0)
    assert (claim.journal, claim.messages) == ((), ())
    assert claim.job.started_at == claim.now
    assert [event.type for event in await store.events("a")] == ["submitted", "claimed"]


async def test_a_claimed_job_is_not_claimed_again(store: Store, other: Store) -> None:
    await started(store, "a")
    assert await claims(store) == []
    assert await claims(other, owner="w2") == []


async def test_a_claim_takes_no_more_than_there_is_room_for(store: Store) -> None:
    await store.submit([new_job(f"j{number}") for number in range(5)])
    assert len(await claims(store, 2)) == 2
    assert len(await claims(store, 9)) == 3
    assert await claims(store, 0) == []


async def test_only_the_queues_asked_for_are_served(store: Store) -> None:
    await store.submit([new_job("a", queue="mail"), new_job("b")])
    assert ids(await claims(store, queues={"mail": QueueLimit()})) == ["a"]
    assert await claims(store, queues={}) == []


async def test_higher_priority_comes_first_over_all_queues(store: Store) -> None:
    await store.submit([new_job("low"), new_job("high", priority=5, queue="mail")])
    await store.submit([new_job("middle", priority=3)])
    queues = {"default": QueueLimit(), "mail": QueueLimit()}
    assert ids(await claims(store, queues=queues)) == ["high", "middle", "low"]


async def test_tenants_take_turns(store: Store) -> None:
    await store.submit([new_job(f"big{number}", tenant="big") for number in range(50)])
    await store.submit([new_job(f"small{number}", tenant="small") for number in range(3)])
    first = ids(await claims(store, 6))
    assert sum(name.startswith("small") for name in first) == 3


async def test_a_tenant_that_comes_late_does_not_wait_behind_all_others(store: Store) -> None:
    await store.submit([new_job(f"big{number:03}", tenant="big") for number in range(100)])
    await claims(store, 40)
    await store.submit([new_job("small", tenant="small")])
    assert "small" in ids(await claims(store, 2))


async def test_a_tenant_that_was_idle_has_not_saved_up_turns(store: Store) -> None:
    await store.submit([new_job(f"a{number:03}", tenant="a") for number in range(50)])
    await claims(store, 50)
    await store.submit([new_job(f"b{number:03}", tenant="b") for number in range(20)])
    await store.submit([new_job(f"c{number:03}", tenant="a") for number in range(20)])
    names = ids(await claims(store, 10))
    assert sum(name.startswith("c") for name in names) >= 4


async def test_a_timer_makes_its_job_ready_when_it_is_due(store: Store, url: str) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, job=releases(due_at=claim.now + 3600)))
    assert await claims(store) == []
    assert 3500 < (await due_in(store) or 0) <= 3600
    sql(url, "UPDATE lease SET due_at = due_at - 7200")
    again = await claim_one(store)
    assert (again.job.id, again.epoch) == ("a", 2)


async def test_sleeping_jobs_are_not_in_the_way(store: Store) -> None:
    await store.submit([new_job(f"s{number}", delay=3600.0) for number in range(50)])
    await store.submit([new_job("a")])
    assert ids(await claims(store, 1)) == ["a"]


async def test_the_outlook_of_a_queue_tells_what_is_ready_and_when_the_next_is_due(
    store: Store,
) -> None:
    assert await store.outlook(["default"]) == [("default", False, None)]
    await started(store, "a")
    assert await store.outlook(["default"]) == [("default", False, None)]
    await store.submit([new_job("b", queue="mail")])
    assert await store.outlook(["default", "mail"]) == [
        ("default", False, None),
        ("mail", True, None),
    ]
    await store.submit([new_job("c", delay=60.0)])
    assert 50 < (await due_in(store) or 0) <= 60


async def test_the_epoch_only_grows(store: Store) -> None:
    epochs: list[int] = []
    claim = await started(store, "a")
    for _ in range(3):
        epochs.append(claim.epoch)
        await store.write(write_of(claim, job=releases(due_at=claim.now)))
        claim = await claim_one(store)
    assert epochs == [1, 2, 3]


async def test_a_compensating_job_stays_so_when_it_is_claimed(store: Store) -> None:
    claim = await started(store, "a")
    change = releases(JobState.COMPENSATING, due_at=claim.now)
    await store.write(write_of(claim, job=change))
    assert (await claim_one(store)).job.state == JobState.COMPENSATING


async def test_renew_tells_which_leases_are_still_held(store: Store) -> None:
    claim = await started(store, "a")
    await started(store, "b")
    held = [("a", claim.epoch), ("b", 99), ("nowhere", 1)]
    assert store.renew_blocking("w1", held, LEASE) == {"a"}
    assert store.renew_blocking("somebody", [("a", claim.epoch)], LEASE) == set()
    assert store.renew_blocking("w1", held, LEASE) == {"a"}


async def test_a_renewed_lease_does_not_run_out(store: Store) -> None:
    await store.submit([new_job("a"), new_job("b")])
    found = await claims(store, lease=GONE)
    assert store.renew_blocking("w1", [("a", found[0].epoch)], LEASE) == {"a"}
    assert await store.reap(10) == ["b"]


async def test_the_reaper_frees_what_has_run_out(store: Store) -> None:
    await store.submit([new_job("a")])
    await claim_one(store, lease=GONE)
    assert await store.reap(10) == ["a"]
    assert await store.reap(10) == []
    again = await claim_one(store, "w2")
    assert (again.job.id, again.epoch, again.job.claims) == ("a", 2, 2)
    assert "lease.expired" in [event.type for event in await store.events("a")]


async def test_the_reaper_leaves_living_owners_alone(store: Store) -> None:
    await started(store, "a")
    assert await store.reap(10) == []


async def test_the_reaper_takes_no_more_than_its_limit_but_all_of_the_dead(store: Store) -> None:
    await store.submit([new_job(name) for name in "abcdef"])
    await claims(store, 3, lease=GONE)
    await claims(store, 3, owner="dead")
    assert sorted(await store.reap(0, dead=["dead"])) == ["d", "e", "f"]
    assert len(await store.reap(2)) == 2
    assert len(await store.reap(2)) == 1


async def test_claims_without_progress_are_counted(store: Store) -> None:
    await store.submit([new_job("a")])
    for number in (1, 2, 3):
        claim = await claim_one(store, lease=GONE)
        assert claim.job.claims == number
        await store.reap(1)


async def test_progress_forgets_the_claims_before(store: Store) -> None:
    await store.submit([new_job("a")])
    for seq, progress in enumerate((entry(0), entry(1, StepState.FAILED), _checkpoint(2))):
        for _ in range(2):
            claim = await claim_one(store, lease=GONE)
            await store.reap(1)
        claim = await claim_one(store, lease=GONE)
        assert claim.job.claims >= 3, seq
        await store.write(write_of(claim, entry(9 + seq, StepState.RUNNING)))
        await store.write(write_of(claim, progress))
        await store.reap(1)
    assert (await claim_one(store)).job.claims == 1


async def test_progress_that_is_written_with_more_counts_too(store: Store) -> None:
    await store.submit([new_job("a")])
    for _ in range(3):
        claim = await claim_one(store, lease=GONE)
        await store.write(write_of(claim, events=(JobEvent(type="noted"),)))
        await store.reap(1)
    claim = await claim_one(store, lease=GONE)
    assert claim.job.claims == 4
    await store.write(write_of(claim, entry(0), events=(JobEvent(type="noted"),)))
    await store.reap(1)
    assert (await claim_one(store)).job.claims == 1


def _checkpoint(seq: int) -> JournalEntry:
    return entry(seq, StepState.RUNNING, checkpoint=b"1", checkpoint_no=1)


async def test_a_release_forgets_the_claims_before(store: Store) -> None:
    await store.submit([new_job("a")])
    await claim_one(store, lease=GONE)
    await store.reap(1)
    claim = await claim_one(store)
    await store.write(write_of(claim, job=releases(due_at=claim.now)))
    assert (await claim_one(store)).job.claims == 1


async def test_news_lists_what_is_asked_of_owned_jobs(store: Store) -> None:
    await started(store, "a")
    await started(store, "b")
    await store.send("b", "hello", b"1")
    listed = {news.job_id: (news.news, news.request) for news in await store.news("w1")}
    assert listed == {"a": (0, None), "b": (1, None)}
    assert await store.news("nobody") == []


async def test_an_ended_job_has_no_lease(store: Store, url: str) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, entry(0), job=ends(result=b"7")))
    assert sql(url, "SELECT count(*) FROM lease") == [(0,)]
    found = await store.job("a")
    assert found is not None
    assert (found.state, found.result, found.epoch) == (JobState.COMPLETED, b"7", 1)
    assert found.ended_at is not None
