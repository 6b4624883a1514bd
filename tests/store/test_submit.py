"""Submitting: once, all or none, and what is read back is what was given."""

import asyncio

import pytest

from perdure.base.errors import IllegalTransition, JobNotFound, KeyConflict
from perdure.jobs.model import NewBeginning, QueueLimit, Submitted
from perdure.jobs.state import JobState
from perdure.store.store import Store
from tests.support.store import (
    claim_one,
    claims,
    ends,
    entry,
    new_job,
    releases,
    started,
    write_of,
)


async def test_a_job_is_read_back_as_it_was_given(store: Store) -> None:
    job = new_job(
        "a",
        plan=b'{"calls": [{"step": "x"}]}',
        queue="mail",
        priority=3,
        key="k",
        parent="p",
        parent_seq=7,
        input='{"name": "Zoë 🐘 \\u0001"}'.encode(),
    )
    assert await store.submit([job], actor="kim") == [Submitted("a", True)]
    found = await store.job("a")
    assert found is not None
    assert found.state == JobState.PENDING
    for name in ("id", "tenant", "user", "name", "version", "input", "plan", "queue", "priority"):
        assert getattr(found, name) == getattr(job, name)
    for name in ("key", "parent", "parent_seq"):
        assert getattr(found, name) == getattr(job, name)
    assert found.due_at == found.created_at
    assert (found.epoch, found.claims, found.owner) == (0, 0, None)


async def test_the_submission_is_in_the_log_with_its_actor(store: Store) -> None:
    await store.submit([new_job("a")], actor="robot")
    (event,) = await store.events("a")
    assert (event.type, event.actor) == ("submitted", "robot")
    found = await store.job("a")
    assert found is not None
    assert event.at == found.created_at


async def test_the_same_key_with_the_same_fingerprint_is_the_same_job(store: Store) -> None:
    first, second = new_job("a", key="k", fingerprint="f"), new_job("b", key="k", fingerprint="f")
    assert await store.submit([first]) == [Submitted("a", True)]
    assert await store.submit([second]) == [Submitted("a", False)]
    assert await store.job("b") is None
    assert len(await store.events("a")) == 1


async def test_two_of_one_batch_with_the_same_key_are_one_job(store: Store) -> None:
    jobs = [new_job("a", key="k"), new_job("b", key="k")]
    assert await store.submit(jobs) == [Submitted("a", True), Submitted("a", False)]


async def test_the_same_key_with_another_fingerprint_is_refused(store: Store) -> None:
    await store.submit([new_job("a", key="k", fingerprint="f")])
    with pytest.raises(KeyConflict, match="'k' belongs to job 'a'"):
        await store.submit([new_job("b", key="k", fingerprint="g")])


async def test_a_key_is_a_key_of_its_tenant_alone(store: Store) -> None:
    await store.submit([new_job("a", key="k", fingerprint="f")])
    other = new_job("b", tenant="other", key="k", fingerprint="g")
    assert await store.submit([other]) == [Submitted("b", True)]
    again = new_job("c", tenant="other", key="k", fingerprint="g")
    assert await store.submit([again]) == [Submitted("b", False)]
    again = new_job("c", key="k", fingerprint="f")
    assert await store.submit([again]) == [Submitted("a", False)]


async def test_a_key_is_still_known_when_its_job_has_ended(store: Store) -> None:
    claim = await started(store, "a", key="k")
    await store.write(write_of(claim, job=ends()))
    assert await store.submit([new_job("b", key="k")]) == [Submitted("a", False)]


async def test_the_same_id_again_is_the_same_job(store: Store) -> None:
    await store.submit([new_job("a", fingerprint="f")])
    assert await store.submit([new_job("a", fingerprint="f")]) == [Submitted("a", False)]
    with pytest.raises(KeyConflict, match="the id 'a'"):
        await store.submit([new_job("a", fingerprint="g")])


async def test_a_batch_is_kept_as_a_whole_or_not_at_all(store: Store) -> None:
    await store.submit([new_job("a", key="k", fingerprint="f")])
    batch = [new_job("b"), new_job("c", key="k", fingerprint="g")]
    with pytest.raises(KeyConflict):
        await store.submit(batch)
    assert await store.job("b") is None
    assert [claim.job.id for claim in await claims(store)] == ["a"]


