"""The loop: ask the model, call the tools that it wants, until it has an answer.

It is ordinary code. After a crash it runs again from its beginning, and finds in the journal what
the model has answered and what the tools have returned; only what is not there yet is done.
"""

from typing import Any

from examples.agent.model import MODEL, Reply, complete
from examples.agent.tools import TOOLS, app
from perdure import BudgetLimits, JobContext, Retry, StepContext
from perdure.errors import Permanent
from perdure.integrations.prices import price_of

Messages = list[dict[str, Any]]

TURNS = 30


async def think(ctx: JobContext, turn: int, messages: Messages) -> Reply:
    """Ask the model, in a step: set aside what it may cost, and settle what it does cost."""

    async def ask(step: StepContext) -> Reply:
        most = price_of(MODEL, input_tokens=8_000, output_tokens=1_000)
        async with step.spend(usd=most, tokens=9_000, calls=1) as spent:
            reply, used = await complete(
                messages, TOOLS.schemas(), lambda token: step.emit(token, topic="tokens")
            )
            price = price_of(
                MODEL, input_tokens=used.input_tokens, output_tokens=used.output_tokens
            )
            await spent.settle(usd=price, calls=1, usage=used)
        return reply

    outages = Retry(attempts=5, initial_delay="1s", max_delay="1m")
    return await ctx.call("chat", ask, key=f"turn {turn}", timeout="5m", retry=outages)


@app.job(budget=BudgetLimits(usd=2, tokens=200_000, calls=50), timeout="12h")
async def agent(ctx: JobContext, task: str = "Buy Kim a lamp.") -> str:
    """Do a task with the tools; if it cannot be done, undo what was done for it."""
    messages: Messages = [{"role": "user", "content": task}]
    for turn in range(TURNS):
        reply = await think(ctx, turn, messages)
        if reply.text.startswith("GIVE UP"):
            raise Permanent(reply.text)
        if not reply.calls:
            return reply.text
        answers = await TOOLS.call_all(reply.calls)
        messages.append({"role": "assistant", "content": reply.text, "calls": len(reply.calls)})
        for call, answer in zip(reply.calls, answers, strict=True):
            messages.append({"role": "tool", "id": call.id, "content": answer.text})
    raise Permanent(f"it is not done after {TURNS} turns")
