"""Schedules, and how long ended jobs are kept."""

from dataclasses import replace

import pytest

import perdure
from perdure.app import App
from perdure.base.errors import DefinitionError, JobNotFound, UnknownName
from perdure.engine.run.context import JobContext
from perdure.jobs.model import Schedule
from perdure.jobs.state import JobState
from tests.support.engine import QUICK, durable, until

DAY = 24 * 3600.0


async def miss(app: App, name: str, days: int) -> float:
    """Let a schedule have missed so many of its days, as if no worker had run; give the first."""
    store = await app.store()
    (schedule,) = [each for each in await store.schedules() if each.name == name]
    assert schedule.next_at is not None
    first = schedule.next_at - days * DAY
    tenant = schedule.job.tenant
    await store.pause_schedule(tenant, name, first, paused=schedule.paused)
    return first


async def daily(app: App) -> str:
    """Give the rule of a time of day that is far from now."""
    now = await (await app.store()).now()
    return f"0 {(int(now / 3600) + 12) % 24} * * *"


def define(app: App) -> None:
    @app.job
    async def tick(ctx: JobContext, word: str) -> str:
        return word


async def next_times(app: App) -> dict[str, float | None]:
    return {each.name: each.next_at for each in await (await app.store()).schedules()}


@pytest.mark.parametrize(("catch_up", "expected"), [("all", 4), ("one", 1), ("skip", 0)])
def test_times_at_which_no_worker_ran_are_made_up_for_as_asked(
    url: str, catch_up: str, expected: int
) -> None:
    @durable
    async def case(app: App) -> None:
        define(app)
        words = await app.schedules.put(
            "each day",
            await daily(app),
            app.find_job("tick")("tock"),
            catch_up=catch_up,  # type: ignore[arg-type]
            tenant="acme",
        )
        assert words
        first = await miss(app, "each day", 4)
        async with app.running():
            while (await next_times(app))["each day"] == first:
                await perdure.process.sleep("5ms")
            jobs = await app.find_jobs()
            assert len(jobs) == expected
            assert all(job.tenant == "acme" for job in jobs)
            for job in jobs:
                assert await (await app.handle(job.id)).result("5s") == "tock"

    case(url)


@durable
async def test_two_workers_submit_a_schedule_once(app: App) -> None:
    define(app)
    await app.schedules.put("s", await daily(app), app.find_job("tick")("x"), catch_up="all")
    first = await miss(app, "s", 3)
    async with app.running(), app.running():
        while (await next_times(app))["s"] == first:
            await perdure.process.sleep("5ms")
        await perdure.process.sleep("1200ms")  # another look of both schedulers
    assert len(await app.find_jobs()) == 3


@durable
async def test_a_schedule_of_the_same_name_replaces_the_one_before(app: App) -> None:
    define(app)
    await app.schedules.put("s", "* * * * *", app.find_job("tick")("x"))
    await app.schedules.put("s", "0 3 * * *", app.find_job("tick")("y"), timezone="Europe/Berlin")
    (schedule,) = await (await app.store()).schedules()
    assert (schedule.cron, schedule.timezone) == ("0 3 * * *", "Europe/Berlin")


@durable
async def test_a_schedule_that_cannot_be_followed_does_not_stop_the_others(app: App) -> None:
    define(app)
    await app.schedules.put("good", await daily(app), app.find_job("tick")("x"), catch_up="one")
    store = await app.store()
    (good,) = await store.schedules()
    bad = Schedule(name="a bad one", cron="nonsense", job=good.job, next_at=1.0)
    await store.put_schedule(bad)
    first = await miss(app, "good", 1)
    async with app.running():
        while (await next_times(app))["good"] == first:
            await perdure.process.sleep("5ms")
    assert len(await app.find_jobs()) == 1


@durable
async def test_a_bad_schedule_is_refused(app: App) -> None:
    define(app)
    job = app.find_job("tick")
    with pytest.raises(DefinitionError):
        await app.schedules.put("s", "61 * * * *", job("x"))
    with pytest.raises(DefinitionError):
        await app.schedules.put("s", "* * * * *", job("x"), timezone="Mars/Olympus")
    assert await (await app.store()).schedules() == []


