"""The fenced write: all of it or nothing, only by the owner, and no news is lost."""

import asyncio
import re

import pytest
from msgspec import structs

from perdure.base.errors import (
    IllegalTransition,
    JournalConflict,
    KeyConflict,
    LeaseLost,
    StoreError,
)
from perdure.jobs.model import ChildWait, Command, JobEvent, JournalEntry, Write
from perdure.jobs.state import JobState, StepState
from perdure.store.store import Store
from tests.support.store import (
    GONE,
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


async def test_entries_are_read_back_as_they_were_written(store: Store) -> None:
    claim = await started(store)
    full = entry(
        3,
        id="send_mail#2",
        attempt=4,
        input=b'{"a": [1, null, "\xc3\xa9"]}',
        output=b'"done"',
        error=b'{"type": "E"}',
        checkpoint=b"[1]",
        checkpoint_no=9,
        wake_at=1.5,
        started_at=2.25,
        ended_at=1700000000.123456,
        key="k",
    )
    await store.write(write_of(claim, full, entry(1)))
    assert await store.journal("a") == [entry(1), full]


async def test_an_entry_is_written_over_by_the_next_one_of_its_place(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, entry(0, StepState.RUNNING, input=b"1", started_at=5.0)))
    await store.write(write_of(claim, entry(0, output=b"2", ended_at=6.0)))
    (found,) = await store.journal("a")
    assert (found.state, found.input, found.output) == (StepState.SUCCEEDED, b"1", b"2")
    assert (found.started_at, found.ended_at) == (5.0, 6.0)


@pytest.mark.parametrize(("owner", "epoch"), [("w2", 1), ("w1", 2), ("w1", 0)])
async def test_a_write_of_another_owner_or_epoch_is_refused(
    store: Store, owner: str, epoch: int
) -> None:
    await started(store)
    whose = Write(job_id="a", owner=owner, epoch=epoch)
    for write in (
        structs.replace(whose, entries=(entry(),)),
        structs.replace(whose, job=ends()),
        structs.replace(whose, events=(JobEvent(type="x"),)),
    ):
        with pytest.raises(LeaseLost, match="is lost"):
            await store.write(write)
    assert await store.journal("a") == []
    assert len(await store.events("a")) == 2


async def test_no_write_is_accepted_after_the_lease_was_reaped(store: Store) -> None:
    await store.submit([new_job("a")])
    claim = await claim_one(store, lease=GONE)
    await store.reap(1)
    with pytest.raises(LeaseLost):
        await store.write(write_of(claim, entry()))
    new = await claim_one(store, "w2")
    with pytest.raises(LeaseLost):
        await store.write(write_of(claim, job=ends()))
    await store.write(write_of(new, entry()))


async def test_an_owner_may_still_write_as_long_as_nobody_took_the_job(store: Store) -> None:
    await store.submit([new_job("a")])
    claim = await claim_one(store, lease=GONE)
    await store.write(write_of(claim, entry()))
    assert len(await store.journal("a")) == 1


async def test_of_writes_that_share_a_commit_only_those_of_the_lost_lease_fail(
    store: Store,
) -> None:
    await store.submit([new_job(f"j{number:02}") for number in range(20)])
    found = await claims(store)
    lost = {claim.job.id for claim in found[::3]}
    writes = [
        write_of(claim, entry(0), entry(1))
        if claim.job.id not in lost
        else Write(job_id=claim.job.id, owner="zombie", epoch=claim.epoch, entries=(entry(0),))
        for claim in found
    ]
    results = await asyncio.gather(*map(store.write, writes), return_exceptions=True)
    for write, result in zip(writes, results, strict=True):
        assert isinstance(result, LeaseLost) == (write.job_id in lost)
        assert len(await store.journal(write.job_id)) == (0 if write.job_id in lost else 2)


async def test_a_mixed_batch_does_each_write_as_a_whole(store: Store) -> None:
    await store.submit([new_job(f"j{number}") for number in range(6)])
    one, two, three, four, five, six = await claims(store)
    events = (JobEvent(type="noted"),)
    known = new_job("j0", fingerprint="other")
    results = await asyncio.gather(
        store.write(write_of(one, entry(0))),
        store.write(write_of(two, entry(0), job=ends(), events=events)),
        store.write(write_of(three, entry(0), events=events, children=(known,))),
        store.write(write_of(four, entry(0), job=releases(due_at=None))),
        store.write(Write(job_id=five.job.id, owner="zombie", epoch=1, job=ends())),
        store.write(write_of(six, entry(0), events=events)),
        return_exceptions=True,
    )  # fmt: skip
    assert [type(each).__name__ for each in results] == [
        "NoneType", "NoneType", "KeyConflict", "NoneType", "LeaseLost", "NoneType",
    ]  # fmt: skip
    written = [len(await store.journal(f"j{number}")) for number in range(6)]
    assert written == [1, 1, 0, 1, 0, 1]
    noted = [[e.type for e in await store.events(f"j{number}")][2:] for number in range(6)]
    assert noted == [[], ["noted"], [], [], [], ["noted"]]


