"""Tools of a real MCP server, by stdio and HTTP, called in durable steps."""

import logging
import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

import perdure
from perdure import JobContext, JobState
from perdure.app import App
from perdure.errors import ApprovalRejected
from perdure.integrations.mcp import DurableMCP
from tests.engine.test_approval import ANN, asked
from tests.support.cli import ROOT
from tests.support.engine import QUICK, until
from tests.support.mcp_server import calls, serving

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp")


@pytest.fixture(scope="module")
def address(folder: Path) -> Generator[str]:
    with serving(folder) as found:
        yield found


@pytest.fixture(autouse=True)
def no_calls_before(folder: Path) -> None:
    (folder / "calls.log").unlink(missing_ok=True)


def by_stdio(folder: Path) -> Client:
    arguments = ["-m", "tests.support.mcp_server", str(folder)]
    return Client(StdioServerParameters(command=sys.executable, args=arguments, cwd=ROOT))


def text_of(result: Any) -> str:
    return result.content[0].text


def run(url: str, test: Callable[[App], Awaitable[None]]) -> None:
    """Run a test beside a worker."""

    async def main() -> None:
        app = App(url, worker=QUICK)
        try:
            async with app.running():
                await test(app)
        finally:
            await app.close()

    perdure.run(main)


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_each_call_is_a_step_with_a_key_of_its_own_and_any_result(
    url: str, address: str, folder: Path, transport: str
) -> None:
    tools = DurableMCP(Client(address) if transport == "http" else by_stdio(folder), name="mail")

    async def test(app: App) -> None:
        @app.job
        async def agent(ctx: JobContext) -> list[Any]:
            listed = await tools.list_tools()
            found = await tools.call_tool("search", {"words": "lamps"}, id="c1")
            await tools.call_tool("label", {"name": "x"}, id="c1")
            sent = await tools.call_tool("send", {"text": "hello"}, id="c3")
            failed = await tools.call_tool("send", {"text": "fails"}, id="c4")
            large = await tools.call_tool("send", {"text": "3000000"}, id="c5")
            read = await tools.call_tool("read", {"size": 3_000_000}, id="c6")
            return [
                [each.name for each in listed.tools],
                [text_of(found), text_of(sent)],
                [failed.is_error, text_of(failed)],
                [len(text_of(large)), len(text_of(read))],
            ]

        handle = await app.submit(agent())
        names, texts, failed, sizes = await handle.result()
        assert names == ["search", "label", "send", "refuse", "read"]
        assert texts == ["found lamps\0", "sent hello"]
        assert failed[0]
        assert sizes == [3_000_000, 3_000_000]
        ids = [entry.id for entry in await handle.journal()]
        assert ids[:3] == [
            "call:mcp:mail.list_tools#1",
            "call:tool:mail.search#c1",
            "call:tool:mail.label#c1~2",
        ]
        effects = {each.target: each.state.value for each in await handle.effects()}
        assert effects["mail.send"] == "DONE"
        assert "mail.search" not in effects

    run(url, test)
    made = calls(folder)
    assert [(tool, text) for tool, text, _ in made][:3] == [
        ("search", "lamps"),
        ("label", "x"),
        ("send", "hello"),
    ]
    assert len({key for _, _, key in made}) == len(made)
    assert all(key for _, _, key in made)


def test_an_error_of_the_server_comes_back_as_itself_and_a_replay_connects_to_nothing(
    url: str, address: str
) -> None:
    made: list[Client] = []

    def make() -> Client:
        made.append(Client(address))
        return made[-1]

    tools = DurableMCP(make)

    async def test(app: App) -> None:
        @app.job
        async def agent(ctx: JobContext) -> list[Any]:
            try:
                await tools.call_tool("refuse")
            except MCPError as error:
                said = [error.code, error.message, error.data]
            else:
                said = []
            await ctx.receive("go")  # then it is replayed
            return said

        handle = await app.submit(agent())
        await until(app, handle.id, JobState.WAITING)
        assert await handle.send("go")
        assert await handle.result() == [-32602, "not for you", {"why": "because"}]
        assert [each.state.value for each in await handle.effects()] == ["FAILED"]

    run(url, test)
    assert len(made) == 1


def test_a_server_that_dies_is_connected_again_and_what_may_have_happened_is_asked(
    url: str, folder: Path
) -> None:
    tools = DurableMCP(by_stdio(folder))

    async def test(app: App) -> None:
        @app.job
        async def agent(ctx: JobContext) -> list[str]:
            labelled = await tools.call_tool("label", {"name": "dies"})
            sent = await tools.call_tool("send", {"text": "dies"})
            found = await tools.call_tool("search", {"words": "lamp"})
            return [text_of(labelled), text_of(sent), text_of(found)]

        handle = await app.submit(agent())
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        made = calls(folder)
        assert [(tool, text) for tool, text, _ in made] == [
            ("label", "dies"),
            ("label", "dies"),
            ("send", "dies"),
        ]
        assert made[0][2] == made[1][2]
        (doubt,) = [each for each in await handle.effects() if each.state.value == "IN_DOUBT"]
        await handle.resolve(doubt.no, "happened", result="it was sent", by="ann")
        assert await handle.result() == ["labelled dies", "it was sent", "found lamp\0"]
        assert [tool for tool, _, _ in calls(folder)] == ["label", "label", "send", "search"]

    run(url, test)


def test_a_call_that_takes_too_long_is_repeated_with_its_key_if_it_may_be(
    url: str, address: str, folder: Path
) -> None:
    tools = DurableMCP(Client(address), name="mail", tools={"label": {"timeout": "1s"}})

    async def test(app: App) -> None:
        @app.job
        async def work() -> str:
            return text_of(await tools.call_tool("label", {"name": "hangs"}))

        assert await (await app.submit(work())).result("40s") == "labelled hangs"

    run(url, test)
    keys = [key for _, _, key in calls(folder)]
    assert len(keys) > 1
    assert len(set(keys)) == 1


def test_options_of_ours_count_more_than_the_hints_of_a_server(
    address: str, tmp_path: Path
) -> None:
    options = {"send": {"risk": "high"}, "search": {"effect": True, "in_doubt": "replay"}}
    tools = DurableMCP(Client(address), tools=options)

    async def test(app: App) -> None:
        @app.job
        async def agent(ctx: JobContext) -> str:
            await tools.call_tool("search", {"words": "lamp"})
            try:
                await tools.call_tool("send", {"text": "hello"})
            except ApprovalRejected as no:
                return no.reason
            return "sent"

        handle = await app.submit(agent(), user="kim")
        question = await asked(app)
        assert b"hello" in question.shown
        await app.decide(question, "reject", by=ANN, reason="not now")
        assert await handle.result() == "not now"
        assert [each.target for each in await handle.effects()] == ["mcp.search"]

    run(f"sqlite:///{tmp_path / 'jobs.db'}", test)


async def test_outside_of_a_job_a_tool_is_called_as_ever_and_the_log_says_so(
    address: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    tools = DurableMCP(Client(address))
    assert len((await tools.list_tools()).tools) == 5
    assert text_of(await tools.call_tool("send", {"text": "hello"})) == "sent hello"
    assert [key for _, _, key in calls(folder)] == [None]
