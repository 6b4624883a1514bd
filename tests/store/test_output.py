"""Live output in the store: positions, limits, resets, and writes that are made twice."""

import asyncio

import pytest

from perdure.base.errors import JobNotFound, LeaseLost
from perdure.jobs.model import Claim
from perdure.jobs.output import OutputBatch, OutputChunk, OutputPiece, OutputReset
from perdure.store.store import Store
from tests.support.store import claim_one, ends, releases, sql, started, write_of


def chunk(last: int, *values: int, step: str = "say#1", part: int = 0, **more: int) -> OutputChunk:
    pieces = tuple(b"%d" % value for value in values)
    return OutputChunk(topic="t", no=last, step=step, attempt=1, part=part, pieces=pieces, **more)


def reset(no: int, *, step: str = "say#1", part: int = 0) -> OutputReset:
    return OutputReset(topic="t", no=no, step=step, attempt=2, part=part)


def batch(*chunks: OutputChunk, **more: object) -> OutputBatch:
    return OutputBatch(chunks=chunks, **more)  # pyright: ignore[reportArgumentType]  its own fields


async def emit(store: Store, claim: Claim, emitted: OutputBatch) -> None:
    await store.write(write_of(claim, output=emitted))


async def read(store: Store, after: int = 0) -> list[OutputPiece]:
    return (await store.output("a", "t", after)).pieces


async def seen(store: Store, after: int = 0) -> list[tuple[int, object]]:
    """Return positions with values, or with what became of others."""
    return [
        (each.position, each.value if each.kind == "value" else each.kind)
        for each in await read(store, after)
    ]


async def test_pieces_are_read_in_order_and_after_any_position(store: Store) -> None:
    claim = await started(store)
    await emit(store, claim, batch(chunk(3, 1, 2, 3)))
    await emit(store, claim, batch(chunk(4, 4), chunk(6, 5, 6, step="tell#1")))
    assert await seen(store) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]
    assert await seen(store, after=2) == [(3, 3), (4, 4), (5, 5), (6, 6)]
    assert await seen(store, after=6) == []
    assert [each.step for each in await read(store, after=3)] == ["say#1", "tell#1", "tell#1"]
    assert (await store.output("a", "other", 0)).pieces == []


async def test_what_is_written_twice_is_there_once(store: Store) -> None:
    claim = await started(store)
    twice = batch(chunk(2, 1, 2), resets=(reset(3, step="old#1"),))
    await emit(store, claim, twice)
    await emit(store, claim, twice)
    assert await seen(store) == [(1, 1), (2, 2)]
    (topic,) = await store.topics("a")
    assert (topic.last, topic.pieces, topic.size) == (2, 2, 2)


async def test_a_worker_that_lost_the_job_emits_nothing(store: Store) -> None:
    zombie = await started(store)
    await store.reap(0, ["w1"])
    owner = await claim_one(store, "w2")
    with pytest.raises(LeaseLost):
        await emit(store, zombie, batch(chunk(1, 1)))
    await emit(store, owner, batch(chunk(1, 7)))
    assert await seen(store) == [(1, 7)]


async def test_a_reset_voids_what_a_step_emitted_since_its_checkpoint(store: Store) -> None:
    claim = await started(store)
    await emit(store, claim, batch(chunk(2, 1, 2), chunk(3, 3, step="tell#1")))
    await emit(store, claim, batch(chunk(5, 4, 5, part=1)))
    await emit(store, claim, batch(chunk(7, 9, part=1), resets=(reset(6, part=1),)))
    assert await seen(store) == [(1, 1), (2, 2), (3, 3), (6, "reset"), (7, 9)]
    (mark,) = [each for each in await read(store) if each.kind == "reset"]
    assert (mark.step, mark.attempt, mark.discards) == ("say#1", 2, 4)


async def test_a_reset_of_a_step_that_emitted_nothing_leaves_no_mark(store: Store) -> None:
    claim = await started(store)
    await emit(store, claim, batch(chunk(1, 1), resets=(reset(2, step="tell#1"),)))
    await emit(store, claim, batch(resets=(reset(3),)))
    await emit(store, claim, batch(resets=(reset(4),)))
    assert await seen(store) == [(3, "reset")]


async def test_a_later_reset_covers_an_earlier_one(store: Store) -> None:
    claim = await started(store)
    await emit(store, claim, batch(chunk(2, 1, 2)))
    await emit(store, claim, batch(chunk(4, 3), resets=(reset(3),)))
    await emit(store, claim, batch(resets=(reset(5),)))
    (mark,) = await read(store)
    assert (mark.position, mark.discards) == (5, 1)  # for readers that saw 1, 2 or 4


