"""Children that are at work when their parent fails or is cancelled: first they end, then the list.

`top` does "a" and has a child; `middle` does "m" and has one, too; `leaf` does "b" and then hangs
until it is let go. What is done is undone by "-a", "-m", "-b".
"""

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.codec import decode
from perdure.base.errors import IllegalTransition, Permanent
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from tests.support.engine import durable, until
from tests.support.store import sql

ONCE = Retry(attempts=1)


class Family:
    """The jobs, and what they did."""

    def __init__(self, app: App, *, leaf: str = "abandon", middle: str = "abandon") -> None:
        self._app = app
        self.log: list[str] = []
        self.broken: set[str] = set()
        self.hangs, self.let_go = asyncio.Event(), asyncio.Event()
        options: dict[str, Any] = {"leaf": leaf, "middle": middle}

        @app.step(retry=ONCE)
        async def act(ctx: StepContext, name: str) -> str:
            return self._do(name)

        @act.compensate(retry=ONCE)
        async def undo(ctx: StepContext, name: str, output: str | None) -> None:
            self._do(f"-{name}")

        @app.step
        async def hang(ctx: StepContext) -> None:
            self.hangs.set()
            await self.let_go.wait()

        @app.job(on_cancel=options["leaf"])
        async def leaf_job(ctx: JobContext) -> None:
            await act("b")
            await hang()

        @app.job(on_cancel=options["middle"])
        async def middle_job(ctx: JobContext) -> None:
            await act("m")
            await ctx.child(leaf_job())

        self._define_parents(app, act, leaf_job, middle_job)

    def _define_parents(self, app: App, act: Any, leaf_job: Any, middle_job: Any) -> None:
        @app.job(on_cancel="compensate")
        async def top(ctx: JobContext) -> None:
            await act("a")
            await ctx.child(leaf_job())

        @app.job(on_cancel="compensate")
        async def top_of_three(ctx: JobContext) -> None:
            await act("a")
            await ctx.child(middle_job())

        @app.job
        async def failing(ctx: JobContext) -> None:
            ctx.child(leaf_job()).begin()
            await ctx.receive("fail")
            raise Permanent("and now the whole thing")

        @app.job
        async def undone_later(ctx: JobContext) -> None:
            await act("a")
            await ctx.child(leaf_job())
            await ctx.receive("fail")
            raise Permanent("and now the whole thing")

        self.undone_later = undone_later
        self.top, self.top_of_three, self.failing = top, top_of_three, failing

    def _do(self, name: str) -> str:
        if name in self.broken:
            raise Permanent(f"{name} is broken")
        self.log.append(name)
        return name

    async def states(self) -> dict[str, str]:
        return {job.name: str(job.state) for job in await self._app.find_jobs()}

    async def of(self, name: str) -> Handle[Any]:
        (job,) = [job for job in await self._app.find_jobs() if job.name == name]
        return await self._app.handle(job.id)


@durable
async def test_a_child_that_completes_while_its_parent_is_cancelled_is_undone(app: App) -> None:
    family = Family(app, leaf="finish")
    handle = await app.submit(family.top())
    async with app.running():
        await family.hangs.wait()
        await handle.cancel()
        await until(app, handle.id, JobState.COMPENSATING)
        family.let_go.set()
        assert await handle.wait("20s") is JobState.CANCELLED
    assert family.log == ["a", "b", "-b", "-a"]
    assert (await family.states())["leaf_job"] == "COMPENSATED"


@durable
async def test_a_child_that_completes_while_its_parent_fails_is_undone(app: App) -> None:
    family = Family(app, leaf="finish")
    handle = await app.submit(family.failing())
    async with app.running():
        await family.hangs.wait()
        await handle.send("fail", None)
        await until(app, handle.id, JobState.COMPENSATING)
        family.let_go.set()
        assert await handle.wait("20s") is JobState.COMPENSATED
    assert family.log == ["b", "-b"]


@durable
async def test_what_a_cancelled_child_has_done_is_undone_with_its_parent(app: App) -> None:
    family = Family(app)
    handle = await app.submit(family.top())
    async with app.running():
        await family.hangs.wait()
        await handle.cancel()
        assert await handle.wait("20s") is JobState.CANCELLED
    assert family.log == ["a", "b", "-b", "-a"]
    assert (await family.states())["leaf_job"] == "COMPENSATED"


