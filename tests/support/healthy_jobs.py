"""Healthy jobs that use every primitive, people who command them, and a worker for them.

`python -m tests.support.healthy_jobs URL FOLDER` works until it is killed. A story is what one
person does from a submission to the end; `STORIES` has them by name.
"""

import asyncio
import random
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure import BudgetLimits, Partial, Plan, PlanCall, Ref, Retry
from perdure.app import App
from perdure.base.errors import BudgetExceeded, JobError, Permanent, Refused
from perdure.base.retry import pause
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import ApprovalTerms, Person
from perdure.jobs.effect import DidNotHappen, QueryAnswer
from perdure.jobs.model import JobQuery
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.notify.people import Contact, People
from tests.support.engine import QUICK

AGAIN = Retry(attempts=4, initial_delay="1ms", jitter=0)
ONCE = Retry(attempts=1)
LARGE = "large " * 4000
ENDED = (JobState.COMPLETED, JobState.COMPENSATED, JobState.FAILED, JobState.CANCELLED)


def policy() -> Policy:
    """Let ann decide about everything."""
    ann = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
    terms = {level: ApprovalTerms(four_eyes=False) for level in RiskLevel}
    return Policy(people=People([Contact(person=ann)]), terms=terms)


class Corpus:
    """The app, its steps and jobs; a file of a name in the folder says that something is mended."""

    def __init__(
        self, url: str, folder: Path, worker: WorkerSettings = QUICK, **options: Any
    ) -> None:
        self.folder = folder
        self.app = App(url, worker=worker, policy=policy(), **options)
        self._steps()
        self._other_steps()
        self._failing_items()
        self._effects()
        self._doubtful_effects()
        self._plain_jobs()
        self._other_jobs()
        self._continued_jobs()
        self._sagas()
        self._asking_jobs()

    def mend(self, what: str) -> None:
        """Let a part work from now on."""
        (self.folder / what).touch()

    def need(self, what: str) -> None:
        """Fail unless it was mended."""
        if not (self.folder / what).exists():
            raise Permanent(f"{what} is broken")

    def _steps(self) -> None:
        app = self.app

        @app.step(retry=AGAIN)
        async def double(ctx: StepContext, number: int) -> int:
            ctx.heartbeat()
            ctx.progress(1, 2, "half")
            ctx.emit(number, topic="numbers")
            return 2 * number

        @app.step(retry=AGAIN)
        async def walk(ctx: StepContext, names: list[str]) -> list[str]:
            async for name in ctx.items(names, every=2):
                ctx.collect(name * 2)
                assert ctx.item_report is not None
            return ctx.collected(str)

        @app.step(retry=AGAIN)
        async def parts(ctx: StepContext) -> Any:
            done = ctx.load_checkpoint() or 0
            if done == 1:
                await ctx.save_checkpoint(2)
            return "all" if done else Partial(1, 1)

        @app.step(retry=AGAIN)
        async def large(ctx: StepContext, text: str) -> str:
            return LARGE + text

        @app.step(retry=AGAIN, idempotency_key=_shared_key)
        async def shared(ctx: StepContext, number: int) -> int:
            return number

        self.double, self.walk, self.parts, self.large, self.shared = (
            *(double, walk, parts, large, shared),
        )

    def _failing_items(self) -> None:
        app = self.app

        @app.step(retry=ONCE, on_failure="park")
        async def sort(ctx: StepContext, names: list[str]) -> int:
            async for name in ctx.items(names):
                if name == "poison":
                    raise ValueError(name)
            return len(names)

        @app.job(on_failure="ask")
        async def sorts(ctx: JobContext) -> int:
            await self.pay()
            return await sort(["a", "poison", "b"])

        self.sorts = sorts

    def _other_steps(self) -> None:
        app = self.app

        @app.step(retry=ONCE)
        async def broken(ctx: StepContext, what: str) -> str:
            self.need(what)
            return what

        @app.step(retry=AGAIN)
        async def think(ctx: StepContext) -> None:
            async with ctx.spend(usd=1.0) as spent:
                await spent.settle(usd=0.5)

        @app.step(retry=AGAIN)
        async def inquire(ctx: StepContext) -> bool:
            return bool(await ctx.approve("Go on?"))

        @app.step(retry=AGAIN, risk=RiskLevel.MEDIUM, approval="required")
        async def gated(ctx: StepContext, usd: int) -> int:
            return usd

        @app.transaction(lambda: sqlite3.connect(self.folder / "user.db", timeout=30))
        def book(db: Any) -> int:
            return 1

        @app.step(retry=AGAIN)
        async def hang(ctx: StepContext) -> None:
            await ctx.cancelled.wait()

        self.broken, self.think, self.inquire = broken, think, inquire
        self.gated, self.book, self.hang = gated, book, hang

    def _effects(self) -> None:
        app = self.app

        @app.step(retry=AGAIN)
        async def refund(ctx: StepContext, result: Any) -> None:
            assert ctx.undone is not None
            await ctx.effect("refund", _gives("back"), target="card", in_doubt="replay")

        @app.step(retry=AGAIN)
        async def pay(ctx: StepContext) -> str:
            return await ctx.effect(
                "pay", _gives("paid"), target="card", in_doubt="replay", undo=refund
            )

        @app.step(retry=AGAIN)
        async def pay_once(ctx: StepContext, order: str) -> str:
            return await ctx.effect(
                "pay", _gives("paid"), target="card", key=order, in_doubt="replay", undo=refund
            )

        @app.step(retry=AGAIN)
        async def act(ctx: StepContext, name: str) -> str:
            return name

        @act.compensate(retry=ONCE)
        async def unact(ctx: StepContext, name: str, output: str | None) -> None:
            assert ctx.undone_checkpoint is None
            if name != "act":
                self.need(f"undo {name}")

        assert unact
        self.pay, self.pay_once, self.refund, self.act = pay, pay_once, refund, act

    def _doubtful_effects(self) -> None:
        app = self.app

        @app.step(retry=AGAIN)
        async def pay_queried(ctx: StepContext) -> str:
            return await ctx.effect(
                *("pay", self._fails_once(ctx)), target="card", in_doubt="ask", undo=None,
                query=_did_not, settle_after="1ms",
            )  # fmt: skip

        @app.step(retry=AGAIN)
        async def pay_refused(ctx: StepContext) -> str:
            async def refuses(key: str) -> str:
                raise Refused("no money")

            with suppress(Refused):
                await ctx.effect("pay", refuses, target="card", undo=None)
            if not await ctx.was_effect_recorded("note", "n"):
                await ctx.record_effect("note", "n", target="book")
            return ctx.idempotency_key

        @app.step(retry=AGAIN)
        async def pay_in_doubt(ctx: StepContext) -> str:
            async def lost(key: str) -> str:
                raise TimeoutError("no answer")

            return await ctx.effect("pay", lost, target="card", in_doubt="ask", undo=self.refund)

        self.pay_queried, self.pay_refused = pay_queried, pay_refused
        self.pay_in_doubt = pay_in_doubt

    def _fails_once(self, ctx: StepContext) -> Callable[[str], Awaitable[str]]:
        mark = f"{ctx.job_id}-{ctx.step_id}".replace("#", "-")

        async def call(key: str) -> str:
            if not (self.folder / mark).exists():
                self.mend(mark)
                raise TimeoutError("no answer")
            return "paid"

        return call

    def _plain_jobs(self) -> None:
        app = self.app

        @app.job
        async def plain(ctx: JobContext) -> Any:
            ctx.emit({"job": ctx.job_id, "of": [ctx.tenant, ctx.user]})
            with ctx.unrecorded("it only looks at itself"):
                known = (ctx.now(), ctx.random(), ctx.uuid(), ctx.patched("new"))
            begun = ctx.start(self.double(1))
            await ctx.gather(self.double(2), self.large("a"), ctx.sleep("5ms"))
            async with asyncio.TaskGroup() as group:
                for page in ("a", "b"):
                    group.create_task(branch(ctx, page))
            await ctx.call("closure", lambda: 1)
            return [await begun, await self.walk(["a", "b", "c"]), await self.parts(), len(known)]

        async def branch(ctx: JobContext, page: str) -> None:
            with ctx.scope(page):
                await self.double(3)
                await self.shared(4)

        @app.job
        async def pays(ctx: JobContext) -> None:
            await self.pay()
            await self.pay_once("order 1")
            await self.pay_queried()
            await self.pay_refused()
            await self.book()

        @app.job
        async def doubts(ctx: JobContext) -> str:
            return await self.pay_in_doubt()

        @app.job
        async def listens(ctx: JobContext) -> Any:
            return await ctx.receive("go")

        self.plain, self.pays, self.doubts, self.listens = plain, pays, doubts, listens

    def _other_jobs(self) -> None:
        app, listens = self.app, self.listens

        @app.job
        async def races(ctx: JobContext) -> Any:
            with suppress(JobError):
                await ctx.first(ctx.receive("never"), self.double(1))
                await ctx.first(ctx.sleep("1h"), self.double(1), self.hang())
                await ctx.first(ctx.approve("Win?"), self.double(2))
                await ctx.first(ctx.child(listens()), self.double(3))
                late = ctx.start(self.double(4))
                await ctx.first(late, self.double(5), losers="continue")
                return await late
            return None

        @app.job(on_outage="fail")
        async def needs(ctx: JobContext, what: str) -> str:
            await self.pay()
            return await self.broken(what)

        @app.job
        async def stays(ctx: JobContext, what: str) -> str:
            return await self.broken(what)

        @app.job(on_cancel="abandon")
        async def hangs(ctx: JobContext) -> None:
            await ctx.gather(ctx.child(listens()), self.hang())

        @app.job(budget=BudgetLimits(usd=1.2))
        async def thinks(ctx: JobContext, depth: int) -> None:
            if depth:
                await thinks(depth - 1)
            with suppress(BudgetExceeded, JobError):
                await self.think()

        self.races, self.needs, self.stays = races, needs, stays
        self.hangs, self.thinks = hangs, thinks

    def _continued_jobs(self) -> None:
        app = self.app

        @app.job(on_cancel="compensate")
        async def rounds(ctx: JobContext, number: int, fails: bool, text: str = "") -> int:
            ctx.emit(number)
            await self.pay()
            with ctx.scope("apart"):
                await self.pay()
            await self.act("act")
            await self.book()
            await self.large(str(number))
            await ctx.child(self.plain())
            if number < 2:
                await ctx.continue_as(rounds(number + 1, fails, LARGE))
            if fails:
                raise Permanent("this was not to be")
            return number

        @app.job(on_cancel="compensate")
        async def over_rounds(ctx: JobContext, fails: bool) -> None:
            await rounds(0, False)
            if fails:
                raise Permanent("this was not to be")

        self.rounds, self.over_rounds = rounds, over_rounds

    def _sagas(self) -> None:
        app = self.app

        @app.job(on_cancel="compensate")
        async def family(ctx: JobContext, depth: int, fails: bool, undo: str = "act") -> None:
            await self.pay()
            await self.act(undo)
            if depth:
                await ctx.gather(family(depth - 1, False), family(0, False))
            if fails:
                raise Permanent("this was not to be")

        @app.job(on_cancel="compensate")
        async def family_waits(ctx: JobContext) -> None:
            await family(1, False)
            await ctx.gather(self.listens(), ctx.receive("never"))

        self.family, self.family_waits = family, family_waits

    def _asking_jobs(self) -> None:
        app = self.app

        @app.job
        async def asks(ctx: JobContext) -> bool:
            await ctx.approve("Begin?")
            return await self.inquire()

        @app.job
        async def gates(ctx: JobContext) -> int:
            return await self.gated(5)

        @app.job
        async def expires(ctx: JobContext) -> None:
            with suppress(JobError):
                await ctx.approve("In time?", expires="1ms")

        self.asks, self.gates, self.expires = asks, gates, expires


