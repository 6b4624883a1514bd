"""Reads that may take long: one tenant's hold up no other tenant, and each has an end."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest

from perdure import App
from perdure.base import telemetry
from perdure.store.db_thread import BATCH
from perdure.web.body import RequestLimits
from perdure.web.routes import ROUTES
from tests.support.tenants import tenant_app
from tests.support.web_client import api_of

ACME = {"x-who": "ann@acme viewer,admin"}
GLOBEX = {"x-who": "bob@globex viewer,admin"}
SEARCH = "/api/v1/jobs?q=june"
PATIENCE = 20.0  # seconds, after which a test that hangs fails


class HeldReads:
    """Database threads that stop behind a read, as if the read took so long."""

    def __init__(self) -> None:
        self._go_on = threading.Event()
        self._left = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self.is_held = asyncio.Event()

    def hold(self, reads: int = 1) -> None:
        """Stop the threads of the next reads."""
        self._left = reads

    def go_on(self) -> None:
        self._go_on.set()

    def after_batch(self, _event: Any, _measured: Any, facts: Mapping[str, Any], _: Any) -> None:
        with self._lock:
            if not self._left or facts["thread"] == "perdure-writer":
                return
            self._left -= 1
        self._loop.call_soon_threadsafe(self.is_held.set)
        self._go_on.wait(PATIENCE)


@contextmanager
def held_reads() -> Generator[HeldReads]:
    held = HeldReads()
    name = f"held reads {id(held)}"
    telemetry.attach(name, BATCH, held.after_batch, None)
    try:
        yield held
    finally:
        held.go_on()
        telemetry.detach(name)


@asynccontextmanager
async def busy_with(
    web: httpx.AsyncClient, held: HeldReads, path: str = SEARCH
) -> AsyncGenerator["asyncio.Task[httpx.Response]"]:
    """A read of acme that does not end before `go_on`."""
    held.hold()
    task = asyncio.create_task(web.get(path, headers=ACME))
    await held.is_held.wait()
    yield task
    held.go_on()
    await task


@pytest.fixture
def app(url: str) -> App:
    return tenant_app(url)


async def test_a_search_of_one_tenant_holds_up_no_list_of_another(app: App) -> None:
    async with api_of(app, "") as web:
        with held_reads() as held:
            async with busy_with(web, held) as search, asyncio.timeout(PATIENCE / 2):
                for path in ("/api/v1/jobs", SEARCH):
                    assert (await web.get(path, headers=GLOBEX)).status_code == 200
                assert (await web.get("/api/v1/jobs", headers=ACME)).status_code == 200
                assert not search.done()
        assert (await search).status_code == 200


async def test_the_searches_of_a_tenant_wait_for_each_other_and_too_many_are_refused(
    app: App,
) -> None:
    async with api_of(app, "", limits=RequestLimits(searches=3)) as web:
        with held_reads() as held:
            async with busy_with(web, held), asyncio.timeout(PATIENCE / 2):
                waiting = [asyncio.create_task(web.get(SEARCH, headers=ACME)) for _ in range(2)]
                await asyncio.sleep(0)
                refused = await web.get(SEARCH, headers=ACME)
                assert refused.status_code == 429
                assert refused.json()["code"] == "too_many_searches"
                assert int(refused.headers["retry-after"]) >= 1
                assert not any(each.done() for each in waiting)
                assert (await web.get(SEARCH, headers=GLOBEX)).status_code == 200
            assert [(await each).status_code for each in waiting] == [200, 200]
        assert (await web.get(SEARCH, headers=ACME)).status_code == 200


async def test_a_search_that_takes_too_long_is_given_up_and_says_what_to_do(app: App) -> None:
    async with api_of(app, "", limits=RequestLimits(search=0.001)) as web:
        calls = [app.jobs["business"](text="x") for _ in range(2000)]
        await app.submit_many(calls, tenant="acme")
        q = " ".join(["business"] * 48)
        # Each job is looked at for each word, since only the last one is in none.
        answer = await web.get("/api/v1/jobs", params={"q": f"{q} absent"}, headers=ACME)
        assert (answer.status_code, answer.json()["code"]) == (422, "query_too_slow")
        assert answer.headers["content-type"] == "application/problem+json"
        assert "created:<1d" in answer.json()["detail"]
        assert (await web.get("/api/v1/jobs", headers=ACME)).status_code == 200
    async with api_of(app, "") as web:
        answer = await web.get("/api/v1/jobs", params={"q": q}, headers=ACME)
        assert len(answer.json()["items"]) == 50


async def test_who_gives_up_a_search_cannot_begin_another_before_it_is_over(app: App) -> None:
    limits = RequestLimits(searches=1, deadline=0.05)
    async with api_of(app, "", limits=limits) as hasty:
        with held_reads() as held:
            async with busy_with(hasty, held) as search, asyncio.timeout(PATIENCE / 2):
                assert (await search).status_code == 503
                assert (await hasty.get(SEARCH, headers=ACME)).status_code == 429
        again = 429
        for _ in range(10_000):  # until its thread has noticed
            await asyncio.sleep(0)
            if again == 429:
                again = (await hasty.get(SEARCH, headers=ACME)).status_code
        assert again != 429


# These wait for the searches of their tenant; whatever else is read does not.
SEARCHING = {
    "/api/v1/summary",
    "/api/v1/jobs/counts",
    "/api/v1/jobs/complete",
    "/api/v1/jobs/{id}/tree",
    "/api/v1/jobs/{id}/effects",
    "/api/v1/jobs/{id}/messages",
    "/api/v1/jobs/{id}/undo",
    "/api/v1/jobs/{id}/fork",
    "/api/v1/jobs/{id}/export",
    "/api/v1/jobs/{id}/timeline",
    "/api/v1/jobs/{id}/approvals",
    "/api/v1/approvals",
    "/api/v1/audit/verify",
    "/api/v1/queues",
    "/api/v1/errors",
    "/api/v1/metrics",
    "/api/v1/effects",
}


async def test_only_named_routes_wait_for_the_searches_of_their_tenant(app: App) -> None:
    who = "ann@acme admin,operator"
    async with api_of(app, who, limits=RequestLimits(searches=1)) as web:
        mine = await app.submit(app.jobs["business"](text="x"), tenant="acme")
        await web.get(SEARCH)
        with held_reads() as held:
            held.hold()
            search = asyncio.create_task(web.get(SEARCH))
            await held.is_held.wait()
            refused: set[str] = set()
            for route in ROUTES:
                if route.method == "GET" and route.path != "/api/v1/events":
                    path = route.path.replace("{id}", mine.id)
                    async with asyncio.timeout(PATIENCE / 2):
                        answer = await web.get(path, params=PARAMETERS.get(route.path))
                    if answer.status_code == 429:
                        refused.add(route.path)
            held.go_on()
            await search
        assert refused == SEARCHING


PARAMETERS = {"/api/v1/jobs/{id}/fork": {"before": "greet#1"}}
