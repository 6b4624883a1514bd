"""Tools of a real MCP server, a program that is spoken to by stdio, in an agent of the ADK."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk")
pytest.importorskip("mcp")

from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from mcp.client.stdio import StdioServerParameters

from perdure import JobContext
from perdure.app import App
from perdure.base.errors import JobParked
from tests.integrations.adk.fake_models import calls as wants
from tests.integrations.adk.fake_models import says
from tests.integrations.adk.test_runs import agent_of, events_of, told
from tests.support.agent_runs import replayed
from tests.support.cli import ROOT
from tests.support.engine import durable
from tests.support.mcp_server import calls

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning"),
]


def agent_with(folder: Path, script: dict[int, Any]) -> tuple[Any, McpToolset]:
    """Return an agent that calls tools of a server by a script, and its connection."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tests.support.mcp_server", str(folder)],
        cwd=str(ROOT),
    )
    tools = McpToolset(connection_params=StdioConnectionParams(server_params=server, timeout=30))
    return agent_of(script, tools), tools


def test_hints_say_which_tools_are_effects(url: str, tmp_path: Path) -> None:
    script = {0: [wants("search", words="kim"), wants("send", text="hi")], 2: [says("ok")]}

    @durable
    async def run(app: App) -> None:
        ann, tools = agent_with(tmp_path, script)

        @app.job
        async def work(ctx: JobContext) -> str:
            events = await events_of(ann)
            await ctx.receive("go")
            return told(events)[-1]

        handle = await replayed(app, work())
        assert await handle.result() == "ok"
        effects = [(each.target, each.in_doubt) for each in await handle.effects()]
        assert effects == [("send", "ask")]
        await tools.close()

    run(url)
    assert sorted(tool for tool, _, _ in calls(tmp_path)) == ["search", "send"]


def test_a_mail_that_may_have_been_sent_is_left_to_a_person(url: str, tmp_path: Path) -> None:
    script = {0: [wants("send", text="dies")], 1: [wants("send", text="dies")], 2: [says("ok")]}

    @durable
    async def run(app: App) -> None:
        ann, tools = agent_with(tmp_path, script)

        @app.job
        async def work() -> str:
            return told(await events_of(ann))[-1]

        with pytest.raises(JobParked, match="to send happened"):
            await app.run(work())
        await tools.close()

    run(url)
    assert [tool for tool, _, _ in calls(tmp_path)] == ["send"]
