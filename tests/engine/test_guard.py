"""The guard: the code of a job begins no connection and no subprocess outside of a step."""

import asyncio
import inspect
import logging
import os
import smtplib
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from logging.handlers import SysLogHandler
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Retry, process
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.journal import guard
from perdure.engine.replay import replay
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.errors import DefinitionError, JobParked, UnrecordedIO
from perdure.jobs.failure import Failure
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from perdure.testing import crash_everywhere, environment
from tests.support import outside_steps
from tests.support.engine import QUICK, until
from tests.support.outside_acts import ACTS, Act, Outside, do, outside

HERE = Path(__file__).name
CONNECTS = next(act for act in ACTS if act.name == "socket")

Code = Callable[[JobContext], Awaitable[Any]]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Outside]:
    """The world outside."""
    with outside(tmp_path) as server:
        yield server


@pytest.fixture
def app(url: str) -> App:
    """An app on both databases."""
    return App(url, worker=QUICK)


@pytest.fixture
def small(tmp_path: Path) -> App:
    """An app where the database does not matter."""
    return App(f"sqlite:///{tmp_path / 'jobs.db'}", worker=QUICK)


def job_of(app: App, code: Code, **options: Any) -> Any:
    @app.job(**options)
    async def job(ctx: JobContext) -> Any:
        return await code(ctx)

    return job


async def why(handle: Handle[Any]) -> Failure:
    """Return why a job is parked."""
    job = await handle.job()
    assert job.state is JobState.NEEDS_ATTENTION, job.state
    assert job.error is not None
    return Failure.unpack(job.error)


def refusal(app: App, code: Code, **options: Any) -> str:
    """Run a job that is parked by the guard; return what it says."""
    job = job_of(app, code, **options)
    with pytest.raises(JobParked) as parked:
        app.run_sync(job())
    assert "UnrecordedIO" in parked.value.failure
    return parked.value.failure


def line_of(code: Callable[..., Any], offset: int) -> str:
    return f"{HERE}:{code.__code__.co_firstlineno + offset} in {code.__name__}"


# What is refused


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_the_code_of_a_job_reaches_nobody(act: Act, small: App, at: Outside) -> None:
    if not act.is_possible:
        pytest.skip(f"{act.needs} is not installed")
    text = refusal(small, lambda _: do(act, at))
    assert not at.noticed
    assert "outside_acts.py:" in text


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_a_step_reaches_everybody(act: Act, small: App, at: Outside) -> None:
    if not act.is_possible:
        pytest.skip(f"{act.needs} is not installed")

    @small.step
    async def step() -> None:
        await do(act, at)

    small.run_sync(job_of(small, lambda _: step())())
    assert at.notices()


def test_the_refusal_names_the_line_and_what_to_write(app: App, at: Outside) -> None:
    httpx = import_module("httpx")

    async def pays(_: JobContext) -> None:
        httpx.post(f"{at.site}/secret")

    text = refusal(app, pays)
    assert line_of(pays, 1) in text
    assert f"an HTTP request, POST to {at.site} " in text
    for advice in ("@app.step", "ctx.call", "ctx.unrecorded"):
        assert advice in text
    assert "secret" not in text


def test_a_command_is_named_without_its_arguments(small: App) -> None:
    async def asks(_: JobContext) -> None:
        await asyncio.create_subprocess_exec("/bin/echo", "password")

    text = refusal(small, asks)
    assert "/bin/echo" in text
    assert "password" not in text


def test_a_worker_is_not_replaced_by_another_program(small: App) -> None:
    async def replaces(_: JobContext) -> None:
        os.execv("/no/such/program", ["program"])

    assert "the subprocess '/no/such/program'" in refusal(small, replaces)


def test_a_mail_over_a_connection_of_a_step_is_refused(small: App, at: Outside) -> None:
    mails = smtplib.SMTP()  # not connected: what counts is that it is about to send

    async def sends(_: JobContext) -> None:
        mails.sock = socket.socket()
        try:
            mails.putcmd("mail", "FROM:<kim@example.com>")
        finally:
            mails.sock.close()

    assert "a mail command over SMTP" in refusal(small, sends)


def test_a_name_server_may_be_asked(small: App) -> None:
    async def asks(_: JobContext) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.sendto(b"x", ("127.0.0.1", 53))
        return "asked"

    assert small.run_sync(job_of(small, asks)()) == "asked"