async def test_writes_of_one_job_happen_in_their_order(store: Store) -> None:
    claim = await started(store)
    results = await asyncio.gather(
        store.write(write_of(claim, entry(0, StepState.RUNNING))),
        store.write(write_of(claim, entry(0, output=b"1"))),
        store.write(write_of(claim, entry(1, StepState.RUNNING))),
        store.write(write_of(claim, job=releases(due_at=claim.now))),
        store.write(write_of(claim, entry(1, output=b"2"))),
        return_exceptions=True,
    )
    assert [type(each).__name__ for each in results] == ["NoneType"] * 4 + ["LeaseLost"]
    states = [each.state for each in await store.journal("a")]
    assert states == [StepState.SUCCEEDED, StepState.RUNNING]


async def test_a_result_never_changes(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, entry(0, output=b"1")))
    with pytest.raises(IllegalTransition):
        await store.write(write_of(claim, entry(0, output=b"2")))
    with pytest.raises(IllegalTransition):
        await store.write(write_of(claim, entry(0, StepState.COMPENSATING, output=b"2")))
    with pytest.raises(IllegalTransition):
        await store.write(write_of(claim, entry(0, StepState.FAILED)))
    await store.write(write_of(claim, entry(0, StepState.COMPENSATING, output=b"1")))
    (found,) = await store.journal("a")
    assert (found.state, found.output) == (StepState.COMPENSATING, b"1")


async def test_what_comes_late_is_passed_over(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, entry(0, output=b"1", checkpoint=b"5", checkpoint_no=5)))
    late = [
        entry(0, StepState.RUNNING),
        entry(0, StepState.PENDING),
        entry(0, output=b"1"),
        entry(0, StepState.RUNNING, checkpoint=b"9", checkpoint_no=9),
    ]
    for each in late:
        await store.write(write_of(claim, each))
    await asyncio.gather(*(store.write(write_of(claim, each)) for each in [*late, entry(1)]))
    (found, second) = await store.journal("a")
    assert (found.state, found.output, found.checkpoint_no) == (StepState.SUCCEEDED, b"1", 5)
    assert second == entry(1)


async def test_an_older_checkpoint_is_passed_over(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, _checkpoint(7)))
    await store.write(write_of(claim, _checkpoint(6)))
    (found,) = await store.journal("a")
    assert found.checkpoint_no == 7
    await store.write(write_of(claim, _checkpoint(8)))
    assert (await store.journal("a"))[0].checkpoint == b"8"


def _checkpoint(number: int) -> JournalEntry:
    return entry(0, StepState.RUNNING, checkpoint=b"%d" % number, checkpoint_no=number)


async def test_an_illegal_state_of_the_job_is_refused_and_nothing_of_it_written(
    store: Store,
) -> None:
    claim = await started(store)
    with pytest.raises(IllegalTransition):
        await store.write(write_of(claim, entry(), job=ends(JobState.COMPENSATED)))
    assert await store.journal("a") == []
    found = await store.job("a")
    assert found is not None
    assert (found.state, found.owner) == (JobState.RUNNING, "w1")


async def test_a_released_job_waits_for_its_time(store: Store) -> None:
    claim = await started(store)
    change = releases(due_at=claim.now + 3600, wait=b'[{"kind": "timer"}]')
    await store.write(write_of(claim, job=change))
    found = await store.job("a")
    assert found is not None
    assert (found.state, found.owner, found.due_at) == (JobState.WAITING, None, claim.now + 3600)
    assert found.wait == b'[{"kind": "timer"}]'
    with pytest.raises(LeaseLost):
        await store.write(write_of(claim, entry()))


async def test_news_that_came_before_the_release_wakes_the_job_at_once(store: Store) -> None:
    claim = await started(store)
    await store.send("a", "hello", b"1")
    await store.write(write_of(claim, job=releases(), news_seen=claim.news))
    again = await claim_one(store)
    assert [message.payload for message in again.messages] == [b"1"]


async def test_news_that_was_seen_does_not_wake_the_job_again(store: Store) -> None:
    claim = await started(store)
    await store.send("a", "hello", b"1")
    (news,) = await store.news("w1")
    await store.write(write_of(claim, job=releases(), news_seen=news.news))
    assert await claims(store) == []


async def test_a_parked_job_is_not_woken_by_news(store: Store) -> None:
    for state in (JobState.PAUSED, JobState.NEEDS_ATTENTION):
        claim = await started(store, state.value)
        await store.command(Command(job_id=state.value, action="pause", actor="kim"))
        await store.send(state.value, "hello", b"1")
        change = releases(state, due_at=claim.now)
        await store.write(write_of(claim, job=change, news_seen=0))
        await store.send(state.value, "hello", b"2")
        assert await claims(store) == []


