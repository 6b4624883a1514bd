"""An agent of Google's ADK in a job: each call of its model and of its tools is a step.

Searches run at the same time, the mail is an effect, and a person approves the payment. The model
is a script, so no key is needed. Start it, kill it, start it again: no recorded answer is asked
for twice, and nothing is paid or sent twice.
"""

import os
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App as AdkApp
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from examples.agent.model import pace
from examples.agent.world import do
from perdure import App, JobState, process
from perdure.approvals import Person
from perdure.integrations.adk import PerdurePlugin
from perdure.integrations.durable_calls import idempotency_key

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))


def call(name: str, **arguments: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


SCRIPT = [
    [call("search", words="lamps"), call("search", words="reviews")],
    [call("pay", shop="lamps.example", usd=39)],
    [call("mail", to="kim", text="A lamp comes.")],
    [types.Part(text="Lamp 7 is bought, and Kim knows.")],
]

app = App(os.environ.get("PERDURE_URL", "sqlite:///agent_with_adk.db"))


class Script(BaseLlm):
    """Stand for a model, such as "gemini-2.5-flash"."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002 - as the ADK passes it
    ) -> AsyncGenerator[LlmResponse, None]:
        turn = sum(each.role == "model" for each in llm_request.contents)
        do(f"the model answers turn {turn}")
        await process.sleep(pace())
        yield LlmResponse(content=types.Content(role="model", parts=SCRIPT[turn]))


async def search(words: str) -> str:
    """Search the web."""
    do(f"search {words}")
    await process.sleep(pace())
    return f"lamp 7 for {words}"


async def pay(shop: str, usd: int) -> str:
    """Pay a shop, which knows a repeated payment by its key."""
    return do(f"pay {shop} {usd} USD", idempotency_key())


async def mail(to: str, text: str) -> str:
    """Send a mail."""
    return do(f"mail {to}: {text}", idempotency_key())


EFFECT = {"effect": True, "in_doubt": "replay"}
plugin = PerdurePlugin(tools={"pay": EFFECT, "mail": EFFECT})
buyer = LlmAgent(
    name="buyer",
    model=Script(model="script"),
    tools=[search, FunctionTool(pay, require_confirmation=True), mail],
)
shopping = AdkApp(name="shopping", root_agent=buyer, plugins=[plugin])


@app.job
async def buy(task: str) -> str:
    sessions = InMemorySessionService()  # created in the job: a replay writes it again
    runner = Runner(app=shopping, session_service=sessions, auto_create_session=True)
    message = types.Content(role="user", parts=[types.Part(text=task)])
    answer = ""
    async for event in runner.run_async(user_id="kim", session_id="1", new_message=message):
        for part in (event.content and event.content.parts) or ():
            answer = part.text or answer
    return answer


async def main() -> None:
    handle = await app.submit(buy("Buy Kim a lamp."), key="lamp", user="kim")
    if await handle.until(JobState.WAITING) is JobState.WAITING:
        for asked in await app.approvals():
            print(f"Ann approves: {asked.description} {asked.shown.decode()}", flush=True)
            await app.decide(asked, "approve", by=ANN)
    print(await handle.result())


if __name__ == "__main__":
    app.run_sync(main)
