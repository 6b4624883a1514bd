"""Metrics: what is counted while jobs run, and what is read from the store."""

from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

import perdure
from perdure.app import App
from perdure.base import telemetry
from perdure.base.errors import Permanent, StoreUnreachable
from perdure.base.retry import Retry
from perdure.engine import events
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from perdure.observe.prometheus import COUNTED, MOST_VALUES, OTHER, Bounded, Metrics
from perdure.store.store import Store
from tests.support.engine import durable, until
from tests.support.store import sql
from tests.support.telemetry import FixedClock


class Shown:
    """What Prometheus would read."""

    def __init__(self, text: bytes) -> None:
        self.text = text.decode()
        self.samples = [
            sample
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        ]

    def of(self, name: str, /, **labels: str) -> float | None:
        found = [
            each.value
            for each in self.samples
            if each.name == name and labels.items() <= each.labels.items()
        ]
        return sum(found) if found else None

    def names(self) -> set[str]:
        return {each.name for each in self.samples}


async def shown(metrics: Metrics, app: App | None = None) -> Shown:
    return Shown(await metrics.text(None if app is None else app.store))


@durable
async def test_jobs_and_steps_are_counted_while_they_run(app: App) -> None:
    @app.step(retry=Retry(attempts=3, initial_delay="1ms"))
    async def fetch(ctx: StepContext) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("nobody there")
        await ctx.save_checkpoint({"at": "x" * 200})
        return 1

    @app.step
    async def fail(_: StepContext) -> None:
        raise Permanent("never")

    @app.job
    async def crawl(ctx: JobContext) -> int:
        return await fetch()

    @app.job
    async def doomed(ctx: JobContext) -> None:
        await fail()

    metrics, before = Metrics(), list[float | None]()

    @app.job
    async def first(ctx: JobContext) -> None:
        seen = await shown(metrics)
        before.append(seen.of("perdure_job_duration_seconds_count", name="first"))

    with metrics.listening():
        await app.run(first())
        await app.run(crawl())
        with pytest.raises(Exception, match="never"):
            await app.run(doomed())
    seen = await shown(metrics)
    assert seen.of("perdure_jobs_submitted_total", name="crawl") == 1
    assert seen.of("perdure_jobs_total", name="crawl", outcome="completed") == 1
    assert seen.of("perdure_jobs_total", name="doomed", outcome="failed") == 1
    assert seen.of("perdure_job_duration_seconds_count", name="crawl") == 1
    assert before == [0]  # an increase needs the zero before it
    assert seen.of("perdure_job_queued_seconds_count", queue="default") == 3
    assert seen.of("perdure_step_attempts_total", step="fetch", outcome="failed") == 1
    assert seen.of("perdure_step_attempts_total", step="fetch", outcome="succeeded") == 1
    assert seen.of("perdure_step_attempts_needed_sum", step="fetch") == 2
    assert seen.of("perdure_step_retries_total", step="fetch") == 1
    assert seen.of("perdure_checkpoint_size_bytes_bucket", step="fetch", le="128.0") == 0
    assert seen.of("perdure_checkpoint_size_bytes_bucket", step="fetch", le="512.0") == 1
    assert (seen.of("perdure_processes_spawned_total") or 0) > 3
    assert (seen.of("perdure_store_seconds_count") or 0) > 0


@durable
async def test_a_failed_undo_and_an_effect_that_is_not_repeated_are_counted(app: App) -> None:
    @app.step
    async def pay(ctx: StepContext) -> str:
        for _ in range(2):
            await ctx.effect("card", charge, target="shop", key="order-7")
        return "paid"

    async def charge(key: str) -> str:
        return key

    @pay.compensate(retry=Retry(attempts=1))
    async def refund(ctx: StepContext, output: str | None) -> None:
        raise Permanent("the bank is closed")

    @app.job
    async def order(ctx: JobContext) -> None:
        await pay()
        raise Permanent("out of stock")

    metrics = Metrics()
    assert (await shown(metrics)).of("perdure_compensations_total", outcome="failed") == 0
    with metrics.listening():
        async with app.running():
            handle = await app.submit(order())
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
    seen = await shown(metrics)
    assert seen.of("perdure_compensations_total", outcome="failed") == 1
    assert seen.of("perdure_effect_duplicates_total", kind="card") == 1
    assert seen.of("perdure_effects_total", kind="card", state="done") == 1
    assert seen.of("perdure_jobs_parked_total", name="order") == 1


