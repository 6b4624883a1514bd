"""Fifty secrets go in wherever code may put them; none comes out where people and programs look."""

import io
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
from typer.testing import CliRunner

import perdure
from perdure import telemetry
from perdure.app import App
from perdure.base.errors import ArgumentError, Permanent, StepFailed, StoreError
from perdure.base.secret import Secret
from perdure.base.telemetry import Event, Values
from perdure.cli.app import make_app
from perdure.engine import events
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.engine.submission import new_job
from perdure.integrations.http import reply_of
from perdure.jobs.approval import Approval
from perdure.jobs.outbox import Notice
from perdure.jobs.state import JobState
from perdure.store.open import open_store
from tests.base.test_scrub import SPELLINGS, S
from tests.support.engine import QUICK, until

MOST = len(SPELLINGS)


class Odd:
    """A result that cannot be stored, so that its text is kept."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<Odd {self.text}>"


class BrokenChannel:
    """Cannot be reached, and says with which key."""

    name = "broken"

    async def recipients(self, notice: Notice, approval: Approval | None) -> list[str]:
        return ["all"]

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        raise ConnectionError(f"no answer from {SPELLINGS[0]} with {SPELLINGS[24]}")


def everything_in(url: str) -> str:
    """Give all that a database holds, as text."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            return "\n".join(database.iterdump())
    schema = dict(parse_qsl(urlsplit(url).query))["schema"]
    bare = url.partition("?schema")[0].partition("&schema")[0]
    with psycopg.connect(bare) as pg:
        named = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
        tables = [name for (name,) in pg.execute(named, (schema,))]
        rows = (pg.execute(f'SELECT t::text FROM "{schema}"."{t}" t'.encode()) for t in tables)
        return "\n".join(text for found in rows for (text,) in found)


@pytest.fixture
def told() -> Iterator[list[str]]:
    """All that telemetry tells."""
    heard: list[str] = []

    def hear(event: Event, numbers: Values, facts: Values, _config: Any) -> None:
        heard.append(f"{event} {dict(numbers)} {dict(facts)}")

    constants: list[Any] = [value for name, value in vars(events).items() if name.isupper()]
    names: list[Event] = [each for each in constants if isinstance(each, tuple)]
    names += events.EFFECT.values()
    telemetry.attach_many("canary", names, hear)
    yield heard
    telemetry.detach("canary")


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("perdure").addHandler(handler)
    yield stream
    logging.getLogger("perdure").removeHandler(handler)


def canaries(app: App) -> Any:
    """A job that lets every secret out by every way there is."""

    @app.step
    async def leak(ctx: StepContext, number: int) -> None:
        text = SPELLINGS[number]
        details: dict[str, Any] = {
            "note": text,
            "password": S,
            "awsSecretAccessKey": [S],
            "box": Secret(S),
        }
        await ctx.effect("mail", lambda key: None, target=f"t{number}", details=details)
        await ctx.record_effect("log", f"r{number}", **details)
        with pytest.raises(perdure.errors.Unstorable):
            await ctx.effect("odd", lambda key: Odd(text), target=f"o{number}")
        try:
            await ctx.effect("call", _refused(text), target=f"c{number}", in_doubt="replay")
        except ValueError as error:
            raise Permanent(f"it failed: {error}") from error

    @app.job
    async def job(ctx: JobContext) -> int:
        told = [await _failure(ctx, leak, number) for number in range(MOST)]
        await ctx.approve("Go on?", details={"password": S, "clientSecret": S, "n": len(told)})
        return len(told)

    @app.job
    async def fail(ctx: JobContext) -> None:
        raise Permanent(SPELLINGS[0])

    return job, fail


async def _failure(ctx: JobContext, step: Any, number: int) -> StepFailed:
    with pytest.raises(StepFailed) as caught:
        await step(number)
    return caught.value


def _refused(text: str) -> Any:
    def call(key: str) -> None:
        raise ValueError(text)

    return call


