"""The steps, what undoes them, and the order itself."""

import os

from examples.payment_saga.world import act
from perdure import App, JobContext, Retry, StepContext, WorkerSettings
from perdure.errors import Permanent

app = App(
    os.environ.get("PERDURE_URL", "sqlite:///payment_saga.db"),
    worker=WorkerSettings(reap_every="50ms", keep_in_memory="50ms"),
)

SOON = Retry(attempts=3, initial_delay="10ms")


async def deed(ctx: StepContext, name: str, target: str) -> str:
    """Do one thing to the world: our receiver honours keys."""
    return str(await ctx.effect(name, lambda key: act(name, key), target=target, in_doubt="replay"))


def fail_if(name: str, broken: str) -> None:
    """Break where the caller of the program wants it."""
    if name == broken:
        raise Permanent(f"{name} does not work today")


@app.step(retry=SOON)
async def pay(ctx: StepContext, order: int, broken: str) -> str:
    fail_if("pay", broken)
    return await deed(ctx, "payment", f"card of order {order}")


@pay.compensate(retry=SOON)
async def refund(ctx: StepContext, order: int, broken: str, receipt: str | None) -> None:
    if receipt is not None:  # else the payment was never made
        await deed(ctx, "refund", f"card of order {order}")


@app.step(retry=SOON)
async def reserve(ctx: StepContext, order: int, broken: str) -> str:
    fail_if("reserve", broken)
    return await deed(ctx, "reservation", f"goods of order {order}")


@reserve.compensate(retry=SOON)
async def release(ctx: StepContext, order: int, broken: str, receipt: str | None) -> None:
    if receipt is not None:
        await deed(ctx, "release", f"goods of order {order}")


@app.step(retry=SOON)
async def confirm(ctx: StepContext, order: int, broken: str) -> str:
    fail_if("confirm", broken)
    return await deed(ctx, "confirmation mail", f"buyer of order {order}")


@confirm.compensate(retry=SOON)
async def apologise(ctx: StepContext, order: int, broken: str, receipt: str | None) -> None:
    """Send what is the nearest to undoing a mail."""
    if receipt is not None:
        await deed(ctx, "cancellation mail", f"buyer of order {order}")


@app.job
async def place_order(ctx: JobContext, order: int, broken: str = "") -> str:
    await ctx.run(pay, order, broken)
    await ctx.run(reserve, order, broken)
    await ctx.run(confirm, order, broken)
    if broken == "end":
        raise Permanent("the buyer has changed their mind")
    return "delivered"