async def test_children_are_submitted_with_the_write(store: Store) -> None:
    claim = await started(store)
    child = new_job("child", parent="a", parent_seq=0)
    await store.write(write_of(claim, entry(0, StepState.PENDING), children=(child,)))
    assert (await claim_one(store, "w2")).job.parent == "a"
    await store.write(write_of(claim, entry(1), children=(child,)))
    assert await claims(store) == []


async def test_a_child_that_is_refused_undoes_its_write(store: Store) -> None:
    claim = await started(store)
    await store.submit([new_job("b", fingerprint="f")])
    child = new_job("b", fingerprint="g", parent="a")
    with pytest.raises(KeyConflict):
        await store.write(write_of(claim, entry(), children=(child,)))
    assert await store.journal("a") == []


async def test_the_end_of_a_child_wakes_its_parent(store: Store) -> None:
    claim = await started(store)
    child = new_job("child", parent="a", parent_seq=0)
    await store.write(write_of(claim, job=releases(), children=(child,), news_seen=0))
    own = await claim_one(store, "w2")
    assert own.job.id == "child"
    await store.write(write_of(own, job=ends()))
    assert (await claim_one(store)).job.id == "a"


async def test_the_end_of_a_child_is_news_for_a_parent_that_is_at_work(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, entry(), children=(new_job("child", parent="a"),)))
    own = await claim_one(store, "w2")
    await store.write(write_of(own, job=ends(JobState.FAILED, error=b'"E"')))
    assert [news.ends for news in await store.news("w1")] == [1]
    waits = releases(children=ChildWait(("child",), 1))
    await store.write(write_of(claim, job=waits, news_seen=claim.news))
    assert (await claim_one(store)).job.id == "a"


async def test_messages_that_were_taken_are_gone(store: Store) -> None:
    claim = await started(store)
    await store.send("a", "hello", b"1", key="k")
    await store.send("a", "hello", b"2")
    first, second = await store.messages("a")
    assert (first.payload, second.payload) == (b"1", b"2")
    await store.write(write_of(claim, entry(), taken=(first.no,)))
    assert await store.messages("a") == [second]
    assert await store.send("a", "hello", b"1", key="k") is False


async def test_a_write_whose_waiter_was_cancelled_is_done_as_a_whole(store: Store) -> None:
    claim = await started(store)
    writes = [store.write(write_of(claim, entry(seq), entry(seq + 100))) for seq in range(20)]
    tasks = [asyncio.ensure_future(write) for write in writes]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.write(write_of(claim, entry(50)))
    seqs = {each.seq for each in await store.journal("a")}
    assert all((seq in seqs) == (seq + 100 in seqs) for seq in range(20))
    assert {seq for seq in range(20) if seq % 2} <= seqs


async def test_what_cannot_be_stored_fails_alone(store: Store) -> None:
    claim = await started(store)
    bad = store.write(write_of(claim, entry(0, output=b"\xff")))
    good = store.write(write_of(claim, entry(1)))
    results = await asyncio.gather(bad, good, return_exceptions=True)
    assert isinstance(results[0], ValueError)
    assert results[1] is None


async def test_a_closed_store_says_so(store: Store, url: str) -> None:
    claim = await started(store)
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.write(write_of(claim, entry()))
    assert sql(url, "SELECT count(*) FROM journal") == [(0,)]


@pytest.mark.parametrize("how", ["alone", "with its like", "with an event", "in a batch"])
async def test_another_entry_never_takes_the_place_of_one_that_is_there(
    store: Store, how: str
) -> None:
    claim = await started(store)
    await store.write(write_of(claim, entry(1, StepState.RUNNING)))
    thief = entry(1, StepState.RUNNING, id="undo", name="undo")
    entries = (thief,) if how == "alone" else (entry(2), thief)
    events = (JobEvent(type="x"),) if how == "with an event" else ()
    bad = store.write(write_of(claim, *entries, events=events), alone=how == "alone")
    others = [store.write(write_of(claim, entry(3)))] if how == "in a batch" else []
    refused, *good = await asyncio.gather(bad, *others, return_exceptions=True)
    assert isinstance(refused, JournalConflict)
    assert re.search("step#1.*undo", str(refused))
    assert good == [None] * len(others)
    kept = {each.id for each in await store.journal("a")}
    assert kept == {"step#1", *(["step#3"] if others else [])}


async def test_a_start_that_comes_late_does_not_take_back_a_failure(store: Store) -> None:
    claim = await started(store)
    failed = entry(0, StepState.FAILED, error=b'"E"', attempt=1)
    await store.write(write_of(claim, failed))
    for late in (entry(0, StepState.RUNNING), entry(0, StepState.PENDING)):
        await store.write(write_of(claim, late))
        await store.write(write_of(claim, late, events=(JobEvent(type="x"),)))
    assert await store.journal("a") == [failed]
