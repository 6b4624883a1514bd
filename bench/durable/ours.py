"""What is measured of Perdure alone: claims among finished jobs, and the price of an effect."""

import asyncio
import statistics
import time

from bench.durable.contenders import perdure
from bench.durable.hand import reading, working
from bench.durable.place import Place, fresh
from bench.durable.prefill import prefill
from bench.durable.size import Figures, Size
from bench.durable.workload import all_steps, rate
from bench.runner import TrialFailed
from perdure.jobs.model import EntryKind, JobChange, JournalEntry, NewJob, QueueLimit, Write
from perdure.jobs.state import JobState, StepState
from perdure.store.open import open_store
from perdure.store.store import Store

_OWNER = "bench"
_QUEUES = {"default": QueueLimit()}
_LEASE = 60.0
_ROUNDS = 20
_CLAIMS = 10  # of each round …
_AT_ONCE = 10  # … and jobs of each claim


def claims(_: str, place: Place, size: Size) -> Figures:
    """Claim in turn from an empty store and from one that is full of finished jobs."""
    with fresh(place.store, place.folder.parent, place.server) as full:
        return asyncio.run(_claims(place, full, size.jobs))


async def _claims(empty: Place, full: Place, finished: int) -> Figures:
    without, among = open_store(empty.url), open_store(full.url)
    await without.open()
    await among.open()
    try:
        await _finish_one(among)
        prefill(full, finished)
        pairs = [(await _rate(without, n), await _rate(among, n)) for n in range(_ROUNDS)]
    finally:
        await without.close()
        await among.close()
    return {
        "claims": statistics.median(first for first, _ in pairs),
        "claims_full": statistics.median(second for _, second in pairs),
        "claim_ratio": statistics.median(second / first for first, second in pairs),
    }


async def _rate(store: Store, number: int) -> float:
    """Give the jobs claimed in a second."""
    await store.submit([_job(f"{number}-{job}") for job in range(_CLAIMS * _AT_ONCE)])
    since = time.perf_counter()
    for _ in range(_CLAIMS):
        claimed = await store.claim(_OWNER, _QUEUES, _AT_ONCE, _LEASE)
        assert len(claimed) == _AT_ONCE
    return _CLAIMS * _AT_ONCE / (time.perf_counter() - since)


async def _finish_one(store: Store) -> None:
    """Leave one finished job, of which many are made."""
    await store.submit([_job("first")])
    (claim,) = await store.claim(_OWNER, _QUEUES, 1, _LEASE)
    entry = JournalEntry(
        seq=1,
        id="step#1",
        kind=EntryKind.STEP,
        name="step",
        state=StepState.SUCCEEDED,
        input=b"[0]",
        output=b"0",
    )
    end = JobChange(state=JobState.COMPLETED, result=b"null")
    await store.write(
        Write(job_id=claim.job.id, owner=_OWNER, epoch=claim.epoch, entries=(entry,), job=end)
    )


def _job(id: str) -> NewJob:
    return NewJob(
        id=id, tenant="default", user="", name="row", version="1", input=b"[0, 1]", queue="default"
    )


def effect(name: str, place: Place, size: Size) -> Figures:
    """Run steps without and with an effect in turn, in one worker."""
    if not perdure.HAS_EFFECTS:
        raise TrialFailed("there are no effects yet")
    perdure.prepare(place)
    rates: list[float] = []
    with (
        reading(place) as marks,
        perdure.client(place) as client,
        working(name, place, marks) as worker,
    ):
        worker.be_ready()
        for job in range(size.jobs * 2):
            client.submit(job, size.steps, effects=bool(job % 2))
            done = all_steps(worker, range(job, job + 1), size.steps, size.limit)
            rates.append(rate(done))
    # Neighbours are compared: a disk that others use too is never the same for long.
    pairs = zip(rates[::2], rates[1::2], strict=True)
    return {"effect_ratio": statistics.median(without / with_one for without, with_one in pairs)}
