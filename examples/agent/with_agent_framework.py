"""An agent of Microsoft's Agent Framework in a job: each call of its model and tools is a step.

Searches run at the same time, the mail is an effect, and a person approves the payment. The model
is a script, so no key is needed. Start it, kill it, start it again: no recorded answer is asked
for twice, and nothing is paid or sent twice.
"""

import os
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

from examples.agent.model import pace
from examples.agent.world import do
from perdure import App, JobState, process
from perdure.approvals import Person
from perdure.integrations.agent_framework import durable_middleware
from perdure.integrations.durable_calls import idempotency_key

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))


def call(id: str, name: str, **arguments: Any) -> Content:
    return Content.from_function_call(id, name, arguments=arguments)


SCRIPT = [
    [call("c1", "search", words="lamps"), call("c2", "search", words="reviews")],
    [call("c3", "pay", shop="lamps.example", usd=39)],
    [call("c4", "mail", to="kim", text="A lamp comes.")],
    [Content.from_text("Lamp 7 is bought, and Kim knows.")],
]

app = App(os.environ.get("PERDURE_URL", "sqlite:///agent_with_agent_framework.db"))


class Script(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Stand for the client of a model."""

    def _inner_get_response(self, *, messages: Any, **_: Any) -> Any:
        return self._answer(messages)

    async def _answer(self, messages: list[Message]) -> ChatResponse[Any]:
        turn = sum(each.role == "assistant" for each in messages)
        do(f"the model answers turn {turn}")
        await process.sleep(pace())
        return ChatResponse(messages=[Message("assistant", SCRIPT[turn])])


@tool
async def search(words: str) -> str:
    """Search the web."""
    do(f"search {words}")
    await process.sleep(pace())
    return f"lamp 7 for {words}"


@tool(approval_mode="always_require")
async def pay(shop: str, usd: int) -> str:
    """Pay a shop, which knows a repeated payment by its key."""
    return do(f"pay {shop} {usd} USD", idempotency_key())


@tool
async def mail(to: str, text: str) -> str:
    """Send a mail."""
    return do(f"mail {to}: {text}", idempotency_key())


EFFECT = {"effect": True, "in_doubt": "replay"}
middleware = durable_middleware(tools={"pay": EFFECT, "mail": EFFECT})
buyer = Agent(Script(), name="buyer", tools=[search, pay, mail], middleware=middleware)


@app.job
async def buy(task: str) -> str:
    return (await buyer.run(task)).text


async def main() -> None:
    handle = await app.submit(buy("Buy Kim a lamp."), key="lamp", user="kim")
    if await handle.until(JobState.WAITING) is JobState.WAITING:
        for asked in await app.approvals():
            print(f"Ann approves: {asked.description} {asked.shown.decode()}", flush=True)
            await app.decide(asked, "approve", by=ANN)
    print(await handle.result())


if __name__ == "__main__":
    app.run_sync(main)
