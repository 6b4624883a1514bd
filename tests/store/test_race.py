"""Several owners at once: threads, stores, OS processes. Each job has one at a time."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from perdure.jobs.model import ChildWait, Claim, Command
from perdure.jobs.state import JobState
from perdure.store.store import Store
from tests.support.store import (
    LEASE,
    claim_one,
    claims,
    ends,
    entry,
    new_job,
    releases,
    started,
    write_of,
)

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def process(*arguments: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.claimer", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started_:
        try:
            yield started_
        finally:
            started_.kill()


async def test_of_many_who_claim_at_once_each_job_has_one(store: Store, other: Store) -> None:
    await store.submit([new_job(f"j{number:03}") for number in range(60)])
    found: list[list[Claim]] = []
    while True:
        rounds = [claims(each, 2, f"w{n}") for n in range(3) for each in (store, other)]
        batch = await asyncio.gather(*rounds)
        if not any(batch):
            break
        found += batch
    ids = [claim.job.id for batch in found for claim in batch]
    assert sorted(ids) == [f"j{number:03}" for number in range(60)]


async def test_three_processes_share_the_work(store: Store, url: str) -> None:
    names = [f"j{number:03}" for number in range(90)]
    await store.submit([new_job(name) for name in names])
    with process(url, "p1") as one, process(url, "p2") as two, process(url, "p3") as three:
        outputs = await asyncio.gather(
            *(asyncio.to_thread(each.communicate, timeout=50) for each in (one, two, three))
        )
    done = [output.split() for output, _ in outputs]
    assert sorted(name for names_ in done for name in names_) == names
    assert await store.counts() == {"COMPLETED": 90}
    for name in names:
        types = [event.type for event in await store.events(name)]
        assert types == ["submitted", "claimed"]


async def test_no_write_of_a_stopped_process_is_accepted_after_the_take_over(
    store: Store, url: str
) -> None:
    await store.submit([new_job("a")])
    with process(url, "zombie", "stopped") as sleeper:
        assert sleeper.stdout is not None
        assert await asyncio.to_thread(sleeper.stdout.readline) == "claimed\n"
        # It stops itself after that: one that is continued before would never be.
        await asyncio.to_thread(os.waitid, os.P_PID, sleeper.pid, os.WSTOPPED)
        assert await store.reap(10) == ["a"]
        claim = await claim_one(store, "w2")
        await store.write(write_of(claim, entry(0, output=b'"w2"')))
        sleeper.send_signal(signal.SIGCONT)
        output, _ = await asyncio.to_thread(sleeper.communicate, timeout=30)
        assert output.split() == ["refused", "refused"]
    (found,) = await store.journal("a")
    assert found.output == b'"w2"'
    await store.write(write_of(claim, job=ends()))


async def test_news_and_release_at_the_same_time_lose_nothing(store: Store, other: Store) -> None:
    claim = await started(store)
    for number in range(25):
        change = write_of(claim, job=releases(), news_seen=claim.news)
        await asyncio.gather(store.write(change), other.send("a", "hello", b"%d" % number))
        claim = await claim_one(store)
        assert len(claim.messages) == number + 1


async def test_the_end_of_a_child_and_the_wait_of_its_parent_at_once(
    store: Store, other: Store
) -> None:
    for number in range(10):
        parent = await started(store, f"p{number}")
        child = new_job(f"c{number}", parent=parent.job.id)
        await store.write(write_of(parent, entry(0), children=(child,)))
        own = await claim_one(other, "w2")
        waits = releases(children=ChildWait(ids=(child.id,), needed=1))
        await asyncio.gather(
            store.write(write_of(parent, job=waits, news_seen=parent.news)),
            other.write(write_of(own, job=ends())),
        )
        woken = await claim_one(store)
        assert woken.job.id == parent.job.id
        await store.write(write_of(woken, job=ends()))


async def test_reaper_and_owner_at_once_agree(store: Store, other: Store) -> None:
    for number in range(15):
        await store.submit([new_job(f"j{number}")])
        claim = await claim_one(store)
        results = await asyncio.gather(
            store.write(write_of(claim, entry(0))),
            other.reap(0, dead=["w1"]),
            asyncio.to_thread(store.renew_blocking, "w1", [(claim.job.id, claim.epoch)], LEASE),
            return_exceptions=True,
        )
        written = len(await store.journal(claim.job.id)) == 1
        assert written == (results[0] is None)
        again = await claim_one(store, "w2")
        assert again.epoch == 2
        assert len(again.journal) == int(written)
        await store.write(write_of(again, job=ends()))


async def test_cancel_and_completion_at_once_leave_one_truth(store: Store, other: Store) -> None:
    for number in range(15):
        claim = await started(store, f"j{number}")
        command = Command(job_id=claim.job.id, action="cancel", actor="kim")
        await asyncio.gather(
            store.write(write_of(claim, job=ends())),
            other.command(command),
            return_exceptions=True,
        )
        found = await store.job(claim.job.id)
        assert found is not None
        assert (found.state, found.owner) == (JobState.COMPLETED, None)


async def test_the_same_key_submitted_at_once_is_one_job(store: Store, other: Store) -> None:
    submissions = [
        each.submit([new_job(f"{name}{number}", key="k")])
        for number in range(5)
        for name, each in (("a", store), ("b", other))
    ]
    results = [result for (result,) in await asyncio.gather(*submissions)]
    assert len({result.id for result in results}) == 1
    assert sum(result.created for result in results) == 1


async def test_a_store_may_be_used_from_several_threads(store: Store) -> None:
    await store.submit([new_job(f"j{number:02}") for number in range(20)])
    taken: list[str] = []

    async def take(owner: str) -> None:
        while found := await claims(store, 2, owner):
            taken.extend(claim.job.id for claim in found)
            held = [(claim.job.id, claim.epoch) for claim in found]
            assert len(store.renew_blocking(owner, held, LEASE)) == len(held)

    threads = [threading.Thread(target=asyncio.run, args=(take(owner),)) for owner in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert sorted(taken) == [f"j{number:02}" for number in range(20)]
