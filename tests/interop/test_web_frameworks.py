"""One app serves the handlers of real web frameworks, async and plain, beside a worker."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import App
from tests.engine.test_callers import WITHIN, WorkerThread
from tests.support.engine import QUICK

REQUESTS = 8


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def jobs(url: str) -> Iterator[App]:
    app = App(url, worker=QUICK)

    @app.job
    async def double(number: int) -> int:
        return number * 2

    yield app
    app.sync.close()


def test_fastapi_with_a_worker_in_its_lifespan(jobs: App) -> None:
    fastapi: Any = pytest.importorskip("fastapi")

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[None, None]:
        async with jobs, jobs.running():
            yield

    web = fastapi.FastAPI(lifespan=lifespan)
    double = jobs.find_job("double")

    async def in_the_loop(number: int) -> Any:
        handle = await jobs.submit(double(number))
        return await handle.result(timeout=WITHIN)

    def in_a_thread(number: int) -> Any:  # FastAPI runs it in a thread pool
        return jobs.sync.submit(double(number)).result(timeout=WITHIN)

    web.get("/async/{number}")(in_the_loop)
    web.get("/plain/{number}")(in_a_thread)

    async def main() -> list[Any]:
        transport = httpx.ASGITransport(web)
        async with (
            web.router.lifespan_context(web),
            httpx.AsyncClient(transport=transport, base_url="http://web") as client,
        ):
            paths = [f"/{kind}/{no}" for kind in ("async", "plain") for no in range(REQUESTS)]
            answers = await asyncio.gather(*(client.get(path, timeout=WITHIN) for path in paths))
            return [answer.json() for answer in answers]

    assert asyncio.run(main()) == [no * 2 for _ in range(2) for no in range(REQUESTS)]


def test_flask_in_threads_beside_a_worker(jobs: App) -> None:
    flask: Any = pytest.importorskip("flask")
    web = flask.Flask("web")
    double = jobs.find_job("double")

    @web.get("/double/<int:number>")
    def doubled(number: int) -> Any:
        return flask.jsonify(jobs.sync.submit(double(number)).result(timeout=WITHIN))

    def get(number: int) -> Any:
        return web.test_client().get(f"/double/{number}").get_json()

    with WorkerThread(jobs), ThreadPoolExecutor(REQUESTS) as pool:
        assert list(pool.map(get, range(REQUESTS))) == [no * 2 for no in range(REQUESTS)]


def test_django_with_plain_and_async_views_beside_a_worker(jobs: App) -> None:
    django: Any = pytest.importorskip("django")
    conf: Any = pytest.importorskip("django.conf")
    http: Any = pytest.importorskip("django.http")
    test: Any = pytest.importorskip("django.test")
    urls: Any = pytest.importorskip("django.urls")
    if not conf.settings.configured:
        conf.settings.configure(DEBUG=True, ALLOWED_HOSTS=["*"], SECRET_KEY="test")
        django.setup()
    double = jobs.find_job("double")

    def plain(_: Any, number: int) -> Any:
        result = jobs.sync.submit(double(number)).result(timeout=WITHIN)
        return http.JsonResponse({"result": result})

    async def in_the_loop(_: Any, number: int) -> Any:
        result = await (await jobs.submit(double(number))).result(timeout=WITHIN)
        return http.JsonResponse({"result": result})

    routes = (urls.path("plain/<int:number>", plain), urls.path("async/<int:number>", in_the_loop))
    with WorkerThread(jobs), test.override_settings(ROOT_URLCONF=routes):
        assert test.Client().get("/plain/4").json() == {"result": 8}
        assert test.Client().get("/async/5").json() == {"result": 10}  # a loop for each request
        answer: Any = asyncio.run(test.AsyncClient().get("/async/6"))
        assert answer.json() == {"result": 12}


def test_a_cell_of_a_notebook_runs_a_job_on_the_loop_that_runs_already(jobs: App) -> None:
    double = jobs.find_job("double")

    async def cells() -> tuple[Any, Any]:
        first = await jobs.run(double(1))
        handle = jobs.sync.submit(double(2))  # blocks the cell, and works
        async with jobs.running():
            return first, await (await jobs.handle(handle.id)).result(timeout=WITHIN)

    assert asyncio.run(cells()) == (2, 4)
