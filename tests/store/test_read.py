"""Reading, messages, schedules, workers, retention."""

import asyncio

import pytest
from msgspec.structs import replace

from perdure.base.errors import IllegalTransition, JobNotFound
from perdure.jobs.effect import Effect, Place
from perdure.jobs.model import (
    Claim,
    Command,
    EntryKind,
    JobEvent,
    JobOutcome,
    JobQuery,
    Schedule,
    TimeRange,
)
from perdure.jobs.query_text import QueryWords, parse
from perdure.jobs.state import JobState, StepState
from perdure.store.store import Store
from tests.support.store import (
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


async def listed(store: Store, **values: object) -> list[str]:
    query = JobQuery(**values)  # pyright: ignore[reportArgumentType]  its own fields
    return [job.id for job in await store.jobs(query)]


async def test_jobs_are_found_newest_first_and_by_every_field(store: Store) -> None:
    await store.submit([new_job("a", key="k")])
    await store.submit([new_job("b", tenant="other", name="else")])
    await store.submit([new_job("c", queue="mail", parent="a")])
    assert await listed(store) == ["c", "b", "a"]
    assert await listed(store, tenant="acme") == ["c", "a"]
    assert await listed(store, name="else") == ["b"]
    assert await listed(store, queue="mail") == ["c"]
    assert await listed(store, parent="a") == ["c"]
    assert await listed(store, ids=("a", "c", "nobody")) == ["c", "a"]
    assert await listed(store, parents=("a", "b")) == ["c"]
    assert await listed(store, key="k") == ["a"]
    assert await listed(store, states=(JobState.COMPLETED,)) == []
    assert await listed(store, states=(JobState.PENDING,), tenant="other") == ["b"]


async def test_a_page_begins_where_the_last_one_ended(store: Store) -> None:
    await store.submit([new_job(f"j{number}") for number in range(5)])
    seen: list[str] = []
    before: tuple[float, str] | None = None
    while page := await store.jobs(JobQuery(limit=2, before=before)):
        seen += [job.id for job in page]
        before = (page[-1].created_at, page[-1].id)
    assert seen == ["j4", "j3", "j2", "j1", "j0"]


async def test_a_tenant_sees_only_its_own_jobs(store: Store) -> None:
    await store.submit([new_job("a")])
    assert await store.job("a", tenant="acme") is not None
    assert await store.job("a", tenant="other") is None
    assert await store.job("nowhere") is None


async def test_jobs_are_counted_by_state(store: Store) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, job=ends()))
    await store.submit([new_job("b"), new_job("c", tenant="other")])
    assert await store.counts() == {"COMPLETED": 1, "PENDING": 2}
    assert await store.counts(JobQuery(tenant="other")) == {"PENDING": 1}


async def test_outcomes_tell_how_jobs_ended(store: Store) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, job=ends(JobState.FAILED, error=b'"E"')))
    await store.submit([new_job("b")])
    job = await store.job("a")
    assert job is not None
    assert await store.outcomes(["b", "nowhere", "a"]) == [
        JobOutcome("b", JobState.PENDING, None, None),
        JobOutcome("a", JobState.FAILED, None, b'"E"', ended_at=job.ended_at),
    ]


async def test_a_step_is_found_by_its_key_until_it_is_undone(store: Store) -> None:
    claim = await started(store)
    done = entry(0, output=b"7", key="k")
    await store.write(write_of(claim, entry(1, StepState.FAILED, key="failed"), done))
    lent = await store.entry_by_key("k")
    assert lent is not None
    assert (lent.entry, lent.being_undone) == (done, False)
    assert await store.entry_by_key("failed") is None
    assert await store.entry_by_key("unknown") is None
    await store.write(write_of(claim, replace(done, state=StepState.COMPENSATING)))
    assert await store.entry_by_key("k") is None


async def test_events_are_read_on_from_the_last_one_seen(store: Store) -> None:
    claim = await started(store, "a")
    events = tuple(JobEvent(type="x", data={"n": number}, actor="w1") for number in range(5))
    await store.write(write_of(claim, events=events))
    first = await store.events("a", limit=4)
    rest = await store.events("a", after=first[-1].no)
    assert [event.data.get("n") for event in [*first, *rest]] == [None, None, 0, 1, 2, 3, 4]


