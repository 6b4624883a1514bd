"""The clock of the store is set back or forward while jobs run, sleep and wait.

What is due at once happens at once; no worker acts on a job that another one owns.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.clock import SystemClock
from perdure.base.errors import Permanent
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.engine.worker.reaper import Reaper
from perdure.jobs.approval import Approval, Person
from perdure.jobs.model import QueueLimit
from perdure.jobs.state import JobState
from perdure.store.verbs.claim import Expired
from tests.engine.test_outbox import Crowd
from tests.support.engine import QUICK, nodes, until
from tests.support.set_clock import StoreClock, suspend, with_set_clock
from tests.support.store import GONE

HOUR = 3600.0
ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
both_ways = pytest.mark.parametrize("step", [HOUR, -HOUR])


@both_ways
def test_a_job_that_begins_anew_does_so_at_once(url: str, step: float) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        @app.job
        async def loop(ctx: JobContext, number: int) -> int:
            clock.step(step if number == 0 else 0.0)
            if number < 3:
                await ctx.continue_as(loop(number + 1))
            return number

        async with app.running():
            assert await (await app.submit(loop(0))).result("20s") == 3

    case(url)


@both_ways
def test_an_undo_begins_at_once(url: str, step: float) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        undone = asyncio.Event()

        @app.step
        async def pay(ctx: StepContext) -> str:
            return "paid"

        @pay.compensate
        async def refund(ctx: StepContext, output: str | None) -> None:
            undone.set()

        @app.job
        async def order(ctx: JobContext) -> None:
            await pay()
            clock.step(step)
            raise Permanent("no stock")

        async with app.running():
            handle = await app.submit(order())
            await asyncio.wait_for(undone.wait(), 20)
            await until(app, handle.id, JobState.COMPENSATED)

    case(url)


@both_ways
def test_a_drained_job_continues_at_once_elsewhere(url: str, step: float) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        begun, again = asyncio.Event(), asyncio.Event()

        @app.step
        async def work(ctx: StepContext) -> str:
            if begun.is_set():
                again.set()
                return "elsewhere"
            begun.set()
            await asyncio.Event().wait()
            return "never"

        @app.job
        async def job(ctx: JobContext) -> str:
            return await work()

        async with app.running():
            handle = await app.submit(job())
            await begun.wait()
            clock.step(step)
            nodes(app)[0].hurry()
        async with app.running():
            await asyncio.wait_for(again.wait(), 20)
            assert await handle.result("20s") == "elsewhere"

    case(url)


@both_ways
def test_people_are_asked_and_alerted_at_once(url: str, step: float) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        crowd = Crowd("crowd", "ann")
        app.policy = Policy(channels=(crowd,))

        @app.step
        async def set_clock(ctx: StepContext) -> None:
            clock.step(step)

        @app.step(retry=Retry(attempts=1))
        async def away(ctx: StepContext) -> None:
            raise ConnectionError("away")

        @app.job
        async def asks(ctx: JobContext) -> None:
            await set_clock()
            await ctx.approve("Ship it?")

        @app.job
        async def parked(ctx: JobContext) -> None:
            await set_clock()
            await away()

        async with app.running():
            await app.submit(asks(), user="kim")
            await asyncio.wait_for(crowd.has_told("ann"), 20)
            await app.submit(parked())
            await asyncio.wait_for(crowd.has_told("ann", 2), 20)

    case(url)


async def waits_in_store(app: App, handle: Handle[Any]) -> None:
    """Wait until a job is released."""
    store = await app.store()
    while (job := await store.job(handle.id)) is None or job.owner or job.wait is None:
        await perdure.process.sleep("5ms")


@with_set_clock
async def test_a_wait_is_never_longer_than_it_is_long_when_the_job_is_looked_at_again(
    app: App, clock: StoreClock
) -> None:
    failures = ["first"]

    @app.step(retry=Retry(attempts=2, initial_delay="500ms", jitter=0))
    async def flaky(ctx: StepContext) -> str:
        if failures:
            raise ConnectionError(failures.pop())
        return "well"

    @app.job
    async def job(ctx: JobContext) -> list[Any]:
        waits = (
            ctx.sleep("500ms"),
            ctx.start(flaky()),
            ctx.receive("go", kind=int),
            ctx.receive("never", timeout="500ms", kind=str),
        )
        *others, late = await asyncio.gather(*waits, return_exceptions=True)
        return [*others, type(late).__name__]

    async with app.running():
        handle = await app.submit(job())
        await waits_in_store(app, handle)
        clock.step(-HOUR)
        await app.send(handle.id, "go", 1)
        assert await handle.result("20s") == [None, "well", 1, "StepTimeout"]


@both_ways
def test_a_wait_that_begins_after_the_step_goes_by_the_new_time(url: str, step: float) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        @app.step
        async def set_clock(ctx: StepContext) -> None:
            (node,) = nodes(app)
            clock.step(step)
            await node.register()  # the next heartbeat
            while not node.runs:  # after a step forward, its lease may look as if it had run out
                await perdure.process.sleep("5ms")

        @app.job
        async def job(ctx: JobContext) -> float:
            await set_clock()
            began = await (await app.store()).now()
            await ctx.sleep("1h")
            return began

        async with app.running():
            handle = await app.submit(job())
            await waits_in_store(app, handle)
            store = await app.store()
            found = await store.job(handle.id)
            assert found is not None
            assert found.due_at is not None
            assert abs(found.due_at - await store.now() - HOUR) < HOUR / 2

    case(url)


@with_set_clock
async def test_a_short_wait_stays_in_memory_when_the_clock_goes_back(
    app: App, clock: StoreClock
) -> None:
    app.worker_settings = replace(QUICK, keep_in_memory=5.0)

    @app.job
    async def job(ctx: JobContext) -> list[Any]:
        return list(await ctx.gather(ctx.sleep("1s"), ctx.receive("go", kind=int)))

    async with app.running():
        handle = await app.submit(job())
        (node,) = nodes(app)
        while handle.id not in node.runs or not node.runs[handle.id].waiting:
            await perdure.process.sleep("5ms")
        clock.step(-HOUR)
        await node.register()  # the next heartbeat
        await app.send(handle.id, "go", 1)
        assert await handle.result("20s") == [None, 1]
    claimed = [each for each in await handle.events() if each.type == "claimed"]
    assert len(claimed) == 1


def test_a_lease_is_not_taken_from_a_living_worker_when_the_clock_goes_forward(url: str) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        begun, over = asyncio.Event(), asyncio.Event()

        @app.step
        async def work(ctx: StepContext) -> str:
            begun.set()
            await over.wait()
            return "done"

        @app.job
        async def job(ctx: JobContext) -> str:
            return await work()

        async with app.running(), app.running():
            handle = await app.submit(job())
            await begun.wait()
            one, two = (Reaper(node) for node in nodes(app))
            for reaper in (one, two):
                assert await reaper.free_expired() == []
            clock.step(HOUR)
            for reaper in (one, two):
                assert await reaper.free_expired() == []
            over.set()
            assert await handle.result("20s") == "done"
        assert (await handle.job()).epoch == 1

    case(url)


def test_a_clock_that_goes_forward_during_a_look_takes_no_lease_from_a_living_worker(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        begun, over = asyncio.Event(), asyncio.Event()

        @app.step
        async def work(ctx: StepContext) -> str:
            begun.set()
            await over.wait()
            return "done"

        @app.job
        async def job(ctx: JobContext) -> str:
            return await work()

        store = await app.store()
        look = store.expired

        async def looked(silence: float) -> Expired:
            found = await look(silence)
            clock.step(HOUR)
            return found

        async with app.running():
            handle = await app.submit(job())
            await begun.wait()
            (node,) = nodes(app)
            dead = await app.submit(job().options(queue="other"))
            await store.claim("dead", {"other": QueueLimit()}, 1, GONE)
            monkeypatch.setattr(node.store, "expired", looked)
            assert await Reaper(node).free_expired() == [dead.id]
            over.set()
            assert await handle.result("20s") == "done"
        assert (await handle.job()).epoch == 1

    case(url)


@pytest.mark.parametrize("seconds", [0.0, 2 * HOUR])
def test_a_key_that_its_receiver_has_forgotten_during_a_suspension_is_not_used_again(
    url: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        calls: list[str] = []

        async def charge(key: str) -> str:
            calls.append(key)
            if len(calls) == 1:
                suspend(monkeypatch, seconds)
                if clock.clock is None:  # the server went on meanwhile
                    clock.step(seconds)
                raise TimeoutError
            return "charged"

        @app.step(retry=Retry(attempts=3, initial_delay="1ms"))
        async def pay(ctx: StepContext) -> str:
            return await ctx.effect(
                "payment", charge, target="card", in_doubt="replay", key_ttl="1h"
            )

        @app.job
        async def job(ctx: JobContext) -> str:
            return await pay()

        async with app.running():
            handle = await app.submit(job())
            ends = JobState.COMPLETED if seconds == 0.0 else JobState.NEEDS_ATTENTION
            await until(app, handle.id, ends)
        assert len(calls) == (2 if seconds == 0.0 else 1)

    case(url)


def test_a_worker_whose_machine_was_suspended_does_not_trust_its_leases(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        begun = asyncio.Event()

        @app.step
        async def work(ctx: StepContext) -> str:
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            return "again"

        @app.job
        async def job(ctx: JobContext) -> str:
            return await work()

        async with app.running():
            handle = await app.submit(job())
            await begun.wait()
            suspend(monkeypatch, HOUR)
            assert await handle.result("20s") == "again"

    case(url)


def test_machines_whose_clocks_differ_agree_on_what_is_due(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL a machine is two hours ahead; on SQLite all programs read one clock."""

    @with_set_clock
    async def case(app: App, clock: StoreClock) -> None:
        real = SystemClock.time
        if clock.clock is None:
            monkeypatch.setattr(SystemClock, "time", staticmethod(lambda: real() + 2 * HOUR))
        crowd = Crowd("crowd", "ann")
        app.policy = Policy(channels=(crowd,))

        @app.job
        async def job(ctx: JobContext, number: int) -> float:
            await ctx.sleep("100ms")
            if number == 0:
                await ctx.continue_as(job(1))
            return ctx.now().timestamp()

        @app.job
        async def asks(ctx: JobContext) -> None:
            await ctx.approve("Ship it?")

        async with app.running(), app.running():
            store = await app.store()
            before = await store.now()
            handle = await app.submit(job(0))
            assert before <= await handle.result("20s") <= await store.now()
            later = await app.submit(job(1), delay="1h")
            await app.submit(asks(), user="kim")
            await asyncio.wait_for(crowd.has_told("ann"), 20)
            found = await store.job(later.id)
            assert found is not None
            assert found.state is JobState.PENDING
            assert await store.violations() == []

    case(url)


