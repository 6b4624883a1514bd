"""An agent that calls tools of an MCP server, three at once, for `tests.support.agent_kills`."""

import asyncio
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

from perdure import App, JobContext, process
from perdure.integrations.mcp import IDEMPOTENCY_KEY, DurableMCP
from tests.support.agent_kills import note
from tests.support.engine import QUICK

HAPPENED = {"content": [{"type": "text", "text": "sent"}]}
READS, IDEMPOTENT = ToolAnnotations(read_only_hint=True), ToolAnnotations(idempotent_hint=True)


def serve(log: Path) -> MCPServer[None]:
    """Return a server whose later calls answer first."""
    server = MCPServer("mail", log_level="WARNING")

    @server.tool(annotations=READS)
    async def search(words: str) -> str:
        note(log, f"search {words}")
        await process.sleep(0.03 / len(words))
        return f"found {words}"

    @server.tool(annotations=IDEMPOTENT)
    async def label(name: str) -> str:
        note(log, f"label {name}")
        return "labelled"

    @server.tool()
    async def send(text: str, ctx: Context[Any, Any]) -> str:
        meta: Any = ctx.request_context.meta
        note(log, f"effect send {text} {meta[IDEMPOTENCY_KEY]}")
        return "sent"

    return server


def build(url: str, log: Path) -> App:
    app = App(url, worker=QUICK)
    mail = DurableMCP(Client(serve(log)), name="mail")

    async def call(tool: str, id: str, **arguments: str) -> str:
        result = await mail.call_tool(tool, arguments, id=id)
        return getattr(result.content[0], "text", "")

    @app.job
    async def agent(ctx: JobContext) -> list[Any]:
        listed = [tool.name for tool in (await mail.list_tools()).tools]
        found = await asyncio.gather(
            call("search", "c1", words="x"),
            call("search", "c2", words="xxx"),
            call("label", "c3", name="lamp"),
        )
        return [listed, found, await call("send", "c4", text="hello")]

    return app