async def test_the_log_cannot_be_changed(store: Store, url: str) -> None:
    await store.submit([new_job("a")])
    with pytest.raises(Exception, match="append-only"):
        sql(url, "UPDATE event SET actor = 'nobody'")
    with pytest.raises(Exception, match="append-only"):
        sql(url, "DELETE FROM event")


async def test_a_live_job_cannot_be_deleted(store: Store, url: str) -> None:
    await store.submit([new_job("a")])
    with pytest.raises(Exception, match="cannot be deleted"):
        sql(url, "DELETE FROM job")


async def test_a_message_wakes_a_waiting_job(store: Store) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, job=releases(), news_seen=0))
    assert await claims(store) == []
    assert await store.send("a", "hello", b'{"x": 1}') is True
    again = await claim_one(store)
    (message,) = again.messages
    assert (message.topic, message.payload) == ("hello", b'{"x": 1}')


async def test_a_message_does_not_start_a_job_before_its_time(store: Store) -> None:
    await store.submit([new_job("a", delay=3600.0)])
    await store.send("a", "hello", b"1")
    assert await claims(store) == []


async def test_a_message_with_a_known_key_is_not_kept_again(store: Store) -> None:
    await started(store, "a")
    assert await store.send("a", "hello", b"1", key="k") is True
    assert await store.send("a", "hello", b"2", key="k") is False
    assert [message.payload for message in await store.messages("a")] == [b"1"]
    assert [news.news for news in await store.news("w1")] == [1]


async def test_a_message_to_nobody_or_to_an_ended_job_is_refused(store: Store) -> None:
    with pytest.raises(JobNotFound):
        await store.send("nowhere", "hello", b"1")
    claim = await started(store, "a")
    await store.write(write_of(claim, job=ends()))
    with pytest.raises(IllegalTransition, match="COMPLETED"):
        await store.send("a", "hello", b"1")


async def test_a_known_message_is_known_also_when_its_job_has_ended(store: Store) -> None:
    claim = await started(store, "a")
    await store.send("a", "hello", b"1", key="k")
    await store.write(write_of(claim, job=ends()))
    assert await store.send("a", "hello", b"1", key="k") is False


def schedule(name: str = "nightly", **values: object) -> Schedule:
    given: dict[str, object] = {"cron": "0 3 * * *", "job": new_job(""), "next_at": 100.0}
    return Schedule(name=name, **(given | values))  # pyright: ignore[reportArgumentType]  its own fields


async def test_a_schedule_is_read_back_and_replaced(store: Store) -> None:
    first = schedule(timezone="Europe/Berlin", catch_up="all", paused=True, last_at=50.0)
    await store.put_schedule(first)
    await store.put_schedule(schedule("b"))
    assert await store.schedules() == [schedule("b"), first]
    # As before but for its time zone, so at another time.
    await store.put_schedule(schedule(next_at=200.0))
    assert (await store.schedules())[1] == schedule(next_at=200.0, last_at=50.0, paused=True)
    # With the same rule, at the time that it has.
    await store.put_schedule(schedule(next_at=300.0, catch_up="skip"))
    found = (await store.schedules())[1]
    assert (found.next_at, found.catch_up) == (200.0, "skip")


async def test_a_schedule_fires_once_for_each_time(store: Store, other: Store) -> None:
    await store.put_schedule(schedule())
    fired = await asyncio.gather(
        store.fire(schedule(), 200.0, [new_job("a")]),
        other.fire(schedule(), 200.0, [new_job("b")]),
    )
    assert sorted(fired) == [False, True]
    assert len(await listed(store)) == 1
    (found,) = await store.schedules()
    assert (found.next_at, found.last_at) == (200.0, 100.0)


async def test_a_paused_schedule_does_not_fire(store: Store) -> None:
    await store.put_schedule(schedule(paused=True))
    assert await store.fire(schedule(), 200.0, [new_job("a")]) is False
    assert await listed(store) == []


async def test_workers_beat_and_sign_off(store: Store) -> None:
    assert (await store.heartbeat("w1", b'{"host": "x"}', "d1")).workers == 1
    assert (await store.heartbeat("w2", b"{}")).workers == 2
    first, _ = await store.workers()
    assert (first.owner, first.info, first.definitions) == ("w1", b'{"host": "x"}', "d1")
    assert first.silent_for >= 0
    assert (await store.heartbeat("w1", None)).workers == 1
    assert [worker.owner for worker in await store.workers()] == ["w2"]