def test_fifty_secrets_go_in_and_none_comes_out(
    url: str, told: list[str], logs: io.StringIO
) -> None:
    assert MOST >= 50

    async def main() -> tuple[str, str, str]:
        app = App(url, worker=QUICK, policy=Policy(channels=(BrokenChannel(),)))
        jobs = canaries(app)
        async with app, app.running():
            asks, fails = [await app.submit(each(), user="kim") for each in jobs]
            await until(app, fails.id, JobState.FAILED)
            await until(app, asks.id, JobState.WAITING)
            asked = await app.approvals()
            while "could not send" not in logs.getvalue():
                await perdure.process.sleep("5ms")
            return asks.id, fails.id, asked[0].id

    asks, fails, asked = perdure.run(main)
    shown = "\n".join(
        shown_by(url, *words.split())
        for words in (
            "approvals list",
            "approvals list -ojson",
            f"approvals show {asked} --full",
            "jobs list",
            f"jobs show {fails} --full",
            f"jobs show {asks} --full",
            f"jobs show {asks} -ojson",
            f"effects list --job {asks} -ojson",
        )
    )
    # The approval itself keeps what is asked about, for its hash; people are not shown it.
    kept = "\n".join(line for line in everything_in(url).splitlines() if "clientSecret" not in line)
    for place, text in (
        ("the store", kept),
        ("the command line", shown),
        ("telemetry", "\n".join(told)),
        ("the log", logs.getvalue()),
    ):
        assert text
        at = text.find(S)
        assert at < 0, f"{place}: …{text[max(0, at - 200) : at + 50]}…"


def shown_by(url: str, *words: str) -> str:
    done = CliRunner().invoke(make_app(words[0]), list(words), env={"PERDURE_URL": url})
    assert done.exit_code == 0, done.output
    return done.output


def test_a_secret_is_no_argument(url: str) -> None:
    app = App(url)

    @app.job
    async def job(ctx: JobContext, word: Any) -> None: ...

    with pytest.raises((ArgumentError, perdure.errors.Unstorable)) as caught:
        new_job(app, app.limits, job(Secret(S)), {})
    assert S not in str(caught.value)


@pytest.mark.parametrize(
    "url_",
    [
        f"postgresql://app:{S}@127.0.0.1:1/jobs",
        f"postgresql://app:%40{S}%2F@127.0.0.1:1/jobs",
        f"postgresql://app:a/{S}@127.0.0.1:1/jobs",
        f"postgresql://app:a#{S}@127.0.0.1:1/jobs",
        f"postgresql://app:a?{S}@127.0.0.1:1/jobs",
        f"postgresql://app:[{S}@127.0.0.1:1/jobs",
        f"postgresql://app:a@{S}@127.0.0.1:1/jobs",
        f"postgresql://127.0.0.1:1/jobs?user=app&password={S}",
        f"postgresql://app:{S}@127.0.0.1:1/jobs?nonsense={S}",
        f"host=127.0.0.1 port=1 user=app password={S} dbname=jobs",
        f"mysql://app:{S}@db/jobs",
        f"sqlite://app:{S}@db/jobs",
        f"sqlite:///x.db?password={S}",
    ],
)
async def test_no_spelling_of_a_password_of_a_database_is_in_an_error(url_: str) -> None:
    with pytest.raises(StoreError) as caught:
        await open_store(url_).open()
    error: BaseException | None = caught.value
    while error is not None:
        assert S not in str(error)
        error = error.__cause__


def test_fingerprints_have_a_key_of_their_store(url: str) -> None:
    async def key() -> bytes:
        store = open_store(url)
        await store.open()
        try:
            return await store.fingerprint_key()
        finally:
            await store.close()

    async def main() -> None:
        first = await key()
        assert len(first) == 32
        assert await key() == first

    perdure.run(main)


def test_a_location_is_kept_without_its_query() -> None:
    httpx = pytest.importorskip("httpx")
    answer = httpx.Response(201, headers={"location": f"https://x.test/reset?token={S}"})
    assert reply_of(answer)["headers"]["location"] == "https://x.test/reset?token=[removed]"
