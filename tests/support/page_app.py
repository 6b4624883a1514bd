"""An app with a job of every kind that the page shows.

`python -m tests.support.page_app URL` is a worker of it, whose steps stop where they can.
"""

import asyncio
import sys
from typing import Any

import perdure
from perdure import App, BudgetLimits, JobContext, Retry, StepContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.worker import until_told_to_stop
from perdure.errors import Permanent
from perdure.jobs.budget import ModelUsage
from perdure.jobs.state import JobState

# What one worker leaves behind, another notices soon.
SETTINGS = WorkerSettings(
    lease="3s", heartbeat="300ms", stop_before_expiry="500ms", poll="200ms", reap_every="200ms"
)


def page_app(url: str) -> App:
    """Return the app on a store."""
    app = App(url, worker=SETTINGS)
    _plain_jobs(app)
    _money_jobs(app)
    _doubtful_job(app)
    _other_jobs(app)
    _transfer_job(app)
    _family_job(app)
    return app


def _plain_jobs(app: App) -> None:
    @app.step
    async def load(page: int) -> int:
        return page * 100

    @app.step(retry=Retry(attempts=9, initial_delay="1h"))
    async def call_again(host: str) -> str:
        raise ConnectionError(f"{host} refuses the connection")

    @app.step
    async def make(size: int) -> list[str]:
        return [f"line {number} of the payload" for number in range(size)]

    @app.job
    async def migrate(pages: int) -> int:
        return sum([await load(page) for page in range(pages)])

    @app.job
    async def contact(host: str) -> str:
        return await call_again(host)

    @app.job
    async def large(size: int) -> int:
        return len(await make(size))

    _ = migrate, contact, large


def _money_jobs(app: App) -> None:
    @app.step
    async def reserve(item: str) -> str:
        return f"place of {item}"

    @reserve.compensate
    async def release(item: str, output: str | None) -> None:
        del item, output

    @app.step
    async def pay(ctx: StepContext, usd: int) -> str:
        paid = await ctx.effect("payment", _charge, target="card 1", details={"usd": usd})
        return paid["id"]

    @pay.compensate
    async def refund(usd: int, output: str | None) -> None:
        del usd, output

    @app.step
    async def ship(item: str) -> str:
        raise Permanent(f"the carrier refuses {item}")

    @app.job
    async def order(item: str) -> str:
        await reserve(item)
        await pay(5)
        return await ship(item)

    @app.job
    async def fail(item: str) -> str:
        return await ship(item)

    _ = order, fail, release, refund


def _doubtful_job(app: App) -> None:
    @app.step
    async def hold(seat: str) -> str:
        return f"held {seat}"

    @hold.compensate
    async def let_go(seat: str, output: str | None) -> None:
        del seat, output

    @app.step
    async def pay_blindly(ctx: StepContext) -> str:
        return str(await ctx.effect("payment", _charge_without_answer, target="card 2"))

    @app.job
    async def checkout(seat: str) -> str:
        await hold(seat)
        return await pay_blindly()

    _ = checkout, let_go


async def _charge(key: str) -> dict[str, str]:
    return {"id": f"ch_{key[:6]}"}


async def _charge_without_answer(_: str) -> str:
    raise TimeoutError("the bank does not answer")


def _other_jobs(app: App) -> None:
    @app.step
    async def think(ctx: StepContext) -> str:
        async with ctx.spend(usd=1, tokens=100) as spent:
            ctx.emit("a thought ", topic="tokens")
            used = ModelUsage(model="gpt-5", input_tokens=60, output_tokens=20)
            await spent.settle(usd=0.5, usage=used)
        return "thought"

    @app.step
    async def copy_rows(ctx: StepContext) -> str:
        ctx.progress(1, 4, "the first quarter")
        if __name__ == "__main__":
            await asyncio.Event().wait()
        return "copied"

    @app.job
    async def offer(ctx: JobContext, usd: int, risk: str = "medium") -> str:
        yes = await ctx.approve("Send this offer?", details={"usd": usd}, risk=risk)
        return f"sent by {yes.by[0]}"

    @app.job(budget=BudgetLimits(usd=5))
    async def research() -> str:
        return await think()

    @app.job
    async def copy() -> str:
        return await copy_rows()

    _ = offer, research, copy


def _transfer_job(app: App) -> None:
    @app.step(risk="medium", approval="required")
    async def send_money(iban: str, usd: int, rows: list[dict[str, str]]) -> str:
        return f"{usd} to {iban}, {rows[0]['token']}"

    @app.job
    async def transfer(iban: str, usd: int, rows: list[dict[str, str]]) -> str:
        return await send_money(iban, usd, rows)

    _ = transfer


def _family_job(app: App) -> None:
    @app.job
    async def family(ctx: JobContext, depth: int) -> int:
        if depth == 0:
            return 1
        below = app.jobs["family"]
        return sum(await ctx.gather(*(ctx.child(below(depth - 1)) for _ in range(2))))

    @app.step(irreversible=True)
    async def erase(disk: str) -> str:
        return disk

    @app.job
    async def wipe(disk: str) -> str:
        return await erase(disk)

    _ = family, wipe


# The state in which each of the sample jobs stays.
SAMPLES: dict[str, tuple[tuple[Any, ...], JobState]] = {
    "migrate": ((3,), JobState.COMPLETED),
    "contact": (("crm.example",), JobState.WAITING),
    "order": (("piano",), JobState.COMPENSATED),
    "fail": (("harp",), JobState.FAILED),
    "checkout": (("12A",), JobState.NEEDS_ATTENTION),
    "offer": ((900,), JobState.WAITING),
    "research": ((), JobState.COMPLETED),
    "large": ((40_000,), JobState.COMPLETED),
}


async def samples(app: App) -> dict[str, str]:
    """Submit one job of each kind, wait until it stays as it is, and return their ids by name."""
    handles = {
        name: await app.submit(
            app.jobs[name](*given), user="kim", key=f"{name} <b>1</b>", labels={"team": "data"}
        )
        for name, (given, _) in SAMPLES.items()
    }
    for name, handle in handles.items():
        await handle.until(SAMPLES[name][1])
    return {name: handle.id for name, handle in handles.items()}


async def main(url: str) -> None:
    async with page_app(url).running():
        await until_told_to_stop()


if __name__ == "__main__":
    perdure.run(main, sys.argv[1])