@durable
async def test_what_waits_in_the_store_is_shown_without_a_worker(app: App) -> None:
    @app.job
    async def mail(ctx: JobContext) -> None:
        await ctx.approve("Send it?")

    async with app.running():
        await until(app, (await app.submit(mail(), user="kim")).id, JobState.WAITING)
    await app.submit(mail())
    seen = await shown(Metrics(), app)
    assert seen.of("perdure_store_up") == 1
    assert seen.of("perdure_jobs_in_state", state="waiting") == 1
    assert seen.of("perdure_jobs_in_state", state="pending") == 1
    assert seen.of("perdure_queue_depth", queue="default") == 1
    assert (seen.of("perdure_queue_oldest_ready_seconds", queue="default") or -1) >= 0
    assert seen.of("perdure_approvals_pending") == 1
    assert seen.of("perdure_effects_in_doubt") == 0
    assert seen.of("perdure_jobs_stuck") == 0
    assert seen.of("perdure_workers", state="alive") == 0
    assert abs(seen.of("perdure_clock_skew_seconds") or 0) < 3600


@durable
async def test_a_job_whose_worker_does_not_renew_is_stuck(app: App) -> None:
    @app.job
    async def nap(ctx: JobContext) -> None: ...

    await app.submit(nap())
    store = await app.store()
    await store.heartbeat("dead", b"{}")
    await store.claim("dead", app.queues, 1, lease=120.0)
    sql(app.url, "UPDATE lease SET until = until - 1000")
    assert (await shown(Metrics(), app)).of("perdure_jobs_stuck") == 1


@durable
async def test_workers_are_shown_with_their_slots_and_heartbeats(app: App) -> None:
    async with app.running():
        seen = await shown(Metrics(), app)
    assert seen.of("perdure_workers", state="alive") == 1
    assert seen.of("perdure_fleet_slots", state="all") == 20
    assert "perdure_heartbeat_age_seconds" in seen.names()


@durable
async def test_the_store_is_read_again_only_after_a_few_seconds(app: App) -> None:
    clock = FixedClock()
    metrics = Metrics(clock=clock)

    @app.job
    async def nap(ctx: JobContext) -> None: ...

    assert (await shown(metrics, app)).of("perdure_jobs_in_state", state="pending") is None
    await app.submit(nap())
    assert (await shown(metrics, app)).of("perdure_jobs_in_state", state="pending") is None
    clock.now += 6_000_000_000
    assert (await shown(metrics, app)).of("perdure_jobs_in_state", state="pending") == 1


async def test_a_store_that_does_not_answer_is_down_and_has_no_gauges() -> None:
    async def store() -> Store:
        raise StoreUnreachable("nobody there")

    seen = Shown(await Metrics().text(store))
    assert seen.of("perdure_store_up") == 0
    assert "perdure_jobs_in_state" not in seen.names()


def test_a_label_has_a_bounded_number_of_values() -> None:
    bounded = Bounded(2)
    assert [bounded(each) for each in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


async def test_a_flood_of_names_does_not_flood_the_metrics() -> None:
    metrics = Metrics()
    with metrics.listening():
        for number in range(MOST_VALUES + 50):
            facts = {"name": f"job-{number}", "queue": "q", "new": True}
            telemetry.execute(events.JOB_SUBMIT, {"count": 1}, facts)
    seen = await shown(metrics)
    assert seen.of("perdure_jobs_submitted_total", name=OTHER) == 50
    names = [each for each in seen.samples if each.name == "perdure_jobs_submitted_total"]
    assert len(names) == MOST_VALUES + 1


def test_two_sets_of_metrics_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    with one.listening(), other.listening():
        telemetry.execute(events.LEASE_REFUSE, {"count": 1}, {})
    with one.listening():
        telemetry.execute(events.LEASE_REFUSE, {"count": 1}, {})
    assert one.registry.get_sample_value("perdure_writes_refused_total") == 2
    assert other.registry.get_sample_value("perdure_writes_refused_total") == 1


def test_no_metric_has_the_id_of_a_job_as_a_label() -> None:
    labels: Iterable[str] = {label for each in COUNTED for label in each.labels}
    assert not {"job", "job_id", "id", "key", "tenant"} & set(labels)


@durable
async def test_restarts_of_children_are_counted(app: App) -> None:
    metrics = Metrics()
    with metrics.listening():
        fails = iter([True, False])

        async def child() -> None:
            if next(fails):
                raise RuntimeError("once")

        async with perdure.otp.Supervisor(
            [perdure.otp.child(child, id="flaky", restart="transient")]
        ):
            while (await shown(metrics)).of("perdure_process_restarts_total", child="flaky") != 1:
                await perdure.process.sleep("1ms")
