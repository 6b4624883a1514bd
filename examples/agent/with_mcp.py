"""An agent whose tools are those of an MCP server: each call is a step, and nothing is sent twice.

The server says of `search` that it only reads, so a call that a crash interrupts is made again. It
says nothing about `send`: after a crash in the middle of it, a person is asked whether it was sent.
Start it, kill it, start it again.
"""

import os

from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from examples.agent.model import pace
from examples.agent.world import do
from perdure import App, JobContext, JobState, process
from perdure.integrations.mcp import DurableMCP

server = MCPServer("mail", log_level="WARNING")  # here in the program; usually at an address


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def search(words: str) -> str:
    """Search the mails."""
    await process.sleep(pace())
    do(f"search {words}")
    return f"Kim wants {words}"


@server.tool()
async def send(text: str) -> str:
    """Send a mail."""
    do(f"send {text}")
    await process.sleep(pace())
    return "sent"


app = App(os.environ.get("PERDURE_URL", "sqlite:///agent_with_mcp.db"))
mail = DurableMCP(Client(server), name="mail")

SCRIPT = [  # what a model would ask for
    ("search", {"words": "a lamp"}),
    ("search", {"words": "a lamp under 50 USD"}),
    ("send", {"text": "lamp 7 is the best"}),
]


@app.job
async def agent(ctx: JobContext) -> list[str]:
    answers = [", ".join(tool.name for tool in (await mail.list_tools()).tools)]
    for turn, (tool, arguments) in enumerate(SCRIPT):
        result = await mail.call_tool(tool, arguments, id=f"call_{turn}")
        answers += [getattr(part, "text", "") for part in result.content]
    return answers


async def main() -> None:
    handle = await app.submit(agent(), key="a mail about lamps")
    if await handle.until(JobState.NEEDS_ATTENTION) is JobState.NEEDS_ATTENTION:
        doubtful = [each for each in await handle.effects() if each.state == "IN_DOUBT"]
        for effect in doubtful:
            print(f"Ann looks whether the {effect.target} was done: it was", flush=True)
            await handle.resolve(effect.no, "happened", result="sent", by="ann")
    print(await handle.result())


if __name__ == "__main__":
    app.run_sync(main)
