"""An agent or a graph is ended from outside at any moment: nothing is left open anywhere."""

# LangGraph leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

import operator
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langchain.agents")

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from perdure import JobContext
from perdure.app import App
from perdure.integrations.langgraph import PerdureMiddleware, run_graph
from tests.integrations.langgraph.fake_model import ScriptedModel, calls, says
from tests.support.agent_ends import BUDGET, DONE, World, cancelled, late

pytestmark = pytest.mark.once

SCRIPT = [
    calls(*[(f"a{n}", "look", {"n": n}) for n in range(3)]),
    calls(("b", "mail", {})),
    calls(("c", "pay", {})),
    says(DONE),
]


def agent_job(app: App, world: World) -> Any:
    class SlowModel(ScriptedModel):
        async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
            await world.dawdle()
            return await super()._agenerate(*args, **options)

    async def pay() -> str:
        """Pay, if a person agrees."""
        await world.dawdle()
        interrupt("Pay?")
        await world.dawdle()
        return "paid"

    mail = tool(world.mail)
    mail.metadata = {"perdure": {"effect": True, "in_doubt": "replay"}}
    tools = [tool(world.look), mail, tool(pay)]
    agent = create_agent(SlowModel(script=SCRIPT), tools, middleware=[PerdureMiddleware()])

    @app.job(budget=BUDGET)
    async def work(ctx: JobContext, _number: int) -> str:
        state = await run_graph(ctx, agent, {"messages": [HumanMessage("?")]})
        return str(state["messages"][-1].text)

    return work


class _State(TypedDict):
    said: Annotated[list[str], operator.add]


def graph_job(app: App, world: World) -> Any:
    async def work_a_while(state: _State) -> Any:
        await world.dawdle()
        return {"said": []}

    async def ask_people(state: _State) -> Any:
        await world.dawdle()
        interrupt("Go on?")
        await world.dawdle()
        return {"said": [DONE]}

    below: Any = StateGraph(_State).add_node("inner", work_a_while).add_edge(START, "inner")
    builder: Any = StateGraph(_State)
    for name in ("first", "second"):
        builder.add_node(name, work_a_while).add_edge(START, name)
    builder.add_node("below", below.compile()).add_edge(["first", "second"], "below")
    builder.add_node("last", ask_people).add_edge("below", "last")
    graph = builder.compile()

    @app.job(budget=BUDGET)
    async def work(ctx: JobContext, _number: int) -> str:
        return "".join((await run_graph(ctx, graph, {"said": []}))["said"])

    return work


test_agents_that_are_cancelled_at_any_moment_leave_nothing_open = cancelled(agent_job)
test_agents_whose_deadline_passes_at_any_moment_leave_nothing_open = late(agent_job)
test_graphs_that_are_cancelled_at_any_moment_leave_nothing_open = cancelled(graph_job)
test_graphs_whose_deadline_passes_at_any_moment_leave_nothing_open = late(graph_job)
