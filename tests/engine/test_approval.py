"""Approvals: a job waits for people without a worker, and does exactly what they agreed to."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import (
    ApprovalExpired,
    ApprovalRejected,
    DecisionRefused,
    IllegalTransition,
    JobFailed,
)
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.approval import Approval, ApprovalState, ApprovalTerms, Person
from perdure.jobs.gate import Gate, GatePolicy
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import Classifier, RiskFacts, RiskLevel
from perdure.jobs.state import ENDED, JobState
from tests.support.engine import durable, until
from tests.support.store import notices

T = TypeVar("T")

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
BOB = Person(id="bob", tenant="default", roles=frozenset({"approver"}))


async def asked(app: App, number: int = 1) -> Approval:
    """Wait until something is asked."""
    return (await soon(app.approvals, lambda found: len(found) >= number))[0]


async def soon(look: Callable[[], Awaitable[T]], is_enough: Callable[[T], bool]) -> T:
    """Look again and again until it is enough."""
    while not is_enough(found := await look()):
        await perdure.process.sleep("5ms")
    return found


def with_policy(app: App, **policy: Any) -> None:
    app.policy = Policy(**policy)


@durable
async def test_an_approval_waits_across_a_restart_and_holds_no_worker(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> list[str]:
        yes = await ctx.approve("Ship it?", details={"order": 7})
        return [*yes.by, yes.reason]

    handle = await app.submit(job(), user="kim")
    async with app.running():
        approval = await asked(app)
        await until(app, handle.id, JobState.WAITING)
    assert (approval.title, approval.shown, approval.requester) == (
        "Ship it?",
        b'{"order":7}',
        "kim",
    )
    job_ = await handle.job()
    assert job_.owner is None
    assert approval.id.encode() in (job_.wait or b"")
    async with app.running():
        await app.decide(approval, "approve", by=ANN, reason="fine")
        assert await handle.result("5s") == ["ann", "fine"]
    assert len(await app.approvals(None)) == 1


@durable
async def test_a_no_fails_the_job_and_may_be_handled_by_its_code(app: App) -> None:
    @app.job
    async def strict(ctx: JobContext) -> None:
        await ctx.approve("Ship it?")

    @app.job
    async def mild(ctx: JobContext) -> str:
        try:
            await ctx.approve("Ship it?")
        except ApprovalRejected as no:
            return f"{no.person}: {no.reason}"
        return "yes"

    async with app.running():
        for job in (strict, mild):
            handle = await app.submit(job(), user="kim")
            await app.decide(await asked(app), "reject", by=ANN, reason="too early")
            if job is strict:
                with pytest.raises(JobFailed, match=r"ann rejected 'Ship it.': too early"):
                    await handle.result("5s")
            else:
                assert await handle.result("5s") == "ann: too early"


@durable
async def test_nobody_answering_is_not_a_no(app: App) -> None:
    undone: list[str] = []

    @app.step
    async def act(ctx: StepContext) -> None: ...

    @act.compensate
    async def undo(ctx: StepContext, output: None) -> None:
        undone.append("undone")

    @app.job
    async def job(ctx: JobContext) -> str:
        await act()
        await ctx.approve("Ship it?", expires="10ms")
        return "shipped"

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert undone == []
        (approval,) = await app.approvals(ApprovalState.EXPIRED)
        with pytest.raises(DecisionRefused, match="already expired"):
            await app.decide(approval, "approve", by=ANN)
        await handle.retry(by="kim")  # asks again
        assert (await asked(app)).id != approval.id


@durable
async def test_a_job_may_handle_that_nobody_answered(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        try:
            await ctx.approve("Ship it?", expires=0)
        except ApprovalExpired:
            return "later"
        return "now"

    async with app.running():
        assert await (await app.submit(job(), user="kim")).result("5s") == "later"


# Gates


def paying(app: App, **options: Any) -> tuple[Any, list[Any]]:
    ran: list[Any] = []

    @app.step(retry=Retry(attempts=1), **options)
    async def pay(ctx: StepContext, usd: int) -> int:
        ran.append(usd)
        return usd

    @pay.compensate
    async def refund(ctx: StepContext, usd: int, output: int | None) -> None:
        ran.append(("refund", usd, output))

    @app.job
    async def job(ctx: JobContext, usd: int, fail: bool = False) -> int:
        paid = await pay(usd)
        if fail:
            raise RuntimeError("after the payment")
        return paid

    return job, ran


@durable
async def test_a_dangerous_step_waits_for_a_yes_to_exactly_this_call(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(5), user="kim")
        approval = await asked(app)
        assert (approval.step, approval.risk, approval.shown) == (
            "pay#1",
            RiskLevel.HIGH,
            b'{"usd":5}',
        )
        assert approval.reasons == ("it is financial",)
        assert ran == []
        await app.decide(approval, "approve", by=ANN)
        assert await handle.result("5s") == 5
    assert len(await app.approvals(None)) == 1
    kinds = [event.type for event in await handle.events()]
    assert kinds.count("approval.asked") == kinds.count("approval.approve") == 1


@durable
async def test_a_step_that_was_refused_has_failed(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(5), user="kim")
        await app.decide(await asked(app), "reject", by=ANN, reason="no money")
        with pytest.raises(JobFailed, match="ann rejected"):
            await handle.result("5s")
    assert ran == []
    assert await handle.status() is JobState.FAILED


@durable
async def test_a_yes_to_other_arguments_runs_those(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(500), user="kim")
        approval = await asked(app)
        with pytest.raises(Exception, match="usd"):
            await app.decide(approval, "approve", by=ANN, arguments={"usd": "much"})
        await app.decide(approval, "approve", by=ANN, arguments={"usd": 50})
        assert await handle.result("5s") == 50
    assert ran == [50]


@durable
async def test_an_undo_passes_the_same_gates_and_undoes_what_was_really_done(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(500, fail=True), user="kim")
        await app.decide(await asked(app), "approve", by=ANN, arguments={"usd": 50})
        approval = await asked(app)
        assert approval.step == "undo:pay#1"
        await until(app, handle.id, JobState.COMPENSATING)
        await app.decide(approval, "approve", by=ANN)
        await until(app, handle.id, JobState.COMPENSATED)
    assert ran == [50, ("refund", 50, 50)]


@durable
async def test_what_cannot_be_undone_waits_unless_the_code_has_asked(app: App) -> None:
    ran: list[str] = []

    @app.step(irreversible=True)
    async def ship(ctx: StepContext, what: str) -> None:
        ran.append(what)

    @app.step(irreversible=True, approval="never")
    async def wave(ctx: StepContext) -> None:
        ran.append("wave")

    @app.job
    async def job(ctx: JobContext) -> None:
        await wave()
        await ctx.approve("The first?")
        await ship("first")
        await ship("second")

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "approve", by=ANN)
        second = await asked(app)
        assert second.step == "ship#2"
        assert ran == ["wave", "first"]
        await app.decide(second, "approve", by=ANN)
        await handle.result("5s")
    assert ran == ["wave", "first", "second"]


@durable
async def test_a_step_may_always_ask_or_never(app: App) -> None:
    ran: list[str] = []

    @app.step(approval="required")
    async def harmless(ctx: StepContext) -> None:
        ran.append("harmless")

    @app.step(tags={"financial"}, approval="never")
    async def pay(ctx: StepContext) -> None:
        ran.append("pay")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()
        await harmless()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        question = await asked(app)
        assert (question.step, ran) == ("harmless#1", ["pay"])
        assert "harmless always needs an approval" in question.reasons
        await app.decide(question, "approve", by=ANN)
        await handle.result("5s")
        gated = [event.data for event in await handle.events() if event.type == "step.gated"]
    assert ran == ["pay", "harmless"]
    # What the policy would have asked about is in the log instead.
    assert (gated[0]["step"], gated[0]["risk"], gated[0]["opened_by"]) == ("pay#1", "HIGH", None)


@durable
async def test_one_yes_may_open_every_call_of_a_step(app: App) -> None:
    ran: list[str] = []

    @app.step(irreversible=True)
    async def ship(ctx: StepContext, what: str) -> None:
        ran.append(what)

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("All of them?", opens=[ship])
        await ctx.gather(*[ship(str(n)) for n in range(3)])

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "approve", by=ANN)
        await handle.result("5s")
    assert sorted(ran) == ["0", "1", "2"]


@durable
async def test_the_policy_of_the_app_is_kept(app: App) -> None:
    def odd(facts: RiskFacts) -> tuple[RiskLevel, str] | None:
        odd = facts.arguments.get("usd", 0) % 2
        return (RiskLevel.MEDIUM, "an odd amount") if odd else None

    gates = GatePolicy(tenants={"free": {RiskLevel.HIGH: Gate.RUN}})
    with_policy(app, risk=Classifier().extended(odd), gates=gates)
    job, ran = paying(app)
    async with app.running():
        handle = await app.submit(job(5), user="kim")
        assert await handle.result("5s") == 5
        (event,) = [each for each in await handle.events() if each.type == "step.gated"]
        assert (event.data["risk"], event.data["reasons"]) == ("MEDIUM", ["an odd amount"])
        await (await app.submit(job(4), user="kim")).result("5s")
    assert ran == [5, 4]


@durable
async def test_a_quorum_and_four_eyes_are_kept(app: App) -> None:
    with_policy(app, terms={RiskLevel.HIGH: ApprovalTerms(quorum=2)})
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(5), user="ann")
        approval = await asked(app)
        with pytest.raises(DecisionRefused, match="you submitted this job"):
            await app.decide(approval, "approve", by=ANN)
        await app.decide(approval, "approve", by=BOB)
        with pytest.raises(DecisionRefused, match="you have already approved this"):
            await app.decide(approval, "approve", by=BOB)
        with pytest.raises(DecisionRefused, match="unknown person"):
            await app.decide(approval, "approve", by="eve")
        assert ran == []
        await app.decide(approval, "approve", by=replace(BOB, id="cas"))
        await handle.result("5s")
    kinds = [event.type for event in await handle.events()]
    assert kinds.count("approval.refused") == 2
    assert kinds.count("approval.turned_away") == 1


@durable
async def test_a_step_may_ask_in_its_middle_and_is_begun_again_with_the_answer(app: App) -> None:
    effects: list[str] = []

    @app.step(retry=Retry(attempts=1))
    async def act(ctx: StepContext) -> list[Any]:
        await ctx.effect("draft", lambda _: effects.append("draft"), target="d")
        first = await ctx.approve("Send the draft?", expires="2h", details={"to": "kim"})
        try:
            await ctx.approve("To all?")
        except ApprovalRejected as rejected:
            return [*first.by, rejected.person, ctx.attempt]
        return []

    @app.job
    async def job(ctx: JobContext) -> list[Any]:
        return await act()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        draft = await asked(app)
        assert draft.expires_at is not None
        assert draft.expires_at - draft.created_at == pytest.approx(7200, abs=60)
        await app.decide(draft, "approve", by=ANN)
        await soon(lambda: asked(app), lambda found: found.title == "To all?")
        await until(app, handle.id, JobState.WAITING)
        await app.decide(await asked(app), "reject", by=ANN)
        assert await handle.result("5s") == [ANN.id, ANN.id, 1]
    assert effects == ["draft"]


@durable
async def test_a_sync_step_may_ask_too(app: App) -> None:
    @app.step
    def act(ctx: SyncStepContext) -> list[str]:
        return list(ctx.approve("Well?").by)

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return await act()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "approve", by=ANN)
        assert await handle.result("5s") == [ANN.id]


@durable
async def test_a_cancelled_job_takes_its_question_back(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Ship it?")

    async with app.running():
        handle = await app.submit(job(), user="kim")
        approval = await asked(app)
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)
        with pytest.raises(DecisionRefused, match="withdrawn"):
            await app.decide(approval, "approve", by=ANN)


# What a yes is about


@durable
async def test_every_question_behind_a_checkpoint_needs_an_answer_of_its_own(app: App) -> None:
    paid: list[int] = []

    @app.step
    async def pay(ctx: StepContext) -> None:
        for number in range(ctx.load_checkpoint() or 0, 3):
            if await ctx.approve("Pay 100 USD?"):
                paid.append(number)
            await ctx.save_checkpoint(number + 1)

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        for number in range(3):
            approval = await asked(app)
            assert paid == list(range(number))
            await app.decide(approval, "approve", by=ANN)
            await soon(lambda at=number: _known(paid), lambda found, at=number: len(found) > at)
        await handle.result("5s")
    assert paid == [0, 1, 2]
    assert len(await app.approvals(ApprovalState.APPROVED)) == 3


async def _known(paid: list[int]) -> list[int]:
    return paid


@durable
async def test_every_question_about_an_item_needs_an_answer_of_its_own(app: App) -> None:
    paid: list[str] = []

    @app.step
    async def pay(ctx: StepContext) -> None:
        async for name in ctx.items(["kim", "bob", "bob"], every=1):
            yes = await ctx.approve("Pay 100 USD?")
            paid.append(name if yes else "nobody")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        seen: set[str] = set()
        for _ in range(3):
            approval = await asked(app)
            assert approval.id not in seen
            seen.add(approval.id)
            await app.decide(approval, "approve", by=ANN)
        await handle.result("5s")
    assert paid == ["kim", "bob", "bob"]


@durable
async def test_nobody_can_skip_the_answer_of_people(app: App) -> None:
    ran: list[str] = []

    @app.step(irreversible=True)
    async def ship(ctx: StepContext) -> None:
        ran.append("shipped")

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Ship it?")
        await ship()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await asked(app)
        await until(app, handle.id, JobState.WAITING)
        with pytest.raises(IllegalTransition, match=r"approve#1 .* is a question to people"):
            await handle.skip("approve", "I say so", by="kim")
        await handle.cancel(by="kim")
        await until(app, handle.id, JobState.CANCELLED)
        with pytest.raises(IllegalTransition, match=r"approve#1 .* is a question to people"):
            await handle.skip("approve#1", "I say so", by="kim")
    assert ran == []


@durable
async def test_a_step_that_is_skipped_takes_its_question_back_and_gives_no_yes(app: App) -> None:
    job, ran = paying(app, tags={"financial"})
    async with app.running():
        handle = await app.submit(job(5), user="kim")
        approval = await asked(app)
        await until(app, handle.id, JobState.WAITING)
        await handle.skip("pay", "paid by hand", output=5, by="kim")
        assert await handle.result("5s") == 5
        with pytest.raises(DecisionRefused, match="withdrawn"):
            await app.decide(approval, "approve", by=ANN)
    assert ran == []


@durable
async def test_a_fork_asks_again(app: App) -> None:
    ran: list[int] = []

    @app.step(irreversible=True)
    async def ship(ctx: StepContext, number: int) -> None:
        ran.append(number)

    @app.step
    async def look(ctx: StepContext) -> None: ...

    @app.job
    async def job(ctx: JobContext, number: int) -> list[str]:
        yes = await ctx.approve("Ship it?", details={"number": number}, opens=[ship])
        await look()
        await ship(number)
        return list(yes.by)

    async with app.running():
        handle = await app.submit(job(1), user="kim")
        await app.decide(await asked(app), "approve", by=ANN)
        await handle.result("5s")
        fork = await handle.fork("ship", 1000, by="kim")
        approval = await asked(app)
        assert (approval.job_id, approval.shown) == (fork.id, b'{"number":1000}')
        assert ran == [1]
        await app.decide(approval, "approve", by=BOB)
        assert await fork.result("5s") == ["bob"]
        again = await fork.fork("ship", 2000, by="kim")
        approval = await asked(app)
        assert approval.job_id == again.id
        await app.decide(approval, "reject", by=BOB, reason="no")
        with pytest.raises(JobFailed, match="bob rejected"):
            await again.result("5s")
    assert ran == [1, 1000]


@durable
async def test_a_fork_does_not_take_the_answer_that_a_step_has_got(app: App) -> None:
    @app.step
    async def confirm(ctx: StepContext) -> bool:
        return bool((await ctx.approve("Really?")).by)

    @app.step
    async def act(ctx: StepContext) -> None: ...

    @app.job
    async def job(ctx: JobContext) -> bool:
        sure = await confirm()
        await act()
        return sure

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await app.decide(await asked(app), "approve", by=ANN)
        assert await handle.result("5s") is True
        with pytest.raises(IllegalTransition, match="fork before confirm#1"):
            await handle.fork("act")
        fork = await handle.fork("confirm")
        await app.decide(await asked(app), "reject", by=ANN)
        with pytest.raises(JobFailed, match="ann rejected 'Really\\?'"):
            await fork.result("5s")


# The end of a job


async def withdrawn(app: App, job_id: str) -> list[ApprovalState]:
    """Give the states of what a job has asked; it has ended, and those who were asked know it."""
    store = await app.store()
    told = [each for each in await notices(store, job_id) if each.kind is NoticeKind.DECIDED]
    found = await store.approvals(job=job_id)
    assert {each.approval_id for each in told} == {each.id for each in found}
    return [each.state for each in found]


@pytest.mark.parametrize("how", ["completes", "fails", "is cancelled", "is undone"])
def test_a_job_that_ends_takes_its_questions_back(url: str, how: str) -> None:
    @durable
    async def case(app: App) -> None:
        with_policy(app, channels=(Loud("slack"),))

        @app.step
        async def act(ctx: StepContext) -> None:
            await asked(app)

        @act.compensate
        async def undo(ctx: StepContext, output: None) -> None: ...

        @app.job(on_cancel="compensate" if how == "is undone" else "abandon")
        async def job(ctx: JobContext) -> None:
            question = ctx.approve("Ship it?")
            question.begin()
            await act()
            if how == "fails":
                raise RuntimeError("without an answer")
            if how != "completes":
                await question

        async with app.running():
            handle = await app.submit(job(), user="kim")
            (approval,) = await soon(lambda: app.approvals(None), bool)
            if "is" in how:
                await handle.cancel()
            await handle.wait("5s")
            assert await withdrawn(app, handle.id) == [ApprovalState.WITHDRAWN]
        with pytest.raises(DecisionRefused, match="withdrawn"):
            await app.decide(approval, "approve", by=ANN)

    case(url)


# Channels


class Loud:
    """A channel that remembers what it was told, and fails as often as it is told to."""

    def __init__(self, name: str, fails: int = 0) -> None:
        self.name = name
        self.fails = fails
        self.told: list[tuple[NoticeKind, str]] = []
        self.asked: list[str] = []

    async def recipients(self, notice: Notice, approval: Approval | None) -> list[str]:
        return ["all"]

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("down")
        self.asked.append(notice.asked)
        self.told.append((notice.kind, approval.title if approval else notice.data.decode()))
        return f"{self.name}/1"

    async def has_told(self, number: int) -> None:
        while len(self.told) < number:
            await perdure.process.sleep("5ms")


@durable
async def test_people_are_told_by_every_channel_and_again_when_it_is_decided(app: App) -> None:
    slack, mail = Loud("slack"), Loud("mail", fails=1)
    with_policy(app, channels=(slack, mail))

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Ship it?")

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await slack.has_told(1)
        await app.decide(await asked(app), "approve", by=ANN)
        await handle.result("5s")
        await slack.has_told(2)
    assert slack.told == [(NoticeKind.ASKED, "Ship it?"), (NoticeKind.DECIDED, "Ship it?")]
    assert slack.asked == ["", "slack/1"]


@durable
async def test_an_effect_in_doubt_alerts_people(app: App) -> None:
    slack = Loud("slack")
    with_policy(app, channels=(slack,))

    async def charge(key: str) -> None:
        raise TimeoutError

    @app.step
    async def pay(ctx: StepContext) -> None:
        await ctx.effect("payment", charge, target="card")

    @app.job
    async def job(ctx: JobContext) -> None:
        await pay()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await slack.has_told(1)
    (kind, text) = slack.told[0]
    assert kind is NoticeKind.IN_DOUBT
    assert "the payment to card" in text


# Long logs


@durable
async def test_a_job_with_a_long_log_asks_again_when_it_is_resumed(app: App) -> None:
    @app.step
    async def act(ctx: StepContext) -> bool:
        return bool((await ctx.approve("Ship it?", expires="10ms")).by)

    @app.job
    async def job(ctx: JobContext) -> bool:
        return await act()

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        (expired,) = await app.approvals(ApprovalState.EXPIRED)
        store = await app.store()
        await asyncio.gather(
            *(store.audit_attempt(expired.id, "mail", "a wrong code") for _ in range(1100))
        )
        await handle.resume(by="kim")
        async with asyncio.timeout(20):
            assert (await asked(app)).id != expired.id
    events = await handle.events()
    assert len(events) > 1100
    assert [event.no for event in events] == sorted({event.no for event in events})
    assert "approval.asked" in [event.type for event in events[-5:]]


@durable
async def test_a_question_that_lost_is_withdrawn_while_its_job_goes_on(app: App) -> None:
    with_policy(app, channels=(Loud("slack"),))

    @app.step(risk="high")
    async def pay(ctx: StepContext) -> None: ...

    @app.step
    async def inspect(ctx: StepContext) -> None:
        await ctx.approve("Look inside?")

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.first(ctx.approve("Ship it?"), pay(), inspect(), ctx.receive("go"))
        await ctx.receive("end")

    handle = await app.submit(job(), user="kim")
    async with app.running():
        await asked(app, 3)
        questions = await app.approvals()
        await handle.send("go")
        await soon(app.approvals, lambda found: not found)
        for each in questions:
            with pytest.raises(DecisionRefused, match="withdrawn: the job no longer needs"):
                await app.decide(each, "approve", by=ANN)
        assert await withdrawn(app, handle.id) == [ApprovalState.WITHDRAWN] * 3
        events = [event.type for event in await handle.events()]
        assert events.count("approval.withdrawn") == events.count("approval.refused") == 3
        assert (await handle.job()).state not in ENDED
        await handle.send("end")
        await handle.result("20s")


@durable
async def test_a_question_whose_job_is_cancelled_when_it_has_just_lost_is_withdrawn_once(
    app: App,
) -> None:
    with_policy(app, channels=(Loud("slack"),))

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.first(ctx.approve("Ship it?"), ctx.receive("go"))
        await ctx.receive("end")

    async with app.running():
        handles = [await app.submit(job(), user="kim") for _ in range(5)]
        await asked(app, 5)
        for handle in handles:
            await asyncio.gather(handle.send("go"), handle.cancel())
            await until(app, handle.id, JobState.CANCELLED)
            assert await withdrawn(app, handle.id) == [ApprovalState.WITHDRAWN]
            events = [event.type for event in await handle.events()]
            assert events.count("approval.withdrawn") == 1
