"""A program with a job that is an A2A agent, and its worker: `python -m tests.support.a2a_agent`.

The store is `PERDURE_URL`. Who asks is the header `x-user`, "kim@acme"; a real server would have
authenticated them.
"""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface
from starlette.applications import Starlette

from perdure import App, JobContext, Retry, StepContext, process
from perdure.approvals import ApprovalTerms, Person
from perdure.errors import Permanent
from perdure.integrations.a2a import PerdureAgent
from tests.support.cli import ROOT, lines_until
from tests.support.engine import QUICK

app = App(os.environ.get("PERDURE_URL", "sqlite:///never_opened.db"), worker=QUICK)


def was_seen(path: str) -> bool:
    return Path(path).exists()


@app.step(retry=Retry(attempts=2, initial_delay="1ms"))
async def think(ctx: StepContext, text: str) -> str:
    for word in text.split():
        ctx.emit(word)
        if ctx.attempt == 1 and word == "stumble":
            raise RuntimeError("it has stumbled")
        while ctx.attempt == 1 and word.startswith("/"):  # until somebody has seen it
            if was_seen(word):
                raise RuntimeError("it has stumbled, and was seen")
            await process.sleep("10ms")
    return text.upper()


@app.job
async def assistant(ctx: JobContext, text: str) -> dict[str, str]:
    """Answer in capitals, after a question, or a message, or never."""
    if text == "fail":
        raise Permanent("it cannot be done")
    if text == "wait":
        await ctx.receive("never")
    said = await think(text)
    if text == "ask":
        said += " " + await ctx.receive("user", kind=str)
    if text.startswith("buy"):
        terms = ApprovalTerms(four_eyes=text == "buy carefully")
        yes = await ctx.approve("Buy it?", details={"text": text}, terms=terms)
        said += f" {yes.by[0]} {yes.reason}"
    return {"said": said}


def who(context: ServerCallContext) -> Person | None:
    id, _, tenant = context.state["headers"].get("x-user", "").partition("@")
    return Person(id=id, tenant=tenant, roles=frozenset({"approver"})) if tenant else None


@asynccontextmanager
async def working(_: Starlette) -> AsyncGenerator[None]:
    async with app.running():
        yield
    await app.close()


def site(address: str) -> Starlette:
    card = AgentCard(
        name="assistant",
        description="Answers in capitals.",
        version="1",
        supported_interfaces=[
            AgentInterface(url=f"{address}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    agent = PerdureAgent(app, assistant, who=who)
    handler = DefaultRequestHandler(agent, agent.tasks, card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")]
    return Starlette(routes=routes, lifespan=working)


@contextmanager
def serving_agent(store: str) -> Generator[str]:
    """Run the program; yield its address."""
    command = [sys.executable, "-m", "tests.support.a2a_agent"]
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
            yield lines_until(program, "http://")[-1]
        finally:
            program.kill()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = "http://{}:{}".format(*listening.getsockname())
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        config = uvicorn.Config(site(address))
        uvicorn.Server(config).run(sockets=[listening])
