"""A job that is killed at every write ends as if nothing had happened; others are found."""

import asyncio
from datetime import timedelta

import pytest

import perdure
from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.testing import CrashFound, Environment, crash_everywhere
from tests.support.job_environment import NEVER_OPENED, in_environment


def test_a_job_ends_the_same_wherever_its_worker_dies(url: str) -> None:
    app, sent = App(NEVER_OPENED), dict[str, str]()

    @app.step
    async def price(ctx: StepContext, item: str) -> int:
        return len(item)

    @app.step
    async def order(ctx: StepContext, item: str) -> str:
        async def call(key: str) -> str:
            return sent.setdefault(key, item)  # the receiver knows a repeated call by its key

        return await ctx.effect("order", call, target="shop", in_doubt="replay", undo=None)

    @app.job
    async def buy(ctx: JobContext, item: str) -> list[object]:
        cost = await price(item)
        await ctx.sleep("2h")
        return [cost, await order(item)]

    report = asyncio.run(
        crash_everywhere(
            app,
            buy("tea"),
            arrange=lambda env: sent.clear(),
            observe=lambda: sorted(sent.values()),
            url=url,
        )
    )
    assert report.crashes >= 8
    assert "price#1 SUCCEEDED" in report.writes
    assert report.writes[-1] == "job COMPLETED"
    assert report.result == [3, "tea"]


def test_an_effect_that_a_crash_repeats_is_found(url: str) -> None:
    app, sent = App(NEVER_OPENED), list[str]()

    @app.step
    async def order(ctx: StepContext) -> None:
        sent.append("tea")

    @app.job
    async def buy(ctx: JobContext) -> None:
        await order()

    with pytest.raises(CrashFound) as found:
        asyncio.run(
            crash_everywhere(
                app,
                buy(),
                arrange=lambda env: sent.clear(),
                observe=lambda: sent,
                url=url,
            )
        )
    text = str(found.value)
    assert "killed before write 1 (order#1 SUCCEEDED): the test observes ['tea', 'tea']" in text
    assert "after write 1" not in text


def test_an_effect_in_doubt_after_a_crash_is_found(url: str) -> None:
    app = App(NEVER_OPENED)

    @app.step
    async def order(ctx: StepContext) -> str:
        async def call(key: str) -> str:
            return "ordered"

        return await ctx.effect("order", call, target="shop")

    @app.job
    async def buy(ctx: JobContext) -> str:
        return await order()

    with pytest.raises(CrashFound, match=r"is NEEDS_ATTENTION .* instead of COMPLETED"):
        asyncio.run(crash_everywhere(app, buy(), url=url))


def test_compensations_and_answers_survive_a_crash_anywhere(url: str) -> None:
    app, world = App(NEVER_OPENED), dict[str, str]()

    @app.step
    async def reserve(ctx: StepContext) -> str:
        world["room"] = "reserved"
        return "room 7"

    @reserve.compensate
    async def free(ctx: StepContext, output: str | None) -> None:
        world["room"] = "free"

    @app.job
    async def book(ctx: JobContext) -> None:
        await reserve()
        await ctx.approve("Book it?")

    def arrange(env: Environment) -> None:
        world.clear()
        env.answer_approvals("reject", by="kim", after="3h")

    report = asyncio.run(
        crash_everywhere(app, book(), arrange=arrange, observe=lambda: world, url=url, user="u-17")
    )
    assert report.writes[-1].endswith("job COMPENSATED")


def test_a_question_that_lost_is_withdrawn_wherever_the_worker_dies(url: str) -> None:
    app = App(NEVER_OPENED)

    @app.step
    async def states(ctx: StepContext) -> list[str]:
        return [each.state.value for each in await app.approvals(None)]

    @app.job
    async def order(ctx: JobContext) -> tuple[int, list[str]]:
        first = await ctx.first(ctx.approve("Ship it?"), ctx.sleep("3h"))
        return first.index, await states()

    report = asyncio.run(crash_everywhere(app, order(), url=url, user="u-17"))
    assert report.result == [1, ["WITHDRAWN"]]
    assert report.crashes > 4


@in_environment
async def test_a_worker_can_be_killed_at_any_time(app: App, env: Environment) -> None:
    begun, works = asyncio.Event(), False

    @app.step
    async def slow(ctx: StepContext) -> str:
        begun.set()
        await perdure.process.sleep(0 if works else 600)
        return "done by another worker"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await slow()

    handle = await app.submit(job())
    await begun.wait()
    works = True
    await env.crash()
    assert await handle.result() == "done by another worker"
    assert env.skipped < timedelta(minutes=5)
    assert len([each for each in await handle.events() if each.type == "claimed"]) == 2
