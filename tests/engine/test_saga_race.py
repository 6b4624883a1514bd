"""What is in flight when a job is cancelled or its time is up is not lost to the undo."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import StepFailed
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import EffectState
from perdure.jobs.model import EntryKind, JobChange, JobNews, JournalEntry, QueueLimit, Write
from perdure.jobs.state import JobState, StepState
from tests.support.engine import durable, nodes, until

ONCE = Retry(attempts=1)
UNHURRIED = WorkerSettings(start_record_after="1m")  # so that only what must be is recorded


@contextmanager
def held(url: str) -> Generator[None]:
    """Let nobody write to the ledger for a while; who has asked for it waits."""
    if url.startswith("sqlite"):
        database = sqlite3.connect(urlsplit(url).path.removeprefix("/"), isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            database.close()
        return
    base, _, schema = url.rpartition("&schema=")
    with psycopg.connect(base, options=f"-c search_path={schema}") as pg:
        pg.execute("LOCK TABLE effect IN EXCLUSIVE MODE")
        yield
        pg.rollback()


class Shop:
    """Reserves, then pays; what was done is undone."""

    def __init__(self, app: App, url: str) -> None:
        self.log: list[str] = []
        self.hold: Any = None

        @app.step
        async def reserve(ctx: StepContext) -> str:
            self.log.append("reserve")
            return "place"

        @reserve.compensate
        async def release(ctx: StepContext, output: str | None) -> None:
            self.log.append(f"release {output}")

        @app.step
        async def pay(ctx: StepContext) -> str:
            self.hold = held(url)
            self.hold.__enter__()
            return await ctx.effect("payment", lambda key: "paid", target="card")

        @pay.compensate
        async def refund(ctx: StepContext, output: str | None) -> None:
            self.log.append(f"refund {output}")

        @app.job(on_cancel="compensate")
        async def order(ctx: JobContext) -> None:
            await reserve()
            await pay()

        self.order = order

    async def cancel(self, app: App, job_id: str) -> None:
        """Cancel the job while a write is in flight, and let that through when nothing works."""
        (node,) = nodes(app)
        while self.hold is None:
            await perdure.process.sleep("2ms")
        run = node.runs[job_id]
        # As if a cancel had been read: to write one would have to wait, too.
        node.apply_news([JobNews(job_id, run.news + 1, "cancel")], [])
        while not run.code_ended or run.working:
            await perdure.process.sleep("2ms")
        for _ in range(20):  # turns of the loop, for whoever reads now what is not there yet
            await perdure.process.sleep("5ms")
        self.hold.__exit__(None, None, None)


def test_a_write_in_flight_when_the_job_is_cancelled_is_waited_for(url: str) -> None:
    @durable
    async def test(app: App) -> None:
        shop = Shop(app, url)
        handle = await app.submit(shop.order())
        async with app.running():
            await shop.cancel(app, handle.id)
            assert await handle.wait("20s") is JobState.CANCELLED
        assert shop.log == ["reserve", "refund None", "release place"]
        journal = await handle.journal()
        assert [entry.id for entry in journal] == [
            *("reserve#1", "pay#1", "undo", "undo:pay#1", "undo:reserve#1"),
        ]
        assert EffectState.INTENT not in {line.state for line in await handle.effects()}

    test(url)


@durable
async def test_a_call_that_is_open_when_its_job_completes_is_in_doubt(app: App) -> None:
    @app.step(retry=ONCE, timeout="1s")
    async def pay(ctx: StepContext) -> None:
        async def call(key: str) -> None:
            await perdure.process.sleep("1h")

        await ctx.effect("payment", call, target="card", in_doubt="replay")

    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            await pay()
        except StepFailed:
            return "without"
        return "with"

    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("10s") == "without"
    assert [line.state for line in await handle.effects()] == [EffectState.IN_DOUBT]


def _undoing(seq: int, output: bytes) -> JournalEntry:
    return JournalEntry(
        seq=seq,
        id="undo",
        kind=EntryKind.UNDO,
        name="undo",
        state=StepState.SUCCEEDED,
        output=output,
    )


async def _left_by_a_dead_worker(app: App, job_id: str, head: JournalEntry) -> None:
    """Leave a job as one whose undo has begun."""
    store = await app.store()
    (claim,) = await store.claim("dead", {"default": QueueLimit()}, 1, 60.0)
    begun = JobChange(state=JobState.COMPENSATING, release=True, due_at=claim.now)
    await store.write(
        Write(job_id=job_id, owner="dead", epoch=claim.epoch, entries=(head,), job=begun)
    )


@pytest.mark.parametrize("action", ["resume", "retry", "compensate"])
def test_an_error_while_undoing_parks_the_job_at_once_and_commands_are_accepted(
    url: str, action: str
) -> None:
    @durable
    async def test(app: App) -> None:
        @app.job
        async def job(ctx: JobContext) -> None: ...

        handle = await app.submit(job())
        await _left_by_a_dead_worker(app, handle.id, _undoing(1, b'{"ends": "what is this?"}'))
        async with app.running():
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            assert "the undo of this job cannot continue" in str(await handle.failure())
            claimed = [one for one in await handle.events() if one.type == "claimed"]
            assert len(claimed) == 2  # by the dead one, and once more
            await getattr(handle, action)()
            while len([one for one in await handle.events() if one.type == "claimed"]) < 3:
                await perdure.process.sleep("2ms")
            await until(app, handle.id, JobState.NEEDS_ATTENTION)

    test(url)


@durable
async def test_an_undo_that_kills_its_workers_is_parked(app: App) -> None:
    @app.job(max_claims=2)
    async def job(ctx: JobContext) -> None: ...

    handle = await app.submit(job())
    await _left_by_a_dead_worker(app, handle.id, _undoing(1, b'{"ends": "COMPENSATED"}'))
    store = await app.store()
    for _ in range(2):
        assert len(await store.claim("killed", {"default": QueueLimit()}, 1, -1.0)) == 1
        await store.reap(1)
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert "2 workers in a row took the undo of this job" in str(await handle.failure())
        await handle.resume()
        assert await handle.wait("10s") is JobState.COMPENSATED


@durable
async def test_work_of_a_worker_that_died_at_once_is_undone_when_its_job_is_cancelled(
    app: App,
) -> None:
    done: list[str] = []

    @app.step
    async def reserve(ctx: StepContext) -> None:
        done.append("reserved")
        await (await app.handle(ctx.job_id)).cancel()
        (node,) = nodes(app)
        node.runs[ctx.job_id].lose_lease()  # as if it had died: nothing more is written
        await perdure.process.sleep("1h")

    @reserve.compensate
    async def release(ctx: StepContext, output: None) -> None:
        done.append("released")

    @app.job(on_cancel="compensate")
    async def order(ctx: JobContext) -> None:
        await reserve()

    async with app.running():
        handle = await app.submit(order())
        assert await handle.wait() is JobState.CANCELLED
    assert done == ["reserved", "released"]


@durable
async def test_a_step_is_in_the_journal_before_it_begins_if_it_can_be_undone(app: App) -> None:
    seen: dict[str, list[StepState]] = {}

    async def look(ctx: StepContext) -> None:
        journal = await (await app.handle(ctx.job_id)).journal()
        seen[ctx.step_id] = [entry.state for entry in journal if entry.id == ctx.step_id]

    @app.step
    async def reserve(ctx: StepContext) -> None:
        await look(ctx)

    @reserve.compensate
    async def release(ctx: StepContext, output: None) -> None: ...

    @app.step
    async def note(ctx: StepContext) -> None:
        await look(ctx)

    @app.job
    async def order(ctx: JobContext) -> None:
        await reserve()
        await note()

    async with app.running(UNHURRIED):
        await (await app.submit(order())).result()
    # What nothing undoes costs one write: it is simply done again.
    assert seen == {"reserve#1": [StepState.RUNNING], "note#1": []}
