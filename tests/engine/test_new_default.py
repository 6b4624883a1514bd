"""Code whose parameters get defaults while its jobs are under way: what callers gave counts."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

import perdure
from perdure import Tools
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.jobs.failure import Failure
from perdure.jobs.plan import Plan, PlanCall
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.support.engine import QUICK, until

Ran = list[tuple[Any, ...]]
Pay = Callable[[int], Any]
Define = Callable[[App, Ran], Pay]


class Order(msgspec.Struct):
    id: int


class LargerOrder(msgspec.Struct):
    id: int
    note: str = "none"


def step_as_first(app: App, ran: Ran) -> Pay:
    @app.step(name="pay")
    async def pay(usd: int, currency: str = "USD") -> None:
        ran.append((usd, currency))

    return pay


def step_with_new_parameter(app: App, ran: Ran) -> Pay:
    @app.step(name="pay")
    async def pay(usd: int, urgent: bool = False, currency: str = "USD", *, fee: int = 1) -> None:
        ran.append((usd, currency, urgent, fee))

    return pay


def step_with_new_default(app: App, ran: Ran) -> Pay:
    @app.step(name="pay")
    async def pay(usd: int, currency: str = "EUR") -> None:
        ran.append((usd, currency))

    return pay


def step_without_parameter(app: App, ran: Ran) -> Pay:
    @app.step(name="pay")
    async def pay(usd: int) -> None:
        ran.append((usd,))

    return pay


def job_as_first(app: App, ran: Ran) -> Pay:
    @app.job(name="pay")
    async def pay(ctx: JobContext, usd: int) -> None:
        ran.append((usd,))

    return pay


def job_with_new_parameter(app: App, ran: Ran) -> Pay:
    @app.job(name="pay")
    async def pay(ctx: JobContext, usd: int, urgent: bool = False) -> None:
        ran.append((usd, urgent))

    return pay


def order_as_first(app: App, ran: Ran) -> Pay:
    @app.step(name="pay")
    async def pay(order: Order) -> None:
        ran.append((order.id,))

    return lambda usd: pay(Order(usd))


def order_with_new_field(app: App, ran: Ran) -> Pay:
    @app.step(name="pay")
    async def pay(order: LargerOrder) -> None:
        ran.append((order.id, order.note))

    return lambda usd: pay(LargerOrder(usd))


def large_as_first(app: App, ran: Ran) -> Pay:
    @app.step(name="pay")
    async def pay(text: str, usd: int, currency: str = "USD") -> None:
        ran.append((usd,))

    return lambda usd: pay("x" * 100_000, usd)


def large_with_new_parameter(app: App, ran: Ran) -> Pay:
    @app.step(name="pay")
    async def pay(text: str, usd: int, urgent: bool = False, currency: str = "USD") -> None:
        ran.append((usd, urgent))

    return lambda usd: pay("x" * 100_000, usd)


def as_tool(step: Pay) -> Pay:
    tools = Tools({"pay": cast("Any", step)})

    async def pay(usd: int) -> None:
        assert not (await tools.call("pay", {"usd": usd}, id="call_1")).failed

    return pay


def tool_as_first(app: App, ran: Ran) -> Pay:
    return as_tool(step_as_first(app, ran))


def tool_with_new_default(app: App, ran: Ran) -> Pay:
    return as_tool(step_with_new_default(app, ran))


def tool_with_new_parameter(app: App, ran: Ran) -> Pay:
    return as_tool(step_with_new_parameter(app, ran))


def deployed(url: str, define: Define, ran: Ran, usd: int = 5) -> tuple[App, Any]:
    """Return an app with this code, and a job that pays, and waits for `go`."""
    app = App(url, worker=QUICK)
    pay = define(app, ran)

    @app.job(name="order")
    async def order(ctx: JobContext) -> str:
        await pay(usd)
        await ctx.receive("go")
        return "done"

    return app, order


async def began(url: str, define: Define, ran: Ran) -> str:
    """Run a job with the first code until it waits; return its id."""
    app, order = deployed(url, define, ran)
    async with app.running():
        handle = await app.submit(order(), user="kim")
        await until(app, handle.id, JobState.WAITING)
    await app.close()
    return handle.id


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (step_as_first, step_with_new_parameter),
        (step_as_first, step_with_new_default),
        (job_as_first, job_with_new_parameter),
        (order_as_first, order_with_new_field),
        (large_as_first, large_with_new_parameter),
        (tool_as_first, tool_with_new_parameter),
        (tool_as_first, tool_with_new_default),
    ],
    ids=lambda each: each.__name__,
)
def test_a_default_that_is_new_does_not_park_a_job_that_is_under_way(
    url: str, first: Define, then: Define
) -> None:
    async def main() -> None:
        ran: Ran = []
        id = await began(url, first, ran)
        before = list(ran)
        app, _ = deployed(url, then, ran)
        async with app.running():
            handle: Handle[Any] = await app.handle(id)
            await handle.send("go")
            await until(app, id, JobState.COMPLETED, JobState.NEEDS_ATTENTION)
            error = (await handle.job()).error
            assert error is None, Failure.unpack(error).message
        assert ran == before
        await app.close()

    perdure.run(main)


@pytest.mark.parametrize(
    ("then", "usd"),
    [(step_with_new_default, 6), (step_with_new_parameter, 6), (step_without_parameter, 5)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_what_the_caller_gave_is_compared_all_the_same(url: str, then: Define, usd: int) -> None:
    async def main() -> None:
        ran: Ran = []
        id = await began(url, step_as_first, ran)
        app, _ = deployed(url, then, ran, usd)
        async with app.running():
            handle: Handle[Any] = await app.handle(id)
            await handle.send("go")
            await until(app, id, JobState.NEEDS_ATTENTION)
            failure = Failure.unpack((await handle.job()).error or b"")
        assert "pay#1 was called with other arguments before" in failure.message
        await app.close()

    perdure.run(main)


def test_people_have_approved_the_default_that_was_recorded(url: str) -> None:
    def gated(currency: str) -> Define:
        def define(app: App, ran: Ran) -> Pay:
            async def pay(usd: int, currency: str = currency) -> None:
                ran.append((usd, currency))

            return app.step(name="pay", approval="required")(pay)

        return define

    async def main() -> None:
        ran: Ran = []
        id = await began(url, gated("USD"), ran)
        app, _ = deployed(url, gated("EUR"), ran)
        async with app.running():
            approval = await asked(app)
            await app.decide(approval, "approve", by=ANN)
            handle: Handle[Any] = await app.handle(id)
            await handle.send("go")
            assert await handle.result("20s") == "done"
        assert approval.shown == b'{"usd":5,"currency":"USD"}'
        assert ran == [(5, "USD")]
        await app.close()

    perdure.run(main)


def key_of(usd: int, urgent: bool = False) -> str:
    return f"pay {usd}"


def shared_as_first(app: App, ran: Ran) -> Pay:
    @app.step(name="pay", idempotency_key=key_of)
    async def pay(usd: int) -> None:
        ran.append((usd,))

    return pay


def shared_with_new_parameter(app: App, ran: Ran) -> Pay:
    @app.step(name="pay", idempotency_key=key_of)
    async def pay(usd: int, urgent: bool = False) -> None:
        ran.append((usd, urgent))

    return pay


def test_a_result_is_shared_with_code_that_has_a_new_parameter(url: str) -> None:
    async def main() -> None:
        ran: Ran = []
        await began(url, shared_as_first, ran)
        await began(url, shared_with_new_parameter, ran)
        assert ran == [(5,)]

    perdure.run(main)


def planned(url: str, define: Define, ran: Ran) -> tuple[App, Plan]:
    app = App(url, worker=QUICK)
    define(app, ran)

    @app.step(name="ship", approval="required")
    async def ship() -> None: ...

    return app, Plan(PlanCall("pay", usd=5), PlanCall("ship"), name="order")


def test_a_plan_that_is_under_way_is_not_parked_by_a_new_parameter(url: str) -> None:
    async def main() -> None:
        ran: Ran = []
        app, plan = planned(url, step_as_first, ran)
        async with app.running():
            handle = await app.submit(plan, user="kim")
            await until(app, handle.id, JobState.WAITING)
        await app.close()
        app, _ = planned(url, step_with_new_parameter, ran)
        async with app.running():
            await app.decide(await asked(app), "approve", by=ANN)
            await until(app, handle.id, JobState.COMPLETED, JobState.NEEDS_ATTENTION)
            again: Handle[Any] = await app.handle(handle.id)
            assert (await again.job()).state is JobState.COMPLETED
        assert ran == [(5, "USD")]
        await app.close()

    perdure.run(main)
