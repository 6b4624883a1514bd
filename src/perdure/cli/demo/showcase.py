"""What `perdure demo` leaves running for its page: an agent, a question, an import, a tree.

* The agent has a budget. It streams what its model says, and asks when its money is used up.
* A payment waits in the inbox until somebody who looks at the dashboard decides.
* An import takes minutes, and shows how far it is.
* Beside its jobs, the worker runs a supervision tree, in which a parser crashes again and again.
"""

from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from perdure.app import App
from perdure.cli.demo.harness import LOOK_EVERY, Demo, DemoWorker, Heading, ServiceClient
from perdure.cli.tree_lines import branches
from perdure.engine.handle import Handle
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.budget import BudgetLimits, ModelUsage
from perdure.jobs.state import ENDED, JobState
from perdure.otp.supervision.spec import ChildSpec, child
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process.timer import sleep

ANSWERS: Final = (
    "I look for the cheapest way to send 300 lamps to Oslo. First the ferry.",
    "The ferry costs 2,400 USD and takes three days. Now I compare the train.",
    "The train costs 1,900 USD, but leaves on Fridays only. One more question, and I am done.",
)
QUOTES: Final = {"ferry": "2,400 USD, three days", "train": "1,900 USD, on Fridays"}
USD_OF_A_CALL: Final = 0.02
BUDGET: Final = BudgetLimits(usd=0.05, calls=10)
ROWS: Final = 900

AGENT = Heading(
    "An agent with a budget",
    "Each answer of the model is a step: recorded, never paid for twice. What it says is\n"
    "streamed while it says it. At its limit of 0.05 USD, the agent asks a person.",
)
TREE = Heading(
    "A supervision tree",
    "The worker also runs processes of its own. One of them crashes again and again;\n"
    "its supervisor restarts it, and the others do not notice.",
)


def add_showcase(app: App, client: ServiceClient) -> None:
    """Define the steps and jobs that the dashboard shows."""
    _add_agent(app, client)

    @app.step
    async def import_rows(ctx: StepContext, rows: int) -> int:
        async for row in ctx.items(list(range(rows)), every=50):
            await sleep(0.5 * client.pace)
            ctx.progress(row + 1, rows, note="rows")
        return rows

    @app.job
    async def import_archive(rows: int) -> int:
        return await import_rows(rows)


def _add_agent(app: App, client: ServiceClient) -> None:
    @app.step
    async def think(ctx: StepContext, turn: int) -> str:
        async with ctx.spend(usd=USD_OF_A_CALL, calls=1) as spent:
            for word in ANSWERS[turn].split():
                ctx.emit(word + " ", topic="tokens")
                await sleep(0.05 * client.pace)
            used = ModelUsage(model="a script", input_tokens=400 + 90 * turn, output_tokens=40)
            await spent.settle(usd=USD_OF_A_CALL, calls=1, usage=used)
        return ANSWERS[turn]

    @app.step
    async def quote(way: str) -> str:
        await sleep(0.3 * client.pace)
        return QUOTES[way]

    @app.job(budget=BUDGET)
    async def find_shipping(task: str) -> str:
        said = task
        for turn in range(len(ANSWERS)):
            said = await think(turn)
            for way in QUOTES:
                if way in said.rpartition(". ")[2]:  # what it wants to know next
                    await quote(way)
        return said


# The processes beside the jobs.


async def parser() -> None:
    """Parse for a while, then crash on a line that cannot be parsed."""
    await sleep(1.5)
    raise ValueError("line 17 has three columns instead of four")


async def ticker() -> None:
    """Do nothing, for ever."""
    while True:
        await sleep(60)


def market_feed() -> list[ChildSpec]:
    """Return the children of the supervisor of the feed."""
    return [child(ticker, name="ticker"), child(parser, name="parser"), child(ticker, name="cache")]


def tree() -> Supervisor:
    """Return the supervisor that a lively worker runs beside its jobs."""
    return Supervisor(market_feed(), name="market_feed", max_restarts=1000)


# The story.


async def show_agent(demo: Demo, worker: DemoWorker) -> None:
    """Run the agent until it asks for more money, and print what it says."""
    with demo.display.scenario(AGENT):
        job = demo.app.find_job("find_shipping")
        handle = await demo.app.submit(job("300 lamps to Oslo"), user="kim", labels={"team": "ops"})
        printed, is_over = 0, False
        while not is_over:
            is_over = await handle.status() in (*ENDED, JobState.WAITING)
            said = await _said(demo, handle)
            for sentence in said[printed:]:
                demo.display.draw(Text(f"         “{sentence}”", "cyan"))
            printed = len(said)
            worker.check()
            await sleep(LOOK_EVERY)
        budget = await handle.budget()
        spent = 0.0 if budget is None else float(budget.spent.usd or 0)
        demo.display.say(f"{spent:.2f} of 0.05 USD are spent: the agent asks a person for more")


async def _said(demo: Demo, handle: Handle[str]) -> list[str]:
    """Return the sentences that the agent has finished, from what it has emitted."""
    pieces = (await (await demo.app.store()).output(handle.id, "tokens", 0)).pieces
    words = "".join(str(piece.value) for piece in pieces if piece.kind == "value")
    return [sentence for sentence in ANSWERS if sentence in words]


async def show_tree(demo: Demo, worker: DemoWorker) -> None:
    """Print the supervision tree of the worker when its parser has crashed."""
    with demo.display.scenario(TREE):
        while not (found := await _feed(demo, worker)):
            worker.check()
            await sleep(LOOK_EVERY)
        for line in found:
            demo.display.draw(Text(f"         {line}", "yellow" if "parser" in line else ""))


async def _feed(demo: Demo, worker: DemoWorker) -> list[str]:
    """Return the lines of the tree; none while nothing in it was restarted."""
    for each in await demo.app.workers():
        if each.pid == worker.pid:
            answer = await demo.app.ask_worker(each.id, "tree", by="demo")
            feed = _find(answer["roots"], "market_feed")
            if feed is not None and any(below.get("restarts") for below in feed["children"]):
                return list(branches([feed]))
    return []


def _find(nodes: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Return the process of this name, at whatever depth."""
    for node in nodes:
        found = node if name in (node["id"], node["label"]) else _find(node["children"], name)
        if found is not None:
            return found
    return None


async def leave_running(demo: Demo) -> None:
    """Submit what the dashboard shows while nobody looks at the terminal any more."""
    app = demo.app
    await app.submit(app.find_job("import_archive")(ROWS), user="ann", labels={"team": "data"})
    await app.submit(app.find_job("pay_out")(1200), user="kim", labels={"team": "finance"})
