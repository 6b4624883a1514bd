"""Limits of queues hold over the whole fleet, and leave room for others."""

from collections import Counter

from perdure.jobs.model import QueueLimit
from perdure.store.store import Store
from tests.support.store import claims, ends, new_job, sql, write_of


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


async def test_no_more_start_than_the_rate_allows(store: Store, other: Store, url: str) -> None:
    await store.submit([new_job(f"j{number}") for number in range(20)])
    queues = {"default": QueueLimit(rate=4, per=3600.0)}
    assert len(await claims(store, 3, queues=queues)) == 3
    assert len(await claims(other, 9, owner="w2", queues=queues)) == 1
    assert await claims(store, queues=queues) == []
    sql(url, "UPDATE queue SET tokens_at = tokens_at - 1800")
    assert len(await claims(store, queues=queues)) == 2
    sql(url, "UPDATE queue SET tokens_at = tokens_at - 72000")
    assert len(await claims(store, queues=queues)) == 4


async def test_a_clock_that_was_ahead_does_not_stop_a_rated_queue(store: Store, url: str) -> None:
    await store.submit([new_job(f"j{number}") for number in range(20)])
    queues = {"default": QueueLimit(rate=4, per=3600.0)}
    assert len(await claims(store, queues=queues)) == 4
    sql(url, "UPDATE queue SET tokens_at = tokens_at + 360000")  # as if claimed by that clock
    assert await claims(store, queues=queues) == []
    sql(url, "UPDATE queue SET tokens_at = tokens_at - 1800")  # half an hour goes by
    assert len(await claims(store, queues=queues)) == 2


async def test_a_limited_queue_does_not_limit_another(store: Store) -> None:
    await store.submit([new_job("a", queue="slow"), new_job("b", queue="slow"), new_job("c")])
    queues = {"slow": QueueLimit(running=1), "default": QueueLimit()}
    assert {claim.job.id for claim in await claims(store, queues=queues)} == {"a", "c"}
