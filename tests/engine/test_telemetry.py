"""What the engine tells: each thing once, when it is so, with what a metric or a trace needs."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import perdure
from perdure.app import App
from perdure.base import telemetry
from perdure.base.errors import Permanent
from perdure.base.retry import Retry
from perdure.base.telemetry import Event, Values
from perdure.engine import events
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import Person
from perdure.jobs.parameters import Partial
from perdure.jobs.state import JobState
from perdure.store.db_thread import BATCH
from tests.support.engine import durable, job_of, nodes, until
from tests.support.telemetry import Recorder

ALL: list[Event] = [
    *(events.JOB_SUBMIT, events.JOB_CLAIM, events.JOB_RELEASE, events.JOB_PARK, events.JOB_END),
    *(events.JOB_STUCK, events.UNDO_FAIL, events.EFFECT_REUSE),
    *(events.STEP_START, events.STEP_STOP, events.STEP_RETRY, events.STEP_CHECKPOINT),
    *(events.LEASE_RENEW, events.LEASE_LOSE, events.APPROVAL_ASK, events.APPROVAL_DECIDE),
    *(events.WORKER_UP, events.WORKER_DRAIN, events.WORKER_DOWN, BATCH),
    *events.EFFECT.values(),
]


class Heard(Recorder):
    """Keeps what is told below `("perdure", …)`."""

    def of(self, *name: str) -> list[tuple[Values, Values]]:
        return [(one[1], one[2]) for one in self.seen if one[0] == ("perdure", *name)]

    def names(self, *without: Event) -> list[str]:
        return [".".join(one[1:]) for one in self.events if one not in without]


@contextmanager
def listening(*events: Event) -> Generator[Heard]:
    heard = Heard()
    telemetry.attach_many(heard.__class__, events or ALL, heard)
    try:
        yield heard
    finally:
        telemetry.detach(heard.__class__)


@durable
async def test_a_job_is_told_from_its_submission_to_its_end(app: App) -> None:
    @app.step
    async def add(_: StepContext, a: int, b: int) -> int:
        return a + b

    @app.job
    async def sums(ctx: JobContext) -> int:
        return await add(await add(1, 2), 3)

    with listening() as heard:
        handle = await app.submit(sums(), tenant="acme")
        async with app.running():
            assert await handle.result("10s") == 6
            while not heard.of("job", "end"):  # told after the write, which others may see first
                await perdure.process.sleep("2ms")

    assert heard.names(BATCH, events.LEASE_RENEW) == [
        "job.submit",
        "worker.up",
        "job.claim",
        *("step.start", "step.stop") * 2,
        "job.end",
        "worker.drain",
        "worker.down",
    ]
    ((_, submitted),) = heard.of("job", "submit")
    assert submitted == {
        "job_id": handle.id,
        "name": "sums",
        "tenant": "acme",
        "queue": "default",
        "new": True,
    }
    ((measured, ended),) = heard.of("job", "end")
    assert (ended["job_id"], ended["state"], ended["reason"]) == (handle.id, "COMPLETED", None)
    assert measured["claims"] == 1
    assert 0 <= measured["duration"] <= measured["age"]
    stops = heard.of("step", "stop")
    assert [(told["step"], told["outcome"]) for _, told in stops] == [
        ("add#1", "succeeded"),
        ("add#2", "succeeded"),
    ]
    assert all(measured["attempt"] == 1 and measured["duration"] >= 0 for measured, _ in stops)


@durable
async def test_every_batch_of_the_store_is_told(app: App) -> None:
    with listening(BATCH) as heard:

        @app.job
        async def nothing(_: JobContext) -> None: ...

        handle = await app.submit(nothing())
        async with app.running():
            await handle.result("10s")

    batches = heard.of("store", "batch")
    assert len(batches) > 3
    assert all(measured["requests"] >= 1 and measured["duration"] >= 0 for measured, _ in batches)
    assert {told["thread"] for _, told in batches} >= {"perdure-writer"}


@durable
async def test_each_attempt_starts_and_stops_once_however_it_ends(app: App) -> None:
    quick = perdure.Retry(attempts=3, initial_delay="1ms", factor=1)

    @app.step(retry=quick)
    async def flaky(ctx: StepContext) -> Any:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        if ctx.load_checkpoint() is None:
            await ctx.save_checkpoint("half")
            return Partial(None, "more")
        return "done"

    @app.step(retry=quick, timeout="500ms")
    async def slow(ctx: StepContext) -> None:
        if ctx.attempt == 1:
            await perdure.process.sleep("5s")

    @app.step
    async def broken(_: StepContext) -> None:
        raise perdure.errors.Permanent("for good")

    @app.job
    async def three(ctx: JobContext) -> None:
        await flaky()
        await slow()
        await broken()

    with listening() as heard:
        handle = await app.submit(three())
        async with app.running():
            await until(app, handle.id, JobState.FAILED)

    starts = [(told["step"], m["attempt"]) for m, told in heard.of("step", "start")]
    stops = [(told["step"], m["attempt"], told["outcome"]) for m, told in heard.of("step", "stop")]
    assert stops == [
        ("flaky#1", 1, "failed"),
        ("flaky#1", 2, "partial"),
        ("flaky#1", 2, "succeeded"),
        ("slow#1", 1, "timed out"),
        ("slow#1", 2, "succeeded"),
        ("broken#1", 1, "failed"),
    ]
    assert starts == [(step, attempt) for step, attempt, _ in stops]
    retries = heard.of("step", "retry")
    assert [(told["step"], m["attempt"]) for m, told in retries] == [("flaky#1", 1), ("slow#1", 1)]
    assert "not yet" in retries[0][1]["reason"]
    ((measured, told),) = heard.of("step", "checkpoint")
    assert (told["step"], measured) == ("flaky#1", {"number": 1, "bytes": 6})
    ((_, ended),) = heard.of("job", "end")
    assert ended["state"] == "FAILED"
    assert "for good" in ended["reason"]


@durable
async def test_a_job_that_waits_is_released_and_claimed_again(app: App) -> None:
    @app.job
    async def waits(ctx: JobContext) -> None:
        await ctx.receive("go")

    with listening(events.JOB_CLAIM, events.JOB_RELEASE, events.JOB_END) as heard:
        handle = await app.submit(waits())
        async with app.running():
            await until(app, handle.id, JobState.WAITING)
            await handle.send("go")
            await handle.result("10s")

    assert heard.names() == ["job.claim", "job.release", "job.claim", "job.end"]
    assert heard.of("job", "release")[0][1]["state"] == "WAITING"


@durable
async def test_a_job_that_needs_a_person_is_parked_with_its_reason(app: App) -> None:
    @app.step
    async def pay(ctx: StepContext) -> None:
        async def call(_: str) -> None:
            raise TimeoutError("no answer")

        await ctx.effect("payment", call, target="card 1")

    @app.job
    async def buys(ctx: JobContext) -> None:
        await pay()

    with listening() as heard:
        handle = await app.submit(buys())
        async with app.running():
            await until(app, handle.id, JobState.NEEDS_ATTENTION)

    names = heard.names(BATCH, events.LEASE_RENEW)
    assert [name for name in names if name.startswith("effect")] == [
        "effect.intent",
        "effect.doubt",
    ]
    ((_, doubt),) = heard.of("effect", "doubt")
    assert (doubt["kind"], doubt["target"], doubt["step"]) == ("payment", "card 1", "pay#1")
    ((_, parked),) = heard.of("job", "park")
    assert parked["state"] == "NEEDS_ATTENTION"
    assert "nobody knows whether the payment" in parked["reason"]
    assert [told["outcome"] for _, told in heard.of("step", "stop")] == ["left"]


@durable
async def test_an_effect_is_told_before_and_after(app: App) -> None:
    @app.step
    async def mail(ctx: StepContext) -> str:
        return await ctx.effect("email", lambda key: "id 1", target="kim")

    @app.job
    async def sends(ctx: JobContext) -> str:
        return await mail()

    with listening(*events.EFFECT.values()) as heard:
        handle = await app.submit(sends())
        async with app.running():
            await handle.result("10s")

    assert heard.names() == ["effect.intent", "effect.done"]
    keys = {told["key"] for _, _, told, _ in heard.seen}
    assert len(keys) == 1


@durable
async def test_an_effect_that_is_not_repeated_is_told(app: App) -> None:
    @app.step(retry=Retry(attempts=2, initial_delay="1ms"))
    async def mail(ctx: StepContext) -> str:
        sent = await ctx.effect("email", lambda key: "id 1", target="kim")
        if ctx.attempt == 1:
            raise RuntimeError("after the mail")
        return sent

    with listening(events.EFFECT_REUSE) as heard:
        handle = await app.submit(job_of(app, mail)())
        async with app.running():
            assert await handle.result("10s") == "id 1"

    ((_, told),) = heard.of("effect", "reuse")
    assert (told["kind"], told["target"], told["step"]) == ("email", "kim", "mail#1")


@durable
async def test_an_undo_that_failed_for_good_is_told_once(app: App) -> None:
    @app.step
    async def pay(_: StepContext) -> None:
        raise Permanent("no money")

    @pay.compensate(retry=Retry(attempts=2, initial_delay="1ms"))
    async def refund(_: StepContext, output: None) -> None:
        raise RuntimeError("no bank")

    with listening(events.UNDO_FAIL) as heard:
        handle = await app.submit(job_of(app, pay)())
        async with app.running():
            await until(app, handle.id, JobState.NEEDS_ATTENTION)

    ((measured, told),) = heard.of("undo", "fail")
    assert (measured["attempt"], told["step"], told["job_id"]) == (2, "undo:pay#1", handle.id)
    assert "no bank" in told["reason"]


@durable
async def test_a_job_without_progress_is_told_as_stuck(app: App) -> None:
    brief = WorkerSettings(
        lease="1s",
        heartbeat="100ms",
        stop_before_expiry="200ms",
        stuck_after="1s",
        cancel_grace="100ms",
    )

    @app.step
    async def hang(_: StepContext) -> None:
        await perdure.process.sleep("1h")

    with listening(events.JOB_STUCK) as heard:
        handle = await app.submit(job_of(app, hang)())
        async with app.running(brief):
            while not heard.seen:
                await perdure.process.sleep("10ms")

    (_, told), *_ = heard.of("job", "stuck")
    assert (told["job_id"], "hang#1" in told["reason"]) == (handle.id, True)


@durable
async def test_a_question_and_its_answer_are_told(app: App) -> None:
    @app.job
    async def asks(ctx: JobContext) -> None:
        await ctx.approve("send it", risk="high")

    with listening(events.APPROVAL_ASK, events.APPROVAL_DECIDE) as heard:
        handle = await app.submit(asks(), tenant="acme", user="lee")
        async with app.running():
            await until(app, handle.id, JobState.WAITING)
            (approval,) = await app.approvals()
            kim = Person(id="kim", tenant="acme", roles=frozenset({"approver"}))
            await app.decide(approval, "approve", by=kim)
            await handle.result("10s")

    assert heard.names() == ["approval.ask", "approval.decide"]
    ((_, asked),) = heard.of("approval", "ask")
    assert (asked["title"], asked["state"], asked["job_id"]) == ("send it", "PENDING", handle.id)
    ((_, told),) = heard.of("approval", "decide")
    assert (told["verdict"], told["person"], told["state"]) == ("approve", "kim", "APPROVED")


@durable
async def test_leases_are_told_when_they_are_renewed_and_when_they_are_lost(app: App) -> None:
    @app.step
    async def long(ctx: StepContext) -> None:
        await ctx.cancelled.wait()

    @app.job
    async def works(ctx: JobContext) -> None:
        await long()

    with listening(events.LEASE_RENEW, events.LEASE_LOSE, events.STEP_STOP) as heard:
        handle = await app.submit(works())
        async with app.running():
            while not heard.of("lease", "renew"):
                await perdure.process.sleep("5ms")
            (node,) = nodes(app)
            await (await app.store()).reap(0, dead=[node.owner])
            while not heard.of("lease", "lose"):
                await perdure.process.sleep("5ms")

    (measured, told) = heard.of("lease", "renew")[0]
    assert (measured["asked"], measured["kept"], told["worker"]) == (1, 1, node.owner)
    (_, lost) = heard.of("lease", "lose")[0]
    assert (lost["job_id"], lost["epoch"]) == (handle.id, 1)
    assert heard.of("step", "stop")[0][1]["outcome"] == "interrupted"


@durable
async def test_a_handler_that_fails_harms_no_job(app: App) -> None:
    def broken(event: Event, measurements: Values, metadata: Values, config: object) -> None:
        raise RuntimeError("broken handler")

    @app.step
    async def one(_: StepContext) -> int:
        return 1

    @app.job
    async def runs(ctx: JobContext) -> int:
        return await one()

    telemetry.attach_many("broken", [events.STEP_START, events.JOB_CLAIM, BATCH], broken)
    handle = await app.submit(runs())
    async with app.running():
        assert await handle.result("10s") == 1
    assert telemetry.list_handlers(("perdure",)) == []


def test_the_page_names_every_event() -> None:
    page = (Path(__file__).parent.parent.parent / "docs/jobs/telemetry.md").read_text("utf-8")
    assert [event for event in ALL if f"`{'.'.join(event[1:])}`" not in page] == []


@durable
async def test_a_hit_of_a_recorded_side_effect_is_told(app: App) -> None:
    @app.step
    async def mail(ctx: StepContext) -> bool:
        known = await ctx.was_effect_recorded("email", "order 7")
        await ctx.record_effect("email", "order 7", target="kim")
        return known

    job = job_of(app, mail)
    with listening(events.EFFECT_REUSE) as heard:
        async with app.running():
            assert await (await app.submit(job())).result("10s") is False
            assert heard.seen == []
            assert await (await app.submit(job())).result("10s") is True

    told = [facts for _, facts in heard.of("effect", "reuse")]
    assert [(each["kind"], each["target"]) for each in told] == [("email", "kim")] * 2