async def test_a_batch_with_some_that_are_known_keeps_the_others(store: Store) -> None:
    await store.submit([new_job("a", key="k")])
    batch = [new_job("b", key="l"), new_job("c", key="k"), new_job("d"), new_job("e", key="l")]
    assert await store.submit(batch) == [
        Submitted("b", True),
        Submitted("a", False),
        Submitted("d", True),
        Submitted("b", False),
    ]
    assert sorted(claim.job.id for claim in await claims(store)) == ["a", "b", "d"]


async def test_submissions_at_once_are_kept_each_for_itself(store: Store) -> None:
    await store.submit([new_job("a", key="k", fingerprint="f")])
    batches = [
        [new_job("b"), new_job("c")],
        [new_job("d"), new_job("e", key="k", fingerprint="g")],
        [new_job("f", key="k", fingerprint="f")],
        [new_job("g")],
        [],
    ]
    found = await asyncio.gather(*map(store.submit, batches), return_exceptions=True)
    assert found[0] == [Submitted("b", True), Submitted("c", True)]
    assert isinstance(found[1], KeyConflict)
    assert found[2:] == [[Submitted("a", False)], [Submitted("g", True)], []]
    assert sorted(claim.job.id for claim in await claims(store)) == ["a", "b", "c", "g"]


async def test_a_batch_takes_turns_in_each_queue_and_for_each_tenant(store: Store) -> None:
    both = {"default": QueueLimit(), "mail": QueueLimit()}
    names = ["a1", "a2", "b1", "a3", "b2", "c1"]
    await store.submit([new_job(f"0{name}", tenant=name[0]) for name in names])
    await store.submit([new_job(f"1{name}", tenant=name[0]) for name in names])
    await store.submit([new_job("m1", queue="mail"), new_job("m2", queue="mail")])
    order = [claim.job.id for claim in await claims(store)]
    rounds = [order[:3], order[3:6], order[6:8], order[8:10], order[10:11], order[11:]]
    assert [sorted(each) for each in rounds] == [
        ["0a1", "0b1", "0c1"],
        ["0a2", "0b2", "1c1"],
        ["0a3", "1b1"],
        ["1a1", "1b2"],
        ["1a2"],
        ["1a3"],
    ]
    assert [claim.job.id for claim in await claims(store, queues=both)] == ["m1", "m2"]


async def test_a_batch_is_kept_in_its_order(store: Store) -> None:
    ids = [f"j{number:04}" for number in range(1000)]
    done = await store.submit([new_job(id) for id in reversed(ids)])
    assert done == [Submitted(id, True) for id in reversed(ids)]
    assert [claim.job.id for claim in await claims(store, 1000)] == list(reversed(ids))


async def test_a_delayed_job_cannot_be_claimed_before_its_time(store: Store) -> None:
    await store.submit([new_job("a", delay=3600.0)])
    assert await claims(store) == []
    found = await store.job("a")
    assert found is not None
    assert found.due_at == pytest.approx(found.created_at + 3600)
    ((_, ready, due_in),) = await store.outlook(["default"])
    assert (ready, due_in) == (False, pytest.approx(3600, abs=60))


async def test_a_deadline_counts_from_the_submission(store: Store) -> None:
    await store.submit([new_job("a", deadline=60.0)])
    found = await store.job("a")
    assert found is not None
    assert found.deadline_at == pytest.approx(found.created_at + 60)


async def test_a_fork_begins_with_a_part_of_the_journal(store: Store) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, entry(0), entry(1), entry(2)))
    await store.fork("a", new_job("b", forked_from="a"), before=2, actor="kim")
    copied = await claim_one(store, "w2")
    assert copied.job.forked_from == "a"
    assert [(each.seq, each.output) for each in copied.journal] == [(0, b"1"), (1, b"1")]
    assert [event.type for event in await store.events("a")][-1] == "forked"
    assert [each.seq for each in await store.journal("a")] == [0, 1, 2]


async def test_a_fork_before_an_entry_that_is_not_there_any_more_is_refused(store: Store) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, entry(0), entry(1)))
    begins = NewBeginning(name="work", version="1", input=b"2", seq=2)
    await store.write(write_of(claim, entry(2), job=releases(begins_anew=begins)))
    with pytest.raises(IllegalTransition, match="begun anew"):
        await store.fork("a", new_job("b", forked_from="a"), before=1, actor="kim")
    assert await store.job("b") is None


async def test_a_fork_of_nothing_is_refused(store: Store) -> None:
    with pytest.raises(JobNotFound):
        await store.fork("a", new_job("b"), before=1, actor="kim")
    assert await store.job("b") is None
