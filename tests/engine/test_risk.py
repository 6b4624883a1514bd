"""How dangerous a step is: the least risk, said in its code, and what its undo is judged by."""

import pytest

from perdure.app import App
from perdure.base.errors import Permanent, PlanError
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.plan import Plan, PlanCall
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.support.engine import durable


@durable
async def test_a_step_whose_code_calls_it_dangerous_waits_for_a_yes(app: App) -> None:
    @app.step(risk="high")
    async def wipe(ctx: StepContext, disk: str) -> str:
        return f"{disk} is empty"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await wipe("sda")

    async with app.running():
        handle = await app.submit(job(), user="kim")
        approval = await asked(app)
        assert (approval.risk, approval.reasons) == (
            RiskLevel.HIGH,
            ("the code marks it as HIGH risk",),
        )
        await app.decide(approval, "approve", by=ANN)
        assert await handle.result("5s") == "sda is empty"


@durable
async def test_a_floor_does_not_lower_what_the_rules_find(app: App) -> None:
    @app.step(risk="medium", tags={"data_destructive"})
    async def wipe(ctx: StepContext) -> None: ...

    @app.job
    async def job(ctx: JobContext) -> None:
        await wipe()

    async with app.running():
        await app.submit(job(), user="kim")
        assert (await asked(app)).risk is RiskLevel.CRITICAL


@durable
async def test_a_medium_floor_is_written_into_the_log(app: App) -> None:
    @app.step(risk=RiskLevel.MEDIUM)
    async def tidy(ctx: StepContext) -> None: ...

    @app.job
    async def job(ctx: JobContext) -> None:
        await tidy()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.result("5s")
    (event,) = [each for each in await handle.events() if each.type == "step.gated"]
    assert (event.data["risk"], event.data["reasons"]) == (
        "MEDIUM",
        ["the code marks it as MEDIUM risk"],
    )


@durable
async def test_a_plan_has_no_say_in_it(app: App) -> None:
    @app.step(risk="high")
    async def wipe(ctx: StepContext, disk: str) -> str:
        return disk

    plan = Plan(PlanCall("wipe", disk="sda"), name="p")
    milder = plan.to_json().replace(b'"step"', b'"risk":"low","step"')
    with pytest.raises(PlanError, match="risk"):
        Plan.from_json(milder)
    async with app.running():
        handle = await app.submit(plan, user="kim")
        assert (await asked(app)).risk is RiskLevel.HIGH
        await app.decide(await asked(app), "approve", by=ANN)
        assert await handle.result("5s") == "sda"


@durable
async def test_an_undo_is_judged_by_the_arguments_of_its_step(app: App) -> None:
    told: list[str] = []

    @app.step(tags={"external_email"})
    async def write(ctx: StepContext, to: list[str]) -> None:
        told.append(f"hello {to}")

    @write.compensate
    async def apologise(ctx: StepContext, to: list[str], output: None) -> None:
        told.append(f"sorry {to}")

    @app.job
    async def job(ctx: JobContext) -> None:
        await write(["kim"])  # to one, which needs no yes
        raise Permanent("never mind")

    async with app.running():
        handle = await app.submit(job(), user="kim")
        assert await handle.wait("5s") is JobState.COMPENSATED
    assert told == ["hello ['kim']", "sorry ['kim']"]


@durable
async def test_people_see_what_the_author_of_a_step_says_that_it_does(app: App) -> None:
    @app.step(risk="high", description="Overwrites every block of a disk.")
    async def wipe(ctx: StepContext, disk: str) -> None: ...

    @app.step(risk="high")
    async def sell(ctx: StepContext) -> None:
        """Sell everything.

        And more that nobody reads.
        """

    @app.job
    async def job(ctx: JobContext) -> None:
        await wipe("sda")
        await sell()

    async with app.running():
        await app.submit(job(), user="kim")
        approval = await asked(app)
        assert approval.description == "Overwrites every block of a disk."
        await app.decide(approval, "approve", by=ANN)
        assert (await asked(app)).description == "Sell everything."
