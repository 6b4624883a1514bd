"""A result that the loop sends by itself, without the thread: it is as safe as any other write."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from perdure.base.errors import StoreError
from perdure.jobs.model import Claim
from perdure.jobs.state import StepState
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.store.test_inline import WITHIN, written
from tests.support.postgres_proxy import Proxy, lose_each_answer
from tests.support.store import claim_one, entry, started, write_of

Told = asyncio.Future[BaseException | None]


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    opened = open_store(postgres_url)
    await opened.open()
    yield opened
    await opened.close()


def told() -> Told:
    return asyncio.get_running_loop().create_future()


class Holder:
    """Another connection that is in the way of the first entry of job `a` until it lets go."""

    def __init__(self, url: str) -> None:
        self._base, _, schema = url.rpartition("&schema=")
        self._pg = psycopg.connect(self._base, options=f"-c search_path={schema}")
        self._pg.execute(
            b"INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, checkpoint_no) "
            b"VALUES ('a', 9, '', '', '', 'RUNNING', 0, 0)"
        )

    async def met(self, answer: Told) -> None:
        """Wait until somebody waits for it; the loop must be free meanwhile."""
        query = b"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with psycopg.connect(self._base, autocommit=True) as pg:
            async with asyncio.timeout(WITHIN):
                while not any(row[0] for row in pg.execute(query).fetchall()):
                    assert not answer.done()
                    await asyncio.sleep(0)

    def let_go(self) -> None:
        self._pg.rollback()
        self._pg.close()


@pytest.mark.parametrize("state", [StepState.SUCCEEDED, StepState.FAILED])
async def test_an_answer_that_is_lost_is_no_lost_result(
    postgres_url: str, state: StepState
) -> None:
    async with Proxy(postgres_url) as proxy:
        store = open_store(proxy.url)
        await store.open()
        claim = await started(store)
        await written(store, write_of(claim, entry(0)))

        async def attempt(number: int) -> None:
            write = write_of(claim, entry(number + 1, state))
            assert await written(store, write) == (False, None)

        times = await lose_each_answer(proxy, attempt)
        assert times >= 1
        assert [each.seq for each in await store.journal("a")] == list(range(times + 2))
        await store.close()


async def test_the_loop_is_free_while_the_server_takes_its_time(
    postgres_url: str, store: Store
) -> None:
    claim = await started(store)
    await written(store, write_of(claim, entry(0)))
    holder, answer = Holder(postgres_url), told()

    assert not store.write_soon(write_of(claim, entry(9)), answer.set_result, alone=True)
    await holder.met(answer)
    holder.let_go()

    async with asyncio.timeout(WITHIN):
        assert await answer is None
    assert [each.seq for each in await store.journal("a")] == [0, 9]


async def test_what_comes_meanwhile_waits_for_its_turn(postgres_url: str, store: Store) -> None:
    claim = await started(store)
    await written(store, write_of(claim, entry(0)))
    holder, answer, second = Holder(postgres_url), told(), told()

    store.write_soon(write_of(claim, entry(9)), answer.set_result, alone=True)
    store.write_soon(write_of(claim, entry(1)), second.set_result, alone=True)
    third = asyncio.ensure_future(store.write(write_of(claim, entry(2))))
    await holder.met(answer)
    holder.let_go()

    async with asyncio.timeout(WITHIN):
        assert await answer is None
        assert await second is None
        await third
    assert [each.seq for each in await store.journal("a")] == [0, 1, 2, 9]


async def test_a_store_that_is_closed_finishes_what_is_under_way(postgres_url: str) -> None:
    store = open_store(postgres_url)
    await store.open()
    claim = await started(store)
    await written(store, write_of(claim, entry(0)))
    holder, answer = Holder(postgres_url), told()

    store.write_soon(write_of(claim, entry(9)), answer.set_result, alone=True)
    closing = asyncio.ensure_future(store.close())
    await holder.met(answer)
    assert not closing.done()
    holder.let_go()

    async with asyncio.timeout(WITHIN):
        await closing
        assert await answer is None
    again = open_store(postgres_url)
    await again.open()
    assert [each.seq for each in await again.journal("a")] == [0, 9]
    await again.close()


async def test_a_result_that_is_lost_while_the_store_closes_is_told_so(postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy:
        store = open_store(proxy.url)
        await store.open()
        claim = await started(store)
        await written(store, write_of(claim, entry(0)))
        holder, answer = Holder(postgres_url), told()
        store.write_soon(write_of(claim, entry(9)), answer.set_result, alone=True)
        closing = asyncio.ensure_future(store.close())
        await holder.met(answer)

        proxy.cut_all()

        async with asyncio.timeout(WITHIN):
            assert isinstance(await answer, StoreError)
            await closing
        holder.let_go()


async def test_a_result_too_large_to_be_sent_at_once_is_written_all_the_same(store: Store) -> None:
    claim = await started(store)
    await written(store, write_of(claim, entry(0)))
    large = b'"%s"' % (b"x" * 1_000_000)

    assert await written(store, write_of(claim, entry(1, output=large))) == (False, None)

    assert (await store.journal("a"))[1].output == large


async def test_the_first_progress_after_a_crash_is_noted(store: Store) -> None:
    await written(store, write_of(await started(store), entry(0)))
    await store.reap(0, dead=["w1"])
    again = await claim_one(store, "w2")
    assert again.job.claims == 2

    assert await written(store, write_of(again, entry(1))) == (False, None)
    await store.reap(0, dead=["w2"])

    assert (await claim_one(store)).job.claims == 1


def test_a_loop_that_ends_with_a_result_under_way_leaves_the_connection_to_others(
    postgres_url: str,
) -> None:
    store = open_store(postgres_url)

    async def first() -> tuple[Claim, Holder]:
        await store.open()
        claim = await started(store)
        await written(store, write_of(claim, entry(0)))
        holder, answer = Holder(postgres_url), told()
        store.write_soon(write_of(claim, entry(9)), answer.set_result, alone=True)
        await holder.met(answer)
        return claim, holder

    async def second(claim: Claim, holder: Holder) -> list[int]:
        other = asyncio.ensure_future(store.write(write_of(claim, entry(1))))
        holder.let_go()
        async with asyncio.timeout(WITHIN):
            await other
            await store.journal_and_ledger("a", write_of(claim).owner, claim.epoch)
        found = [each.seq for each in await store.journal("a")]
        await store.close()
        return found

    assert asyncio.run(second(*asyncio.run(first()))) == [0, 1, 9]
