"""An app for the tests of `perdure worker`, `submit` and `jobs`."""

import os
from pathlib import Path

from perdure import Retry
from perdure.app import App
from perdure.approvals import Contact, People, Person, Policy
from perdure.base.errors import Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext, SyncStepContext

# The store is that of PERDURE_URL.
staff = [
    Person(id=id, tenant="default", roles=frozenset({"approver"})) for id in ("ann", "bob", "cas")
]
app = App(
    "sqlite:////nowhere/jobs.db",
    worker=WorkerSettings(reap_every="50ms", keep_in_memory="10ms"),
    policy=Policy(people=People(Contact(person=each) for each in staff)),
)
notes = App("sqlite:////nowhere/notes.db")


@app.step
async def greet(ctx: StepContext, name: str) -> str:
    return f"hello {name}"


@app.step
def need(ctx: SyncStepContext, path: str) -> str:
    if not Path(path).exists():
        raise Permanent(f"{path} is missing")
    return Path(path).read_text()


@app.step
async def count(ctx: StepContext, most: int) -> int:
    async for _ in ctx.items(range(most), every=2):
        pass
    return os.getpid()


@app.job
async def welcome(ctx: JobContext, name: str) -> str:
    return await greet(name)


@app.job
async def transfer(ctx: JobContext, usd: int, iban: str) -> str:
    await greet("you")
    return f"{usd} to {iban}"


@app.job
async def fetch(ctx: JobContext, path: str) -> str:
    """Greets, and then fails until the file is there."""
    await greet("you")
    return await need(path)


@app.step(retry=Retry(attempts=1))
def call(ctx: SyncStepContext, path: str) -> str:
    if not Path(path).exists():
        raise ConnectionError("nobody answers")
    return Path(path).read_text()


@app.job
async def reach(ctx: JobContext, path: str) -> str:
    """Is parked until the file is there: an outage."""
    return await call(path)


@app.job
async def ask(ctx: JobContext, who: str) -> str:
    """Greets, and then waits for an answer."""
    await greet(who)
    await count(5)
    return await ctx.receive("answer", kind=str)


@app.step
async def charge(ctx: StepContext, usd: int) -> str:
    """Charge a card whose bank does not answer."""

    async def call(key: str) -> str:
        raise TimeoutError("no answer")

    return str(await ctx.effect("payment", call, target="card 1", details={"usd": usd}))


@app.job
async def pay(ctx: JobContext, usd: int) -> str:
    return await charge(usd)


@app.step
async def reserve(ctx: StepContext, item: str) -> str:
    return item


@reserve.compensate(retry=Retry(attempts=1))
async def release(ctx: StepContext, item: str, output: str | None) -> None:
    raise Permanent("the shop is closed")


@app.job
async def order(ctx: JobContext, item: str) -> None:
    """Reserves what can never be released, and waits."""
    await reserve(item)
    await ctx.receive("paid")


@app.job
async def ship(ctx: JobContext) -> str:
    yes = await ctx.approve("Ship it?", details={"order": 7})
    return f"{yes.by[0]}: {yes.reason}"


@app.job
async def payout(ctx: JobContext, iban: str) -> str:
    yes = await ctx.approve("Pay out?", details={"iban": iban, "pin": "1234"})
    return yes.by[0]


@app.job
async def confirm(ctx: JobContext, title: str) -> str:
    yes = await ctx.approve(title, details={title: title, "long": "x" * 5000})
    return yes.by[0]


@app.step
async def write_story(ctx: StepContext, words: list[str]) -> int:
    for word in words:
        ctx.emit(word, topic="tokens")
    return len(words)


@app.job
async def tell(ctx: JobContext, words: list[str], also: str = "") -> int:
    if also:
        ctx.emit({"also": also}, topic="log")
    return await write_story(words)
