"""An agent: a model that is asked again and again, tools that are steps, a budget, a person.

The model is a script, so that the example needs no key and always says the same. Kill it at any
moment, even with `kill -9`, and start it again: no answer is asked for twice, and the mail is sent
once. A person approves the mail before it is sent; here the program answers for her.
"""

import os

from msgspec import Struct

from perdure import App, BudgetLimits, Retry, Step, StepContext, process
from perdure.approvals import Person
from perdure.errors import StepFailed
from perdure.integrations.prices import price_of

app = App(os.environ.get("PERDURE_URL", "sqlite:///research_agent.db"))

PACE = float(os.environ.get("PACE", "0.5"))  # seconds that an answer takes
MODEL = "gpt-4o"
KEPT = 4  # messages that are passed on as they are; older ones are summarised


class Reply(Struct):
    text: str = ""
    tool: str = ""  # the tool to call; empty: this is the answer
    argument: str = ""


SCRIPT = [
    Reply(tool="search", argument="lamps under 50 USD"),
    Reply(tool="fetch", argument="https://lamps.example/7"),
    Reply(tool="fetch", argument="https://lamps.example/404"),
    Reply(tool="search", argument="reviews of lamp 7"),
    Reply(tool="send_mail", argument="Lamp 7 for 39 USD has the best reviews."),
    Reply(text="I have written to Kim about lamp 7."),
]


async def complete(turn: int, history: list[str]) -> tuple[Reply, int, int]:
    """Stand for a model: return its answer, and how many tokens it read and wrote."""
    await process.sleep(PACE)
    print(f"the model answers turn {turn}, having read {len(history)} messages", flush=True)
    return SCRIPT[turn], sum(len(text) for text in history), 60


# Steps: what the agent does. Each result is recorded, and never asked for again.


@app.step(timeout="5m", retry=Retry(attempts=5, initial_delay="1s", max_delay="1m"))
async def think(ctx: StepContext, turn: int, history: list[str]) -> Reply:
    at_most = price_of(MODEL, input_tokens=8_000, output_tokens=1_000)
    async with ctx.spend(usd=at_most, calls=1) as spent:
        reply, read, written = await complete(turn, history)
        price = price_of(MODEL, input_tokens=read, output_tokens=written)
        await spent.settle(usd=price, calls=1)
    return reply


@app.step
async def summarise(old: list[str]) -> str:
    return f"[{len(old)} earlier messages, about {old[-1][:20]}…]"


@app.step
async def search(words: str) -> str:
    return f"three pages about {words}"


@app.step(retry=Retry(attempts=1))
async def fetch(url: str) -> str:
    if url.endswith("404"):
        raise LookupError(f"there is no page {url}")
    return f"the text of {url}"


@app.step(irreversible=True)
async def send_mail(ctx: StepContext, text: str) -> str:
    async def deliver(key: str) -> str:  # a gateway that honours the key
        print(f"a mail to Kim: {text}", flush=True)
        return f"sent as {key[:8]}"

    return await ctx.effect("email", deliver, target="kim", in_doubt="replay")


TOOLS: dict[str, Step[[str], str]] = {"search": search, "fetch": fetch, "send_mail": send_mail}


# The job: the loop around the model.


@app.job(budget=BudgetLimits(usd=2, calls=50), timeout="12h")
async def agent(task: str) -> str:
    history = [task]
    for turn in range(30):
        reply = await think(turn, history)
        if not reply.tool:
            return reply.text
        try:
            answer = await TOOLS[reply.tool](reply.argument)
        except StepFailed as failure:  # also a rejection: the model decides what to do about it
            answer = f"failed: {failure.error}"
        history = [*history, f"{reply.tool}({reply.argument})", answer]
        if len(history) > 2 * KEPT:
            history = [task, await summarise(history[1:-KEPT]), *history[-KEPT:]]
    return "I have not finished in thirty turns."


async def main() -> None:
    handle = await app.submit(agent("Find Kim a lamp."), key="a lamp for Kim", user="agent-1")
    process.spawn_linked(answer_for_ann)
    print(await handle.result())
    budget = await handle.budget()
    if budget is not None:
        print(f"{budget.spent.calls} calls of {budget.limits.calls}")


async def answer_for_ann() -> None:
    """Approve what is asked, as Ann would do in Slack, by mail or on the command line."""
    ann = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
    while True:
        for asked in await app.approvals():
            print(f"Ann approves: {asked.title}", flush=True)
            await app.decide(asked, "approve", by=ann)
        await process.sleep("50ms")


if __name__ == "__main__":
    app.run_sync(main)
