"""A program with a job that calls tools of an MCP server, to be killed in the middle of a call.

`python -m tests.support.mcp_agent STORE ADDRESS FOLDER [TOOL]`: while TOOL is called, it is killed.
"""

import os
import sys
from pathlib import Path

from mcp import Client

from perdure import App, JobContext, JobState
from perdure.integrations.mcp import DurableMCP
from tests.support.engine import QUICK

STORE, ADDRESS, FOLDER = sys.argv[1:4]
app = App(STORE, worker=QUICK)
tools = DurableMCP(Client(ADDRESS), name="mail")


@app.job
async def agent(ctx: JobContext) -> list[str]:
    await tools.list_tools()
    said: list[str] = []
    for tool, argument in (("search", "words"), ("label", "name"), ("send", "text")):
        result = await tools.call_tool(tool, {argument: "lamp"}, id=tool)
        said.append(getattr(result.content[0], "text", ""))
    return said


async def main() -> None:
    handle = await app.submit(agent(), key="one")
    state = await handle.until(JobState.NEEDS_ATTENTION)
    told = await handle.result() if state is JobState.COMPLETED else ""
    sys.stdout.write(f"{state.value} {told}\n")


if __name__ == "__main__":
    for tool in sys.argv[4:]:
        (Path(FOLDER) / "kill").write_text(f"{tool} {os.getpid()}")
    app.run_sync(main)
