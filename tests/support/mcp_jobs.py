"""A program with jobs that are the tasks of an MCP server, by stdio or HTTP, and their worker.

`python -m tests.support.mcp_jobs [http]`, on the store `PERDURE_URL`: who asks is the header
`x-user`, "kim@acme", or, by stdio, the variable WHO. A real server would have authenticated them.
"""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import MCPServer

from perdure import App, JobContext
from perdure.approvals import ApprovalTerms, Person
from perdure.errors import Permanent
from perdure.integrations.mcp import PerdureTasks
from tests.support.cli import ROOT, lines_until
from tests.support.engine import QUICK

app = App(os.environ.get("PERDURE_URL", "sqlite:///never_opened.db"), worker=QUICK)
ALONE = ApprovalTerms(four_eyes=False)


@app.job
async def greet(name: str, times: int = 1) -> list[str]:
    """Greet somebody.

    Args:
        name: Who.
        times: How often.
    """
    return [f"hello {name}"] * times


@app.job
async def deploy(ctx: JobContext, version: int) -> str:
    """Deploy a version, if somebody approves."""
    terms = ALONE if version < 100 else ApprovalTerms()
    yes = await ctx.approve(f"Deploy {version}?", details={"version": version}, terms=terms)
    return f"{version} by {yes.by[0]}: {yes.reason}"


@app.job
async def wait(ctx: JobContext) -> None:
    """Wait for ever."""
    await ctx.receive("never")


@app.job
async def fail() -> None:
    """Fail."""
    raise Permanent("it cannot be done")


def who(ctx: ServerRequestContext[Any, Any]) -> Person | None:
    said = ctx.request.headers.get("x-user", "") if ctx.request else os.environ.get("WHO", "")
    id, _, tenant = said.partition("@")
    return Person(id=id, tenant=tenant, roles=frozenset({"approver"})) if tenant else None


@asynccontextmanager
async def working(_: MCPServer[None]) -> AsyncGenerator[None]:
    async with app.running():
        yield
    await app.close()


@contextmanager
def serving_jobs(store: str) -> Generator[str]:
    """Run the program with HTTP; yield its address."""
    command = [sys.executable, "-m", "tests.support.mcp_jobs", "http"]
    environment = {**os.environ, "PERDURE_URL": store}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as program:
        try:
            last = lines_until(program, "Uvicorn running on")[-1]
            yield last.split("running on ")[1].split()[0] + "/mcp"
        finally:
            program.kill()


server = MCPServer(
    "jobs", lifespan=working, log_level="INFO", extensions=[PerdureTasks(app, who=who, poll_ms=20)]
)

if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        server.run("streamable-http", port=0)
    else:
        server.run("stdio")