@durable
async def test_ended_jobs_go_when_they_are_old_enough_and_living_ones_stay(app: App) -> None:
    @app.job
    async def short(ctx: JobContext) -> str:
        return "done"

    @app.job
    async def waits(ctx: JobContext) -> str:
        first = await ctx.child(short())
        return first + await ctx.receive("word")

    async with app.running():
        alone, family = await app.submit(short()), await app.submit(waits())
        await alone.result("5s")
        await until(app, family.id, JobState.WAITING)
    async with app.running(replace(QUICK, keep="1ms")):
        while await (await app.store()).job(alone.id) is not None:
            await perdure.process.sleep("5ms")
        assert await family.send("word", "!")
        assert await family.result("5s") == "done!"
    with pytest.raises(JobNotFound):
        await alone.result("5s")


@durable
async def test_who_waits_for_a_job_that_is_deleted_is_told(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> None: ...

    handle = await app.submit(job())
    await handle.cancel()
    store = await app.store()
    assert await store.prune(await store.now() + 1, 10) == 1
    with pytest.raises(JobNotFound):
        await handle.wait("5s")


@durable
async def test_a_schedule_can_be_paused_resumed_and_removed(app: App) -> None:
    @app.job
    async def tock(ctx: JobContext) -> None: ...

    await app.schedules.put("s", "0 3 * * *", tock())
    await app.schedules.pause("s")
    assert [each.paused for each in await app.schedules.list()] == [True]
    await app.schedules.resume("s")
    assert [each.paused for each in await app.schedules.list()] == [False]
    await app.schedules.delete("s")
    with pytest.raises(UnknownName, match="no schedule 's'"):
        await app.schedules.delete("s")
    with pytest.raises(UnknownName, match="no schedule"):
        await app.schedules.pause("s")


@durable
async def test_a_due_time_survives_a_start_of_the_program(app: App) -> None:
    define(app)
    cron, job = await daily(app), app.find_job("tick")
    await app.schedules.put("s", cron, job("old"))
    first = await miss(app, "s", 1)
    await app.schedules.put("s", cron, job("new"), priority=7)
    assert await next_times(app) == {"s": first}
    async with app.running():
        while (await next_times(app))["s"] == first:
            await perdure.process.sleep("5ms")
        (fired,) = await app.find_jobs()
        assert fired.priority == 7
        assert await (await app.handle(fired.id)).result("5s") == "new"


@durable
async def test_a_start_of_the_program_does_not_wake_a_paused_schedule(app: App) -> None:
    define(app)
    cron, job = await daily(app), app.find_job("tick")
    await app.schedules.put("s", cron, job("x"))
    await app.schedules.pause("s")
    await app.schedules.put("s", cron, job("y"))
    (schedule,) = await app.schedules.list()
    assert schedule.paused


@durable
async def test_another_rule_or_time_zone_gives_a_schedule_another_time(app: App) -> None:
    define(app)
    cron, job = await daily(app), app.find_job("tick")
    await app.schedules.put("s", cron, job("x"))
    first = await miss(app, "s", 1)
    await app.schedules.put("s", cron, job("x"), timezone="Asia/Tokyo")
    elsewhere = await next_times(app)
    await app.schedules.put("s", "7 7 7 7 *", job("x"), timezone="Asia/Tokyo")
    assert first not in elsewhere.values()
    assert elsewhere != await next_times(app)


@durable
async def test_schedules_of_two_tenants_may_have_one_name(app: App) -> None:
    define(app)
    cron, job = await daily(app), app.find_job("tick")
    for tenant in ("acme", "bolt"):
        await app.schedules.put("nightly", cron, job(tenant), tenant=tenant)
    assert [each.tenant for each in await app.schedules.list()] == ["acme", "bolt"]
    await app.schedules.pause("nightly", tenant="acme")
    assert {each.tenant: each.paused for each in await app.schedules.list()} == {
        "acme": True,
        "bolt": False,
    }
    (bolts,) = await app.schedules.list(tenant="bolt")
    store = await app.store()
    assert await store.pause_schedule("bolt", "nightly", 1.0, paused=False)
    async with app.running():
        while (await app.schedules.list(tenant="bolt"))[0].next_at == 1.0:
            await perdure.process.sleep("5ms")
        (fired,) = await app.find_jobs()
        assert (fired.tenant, await (await app.handle(fired.id)).result("5s")) == ("bolt", "bolt")
    await app.schedules.delete("nightly", tenant="bolt")
    assert [each.tenant for each in await app.schedules.list()] == ["acme"]
    with pytest.raises(UnknownName, match="no schedule 'nightly' of tenant 'bolt'"):
        await app.schedules.resume("nightly", tenant="bolt")
    assert bolts.name == "nightly"
