"""An agent of the OpenAI Agents SDK in a job: each call of its model and of its tools is a step.

Searches run at the same time, the mail is an effect, and a person approves the payment. The model
is a script, so no key is needed. Start it, kill it, start it again: no recorded answer is asked
for twice, and nothing is paid or sent twice.
"""

import os
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import assistant_message, function_call

from examples.agent.model import pace
from examples.agent.world import do
from perdure import App, JobState, process
from perdure.approvals import Person
from perdure.integrations.durable_calls import idempotency_key
from perdure.integrations.openai_agents import durable, install

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
SCRIPT = [
    [
        function_call("search", {"words": "lamps"}, call_id="c1"),
        function_call("search", {"words": "reviews"}, call_id="c2"),
    ],
    [function_call("pay", {"shop": "lamps.example", "usd": 39}, call_id="c3")],
    [function_call("mail", {"to": "kim", "text": "A lamp comes."}, call_id="c4")],
    [assistant_message("Lamp 7 is bought, and Kim knows.")],
]
TURNS = {0: 0, 2: 1, 3: 2, 4: 3}  # by how many tools have answered

install()
set_tracing_disabled(True)
app = App(os.environ.get("PERDURE_URL", "sqlite:///agent_with_openai_agents.db"))


class Script(Model):
    """Stand for a model, such as "gpt-5"."""

    async def get_response(self, *args: Any, **given: Any) -> ModelResponse:
        items = given["input"] if "input" in given else args[1]
        answered = 0 if isinstance(items, str) else sum("output" in each for each in items)
        turn = TURNS[answered]
        do(f"the model answers turn {turn}")
        await process.sleep(pace())
        used = Usage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120)
        return ModelResponse(output=SCRIPT[turn], usage=used, response_id=None)

    def stream_response(self, *args: Any, **given: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("this one is not streamed")


@function_tool
async def search(words: str) -> str:
    """Search the web."""
    do(f"search {words}")
    await process.sleep(pace())
    return f"lamp 7 for {words}"


@durable(effect=True, in_doubt="replay")
@function_tool(needs_approval=True)
async def pay(shop: str, usd: int) -> str:
    """Pay a shop, which knows a repeated payment by its key."""
    return do(f"pay {shop} {usd} USD", idempotency_key())


@durable(effect=True, in_doubt="replay")
@function_tool
async def mail(to: str, text: str) -> str:
    """Send a mail."""
    return do(f"mail {to}: {text}", idempotency_key())


buyer = Agent[None](name="buyer", model=Script(), tools=[search, pay, mail])


@app.job
async def buy(task: str) -> str:
    result = await Runner.run(buyer, task)
    return str(result.final_output)


async def main() -> None:
    handle = await app.submit(buy("Buy Kim a lamp."), key="lamp", user="kim")
    if await handle.until(JobState.WAITING) is JobState.WAITING:
        for asked in await app.approvals():
            print(f"Ann approves: {asked.description} {asked.shown.decode()}", flush=True)
            await app.decide(asked, "approve", by=ANN)
    print(await handle.result())


if __name__ == "__main__":
    app.run_sync(main)
