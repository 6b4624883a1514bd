"""The tools: a search and files, which may be repeated; a payment and a mail, which may not."""

import os
from pathlib import Path

from examples.agent.model import pace
from examples.agent.world import do, folder
from perdure import App, Retry, StepContext, Tools, process

app = App(os.environ.get("PERDURE_URL", "sqlite:///agent.db"))

PAGES = {"lamps under 50 USD": "lamp 7: 39 USD", "reviews of lamps": "lamp 7 is the best"}


@app.step
async def search(words: str) -> str:
    """Search the web.

    Args:
        words: What to look for.
    """
    await process.sleep(pace() * len(words) / 20)  # the first one answers last
    do(f"search {words}")
    return PAGES[words]


@app.step(retry=Retry(attempts=1))
async def read_file(name: str) -> str:
    """Read a file of the folder of this task."""
    return _path(name).read_text()


@app.step
async def write_file(name: str, text: str) -> str:
    """Write a file into the folder of this task."""
    _path(name).write_text(text)
    return "written"


@write_file.compensate
async def remove_file(name: str, text: str, output: str | None) -> None:
    _path(name).unlink(missing_ok=True)


def _path(name: str) -> Path:
    """Return a file of the folder; a model may write `../`."""
    return folder() / Path(name).name


@app.step(approval="required")
async def pay(ctx: StepContext, shop: str, usd: float) -> str:
    """Pay a shop. A person approves it first."""
    deed = f"pay {shop} {usd:g} USD"
    return await ctx.effect("payment", lambda key: do(deed, key), target=shop, in_doubt="replay")


@pay.compensate
async def refund(ctx: StepContext, shop: str, usd: float, receipt: str | None) -> None:
    if receipt is not None:  # None: it was never paid
        deed = f"refund {shop} {usd:g} USD"
        await ctx.effect("refund", lambda key: do(deed, key), target=shop, in_doubt="replay")


@app.step
async def send_mail(ctx: StepContext, to: str, text: str) -> str:
    """Send a mail to somebody of our own company."""
    deed = f"mail {to}: {text}"
    return await ctx.effect("mail", lambda key: do(deed, key), target=to, in_doubt="replay")


@send_mail.compensate
async def apologise(ctx: StepContext, to: str, text: str, receipt: str | None) -> None:
    if receipt is not None:  # a mail cannot be taken back
        deed = f"mail {to}: Sorry, forget what I wrote."
        await ctx.effect("mail", lambda key: do(deed, key), target=to, in_doubt="replay")


TOOLS = Tools([search, read_file, write_file, pay, send_mail])
