"""An agent of pydantic-ai in a job: each call of its model and of its tools is a step.

Searches run at the same time, the mail is an effect, and a person approves the payment. The model
is a script, so no key is needed. Start it, kill it, start it again: no recorded answer is asked
for twice, and nothing is paid or sent twice.
"""

import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from examples.agent.model import pace
from examples.agent.world import do
from perdure import App, JobState, process
from perdure.approvals import Person
from perdure.integrations.durable_calls import idempotency_key
from perdure.integrations.pydantic_ai import PerdureDurability

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
SCRIPT: list[list[ToolCallPart | TextPart]] = [
    [
        ToolCallPart("search", {"words": "lamps"}, tool_call_id="c1"),
        ToolCallPart("search", {"words": "reviews"}, tool_call_id="c2"),
    ],
    [ToolCallPart("pay", {"shop": "lamps.example", "usd": 39}, tool_call_id="c3")],
    [ToolCallPart("mail", {"to": "kim", "text": "A lamp comes."}, tool_call_id="c4")],
    [TextPart("Lamp 7 is bought, and Kim knows.")],
]


async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(each, ModelResponse) for each in messages)
    do(f"the model answers turn {turn}")
    await process.sleep(pace())
    return ModelResponse(parts=SCRIPT[turn])


app = App(os.environ.get("PERDURE_URL", "sqlite:///agent_with_pydantic_ai.db"))
buyer = Agent(
    FunctionModel(answer, model_name="script"),  # or "openai:gpt-5"
    name="buyer",
    capabilities=[PerdureDurability(approvals=True)],
)


@buyer.tool_plain
async def search(words: str) -> str:
    """Search the web."""
    do(f"search {words}")
    await process.sleep(pace())
    return f"lamp 7 for {words}"


@buyer.tool_plain(
    requires_approval=True, metadata={"perdure": {"effect": True, "in_doubt": "replay"}}
)
async def pay(shop: str, usd: int) -> str:
    """Pay a shop, which knows a repeated payment by its key."""
    return do(f"pay {shop} {usd} USD", idempotency_key())


@buyer.tool_plain(metadata={"perdure": {"effect": True, "in_doubt": "replay"}})
async def mail(to: str, text: str) -> str:
    """Send a mail."""
    return do(f"mail {to}: {text}", idempotency_key())


@app.job
async def buy(task: str) -> str:
    return (await buyer.run(task)).output


async def main() -> None:
    handle = await app.submit(buy("Buy Kim a lamp."), key="lamp", user="kim")
    if await handle.until(JobState.WAITING) is JobState.WAITING:
        for asked in await app.approvals():
            print(f"Ann approves: {asked.description} {asked.shown.decode()}", flush=True)
            await app.decide(asked, "approve", by=ANN)
    print(await handle.result())


if __name__ == "__main__":
    app.run_sync(main)
