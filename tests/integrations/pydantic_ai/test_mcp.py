"""Tools of a real MCP server, a program that is spoken to by stdio, in an agent of pydantic-ai."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("fastmcp")

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ToolCallPart

from perdure import JobContext
from perdure.app import App
from perdure.base.errors import JobParked
from perdure.integrations.pydantic_ai import PerdureDurability
from perdure.jobs.state import JobState
from tests.integrations.pydantic_ai.test_pydantic_ai import Model, said
from tests.support.cli import ROOT
from tests.support.engine import durable, until
from tests.support.mcp_server import calls

pytestmark = pytest.mark.once


def agent_with(folder: Path, *turns: Any) -> Agent[None, str]:
    """Return an agent that calls tools of a server, as these turns of its model say."""
    arguments = ["-m", "tests.support.mcp_server", str(folder)]
    server = StdioTransport(sys.executable, arguments, cwd=str(ROOT))
    return Agent(
        Model(*turns).model,
        name="ann",
        toolsets=[MCPToolset(server, id="mail")],
        capabilities=[PerdureDurability()],
    )


def test_calls_and_the_list_of_tools_are_steps(url: str, tmp_path: Path) -> None:
    both = said(
        ToolCallPart("search", {"words": "kim"}, tool_call_id="a"),
        ToolCallPart("label", {"name": "new"}, tool_call_id="b"),
    )
    agent = agent_with(tmp_path, both, said(ToolCallPart("send", {"text": "hi"}, "c")), "done")

    @durable
    async def run(app: App) -> None:
        @app.job
        async def work(ctx: JobContext) -> str:
            result = await agent.run("go")
            await ctx.receive("go")
            return f"{result.output} after {len(result.all_messages())}"

        async with app.running():
            handle = await app.submit(work())
            await until(app, handle.id, JobState.WAITING)
            await handle.send("go")  # everything before is replayed
            assert await handle.result("20s") == "done after 6"
        names = [entry.name for entry in await handle.journal()]
        assert names.count("call:tools") >= 1
        assert {name for name in names if name.startswith("call:tool:")} == {
            "call:tool:search",
            "call:tool:label",
            "call:tool:send",
        }
        effects = await handle.effects()
        assert sorted((each.target, each.in_doubt) for each in effects) == [
            ("label", "replay"),
            ("send", "ask"),
        ]
        keys.update({each.target: each.key for each in effects})

    keys: dict[str, str] = {}
    run(url)
    made = {tool: key for tool, _, key in calls(tmp_path)}
    assert len(calls(tmp_path)) == 3
    assert {tool: key for tool, key in made.items() if tool != "search"} == keys
    assert made["search"]


def test_a_mail_that_may_have_been_sent_is_left_to_a_person(url: str, tmp_path: Path) -> None:
    send = [said(ToolCallPart("send", {"text": "dies"}, id)) for id in "ab"]
    agent = agent_with(tmp_path, *send, "done")

    @durable
    async def run(app: App) -> None:
        @app.job
        async def work() -> str:
            return (await agent.run("go")).output

        with pytest.raises(JobParked, match="tool call to send"):
            await app.run(work())

    run(url)
    assert [tool for tool, _, _ in calls(tmp_path)] == ["send"]