async def test_prune_deletes_old_jobs_with_all_they_have(store: Store, url: str) -> None:
    claim = await started(store, "a")
    await store.send("a", "hello", b"1")
    await store.write(write_of(claim, entry(0), job=ends()))
    assert await store.prune(0.0, 10) == 0
    now = await store.now()
    assert await store.prune(now + 60, 10) == 1
    for table in ("job", "journal", "event", "message", "lease"):
        assert sql(url, f"SELECT count(*) FROM {table}") == [(0,)], table


async def test_prune_takes_no_more_than_asked_for(store: Store) -> None:
    await store.submit([new_job(name) for name in "abc"])
    for claim in await claims(store):
        await store.write(write_of(claim, job=ends()))
    assert await store.prune(await store.now() + 60, 2) == 2
    assert await store.prune(await store.now() + 60, 2) == 1


async def test_prune_keeps_what_a_live_job_refers_to(store: Store) -> None:
    parent = await started(store, "parent")
    await store.write(write_of(parent, entry(), children=(new_job("child", parent="parent"),)))
    child = await claim_one(store)
    await store.write(write_of(child, job=ends()))
    assert await store.prune(await store.now() + 60, 10) == 0
    await store.write(write_of(parent, job=ends()))
    assert await store.prune(await store.now() + 60, 10) == 2


async def test_prune_keeps_the_ended_parent_of_a_live_child(store: Store) -> None:
    parent = await started(store, "parent")
    child = new_job("child", parent="parent")
    await store.write(write_of(parent, entry(), children=(child,), job=ends()))
    assert await store.prune(await store.now() + 60, 10) == 0


async def test_the_watch_tells_of_changes_here_and_elsewhere(store: Store, other: Store) -> None:
    told = asyncio.Event()
    end = store.watch(told.set)
    await store.submit([new_job("a")])
    async with asyncio.timeout(10):
        await told.wait()
    while told.is_set():  # until all that was under way has been told
        told.clear()
        await store.counts()
        await other.counts()
    await other.submit([new_job("b")])
    async with asyncio.timeout(10):
        await told.wait()
    end()


async def test_the_clock_of_the_store_goes_on(store: Store) -> None:
    assert await store.now() <= await store.now()


async def _tree(store: Store) -> tuple[Claim, Claim]:
    """Make three generations, of which the last has ended; gives the claims of the others."""
    root = await started(store, "root")
    await store.write(write_of(root, entry(), children=(new_job("child", parent="root"),)))
    child = await claim_one(store)
    grandchild = new_job("grandchild", parent="child")
    await store.write(write_of(child, entry(), children=(grandchild,)))
    own = await claim_one(store)
    await store.write(write_of(own, entry(), job=ends()))
    return root, child


async def test_prune_keeps_a_whole_tree_until_its_first_job_has_ended(store: Store) -> None:
    root, child = await _tree(store)
    later = await store.now() + 60
    assert await store.prune(later, 10) == 0
    await store.write(write_of(child, job=ends()))
    assert await store.prune(later, 10) == 0  # the root may still be undone, and all of it
    await store.write(write_of(root, job=ends()))
    assert await store.prune(later, 10) == 3
    assert await store.job("grandchild") is None


async def test_prune_keeps_a_whole_tree_until_its_first_job_is_old(store: Store, url: str) -> None:
    root, child = await _tree(store)
    await store.write(write_of(child, job=ends()))
    await store.write(write_of(root, job=ends()))
    sql(url, "UPDATE job SET ended_at = 1 WHERE id <> 'root'")
    assert await store.prune(1000.0, 10) == 0
    assert await store.job("grandchild") is not None


async def test_prune_keeps_a_whole_tree_while_there_is_a_doubt_in_it(store: Store) -> None:
    root, child = await _tree(store)
    line = Effect(
        job_id="child",
        tenant="acme",
        no=0,
        place=Place("step#0", 1),
        key="k",
        kind="payment",
        target="card",
        called_at=1.0,
    )
    await store.write(write_of(child, effects=(line,)))
    await store.write(write_of(child, job=ends()))
    await store.write(write_of(root, job=ends()))
    assert await store.prune(await store.now() + 60, 10) == 0
    resolved = Command(
        job_id="child", action="resolve", actor="kim", effect=1, choice="did not happen"
    )
    await store.command(resolved)
    assert await store.prune(await store.now() + 60, 10) == 3


