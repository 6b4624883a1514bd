"""Limits of queues hold over the whole fleet, and leave room for others."""

from collections import Counter

import pytest

from perdure.jobs.model import QueueLimit
from perdure.store.store import Store
from tests.support.set_clock import StoreClock
from tests.support.store import claims, ends, new_job, write_of


async def test_no_more_run_than_the_queue_allows(store: Store, other: Store) -> None:
    await store.submit([new_job(f"j{number}") for number in range(10)])
    queues = {"default": QueueLimit(running=3)}
    first = await claims(store, 2, queues=queues)
    second = await claims(other, 9, owner="w2", queues=queues)
    assert (len(first), len(second)) == (2, 1)
    assert await claims(store, queues=queues) == []
    await store.write(write_of(first[0], job=ends()))
    assert len(await claims(other, owner="w2", queues=queues)) == 1


async def test_no_tenant_runs_more_than_it_may(store: Store) -> None:
    await store.submit([new_job(f"a{number:02}", tenant="a", priority=9) for number in range(30)])
    await store.submit([new_job(f"b{number:02}", tenant="b") for number in range(30)])
    queues = {"default": QueueLimit(running_per_tenant=2)}
    found = await claims(store, 10, queues=queues)
    assert Counter(claim.job.tenant for claim in found) == {"a": 2, "b": 2}
    assert await claims(store, 10, queues=queues) == []


async def test_a_full_tenant_does_not_hold_up_the_others(store: Store) -> None:
    await store.submit([new_job(f"a{number:03}", tenant="a", priority=9) for number in range(200)])
    await store.submit([new_job("b", tenant="b")])
    queues = {"default": QueueLimit(running_per_tenant=1)}
    assert {claim.job.tenant for claim in await claims(store, 2, queues=queues)} == {"a", "b"}


async def test_both_limits_hold_together(store: Store) -> None:
    await store.submit([new_job(f"{tenant}{n}", tenant=tenant) for tenant in "abcd" for n in "12"])
    queues = {"default": QueueLimit(running=3, running_per_tenant=1)}
    found = await claims(store, queues=queues)
    assert len({claim.job.tenant for claim in found}) == len(found) == 3


async def test_no_more_start_than_the_rate_allows(timed: Store, clock: StoreClock) -> None:
    other = await clock.open()
    await timed.submit([new_job(f"j{number:02}") for number in range(40)])
    queues = {"default": QueueLimit(rate=10, per=60.0)}
    assert len(await claims(timed, 3, queues=queues)) == 3
    clock.let_pass(30)
    assert len(await claims(other, 9, owner="w2", queues=queues)) == 7
    clock.let_pass(25)
    assert await claims(timed, queues=queues) == []  # ten in the last minute
    clock.let_pass(10)
    assert len(await claims(timed, queues=queues)) == 3
    clock.let_pass(600)
    assert len(await claims(timed, queues=queues)) == 10  # what was not used does not add up
    await other.close()


@pytest.mark.parametrize("step", [36000.0, -36000.0])
async def test_a_clock_that_is_set_does_not_stop_a_rated_queue(
    timed: Store, clock: StoreClock, step: float
) -> None:
    await timed.submit([new_job(f"j{number}") for number in range(20)])
    queues = {"default": QueueLimit(rate=4, per=3600.0)}
    assert len(await claims(timed, queues=queues)) == 4
    clock.step(step)
    again = await claims(timed, queues=queues)
    assert len(again) <= 4
    clock.let_pass(3601)  # at most one `per` after it
    assert len(await claims(timed, queues=queues)) == 4


async def test_a_limited_queue_does_not_limit_another(store: Store) -> None:
    await store.submit([new_job("a", queue="slow"), new_job("b", queue="slow"), new_job("c")])
    queues = {"slow": QueueLimit(running=1), "default": QueueLimit()}
    assert {claim.job.id for claim in await claims(store, queues=queues)} == {"a", "c"}
