"""A checkpoint of LangGraph is stored by one statement on PostgreSQL, nearly always by the loop."""

import asyncio
import threading
from collections.abc import AsyncIterator

import psycopg
import pytest

from perdure.jobs.graph_thread import (
    GraphCheckpoint,
    GraphPut,
    GraphValue,
    GraphWrite,
    LoadedValue,
    TaskWrites,
    compose,
)
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.store.test_inline import WITHIN, written
from tests.support.postgres_proxy import Proxy, lose_each_answer
from tests.support.store import entry, sql, started, write_of

ITEMS = [b"one", b"two"]
MANIFEST, PIECES = compose(b"L", ITEMS)


def put(id: str, *, sends: bool = False, relies: bool = False) -> GraphPut:
    """Return a checkpoint whose channel `x` is in pieces, if it sends them or relies on them."""
    point = GraphCheckpoint(
        thread="t", ns="", id=id, parent=None, versions={"x": id}, metadata=b"m", data=b"d"
    )
    value = GraphValue(pieces=MANIFEST.pack()) if sends or relies else GraphValue(id.encode())
    pieces, relied = PIECES if sends else {}, tuple(PIECES) if relies else ()
    return GraphPut(checkpoint=point, values={"x": value}, pieces=pieces, relied=relied)


def wrote(at: str, *writes: tuple[int, bytes]) -> TaskWrites:
    return TaskWrites("", at, [GraphWrite("task", "", idx, "x", data) for idx, data in writes])


async def stored(store: Store, id: str) -> LoadedValue:
    found = await store.graph_checkpoint("acme", "t", "", id)
    assert found is not None
    return found[1].values["x"]


class Other:
    """Another connection that has run some statements, and is in the way until it lets go."""

    def __init__(self, url: str, *statements: bytes) -> None:
        self._base, _, schema = url.rpartition("&schema=")
        self._pg = psycopg.connect(self._base, options=f"-c search_path={schema}")
        for each in statements:
            self._pg.execute(each)

    def is_met(self) -> bool:
        """Whether somebody waits for it."""
        query = b"""SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND %s = ANY(pg_blocking_pids(pid))"""
        with psycopg.connect(self._base, autocommit=True) as pg:
            found = pg.execute(query, (self._pg.info.backend_pid,)).fetchone()
        return found is not None and found[0] > 0

    async def met(self, putting: asyncio.Future[bool]) -> None:
        async with asyncio.timeout(WITHIN):
            while not self.is_met():
                assert not putting.done()
                await asyncio.sleep(0)

    def let_go(self, *, undo: bool = False) -> None:
        if undo:
            self._pg.rollback()
        else:
            self._pg.commit()
        self._pg.close()


def pruner(url: str) -> Other:
    """Return a connection that has deleted all pieces of the thread, and has its lock."""
    lock = b"SELECT pg_advisory_xact_lock(hashtextextended('langgraph acme t', 0))"
    return Other(url, lock, b"DELETE FROM langgraph_piece")


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    opened = open_store(postgres_url)
    await opened.open()
    yield opened
    await opened.close()