def _shared_key(number: int) -> str:
    return f"shared {number}"


def _gives(word: str) -> Callable[[str], Awaitable[str]]:
    async def call(key: str) -> str:
        return word

    return call


async def _did_not(key: str) -> QueryAnswer:
    return DidNotHappen()


# What people do

Story = Callable[[Corpus], Coroutine[Any, Any, None]]
STORIES: dict[str, Story] = {}


def story(told: Story) -> Story:
    """Keep a story under its name."""
    STORIES[told.__name__] = told
    return told


async def _answer(it: Corpus, handle: Handle[Any], verdict: Any = "approve", **more: Any) -> None:
    """Decide about what a job asks next, once it asks; nothing if it ends before."""
    while await handle.status() not in ENDED:
        for asked in await it.app.approvals():
            if asked.job_id == handle.id:
                with suppress(JobError):
                    await it.app.decide(asked, verdict, by="ann", **more)
                    return
        await pause(0.02)


async def _has_children(it: Corpus, handle: Handle[Any], number: int) -> None:
    while len(await it.app.find_jobs(JobQuery(parent=handle.id))) < number:
        await pause(0.02)


@story
async def everything_that_only_runs(it: Corpus) -> None:
    app = it.app
    calls = [it.plain(), it.pays(), it.pays(), it.races(), it.rounds(0, False)]
    handles: list[Handle[Any]] = [
        *await app.submit_many(calls, labels={"kind": "plain"}),
        await app.submit(it.over_rounds(False), key="one", user="kim"),
        await app.submit(
            Plan(PlanCall("double", number=1), PlanCall("shared", number=Ref("double")))
        ),
    ]
    for handle in handles:
        assert await handle.wait("60s") is JobState.COMPLETED, await handle.failure()


