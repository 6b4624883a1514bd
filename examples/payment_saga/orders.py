"""The steps, what undoes them, and the order itself."""

import os

from examples.payment_saga.service import call
from perdure import App, Retry, StepContext, WorkerSettings
from perdure.errors import Permanent

app = App(
    os.environ.get("PERDURE_URL", "sqlite:///payment_saga.db"),
    worker=WorkerSettings(reap_every="50ms", keep_in_memory="50ms"),
)

SOON = Retry(attempts=3, initial_delay="10ms")


async def request(ctx: StepContext, name: str, target: str) -> str:
    """Call the service as an effect; it honours keys."""
    return str(
        await ctx.effect(name, lambda key: call(name, key), target=target, in_doubt="replay")
    )


def fail_if(name: str, broken: str) -> None:
    """Fail where the command line says."""
    if name == broken:
        raise Permanent(f"{name} is out of order")


@app.step(retry=SOON)
async def pay(ctx: StepContext, order: int, broken: str) -> str:
    fail_if("pay", broken)
    return await request(ctx, "payment", f"card of order {order}")


@pay.compensate(retry=SOON)
async def refund(ctx: StepContext, order: int, broken: str, receipt: str | None) -> None:
    if receipt is not None:  # None: the payment was never made
        await request(ctx, "refund", f"card of order {order}")


@app.step(retry=SOON)
async def reserve(ctx: StepContext, order: int, broken: str) -> str:
    fail_if("reserve", broken)
    return await request(ctx, "reservation", f"goods of order {order}")


@reserve.compensate(retry=SOON)
async def release(ctx: StepContext, order: int, broken: str, receipt: str | None) -> None:
    if receipt is not None:
        await request(ctx, "release", f"goods of order {order}")


@app.step(retry=SOON)
async def confirm(ctx: StepContext, order: int, broken: str) -> str:
    fail_if("confirm", broken)
    return await request(ctx, "confirmation mail", f"buyer of order {order}")


@confirm.compensate(retry=SOON)
async def apologise(ctx: StepContext, order: int, broken: str, receipt: str | None) -> None:
    """Send a second mail, since the first cannot be undone."""
    if receipt is not None:
        await request(ctx, "cancellation mail", f"buyer of order {order}")


@app.job
async def place_order(order: int, broken: str = "") -> str:
    await pay(order, broken)
    await reserve(order, broken)
    await confirm(order, broken)
    if broken == "end":
        raise Permanent("the buyer has changed their mind")
    return "delivered"
