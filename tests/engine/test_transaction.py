"""Transactions: a step's work and its result are one commit in the user's own database."""

import asyncio
import gc
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import perdure
from perdure import Retry, transaction
from perdure.app import App
from perdure.base.errors import DefinitionError, Drift, Permanent, StepFailed
from perdure.base.retry import pause
from perdure.engine.run.context import JobContext
from perdure.engine.steps import transaction as module
from perdure.engine.steps.step_context import StepContext, StepProgress, SyncStepContext
from perdure.jobs.state import JobState
from tests.support.engine import QUICK, nodes
from tests.support.process_transaction import book_there, steps
from tests.support.user_databases import ASYNC, KINDS, SYNC, UserDatabase, address_of, write

TWICE = Retry(attempts=2, initial_delay="1ms", jitter=0)

Story = Callable[[App, UserDatabase], Coroutine[Any, Any, None]]


@pytest.fixture
def user(request: pytest.FixtureRequest, tmp_path: Path) -> UserDatabase:
    """A database of the kind that the test names."""
    kind = str(request.param)
    return UserDatabase(
        kind, address_of(kind, tmp_path, lambda: request.getfixturevalue("postgres_server"))
    )


def on(*kinds: str) -> Callable[[Story], Callable[..., None]]:
    """Run a test on these kinds of databases of users, with an app on each store."""

    def decorate(story: Story) -> Callable[..., None]:
        @pytest.mark.parametrize("user", kinds, indirect=True)
        def run(url: str, user: UserDatabase) -> None:
            async def main() -> None:
                app = App(url, worker=QUICK)
                try:
                    await story(app, user)
                finally:
                    await app.close()
                    await user.close()

            perdure.run(main)

        run.__name__, run.__doc__ = story.__name__, story.__doc__
        return run

    return decorate


EACH = ("sqlite url", "postgres url", "async url")


def make(app: App, user: UserDatabase, calls: list[int], **options: Any) -> Any:
    """Make a step that writes a line and returns its number, async if the database is."""
    database = user.database()

    def plain(ctx: SyncStepContext, db: Any, number: int) -> int:
        calls.append(ctx.attempt)
        write(db, f"line {number}")
        return number

    async def awaited(ctx: StepContext, db: Any, number: int) -> int:
        calls.append(ctx.attempt)
        await write(db, f"line {number}")
        return number

    body = awaited if user.is_async else plain
    return app.transaction(database, name="book", **options)(body)


async def opened_pool(user: UserDatabase) -> None:
    """Open an async pool, which is not opened where it is made."""
    for each in user._made:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if user.kind == "async pool":
            await each.open()


async def make_table(user: UserDatabase) -> None:
    """Make the table of transactions by a first one."""

    async def nothing(db: Any) -> None: ...

    await transaction(user.address)(nothing)(context("first#1"))


def job_with(app: App, step: Any) -> Any:
    @app.job(on_cancel="compensate", on_outage="fail")
    async def job(ctx: JobContext) -> list[int]:
        return [await step(1), await step(2)]

    return job