async def test_a_job_is_being_undone_from_when_it_is_told_to_until_it_has_ended(
    store: Store,
) -> None:
    claim = await started(store)
    assert not await store.is_being_undone("a")

    await store.write(write_of(claim, job=releases(JobState.COMPENSATING, due_at=0.0)))
    assert await store.is_being_undone("a")
    await store.command(Command(job_id="a", action="pause", actor="kim"))
    assert await store.is_being_undone("a")

    await store.command(Command(job_id="a", action="resume", actor="kim"))
    await store.write(write_of(await claim_one(store), job=ends(JobState.COMPENSATED)))
    assert not await store.is_being_undone("a")


async def test_an_undo_that_found_nothing_to_undo_does_not_count(store: Store) -> None:
    claim = await started(store)
    nothing = entry(0, StepState.SKIPPED, id="undo", kind=EntryKind.UNDO)
    await store.write(write_of(claim, nothing))
    assert not await store.is_being_undone("a")

    await store.write(
        write_of(claim, entry(1, StepState.PENDING, id="undo:pay#1", kind=EntryKind.UNDO))
    )
    assert await store.is_being_undone("a")


async def test_a_job_that_is_not_there_is_not_being_undone(store: Store) -> None:
    assert not await store.is_being_undone("nobody")


async def test_jobs_are_found_by_the_conditions_of_a_query_text(store: Store) -> None:
    await store.submit([new_job("a", name="load_all", key="june 1", user="ann")])
    await store.submit([new_job("b", name="load", queue="mail", parent="a")])
    await store.submit([new_job("c", name="send", labels={"team": "data", "env": "x"})])
    assert await found(store, "name:load*") == ["b", "a"]
    assert await found(store, "key:june*") == ["a"]
    assert await found(store, "user:ann") == ["a"]
    assert await found(store, "parent:none") == ["c", "a"]
    assert await found(store, "-name:load -queue:mail") == ["c", "a"]
    assert await found(store, "-user:ann") == ["c", "b"]
    assert await found(store, "-label.team:data") == ["b", "a"]
    assert await found(store, "label.team:data -label.env:x") == []
    assert await found(store, "-state:completed") == ["c", "b", "a"]
    assert await found(store, "state:done") == []


async def test_words_are_looked_for_in_id_name_key_and_user(store: Store) -> None:
    await store.submit([new_job("abc", name="load_all", key="June 1", user="ann")])
    await store.submit([new_job("b", name="loader", user="kim")])
    assert await found(store, "LOAD") == ["b", "abc"]
    assert await found(store, "load june") == ["abc"]
    assert await found(store, "ann") == await found(store, "bc") == ["abc"]
    assert await found(store, "nothing") == []
    assert await store.counts(parse("load june")) == {"PENDING": 1}


async def test_jobs_are_found_by_age_and_time(store: Store) -> None:
    claim = await started(store, "a")
    await store.write(write_of(claim, job=ends()))
    await store.submit([new_job("b")])
    now = await store.now()
    assert await found(store, "created:<1h") == ["b", "a"]
    assert await found(store, "created:>1h") == []
    assert await found(store, "ended:<1h") == ["a"]
    assert await found(store, "ended:>1h") == []
    assert await listed(store, created=TimeRange(after=now - 60, before=now + 60)) == ["b", "a"]
    assert await listed(store, created=TimeRange(after=now + 60)) == []
    assert await listed(store, created=TimeRange(before=now - 60, younger=10)) == []


async def test_jobs_are_found_by_what_they_wait_for(store: Store) -> None:
    claim = await started(store, "a")
    wait = b'[{"kind": "timer", "id": "sleep#1"}, {"kind": "approval", "id": "ask#1"}]'
    await store.write(write_of(claim, job=releases(wait=wait)))
    await store.submit([new_job("b")])
    assert await found(store, "waits:approval") == await found(store, "waits:timer") == ["a"]
    assert await found(store, "waits:message") == []


async def found(store: Store, text: str) -> list[str]:
    return [job.id for job in await store.jobs(parse(text))]


async def test_the_words_of_a_tenant_are_those_of_its_own_jobs(store: Store) -> None:
    await store.submit([new_job("a", name="load", labels={"team": "data"})])
    await store.submit([new_job("b", name="send", tenant="other", queue="mail", user="ann")])
    assert await store.query_words("other") == QueryWords(
        names=("send",), queues=("mail",), users=("ann",), tenants=("other",)
    )
    every = await store.query_words()
    assert every.names == ("load", "send")
    assert every.labels == {"team": ("data",)}
