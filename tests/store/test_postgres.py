"""What can go wrong between us and a server: each transaction happens once, never by a guess."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from perdure.base.errors import LeaseLost, StoreUnreachable
from perdure.jobs.model import Command, JobEvent, QueueLimit
from perdure.jobs.state import StepState
from perdure.store.open import open_store
from perdure.store.postgres.connection import Target
from perdure.store.store import Store
from tests.programmes.late_commits import Plan, attack
from tests.support.postgres_proxy import Proxy, delay_each_question, lose_each_answer
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

_SHOWN = ("statement_timeout", "work_mem", "lock_timeout")


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Store]:
    store = open_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(postgres_url) as running:
        yield running


async def test_a_store_opens_though_its_connection_is_lost_meanwhile(proxy: Proxy) -> None:
    async def attempt(number: int) -> None:
        async with opened(proxy.url) as store:
            assert await store.job(f"{number}") is None

    assert await lose_each_answer(proxy, attempt) >= 10


async def test_a_submission_whose_answer_is_lost_happened_once(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:

        async def attempt(number: int) -> None:
            (result,) = await store.submit([new_job(f"j{number:02}")])
            assert result.created
            assert len(await store.events(f"j{number:02}")) == 1

        times = await lose_each_answer(proxy, attempt)
        assert times >= 2
        assert len(await claims(store)) == times + 1


async def test_a_journal_entry_whose_answer_is_lost_is_written_once(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:
        claim = await started(store)

        async def attempt(number: int) -> None:
            await store.write(write_of(claim, entry(number)))

        times = await lose_each_answer(proxy, attempt)
        assert times >= 1
        assert [each.seq for each in await store.journal("a")] == list(range(times + 1))


async def test_a_write_of_everything_whose_answer_is_lost_happened_once(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:
        claim = await started(store)

        async def attempt(number: int) -> None:
            child = new_job(f"c{number}", queue="other")
            await store.write(
                write_of(claim, entry(number), events=(JobEvent(type="x"),), children=(child,))
            )

        times = await lose_each_answer(proxy, attempt)
        assert times >= 4
        noted = [event.type for event in await store.events("a")].count("x")
        assert noted == times + 1
        assert (await store.counts())["PENDING"] == times + 1


async def test_an_end_whose_answer_is_lost_is_no_lost_lease(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:

        async def attempt(number: int) -> None:
            proxy.disarm()
            claim = await started(store, f"j{number}")
            proxy.arm(number)
            await store.write(write_of(claim, entry(0), job=ends(result=b"1")))

        times = await lose_each_answer(proxy, attempt)
        assert times >= 3
        assert await store.counts() == {"COMPLETED": times + 1}


@pytest.mark.parametrize("limit", [QueueLimit(), QueueLimit(running=100)])
async def test_a_claim_whose_answer_is_lost_is_made_once(proxy: Proxy, limit: QueueLimit) -> None:
    async with opened(proxy.url) as store:
        await store.submit([new_job(f"j{number:02}") for number in range(60)])

        async def attempt(number: int) -> None:
            claim = await claim_one(store, queues={"default": limit})
            assert (claim.epoch, claim.job.claims) == (1, 1)
            assert claim.job.name == "work"
            await store.write(write_of(claim, job=releases()))

        times = await lose_each_answer(proxy, attempt)
        assert times >= 6


async def test_a_message_whose_answer_is_lost_is_sent_once(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:
        await started(store)

        async def attempt(number: int) -> None:
            assert await store.send("a", "hello", b"%d" % number, key=str(number)) is True

        times = await lose_each_answer(proxy, attempt)
        assert len(await store.messages("a")) == times + 1


async def test_a_command_whose_answer_is_lost_is_obeyed_once(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:

        async def attempt(number: int) -> None:
            proxy.disarm()
            await store.submit([new_job(f"j{number}")])
            proxy.arm(number)
            await store.command(Command(job_id=f"j{number}", action="cancel", actor="kim"))

        times = await lose_each_answer(proxy, attempt)
        assert await store.counts() == {"CANCELLED": times + 1}


async def test_a_message_that_arrives_late_is_sent_once(proxy: Proxy, postgres_url: str) -> None:
    """The connection is lost at the commit, and the commit is still on its way."""
    async with opened(proxy.url) as store:
        await started(store)

        async def attempt(number: int) -> None:
            assert await store.send("a", "hello", b"%d" % number) is True

        times = await delay_each_question(proxy, postgres_url, attempt)
        assert times >= 4
        sent = [message.payload for message in await store.messages("a")]
        assert sent == [b"%d" % number for number in range(times + 1)]


async def test_a_write_of_everything_that_arrives_late_happened_once(
    proxy: Proxy, postgres_url: str
) -> None:
    async with opened(proxy.url) as store:
        claim = await started(store)

        async def attempt(number: int) -> None:
            child = new_job(f"c{number}", queue="other")
            note = JobEvent(type="x", data={"number": number})
            await store.write(write_of(claim, entry(number), events=(note,), children=(child,)))

        times = await delay_each_question(proxy, postgres_url, attempt)
        assert times >= 4
        noted = [event.data["number"] for event in await store.events("a") if event.type == "x"]
        assert noted == list(range(times + 1))
        assert (await store.counts())["PENDING"] == times + 1


async def test_a_claim_that_arrives_late_takes_nothing(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:
        await store.submit([new_job("a"), new_job("b")])
        proxy.hold(mark=b"the claimer")
        claim = await claim_one(store, "the claimer")
        await proxy.deliver()
        (other,) = await claims(store, owner="another")
        assert {claim.job.id, other.job.id} == {"a", "b"}


async def test_a_journal_entry_that_arrives_late_undoes_no_newer_one(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:
        claim = await started(store)
        proxy.hold(mark=b'"RUNNING"')
        await store.write(write_of(claim, entry(0, StepState.RUNNING)))
        await store.write(write_of(claim, entry(0, StepState.PENDING, wake_at=9.0)))
        await proxy.deliver()
        (kept,) = await store.journal("a")
        assert (kept.state, kept.wake_at) == (StepState.PENDING, 9.0)


async def test_what_arrives_when_its_store_is_closed_does_not_happen(
    proxy: Proxy, postgres_url: str
) -> None:
    async with opened(proxy.url) as store:
        await store.submit([new_job("a"), new_job("b")])
        proxy.hold(mark=b"the claimer")
        await claim_one(store, "the claimer")
    await proxy.deliver()
    assert sql(postgres_url, "SELECT count(*) FROM lease WHERE owner IS NOT NULL") == [(1,)]


async def test_a_store_that_was_cut_off_goes_on(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:
        claim = await started(store)
        for seq in range(5):
            proxy.cut_all()
            await asyncio.gather(
                store.write(write_of(claim, entry(seq))),
                store.submit([new_job(f"j{seq}")]),
                store.job("a"),
            )
            held = [("a", claim.epoch)]
            assert await asyncio.to_thread(store.renew_blocking, "w1", held, 60.0) == {"a"}
        assert len(await store.journal("a")) == 5


@pytest.mark.once
async def test_over_a_bad_network_each_transaction_happens_once(postgres_url: str) -> None:
    """The programme in short; `python -m tests.programmes.late_commits` attacks for longer."""
    assert (await attack(postgres_url, Plan(seconds=3, late=0.5, stores=2))).wrong == []


async def test_a_server_that_is_away_for_a_while_is_waited_for(proxy: Proxy) -> None:
    async with opened(proxy.url) as store:
        claim = await started(store)
        proxy.refuses = True
        proxy.cut_all()
        written = asyncio.ensure_future(store.write(write_of(claim, entry(0))))
        renewal = asyncio.to_thread(store.renew_blocking, "w1", [("a", 1)], 60.0)
        renewed = asyncio.ensure_future(renewal)
        for _ in range(6):
            await proxy.refusals.acquire()
        assert not written.done()
        assert not renewed.done()
        proxy.refuses = False
        await written
        assert await renewed == {"a"}
        assert len(await store.journal("a")) == 1


async def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    store = open_store("postgresql://kim:secret@127.0.0.1:1/jobs")
    with pytest.raises(StoreUnreachable, match=r"'jobs' at 127\.0\.0\.1 cannot") as caught:
        await store.open()
    assert "secret" not in str(caught.value)


async def test_a_pooler_in_between_is_no_obstacle(postgres_url: str) -> None:
    async with opened(f"{postgres_url}&pgbouncer=1") as store:
        end = store.watch(lambda: None)
        await store.submit([new_job("a"), new_job("b")])
        found = await claims(store)
        await asyncio.gather(
            store.write(write_of(found[0], entry(0))),
            store.write(write_of(found[1], entry(0), job=ends())),
        )
        assert await store.counts() == {"RUNNING": 1, "COMPLETED": 1}
        assert store.renew_blocking("w1", [("a", 1)], 60.0) == {"a"}
        end()


async def test_a_deadlock_is_tried_again(postgres_url: str) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await store.submit([new_job("a"), new_job("b")])
        for _ in range(10):
            await asyncio.gather(
                *(each.send(job, "x", b"1") for each in (store, other) for job in ("a", "b")),
                *(other.send(job, "x", b"1") for job in ("b", "a")),
            )
        assert len(await store.messages("a")) == 30


def test_sessions_cannot_hang_for_ever(postgres_url: str) -> None:
    with Target(postgres_url).connect() as pg:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            row = pg.execute(f"SHOW {name}".encode()).fetchone()
            assert row is not None
            assert row[0] != "0", name


async def test_options_of_the_url_stand_over_ours_one_by_one(postgres_url: str) -> None:
    url = f"{postgres_url}&options=-c%20statement_timeout%3D1234%20-c%20work_mem%3D5MB"
    with Target(url).connect() as pg:
        shown = [pg.execute(f"SHOW {name}".encode()).fetchone() for name in _SHOWN]
    assert shown == [("1234ms",), ("5MB",), ("10s",)]
    async with opened(url) as store:
        await store.submit([new_job("a")])


async def test_no_row_of_a_closed_store_is_left_behind(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await store.submit([new_job("a")])
        assert len(sql(postgres_url, "SELECT writer FROM last_commit")) == 2
    assert sql(postgres_url, "SELECT writer FROM last_commit") == []


@pytest.mark.parametrize("events", [(), (JobEvent(type="x"),)])
async def test_nobody_can_take_the_lease_while_a_write_is_under_way(
    postgres_url: str, events: tuple[JobEvent, ...]
) -> None:
    """The fence locks: what is only looked at may be another's at the commit."""
    base, _, schema = postgres_url.rpartition("&schema=")
    options = f"-c search_path={schema} -c lock_timeout=200ms"
    async with opened(postgres_url) as store:
        claim = await started(store)
        with (
            psycopg.connect(base, options=options) as holder,
            psycopg.connect(base, options=options, autocommit=True) as thief,
        ):
            holder.execute(
                b"INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, checkpoint_no) "
                b"VALUES ('a', 0, '', '', '', 'RUNNING', 0, 0)"
            )
            write = asyncio.ensure_future(store.write(write_of(claim, entry(0), events=events)))
            while not _is_waiting(base, holder):
                assert not write.done()
                await asyncio.sleep(0)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                thief.execute(b"UPDATE lease SET owner = 'thief', epoch = epoch + 1")
            holder.rollback()
        await write
        assert len(await store.journal("a")) == 1


