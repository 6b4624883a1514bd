"""Lists of approvals and effects go on behind a cursor, whatever is added meanwhile."""

import asyncio
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from perdure import App, StepContext
from perdure.cli.app import make_app
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from tests.support.web_client import api_of

WHO = "kim@default operator,approver"


@pytest.fixture
def app(url: str) -> App:
    app = App(url)

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay(number: int) -> int:
        return number

    @app.job
    async def asks(number: int) -> int:
        return await pay(number)

    async def unsure(key: str) -> None:
        raise TimeoutError

    @app.step
    async def charge(ctx: StepContext, number: int) -> None:
        await ctx.effect("payment", unsure, target=str(number), in_doubt="ask")

    @app.job
    async def doubts(number: int) -> None:
        await charge(number)

    del asks, doubts
    return app


async def fill(app: App, name: str, state: JobState, number: int) -> None:
    async with app.running():
        handles = [await app.submit(app.jobs[name](each), user="bo") for each in range(number)]
        await asyncio.gather(*(each.until(state) for each in handles))


async def pages(client: httpx.AsyncClient, path: str) -> list[list[Any]]:
    """Return the items of all pages of two."""
    found: list[list[Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        given = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await client.get(path, params=given)).json()
        found.append(page["items"])
        cursor = page["next"]
    return found


async def test_approvals_are_listed_page_by_page(app: App) -> None:
    async with api_of(app, WHO) as client:
        await fill(app, "asks", JobState.WAITING, 5)
        found = await pages(client, "/api/v1/approvals")
        assert [len(each) for each in found] == [2, 2, 1]
        asked = [each["asked_at"] for page in found for each in page]
        assert asked == sorted(asked, reverse=True)
        assert len({each["id"] for page in found for each in page}) == 5
        refused = await client.get("/api/v1/approvals", params={"cursor": "WyJ4Il0"})
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_cursor")


async def test_effects_in_doubt_are_listed_page_by_page(app: App) -> None:
    async with api_of(app, WHO) as client:
        await fill(app, "doubts", JobState.NEEDS_ATTENTION, 5)
        found = await pages(client, "/api/v1/effects")
        assert [len(each) for each in found] == [2, 2, 1]
        called = [each["called_at"] for page in found for each in page]
        assert called == sorted(called)
        assert len({each["key"] for page in found for each in page}) == 5
        doubt = await client.get("/api/v1/effects", params={"state": "in_doubt", "limit": 1})
        assert len(doubt.json()["items"]) == 1
        assert doubt.json()["next"]
        refused = await client.get("/api/v1/effects", params={"cursor": "WzEsICJ4IiwgLTFd"})
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_number")


@pytest.mark.once
def test_the_command_line_lists_all_pages(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def filled() -> None:
        async with app:
            await fill(app, "asks", JobState.WAITING, 3)
            await fill(app, "doubts", JobState.NEEDS_ATTENTION, 3)

    asyncio.run(filled())
    for name in ("approvals", "effects"):
        monkeypatch.setattr(f"perdure.cli.{name}._PAGE", 2)
        listed = CliRunner().invoke(make_app(name), [name, "list", "--url", url, "-o", "ids"])
        assert len(listed.stdout.split()) == 3
