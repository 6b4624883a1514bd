"""Programs that type checkers must refuse, each on its line and by its rule; never run.

`tests.support.type_checkers` says how a line is marked. What is right is in the files beside.
"""

# ruff: noqa: E501  what is expected of a line stands on it
# fmt: off
# mypy: enable-error-code="unused-awaitable"

import sqlite3
from dataclasses import dataclass

from perdure import App, Handle, JobContext, JobRegistry, Plan, StepContext, SyncStepContext
from perdure.otp import Agent, Supervisor, Table, Task, async_stream, child, poll_many
from perdure.store.store import Store

app = App("sqlite:///typing.db")
registry = JobRegistry()


@dataclass
class Mail:
    to: str


@app.step
async def load(page: int) -> int:
    return page


@app.step
async def pay(ctx: StepContext, amount: float, *, currency: str = "USD") -> str:
    return f"{amount} {currency}"


@app.step
def digest(ctx: SyncStepContext, text: str) -> bytes:
    return text.encode()


@app.job
async def nightly(day: str) -> bool:
    return bool(day)


def wants_text(text: str) -> None: ...


# Calls of steps and jobs: every argument is checked


async def calls(ctx: JobContext) -> None:
    await load("x")  # E: pyright=reportArgumentType mypy=arg-type
    await load()  # E: pyright=reportCallIssue mypy=call-arg
    await load(1, 2)  # E: pyright=reportCallIssue mypy=call-arg
    await load(pages=1)  # E: pyright=reportCallIssue,reportCallIssue mypy=call-arg
    await pay(ctx, 1.0)  # E: pyright=reportCallIssue mypy=arg-type,arg-type,call-arg
    await pay(1.0, "EUR")  # E: pyright=reportCallIssue mypy=call-arg
    await pay(1.0, currency=5)  # E: pyright=reportArgumentType mypy=arg-type
    await nightly(7)  # E: pyright=reportArgumentType mypy=arg-type
    await ctx.child(nightly(7))  # E: pyright=reportArgumentType mypy=arg-type
    await ctx.child("nightly")  # E: pyright=reportArgumentType mypy=arg-type
    await load(3).options(timeuot="2s")  # E: pyright=reportCallIssue mypy=call-arg
    await load(3).options(retry=3)  # E: pyright=reportArgumentType mypy=arg-type
    load(3)  # E: mypy=unused-awaitable
    load(3).options(id="x")  # E: mypy=unused-awaitable
    nightly("monday")  # E: mypy=unused-awaitable
    ctx.sleep("1s")  # E: mypy=unused-awaitable
    await ctx.child(load(3))  # E: pyright=reportArgumentType mypy=arg-type
    await 3  # E: pyright=reportGeneralTypeIssues mypy=misc
    registry.step(attempts=3)  # E: pyright=reportCallIssue mypy=call-overload
    registry.job(on_cancel="explode")  # E: pyright=reportArgumentType mypy=call-overload


# Results: what a call returns is known


async def results(ctx: JobContext) -> None:
    wants_text(await load(1))  # E: pyright=reportArgumentType mypy=arg-type
    number, word = await ctx.gather(load(1), pay(1.0))
    number.upper()  # E: pyright=reportAttributeAccessIssue,reportUnknownMemberType mypy=attr-defined
    word.bit_length()  # E: pyright=reportAttributeAccessIssue,reportUnknownMemberType mypy=attr-defined
    _a, _b, _c = await ctx.gather(load(1), pay(1.0))  # E: pyright=reportAssignmentType,reportUnknownVariableType mypy=misc
    (await ctx.receive("mail", kind=Mail)).subject.upper()  # E: pyright=reportAttributeAccessIssue,reportUnknownMemberType,reportUnknownMemberType mypy=attr-defined
    await ctx.gather(1, 2)  # E: pyright=reportArgumentType,reportArgumentType,reportCallIssue mypy=call-overload
    await ctx.sleep([])  # E: pyright=reportArgumentType mypy=arg-type
    load(1) + 1  # E: pyright=reportOperatorIssue,reportUnusedExpression mypy=operator


# Options of definitions


@app.step(timeuot="2s")  # E: pyright=reportCallIssue,reportUntypedFunctionDecorator mypy=call-overload,untyped-decorator
async def misspelled(page: int) -> int:
    return page


@app.job(on_cancel="explode")  # E: pyright=reportArgumentType mypy=call-overload,untyped-decorator
async def explosive() -> None: ...


@app.step(isolation="moon")  # E: pyright=reportArgumentType mypy=call-overload,untyped-decorator
async def far(page: int) -> int:
    return page


# Contexts: an async step awaits, a plain one does not


async def send(key: str) -> Mail:
    return Mail(key)


async def in_a_step(ctx: StepContext) -> None:
    ctx.save_checkpoint(1)  # E: pyright=reportUnusedCoroutine mypy=unused-coroutine
    ctx.effect("email", send, target="kim")  # E: pyright=reportUnusedCoroutine mypy=unused-coroutine
    await ctx.effect("email", send)  # E: pyright=reportCallIssue mypy=call-overload
    wants_text(await ctx.effect("email", send, target="kim"))  # E: pyright=reportArgumentType mypy=arg-type
    for _ in ctx.items([1]):  # E: pyright=reportGeneralTypeIssues,reportUnknownVariableType mypy=attr-defined
        pass
    with ctx.spend(usd=1):  # E: pyright=reportGeneralTypeIssues,reportGeneralTypeIssues mypy=attr-defined,attr-defined
        pass
    await ctx.sleep("1s")  # E: pyright=reportAttributeAccessIssue,reportUnknownMemberType mypy=attr-defined


