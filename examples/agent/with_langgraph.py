"""An agent of LangChain: each call of its model and of its tools is a step of a job.

Start it, kill it with `kill -9`, start it again: no recorded answer is asked for twice, and nothing
is paid or sent twice. A person approves the payment; here the program does.
"""

import os
from typing import Any

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]  it leaves parts open
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from examples.agent.model import pace
from examples.agent.world import do
from perdure import App, JobContext, process
from perdure.approvals import Person
from perdure.integrations.durable_calls import idempotency_key
from perdure.integrations.langgraph import PerdureMiddleware, run_graph

app = App(os.environ.get("PERDURE_URL", "sqlite:///agent_with_langgraph.db"))
ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))


@tool
async def search(words: str) -> str:
    """Search the web."""
    await process.sleep(pace() * len(words) / 20)  # the first one answers last
    do(f"search {words}")
    return f"found {words}"


@tool
async def pay(shop: str, usd: float) -> str:
    """Pay a shop."""
    return do(f"pay {shop} {usd:g} USD", idempotency_key())


@tool
async def mail(to: str, text: str) -> str:
    """Send a mail."""
    await process.sleep(pace())
    return do(f"mail {to}: {text}", idempotency_key())


# Both honour keys, so what a crash leaves in doubt may be repeated. A person approves payments.
pay.metadata = {"perdure": {"effect": True, "in_doubt": "replay", "risk": "high"}}
mail.metadata = {"perdure": {"effect": True, "in_doubt": "replay"}}


class Script(BaseChatModel):
    """Says what a model might say, so that no key is needed."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Return the model as it is: it knows its tools."""
        del tools
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(each, AIMessage) for each in messages)
        do(f"the model answers turn {turn}")
        called = [
            {"name": name, "args": arguments, "id": f"call_{turn}_{number}"}
            for number, (name, arguments) in enumerate(SCRIPT.get(turn, []))
        ]
        text = "" if called else "Lamp 7 is bought, and Kim knows."
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text, tool_calls=called))])


SCRIPT: dict[int, list[tuple[str, dict[str, Any]]]] = {
    0: [("search", {"words": "lamps under 50 USD"}), ("search", {"words": "reviews"})],
    1: [("pay", {"shop": "lamps.example", "usd": 39})],
    2: [("mail", {"to": "kim", "text": "A lamp comes."})],
}

assistant = create_agent(
    Script(), [search, pay, mail], middleware=[PerdureMiddleware(agent="shopper")]
)


@app.job
async def agent(ctx: JobContext, task: str) -> str:
    state = await run_graph(ctx, assistant, {"messages": [HumanMessage(task)]})
    return str(state["messages"][-1].text)


async def main() -> None:
    handle = await app.submit(agent("Buy Kim a lamp."), key="lamp", user="kim")
    process.spawn_linked(answer_for_ann)
    print(await handle.result())


async def answer_for_ann() -> None:
    """Approve what is asked, as Ann would do in Slack, by mail or in the dashboard."""
    while True:
        for asked in await app.approvals():
            print(f"Ann approves: {asked.title}", flush=True)
            await app.decide(asked, "approve", by=ANN)
        await process.sleep("50ms")


if __name__ == "__main__":
    app.run_sync(main)
