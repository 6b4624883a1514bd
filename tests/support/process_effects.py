"""Steps in other OS processes that do something to the world: a file that outlives them."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from perdure import Retry
from perdure.base.errors import Permanent, Refused
from perdure.engine.registry import JobRegistry
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import DidNotHappen, Happened
from perdure.store.open import open_store

steps = JobRegistry()

AGAIN = Retry(attempts=3, initial_delay="1ms", jitter=0)


def die_once(folder: str) -> None:
    """Be killed, as by the OOM killer, the first time."""
    path = Path(folder) / "died"
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def calls(folder: Path) -> list[str]:
    """Give the keys that the receiver has got."""
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def receive(folder: str, dies_at: str, key: str) -> str:
    """Be a receiver, on the way to which one may die."""
    if dies_at == "before the call":
        die_once(folder)
    with (Path(folder) / "calls").open("a") as file:
        file.write(f"{key}\n")
    if dies_at == "after the call":
        die_once(folder)
    return f"paid {len(calls(Path(folder)))}"


def look(folder: str, key: str) -> Happened | DidNotHappen:
    return Happened("asked") if key in calls(Path(folder)) else DidNotHappen()


@steps.step(isolation="process", retry=AGAIN)
async def pay(ctx: StepContext, folder: str, dies_at: str, policy: str) -> str:
    if dies_at == "before the intent":
        die_once(folder)
    asks: Any = {"query": partial(look, folder), "settle_after": 0}
    options: Any = asks if policy == "query" else {"in_doubt": policy}
    got = await ctx.effect("payment", partial(receive, folder, dies_at), target="card", **options)
    if dies_at == "after the result":
        die_once(folder)
    return got


@steps.step(isolation="process", retry=AGAIN)
def pays_plainly(ctx: Any, folder: str, dies_at: str, policy: str) -> str:
    if dies_at == "before the intent":
        die_once(folder)
    asks: Any = {"query": partial(look, folder), "settle_after": 0}
    options: Any = asks if policy == "query" else {"in_doubt": policy}
    got = ctx.effect("payment", partial(receive, folder, dies_at), target="card", **options)
    if dies_at == "after the result":
        die_once(folder)
    return got


async def stall_once(folder: str, limit: asyncio.Timeout, key: str) -> str:
    """Be a receiver whose first caller loses its patience."""
    got = receive(folder, "", key)
    if got == "paid 1":
        limit.reschedule(0)
        await asyncio.Event().wait()
    return got


@steps.step(isolation="process", retry=Retry(attempts=1))
async def pays_many(ctx: StepContext, folder: str) -> list[str]:
    paid: list[str] = []
    async for person in ctx.items(["ann", "kim"], on_error="skip"):
        async with asyncio.timeout(None) as limit:
            call = partial(stall_once, folder, limit)
            paid.append(await ctx.effect("payment", call, target=person))
    return paid


@steps.step(isolation="process", retry=AGAIN)
async def looks_first(ctx: StepContext, url: str) -> list[str]:
    seen: list[str] = []

    async def act(key: str) -> None:
        store = open_store(url)
        await store.open()
        seen.extend(f"{line.state} {line.key == key}" for line in await store.effects(ctx.job_id))
        await store.close()

    await ctx.effect("look", act, target="ledger", details={"password": "x"})
    return seen


@steps.step(isolation="process", retry=AGAIN)
async def refused_at_first(ctx: StepContext) -> str:
    def act(key: str) -> str:
        if ctx.attempt == 1:
            raise Refused("not today")
        return "done"

    return await ctx.effect("payment", act, target="card")


@steps.step(isolation="process", retry=AGAIN)
async def swallows(ctx: StepContext) -> str:
    def act(key: str) -> str:
        raise TimeoutError("no answer")

    try:
        return await ctx.effect("payment", act, target="card")
    except Exception:  # noqa: BLE001 - nobody may swallow the doubt
        return "swallowed"


@steps.step(isolation="process", retry=AGAIN)
async def alike(ctx: StepContext, folder: str | None = None) -> None:
    for number in range(ctx.load_checkpoint() or 0, 2):
        await ctx.effect("slack", str, target="#ops")
        await ctx.save_checkpoint(number + 1)
        if folder is not None:
            die_once(folder)


@steps.step(isolation="process", retry=AGAIN)
async def goes_through(ctx: StepContext, folder: str) -> None:
    async for name in ctx.items(["a", "b", "c"], every=1):
        await ctx.effect("mail", partial(receive, folder, ""), target="kim")
        if name == "b":
            die_once(folder)


@steps.step(isolation="process")
async def by_hand(ctx: StepContext) -> list[bool]:
    before = await ctx.was_effect_recorded("email", "kim")
    await ctx.record_effect("email", "kim", message_id="m1")
    return [before, await ctx.was_effect_recorded("email", "kim")]


@steps.step(isolation="process")
async def asks(ctx: StepContext, folder: str) -> bool:
    receive(folder, "", "asks")
    return bool((await ctx.approve("Send it?", details={"to": "kim"})).by)


@steps.step(isolation="process", retry=AGAIN)
async def spends(ctx: StepContext) -> str:
    async with ctx.spend(usd=1.0) as spent:
        await spent.settle(usd=0.25)
        if ctx.attempt == 1:
            raise RuntimeError("again")
    return "spent"


@steps.step(isolation="process", retry=AGAIN)
def spends_plainly(ctx: Any) -> str:
    with ctx.spend(usd=1.0) as spent:
        spent.settle(usd=0.25)
        if ctx.attempt == 1:
            raise RuntimeError("again")
    return "spent"


@steps.step(isolation="process")
async def asks_of_each(ctx: StepContext, folder: str) -> None:
    async for name in ctx.items(["a", "b", "b"], every=1):
        await ctx.approve("Send it?")
        receive(folder, "", name)


@steps.step
async def refund(ctx: StepContext, result: str | None, why: str) -> str:
    assert ctx.undone is not None
    return f"{result} {why}"


@steps.step(isolation="process")
async def pays_and_fails(ctx: StepContext) -> None:
    await ctx.effect("payment", lambda _: "ch_1", target="card", undo=(refund, {"why": "sorry"}))
    raise Permanent("and now this")


@steps.step(isolation="process", retry=AGAIN)
async def pays_for_one(ctx: StepContext, folder: str) -> str:
    call = partial(receive, folder, "")
    return str(await ctx.effect("payment", call, target="card", key="order 7"))


@steps.step(isolation="process", retry=AGAIN)
async def pays_for_one_at_once(ctx: StepContext, folder: str) -> str:
    call = partial(receive, folder, "")
    both = [ctx.effect("payment", call, target="card", key="order 7") for _ in range(2)]
    one, other = await asyncio.gather(*both)
    assert one == other
    return str(one)
