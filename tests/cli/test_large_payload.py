"""Large payloads of a journal are shown as size and preview, to programs with their digest."""

import json

import pytest

from perdure.app import App
from perdure.cli.jobs.show import read_view, view_as_json
from perdure.cli.output import as_json
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from tests.cli.test_awaited import drawn, with_app

LARGE = "thought " * 5000


@pytest.fixture(name="url", params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: object) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return request.getfixturevalue("postgres_url")


def test_a_large_result_is_shown_by_its_size_and_beginning(url: str) -> None:
    async def test(app: App) -> None:
        @app.step
        async def think(ctx: StepContext, history: str) -> list[str]:
            return [history]

        @app.job
        async def job(ctx: JobContext) -> None:
            await think(LARGE)

        handle = await app.submit(job())
        await handle.wait("30s")
        shown, _, _ = await drawn(app, handle)
        assert '40,004 bytes: ["thought thought' in shown
        (entry,) = view_as_json(await read_view(app, handle))["journal"]
        assert entry["input"].keys() == entry["output"].keys() == {"digest", "bytes", "preview"}
        assert entry["input"]["bytes"] == 40_014

    with_app(url, test)


def test_odd_texts_are_shown_and_given_to_programs(url: str) -> None:
    odd = "a\0b \ud800"

    async def test(app: App) -> None:
        @app.step
        async def echo(ctx: StepContext, text: str) -> str:
            return text

        @app.job
        async def job(ctx: JobContext, text: str) -> str:
            return await echo(text)

        handle = await app.submit(job(odd))
        assert await handle.result("30s") == odd
        shown, _, _ = await drawn(app, handle)
        shown.encode()
        assert "\0" not in shown
        text = as_json(view_as_json(await read_view(app, handle)))
        text.encode()
        assert json.loads(text)["journal"][0]["output"] == odd

    with_app(url, test)
