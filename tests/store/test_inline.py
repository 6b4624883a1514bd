"""A write while nothing else is under way: the loop does it by itself, if nobody is in the way."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.base.errors import IllegalTransition, LeaseLost, StoreError
from perdure.jobs.effect import Effect, EffectState, Place
from perdure.jobs.model import Claim, JournalEntry, Write
from perdure.jobs.state import StepState
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.support.store import entry, new_job, sql, started, write_of

WITHIN = 30.0
LINE = Effect(
    job_id="a",
    tenant="acme",
    no=0,
    place=Place("step#1", 1),
    key="k1",
    kind="payment",
    target="card",
    called_at=1.0,
)


async def written(store: Store, write: Write) -> tuple[bool, BaseException | None]:
    """Write alone; gives whether that was done at once, and what came of it."""
    told: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    if store.write_soon(write, told.set_result, alone=True):
        return True, None
    async with asyncio.timeout(WITHIN):
        return False, await told


async def test_it_is_durable_when_it_says_so(url: str, store: Store) -> None:
    claim = await started(store)
    seen: list[bool] = []

    for seq in range(1, 51):
        at_once, error = await written(store, write_of(claim, entry(seq)))
        seen.append(at_once)
        assert error is None
        assert sql(url, "SELECT max(seq) FROM journal") == [(seq,)]

    # Not each time: the thread may be looking at the file at that moment.
    assert any(seen) == url.startswith("sqlite")


async def test_it_is_fenced(store: Store) -> None:
    claim = await started(store)
    stale = Write(job_id=claim.job.id, owner="w1", epoch=claim.epoch + 1, entries=(entry(1),))

    at_once, error = await written(store, stale)

    assert not at_once
    assert isinstance(error, LeaseLost)
    assert await store.journal(claim.job.id) == []


def with_line(claim: Claim, seq: int, **values: Any) -> Write:
    """A step that begins, with the intent of its first effect."""
    place = Place(f"step#{seq}", 1)
    line = replace(LINE, job_id=claim.job.id, place=place, key=f"k{seq}", **values)
    return write_of(claim, entry(seq, StepState.RUNNING), effects=(line,))


async def test_an_intent_and_what_becomes_of_it_are_as_quick_as_a_step(
    url: str, store: Store
) -> None:
    claim = await started(store)
    seen: list[bool] = []

    for seq in range(1, 26):
        intent = with_line(claim, seq)
        done = with_line(claim, seq, state=EffectState.DONE, result=b"1", ended_at=2.0)
        for write in (intent, replace(done, entries=(entry(seq),))):
            at_once, error = await written(store, write)
            seen.append(at_once)
            assert error is None
            (state,) = sql(url, f"SELECT state FROM effect WHERE key = 'k{seq}'")
            assert state == (write.effects[0].state,)

    assert any(seen) == url.startswith("sqlite")
    assert [line.no for line in await store.effects(claim.job.id)] == list(range(1, 26))
    assert {one.state for one in await store.journal(claim.job.id)} == {StepState.SUCCEEDED}


@pytest.mark.parametrize("entries", [(), (entry(1),)])
async def test_a_line_is_fenced(store: Store, entries: tuple[JournalEntry, ...]) -> None:
    claim = await started(store)
    stale = replace(with_line(claim, 1), epoch=claim.epoch + 1, entries=entries)

    at_once, error = await written(store, stale)

    assert not at_once
    assert isinstance(error, LeaseLost)
    assert await store.effects(claim.job.id) == []


async def test_of_many_that_are_written_together_each_has_its_own_fate(store: Store) -> None:
    claims = [await started(store, id) for id in ("a", "b", "c")]
    first, second, third = (with_line(claim, 1) for claim in claims)
    lost = replace(third, epoch=9, effects=(replace(LINE, job_id="c", key="z"),))

    # In one transaction: the same key twice, and a fence that does not hold.
    told = await asyncio.gather(
        *(store.write(one) for one in (first, second, lost)), return_exceptions=True
    )

    assert [type(one) for one in told] == [type(None), IllegalTransition, LeaseLost]
    assert [line.no for line in await store.effects("a")] == [1]
    assert await store.effects("b") == []
    assert await store.effects("c") == []


async def test_a_loop_that_writes_again_and_again_lets_others_have_their_turn(store: Store) -> None:
    claim = await started(store)
    turns: list[int] = []
    loop = asyncio.get_running_loop()
    loop.call_soon(turns.append, 1)
    for seq in range(1, 31):
        await store.write(with_line(claim, seq), alone=True)
    assert turns == [1]


async def test_it_goes_before_or_after_other_writes_but_never_between(store: Store) -> None:
    claim = await started(store)
    first = asyncio.ensure_future(store.write(write_of(claim, entry(1))))
    await asyncio.sleep(0)

    await written(store, write_of(claim, entry(2)))
    await first

    assert [one.seq for one in await store.journal(claim.job.id)] == [1, 2]


async def test_the_loop_does_not_wait_for_another_process(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    claim = await started(store)
    told: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    another = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
    another.execute("BEGIN IMMEDIATE")
    # If the loop did wait, it would get what it waits for in the end.
    release = threading.Timer(2.0, another.execute, ["ROLLBACK"])
    release.start()

    at_once = store.write_soon(write_of(claim, entry(1)), told.set_result, alone=True)
    release.cancel()
    another.execute("ROLLBACK")
    another.close()

    assert not at_once
    async with asyncio.timeout(WITHIN):
        assert await told is None
    assert [one.seq for one in await store.journal(claim.job.id)] == [1]
    await store.close()


async def test_what_others_do_is_still_noticed(store: Store, other: Store) -> None:
    claim = await started(store)
    changed = asyncio.Event()
    unwatch = store.watch(changed.set)
    for seq in range(1, 4):
        await written(store, write_of(claim, entry(seq)))
    changed.clear()

    await other.submit([new_job("b")])

    async with asyncio.timeout(WITHIN):
        await changed.wait()
    unwatch()


async def test_a_store_that_is_closed_does_nothing_at_once(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    claim = await started(store)
    await store.close()

    with pytest.raises(StoreError, match="not open"):
        store.write_soon(write_of(claim, entry(1)), lambda _: None, alone=True)