async def in_a_plain_step(ctx: SyncStepContext) -> None:
    await ctx.save_checkpoint(1)  # E: pyright=reportGeneralTypeIssues mypy=func-returns-value,misc
    async for _ in ctx.items([1]):  # E: pyright=reportGeneralTypeIssues,reportUnknownVariableType mypy=attr-defined
        pass
    async with ctx.spend(usd=1):  # E: pyright=reportGeneralTypeIssues,reportGeneralTypeIssues mypy=attr-defined,attr-defined
        pass


# From outside


async def outside() -> None:
    await app.submit(nightly, "monday")  # E: pyright=reportCallIssue mypy=call-overload
    await app.submit(nightly("monday"), kye="monday")  # E: pyright=reportCallIssue mypy=call-overload,call-overload
    await app.submit(nightly("monday"), priority="high")  # E: pyright=reportArgumentType,reportCallIssue mypy=call-overload
    await app.submit(nightly("monday"), labels=["team"])  # E: pyright=reportArgumentType,reportCallIssue mypy=call-overload
    _handle: Handle[str] = await app.submit(nightly("monday"))  # E: pyright=reportAssignmentType mypy=arg-type
    (await (await app.submit(nightly("monday"))).result()).upper()  # E: pyright=reportAttributeAccessIssue,reportUnknownMemberType mypy=attr-defined
    await app.submit(load(3))  # E: pyright=reportArgumentType,reportCallIssue mypy=call-overload
    await app.submit(load(3).options(timeout="2s"))  # E: pyright=reportArgumentType,reportCallIssue mypy=call-overload
    await app.run(load(3))  # E: pyright=reportArgumentType,reportCallIssue mypy=call-overload
    await app.submit_many([load(3)])  # E: pyright=reportArgumentType mypy=arg-type
    app.run_sync(load(3))  # E: pyright=reportArgumentType,reportCallIssue mypy=call-overload
    app.run_sync(nightly)  # E: pyright=reportArgumentType,reportCallIssue mypy=arg-type


@app.transaction("sqlite:///shop.db")
def book(db: sqlite3.Connection, order: str) -> int:
    return db.execute("INSERT INTO book VALUES (?)", (order,)).rowcount


async def transactions(db: sqlite3.Connection) -> None:
    await book(db, "tea")  # E: pyright=reportCallIssue mypy=arg-type,call-arg
    await book(5)  # E: pyright=reportArgumentType mypy=arg-type
    wants_text(app.sync.submit(nightly("monday")).result())  # E: pyright=reportArgumentType mypy=arg-type


def plans() -> None:
    Plan(load)  # E: pyright=reportArgumentType mypy=arg-type
    Plan("load", name="x")  # E: pyright=reportArgumentType mypy=arg-type
    Plan(load("x"), name="x")  # E: pyright=reportArgumentType mypy=arg-type
    Plan(nightly("monday"), name="x")  # E: pyright=reportArgumentType mypy=arg-type
    Plan(load(3), nmae="x")  # E: pyright=reportCallIssue mypy=call-arg


# Processes


async def size(path: str, *, limit: int = 0) -> int:
    return len(path) + limit


async def later(state: int, by: int) -> float:
    return state / by


async def worker(number: int) -> None: ...


# Tasks and streams


async def tasks(found: list[Task[int]]) -> None:
    Task.create(size, 1)  # E: pyright=reportArgumentType mypy=call-overload
    Task.create(size)  # E: pyright=reportCallIssue mypy=call-overload
    Task.create(len, "x")  # E: pyright=reportArgumentType mypy=call-overload
    await poll_many(found, on_timeout="explode")  # E: pyright=reportArgumentType mypy=arg-type
    async_stream([1], size)  # E: pyright=reportArgumentType mypy=arg-type


# Agents


async def agents(agent: Agent[int]) -> None:
    await agent.get(later, "two")  # E: pyright=reportArgumentType,reportCallIssue mypy=arg-type
    await agent.update(text)  # E: pyright=reportArgumentType,reportCallIssue mypy=arg-type,call-arg


def text(state: int) -> str:
    return str(state)


# Supervisors and tables


async def supervisors() -> None:
    child(worker, restart="often")  # E: pyright=reportArgumentType mypy=arg-type
    child(worker, shutdown=[])  # E: pyright=reportArgumentType mypy=arg-type
    await Supervisor.start_link([], strategy="all")  # E: pyright=reportArgumentType mypy=arg-type
    Table(kind="heap")  # E: pyright=reportArgumentType mypy=arg-type


# The verbs of the store: a session is not among the arguments, and keywords have their names


async def verbs(store: Store) -> None:
    await store.jobs()  # E: pyright=reportCallIssue mypy=call-arg
    await store.job(1)  # E: pyright=reportArgumentType mypy=arg-type
    await store.job("id", owner="me")  # E: pyright=reportCallIssue mypy=call-arg
    await store.pause_schedule("acme", "x", None, True)  # E: pyright=reportCallIssue mypy=call-arg