async def test_an_answer_that_is_lost_is_no_lost_checkpoint(postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy:
        store = open_store(proxy.url)
        await store.open()
        await store.put_graph("acme", "t", (), put("first"))

        async def attempt(number: int) -> None:
            id = f"p{number}"
            assert await store.put_graph("acme", "t", [wrote("first", (number, b"w"))], put(id))

        times = await lose_each_answer(proxy, attempt)
        assert times >= 1
        for number in range(times + 1):
            assert await stored(store, f"p{number}") == LoadedValue(f"p{number}".encode())
        found = await store.graph_checkpoint("acme", "t", "", "first")
        assert found is not None
        assert [each.idx for each in found[1].writes] == list(range(times + 1))
        await store.close()


async def test_pieces_that_are_deleted_while_a_put_waits_are_gone(
    postgres_url: str, store: Store
) -> None:
    assert await store.put_graph("acme", "t", (), put("1", sends=True))
    other = pruner(postgres_url)
    wrote_some = [wrote("1", (0, b"w"))]
    putting = asyncio.ensure_future(store.put_graph("acme", "t", wrote_some, put("2", relies=True)))
    await other.met(putting)
    other.let_go()
    async with asyncio.timeout(WITHIN):
        assert not await putting
    assert await store.graph_checkpoint("acme", "t", "", "2") is None
    assert sql(postgres_url, "SELECT checkpoint FROM langgraph_write") == [("1",)]
    assert await store.put_graph("acme", "t", (), put("2", sends=True))
    assert (await stored(store, "2")).items == tuple(ITEMS)


async def test_a_thread_that_is_deleted_after_a_put_that_was_cancelled_is_gone(
    postgres_url: str, store: Store
) -> None:
    assert await store.put_graph("acme", "t", (), put("1"))
    row = b"INSERT INTO langgraph_checkpoint VALUES ('acme', 't', '', '2', %s '{}', '[]', '', '')"
    other = Other(postgres_url, row % b"NULL, NULL, NULL,")
    putting = asyncio.ensure_future(store.put_graph("acme", "t", (), put("2")))
    await other.met(putting)
    putting.cancel()
    deleting = asyncio.ensure_future(store.delete_graph_thread("acme", "t"))
    for _ in range(20):  # time for it to be done, if it did not wait
        assert other.is_met()
        await asyncio.sleep(0)
    other.let_go(undo=True)
    async with asyncio.timeout(WITHIN):
        await deleting
        await store.put_graph("acme", "u", (), put("1"))  # behind the one that was cancelled
    assert await store.graph_checkpoint("acme", "t", "", None) is None


async def test_leases_are_renewed_while_the_loop_does_not_read_the_answer_to_a_put(
    postgres_url: str, store: Store
) -> None:
    claim = await started(store)
    assert await store.put_graph("acme", "t", (), put("1", sends=True))
    other, renewed = pruner(postgres_url), set[str]()
    putting = asyncio.ensure_future(store.put_graph("acme", "t", (), put("2", relies=True)))
    await other.met(putting)

    def renew() -> None:
        renewed.update(store.renew_blocking("w1", [("a", claim.epoch)], 30.0))

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    thread.join(WITHIN)  # the loop is blocked meanwhile
    assert renewed == {"a"}
    other.let_go()
    await putting


async def test_puts_and_results_of_steps_may_share_a_commit(store: Store) -> None:
    claim = await started(store)
    await written(store, write_of(claim, entry(0)))
    puts = [store.put_graph("acme", "t", (), put(f"p{number}")) for number in range(5)]
    writes = [store.write(write_of(claim, entry(number + 1))) for number in range(5)]
    found = await asyncio.gather(*puts, *writes)
    assert found == [True] * 5 + [None] * 5
    assert [each.seq for each in await store.journal("a")] == list(range(6))
    for number in range(5):
        assert await stored(store, f"p{number}") == LoadedValue(f"p{number}".encode())


async def test_a_write_that_comes_twice_in_one_put_is_as_one_that_comes_later(store: Store) -> None:
    twice = [wrote("1", (0, b"first"), (-1, b"first")), wrote("1", (0, b"last"), (-1, b"last"))]
    for thread, commits in (("t", [twice]), ("u", [[each] for each in twice])):
        for each in commits:
            await store.put_graph("acme", thread, each, None)
        await store.put_graph("acme", thread, (), put("1"))
        found = await store.graph_checkpoint("acme", thread, "", "1")
        assert found is not None
        assert [(each.idx, each.data) for each in found[1].writes] == [(-1, b"last"), (0, b"first")]


def test_a_store_is_closed_although_a_loop_ended_with_a_put_under_way(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(postgres_url)

    async def first() -> Other:
        await store.open()
        assert await store.put_graph("acme", "t", (), put("1", sends=True))
        other = pruner(postgres_url)
        putting = asyncio.ensure_future(store.put_graph("acme", "t", (), put("2", relies=True)))
        await other.met(putting)
        return other

    other = asyncio.run(first())
    asyncio.run(store.close())
    assert caplog.messages == []
    other.let_go()
