"""What a transaction has committed is known as long as its job can run again."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import perdure
from perdure import Retry, transaction
from perdure.app import App
from perdure.base.errors import StepFailed
from perdure.engine.run.context import JobContext
from perdure.jobs.state import JobState
from tests.support.engine import QUICK
from tests.support.user_databases import UserDatabase, write


class Deaf:
    """Opens connections to a file; the first commit happens, and nobody hears of it."""

    def __init__(self, user: UserDatabase) -> None:
        self.user = user
        self.is_lost = False

    def __call__(self) -> sqlite3.Connection:
        outer = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                done = super().execute(sql, parameters)
                if sql == "COMMIT" and outer.user.lines() and not outer.is_lost:
                    outer.is_lost = True
                    raise OSError("the answer was lost")
                return done

        return sqlite3.connect(self.user.address, timeout=30, factory=Connection)


Story = Callable[[App, Deaf], Coroutine[Any, Any, None]]


def on_each_store(story: Story) -> Callable[[str, Path], None]:
    def run(url: str, tmp_path: Path) -> None:
        async def main() -> None:
            user = UserDatabase("sqlite url", str(tmp_path / "user.db"))
            async with App(url, worker=QUICK) as app:
                await story(app, Deaf(user))

        perdure.run(main)

    run.__name__, run.__doc__ = story.__name__, story.__doc__
    return run


def booking(app: App, database: Deaf, **options: Any) -> Any:
    @app.transaction(database, name="book", **options)
    def book(db: Any) -> int:
        write(db, "line")
        return 1

    return book


@on_each_store
async def test_the_retry_of_a_failed_job_finds_what_it_has_committed(
    app: App, database: Deaf
) -> None:
    book = booking(app, database, retry=Retry(attempts=1))

    @app.job
    async def job(ctx: JobContext) -> int:
        return await book()

    async with app.running():
        handle = await app.submit(job())
        assert await handle.until(JobState.FAILED) is JobState.FAILED
        await app.prune_transactions(database, "0s")
        await handle.retry()
        assert await handle.result("20s") == 1
    assert database.user.lines() == ["line"]
    assert await app.prune_transactions(database, "0s") == 1  # now it is over


@on_each_store
async def test_the_retry_of_a_cancelled_job_finds_what_it_has_committed(
    app: App, database: Deaf
) -> None:
    book = booking(app, database, retry=Retry(attempts=2, initial_delay="1h", jitter=0))

    @app.job
    async def job(ctx: JobContext) -> int:
        return await book()

    async with app.running():
        handle = await app.submit(job())
        await handle.until(JobState.WAITING)
        await handle.cancel()
        assert await handle.until(JobState.CANCELLED) is JobState.CANCELLED
        await app.prune_transactions(database, "0s")
        await handle.retry()
        assert await handle.result("20s") == 1
    assert database.user.lines() == ["line"]


@on_each_store
async def test_the_undo_of_a_completed_child_finds_what_it_has_committed(
    app: App, database: Deaf
) -> None:
    book, has_child = booking(app, database, retry=Retry(attempts=1)), asyncio.Event()

    @book.compensate
    @transaction(database)
    def unbook(db: Any, booked: int | None) -> None:
        write(db, f"undo of {booked}")

    @app.job
    async def child(ctx: JobContext) -> None:
        with suppress(StepFailed):
            await book()

    @app.job
    async def parent(ctx: JobContext) -> None:
        await child()
        has_child.set()
        await ctx.receive("go")
        raise ValueError("no")

    async with app.running():
        handle = await app.submit(parent())
        await has_child.wait()
        await app.prune_transactions(database, "0s")
        await handle.send("go")
        assert await handle.until(JobState.COMPENSATED) is JobState.COMPENSATED
    assert database.user.lines() == ["line", "undo of 1"]