@pytest.mark.parametrize("events", [(), (JobEvent(type="x"),)])
async def test_a_write_that_meets_a_take_over_waits_for_it_and_is_refused(
    postgres_url: str, events: tuple[JobEvent, ...]
) -> None:
    base, _, schema = postgres_url.rpartition("&schema=")
    async with opened(postgres_url) as store:
        claim = await started(store)
        with psycopg.connect(base, options=f"-c search_path={schema}") as thief:
            thief.execute(b"UPDATE lease SET owner = 'thief', epoch = epoch + 1")
            write = asyncio.ensure_future(store.write(write_of(claim, entry(0), events=events)))
            while not _is_waiting(base, thief):
                assert not write.done()
                await asyncio.sleep(0)
            thief.commit()
        with pytest.raises(LeaseLost):
            await write
        assert await store.journal("a") == []


def _is_waiting(base: str, holder: psycopg.Connection[tuple[object, ...]]) -> bool:
    """Whether anybody waits for this connection: other tests have locks of their own."""
    with psycopg.connect(base, autocommit=True) as pg:
        query = b"SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
        row = pg.execute(query, (holder.info.backend_pid,)).fetchone()
    return bool(row and row[0])


async def test_a_job_that_is_being_forked_is_not_deleted_meanwhile(postgres_url: str) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        claim = await started(store, "a")
        await store.write(write_of(claim, entry(0), entry(1)))
        await store.write(write_of(claim, job=ends(result=b"1")))
        base, _, schema = postgres_url.rpartition("&schema=")
        with psycopg.connect(base, options=f"-c search_path={schema}") as blocker:
            blocker.execute(b"SELECT 1 FROM turn FOR UPDATE")  # the fork waits for its turn
            forked = asyncio.ensure_future(
                store.fork("a", new_job("b", forked_from="a"), before=1, actor="kim")
            )
            while not _is_waiting(base, blocker):
                assert not forked.done()
                await asyncio.sleep(0)
            assert await other.prune(await store.now() + 9.0, 10) == 0
            blocker.commit()
        await forked
        assert [each.id for each in await store.journal("b")] == ["step#0"]
        assert await other.prune(await store.now() + 9.0, 10) == 1
