"""`on_failure`: a failure that a person could mend undoes nothing before that person says so."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

import perdure
from perdure import Retry
from perdure.app import App
from perdure.approvals import Person
from perdure.base.errors import DecisionRefused, IllegalTransition, Permanent
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import Approval, ApprovalState, ApprovalTerms
from perdure.jobs.items import ItemPolicy
from perdure.jobs.model import EntryKind, JobChange, JobQuery, QueueLimit, Write
from perdure.jobs.on_failure import UNDO_QUESTION
from perdure.jobs.outbox import NoticeKind
from perdure.jobs.plan import Plan
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState, StepState
from perdure.notify.message import approval_message
from tests.engine.test_alert import alerts
from tests.engine.test_approval import Loud
from tests.support.approvals import ASKED
from tests.support.engine import QUICK, durable, nodes, until
from tests.support.store import entry

ONCE = Retry(attempts=1)
KIM = Person(id="kim", tenant="default", roles=frozenset({"approver"}))
PARKED = JobState.NEEDS_ATTENTION


class Shop:
    """A job of steps that can be undone; `broken` are those that fail."""

    def __init__(self, app: App, *, step: dict[str, Any] | None = None, **options: Any) -> None:
        self.log: list[str] = []
        self.broken: set[str] = {"b"}

        said: dict[str, Any] = {"retry": ONCE} | (step or {})

        @app.step(**said)
        async def act(ctx: StepContext, name: str) -> str:
            return self.do(name)

        @act.compensate(retry=ONCE)
        async def undo(ctx: StepContext, name: str, output: str | None) -> None:
            self.do(f"-{name}")

        @app.job(**options)
        async def order(ctx: JobContext) -> str:
            done = [await act(name) for name in "abc"]
            self.do("end")
            return "".join(done)

        self.act, self.order = act, order

    def do(self, name: str) -> str:
        if name in self.broken:
            raise Permanent(f"{name} is broken")
        self.log.append(name)
        return name


async def parked(app: App, call: Any, **options: Any) -> Handle[Any]:
    """Submit a job and wait until it is parked."""
    handle = await app.submit(call, **options)
    await until(app, handle.id, PARKED)
    return handle


async def question(app: App, state: ApprovalState | None = ApprovalState.PENDING) -> Approval:
    """Return the only question."""
    (found,) = await app.approvals(state)
    return found


async def yes(app: App, asked: Approval) -> None:
    await app.decide(asked, "approve", by=KIM)


# Park


@durable
async def test_a_job_that_parks_on_failure_keeps_what_it_did_and_goes_on_with_mended_code(
    app: App,
) -> None:
    shop = Shop(app, on_failure="park")
    async with app.running():
        handle = await parked(app, shop.order())
        assert shop.log == ["a"]
        failure = await handle.failure()
        assert failure is not None
        assert failure.step == "act#2"
        assert "b is broken" in failure.message
        shop.broken = set()
        await handle.resume("mended", by="kim")
        assert await handle.result("20s") == "abc"
    assert shop.log == ["a", "b", "c", "end"]
    states = {each.id: (each.state, each.attempt) for each in await handle.journal()}
    assert states["act#2"] == (StepState.SUCCEEDED, 1)


@durable
async def test_a_parked_job_is_undone_when_a_person_says_so(app: App) -> None:
    shop = Shop(app, on_failure="park")
    async with app.running():
        handle = await parked(app, shop.order())
        await handle.compensate("not worth it", by="kim")
        assert await handle.wait("20s") is JobState.COMPENSATED
    assert shop.log == ["a", "-b", "-a"]
    failure = await handle.failure()
    assert failure is not None
    assert "b is broken" in failure.message


@durable
async def test_a_person_skips_the_step_that_parked_a_job(app: App) -> None:
    shop = Shop(app, on_failure="park")
    async with app.running():
        handle = await parked(app, shop.order())
        await handle.skip("act#2", "done by hand", output="B", by="kim")
        assert await handle.result("20s") == "aBc"
    assert shop.log == ["a", "c", "end"]


@durable
async def test_a_parked_job_that_a_person_cancels_is_undone_as_its_on_cancel_says(app: App) -> None:
    shop = Shop(app, on_failure="park", on_cancel="compensate")
    async with app.running():
        handle = await parked(app, shop.order())
        await handle.cancel(by="kim")
        assert await handle.wait("20s") is JobState.CANCELLED
    assert shop.log == ["a", "-b", "-a"]


@durable
async def test_a_failure_of_the_code_itself_parks_the_job_too(app: App) -> None:
    shop = Shop(app, on_failure="park")
    shop.broken = {"end"}
    async with app.running():
        handle = await parked(app, shop.order())
        shop.broken = set()
        await handle.resume()
        assert await handle.result("20s") == "abc"
    assert shop.log == ["a", "b", "c", "end"]


@pytest.mark.parametrize("suppressed", [False, True])
def test_code_that_raises_its_own_error_for_that_of_a_step_goes_on_at_the_step(
    url: str, suppressed: bool
) -> None:
    @durable
    async def case(app: App) -> None:
        shop = Shop(app)

        @app.job(on_failure="park")
        async def wraps(ctx: JobContext) -> str:
            try:
                return await shop.act("b")
            except Exception as error:
                if suppressed:
                    raise RuntimeError("no order today") from error
                raise RuntimeError("no order today")  # noqa: B904 - as people write it

        async with app.running():
            handle = await parked(app, wraps())
            shop.broken = set()
            await handle.resume()
            assert await handle.result("20s") == "b"

    case(url)


@durable
async def test_all_branches_that_failed_begin_again(app: App) -> None:
    shop = Shop(app)
    shop.broken = {"a", "b"}

    @app.job(on_failure="park")
    async def branches(ctx: JobContext) -> str:
        async def branch(name: str) -> str:
            with ctx.scope(name):
                return await shop.act(name)

        async with asyncio.TaskGroup() as group:
            both = [group.create_task(branch(name)) for name in "ab"]
        return "".join(each.result() for each in both)

    @app.job(on_failure="park")
    async def gathers(ctx: JobContext) -> str:
        return "".join(await ctx.gather(shop.act("a"), shop.act("b")))

    @app.job(on_failure="park")
    async def groups(ctx: JobContext) -> str:
        done = await ctx.gather(shop.act("a"), shop.act("b"), return_exceptions=True)
        failed = [each for each in done if isinstance(each, Exception)]
        if failed:
            raise ExceptionGroup("the last one first", failed[::-1])
        return "".join(map(str, done))

    async with app.running():
        handles = [await parked(app, job()) for job in (branches, gathers, groups)]
        shop.broken = set()
        for handle in handles:
            await handle.resume()
            assert await handle.result("20s") == "ab"


@durable
async def test_the_first_of_several_that_fails_parks_the_job(app: App) -> None:
    shop = Shop(app)

    @app.job(on_failure="park")
    async def races(ctx: JobContext) -> str:
        return str((await ctx.first(shop.act("b"), ctx.sleep("1h"))).value)

    async with app.running():
        handle = await parked(app, races())
        shop.broken = set()
        await handle.resume()
        assert await handle.result("20s") == "b"


# Who says what happens


@durable
async def test_the_default_stays_undo(app: App) -> None:
    shop = Shop(app)
    async with app.running():
        assert await (await app.submit(shop.order())).wait("20s") is JobState.COMPENSATED


@pytest.mark.parametrize(
    ("step", "job", "whole", "parks"),
    [
        ("park", None, "undo", True),
        ("park", "undo", "undo", True),
        ("undo", "park", "park", False),
        (None, None, "park", True),
        (None, "undo", "park", False),
    ],
)
def test_a_step_wins_over_its_job_and_a_job_over_its_app(
    url: str, step: Any, job: Any, whole: Any, parks: bool
) -> None:
    @durable
    async def case(app: App) -> None:
        app.on_failure = whole
        options = {} if job is None else {"on_failure": job}
        shop = Shop(app, step={} if step is None else {"on_failure": step}, **options)
        async with app.running():
            handle = await app.submit(shop.order())
            ends = await handle.until(PARKED, JobState.COMPENSATED)
            assert ends is (PARKED if parks else JobState.COMPENSATED)

    case(url)


@durable
async def test_the_option_of_a_call_counts_as_that_of_a_step(app: App) -> None:
    tries: list[int] = []

    def fails_once() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise Permanent("not today")
        return 7

    @app.job
    async def calls(ctx: JobContext) -> int:
        return await ctx.call("look", fails_once, on_failure="park")

    async with app.running():
        handle = await parked(app, calls())
        await handle.retry()
        assert await handle.result("20s") == 7


@durable
async def test_a_plan_follows_its_steps_and_its_app(app: App) -> None:
    shop = Shop(app)
    app.on_failure = "park"
    plan = Plan(*(shop.act(name).options(id=name) for name in "ab"))
    async with app.running():
        handle = await parked(app, plan)
        shop.broken = set()
        await handle.retry()
        assert await handle.result("20s") == "b"
    assert shop.log == ["a", "b"]


@durable
async def test_an_outcome_that_the_job_declares_is_an_answer_and_parks_nothing(app: App) -> None:
    class SoldOutError(Exception):
        pass

    shop = Shop(app)

    @app.job(on_failure="park", raises=SoldOutError)
    async def sells(ctx: JobContext) -> None:
        await shop.act("a")
        raise SoldOutError("no lamps")

    async with app.running():
        handle = await app.submit(sells())
        with pytest.raises(SoldOutError):
            await handle.result("20s", if_parked="raise")
    assert shop.log == ["a", "-a"]


@durable
async def test_a_job_that_was_to_be_cancelled_and_fails_at_its_end_is_undone(app: App) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()
    shop = Shop(app)

    @app.step
    async def waits(ctx: StepContext) -> None:
        begun.set()
        await cancelled.wait()

    @app.job(on_failure="ask", on_cancel="finish")
    async def finishes(ctx: JobContext) -> None:
        await shop.act("a")
        await waits()
        await shop.act("b")

    async with app.running():
        handle = await app.submit(finishes())
        await begun.wait()
        await handle.cancel(by="kim")
        (node,) = nodes(app)
        while node.runs[handle.id].job.request != "cancel":
            await perdure.process.sleep("2ms")
        cancelled.set()
        assert await handle.until(PARKED, JobState.COMPENSATED) is JobState.COMPENSATED
    assert shop.log == ["a", "-b", "-a"]
    assert await app.approvals(None) == []


# Deadlines


@durable
async def test_a_deadline_parks_the_job_and_whoever_resumes_it_lifts_the_deadline(app: App) -> None:
    shop = Shop(app)
    shop.broken = set()

    @app.job(on_failure="park", timeout="50ms")
    async def slow(ctx: JobContext) -> str:
        await shop.act("a")
        await ctx.receive("go")
        return await shop.act("c")

    async with app.running():
        handle = await parked(app, slow())
        assert "deadline" in str(await handle.failure())
        await handle.send("go")
        await handle.resume(by="kim")
        assert await handle.result("20s", if_parked="raise") == "c"
    assert (await handle.job()).deadline_at is None
    assert shop.log == ["a", "c"]


@durable
async def test_a_deadline_that_passes_while_a_job_is_parked_undoes_nothing(app: App) -> None:
    shop = Shop(app, on_failure="park", timeout="100ms")
    async with app.running():
        handle = await parked(app, shop.order())
        deadline, store = (await handle.job()).deadline_at or 0.0, await app.store()
        while await store.now() < deadline:
            pass
        shop.broken = set()
        await handle.resume(by="kim")
        assert await handle.result("20s", if_parked="raise") == "abc"


# Children


@durable
async def test_the_parent_of_a_parked_child_waits_and_gets_its_result(app: App) -> None:
    shop = Shop(app, on_failure="park")

    @app.job
    async def parent(ctx: JobContext) -> str:
        return await shop.order()

    async with app.running():
        handle = await app.submit(parent())
        await handle.until(JobState.WAITING)
        (child,) = await children_of(app, handle)
        await until(app, child.id, PARKED)
        assert await handle.status() is JobState.WAITING
        shop.broken = set()
        await child.resume()
        assert await handle.result("20s") == "abc"
    assert shop.log == ["a", "b", "c", "end"]


async def children_of(app: App, handle: Handle[Any]) -> list[Handle[Any]]:
    while True:
        if found := await app.find_jobs(JobQuery(parent=handle.id)):
            return [await app.handle(each.id) for each in found]


@durable
async def test_a_parent_that_parks_for_a_failed_child_runs_it_again_when_it_is_resumed(
    app: App,
) -> None:
    shop = Shop(app)
    shop.broken = {"only"}

    @app.job
    async def fails(ctx: JobContext) -> str:
        return shop.do("only")

    @app.job(on_failure="park")
    async def parent(ctx: JobContext) -> str:
        await shop.act("a")
        return await fails()

    async with app.running():
        handle = await parked(app, parent())
        shop.broken = set()
        await handle.resume()
        assert await handle.result("20s") == "only"
    assert shop.log == ["a", "only"]


@durable
async def test_the_undo_of_a_parent_ends_a_parked_child(app: App) -> None:
    shop = Shop(app, on_failure="ask", on_cancel="compensate")

    @app.job
    async def parent(ctx: JobContext) -> None:
        ctx.child(shop.order()).begin()
        await ctx.receive("go")
        raise Permanent("the parent itself")

    async with app.running():
        handle = await app.submit(parent())
        (child,) = await children_of(app, handle)
        await until(app, child.id, PARKED)
        await handle.send("go")
        await handle.wait("20s")
        assert await child.status() in (JobState.CANCELLED, JobState.COMPENSATED)
    assert shop.log == ["a", "-b", "-a"]
    assert (await question(app, None)).state is ApprovalState.WITHDRAWN


# Crashes, and several workers


@pytest.mark.parametrize("how", ["park", "ask"])
def test_a_crash_between_the_failure_of_a_step_and_the_parking_loses_nothing(
    url: str, how: str
) -> None:
    @durable
    async def case(app: App) -> None:
        shop = Shop(app, on_failure=how)
        handle, store = await app.submit(shop.order()), await app.store()
        (claim,) = await store.claim("dead", {"default": QueueLimit()}, 1, 60)
        failed = entry(
            1,
            StepState.FAILED,
            id="act#1",
            name="act",
            kind=EntryKind.STEP,
            attempt=1,
            input=b'{"name":"a"}',
            error=b'{"type":"X","message":"y"}',
        )
        await store.write(
            Write(job_id=handle.id, owner="dead", epoch=claim.epoch, entries=(failed,))
        )
        await store.reap(0, ["dead"])
        shop.broken = set()
        async with app.running():
            await until(app, handle.id, PARKED)
            assert shop.log == []
            assert len(await app.approvals()) == (how == "ask")
            await handle.resume()
            assert await handle.result("20s") == "abc"

    case(url)


@durable
async def test_bulk_retry_continues_parked_jobs(app: App) -> None:
    shop = Shop(app, on_failure="park")
    async with app.running():
        handles = [await parked(app, shop.order()) for _ in range(3)]
        shop.broken = set()
        await app.command_jobs("retry", JobQuery(states=(PARKED,)), by="kim")
        for handle in handles:
            assert await handle.result("20s") == "abc"
    assert sorted(shop.log) == [*"aaabbbccc", *["end"] * 3]


# Ask


@durable
async def test_people_are_asked_once_and_a_yes_undoes_the_job(app: App) -> None:
    slack, pager = Loud("slack"), Loud("pager")
    app.policy = Policy(channels=(slack,), alerts=(pager,))
    shop = Shop(app, on_failure="ask")
    async with app.running():
        handle = await parked(app, shop.order(), user="kim")
        asked = await question(app)
        await slack.has_told(1)
        await pager.has_told(1)
        assert "order" in asked.title
        assert "act#2" in asked.title
        assert b"b is broken" in asked.shown
        card = dict(approval_message(asked).fields)
        assert card["What it does"].startswith(
            "Approve: everything that the job has done is undone"
        )
        assert "Step" not in card  # no step waits for it
        await yes(app, asked)  # kim has submitted it, and may say so all the same
        assert await handle.wait("20s") is JobState.COMPENSATED
        await slack.has_told(2)
    assert shop.log == ["a", "-b", "-a"]
    assert [kind for kind, _ in slack.told] == [NoticeKind.ASKED, NoticeKind.DECIDED]
    assert pager.told[0][0] is NoticeKind.NEEDS_ATTENTION
    told = [each.kind for each in await alerts(app, handle.id)]
    assert told.count(NoticeKind.NEEDS_ATTENTION) == 1
    log = [each.type for each in await handle.events()]
    assert log.count("approval.asked") == log.count("job.needs_attention") == 1
    by = [each.actor for each in await handle.events() if each.type == "compensate.asked"]
    assert by == ["kim"]


@durable
async def test_a_no_keeps_everything_and_the_job_stays_parked(app: App) -> None:
    shop = Shop(app, on_failure="ask")
    async with app.running():
        handle = await parked(app, shop.order())
        await app.decide(await question(app), "reject", by=KIM)
        assert await handle.status() is PARKED
        shop.broken = set()
        await handle.resume()
        assert await handle.result("20s") == "abc"
    assert shop.log == ["a", "b", "c", "end"]


@durable
async def test_silence_keeps_everything(app: App) -> None:
    app.policy = Policy(terms={RiskLevel.HIGH: ApprovalTerms(expires=0.05)})
    shop = Shop(app, on_failure="ask")
    async with app.running():
        handle = await parked(app, shop.order())
        while (await question(app, None)).state is not ApprovalState.EXPIRED:
            pass
        assert await handle.status() is PARKED
        shop.broken = set()
        await handle.resume()
        assert await handle.result("20s") == "abc"


@pytest.mark.parametrize("what", ["resume", "retry", "skip", "compensate", "cancel"])
def test_whoever_acts_first_settles_the_question(url: str, what: str) -> None:
    @durable
    async def case(app: App) -> None:
        shop = Shop(app, on_failure="ask")
        async with app.running():
            handle = await parked(app, shop.order())
            asked = await question(app)
        if what == "skip":
            await handle.skip("act#2", "by hand", output="b")
        else:
            await getattr(handle, what)()
        assert (await question(app, None)).state is ApprovalState.WITHDRAWN
        with pytest.raises(DecisionRefused, match="withdrawn"):
            await yes(app, asked)

    case(url)


@durable
async def test_a_job_that_fails_again_asks_again(app: App) -> None:
    shop = Shop(app, on_failure="ask")
    async with app.running():
        handle = await parked(app, shop.order())
        first = await question(app)
        await handle.resume()
        while not [each for each in await app.approvals() if each.id != first.id]:
            pass
        await until(app, handle.id, PARKED)
        await yes(app, await question(app))
        assert await handle.wait("20s") is JobState.COMPENSATED


@durable
async def test_nobody_is_asked_to_undo_what_a_pivot_has_settled(app: App) -> None:
    shop = Shop(app)

    @app.step(pivot=True)
    async def settles(ctx: StepContext) -> None: ...

    @app.job(on_failure="ask")
    async def forward(ctx: JobContext) -> None:
        await settles()
        await shop.act("b")

    async with app.running():
        handle = await parked(app, forward())
        assert await app.approvals() == []
        assert "settles#1 is passed" in str(await handle.failure())


@durable
async def test_no_worker_is_needed_for_the_answer(app: App) -> None:
    shop = Shop(app, on_failure="ask")
    async with app.running():
        handle = await parked(app, shop.order())
    await yes(app, await question(app))
    assert await handle.status() is JobState.COMPENSATING
    other = App(app.url, worker=QUICK)
    again = Shop(other, on_failure="ask")
    async with other.running():
        assert await handle.wait("20s") is JobState.COMPENSATED
    await other.close()
    assert (shop.log, again.log) == (["a"], ["-b", "-a"])


@durable
async def test_a_yes_to_a_job_that_was_cancelled_when_it_was_about_to_be_parked_changes_nothing(
    app: App,
) -> None:
    shop = Shop(app, on_failure="ask")
    handle, store = await app.submit(shop.order()), await app.store()
    (claim,) = await store.claim("worker", {"default": QueueLimit()}, 1, 60)
    await handle.cancel(by="ann")
    approval = replace(
        ASKED,
        tenant="default",
        job_id=handle.id,
        step=UNDO_QUESTION,
        action=replace(ASKED.action, tenant="default", job_id=handle.id),
    )
    why = b'{"type":"x","message":"y"}'
    stop = JobChange(state=PARKED, error=why, release=True)
    at: dict[str, Any] = {"epoch": claim.epoch, "news_seen": claim.news}
    await store.write(
        Write(job_id=handle.id, owner="worker", job=stop, approvals=(approval,), **at)
    )
    await yes(app, approval)
    job = await handle.job()
    assert (job.state, job.request) == (JobState.WAITING, "cancel")
    async with app.running():
        assert await handle.wait("20s") is JobState.CANCELLED


# A migration with a poison row


class Migration:
    """A job that migrates rows one by one in one step; `poison` cannot be migrated."""

    def __init__(self, app: App, on_error: Any = "fail") -> None:
        self.rows: list[int] = []
        self.poison = {7}
        self.tries = 0

        @app.step(retry=ONCE)
        async def migrate(ctx: StepContext, count: int) -> int:
            self.tries += 1
            async for row in ctx.items(range(count), on_error=on_error):
                if row in self.poison:
                    raise ValueError(f"row {row} is poison")
                self.rows.append(row)
            return count

        @migrate.compensate
        async def roll_back(ctx: StepContext, count: int, output: int | None) -> None:
            self.rows.clear()

        @app.job(on_failure="park")
        async def migration(ctx: JobContext, count: int) -> int:
            return await migrate(count)

        self.job = migration


@durable
async def test_a_poison_row_undoes_no_good_row_and_mended_code_does_none_of_them_twice(
    app: App,
) -> None:
    rows = Migration(app)
    async with app.running():
        handle = await parked(app, rows.job(20))
        assert rows.rows == list(range(7))
        rows.poison = set()
        await handle.resume("mended", by="kim")
        assert await handle.result("20s") == 20
    assert rows.rows == list(range(20))


@durable
async def test_only_the_rows_in_quarantine_are_done_when_a_person_retries(app: App) -> None:
    rows = Migration(app, "quarantine")
    good = [row for row in range(20) if row != 7]
    async with app.running():
        handle = await parked(app, rows.job(20))
        assert rows.rows == good
        rows.poison = set()
        await handle.retry(by="kim")
        assert await handle.result("20s") == 20
    assert rows.rows == [*good, 7]


@durable
async def test_a_person_leaves_the_rows_in_quarantine_out(app: App) -> None:
    rows = Migration(app, "quarantine")
    async with app.running():
        handle = await parked(app, rows.job(20))
        await handle.skip("migrate#1", "row 7 is not needed", output=19, by="kim")
        assert await handle.result("20s") == 19
    assert rows.rows == [row for row in range(20) if row != 7]


@pytest.mark.parametrize("on_error", ["fail", "quarantine"])
def test_a_person_leaves_out_the_rows_that_failed_and_all_others_are_done_once(
    url: str, on_error: str
) -> None:
    @durable
    async def case(app: App) -> None:
        rows = Migration(app, on_error)
        async with app.running():
            handle = await parked(app, rows.job(20))
            await handle.skip_item("migrate", "row 7 is not needed", by="kim")
            assert await handle.result("20s") == 20
        assert rows.rows == [row for row in range(20) if row != 7]

    case(url)


@durable
async def test_two_poison_rows_are_left_out_one_after_the_other(app: App) -> None:
    rows = Migration(app)
    rows.poison = {7, 8}
    async with app.running():
        handle = await parked(app, rows.job(20))
        await handle.skip_item("migrate", "row 7 is not needed", by="kim")
        while await handle.status() is not PARKED or rows.tries < 2:
            pass
        await handle.skip_item("migrate", "neither is row 8", by="kim")
        assert await handle.result("20s") == 20
    assert rows.rows == [row for row in range(20) if row not in (7, 8)]


@durable
async def test_only_a_step_that_failed_at_an_item_can_leave_one_out(app: App) -> None:
    shop = Shop(app, on_failure="park")

    @app.step(retry=ONCE)
    async def walks_and_fails(ctx: StepContext) -> None:
        async for _ in ctx.items(range(3)):
            pass
        raise Permanent("after the last item")

    @app.job(on_failure="park")
    async def walks(ctx: JobContext) -> None:
        await walks_and_fails()

    async with app.running():
        handles = [await parked(app, shop.order()), await parked(app, walks())]
    for handle, step in zip(handles, ("act#2", "walks_and_fails#1"), strict=True):
        with pytest.raises(IllegalTransition, match="has not failed at an item"):
            await handle.skip_item(step, "why not", by="kim")
    with pytest.raises(IllegalTransition, match="has not failed at an item"):
        await handles[0].skip_item("act#1", "why not", by="kim")


@durable
async def test_an_item_is_tried_as_often_as_its_policy_says(app: App) -> None:
    rows = Migration(app, ItemPolicy(on_error="skip", attempts=3))
    async with app.running():
        assert await (await app.submit(rows.job(20))).result("20s", if_parked="raise") == 20
    assert rows.rows == [row for row in range(20) if row != 7]
    assert rows.tries == 4