@pytest.mark.parametrize("middle", ["abandon", "compensate", "finish"])
@pytest.mark.parametrize("leaf", ["abandon", "compensate", "finish"])
def test_grandchildren_that_are_at_work_are_undone_too(url: str, leaf: str, middle: str) -> None:
    @durable
    async def test(app: App) -> None:
        family = Family(app, leaf=leaf, middle=middle)
        handle = await app.submit(family.top_of_three())
        async with app.running():
            await family.hangs.wait()
            await handle.cancel()
            await until(app, handle.id, JobState.COMPENSATING)
            family.let_go.set()
            assert await handle.wait("20s") is JobState.CANCELLED
        assert sorted(family.log) == ["-a", "-b", "-m", "a", "b", "m"]
        assert family.log[-1] == "-a"

    test(url)


@durable
async def test_a_parent_says_that_it_waits_for_a_child_that_needs_a_person(app: App) -> None:
    family = Family(app, leaf="compensate")
    family.broken = {"-b"}
    handle = await app.submit(family.top())
    async with app.running():
        await family.hangs.wait()
        await handle.cancel()
        child = await family.of("leaf_job")
        await until(app, child.id, JobState.NEEDS_ATTENTION)
        told: Any = None
        while told is None or told[0].get("state") != "NEEDS_ATTENTION":
            wait = (await handle.job()).wait
            told = None if wait is None else decode(wait, Any)
            await perdure.process.sleep("5ms")
        assert told == [
            {"kind": "child", "id": "child:leaf_job#1", "job": child.id, "state": "NEEDS_ATTENTION"}
        ]
        assert await handle.status() is JobState.COMPENSATING
        family.broken = set()
        await child.retry()
        assert await handle.wait("20s") is JobState.CANCELLED
    assert family.log == ["a", "b", "-b", "-a"]


@durable
async def test_a_worker_that_stops_while_a_parent_waits_for_its_children_loses_nothing(
    app: App,
) -> None:
    family = Family(app, leaf="finish")
    handle = await app.submit(family.top())
    async with app.running():
        await family.hangs.wait()
        await handle.cancel()
        await until(app, handle.id, JobState.COMPENSATING)
    family.let_go.set()
    async with app.running():
        assert await handle.wait("20s") is JobState.CANCELLED
    assert family.log == ["a", "b", "-b", "-a"]


@durable
async def test_a_job_is_not_run_again_when_its_parent_was_undone(app: App) -> None:
    family = Family(app)

    @app.step(retry=ONCE)
    async def broken(ctx: StepContext) -> None:
        raise Permanent("down")

    @app.job
    async def child(ctx: JobContext) -> None:
        await broken()

    @app.job
    async def parent(ctx: JobContext) -> None:
        await app.find_step("act")("a")
        await ctx.child(child())

    handle = await app.submit(parent())
    async with app.running():
        assert await handle.wait("20s") is JobState.COMPENSATED
        failed = await family.of("child")
        assert await failed.status() is JobState.FAILED
        with pytest.raises(IllegalTransition, match=f"{handle.id}.*undone"):
            await failed.retry()
    assert family.log == ["a", "-a"]


@durable
async def test_a_job_whose_children_had_nothing_to_undo_only_fails_and_can_be_retried(
    app: App,
) -> None:
    hangs, let_go = asyncio.Event(), asyncio.Event()

    @app.step
    async def hang(ctx: StepContext) -> str:
        hangs.set()
        await let_go.wait()
        return "done"

    @app.job(on_cancel="finish")
    async def harmless(ctx: JobContext) -> str:
        return await hang()

    @app.job
    async def top(ctx: JobContext) -> str:
        child = ctx.child(harmless())
        child.begin()
        if await ctx.receive("word") == "fail":
            raise Permanent("no")
        return await child

    handle = await app.submit(top())
    async with app.running():
        await hangs.wait()
        await handle.send("word", "fail")
        await until(app, handle.id, JobState.COMPENSATING)
        let_go.set()
        assert await handle.wait("20s") is JobState.FAILED
        await handle.retry()
        while len([one for one in await handle.events() if one.type == "job.failed"]) < 2:
            await perdure.process.sleep("5ms")


def test_a_child_that_is_missing_is_a_question_to_a_person(url: str) -> None:
    @durable
    async def test(app: App) -> None:
        family = Family(app)
        family.let_go.set()
        handle = await app.submit(family.undone_later())
        async with app.running():
            while "receive:fail#1" not in {entry.id for entry in await handle.journal()}:
                await perdure.process.sleep("5ms")
            child = await family.of("leaf_job")
            sql(url, f"DELETE FROM job WHERE id = '{child.id}'")
            await handle.send("fail", None)
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            assert f"child {child.id} is not in the store any more" in str(await handle.failure())
            await handle.skip("undo:child:leaf_job#1", "looked it up", by="kim")
            assert await handle.wait("20s") is JobState.COMPENSATED

    test(url)
