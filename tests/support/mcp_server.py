"""An MCP server as a program, by stdio or HTTP, which logs every call and can kill its client.

`python -m tests.support.mcp_server FOLDER [http]`: calls are lines of `calls.log` in the folder. If
the file `kill` there is "send 4711", the next call of `send` kills that process before it answers.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, ToolAnnotations

from perdure.integrations.mcp import IDEMPOTENCY_KEY
from tests.support.cli import ROOT, lines_until

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
READS, IDEMPOTENT = ToolAnnotations(read_only_hint=True), ToolAnnotations(idempotent_hint=True)

server = MCPServer("mail", log_level="INFO")


def log(ctx: Context[Any, Any], tool: str, text: str) -> None:
    """Write a call down with its key, and kill its client, if somebody wants that."""
    meta: Any = ctx.request_context.meta or {}
    with (FOLDER / "calls.log").open("a") as calls:
        calls.write(json.dumps([tool, text, meta.get(IDEMPOTENCY_KEY)]) + "\n")
    kill = FOLDER / "kill"
    if kill.exists() and kill.read_text().startswith(f"{tool} "):
        victim = int(kill.read_text().split()[1])
        kill.unlink()
        os.kill(victim, signal.SIGKILL)


@server.tool(annotations=READS)
async def search(words: str, ctx: Context[Any, Any]) -> str:
    """Search for a mail."""
    log(ctx, "search", words)
    return f"found {words}\0"


@server.tool(annotations=IDEMPOTENT)
async def label(name: str, ctx: Context[Any, Any]) -> str:
    """Label a mail."""
    log(ctx, "label", name)
    if name == "dies" and len(calls(FOLDER)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hangs" and len(calls(FOLDER)) == 1:
        await asyncio.Event().wait()
    return f"labelled {name}"


@server.tool()
async def send(text: str, ctx: Context[Any, Any]) -> str:
    """Send a mail."""
    log(ctx, "send", text)
    if text == "fails":
        raise ValueError("the mail server is down")
    if text == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return "x" * int(text) if text.isdigit() else f"sent {text}"


@server.tool()
async def refuse(ctx: Context[Any, Any]) -> str:
    """Refuse to do anything."""
    raise MCPError(INVALID_PARAMS, "not for you", {"why": "because"})


@server.tool(annotations=READS)
async def read(size: int, ctx: Context[Any, Any]) -> str:
    """Read a mail of any size."""
    return "y" * size


def calls(folder: Path) -> list[list[Any]]:
    """Return what the server was asked for: tool, text and key of each call."""
    found = folder / "calls.log"
    return [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []


@contextmanager
def serving(folder: Path) -> Generator[str]:
    """Run the server as a program of its own; yield its address."""
    command = [sys.executable, "-m", "tests.support.mcp_server", str(folder), "http"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        try:
            last = lines_until(program, "Uvicorn running on")[-1]
            yield last.split("running on ")[1].split()[0] + "/mcp"
        finally:
            program.kill()


if __name__ == "__main__":
    if sys.argv[2:] == ["http"]:
        server.run("streamable-http", port=0)
    else:
        server.run("stdio")