@story
async def what_fails_is_undone(it: Corpus) -> None:
    calls = [it.family(2, True), it.rounds(0, True), it.over_rounds(True)]
    for handle in await it.app.submit_many(calls):
        assert await handle.wait("60s") is JobState.COMPENSATED, await handle.failure()


@story
async def what_is_cancelled_is_undone_with_its_children(it: Corpus) -> None:
    handle = await it.app.submit(it.family_waits())
    await _has_children(it, handle, 2)
    await handle.cancel()
    assert await handle.wait("60s") is JobState.CANCELLED


@story
async def an_undo_that_fails_is_given_up_or_retried(it: Corpus) -> None:
    retried = await it.app.submit(it.family(0, True, "mended"))
    given_up = await it.app.submit(it.family(0, True, "lost"))
    for handle in (retried, given_up):
        await handle.until(JobState.NEEDS_ATTENTION)
    it.mend("undo mended")
    await retried.retry()
    assert await retried.wait("60s") is JobState.COMPENSATED
    await given_up.abandon_undo("undo:act#1", "impossible")
    assert await given_up.wait("60s") is JobState.FAILED


@story
async def a_failed_job_is_retried_skipped_and_forked(it: Corpus) -> None:
    app = it.app
    retried, skipped, forked = await app.submit_many([it.stays("disk") for _ in range(3)])
    undone = await app.submit(it.needs("disk"))
    for handle in (retried, skipped, forked):
        assert await handle.wait("60s") is JobState.FAILED
    assert await undone.wait("60s") is JobState.COMPENSATED
    await skipped.skip("broken", "done by hand", output="done")
    assert await skipped.result("60s") == "done"
    it.mend("disk")
    await retried.retry()
    copy = await forked.fork("broken")
    assert [await each.wait("60s") for each in (retried, copy)] == [JobState.COMPLETED] * 2