@pytest.mark.parametrize("limits", [{"most_pieces": 3}, {"most_bytes": 3}])
async def test_the_oldest_pieces_are_dropped_and_readers_are_told(
    store: Store, limits: dict[str, int]
) -> None:
    claim = await started(store)
    for number in range(1, 7):
        await emit(store, claim, batch(chunk(number, number), **limits))
    assert await seen(store) == [(3, "dropped"), (4, 4), (5, 5), (6, 6)]
    assert await seen(store, after=2) == [(3, "dropped"), (4, 4), (5, 5), (6, 6)]
    assert await seen(store, after=3) == [(4, 4), (5, 5), (6, 6)]
    (topic,) = await store.topics("a")
    assert (topic.pieces, topic.size, topic.dropped, topic.last) == (3, 3, 3, 6)


async def test_the_newest_chunk_is_kept_however_large_it_is(store: Store) -> None:
    claim = await started(store)
    await emit(store, claim, batch(chunk(1, 1)))
    await emit(store, claim, batch(chunk(4, 2, 3, 4), most_pieces=2))
    assert await seen(store) == [(1, "dropped"), (2, 2), (3, 3), (4, 4)]


async def test_what_the_owner_has_dropped_itself_leaves_nothing_older(store: Store) -> None:
    claim = await started(store)
    for number in range(1, 4):
        await emit(store, claim, batch(chunk(number, number)))
    await emit(store, claim, batch(chunk(9, 9), dropped={"t": 8}))
    assert await seen(store) == [(8, "dropped"), (9, 9)]
    (topic,) = await store.topics("a")
    assert (topic.pieces, topic.size) == (1, 1)


async def test_many_chunks_are_dropped_at_once(store: Store) -> None:
    claim = await started(store)
    await emit(store, claim, batch(*(chunk(number, 1) for number in range(1, 251))))
    await emit(store, claim, batch(chunk(251, 1), most_pieces=20))
    assert (await read(store))[0].position == 231
    assert len(await read(store)) == 21


async def test_the_end_of_the_job_is_known_with_its_last_pieces(store: Store) -> None:
    claim = await started(store)
    assert not (await store.output("a", "t", 0)).has_ended
    chunks = tuple(chunk(number, 1) for number in range(1, 151))
    await store.write(write_of(claim, output=batch(*chunks), job=ends()))
    first = await store.output("a", "t", 0)
    assert not first.has_ended  # there is another page
    second = await store.output("a", "t", first.pieces[-1].position)
    assert second.has_ended
    assert len(first.pieces) + len(second.pieces) == 150


async def test_the_next_owner_knows_where_the_output_ends(store: Store) -> None:
    claim = await started(store)
    assert claim.topics == ()
    await emit(store, claim, batch(chunk(2, 1, 2, step="", emitted=2)))
    await store.write(write_of(claim, job=releases(due_at=0.0)))
    (topic,) = (await claim_one(store)).topics
    assert (topic.topic, topic.last, topic.emitted) == ("t", 2, 2)


async def test_output_is_deleted_with_its_job(store: Store, url: str) -> None:
    claim = await started(store)
    await store.write(write_of(claim, output=batch(chunk(1, 1)), job=ends()))
    await store.prune(await store.now() + 1, 10)
    assert sql(url, "SELECT count(*) FROM output") == [(0,)]
    assert sql(url, "SELECT count(*) FROM output_topic") == [(0,)]
    with pytest.raises(JobNotFound):
        await store.output("a", "t", 0)


async def test_readers_of_other_processes_are_woken_by_what_is_emitted(
    store: Store, other: Store
) -> None:
    claim = await started(store)
    woken = asyncio.Event()
    unwatch = other.watch(woken.set, output=True)
    no = 0
    async with asyncio.timeout(10):
        while not woken.is_set():  # the first ones may come before the other one listens
            no += 1
            await emit(store, claim, batch(chunk(no, no)))
    unwatch()


async def test_only_readers_are_woken_in_the_same_process(store: Store) -> None:
    claim = await started(store)
    told: list[str] = []
    ends_watch = [
        store.watch(lambda: told.append("worker")),
        store.watch(lambda: told.append("reader"), output=True),
    ]
    await asyncio.sleep(0)
    told.clear()
    store.tell_readers()
    await asyncio.sleep(0)
    assert told == ["reader"]
    store.tell_watchers()
    await asyncio.sleep(0)
    assert told == ["reader", "worker", "reader"]
    told.clear()
    await emit(store, claim, batch(chunk(1, 1)))
    assert "reader" in told  # before the writer knows that it is durable
    for unwatch in ends_watch:
        unwatch()


async def test_what_was_dropped_stays_dropped_if_it_is_written_again(store: Store) -> None:
    claim = await started(store)
    for number in range(1, 7):
        await emit(store, claim, batch(chunk(number, number), most_pieces=3))
    await emit(store, claim, batch(chunk(1, 1), most_pieces=3))
    assert await seen(store) == [(3, "dropped"), (4, 4), (5, 5), (6, 6)]
