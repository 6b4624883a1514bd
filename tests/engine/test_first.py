"""`ctx.first`: one operation wins, and the others have consumed nothing."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

import perdure
from perdure import JobContext, Retry
from perdure.app import App
from perdure.base.errors import OperationCancelled, StepTimeout
from perdure.engine.journal.run import Operation
from perdure.engine.steps.waits import Child
from perdure.jobs.approval import Person
from perdure.jobs.model import JobNews, QueueLimit
from perdure.jobs.state import JobState, StepState
from perdure.testing import crash_everywhere
from tests.support.engine import QUICK, durable, nodes, until
from tests.support.unwritable import WritableAgain

EACH = 8
ROUNDS = 25

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))


@contextlib.asynccontextmanager
async def serving(app: App, queue: str = "default") -> AsyncGenerator[None]:
    """Run a worker of one queue."""
    app.queues = {queue: QueueLimit()}
    async with app.running():
        yield


def two_topics(app: App) -> Any:
    """Make a job that receives messages of two topics, whichever comes first."""

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        found: list[str] = []
        while len(found) < 2 * EACH:
            either = await ctx.first(ctx.receive("a", kind=str), ctx.receive("b", kind=str))
            found.append(either.value)
        return found

    return job


SENT = [f"{topic}{number}" for number in range(EACH) for topic in "ab"]


@durable
async def test_messages_of_two_topics_are_received_once_in_the_order_they_were_sent(
    app: App,
) -> None:
    handle = await app.submit(two_topics(app)())
    for message in SENT:
        await handle.send(message[0], message)
    async with app.running():
        assert await handle.result("20s") == SENT


@durable
async def test_messages_that_come_while_the_job_waits_for_two_topics_are_all_received(
    app: App,
) -> None:
    chance = random.Random(3)
    async with app.running():
        handle = await app.submit(two_topics(app)())
        for message in SENT:
            await handle.send(message[0], message)
            await perdure.process.sleep(0.004 * chance.random())
        assert sorted(await handle.result("20s")) == sorted(SENT)


@durable
async def test_a_poll_for_messages_loses_none(app: App) -> None:
    chance = random.Random(4)

    @app.job
    async def job(ctx: JobContext) -> list[int]:
        found: list[int] = []
        while len(found) < 2 * EACH:
            first = await ctx.first(ctx.receive("a", kind=int), ctx.sleep("5ms"))
            if first.value is not None:
                found.append(first.value)
        return found

    async with app.running():
        handle = await app.submit(job())
        for number in range(2 * EACH):
            await handle.send("a", number)
            await perdure.process.sleep(0.01 * chance.random())
        assert await handle.result("20s") == list(range(2 * EACH))


def test_a_loop_over_two_topics_receives_the_same_wherever_its_worker_is_killed(url: str) -> None:
    app = App("sqlite:///never_opened.db")

    @app.step
    async def keep(word: str) -> str:
        return word

    @app.job
    async def inner(parent: str) -> None:
        await (await app.handle(parent)).send("a", "from the child", key="child")

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        app_handle = await app.handle(ctx.job_id)
        await ctx.call("send", lambda: app_handle.send("b", "from the job", key="job"))
        await inner(ctx.job_id)
        found: list[str] = []
        while len(found) < 2:
            either = await ctx.first(
                ctx.receive("a", kind=str), ctx.receive("b", kind=str), ctx.sleep("8h")
            )
            found.append(await keep(either.value or "the timer"))
        return found

    report = asyncio.run(crash_everywhere(app, job(), url=url))
    assert report.result == ["from the job", "from the child"]
    assert report.crashes > 10


# What may win, and how a test makes it ready while no worker runs


class Rivals:
    """Operations that a message competes with, and how each is made ready."""

    def __init__(self, app: App) -> None:
        self.app = app

        @app.job
        async def inner() -> str:
            return "child"

        self._inner = inner

    def timer(self, ctx: JobContext) -> Operation[Any]:
        return ctx.sleep("200ms")

    def message(self, ctx: JobContext) -> Operation[Any]:
        return ctx.receive("rival")

    def too_late(self, ctx: JobContext) -> Operation[Any]:
        return ctx.receive("never", timeout="200ms")

    def question(self, ctx: JobContext) -> Operation[Any]:
        return ctx.approve("Ship it?")

    def child(self, ctx: JobContext) -> Operation[Any]:
        return ctx.child(self._inner().options(queue="other"))

    async def make_ready(self, kind: str, handle: perdure.Handle[Any]) -> None:
        """Make a rival ready, now that no worker has the job."""
        if kind in ("timer", "too_late"):
            due = (await handle.job()).due_at
            while due is not None and await (await self.app.store()).now() < due:
                await perdure.process.sleep("5ms")
        if kind == "message":
            await handle.send("rival", 1)
        if kind == "question":
            (asked,) = await self.app.approvals()
            await self.app.decide(asked, "approve", by=ANN)
        if kind == "child":
            async with serving(self.app, "other"):
                (child,) = await self.app.find_jobs(perdure.JobQuery(parent=handle.id))
                await until(self.app, child.id, JobState.COMPLETED)


KINDS = ["timer", "message", "too_late", "question", "child"]


@pytest.mark.parametrize("losers", ["cancel", "continue"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_received_once_whatever_it_competes_with(
    url: str, kind: str, losers: Any
) -> None:
    @durable
    async def case(app: App) -> None:
        rivals = Rivals(app)

        @app.job
        async def job(ctx: JobContext) -> str:
            try:
                rival = getattr(rivals, kind)(ctx)
                first = await ctx.first(rival, ctx.receive("a"), losers=losers)
                if first.index == 1:
                    return first.value
            except StepTimeout:
                assert kind == "too_late"
            return await ctx.receive("a", kind=str, timeout="20s")

        handle = await app.submit(job(), user="kim")
        async with serving(app):
            await until(app, handle.id, JobState.WAITING)
        await rivals.make_ready(kind, handle)
        await handle.send("a", "late")
        async with serving(app):
            assert await handle.result("30s") == "late"

    case(url)


@durable
async def test_an_operation_that_continues_is_awaited_later_with_its_message(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> list[Any]:
        late = ctx.receive("a", kind=str)
        found: list[Any] = []
        for _ in range(2):
            first = await ctx.first(ctx.receive("go", kind=int), late, losers="continue")
            found.append(first.value)
        return [*found, await late]

    handle = await app.submit(job())
    await handle.send("go", 1)
    await handle.send("go", 2)
    async with app.running():
        await until(app, handle.id, JobState.WAITING)
        await handle.send("a", "late")
        assert await handle.result("20s") == [1, 2, "late"]


@durable
async def test_an_approval_that_loses_lets_no_step_begin(app: App) -> None:
    gate, shipped = asyncio.Event(), list[int]()

    @app.step
    async def look() -> None: ...

    @app.step(risk="high")
    async def ship() -> None:
        shipped.append(1)

    @app.job
    async def job(ctx: JobContext) -> int:
        looked, asked = ctx.start(look()), ctx.approve("Ship it?", opens=[ship])
        await ctx.first(looked, asked, losers="continue")
        await gate.wait()
        # The second run comes here without a pause: the answer is there, and nobody has read it.
        first = await ctx.first(looked, asked)
        await ship()
        return first.index

    handle = await app.submit(job(), user="kim")
    async with app.running():
        while not (asked := await app.approvals()):
            await perdure.process.sleep("2ms")
    await app.decide(asked[0], "approve", by=ANN)
    gate.set()
    async with app.running():
        while not (again := await app.approvals()):
            await perdure.process.sleep("2ms")
        assert (shipped, again[0].step) == ([], "ship#1")
        await app.decide(again[0], "approve", by=ANN)
        assert await handle.result("20s") == 0
    assert shipped == [1]


@durable
async def test_a_child_that_ended_too_late_to_win_is_recorded_as_it_ended(app: App) -> None:
    rivals = Rivals(app)

    @app.job
    async def job(ctx: JobContext) -> int:
        return (await ctx.first(ctx.receive("go"), rivals.child(ctx))).index

    handle = await app.submit(job())
    async with serving(app):
        await until(app, handle.id, JobState.WAITING)
    await handle.send("go")
    await rivals.make_ready("child", handle)
    async with serving(app):
        assert await handle.result("20s") == 0
    states = {entry.id: entry.state for entry in await handle.journal()}
    assert states["child:inner#1"] is StepState.SUCCEEDED


def test_a_child_that_wins_is_recorded_with_the_choice_although_news_comes_at_that_moment(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, chosen = Child[Any].start, list[str]()

    def start_and_hear(child: Child[Any]) -> None:
        start(child)
        if child.recorded and not child.raced and not chosen:
            chosen.append(child.job.id)
            run = child.run
            news = JobNews(run.job.id, run.news, None, run.ends)
            run.on_news(news, run.messages)

    monkeypatch.setattr(Child, "start", start_and_hear)

    @durable
    async def case(app: App) -> None:
        rivals = Rivals(app)

        @app.job
        async def job(ctx: JobContext) -> str:
            return (await ctx.first(rivals.child(ctx), ctx.receive("never"))).value

        handle = await app.submit(job())
        async with serving(app):
            await until(app, handle.id, JobState.WAITING)
        await rivals.make_ready("child", handle)
        async with serving(app):
            assert await handle.result("20s", if_parked="raise") == "child"
        assert len(chosen) == 1
        assert "first#1" in {entry.id for entry in await handle.journal()}

    case(url)


@durable
async def test_what_was_cancelled_is_cancelled_in_a_replay_too(app: App) -> None:
    @app.job
    async def inner(ctx: JobContext) -> None:
        await ctx.receive("never")

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        operations: dict[str, Operation[Any]] = {
            "child": ctx.start(inner()),
            "message": ctx.receive("never"),
            "timer": ctx.sleep("8h"),
            "question": ctx.approve("Ship it?"),
        }
        await ctx.first(*operations.values(), ctx.receive("go"))
        found: list[str] = []
        for name, operation in operations.items():
            try:
                await operation
            except OperationCancelled:
                found.append(name)
        await ctx.receive("more")
        return found

    handle = await app.submit(job(), user="kim")
    async with app.running():
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        while not any(entry.id == "receive:more#1" for entry in await handle.journal()):
            await perdure.process.sleep("2ms")
        await until(app, handle.id, JobState.WAITING)
    await handle.send("more")
    async with app.running():
        assert await handle.result("20s") == ["child", "message", "timer", "question"]


# A step that has its result is not interrupted any more


@durable
async def test_steps_that_end_at_the_same_time_never_park_their_job(app: App) -> None:
    chance = random.Random(11)

    @app.step(retry=Retry(attempts=1))
    async def step(fails: bool) -> int:
        await perdure.process.sleep(0.004 * chance.random())
        if fails:
            raise ValueError("no")
        return 1

    @app.job
    async def job(ctx: JobContext) -> int:
        first = await ctx.first(step(False), step(chance.random() < 0.5), step(False))
        return first.value

    async with app.running():
        for _ in range(ROUNDS):
            handles = await app.submit_many([job() for _ in range(4)])
            for handle in handles:
                assert await handle.wait("20s") in (JobState.COMPLETED, JobState.FAILED)


@pytest.mark.parametrize("end", [False, True], ids=["result", "failure"])
def test_a_loser_with_an_outcome_that_is_not_durable_yet_keeps_it(
    store: WritableAgain, failures: list[int], end: bool
) -> None:
    @durable
    async def case(app: App) -> None:
        gate, began = asyncio.Event(), list[str]()

        @app.step(retry=Retry(attempts=1))
        async def step(name: str) -> str:
            began.append(name)
            await gate.wait()
            if name == "b" and end:
                raise ValueError("no")
            return name

        @app.job
        async def job(ctx: JobContext) -> str:
            first = await ctx.first(step("a"), step("b"))
            return first.value

        async with app.running():
            handle = await app.submit(job())
            while len(began) < 2:
                await perdure.process.sleep("2ms")
            with store.unwritable():
                gate.set()
                while len(failures) < 4:
                    await perdure.process.sleep("2ms")
            ends = (JobState.COMPLETED, JobState.FAILED) if end else (JobState.COMPLETED,)
            assert await handle.wait("30s") in ends  # whichever is durable first has won
        states = {entry.id: entry.state for entry in await handle.journal()}
        assert states["step#1"] is StepState.SUCCEEDED
        assert states["step#2"] is (StepState.FAILED if end else StepState.SUCCEEDED)

    case(store.url)


@durable
async def test_code_that_waits_for_the_first_and_for_something_else_is_not_suspended(
    app: App,
) -> None:
    outside, runs = asyncio.Event(), list[int]()

    @app.job
    async def job(ctx: JobContext) -> int:
        runs.append(1)

        async def either() -> int:
            return (await ctx.first(ctx.receive("a"), ctx.receive("b"))).index

        index, _ = await asyncio.gather(either(), outside.wait())
        return index

    async with app.running(replace(QUICK, idle_patience="1h")):
        handle = await app.submit(job())
        (node,) = nodes(app)
        while (run := node.runs.get(handle.id)) is None or len(run.waiting) < 2:
            await perdure.process.sleep("2ms")
        await handle.send("b")
        await perdure.process.sleep(0)
        outside.set()
        assert await handle.result("20s") == 1
    assert runs == [1]
