"""The ends of children: a parent is due when as many have ended as its code waits for."""

from typing import Any

from perdure.jobs.model import ChildWait, Claim
from perdure.jobs.state import JobState
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.support.store import claim_one, claims, ends, entry, new_job, releases, write_of

KIDS = ("kid1", "kid2", "kid3")


async def family(store: Store) -> tuple[Claim, dict[str, Claim]]:
    """Start a parent and its three children, each owned by a worker."""
    await store.submit([new_job("parent")])
    parent = await claim_one(store)
    kids = tuple(new_job(id, parent="parent", parent_seq=0) for id in KIDS)
    await store.write(write_of(parent, entry(), children=kids))
    return parent, {claim.job.id: claim for claim in await claims(store, 3, "w2")}


async def suspend(store: Store, parent: Claim, wait: ChildWait | None, **values: Any) -> None:
    change = releases(children=wait, **values)
    await store.write(write_of(parent, job=change, news_seen=parent.news))


async def end(store: Store, claim: Claim, state: JobState = JobState.COMPLETED) -> None:
    await store.write(write_of(claim, job=ends(state, result=b"1")))


async def due(store: Store) -> list[str]:
    return [claim.job.id for claim in await claims(store)]


async def due_at(store: Store) -> float | None:
    parent = await store.job("parent")
    assert parent is not None
    return parent.due_at


async def test_a_parent_that_waits_for_all_is_due_at_the_last_end(store: Store) -> None:
    parent, kids = await family(store)
    await suspend(store, parent, ChildWait(KIDS, 3))
    await end(store, kids["kid1"])
    await end(store, kids["kid2"], JobState.FAILED)
    assert await due(store) == []
    found = await store.job("parent")
    assert found is not None
    assert (found.state, found.awaits) == (JobState.WAITING, 1)
    await end(store, kids["kid3"])
    assert await due(store) == ["parent"]


async def test_a_gathered_end_outlives_the_process(url: str, store: Store) -> None:
    parent, kids = await family(store)
    await suspend(store, parent, ChildWait(KIDS, 3))
    await end(store, kids["kid1"])
    await end(store, kids["kid2"])
    await store.close()
    again = open_store(url)
    await again.open()
    try:
        await end(again, kids["kid3"])
        assert await due(again) == ["parent"]
    finally:
        await again.close()


async def test_ends_before_the_parent_is_released_are_counted_too(store: Store) -> None:
    parent, kids = await family(store)
    await end(store, kids["kid1"])
    await end(store, kids["kid2"])
    await suspend(store, parent, ChildWait(KIDS, 3))
    assert await due(store) == []
    await end(store, kids["kid3"])
    assert await due(store) == ["parent"]


async def test_a_parent_whose_children_have_all_ended_is_due_when_it_is_released(
    store: Store,
) -> None:
    parent, kids = await family(store)
    for kid in kids.values():
        await end(store, kid)
    await suspend(store, parent, ChildWait(KIDS, 3))
    assert await due(store) == ["parent"]


async def test_a_parent_that_waits_for_one_is_due_at_the_first_end(store: Store) -> None:
    parent, kids = await family(store)
    await suspend(store, parent, ChildWait(KIDS, 1))
    await end(store, kids["kid2"], JobState.FAILED)
    assert await due(store) == ["parent"]


async def test_a_parent_that_names_no_children_is_due_at_any_end(store: Store) -> None:
    parent, kids = await family(store)
    await suspend(store, parent, None)
    await end(store, kids["kid2"])
    assert await due(store) == ["parent"]


async def test_further_ends_are_gathered_for_a_while_and_do_not_put_it_off(store: Store) -> None:
    parent, kids = await family(store)
    await suspend(store, parent, ChildWait(KIDS, 1, window=1000.0))
    await end(store, kids["kid1"])
    assert await due(store) == []
    first = await due_at(store)
    await end(store, kids["kid2"])
    assert await due_at(store) == first is not None


async def test_the_timer_of_a_parent_is_not_put_off_by_gathering(store: Store) -> None:
    parent, kids = await family(store)
    at = await store.now() + 500.0
    await suspend(store, parent, ChildWait(KIDS, 1, window=1000.0), due_at=at)
    await end(store, kids["kid1"])
    assert await due_at(store) == at


async def test_a_message_wakes_a_parent_before_its_children_have_ended(store: Store) -> None:
    parent, _ = await family(store)
    await suspend(store, parent, ChildWait(KIDS, 3))
    await store.send("parent", "hello", b"1")
    assert await due(store) == ["parent"]


async def test_children_that_end_in_one_transaction_are_all_counted(store: Store) -> None:
    parent, kids = await family(store)
    await suspend(store, parent, ChildWait(KIDS, 3))
    for kid in kids.values():
        store.write_soon(write_of(kid, job=ends(result=b"1")), lambda _: None)
    assert await store.job("parent") is not None
    await end_of_all(store)
    assert await due(store) == ["parent"]


async def end_of_all(store: Store) -> None:
    while {each.state for each in await store.outcomes(list(KIDS))} != {JobState.COMPLETED}:
        pass
