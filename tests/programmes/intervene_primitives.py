"""The newer jobs of `intervene`: one or more for each primitive, and what each of them promises.

Most of them return what they have seen, so that it can be compared with what the store, the
receiver and the users' database know of the same job.
"""

import asyncio
import json
import random
import sqlite3
from dataclasses import dataclass
from typing import Any, Final

import perdure
from perdure import transaction
from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.model import Job
from tests.programmes.intervene_jobs import RETRY, Steps, dice

POLLS: Final = ("topics", "sleep", "step", "question", "continue")  # what a message races against
RACES: Final = ("steps", "sleep", "thought")
PACED: Final = "paced"  # a queue with a rate
KEY_TTL: Final = 1.0  # seconds for which `forgets` believes that the receiver knows a key
BUG: Final = "a bug of this deploy"
MENDABLE: Final = "a person could mend this"
KEEPING: Final = ("parks", "offers_undo")  # jobs that only a person may undo

_OPTIONS: Final[dict[str, Any]] = {"on_cancel": "compensate", "on_outage": "fail"}


@dataclass(frozen=True)
class Code:
    """What differs between the deploys of the code."""

    version: str = "1"
    accepts: tuple[str, ...] = ()
    asks_patched: bool = False
    raises: bool = False  # in every other job, before it has asked for anything
    lease: str = "4s"


# One deploy after the other; when the last one runs, the code is as it should be.
DEPLOYS: Final = (
    Code(),
    Code("2", ("1",), asks_patched=True, lease="20s"),
    Code("2", ("1",), asks_patched=True, raises=True),
    Code("2", ("1",), asks_patched=True),
    Code("3", ("1", "2"), asks_patched=True, lease="20s"),
)


def add_newer_jobs(app: App, steps: Steps, shop: str, code: Code) -> None:
    """Add them to an app."""
    _polls(app, steps)
    _races(app, steps)
    _branches(app, steps)
    _continuations(app, steps)
    _items(app, steps)
    _output(app)
    _transactions(app, steps, shop)
    _paced(app, steps)
    _deployed(app, steps, code)
    _forgetful(app, steps)
    _failures(app, steps)


# Messages


def mail(job: Job) -> list[tuple[str, str]]:
    """Return the messages that a job must get until it ends, in order: topic, and key and value."""
    given = json.loads(job.input)
    if job.name == "waits":
        return [("go", "go")]
    if job.name == "continues":
        return [("a", f"a{number}") for number in range(given["count"])]
    if job.name == "polls":
        topics = "ab" if given["how"] in ("topics", "continue") else "a"
        named = (topics[number % len(topics)] for number in range(given["count"]))
        return [(topic, f"{topic}{number}") for number, topic in enumerate(named)]
    return []


# The first of several


def _polls(app: App, steps: Steps) -> None:  # noqa: C901 - small functions
    @app.step(retry=RETRY)
    async def dawdle(milliseconds: int) -> None:
        await perdure.process.sleep(milliseconds / 1000)

    def rival(ctx: JobContext, how: str, milliseconds: int) -> Any:
        """Return what a message on topic a races against."""
        match how:
            case "topics":
                return ctx.receive("b")
            case "sleep":
                return ctx.sleep(f"{milliseconds}ms")
            case "step":
                return dawdle(milliseconds)
            case _:
                return ctx.approve("Go on without a message?")

    async def next_of(ctx: JobContext, how: str, milliseconds: int) -> str | None:
        first = await ctx.first(ctx.receive("a", kind=str), rival(ctx, how, milliseconds))
        return first.value if first.index == 0 or how == "topics" else None

    async def poll_on(ctx: JobContext, count: int) -> list[str]:
        """Let the losers go on, and ask them again."""
        seen, open_ones = list[str](), [ctx.receive("a"), ctx.receive("b")]
        while len(seen) < count:
            first = await ctx.first(*open_ones, losers="continue")
            seen.append(first.value)
            await steps.note(first.value)
            open_ones[first.index] = ctx.receive("ab"[first.index])
        return seen

    @app.job(**_OPTIONS)
    async def polls(ctx: JobContext, count: int, manner: str, how: str) -> list[str]:
        """Receive so many messages, each in a race against something else."""
        await steps.charge(1, manner)
        if how == "continue":
            return await poll_on(ctx, count)
        seen, milliseconds = list[str](), 20
        while len(seen) < count:
            said = await next_of(ctx, how, milliseconds)
            milliseconds = min(2 * milliseconds, 1000)
            if said is not None:
                seen.append(said)
                await steps.note(said)
        return seen


