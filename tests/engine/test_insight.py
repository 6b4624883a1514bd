"""Groups of errors, numbers over time, saved queries."""

from perdure.app import App
from perdure.base import telemetry
from perdure.base.retry import Retry
from perdure.base.telemetry import Event, Values
from perdure.engine import events
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.errors import Permanent
from perdure.jobs.error_group import ErrorState
from perdure.jobs.listing import ShownState
from perdure.jobs.model import JobQuery
from perdure.jobs.saved_view import SavedView
from tests.support.engine import durable

AGAIN = Retry(attempts=2, initial_delay="10ms", jitter=0)


@durable
async def test_failures_are_grouped_by_cause_and_by_tenant(app: App) -> None:
    @app.step
    async def load(ctx: StepContext, row: int) -> None:
        raise Permanent(f"no row {row}")

    @app.job
    async def migrate(ctx: JobContext, row: int) -> None:
        await load(row)

    async with app.running():
        for row, tenant in ((1, "acme"), (2, "acme"), (3, "globex")):
            await (await app.submit(migrate(row), tenant=tenant)).wait("10s")
        (both,) = await app.insight.errors()
        assert (both.count, both.step, both.job_name) == (3, "load", "migrate")
        (mine,) = await app.insight.errors("acme")
        assert mine.count == 2
        store = await app.store()
        await store.mark_error("acme", mine.fingerprint, ErrorState.IGNORED, "ann")
        (mine,) = await app.insight.errors("acme")
        assert (mine.state, mine.marked_by) == (ErrorState.IGNORED, "ann")
        (theirs,) = await app.insight.errors("globex")
        assert theirs.state is ErrorState.OPEN
        assert await app.insight.errors("acme", since=await store.now() + 1) == []


@durable
async def test_metrics_count_what_happened_in_the_last_minutes(app: App) -> None:
    @app.step(retry=AGAIN)
    async def load(ctx: StepContext, row: int) -> None:
        await ctx.save_checkpoint("x" * 100)
        if row == 3 or ctx.attempt == 1:
            raise ValueError("no luck")

    @app.job
    async def migrate(ctx: JobContext, row: int) -> None:
        await load(row)

    async with app.running():
        for row in range(4):
            await (await app.submit(migrate(row), tenant="acme")).wait("10s")
    await app.submit(migrate(9), tenant="acme")
    page = await app.insight.metrics("acme", 5)
    sums = {name: sum(number for _, number in line) for name, line in page.series.items()}
    assert {len(line) for line in page.series.values()} == {5}
    assert (sums["submitted"], sums["completed"], sums["failed"]) == (5, 3, 1)
    gauges = page.gauges
    assert (gauges.step_failure_rate, gauges.step_failure_worst) == (0.25, "load")
    assert gauges.step_attempts_avg == 2
    assert gauges.job_duration_seconds.count == 3
    assert gauges.checkpoint_size_bytes > 100  # of the one that failed
    assert [(each.name, each.ready) for each in page.queues] == [("default", 1)]
    others = await app.insight.metrics("globex", 5)
    assert (others.sampled_jobs, others.queues) == (0, ())
    assert (await app.insight.metrics(minutes=10_000)).minutes == 24 * 60


@durable
async def test_saved_queries_belong_to_a_tenant(app: App) -> None:
    store = await app.store()
    await store.save_view("acme", SavedView(name="mine", query="state:failed", saved_by="kim"))
    await store.save_view("acme", SavedView(name="mine", query="state:attention", saved_by="ann"))
    (view,) = await store.saved_views("acme")
    assert (view.query, view.saved_by) == ("state:attention", "ann")
    assert view.saved_at > 0
    assert await store.saved_views("globex") == []
    assert not await store.delete_view("globex", "mine")
    assert await store.delete_view("acme", "mine")
    assert await store.saved_views("acme") == []


@durable
async def test_rows_tell_what_jobs_wait_for(app: App) -> None:
    @app.job
    async def listens(ctx: JobContext) -> str:
        return await ctx.receive("name", kind=str)

    async with app.running():
        handle = await app.submit(listens())
        while (row := await app.insight.row(handle.id)).shown_state is not (
            ShownState.WAITING_FOR_MESSAGE
        ):
            pass
        assert row.current is not None
        (listed,) = await app.insight.rows(JobQuery(name="listens"))
        assert listed.id == handle.id
        await handle.cancel()
        await handle.wait("10s")


@durable
async def test_effects_that_were_not_repeated_are_counted_in_the_store_as_in_telemetry(
    app: App,
) -> None:
    called: list[str] = []

    async def act(key: str) -> None:
        called.append(key)

    @app.step(retry=AGAIN)
    async def send(ctx: StepContext) -> None:
        for target in ("ann", "kim"):
            await ctx.effect("mail", act, target=target, key=target)
        if ctx.attempt == 1:
            raise ValueError("no luck")

    @app.job
    async def mailing(ctx: JobContext) -> None:
        await send()

    heard: list[str] = []

    def hear(_event: Event, _numbers: Values, facts: Values, _config: object) -> None:
        heard.append(facts["kind"])

    telemetry.attach("reuse", events.EFFECT_REUSE, hear)
    try:
        async with app.running():
            await (await app.submit(mailing())).result("10s")  # the second attempt finds two
            await (await app.submit(mailing())).result("10s")  # another job: two, in both attempts
    finally:
        telemetry.detach("reuse")
    assert (len(called), len(heard)) == (2, 6)
    assert (await app.insight.metrics()).gauges.side_effect_duplicate_count == 6


@durable
async def test_the_largest_checkpoint_counts_also_after_its_step_has_ended(app: App) -> None:
    @app.step
    async def load(ctx: StepContext) -> None:
        for size in (10, 12_000, 20):
            await ctx.save_checkpoint("x" * size)

    @app.job
    async def migrate(ctx: JobContext) -> None:
        await load()

    async with app.running():
        await (await app.submit(migrate())).result("10s")
    assert 12_000 < (await app.insight.metrics()).gauges.checkpoint_size_bytes < 12_100