@with_set_clock
async def test_people_are_asked_again_after_a_retry_although_the_clock_was_set_back(
    app: App, clock: StoreClock
) -> None:
    @app.job
    async def order(ctx: JobContext) -> None:
        await ctx.approve("Ship it?")

    async def asked() -> Approval:
        while not (found := await app.approvals()):
            await perdure.process.sleep("5ms")
        return found[0]

    async with app.running():
        handle = await app.submit(order(), user="kim")
        await app.decide(await asked(), "reject", by=ANN)
        await until(app, handle.id, JobState.FAILED)
        clock.step(-HOUR)
        await handle.retry(by="olga")
        await app.decide(await asked(), "approve", by=ANN)
        await handle.result("20s")


@with_set_clock
async def test_a_fork_does_not_miss_children_of_its_source_although_the_clock_was_set_back(
    app: App, clock: StoreClock
) -> None:
    @app.job
    async def inner() -> None: ...

    @app.step(retry=Retry(attempts=1))
    async def ship() -> None:
        raise Permanent("no stock")

    @app.job
    async def order() -> None:
        await inner()
        await ship()

    async with app.running():
        handle = await app.submit(order())
        await until(app, handle.id, JobState.FAILED)
        clock.step(-HOUR)
        fork = await handle.fork("ship")
        await until(app, fork.id, JobState.FAILED)
