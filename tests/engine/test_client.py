"""A client submits jobs by name, checked by what the workers publish, without having their code."""

import asyncio
from collections.abc import Iterator
from datetime import date

import pytest
from msgspec import Struct

from perdure import App, Client, JobContext, Secret
from perdure.app import SyncApp
from perdure.client import SyncClient
from perdure.errors import ArgumentError, KeyConflict, UnknownName, Unstorable
from tests.engine.test_callers import WITHIN, WorkerThread, in_threads
from tests.support.engine import QUICK


class Part(Struct):
    name: str
    size: int


class Migrated(Struct):
    pages: int
    parts: list[Part]
    until: date | None
    key: str


def migrating(url: str) -> App:
    app = App(url, worker=QUICK, queues=("default", "slow"))

    @app.job(queue="slow", priority=3, timeout="1h")
    async def migrate(
        ctx: JobContext, pages: int, parts: list[Part], *, until: date | None = None, key: str = ""
    ) -> Migrated:
        return Migrated(pages, parts, until, key)

    @app.job
    async def report(ctx: JobContext, title: str = "all") -> str:
        return title

    return app


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = migrating(url)
    with WorkerThread(app):
        yield app
    asyncio.run(app.close())


@pytest.fixture
def client(url: str) -> Iterator[SyncClient]:
    with Client(url).sync as client:
        yield client


PARTS = [{"name": "a", "size": 1}]


@pytest.mark.usefixtures("app")
def test_a_job_is_submitted_by_name_and_its_result_is_plain(client: SyncClient) -> None:
    handle = client.submit("migrate", 8, PARTS, until=date(2026, 6, 1), key="june")
    plain = {"pages": 8, "parts": PARTS, "until": "2026-06-01", "key": ""}
    assert handle.result(timeout=WITHIN) == plain
    assert client.handle(handle.id).result(timeout=WITHIN) == plain
    assert not client.submit("migrate", 8, PARTS, until=date(2026, 6, 1), key="june").new
    with pytest.raises(KeyConflict):
        client.submit("migrate", 9, PARTS, key="june")


@pytest.mark.usefixtures("app")
def test_an_argument_that_is_named_like_an_option_is_given_apart(client: SyncClient) -> None:
    given: dict[str, object] = {"pages": 1, "parts": [], "key": "inner"}
    handle = client.submit("migrate", arguments=given, key="outer")
    assert handle.result(timeout=WITHIN)["key"] == "inner"
    assert handle.job().key == "outer"


@pytest.mark.usefixtures("app")
def test_the_options_of_the_definition_hold_for_a_client(client: SyncClient) -> None:
    job = client.submit("migrate", 8, []).job()
    assert (job.queue, job.priority) == ("slow", 3)
    assert job.deadline_at is not None
    assert client.submit("migrate", 8, [], queue="default").job().queue == "default"


def test_a_client_and_an_app_make_the_same_job_of_the_same_call(
    app: App, client: SyncClient
) -> None:
    sync: SyncApp = app.sync
    mine = client.submit("report", key="daily")
    theirs = sync.submit(app.find_job("report")(), key="daily")
    assert (theirs.id, theirs.new) == (mine.id, False)
    assert mine.job().input == b'{"title":"all"}'
    sync.close()


@pytest.mark.usefixtures("app")
def test_arguments_that_do_not_fit_are_refused_with_every_reason(client: SyncClient) -> None:
    with pytest.raises(ArgumentError) as caught:
        client.submit("migrate", "8", [{"name": "a"}], 1, pages=2, colour="red")
    assert caught.value.problems == [
        "3 positional arguments were given, but it takes 2",
        "`pages` is given twice",
        "`parts`[0].size is missing",
        "there is no `colour`",
    ]
    with pytest.raises(ArgumentError, match="`parts` is missing"):
        client.submit("migrate", 8)
    with pytest.raises(ArgumentError, match="`pages` must be an integer, not a string"):
        client.submit("migrate", "8", [])
    with pytest.raises(Unstorable, match="a secret is never stored"):
        client.submit("report", Secret("x"))
    with pytest.raises(Unstorable, match="object"):
        client.submit("report", object())
    assert client.find_jobs() == []


@pytest.mark.usefixtures("app")
def test_a_name_that_no_worker_knows_is_refused_with_near_names(client: SyncClient) -> None:
    with pytest.raises(UnknownName, match="no worker knows the job 'migrat'; did you mean migrate"):
        client.submit("migrat", 8)


def test_without_a_check_a_job_waits_for_a_worker_that_knows_it(
    url: str, client: SyncClient
) -> None:
    with pytest.raises(UnknownName, match="none has said yet what it knows"):
        client.submit("report")
    with pytest.raises(ArgumentError, match="the names of its parameters are unknown"):
        client.submit("report", "x", check=False)
    handle = client.submit("report", title="later", check=False)
    app = migrating(url)
    with WorkerThread(app):
        assert handle.result(timeout=WITHIN) == "later"
    asyncio.run(app.close())


def test_what_was_published_outlives_its_worker(url: str, client: SyncClient) -> None:
    app = migrating(url)
    with WorkerThread(app):
        pass
    asyncio.run(app.close())
    assert set(client.definitions()) == {"migrate", "report"}
    assert client.submit("report", title="x").new


@pytest.mark.usefixtures("app")
def test_many_are_submitted_at_once_and_from_many_threads(client: SyncClient) -> None:
    handles = client.submit_many("report", [{"title": "a"}, {"title": "b"}])
    assert [each.result(timeout=WITHIN) for each in handles] == ["a", "b"]
    found = in_threads(lambda no: client.submit("report", title=str(no)).result(timeout=WITHIN))
    assert found == list("01234567")
