"""A clock that somebody sets does not delay what is due at once, and takes no lease from a worker.

Each case below makes a job due at once in another way. Then the clock goes back, or forward, by an
hour, and the job must be claimed all the same.
"""

from collections.abc import Awaitable, Callable

import pytest

from perdure.jobs.model import ChildWait, Command, EntryKind, JobChange
from perdure.jobs.state import JobState, StepState
from perdure.store.store import Store
from tests.support.set_clock import StoreClock
from tests.support.store import (
    GONE,
    claim_one,
    claims,
    ends,
    entry,
    new_job,
    releases,
    started,
    write_of,
)

HOUR = 3600.0


async def submitted(store: Store) -> None:
    await store.submit([new_job("a")])


async def released(store: Store) -> None:
    await store.write(write_of(await started(store), job=releases(at_once=True)))


async def undone(store: Store) -> None:
    claim = await started(store)
    change = JobChange(state=JobState.COMPENSATING, release=True, at_once=True)
    await store.write(write_of(claim, job=change))


async def resumed(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, job=releases(JobState.NEEDS_ATTENTION)))
    await store.command(Command(job_id="a", action="resume", actor="kim"))


async def retried(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, job=ends(JobState.FAILED)))
    await store.command(Command(job_id="a", action="retry", actor="kim"))


async def told(store: Store) -> None:
    await store.write(write_of(await started(store), job=releases()))
    await store.send("a", "topic", b"1", key="k")


async def orphaned(store: Store) -> None:
    await store.submit([new_job("a")])
    await claim_one(store, lease=GONE)
    await store.reap(10)


async def bereaved(store: Store) -> None:
    await store.submit([new_job("a")])
    await claim_one(store, "dead")
    await store.reap(0, ["dead"])


async def child_ended(store: Store) -> None:
    parent = await started(store)
    waits_for_it = entry(0, StepState.RUNNING, kind=EntryKind.CHILD, name="work", id="work#1")
    child_job = new_job("b", parent="a", parent_seq=0)
    await store.write(write_of(parent, waits_for_it, children=(child_job,)))
    child = await claim_one(store)
    waits = releases(children=ChildWait(("b",), 1, 0.0))
    await store.write(write_of(parent, job=waits))
    await store.write(write_of(child, job=ends()))


WAYS: list[Callable[[Store], Awaitable[None]]] = [
    submitted,
    released,
    undone,
    resumed,
    retried,
    told,
    orphaned,
    bereaved,
    child_ended,
]


@pytest.mark.parametrize("step", [HOUR, -HOUR])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_what_is_due_at_once_is_claimed_although_the_clock_was_set(
    timed: Store, clock: StoreClock, way: Callable[[Store], Awaitable[None]], step: float
) -> None:
    await way(timed)
    clock.step(step)
    assert [claim.job.id for claim in await claims(timed)] == ["a"]
    assert await timed.violations() == []
