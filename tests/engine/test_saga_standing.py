"""Effects that nothing undoes: the end of their job names them, and is never COMPENSATED."""

from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import Permanent
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.outbox import NoticeKind
from perdure.jobs.state import JobState
from tests.engine.test_approval import Loud
from tests.support.engine import durable
from tests.support.store import notices

ONCE = Retry(attempts=1)


class Shop:
    """Reserves, which can be undone, and posts a letter."""

    def __init__(self, app: App, step: dict[str, Any], effect: dict[str, Any]) -> None:
        self._app = app
        self.slack = Loud("slack")
        app.policy = Policy(channels=(self.slack,))
        self.log: list[str] = []

        @app.step
        async def reserve(ctx: StepContext) -> None:
            self.log.append("reserve")

        @reserve.compensate
        async def release(ctx: StepContext, output: None) -> None:
            self.log.append("release")

        @app.step(retry=ONCE, **step)
        async def post(ctx: StepContext) -> str:
            return await ctx.effect("letter", lambda key: "posted", target="Kim", **effect)

        @app.job
        async def order(ctx: JobContext) -> None:
            await reserve()
            await post()
            raise Permanent("out of stock")

        @app.job
        async def letter(ctx: JobContext) -> None:
            await post()
            raise Permanent("out of stock")

        @app.job
        async def posted(ctx: JobContext) -> str:
            return await post()

        @app.job
        async def parent(ctx: JobContext) -> None:
            await reserve()
            await ctx.child(posted())
            raise Permanent("out of stock")

        self.order, self.letter, self.parent = order, letter, parent

    async def ended(self, job: Any) -> tuple[Handle[Any], JobState]:
        handle = await self._app.submit(job())
        async with self._app.running():
            return handle, await handle.wait("20s")


async def _names(shop: Shop, handle: Handle[Any], named: str) -> None:
    failure = await handle.failure()
    assert failure is not None
    assert failure.message == "out of stock"
    assert [each for each in failure.standing if named in each] == list(failure.standing)
    assert failure.standing
    last = [one for one in await handle.events() if one.type == "job.failed"][-1]
    assert named in last.data["error"]


@durable
async def test_a_job_with_an_effect_that_nothing_undoes_is_never_called_compensated(
    app: App,
) -> None:
    shop = Shop(app, {}, {})
    handle, state = await shop.ended(shop.order)
    assert state is JobState.FAILED
    assert shop.log == ["reserve", "release"]
    await _names(shop, handle, "letter to Kim (post#1)")
    found = await notices(await app.store(), handle.id)
    assert NoticeKind.NOT_UNDONE in {each.kind for each in found}


@durable
async def test_a_job_without_any_compensation_names_what_it_leaves_behind(app: App) -> None:
    shop = Shop(app, {}, {})
    handle, state = await shop.ended(shop.letter)
    assert state is JobState.FAILED
    await _names(shop, handle, "letter to Kim (post#1)")


@pytest.mark.parametrize(
    ("step", "effect"),
    [({}, {"undo": None}), ({"irreversible": True, "approval": "never"}, {})],
    ids=["undo=None", "irreversible"],
)
def test_what_the_code_says_may_stay_is_not_named(
    url: str, step: dict[str, Any], effect: dict[str, Any]
) -> None:
    @durable
    async def test(app: App) -> None:
        shop = Shop(app, step, effect)
        handle, state = await shop.ended(shop.order)
        assert state is JobState.COMPENSATED
        failure = await handle.failure()
        assert failure is not None
        assert failure.standing == ()
        (line,) = await handle.effects()
        assert line.stays is ("undo" in effect)

    test(url)


@durable
async def test_an_effect_of_a_child_that_nothing_undoes_is_named_by_its_parent(app: App) -> None:
    shop = Shop(app, {}, {})
    handle, state = await shop.ended(shop.parent)
    assert state is JobState.FAILED
    assert shop.log == ["reserve", "release"]
    await _names(shop, handle, "letter to Kim (post#1 of job ")


@durable
async def test_an_effect_that_may_have_happened_is_named_too(app: App) -> None:
    @app.step(retry=ONCE, timeout="1s")
    async def pay(ctx: StepContext) -> None:
        async def call(key: str) -> None:
            await ctx.cancelled.wait()

        await ctx.effect("payment", call, target="card", in_doubt="replay")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    handle = await app.submit(job())
    async with app.running():
        assert await handle.wait("20s") is JobState.FAILED
    failure = await handle.failure()
    assert failure is not None
    assert failure.standing == ("perhaps payment to card (pay#1)",)


@durable
async def test_what_was_recorded_by_hand_and_nothing_undoes_is_named_too(app: App) -> None:
    @app.step
    async def post(ctx: StepContext) -> None:
        await ctx.record_effect("letter", "order 7", target="Kim")

    @app.job
    async def order(ctx: JobContext) -> None:
        await post()
        raise Permanent("out of stock")

    async with app.running():
        handle = await app.submit(order())
        assert await handle.wait("20s") is JobState.FAILED
    failure = await handle.failure()
    assert failure is not None
    assert [each.partition(" ")[0] for each in failure.standing] == ["letter"]