@pytest.fixture
def fail_after_commit(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the first attempt fail right after it has committed, before the journal knows."""
    reached: list[str] = []

    def reach(point: str) -> None:
        reached.append(point)
        if reached.count("after_transaction_commit") == 1 and point.startswith("after"):
            raise RuntimeError("cut off")

    monkeypatch.setattr(module, "_reach", reach)
    return reached


@on(*KINDS)
async def test_work_and_result_are_committed_together(app: App, user: UserDatabase) -> None:
    calls: list[int] = []
    job = job_with(app, make(app, user, calls))
    await opened_pool(user)
    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("20s") == [1, 2]
    assert user.lines() == ["line 1", "line 2"]
    assert user.recorded() == ["book#1", "book#2"]
    assert calls == [1, 1]


@pytest.mark.usefixtures("fail_after_commit")
@on(*KINDS)
async def test_what_was_committed_before_the_journal_knew_is_not_done_again(
    app: App, user: UserDatabase
) -> None:
    calls: list[int] = []
    job = job_with(app, make(app, user, calls, retry=TWICE))
    await opened_pool(user)
    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("20s") == [1, 2]
    assert user.lines() == ["line 1", "line 2"]
    assert calls == [1, 1]
    assert [entry.attempt for entry in await handle.journal()] == [2, 1]


@on(*EACH)
async def test_an_error_rolls_everything_back(app: App, user: UserDatabase) -> None:
    database = user.database()

    def plain(ctx: SyncStepContext, db: Any) -> int:
        write(db, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("no")
        return ctx.attempt

    async def awaited(ctx: StepContext, db: Any) -> int:
        await write(db, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("no")
        return ctx.attempt

    step: Any = app.transaction(database, retry=TWICE)(awaited if user.is_async else plain)

    @app.job
    async def job(ctx: JobContext) -> int:
        return await step()

    await opened_pool(user)
    async with app.running():
        assert await (await app.submit(job())).result("20s") == 2
    assert user.lines() == ["attempt 2"]


@on(*SYNC)
async def test_a_thread_whose_attempt_has_timed_out_does_not_commit(
    app: App, user: UserDatabase
) -> None:
    release, ended = threading.Event(), threading.Event()

    @app.transaction(user.database(), timeout="1s", retry=Retry(attempts=9, initial_delay="1ms"))
    def slow(ctx: SyncStepContext, db: Any) -> int:
        write(db, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            release.wait(20)
            ended.set()
        return ctx.attempt

    @app.job
    async def job(ctx: JobContext) -> int:
        return await slow()

    async with app.running():
        handle = await app.submit(job())
        while not [each for each in await handle.events() if each.type == "step.retried"]:
            await perdure.process.sleep("5ms")
        release.set()
        result = await handle.result("20s")
    assert ended.is_set()
    assert result > 1
    assert user.lines() == [f"attempt {result}"]


@on(*ASYNC)
async def test_an_attempt_that_timed_out_gives_its_connection_back(
    app: App, user: UserDatabase
) -> None:
    database = user.database()

    @app.transaction(database, timeout="3s", retry=Retry(attempts=9, initial_delay="1ms"))
    async def slow(ctx: StepContext, db: Any) -> int:
        await write(db, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return ctx.attempt

    @app.job
    async def job(ctx: JobContext) -> int:
        return await slow()

    await opened_pool(user)
    async with app.running():
        result = await (await app.submit(job())).result("20s")
    assert user.lines() == [f"attempt {result}"]
    if user.kind == "async pool":
        assert database.get_stats()["pool_available"] == 1


@on("async url")
async def test_a_kill_does_not_interrupt_how_a_connection_is_given_back(
    app: App, user: UserDatabase
) -> None:
    go, returned = asyncio.Event(), list[bool]()
    await make_table(user)

    @asynccontextmanager
    async def lent() -> AsyncGenerator[Any, None]:
        connection = await psycopg.AsyncConnection.connect(user.address)
        try:
            yield connection
        finally:
            await go.wait()  # longer than it takes to kill the attempt, again and again
            await connection.close()
            returned.append(True)

    @app.transaction(lent, timeout="3s", retry=Retry(attempts=9, initial_delay="1ms"))
    async def slow(ctx: StepContext, db: Any) -> int:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return ctx.attempt

    @app.job
    async def job(ctx: JobContext) -> int:
        return await slow()

    async with app.running():
        handle = await app.submit(job())
        while not [each for each in await handle.events() if each.type == "step.retried"]:
            await perdure.process.sleep("5ms")
        go.set()
        result = await handle.result("20s")
    assert len(returned) == result > 1


@on("async pool", "async url")
async def test_an_attempt_that_lost_its_lease_leaves_one_commit(
    app: App, user: UserDatabase
) -> None:
    begun, calls = asyncio.Event(), list[int]()

    @app.transaction(user.database())
    async def slow(db: Any) -> int:
        calls.append(1)
        await write(db, "line")
        if len(calls) == 1:
            begun.set()
            await asyncio.Event().wait()
        return len(calls)

    @app.job
    async def job(ctx: JobContext) -> int:
        return await slow()

    await opened_pool(user)
    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        store = await app.store()
        assert await store.reap(0, [nodes(app)[0].owner]) == [handle.id]
        assert await handle.result("20s") == 2
    assert user.lines() == ["line"]


# Attempts that overlap, and cancels at every moment: the function of the step is called directly.


class Port:
    """The port of an attempt that asks nothing of the engine."""

    blocking = True

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()


def context(step: str = "book#1", undoes: str = "") -> Any:
    progress = StepProgress(
        job_id="job",
        tenant="default",
        user="",
        step_id=step,
        attempt=1,
        limits=perdure.PayloadLimits(),
        checkpoint=None,
        checkpoint_no=0,
        undoes=undoes,
    )
    port: Any = Port()
    return StepContext(port, progress)


@pytest.mark.parametrize("user", SYNC, indirect=True)
def test_of_attempts_that_overlap_one_works_and_all_get_its_result(user: UserDatabase) -> None:
    calls: list[str] = []

    def book(db: Any, number: int) -> str:
        calls.append("called")
        write(db, f"line {number}")
        return f"result {number}"

    run: Any = transaction(user.database())(book)
    results = at_once(*(partial(run, context(), 7) for _ in range(4)))
    perdure.run(user.close)
    assert results == ["result 7"] * 4
    assert user.lines() == ["line 7"]
    assert calls == ["called"]


class CancelledAt:
    """A coroutine that is cancelled at a suspension, counted from 1."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int) -> None:
        self._work = work
        self._number = number

    def __await__(self) -> Generator[Any, Any, Any]:
        count = 0
        step: Callable[[], Any] = lambda: self._work.send(None)  # noqa: E731
        while True:
            try:
                waits = step()
            except StopIteration as stop:
                return stop.value
            count += 1
            if count == self._number:
                if isinstance(waits, asyncio.Future):
                    waits.cancel()
                step = lambda: self._work.throw(asyncio.CancelledError)  # noqa: E731
                continue
            try:
                yield waits
            except BaseException as error:  # noqa: BLE001  it is the work's
                thrown = error
                step = lambda: self._work.throw(thrown)  # noqa: B023, E731
            else:
                step = lambda: self._work.send(None)  # noqa: E731


async def cut_off(run: Any, number: int, patch: pytest.MonkeyPatch) -> bool:
    """Cancel a transaction at its suspension of this number; return whether it had so many."""

    async def at(work: Coroutine[Any, Any, Any]) -> Any:
        return await CancelledAt(work, number)

    with patch.context() as changed:
        changed.setattr(module, "_apart", at)
        try:
            await run(context(f"book#{number}"), number)
        except asyncio.CancelledError:
            return True
    return False


@pytest.mark.parametrize("user", ["async url", "async pool", "async engine"], indirect=True)
def test_a_cancel_at_any_await_leaves_one_commit_or_none(
    user: UserDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def book(db: Any, number: int) -> int:
        await write(db, f"line {number:03}")
        return number

    run: Any = transaction(user.database())(book)

    async def main() -> int:
        await opened_pool(user)
        number = 0
        await run(context("book#0"), number)
        while True:
            number += 1
            more = await cut_off(run, number, monkeypatch)
            assert await run(context(f"book#{number}"), number) == number
            if not more:
                await user.close()
                return number

    last = asyncio.run(main())
    assert last > 4
    assert user.lines() == [f"line {number:03}" for number in range(last + 1)]


CONNECTING = ["async url", "async function", "async engine", "async sessions"]


@pytest.mark.parametrize("user", CONNECTING, indirect=True)
def test_a_cancel_at_any_await_leaves_no_session_at_the_server(
    user: UserDatabase, monkeypatch: pytest.MonkeyPatch, postgres_server: str
) -> None:
    name = f"cut_{uuid4().hex}"
    user.address += f"&application_name={name}"

    async def book(db: Any, number: int) -> int:
        await write(db, f"line {number:03}")
        return number

    async def main() -> int:
        number, more = 0, True
        while more:
            number += 1
            # Of its own, so that an engine connects for the first time.
            run: Any = transaction(user.database())(book)
            more = await cut_off(run, number, monkeypatch)
        await user.close()
        async with asyncio.timeout(30):
            while await asyncio.to_thread(sessions, postgres_server, name):
                # SQLAlchemy leaves a connection that was cancelled as it was made to the collector.
                gc.collect()
                await pause(0.01)
        return number

    assert asyncio.run(main()) > 4


def sessions(server: str, name: str) -> int:
    """Return how many sessions the server has for programs of this name."""
    with psycopg.connect(server) as pg:
        found = pg.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (name,)
        ).fetchone()
    assert found is not None
    return found[0]


# What is refused


@on(*EACH)
async def test_a_function_that_ends_its_transaction_itself_fails_for_good(
    app: App, user: UserDatabase
) -> None:
    calls: list[int] = []

    def plain(db: Any) -> None:
        calls.append(1)
        db.execute("COMMIT")

    async def awaited(db: Any) -> None:
        calls.append(1)
        await db.execute("COMMIT")

    step: Any = app.transaction(user.database(), retry=TWICE)(awaited if user.is_async else plain)

    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            await step()
        except StepFailed as failed:
            return failed.error
        return ""

    async with app.running():
        assert "has ended its transaction itself" in await (await app.submit(job())).result("20s")
    assert calls == [1]


@pytest.mark.parametrize("user", ["sqlite url", "postgres url"], indirect=True)
def test_other_arguments_than_those_that_were_committed_are_drift(user: UserDatabase) -> None:
    def book(db: Any, number: int) -> int:
        return number

    run: Any = transaction(user.database())(book)
    assert run(context(), 1) == 1
    assert run(context(), 1) == 1
    with pytest.raises(Drift, match="other arguments"):
        run(context(), 2)


@on(*EACH)
async def test_a_transaction_has_no_checkpoints(app: App, user: UserDatabase) -> None:
    def plain(ctx: Any, db: Any) -> None:
        ctx.save_checkpoint(1)

    async def awaited(ctx: StepContext, db: Any) -> None:
        await ctx.save_checkpoint(1)

    step: Any = app.transaction(user.database())(awaited if user.is_async else plain)

    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            await step()
        except StepFailed as failed:
            return failed.error
        return ""

    async with app.running():
        assert "has no checkpoints" in await (await app.submit(job())).result("20s")


def test_a_function_that_cannot_use_its_database_is_refused(tmp_path: Path) -> None:
    async def awaited(db: Any) -> None: ...

    def plain(db: Any) -> None: ...

    def nothing() -> None: ...

    with pytest.raises(DefinitionError, match="sqlite3 blocks"):
        transaction(f"sqlite:///{tmp_path / 'x.db'}")(awaited)
    with pytest.raises(DefinitionError, match="'mysql' is not a database"):
        transaction("mysql://x")(plain)
    with pytest.raises(DefinitionError, match="is not a database"):
        transaction(3)(plain)
    with pytest.raises(DefinitionError, match="must take a connection"):
        transaction(tmp_path / "x.db")(nothing)  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("user", ["sqlite function", "async function"], indirect=True)
def test_a_connection_of_the_other_kind_is_refused(user: UserDatabase) -> None:
    async def awaited(db: Any) -> None: ...

    def plain(db: Any) -> None: ...

    if user.is_async:
        with pytest.raises(DefinitionError, match="write `async def`"):
            transaction(user.database())(plain)(context())
    else:
        with pytest.raises(DefinitionError, match="write `def`"):
            asyncio.run(transaction(user.database())(awaited)(context()))


@pytest.mark.parametrize("user", ["sqlite function", "postgres function"], indirect=True)
def test_one_connection_for_all_steps_is_refused(user: UserDatabase) -> None:
    def plain(db: Any) -> None: ...

    connection = user.database()()
    with pytest.raises(DefinitionError, match="would share its transaction"):
        transaction(connection)(plain)
    connection.close()


# Undo


@pytest.mark.usefixtures("fail_after_commit")
@on(*EACH)
async def test_a_compensation_gets_what_was_committed_though_the_journal_never_did(
    app: App, user: UserDatabase
) -> None:
    seen: list[Any] = []
    database = user.database()
    book = make(app, user, [], retry=Retry(attempts=1))

    def plain(db: Any, number: int, output: int | None) -> None:
        seen.append(output)
        write(db, f"undone {output}")

    async def awaited(db: Any, number: int, output: int | None) -> None:
        seen.append(output)
        await write(db, f"undone {output}")

    book.compensate(transaction(database)(awaited if user.is_async else plain))
    job = job_with(app, book)
    async with app.running():
        assert await (await app.submit(job())).wait("20s") is JobState.COMPENSATED
    assert seen == [1]
    assert user.lines() == ["line 1", "undone 1"]


@pytest.mark.parametrize("user", ["sqlite url", "postgres url"], indirect=True)
def test_what_was_undone_before_it_committed_never_commits(user: UserDatabase) -> None:
    seen: list[Any] = []

    def book(db: Any) -> int:
        write(db, "line")
        return 1

    def unbook(db: Any, output: int | None) -> None:
        seen.append(output)

    run: Any = transaction(user.database())(book)
    undo: Any = transaction(user.database())(unbook)
    undo(context("undo:book#1", undoes="book#1"), None)
    undo(context("undo:book#1", undoes="book#1"), None)
    assert seen == [None]
    with pytest.raises(Permanent, match="it was undone before"):
        run(context())
    assert user.lines() == []


# Others get in the way


def strict(user: UserDatabase, level: str) -> Callable[[], psycopg.Connection]:
    """Return a function that connects with an isolation level."""

    def connect() -> psycopg.Connection:
        connection = psycopg.connect(user.address)
        connection.isolation_level = psycopg.IsolationLevel[level]
        return connection

    return connect


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call functions in threads, all at once; return what they return, in order."""
    together = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        together.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.mark.parametrize("user", ["postgres url"], indirect=True)
def test_a_transaction_that_was_rolled_back_because_of_others_is_repeated(
    user: UserDatabase,
) -> None:
    all_have_read, repeated = threading.Barrier(3), set[int]()

    def count(db: psycopg.Connection, number: int) -> int:
        found = db.execute("SELECT count(*) FROM ledger").fetchone()
        assert found is not None
        if number not in repeated:
            repeated.add(number)
            all_have_read.wait()
        write(db, f"line {found[0]}")
        return int(found[0])

    run: Any = transaction(strict(user, "SERIALIZABLE"))(count)
    asyncio.run(make_table(user))
    results = at_once(*(partial(run, context(f"count#{each}"), each) for each in range(3)))
    assert sorted(results) == [0, 1, 2]
    assert user.lines() == ["line 0", "line 1", "line 2"]


@pytest.mark.parametrize("user", ["postgres url"], indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_attempts_overlap_at_any_isolation_level(user: UserDatabase, level: str) -> None:
    calls: list[int] = []

    def book(db: psycopg.Connection) -> int:
        calls.append(1)
        write(db, "line")
        return 7

    run: Any = transaction(strict(user, level))(book)
    asyncio.run(make_table(user))
    assert at_once(*(partial(run, context()) for _ in range(4))) == [7] * 4
    assert user.lines() == ["line"]
    assert len(calls) == 1


# The table


@pytest.mark.parametrize("user", ["postgres url", "sqlite url"], indirect=True)
def test_the_first_steps_make_the_table_whoever_is_first(user: UserDatabase) -> None:
    def book(db: Any, number: int) -> int:
        write(db, str(number))
        return number

    run: Any = transaction(user.database())(book)
    at_once(*(partial(run, context(f"book#{each}"), each) for each in range(8)))
    assert user.lines() == [str(number) for number in range(8)]


@on("sqlite url", "postgres pool", "async pool", "sqlite engine", "async engine")
async def test_what_ended_jobs_have_recorded_can_be_deleted(app: App, user: UserDatabase) -> None:
    database = user.database()

    def plain(db: Any) -> None: ...

    async def awaited(db: Any) -> None: ...

    step: Any = app.transaction(database)(awaited if user.is_async else plain)

    @app.job
    async def waits(ctx: JobContext) -> None:
        await step()
        await ctx.receive("go")

    @app.job
    async def ends(ctx: JobContext) -> None:
        await step()

    await opened_pool(user)
    assert await app.prune_transactions(database, "0s") == 0
    async with app.running():
        live = await app.submit(waits())
        await live.until(JobState.WAITING)
        await (await app.submit(ends())).result("20s")
        assert len(user.recorded()) == 2
        assert await app.prune_transactions(database) == 0
        assert await app.prune_transactions(database, "0s") == 1
    assert len(user.recorded()) == 1


# With the engine


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_the_database_of_the_store_may_be_the_user_s_own(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind = "sqlite url" if store == "sqlite" else "postgres url"
    server: Callable[[], str] = lambda: request.getfixturevalue("postgres_server")  # noqa: E731
    address = address_of(kind, tmp_path, server)
    url = request.getfixturevalue("postgres_url") if store == "postgres" else f"sqlite:///{address}"

    async def main() -> None:
        async with App(url, worker=QUICK) as app:
            await app.store()
            user = UserDatabase(kind, address)
            calls: list[int] = []
            job = job_with(app, make(app, user, calls))
            async with app.running():
                assert await (await app.submit(job())).result("20s") == [1, 2]
            assert user.lines() == ["line 1", "line 2"]

    perdure.run(main)


@on("postgres url", "async url")
async def test_an_effect_within_a_transaction_is_not_repeated_with_it(
    app: App, user: UserDatabase
) -> None:
    sent: list[str] = []

    def mail(key: str) -> str:
        sent.append(key)
        return "sent"

    def plain(ctx: Any, db: Any) -> str:
        sent_as: str = ctx.effect("mail", mail, target="kim")
        write(db, sent_as)
        if ctx.attempt == 1:
            raise RuntimeError("no")
        return sent_as

    async def awaited(ctx: StepContext, db: Any) -> str:
        sent_as = await ctx.effect("mail", mail, target="kim")
        await write(db, sent_as)
        if ctx.attempt == 1:
            raise RuntimeError("no")
        return sent_as

    step: Any = app.transaction(user.database(), retry=TWICE)(awaited if user.is_async else plain)

    @app.job
    async def job(ctx: JobContext) -> str:
        return await step()

    async with app.running():
        assert await (await app.submit(job())).result("20s") == "sent"
    assert len(sent) == 1
    assert user.lines() == ["sent"]


@pytest.mark.parametrize("user", ["sqlite path"], indirect=True)
def test_a_transaction_runs_in_an_os_process_of_its_own(
    url: str, user: UserDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_DATABASE", user.address)

    async def main() -> int:
        async with App(url, worker=QUICK) as app:
            app.include(steps)

            @app.job
            async def job() -> int:
                return await book_there("line")

            async with app.running():
                return await (await app.submit(job())).result("20s")

    assert perdure.run(main) != os.getpid()
    assert user.lines() == ["line"]
    assert user.recorded() == ["book_there#1"]