async def _in_gather(do: Callable[[], None]) -> None:
    async def one() -> None:
        do()

    await asyncio.gather(one(), asyncio.sleep(0))


async def _in_group(do: Callable[[], None]) -> None:
    async def one() -> None:
        do()

    async with asyncio.TaskGroup() as group:
        group.create_task(one())


async def _in_pool(do: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, do)


async def _in_executor(do: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, do)


async def _in_process(do: Callable[[], None]) -> None:
    async def one() -> None:
        do()

    process.spawn_monitored(one)
    await process.events().receive()


PLACES: dict[str, Callable[[Callable[[], None]], Awaitable[None]]] = {
    "gather": _in_gather,
    "group": _in_group,
    "to_thread": asyncio.to_thread,
    "run_in_executor": _in_executor,
    "pool": _in_pool,
    "offload": process.offload,
    "process": _in_process,
}


@pytest.mark.parametrize("place", PLACES)
def test_neither_tasks_nor_threads_of_the_code_reach_anybody(
    place: str, app: App, at: Outside
) -> None:
    text = refusal(app, lambda _: PLACES[place](partial(CONNECTS.do, at)))
    assert not at.noticed
    assert f"127.0.0.1:{at.port}" in text


def test_the_line_is_that_of_the_job_where_a_thread_shows_none(small: App, at: Outside) -> None:
    requests = import_module("requests")

    async def pays(_: JobContext) -> None:
        await asyncio.to_thread(requests.post, at.site, timeout=5)

    assert line_of(pays, 1) in refusal(small, pays)


def test_a_child_job_is_refused_as_its_parent_is(app: App, at: Outside) -> None:
    async def main() -> None:
        child = job_of(app, lambda _: do(CONNECTS, at), name="child")

        @app.job
        async def parent() -> None:
            await child()

        async with app.running():
            await app.submit(parent())
            assert "job child" in (await why(await _parked(app))).message
        await app.close()

    perdure.run(main)
    assert not at.noticed


async def _parked(app: App) -> Handle[Any]:
    """Wait until a job is parked."""
    while not (found := await app.find_jobs(JobQuery(states=(JobState.NEEDS_ATTENTION,)))):
        await process.sleep("5ms")
    return await app.handle(found[0].id)


# Reused connections


async def _httpx_reused(app: App, at: Outside) -> tuple[Any, Code]:
    client = import_module("httpx").AsyncClient()

    @app.step
    async def first() -> None:
        await client.get(f"{at.site}/step")

    async def code(_: JobContext) -> None:
        await first()
        await client.get(f"{at.site}/job")

    return client.aclose, code


async def _httpx_sync_reused(app: App, at: Outside) -> tuple[Any, Code]:
    client = import_module("httpx").Client()

    @app.step
    async def first() -> None:
        client.get(f"{at.site}/step")

    async def code(_: JobContext) -> None:
        await first()
        client.send(request=client.build_request("GET", f"{at.site}/job"))

    return client.close, code


async def _requests_reused(app: App, at: Outside) -> tuple[Any, Code]:
    session = import_module("requests").Session()

    @app.step
    def first() -> None:
        session.get(f"{at.site}/step")

    async def code(_: JobContext) -> None:
        await first()
        session.get(f"{at.site}/job")

    return session.close, code


async def _urllib3_reused(app: App, at: Outside) -> tuple[Any, Code]:
    pool = import_module("urllib3").PoolManager()

    @app.step
    def first() -> None:
        pool.request("GET", f"{at.site}/step")

    async def code(_: JobContext) -> None:
        await first()
        pool.request("GET", f"{at.site}/job")

    return pool.clear, code


async def _aiohttp_reused(app: App, at: Outside) -> tuple[Any, Code]:
    session = pytest.importorskip("aiohttp").ClientSession()

    @app.step
    async def first() -> None:
        await (await session.get(f"{at.site}/step")).read()

    async def code(_: JobContext) -> None:
        await first()
        await session.get(f"{at.site}/job")

    return session.close, code


