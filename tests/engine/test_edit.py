"""Edited arguments: everybody sees what will run, decides about that, and on its own terms."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import ArgumentError, DecisionRefused
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import Approval, ApprovalState, ApprovalTerms
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import Classifier, RiskFacts, RiskLevel
from perdure.jobs.state import JobState
from perdure.notify.message import ApprovalMessage, approval_message
from perdure.notify.people import Contact, People
from tests.engine.test_approval import ANN, BOB, asked, paying
from tests.support.engine import durable, until

CAS = replace(ANN, id="cas")
TWO = {RiskLevel.HIGH: ApprovalTerms(quorum=2)}


def large_sums(facts: RiskFacts) -> tuple[RiskLevel, str] | None:
    usd = facts.arguments.get("usd", 0)
    return (RiskLevel.CRITICAL, f"it moves {usd} USD") if usd > 1000 else None


STRICT = Policy(
    risk=Classifier().extended(large_sums),
    terms={RiskLevel.CRITICAL: ApprovalTerms(quorum=2, approvers=frozenset({"bob", "cas"}))},
)


class Board:
    """A channel that keeps what people are shown."""

    name = "board"

    def __init__(self) -> None:
        self.shown: list[tuple[NoticeKind, ApprovalMessage]] = []

    async def recipients(self, notice: Notice, approval: Approval | None) -> list[str]:
        return ["all"]

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        if approval is not None:
            self.shown.append((notice.kind, approval_message(approval)))
        return ""

    async def message(self, kind: NoticeKind) -> ApprovalMessage:
        while not (found := [message for told, message in self.shown if told is kind]):
            await perdure.process.sleep("5ms")
        return found[0]


# What is seen


@durable
async def test_the_second_approver_sees_and_decides_about_what_the_first_has_edited(
    app: App,
) -> None:
    board = Board()
    app.policy = Policy(terms=TWO, channels=(board,))
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(500), user="kim")
        seen = await asked(app)
        assert ('"usd"', "500") in (await board.message(NoticeKind.ASKED)).arguments
        await app.decide(seen, "approve", by=ANN, arguments={"usd": 900})
        message = await board.message(NoticeKind.EDITED)
        assert ('"usd"', "900 (was: 500)") in message.arguments
        assert ("Edited by", "ann") in message.fields
        with pytest.raises(DecisionRefused) as refusal:
            await app.decide(seen, "approve", by=BOB)
        assert refusal.value.code == "changed"
        assert ran == []
        now = await asked(app)
        assert (now.id, now.shown) == (seen.id, b'{"usd":900}')
        await app.decide(now, "approve", by=BOB)
        assert await handle.result("5s") == 900
    kinds = [event.type for event in await handle.events()]
    assert (kinds.count("approval.edited"), kinds.count("approval.approve")) == (1, 2)


@durable
async def test_an_edit_voids_a_yes_that_was_given_before_it(app: App) -> None:
    app.policy = Policy(terms=TWO)
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(500), user="kim")
        seen = await asked(app)
        await app.decide(seen, "approve", by=ANN)
        await app.decide(seen, "approve", by=BOB, arguments={"usd": 900})
        assert (await asked(app)).state is ApprovalState.PENDING
        # To edit it back does not bring the old yes back.
        back = await app.decide(await asked(app), "approve", by=CAS, arguments={"usd": 500})
        assert (back.state, ran) == (ApprovalState.PENDING, [])
        with pytest.raises(DecisionRefused, match="changed since you saw it"):
            await app.decide(seen, "approve", by=BOB)
        await app.decide(await asked(app), "approve", by=BOB)
        assert await handle.result("5s") == 500


@durable
async def test_an_answer_by_id_says_which_action_was_seen(app: App) -> None:
    job, _ = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(5), user="kim")
        approval = await asked(app)
        with pytest.raises(ValueError, match="which action did they see"):
            await app.decide(approval.id, "approve", by=ANN)
        with pytest.raises(DecisionRefused, match="changed since you saw it"):
            await app.decide(approval.id, "approve", by=ANN, action_hash="0" * 64)
        await app.decide(approval.id, "approve", by=ANN, action_hash=approval.action.hash)
        assert await handle.result("5s") == 5


@pytest.mark.parametrize("quorum", [1, 2])
def test_of_an_edit_and_a_yes_at_once_nothing_runs_that_too_few_have_seen(
    url: str, quorum: int
) -> None:
    @durable
    async def race(app: App) -> None:
        app.policy = Policy(terms={RiskLevel.HIGH: ApprovalTerms(quorum=quorum)})
        other = App(app.url, policy=app.policy)  # as in another process
        paying(other, tags={"financial"})
        job, ran = paying(app, tags={"financial"})
        async with app.running():
            for usd in range(100, 110):
                handle = await app.submit(job(usd), user="kim")
                seen = await asked(app)
                await asyncio.gather(
                    app.decide(seen, "approve", by=BOB),
                    other.decide(seen, "approve", by=ANN, arguments={"usd": 1}),
                    app.decide(seen, "approve", by=CAS),
                    return_exceptions=True,
                )
                await settle(app, handle.id)
                assert ran.pop() == await paid_for(app, handle.id, quorum)
                assert ran == []
        await other.close()

    race(url)


async def settle(app: App, job_id: str) -> None:
    """Let those who have not yet said yes do so, until the job has ended."""
    handle = await app.handle(job_id)
    while await handle.status() is not JobState.COMPLETED:
        for approval in await app.approvals():
            said = {each.person for each in approval.decisions if each.action_hash}
            for by in (ANN, BOB, CAS):
                if by.id not in said:
                    await asyncio.gather(
                        app.decide(approval, "approve", by=by), return_exceptions=True
                    )
        await perdure.process.sleep("5ms")


async def paid_for(app: App, job_id: str, quorum: int) -> int:
    """Give the amount to which enough people said yes, each of them to exactly that."""
    (approval,) = await (await app.store()).approvals(job=job_id)
    said = [each.person for each in approval.decisions if each.action_hash == approval.action.hash]
    assert len(set(said)) == len(said) >= quorum
    return msgspec.json.decode(approval.action.input)["usd"]


# How it is judged


@durable
async def test_an_edit_that_raises_the_risk_is_asked_anew_on_the_terms_of_that_risk(
    app: App,
) -> None:
    board = Board()
    app.policy = replace(STRICT, channels=(board,))
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(100), user="kim")
        seen = await asked(app)
        assert (seen.risk, seen.terms.quorum) == (RiskLevel.HIGH, 1)
        edited = await app.decide(seen, "approve", by=ANN, arguments={"usd": 1_000_000})
        assert (edited.state, edited.risk, edited.terms.quorum) == (
            ApprovalState.PENDING,
            RiskLevel.CRITICAL,
            2,
        )
        message = await board.message(NoticeKind.EDITED)
        assert ("Risk", "CRITICAL") in message.fields
        assert "it moves 1000000 USD" in message.reasons
        with pytest.raises(DecisionRefused, match="not among the people"):
            await app.decide(edited, "approve", by=ANN)
        await app.decide(edited, "approve", by=BOB)
        await until(app, handle.id, JobState.WAITING)
        assert ran == []
        await app.decide(edited, "approve", by=CAS)
        assert await handle.result("5s") == 1_000_000
    assert len(await app.approvals(None)) == 1


@durable
async def test_an_edit_that_lowers_the_risk_is_decided_on_the_terms_of_that_risk(
    app: App,
) -> None:
    app.policy = STRICT
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(5000), user="kim")
        seen = await asked(app)
        assert (seen.risk, seen.terms.quorum) == (RiskLevel.CRITICAL, 2)
        with pytest.raises(DecisionRefused, match="not among the people"):
            await app.decide(seen, "approve", by=ANN, arguments={"usd": 50})
        edited = await app.decide(seen, "approve", by=BOB, arguments={"usd": 50})
        assert (edited.state, edited.risk) == (ApprovalState.APPROVED, RiskLevel.HIGH)
        assert await handle.result("5s") == 50
    assert ran == [50]


@durable
async def test_a_worker_judges_an_edit_by_its_own_rules_too(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    careless = App(app.url)  # takes the edit for no more dangerous than before
    paying(careless, tags={"financial"})
    app.policy = STRICT
    async with app.running():
        handle = await app.submit(job(100), user="kim")
        seen = await asked(app)
        said = await careless.decide(seen, "approve", by=ANN, arguments={"usd": 1_000_000})
        assert said.state is ApprovalState.APPROVED
        again = await asked(app)
        assert (again.risk, again.shown) == (RiskLevel.CRITICAL, b'{"usd":1000000}')
        assert [each.person for each in again.edits] == ["ann"]
        assert ran == []
        for by in (BOB, CAS):
            await app.decide(again, "approve", by=by)
        assert await handle.result("5s") == 1_000_000
    await careless.close()


@durable
async def test_a_worker_holds_an_edit_to_its_own_terms_too(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    careless = App(app.url, policy=replace(STRICT, terms={}))  # one yes is enough for everything
    paying(careless, tags={"financial"})
    app.policy = STRICT
    async with app.running():
        handle = await app.submit(job(100), user="kim")
        seen = await asked(app)
        edited = await careless.decide(seen, "approve", by=ANN, arguments={"usd": 1_000_000})
        said = await careless.decide(edited, "approve", by=BOB)
        assert said.state is ApprovalState.APPROVED
        again = await asked(app)
        assert (again.risk, again.terms.quorum, ran) == (RiskLevel.CRITICAL, 2, [])
        for by in (BOB, CAS):
            await app.decide(again, "approve", by=by)
        assert await handle.result("5s") == 1_000_000
    await careless.close()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [({"usd": "much"}, "usd"), ({"usd": 5, "to": "me"}, "to"), ({"usd": None}, "usd")],
)
def test_arguments_that_do_not_fit_the_step_are_refused(
    url: str, arguments: dict[str, Any], why: str
) -> None:
    @durable
    async def refused(app: App) -> None:
        job, ran = paying(app, tags={"financial"})
        async with app.running():
            handle = await app.submit(job(5), user="kim")
            seen = await asked(app)
            with pytest.raises(ArgumentError, match=why):
                await app.decide(seen, "approve", by=ANN, arguments=arguments)
            assert await asked(app) == seen
            await app.decide(seen, "approve", by=ANN)
            assert await handle.result("5s") == 5
        assert ran == [5]

    refused(url)


@durable
async def test_a_question_that_is_no_step_has_nothing_to_edit(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Ship it?", details={"usd": 5})

    async with app.running():
        handle = await app.submit(job(), user="kim")
        seen = await asked(app)
        with pytest.raises(DecisionRefused, match="only the arguments of a step"):
            await app.decide(seen, "approve", by=ANN, arguments={"usd": 6})
        await app.decide(seen, "approve", by=ANN)
        await handle.result("5s")


@durable
async def test_a_budget_that_is_raised_further_than_asked_is_judged_again(app: App) -> None:
    app.policy = STRICT

    @app.step(retry=Retry(attempts=1))
    async def think(ctx: StepContext) -> None:
        await ctx.spend(usd=7)

    @app.job(budget=BudgetLimits(usd=5))
    async def job(ctx: JobContext) -> None:
        await think()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        seen = await asked(app)
        edited = await app.decide(seen, "approve", by=ANN, arguments={"usd": 1_000_000})
        assert (edited.state, edited.risk) == (ApprovalState.PENDING, RiskLevel.CRITICAL)
        for by in (BOB, CAS):
            await app.decide(edited, "approve", by=by)
        await handle.result("5s")
    budget = await handle.budget()
    assert budget is not None
    assert budget.limits.usd == 1_000_000


@durable
async def test_an_undo_gets_the_arguments_of_the_last_yes(app: App) -> None:
    people = People(Contact(person=each) for each in (ANN, BOB))
    app.policy = Policy(people=people)
    ran: list[Any] = []

    @app.step(retry=Retry(attempts=2, initial_delay="1ms"), tags={"financial"})
    async def pay(ctx: StepContext, usd: int) -> None:
        ran.append(usd)
        people.contacts[:] = [each for each in people.contacts if each.person is not ANN]
        raise RuntimeError("once")

    @pay.compensate
    async def refund(ctx: StepContext, usd: int, output: None) -> None:
        ran.append(("refund", usd))

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay(500)

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "approve", by=ANN, arguments={"usd": 50})
        again = await asked(app)  # before the second attempt
        assert (again.shown, ran) == (b'{"usd":50}', [50])
        await app.decide(again, "reject", by=BOB)
        await app.decide(await asked(app), "approve", by=BOB)
        await until(app, handle.id, JobState.COMPENSATED)
    assert ran == [50, ("refund", 50)]


@durable
async def test_what_an_edit_does_not_name_stays_as_the_job_gave_it(app: App) -> None:
    ran: list[tuple[int, str]] = []

    @app.step(irreversible=True)
    async def pay(ctx: StepContext, usd: int, to: str = "nobody") -> None:
        ran.append((usd, to))

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay(100, "kim")

    async with app.running():
        handle = await app.submit(job(), user="lee")
        await app.decide(await asked(app), "approve", by=ANN, arguments={"usd": 70})
        await handle.result("5s")
    assert ran == [(70, "kim")]
