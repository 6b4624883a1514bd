"""The table of payloads: written with their entries, read when asked for, gone with their job."""

import pytest

from perdure.base.errors import JobError, LeaseLost
from perdure.jobs.payload import CHUNK, split, stand_in_of
from perdure.store.store import Store
from tests.support.store import claim_one, ends, entry, new_job, sql, started, write_of

LARGE = ('["' + "".join(f"{number:06}" for number in range(40_000)) + '"]').encode()


async def test_a_large_result_is_written_with_its_entry_and_read_when_asked_for(
    store: Store,
) -> None:
    claim = await started(store)
    packed, chunks = split(LARGE)
    await store.write(write_of(claim, entry(output=packed), chunks=tuple(chunks)))
    (found,) = await store.journal("a")
    stand_in = stand_in_of(found.output)
    assert stand_in is not None
    assert len(stand_in.chunks) == -(-len(LARGE) // CHUNK)
    assert await store.payload("a", stand_in) == LARGE


async def test_a_chunk_that_is_known_is_stored_once(url: str, store: Store) -> None:
    claim = await started(store)
    packed, chunks = split(LARGE)
    for seq in range(3):
        await store.write(write_of(claim, entry(seq, output=packed), chunks=tuple(chunks)))
    assert sql(url, "SELECT count(*) FROM payload") == [(len(chunks),)]


async def test_chunks_are_fenced_like_everything_else(url: str, store: Store) -> None:
    claim = await started(store)
    packed, chunks = split(LARGE)
    write = write_of(claim, entry(output=packed), chunks=tuple(chunks))
    await store.reap(10, [write.owner])
    await claim_one(store, "w2")
    with pytest.raises(LeaseLost):
        await store.write(write)
    assert sql(url, "SELECT count(*) FROM payload") == [(0,)]


async def test_a_payload_that_is_incomplete_is_refused_and_found_by_the_doctor(
    url: str, store: Store
) -> None:
    claim = await started(store)
    packed, chunks = split(LARGE)
    await store.write(write_of(claim, entry(output=packed), chunks=tuple(chunks)))
    assert await store.violations() == []
    sql(url, f"DELETE FROM payload WHERE digest = '{chunks[1].digest}'")
    stand_in = stand_in_of(packed)
    assert stand_in is not None
    with pytest.raises(JobError, match="is incomplete or damaged"):
        await store.payload("a", stand_in)
    (found,) = await store.violations()
    assert (found.invariant, found.what) == ("payloads", "step#0 lacks a part of its result")


async def test_payloads_go_with_their_job(url: str, store: Store) -> None:
    claim = await started(store)
    packed, chunks = split(LARGE)
    write = write_of(claim, entry(output=packed), job=ends(result=b"1"), chunks=tuple(chunks))
    await store.write(write)
    assert await store.prune(await store.now() + 1, 10) == 1
    assert sql(url, "SELECT count(*) FROM payload") == [(0,)]


async def test_a_fork_has_the_payloads_of_what_it_has_copied_and_outlives_its_source(
    url: str, store: Store
) -> None:
    claim = await started(store)
    first, chunks = split(LARGE)
    second, more = split(LARGE[:-2] + b'-"]')
    entries = (entry(0, output=first), entry(1, output=second))
    change = ends(result=b"1")
    write = write_of(claim, *entries, job=change, chunks=(*chunks, *more))
    await store.write(write)
    await store.fork("a", new_job("b", forked_from="a"), 1, "kim")
    await store.prune(await store.now() + 1, 10)
    stand_in = stand_in_of(first)
    assert stand_in is not None
    assert await store.payload("b", stand_in) == LARGE
    assert sql(url, "SELECT DISTINCT job_id FROM payload") == [("b",)]
    assert len(sql(url, "SELECT 1 FROM payload")) == len(chunks)


async def test_a_result_that_another_job_finds_by_its_key_is_whole(store: Store) -> None:
    claim = await started(store)
    packed, chunks = split(LARGE)
    await store.write(write_of(claim, entry(output=packed, key="k"), chunks=tuple(chunks)))
    found = await store.entry_by_key("k")
    assert found is not None
    assert found.entry.output == LARGE