def _races(app: App, steps: Steps) -> None:  # noqa: C901 - small functions
    def rivals(ctx: JobContext, pair: str, manner: str) -> list[Any]:
        match pair:
            case "steps":
                calls = (steps.charge(1, manner), steps.charge_and_compensate(1, manner, 0))
                return [ctx.start(call) for call in calls]
            case "sleep":
                return [ctx.start(steps.charge(1, manner)), ctx.sleep("15ms")]
            case _:
                return [ctx.start(steps.think(2)), ctx.sleep("5ms")]

    @app.job(**_OPTIONS, budget=perdure.BudgetLimits(usd=10))
    async def races(ctx: JobContext, pair: str, manner: str, losers: str, fails: bool) -> int:
        """Let steps race; the loser is cancelled, or awaited later."""
        given: Any = losers
        both = rivals(ctx, pair, manner)
        first = await ctx.first(*both, losers=given)
        await steps.note(str(first.index))
        if losers == "continue":
            await ctx.gather(*both)
        if fails:
            await steps.stumble(5)
        return first.index

    @app.job(**_OPTIONS)
    async def earns(ctx: JobContext, manner: str) -> str:
        return (await steps.charge(1, manner))["id"]

    @app.job(**_OPTIONS)
    async def hurries(ctx: JobContext, manner: str, milliseconds: int, losers: str) -> str:
        """Let a child race against the time; give its result, if it was fast enough."""
        given: Any = losers
        child = ctx.child(earns(manner))
        first = await ctx.first(child, ctx.sleep(f"{milliseconds}ms"), losers=given)
        await steps.charge_and_compensate(1, manner, 0)
        if first.index and losers == "continue":
            return await child
        return "" if first.index else str(first.value)


# Branches, and loops without end


def _branches(app: App, steps: Steps) -> None:
    @app.job(**_OPTIONS)
    async def branches(ctx: JobContext, count: int, manner: str, fails: bool) -> None:
        async def one(number: int) -> None:
            with ctx.scope(f"branch {number}"):
                await steps.charge(1, manner)
                await ctx.sleep(f"{30 * number}ms")
                await steps.charge_and_compensate(1, manner, number)
                if fails and number == 0:
                    await steps.stumble(5)

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))


def _continuations(app: App, steps: Steps) -> None:
    @app.job(**_OPTIONS)
    async def continues(ctx: JobContext, count: int, manner: str, seen: list[str]) -> list[str]:
        """Receive so many messages, each with a new journal."""
        ctx.emit(f"round {len(seen)}")
        await steps.charge(1, manner)
        said = await ctx.receive("a", kind=str)
        await steps.note(said)
        if len(seen) + 1 < count:
            await ctx.continue_as(continues(count, manner, [*seen, said]))
        return [*seen, said]


# Items and output


def _items(app: App, steps: Steps) -> None:
    @app.step(retry=RETRY)
    async def walk(ctx: StepContext, count: int, manner: str) -> list[int]:
        async for item in ctx.items(range(count), every=2):
            if item % 3 == 0:
                ref = f"{ctx.job_id}/{ctx.step_id}/{item}"
                undo = (steps.refund, {"ref": ref})
                await steps.till.charge(ctx, ref, 1, manner, undo=undo)
            ctx.collect(item)
        return ctx.collected(int)

    @app.job(**_OPTIONS)
    async def collects(ctx: JobContext, count: int, manner: str, fails: bool) -> list[int]:
        found = await walk(count, manner)
        if fails:
            await steps.stumble(5)
        return found


def _output(app: App) -> None:
    @app.step(retry=RETRY)
    async def tell(ctx: StepContext, count: int) -> int:
        for number in range(ctx.load_checkpoint() or 0, count):
            ctx.emit(number)
            await perdure.process.sleep(0.01 * dice(ctx, f"pause {number}"))
            if dice(ctx, f"tell {number}") < 0.1:
                raise RuntimeError("lost for words")
            if number % 3 == 2:
                await ctx.save_checkpoint(number + 1)
        return count

    @app.job(**_OPTIONS)
    async def emits(ctx: JobContext, count: int) -> int:
        ctx.emit("begin")
        told = await tell(count)
        ctx.emit("middle")
        await ctx.sleep("60ms")
        told += await tell(count)
        ctx.emit("end")
        return told


