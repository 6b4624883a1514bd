"""Questions to people are answered as a test says."""

from datetime import timedelta

import pytest

from perdure.app import App
from perdure.approvals import ApprovalTerms
from perdure.base.errors import ApprovalRejected, DecisionRefused, StepFailed
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import Approval, VoteVerdict
from perdure.testing import Deadlock, Environment
from tests.support.job_environment import in_environment


@in_environment
async def test_all_questions_are_approved_after_some_time(app: App, env: Environment) -> None:
    @app.job
    async def job(ctx: JobContext) -> list[str]:
        first = await ctx.approve("Send?")
        second = await ctx.approve("Really?")
        return [*first.by, *second.by]

    env.answer_approvals("approve", by="kim", after="2h", reason="looks good")
    assert await (await app.submit(job(), user="u-17")).result() == ["kim", "kim"]
    assert env.skipped > timedelta(hours=3, minutes=59)


@in_environment
async def test_questions_are_answered_by_their_title_and_step(app: App, env: Environment) -> None:
    @app.step(approval="required")
    async def pay(ctx: StepContext, cents: int) -> int:
        return cents

    @app.job
    async def job(ctx: JobContext) -> tuple[str, int]:
        try:
            await ctx.approve("Delete the archive?")
        except ApprovalRejected as rejected:
            return str(rejected), await pay(100)
        return "", 0

    env.answer_approvals("reject", by="kim", title="Delete", reason="never")
    env.answer_approvals("approve", by="lee", step=pay)
    said, paid = await (await app.submit(job(), user="u-17")).result()
    assert "never" in said
    assert paid == 100


@in_environment
async def test_a_function_answers_questions(app: App, env: Environment) -> None:
    @app.step(approval="required")
    async def pay(ctx: StepContext, cents: int) -> int:
        return cents

    @app.job
    async def job(ctx: JobContext) -> list[int]:
        paid: list[int] = []
        for cents in (10, 10_000):
            try:
                paid.append(await pay(cents))
            except StepFailed:
                paid.append(0)
        return paid

    def small_only(approval: Approval) -> VoteVerdict:
        return "reject" if b"10000" in approval.shown else "approve"

    env.answer_approvals(small_only)
    assert await (await app.submit(job(), user="u-17")).result() == [10, 0]


@in_environment
async def test_several_people_make_a_quorum(app: App, env: Environment) -> None:
    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return sorted((await ctx.approve("Launch?", terms=ApprovalTerms(quorum=2))).by)

    env.answer_approvals("approve", by=["kim", "lee"])
    assert await (await app.submit(job(), user="u-17")).result() == ["kim", "lee"]


@in_environment
async def test_an_answer_that_does_not_count_fails_the_test(app: App, env: Environment) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Launch?")

    env.answer_approvals("approve", by="kim")
    with pytest.raises(DecisionRefused):
        await (await app.submit(job(), user="kim")).result()


@in_environment
async def test_a_question_without_an_answer_is_named(app: App, env: Environment) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Launch?")

    env.answer_approvals(lambda approval: None)
    with pytest.raises(Deadlock, match=r"is WAITING, and waits for approval .*Launch"):
        await (await app.submit(job(), user="u-17")).result()