@story
async def an_item_that_fails_is_left_out(it: Corpus) -> None:
    handle = await it.app.submit(it.sorts())
    await handle.until(JobState.NEEDS_ATTENTION)
    await handle.skip_item("sort", "it is poison")
    assert await handle.result("60s") == 3


@story
async def a_cancelled_job_is_retried(it: Corpus) -> None:
    handle = await it.app.submit(it.hangs())
    await _has_children(it, handle, 1)
    await handle.cancel()
    assert await handle.wait("60s") is JobState.CANCELLED
    await handle.retry()
    await handle.until(JobState.WAITING, JobState.RUNNING)
    await handle.cancel()
    assert await handle.wait("60s") is JobState.CANCELLED
    await handle.compensate()
    await handle.wait("60s")


@story
async def an_effect_in_doubt_is_settled_by_a_person(it: Corpus) -> None:
    happened, undone = await it.app.submit_many([it.doubts(), it.doubts()])
    for handle in (happened, undone):
        await handle.until(JobState.NEEDS_ATTENTION)
    await happened.resolve(1, "happened", result="paid")
    assert await happened.result("60s") == "paid"
    await undone.resolve(1, "compensate")
    await undone.wait("60s")


@story
async def people_answer_questions(it: Corpus) -> None:
    app = it.app
    yes, no, left = await app.submit_many([it.asks(), it.asks(), it.asks()])
    gated, late = await app.submit(it.gates()), await app.submit(it.expires())
    await _answer(it, yes)
    await _answer(it, yes)
    await _answer(it, no, "reject")
    await _answer(it, gated, arguments={"usd": 4})
    await left.until(JobState.WAITING)
    await left.cancel()
    assert await left.wait("60s") is JobState.CANCELLED
    await left.retry()
    await _answer(it, left)
    await _answer(it, left)
    assert [await each.wait("60s") for each in (yes, left, gated, late)] == [JobState.COMPLETED] * 4
    assert await no.wait("60s") is JobState.FAILED


