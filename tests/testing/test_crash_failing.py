"""Jobs that fail, killed at every write: each still fails and is undone, and is never parked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, Permanent, StepFailed
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.plan import Plan, PlanCall
from perdure.jobs.state import JobState
from perdure.testing import crash_everywhere
from tests.support.job_environment import NEVER_OPENED

Code = Callable[["Scene", JobContext], Awaitable[Any]]


class Scene:
    """Steps that take a while each, so that they end in a known order; some of them fail."""

    def __init__(self, *, undoes: bool = False) -> None:
        self.app = app = App(NEVER_OPENED)
        self.paid, self.undone = set[int](), set[int]()

        @app.step
        async def pay(usd: int) -> int:
            await perdure.process.sleep(f"{usd}ms")
            self.paid.add(usd)
            return usd

        if undoes:

            @pay.compensate
            async def refund(ctx: StepContext, usd: int, output: int | None) -> None:
                self.undone.add(usd)

        @app.step(retry=Retry(attempts=1))
        async def fail(after: int) -> None:
            await perdure.process.sleep(f"{after}ms")
            raise Permanent("declined")

        @app.step
        async def load(number: int) -> str:
            return str(number) * 1_000_000

        @app.job
        async def failing(after: int) -> None:
            await fail(after)

        self.pay, self.fail, self.load, self.failing = pay, fail, load, failing

    def job_of(self, code: Code) -> Any:
        """Return a job of this code."""

        @self.app.job
        async def job(ctx: JobContext) -> Any:
            return await code(self, ctx)

        return job

    def begin(self) -> None:
        """Forget what earlier runs did."""
        self.paid.clear()
        self.undone.clear()


async def together(*branches: Awaitable[Any]) -> None:
    """Run branches in a task group."""

    async def run(branch: Awaitable[Any]) -> None:
        await branch

    async with asyncio.TaskGroup() as group:
        for branch in branches:
            group.create_task(run(branch))


async def pays(scene: Scene, ctx: JobContext, name: str, *amounts: int) -> None:
    with ctx.scope(name):
        for usd in amounts:
            await scene.pay(usd)


async def fails_later(scene: Scene, ctx: JobContext) -> None:
    await scene.fail(5_000)


async def in_sequence(scene: Scene, ctx: JobContext) -> None:
    await scene.pay(1)
    await scene.pay(2)
    await scene.fail(1)


async def in_ctx_gather(scene: Scene, ctx: JobContext) -> None:
    await ctx.gather(scene.pay(1), scene.fail(20), scene.pay(2))


async def in_group(scene: Scene, ctx: JobContext) -> None:
    await together(fails_later(scene, ctx), pays(scene, ctx, "b", 1, 2))


async def in_nested_group(scene: Scene, ctx: JobContext) -> None:
    deeper = together(together(pays(scene, ctx, "b", 1, 2)), pays(scene, ctx, "c", 4))
    await together(fails_later(scene, ctx), deeper)


async def in_gather(scene: Scene, ctx: JobContext) -> None:
    await asyncio.gather(fails_later(scene, ctx), together(pays(scene, ctx, "b", 1, 2)))


async def by_its_own_code(scene: Scene, ctx: JobContext) -> None:
    async def refuse() -> None:
        if await scene.pay(5_000) > 50:
            raise ValueError("too much")

    await together(refuse(), together(pays(scene, ctx, "b", 1, 2)))


async def by_a_child(scene: Scene, ctx: JobContext) -> None:
    await together(ctx.child(scene.failing(5_000)), together(pays(scene, ctx, "b", 1, 2)))


async def by_first(scene: Scene, ctx: JobContext) -> None:
    async def race() -> None:
        await ctx.first(scene.fail(5_000), ctx.sleep("1h"))

    await together(race(), together(pays(scene, ctx, "b", 1, 2)))


async def before_its_sibling_ends(scene: Scene, ctx: JobContext) -> None:
    await together(fails_later(scene, ctx), together(pays(scene, ctx, "b", 1, 2, 60_000)))


async def pays_after_turns(scene: Scene, ctx: JobContext) -> None:
    """Pay some amounts, each after some turns of the loop: a replay has no time for that."""
    with ctx.scope("slow"):
        for usd in (1, 2):
            for _ in range(5):
                await asyncio.sleep(0)
            await scene.pay(usd)


async def beside_a_slow_branch(scene: Scene, ctx: JobContext) -> None:
    await together(fails_later(scene, ctx), pays_after_turns(scene, ctx))


async def beside_a_slow_branch_of_gather(scene: Scene, ctx: JobContext) -> None:
    await asyncio.gather(fails_later(scene, ctx), pays_after_turns(scene, ctx))


async def beside_large_results(scene: Scene, ctx: JobContext) -> None:
    async def loads() -> None:
        for usd in (1, 2):
            await scene.load(usd)
            await scene.pay(usd)

    await together(fails_later(scene, ctx), loads())


async def after_cleaning_up(scene: Scene, ctx: JobContext) -> None:
    async def cleans_up() -> None:
        try:
            await pays(scene, ctx, "b", 1, 2, 60_000)
        finally:
            await scene.pay(4)

    await together(fails_later(scene, ctx), together(cleans_up()))


FAILING = [
    in_sequence,
    in_ctx_gather,
    in_group,
    in_nested_group,
    in_gather,
    by_its_own_code,
    by_a_child,
    by_first,
    before_its_sibling_ends,
    beside_a_slow_branch,
    beside_a_slow_branch_of_gather,
    beside_large_results,
    after_cleaning_up,
]


@pytest.mark.parametrize("code", FAILING, ids=lambda code: code.__name__)
def test_a_job_that_fails_is_not_parked_wherever_its_worker_dies(url: str, code: Code) -> None:
    scene = Scene()
    report = asyncio.run(crash_everywhere(scene.app, scene.job_of(code)(), url=url))
    assert report.state is JobState.FAILED
    assert report.crashes >= 6


@pytest.mark.parametrize("code", [in_group, beside_a_slow_branch], ids=lambda code: code.__name__)
def test_a_job_that_fails_is_undone_wherever_its_worker_dies(url: str, code: Code) -> None:
    scene = Scene(undoes=True)
    report = asyncio.run(
        crash_everywhere(
            scene.app,
            scene.job_of(code)(),
            arrange=lambda env: scene.begin(),
            observe=lambda: sorted(scene.paid - scene.undone),
            url=url,
        )
    )
    assert report.state is JobState.COMPENSATED


async def caught_in_group(scene: Scene, ctx: JobContext) -> str:
    try:
        await beside_a_slow_branch(scene, ctx)
    except* (StepFailed, JobFailed):
        await scene.pay(6)
    await scene.pay(7)
    return "went on"


async def caught_in_gather(scene: Scene, ctx: JobContext) -> str:
    try:
        await beside_a_slow_branch_of_gather(scene, ctx)
    except StepFailed:
        await scene.pay(6)
    return "went on"


@pytest.mark.parametrize(
    "code", [caught_in_group, caught_in_gather], ids=lambda code: code.__name__
)
def test_a_job_that_catches_the_failure_of_a_branch_goes_on_wherever_its_worker_dies(
    url: str, code: Code
) -> None:
    scene = Scene()
    report = asyncio.run(crash_everywhere(scene.app, scene.job_of(code)(), url=url))
    assert report.result == "went on"


def test_a_plan_that_fails_is_undone_wherever_its_worker_dies(url: str) -> None:
    scene = Scene(undoes=True)
    plan = Plan(PlanCall("pay", usd=1), PlanCall("fail", after=1))
    report = asyncio.run(
        crash_everywhere(
            scene.app,
            plan,
            arrange=lambda env: scene.begin(),
            observe=lambda: sorted(scene.paid - scene.undone),
            url=url,
        )
    )
    assert report.state is JobState.COMPENSATED


def test_values_that_branches_draw_are_not_taken_for_drift_wherever_the_worker_dies(
    url: str,
) -> None:
    scene = Scene()

    async def draws(scene: Scene, ctx: JobContext) -> str:
        async def branch(name: str, *amounts: int) -> None:
            with ctx.scope(name):
                for usd in amounts:
                    ctx.now()
                    for _ in range(3):
                        await asyncio.sleep(0)
                    await scene.pay(usd)
                    ctx.now()

        await together(branch("a", 1_000, 4_000), branch("b", 2_000, 3_000))
        return "drawn"

    report = asyncio.run(crash_everywhere(scene.app, scene.job_of(draws)(), url=url))
    assert report.result == "drawn"
