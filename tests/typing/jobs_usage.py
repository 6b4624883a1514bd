"""What type checkers know of steps, jobs, their calls and handles; checked by them, never run."""

# mypy: disable-error-code="empty-body"

import sqlite3
from dataclasses import dataclass
from typing import Any, assert_type

from perdure import (
    App,
    BudgetLimits,
    Call,
    Handle,
    JobCall,
    JobContext,
    JobDefinition,
    JobState,
    OutputPiece,
    Partial,
    Plan,
    Ref,
    Retry,
    Step,
    StepCall,
    StepContext,
    SyncStepContext,
    current_job,
)
from perdure.approvals import Approved

app = App("sqlite:///typing.db")


@dataclass
class Mail:
    to: str


# Definitions: a context is no argument, and a definition knows its arguments and its result


@app.step
async def load(page: int) -> int: ...


@app.step
async def size(ctx: StepContext, path: str, *, limit: int = 0) -> float: ...


@app.step(retry=Retry(attempts=5), timeout="2m", tags={"financial"})
async def pay(ctx: StepContext, amount: float) -> str: ...


@app.step
def digest(text: str) -> bytes: ...


@app.step
def digest_slowly(ctx: SyncStepContext, text: str) -> bytes: ...


@app.step(timeout="1m")
async def convert(ctx: StepContext, count: int) -> str | Partial[str]: ...


@app.job
async def nightly(day: str) -> bool: ...


@app.job(queue="slow", on_cancel="compensate", budget=BudgetLimits(usd=5))
async def weekly(ctx: JobContext, *, days: int = 7) -> None: ...


@pay.compensate
async def refund(ctx: StepContext, amount: float, receipt: str | None) -> None: ...


@pay.compensate(retry=Retry(attempts=9))
async def refund_slowly(ctx: StepContext, amount: float, receipt: str | None) -> None: ...


class SendMail:
    name = "send_mail"

    async def execute(self, mail: Mail, ctx: StepContext) -> str: ...


send_mail_too = app.add(SendMail())
send_mail = app.step(SendMail)  # as a decorator it is the same, but mypy ignores those of classes


class Convert:
    name = "convert_file"

    def execute(self, input: list[str], ctx: SyncStepContext) -> int: ...


convert_files = app.step(Convert)


def takes(step: Step[[int], int], job: JobDefinition[[str], bool], call: Call[object]) -> None: ...


def definitions() -> None:
    takes(load, nightly, load(3))  # what is only read may be wider: a Call[int] is a Call[object]
    assert_type(load(3), StepCall[int])
    assert_type(size("x", limit=3), StepCall[float])
    assert_type(pay(1.5), StepCall[str])
    assert_type(digest("x"), StepCall[bytes])
    assert_type(digest_slowly("x"), StepCall[bytes])
    assert_type(convert(1), StepCall[str])
    assert_type(send_mail(Mail("kim")), StepCall[str])
    assert_type(send_mail_too(Mail("kim")), StepCall[str])
    assert_type(convert_files(["a"]), StepCall[int])
    assert_type(app.add(Convert())(["a"]), StepCall[int])
    assert_type(load.unpack_result(b"1"), int)
    assert_type(nightly("monday"), JobCall[bool])
    assert_type(weekly(days=3), JobCall[None])
    assert_type(load(3).options(timeout="2m", retry=Retry(attempts=9), id="page 3"), StepCall[int])


# In the code of a job


async def calls(ctx: JobContext) -> None:
    assert_type(await load(3), int)
    assert_type(await digest("x"), bytes)
    assert_type(await convert(1), str)
    assert_type(await load(3).options(id="x"), int)
    assert_type(await nightly("monday"), bool)
    assert_type(await ctx.child(nightly("monday")), bool)
    assert_type(sum([await load(page) for page in range(3)]), int)
    assert_type(current_job(), JobContext)


async def several(ctx: JobContext) -> None:
    number, text = await ctx.gather(load(1), pay(2.0))
    assert_type(number, int)
    assert_type(text, str)
    a, b, c = await ctx.gather(load(1), ctx.sleep("1s"), ctx.child(nightly("monday")))
    assert_type(a, int)
    assert_type(b, None)
    assert_type(c, bool)
    assert_type(await ctx.gather(*(load(page) for page in range(9))), tuple[int, ...])
    found = await ctx.gather(load(1), load(2), return_exceptions=True)
    assert_type(found, tuple[int | BaseException, ...])


async def waits(ctx: JobContext) -> None:
    assert_type(await ctx.sleep("3d"), None)
    assert_type(await ctx.receive("signed", kind=str, timeout="7d"), str)
    assert_type(await ctx.receive("mail", kind=Mail), Mail)
    assert_type(await ctx.receive("anything"), Any)
    assert_type(await ctx.approve("Send it?", details={"usd": 5}), Approved)
    assert_type(ctx.tenant, str)
    assert_type(ctx.random().random(), float)


# In steps: what an async one awaits, a plain one just calls


async def send(key: str) -> Mail: ...


def send_now(key: str) -> Mail: ...


async def in_a_step(ctx: StepContext) -> None:
    assert_type(await ctx.effect("email", send, target="kim"), Mail)
    assert_type(await ctx.effect("email", send_now, target="kim"), Mail)
    assert_type(await ctx.save_checkpoint({"page": 3}), None)
    assert_type(ctx.load_checkpoint(Mail), Mail | None)
    assert_type(ctx.load_checkpoint(), Any)
    async with ctx.spend(usd=1) as spent:
        await spent.settle(usd=0.5)
    async for item in ctx.items([1, 2]):
        assert_type(item, int)
    assert_type(await ctx.approve("Go on?"), Approved)


def in_a_plain_step(ctx: SyncStepContext) -> None:
    assert_type(ctx.effect("email", send_now, target="kim"), Mail)
    ctx.save_checkpoint({"page": 3})
    with ctx.spend(usd=1) as spent:
        spent.settle(usd=0.5)
    for item in ctx.items(["a"]):
        assert_type(item, str)
    assert_type(ctx.approve("Go on?"), Approved)


# From outside


async def outside() -> None:
    handle = await app.submit(nightly("monday"), key="monday", user="kim", delay="1h")
    assert_type(handle, Handle[bool])
    assert_type(await handle.result(timeout="1h"), bool)
    assert_type(await handle.wait(), JobState)
    assert_type(await app.run(nightly("monday")), bool)
    assert_type(app.run_sync(nightly("monday"), key="monday"), bool)
    assert_type(await app.submit_many([nightly("monday"), nightly("friday")]), list[Handle[bool]])


async def followers(handle: Handle[bool]) -> None:
    async for piece in handle.stream("tokens", after=2):
        assert_type(piece, OutputPiece)


def plain_code() -> None:
    handle = app.sync.submit(nightly("monday"), key="monday")
    assert_type(handle.result(timeout="1h"), bool)


# A step that is a transaction takes its connection first, which callers do not pass


@app.transaction("sqlite:///shop.db")
def book(db: sqlite3.Connection, order: str) -> int: ...


@app.transaction("sqlite:///shop.db", timeout="1m")
def book_slowly(ctx: SyncStepContext, db: sqlite3.Connection, order: str) -> int: ...


def transactions() -> None:
    assert_type(book("tea"), StepCall[int])
    assert_type(book_slowly("tea"), StepCall[int])


async def main() -> int: ...


def scripts() -> None:
    assert_type(app.run_sync(main), int)
    plan = Plan(load(3), size("x", limit=Ref("load")), name="a plan")
    assert_type(app.run_sync(plan), Any)
