"""An agent of LangChain that is killed at every durable point: see `tests.support.agent_kills`.

Its tools run at the same time and end in reverse order. One is an effect, one asks a person. Then a
plain graph with parallel nodes and a subgraph runs.
"""

# LangGraph leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownVariableType=false

import asyncio
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from perdure import JobContext
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.integrations.durable_calls import idempotency_key
from perdure.integrations.langgraph import PerdureMiddleware, run_graph
from perdure.jobs.approval import Person
from tests.integrations.langgraph.fake_model import ScriptedModel, calls, says
from tests.support.agent_kills import note
from tests.support.engine import QUICK

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
SENT = "sent"
# What the step of a tool stores of it.
HAPPENED: Any = {
    "value": {
        "$langgraph": "message",
        "value": {"type": "tool", "data": {"content": SENT, "name": "mail", "tool_call_id": "m"}},
    }
}


def agent_of(log: Path) -> Any:
    quick = asyncio.Event()

    @tool
    async def slow(city: str) -> str:
        """Look up a city; takes longer than what comes after it."""
        note(log, f"slow {city}")
        async with asyncio.timeout(5):
            await quick.wait()
        return f"{city} is far"

    @tool
    async def fast(city: str) -> str:
        """Look up a city."""
        note(log, f"fast {city}")
        quick.set()
        return f"{city} is near"

    @tool
    async def pay(usd: int) -> str:
        """Pay, if a person agrees."""
        answer = interrupt(f"Pay {usd} USD?")
        note(log, f"pay {usd} {answer}")
        return f"paid {usd}"

    @tool
    async def mail(to: str) -> str:
        """Send a mail."""
        note(log, f"mail {to} {idempotency_key()}")
        return SENT

    mail.metadata = {"perdure": {"effect": True}}
    script = [
        calls(("s", "slow", {"city": "Rome"}), ("f", "fast", {"city": "Oslo"})),
        calls(("m", "mail", {"to": "kim"}), ("p", "pay", {"usd": 5})),
        says("all is done"),
    ]
    model = ScriptedModel(script=script, asked=lambda turn: note(log, f"model {turn}"))
    return create_agent(model, [slow, fast, pay, mail], middleware=[PerdureMiddleware()])


class _State(TypedDict):
    said: Annotated[list[str], operator.add]


def graph_of(log: Path) -> Any:
    second = asyncio.Event()

    async def first_branch(state: _State) -> Any:
        note(log, "first branch")
        async with asyncio.timeout(5):
            await second.wait()
        return {"said": ["first"]}

    async def second_branch(state: _State) -> Any:
        note(log, "second branch")
        second.set()
        return {"said": ["second"]}

    async def inner(state: _State) -> Any:
        note(log, "inner")
        return {"said": ["inner"]}

    below = StateGraph(_State).add_node("inner", inner).add_edge(START, "inner").compile()
    builder = StateGraph(_State)
    builder.add_node("first", first_branch)
    builder.add_node("second", second_branch)
    builder.add_node("below", below)
    builder.add_edge(START, "first")
    builder.add_edge(START, "second")
    builder.add_edge(["first", "second"], "below")
    return builder.compile()


def build(url: str, log: Path) -> App:
    app = App(url, worker=QUICK)
    assistant, graph = agent_of(log), graph_of(log)

    @app.job
    async def agent(ctx: JobContext) -> Any:
        state = await run_graph(ctx, assistant, {"messages": [HumanMessage("go")]}, stream=True)
        said = [f"{each.type}: {each.text}" for each in state["messages"]]
        found = await run_graph(ctx, graph, {"said": []})
        return [said, found["said"]]

    return app


async def people(app: App, handle: Handle[Any]) -> None:
    """Say yes to whatever is asked."""
    del handle
    for approval in await app.approvals():
        await app.decide(approval, "approve", by=ANN)