@pytest.mark.parametrize(
    "prepare",
    [_httpx_reused, _httpx_sync_reused, _requests_reused, _urllib3_reused, _aiohttp_reused],
)
def test_a_connection_that_a_step_has_opened_carries_nothing_for_the_code(
    prepare: Callable[[App, Outside], Awaitable[tuple[Any, Code]]], small: App, at: Outside
) -> None:
    async def main() -> str:
        close, code = await prepare(small, at)
        with pytest.raises(JobParked) as parked:
            await small.run(job_of(small, code)())
        if inspect.isawaitable(closed := close()):
            await closed
        await small.close()
        return parked.value.failure

    assert "UnrecordedIO" in perdure.run(main)
    assert at.requests == ["GET /step"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_connection_to_postgres_that_a_step_has_opened_is_not_used_by_the_code(
    small: App, postgres_server: str, *, is_async: bool
) -> None:
    psycopg = import_module("psycopg")
    opened: list[Any] = []

    @small.step
    async def connect() -> None:
        if is_async:
            opened.append(await psycopg.AsyncConnection.connect(postgres_server))
        else:
            opened.append(psycopg.connect(postgres_server))

    async def code(_: JobContext) -> None:
        await connect()
        done = opened[0].execute("SELECT 1")
        if is_async:
            await done

    async def main() -> None:
        with pytest.raises(JobParked, match="a call to PostgreSQL"):
            await small.run(job_of(small, code)())
        closed = opened[0].close()
        if is_async:
            await closed
        await small.close()

    perdure.run(main)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_connection_to_redis_that_a_step_has_opened_is_not_used_by_the_code(
    small: App, redis_server: Path, *, is_async: bool
) -> None:
    module = import_module("redis.asyncio" if is_async else "redis")
    client = module.Redis.from_url(f"unix://{redis_server}")

    @small.step
    async def connect() -> None:
        done = client.set("by", "step")
        if is_async:
            await done

    async def code(_: JobContext) -> None:
        await connect()
        done = client.set("by", "job")
        if is_async:
            await done

    async def main() -> Any:
        with pytest.raises(JobParked, match="a command to Redis"):
            await small.run(job_of(small, code)())
        found = client.get("by")
        found = await found if is_async else found
        closed = client.aclose() if is_async else client.close()
        if closed is not None:
            await closed
        await small.close()
        return found

    assert perdure.run(main) == b"step"


# What the job does then


class Shop:
    """A job that pays, and then does something of which the code can be changed."""

    def __init__(self, app: App, code: Code) -> None:
        self.code = code
        self.paid, self.undone = list[int](), list[int]()

        @app.step
        async def pay(usd: int) -> int:
            self.paid.append(usd)
            return usd

        @pay.compensate
        async def refund(ctx: StepContext, usd: int, output: int | None) -> None:
            self.undone.append(usd)

        @app.step
        async def ship() -> str:
            return "shipped"

        @app.job
        async def order(ctx: JobContext) -> str:
            await pay(5)
            await self.code(ctx)
            return await ship()

        self.order = order


async def _catches(at: Outside) -> None:
    with suppress(Exception):  # as careless code does
        CONNECTS.do(at)


async def _turns(at: Outside) -> None:
    try:
        CONNECTS.do(at)
    except UnrecordedIO as error:
        raise RuntimeError("no connection") from error


async def _lets_pass(at: Outside) -> None:
    CONNECTS.do(at)


@pytest.mark.parametrize("code", [_lets_pass, _catches, _turns])
def test_a_refused_job_is_not_undone_and_mended_code_resumes_it(
    code: Callable[[Outside], Awaitable[None]], app: App, at: Outside
) -> None:
    async def main() -> None:
        shop = Shop(app, lambda _: code(at))
        async with app.running():
            handle = await app.submit(shop.order())
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            assert (await why(handle)).type == "perdure.errors.UnrecordedIO"
            assert not at.noticed

            async def mended(_: JobContext) -> None:
                pass

            shop.code = mended
            await handle.resume()
            assert await handle.result("30s") == "shipped"
        assert (shop.paid, shop.undone) == ([5], [])
        await app.close()

    perdure.run(main)


def test_code_that_catches_the_refusal_and_returns_has_not_completed(app: App, at: Outside) -> None:
    refusal(app, lambda _: _catches(at))


def test_a_refusal_in_a_thread_is_not_hidden_by_catching_it_there(app: App, at: Outside) -> None:
    def quiet() -> None:
        with suppress(Exception):  # as careless code does
            CONNECTS.do(at)

    refusal(app, lambda _: asyncio.to_thread(quiet))


def test_a_step_that_works_beside_a_refusal_comes_to_its_end(app: App, at: Outside) -> None:
    done: list[str] = []

    @app.step
    async def slow() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        done.append("slow")

    async def code(ctx: JobContext) -> None:
        beside = ctx.start(slow())
        await _catches(at)
        await beside

    refusal(app, code)
    assert done == ["slow"]


def test_a_cancelled_job_is_cancelled_whatever_its_code_is_refused(app: App, at: Outside) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        @app.step
        async def long() -> None:
            begun.set()
            await asyncio.Event().wait()

        async def code(_: JobContext) -> None:
            try:
                await long()
            finally:
                CONNECTS.do(at)

        job = job_of(app, code)
        async with app.running():
            handle = await app.submit(job())
            await begun.wait()
            await handle.cancel()
            await until(app, handle.id, JobState.CANCELLED)
        await app.close()

    perdure.run(main)
    assert not at.noticed


# What is allowed


@pytest.mark.parametrize("name", ["inline", "thread", "of_process", "sync_of_process"])
def test_a_step_reaches_everybody_wherever_it_runs(name: str, app: App, at: Outside) -> None:
    app.include(outside_steps.steps)
    step = app.find_step(name)
    app.run_sync(job_of(app, lambda _: step(at.port))())
    assert at.notices()


def test_a_closure_reaches_everybody(app: App, at: Outside) -> None:
    app.run_sync(job_of(app, lambda ctx: ctx.call("tell", lambda: CONNECTS.do(at)))())
    assert at.notices()


def test_a_compensation_reaches_everybody(app: App, at: Outside) -> None:
    @app.step
    async def pay() -> None:
        pass

    @pay.compensate
    async def refund(ctx: StepContext, output: None) -> None:
        CONNECTS.do(at)

    @app.step(retry=Retry(attempts=1))
    async def fail() -> None:
        raise ValueError("declined")

    async def code(_: JobContext) -> None:
        await pay()
        await fail()

    with pytest.raises(perdure.errors.JobFailed):
        app.run_sync(job_of(app, code)())
    assert at.notices()


def test_an_unrecorded_block_allows_it_also_in_the_tasks_that_it_starts(
    app: App, at: Outside
) -> None:
    async def code(ctx: JobContext) -> None:
        with ctx.unrecorded("a test"):
            await do(CONNECTS, at)
            later = asyncio.create_task(asyncio.to_thread(CONNECTS.do, at))
        await later

    app.run_sync(job_of(app, code)())
    assert at.counts(2)


def test_after_an_unrecorded_block_everything_is_refused_again(app: App, at: Outside) -> None:
    async def code(ctx: JobContext) -> None:
        with ctx.unrecorded("a test"):
            pass
        CONNECTS.do(at)

    refusal(app, code)
    assert not at.noticed


def test_an_unrecorded_block_needs_a_reason(small: App) -> None:
    async def code(ctx: JobContext) -> str:
        with pytest.raises(ValueError, match="reason"), ctx.unrecorded(" "):
            pass
        return "ok"

    assert small.run_sync(job_of(small, code)()) == "ok"


def test_what_a_library_does_when_it_is_imported_is_its_own_matter(
    small: App, at: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    text = f"import socket\nsocket.create_connection(('127.0.0.1', {at.port})).close()\n"
    (tmp_path / "connects_at_import.py").write_text(text)

    async def code(_: JobContext) -> str:
        return import_module("connects_at_import").__name__

    assert small.run_sync(job_of(small, code)()) == "connects_at_import"
    assert at.notices()
    assert list(tmp_path.glob("__pycache__/connects_at_import*"))


def test_log_records_go_wherever_they_go(small: App, at: Outside, tmp_path: Path) -> None:
    logger = logging.getLogger("tests.guard")
    handlers = [
        SysLogHandler(at.datagrams.getsockname()),
        logging.FileHandler(tmp_path / "log.txt", delay=True),
    ]

    async def code(_: JobContext) -> None:
        logger.warning("hello")

    for handler in handlers:
        logger.addHandler(handler)
    try:
        small.run_sync(job_of(small, code)())
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
    assert at.notices()
    assert (tmp_path / "log.txt").read_text() == "hello\n"


def test_names_are_looked_up_for_the_code(small: App) -> None:
    async def code(_: JobContext) -> bool:
        return bool(await asyncio.get_running_loop().getaddrinfo("localhost", 80))

    assert small.run_sync(job_of(small, code)())


# What is wanted


def test_a_job_that_is_only_warned_does_it_and_the_log_names_each_line_once(
    app: App, at: Outside, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_told", set[tuple[str, int]]())

    async def code(ctx: JobContext) -> None:
        for _ in range(2):
            CONNECTS.do(at)

    app.run_sync(job_of(app, code, guard="warn")())
    assert at.counts(2)
    (record,) = [one for one in caplog.records if "outside of a step" in one.getMessage()]
    assert record.levelno == logging.WARNING
    assert "outside_acts.py:" in record.getMessage()


def test_a_job_without_a_guard_does_it(app: App, at: Outside) -> None:
    app.run_sync(job_of(app, lambda _: do(CONNECTS, at), guard="off")())
    assert at.notices()


def test_an_app_decides_for_the_jobs_that_do_not(url: str, at: Outside) -> None:
    app = App(url, worker=QUICK, guard="off")
    app.run_sync(job_of(app, lambda _: do(CONNECTS, at), name="any")())
    assert at.counts(1)
    refusal(app, lambda _: do(CONNECTS, at), name="strict", guard="refuse")
    assert at.counts(1)


def test_a_guard_that_does_not_exist_is_refused_at_once(small: App) -> None:
    with pytest.raises(DefinitionError, match="refuse, warn, off"):
        job_of(small, lambda _: asyncio.sleep(0), guard="strict")
    with pytest.raises(DefinitionError, match="guard of the app"):
        App("sqlite:///x.db", guard="strict")  # pyright: ignore[reportArgumentType]


# Elsewhere


def test_a_replay_does_not_reach_anybody_either(app: App, at: Outside) -> None:
    async def main() -> None:
        async def nothing(_: JobContext) -> None:
            pass

        shop = Shop(app, nothing)
        async with app.running():
            handle = await app.submit(shop.order())
            await handle.result("30s")

        async def changed(_: JobContext) -> None:
            await do(CONNECTS, at)

        shop.code = changed
        report = await replay(app, handle.id)
        assert "UnrecordedIO" in str(report.drift)
        await app.close()

    perdure.run(main)
    assert not at.noticed


def test_in_a_test_with_skipped_time_the_guard_holds(small: App, at: Outside) -> None:
    job = job_of(small, lambda _: do(CONNECTS, at))

    async def main() -> None:
        async with environment(small):
            with pytest.raises(JobParked, match="UnrecordedIO"):
                await small.run(job())

    asyncio.run(main())
    assert not at.noticed


def test_crashing_everywhere_finds_what_a_job_does_unrecorded(small: App, at: Outside) -> None:
    shop = Shop(small, lambda _: do(CONNECTS, at))

    async def main() -> Any:
        return await crash_everywhere(small, shop.order())

    report = asyncio.run(main())
    assert report.state is JobState.NEEDS_ATTENTION
    assert not at.noticed


LATE = """
import sys
from perdure import App

app = App("sqlite:///late.db")

@app.job
async def pays() -> None:
    import psycopg
    psycopg.connect("host=127.0.0.1 port=1 connect_timeout=1")

try:
    app.run_sync(pays())
except Exception as error:
    print("psycopg" in sys.modules, error)
"""


def test_a_library_that_only_the_code_of_a_job_imports_is_watched(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    done = subprocess.run(
        [sys.executable, "late.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("True")
    assert "a call to PostgreSQL outside of a step, at late.py:10 in pays" in done.stdout


def test_a_program_that_is_installed_as_a_package_is_still_the_users(
    small: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages" / "their_shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    text = "import subprocess\nasync def pays() -> None:\n    subprocess.run(['true'])\n"
    (folder / "jobs.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    job = small.job(import_module("their_shop.jobs").pays)
    with pytest.raises(JobParked) as parked:
        small.run_sync(job())
    assert "their_shop/jobs.py:3 in pays" in parked.value.failure