# Transactions in the users' database


def note_booking(db: Any, job: str, number: int, change: int) -> None:
    """Write a line into the users' table."""
    mark = "?" if isinstance(db, sqlite3.Connection) else "%s"
    db.execute(f"INSERT INTO booking VALUES ({mark}, {mark}, {mark})", (job, number, change))


def _transactions(app: App, steps: Steps, shop: str) -> None:
    @app.transaction(shop, retry=RETRY)
    def book(ctx: SyncStepContext, db: Any, number: int) -> int:
        note_booking(db, ctx.job_id, number, 1)
        if dice(ctx, "book") < 0.1:
            raise RuntimeError("not this time")
        return number

    @book.compensate(retry=RETRY)
    @transaction(shop)
    def unbook(ctx: SyncStepContext, db: Any, number: int, booked: int | None) -> None:
        if booked is not None:
            note_booking(db, ctx.job_id, number, -1)

    @app.job(**_OPTIONS)
    async def books(ctx: JobContext, count: int, fails: bool) -> list[int]:
        booked = [await book(number) for number in range(count)]
        await ctx.sleep("60ms")
        if fails:
            await steps.stumble(5)
        return booked


# Failures that a person could mend


def _failures(app: App, steps: Steps) -> None:
    @app.step(retry=perdure.Retry(attempts=1))
    async def heal(ctx: StepContext, number: int) -> int:
        """Fail now and then, also when it is tried again: as code that is mended step by step."""
        if random.random() < 0.3:
            raise perdure.errors.Permanent(MENDABLE)
        return number

    async def pay_and_heal(count: int, manner: str) -> list[int]:
        healed = list[int]()
        for number in range(count):
            await steps.charge(1, manner)
            await steps.charge_and_compensate(1, manner, number)
            healed.append(await heal(number))
        return healed

    @app.job(**_OPTIONS, on_failure="park")
    async def parks(ctx: JobContext, count: int, manner: str) -> list[int]:
        return await pay_and_heal(count, manner)

    @app.job(**_OPTIONS, on_failure="ask")
    async def offers_undo(ctx: JobContext, count: int, manner: str) -> list[int]:
        return await pay_and_heal(count, manner)

    @app.job(**_OPTIONS)
    async def relies(ctx: JobContext, count: int, manner: str, asks: bool) -> list[int]:
        """Wait for a child that waits for people."""
        await steps.charge(1, manner)
        healed = await (offers_undo if asks else parks)(count, manner)
        await steps.note("healed")
        return healed


# Rates, deploys, keys that receivers forget


def _paced(app: App, steps: Steps) -> None:
    @app.job(**_OPTIONS, queue=PACED)
    async def paced(ctx: JobContext, manner: str) -> None:
        await steps.charge(1, manner)
        await ctx.sleep("80ms")
        await steps.note("paced")


def _deployed(app: App, steps: Steps, code: Code) -> None:
    @app.job(**_OPTIONS, version=code.version, accepts=code.accepts)
    async def deployed(ctx: JobContext, manner: str) -> list[bool]:
        """Give what `ctx.patched` has said, one for each place where the code has changed."""
        if code.raises and int(ctx.job_id, 16) % 2:
            raise RuntimeError(BUG)

        async def changed(place: str) -> bool:
            is_new = code.asks_patched and ctx.patched(place)
            if is_new:
                await steps.note(place)
            return is_new

        async def branch(number: int) -> bool:
            with ctx.scope(f"branch {number}"):
                await steps.note("before")
                is_new = await changed(f"branch {number}")
                await steps.charge_and_compensate(1, manner, number)
                return is_new

        await steps.charge(1, manner)
        said = [await changed("straight")]
        await ctx.sleep("60ms")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(number)) for number in range(2)]
        return [*said, *(task.result() for task in tasks)]


def _forgetful(app: App, steps: Steps) -> None:
    @app.step(retry=RETRY)
    async def charge_soon(ctx: StepContext, number: int) -> Any:
        ref = f"{ctx.job_id}/{ctx.step_id}"
        undo = (steps.refund, {"ref": ref})
        return await steps.till.charge(ctx, ref, 1, "replay", undo=undo, key_ttl=KEY_TTL)

    @app.job(**_OPTIONS)
    async def forgets(ctx: JobContext, count: int) -> None:
        for number in range(count):
            await charge_soon(number)