@story
async def a_budget_is_raised_or_not(it: Corpus) -> None:
    handle = await it.app.submit(it.thinks(3))
    while await handle.status() not in ENDED:
        for asked in await it.app.approvals():
            verdict = random.Random(asked.id).choice(("approve", "reject"))
            with suppress(JobError):
                await it.app.decide(asked, verdict, by="ann")
        await pause(0.02)


@story
async def many_are_commanded_at_once(it: Corpus) -> None:
    app, labels = it.app, {"kind": "listens"}
    handles = await app.submit_many([it.listens() for _ in range(3)], labels=labels)
    query = JobQuery(labels=labels)
    await app.command_jobs("pause", query)
    for handle in handles:
        await handle.until(JobState.PAUSED)
    await app.command_jobs("resume", query)
    first, second, third = handles
    await first.pause()
    await first.resume()
    for handle in (first, second):
        await handle.send("go", LARGE, key="1")
        assert await handle.wait("60s") is JobState.COMPLETED
    await app.command_jobs("cancel", query)
    assert await third.wait("60s") is JobState.CANCELLED
    await app.command_jobs("retry", JobQuery(labels=labels, states=(JobState.CANCELLED,)))
    await third.send("go", 1)
    assert await third.wait("60s") is JobState.COMPLETED


@story
async def jobs_are_scheduled_delayed_limited_and_copied(it: Corpus) -> None:
    app = it.app
    await app.schedules.put("nightly", "0 3 * * *", it.plain())
    await app.schedules.pause("nightly")
    later = await app.submit(it.plain(), delay="1h", queue="later", priority=3)
    short = await app.submit(it.listens(), deadline="50ms")
    done = await app.submit(it.rounds(0, False))
    await done.wait("60s")
    copy = await app.import_job(await app.export_job(done.id))
    assert await copy.status() is JobState.COMPLETED
    await short.wait("60s")
    await later.cancel()
    fork = await done.fork("/2/pay#1")
    assert await fork.wait("60s") is JobState.COMPLETED


if __name__ == "__main__":
    Corpus(sys.argv[1], Path(sys.argv[2])).app.serve_sync()
