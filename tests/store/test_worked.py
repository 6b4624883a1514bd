"""Worked time: how long owners had a job, over all claims, by the clock of the leases."""

from perdure.jobs.model import Command, JobQuery
from perdure.jobs.state import JobState
from perdure.store.store import Store
from tests.support.store import LEASE, claim_one, ends, new_job, releases, sql, started, write_of

LONG = 1000.0  # seconds, beside which the time that a test takes does not count


def pass_time(url: str) -> None:
    """Pretend that the claims of all jobs began, or were renewed, long ago."""
    sql(url, f"UPDATE lease SET since = since - {LONG}, until = until + {LONG}")


async def worked(store: Store, job_id: str = "a") -> int:
    """Return how many of these long times a job was worked on."""
    job = await store.job(job_id)
    assert job is not None
    (listed,) = await store.jobs(JobQuery())
    assert listed.worked // LONG == job.worked // LONG
    return int(job.worked // LONG)


async def test_the_time_of_every_claim_counts_and_that_of_waits_does_not(
    store: Store, url: str
) -> None:
    claim = await started(store)
    assert await worked(store) == 0
    pass_time(url)
    assert await worked(store) == 1  # while it runs
    await store.write(write_of(claim, job=releases(due_at=0.0)))
    pass_time(url)
    assert await worked(store) == 1  # it waited
    claim = await claim_one(store)
    assert claim.job.worked // LONG == 1
    pass_time(url)
    await store.write(write_of(claim, job=ends()))
    assert await worked(store) == 2


async def test_a_renewal_saves_what_was_worked_so_far(store: Store, url: str) -> None:
    claim = await started(store)
    pass_time(url)
    assert store.renew_blocking("w1", [("a", claim.epoch)], LEASE) == {"a"}
    assert await worked(store) == 1


async def test_a_claim_that_was_killed_counts_until_its_job_is_taken_back(
    store: Store, url: str
) -> None:
    await started(store)
    pass_time(url)
    assert await worked(store) == 1
    assert await store.reap(0, ["w1"]) == ["a"]  # its worker is dead
    assert await worked(store) == 1
    assert (await claim_one(store)).job.worked // LONG == 1
    # It is silent: its lease ran out long ago, and only the time until then counts.
    sql(url, f"UPDATE lease SET since = since - {3 * LONG}, until = until - {2 * LONG}")
    assert await worked(store) == 2
    assert await store.reap(1) == ["a"]
    assert await worked(store) == 2
    await store.write(write_of(await claim_one(store), job=ends()))
    assert await worked(store) == 2


async def test_a_job_that_is_retried_keeps_what_it_has_worked(store: Store, url: str) -> None:
    claim = await started(store)
    pass_time(url)
    await store.write(write_of(claim, job=ends(JobState.FAILED)))
    await store.command(Command(job_id="a", action="retry", actor="kim"))
    assert await worked(store) == 1
    claim = await claim_one(store)
    pass_time(url)
    await store.write(write_of(claim, job=ends()))
    assert await worked(store) == 2


async def test_a_job_that_no_worker_had_has_worked_for_no_time(store: Store) -> None:
    await store.submit([new_job("a")])
    await store.command(Command(job_id="a", action="cancel", actor="kim"))
    job = await store.job("a")
    assert job is not None
    assert job.worked == 0.0
