"""Steps with an `idempotency_key`: what was done under a key is not done again in the tenant."""

import asyncio

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import JobFailed, Permanent
from perdure.engine import events
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.definition import JobDefinition
from perdure.jobs.state import JobState
from tests.engine.test_telemetry import listening
from tests.support.engine import QUICK, durable

ONCE = Retry(attempts=1)


class Convert:
    """A step that is keyed by the name of a file, and a job that runs it and may fail after it."""

    def __init__(self, app: App, version: str = "1") -> None:
        self.app = app
        self.ran: list[str] = []
        self.undone: list[str | None] = []
        self.broken: set[str] = set()

        def key_of(file: str, note: str = "") -> str:
            return {"no key": ""}.get(file, f"convert {file}")

        @app.step(retry=ONCE, idempotency_key=key_of, version=version)
        async def convert(ctx: StepContext, file: str, note: str = "") -> str:
            self.ran.append(file)
            if file in self.broken:
                raise Permanent(f"{file} is broken")
            return f"{file} {note} of job {ctx.job_id}"

        @convert.compensate
        async def remove(ctx: StepContext, file: str, note: str, output: str | None) -> None:
            self.undone.append(output)

        @app.job
        async def job(ctx: JobContext, file: str, note: str = "") -> str:
            result = await convert(file)
            if note == "fails":
                raise Permanent("after the step")
            return result

        self.step = convert
        self.job: JobDefinition[..., str] = job

    async def submit(self, file: str, note: str = "", tenant: str = "acme") -> Handle[str]:
        return await self.app.submit(self.job(file, note), tenant=tenant)


@durable
async def test_what_succeeded_under_a_key_is_not_done_again_by_another_job(app: App) -> None:
    convert = Convert(app)
    with listening(events.STEP_STOP) as heard:
        async with app.running():
            first = await (await convert.submit("a.txt")).result()
            second = await convert.submit("a.txt")
            assert await second.result() == first
    assert convert.ran == ["a.txt"]
    assert [told["outcome"] for _, told in heard.of("step", "stop")] == ["succeeded", "reused"]
    (entry,) = await second.journal()
    assert (entry.attempt, entry.key) == (0, None)


@durable
async def test_another_call_of_the_same_job_is_not_done_again_either(app: App) -> None:
    convert = Convert(app)

    @app.job
    async def twice(ctx: JobContext) -> list[str]:
        return [await convert.step("a.txt"), await convert.step("a.txt")]

    async with app.running():
        one, other = await (await app.submit(twice())).result()
    assert one == other
    assert convert.ran == ["a.txt"]


@durable
async def test_another_key_and_another_tenant_are_other_work(app: App) -> None:
    convert = Convert(app)
    async with app.running():
        for file, tenant in [("a.txt", "acme"), ("b.txt", "acme"), ("a.txt", "globex")]:
            await (await convert.submit(file, tenant=tenant)).result()
    assert convert.ran == ["a.txt", "b.txt", "a.txt"]


@durable
async def test_a_key_of_another_version_of_the_step_is_other_work(app: App) -> None:
    old, new = Convert(app), App(app.url, worker=QUICK)
    changed = Convert(new, version="2")
    async with app.running():
        await (await old.submit("a.txt")).result()
    async with new.running():
        await (await changed.submit("a.txt")).result()
    await new.close()
    assert changed.ran == ["a.txt"]


@durable
async def test_what_failed_under_a_key_is_tried_by_the_next_job(app: App) -> None:
    convert = Convert(app)
    convert.broken.add("a.txt")
    async with app.running():
        with pytest.raises(JobFailed):
            await (await convert.submit("a.txt")).result()
        convert.broken.clear()
        await (await convert.submit("a.txt")).result()
    assert convert.ran == ["a.txt", "a.txt"]


@durable
async def test_what_was_undone_is_done_again_by_the_next_job(app: App) -> None:
    convert = Convert(app)
    async with app.running():
        assert await (await convert.submit("a.txt", "fails")).wait() is JobState.COMPENSATED
        await (await convert.submit("a.txt")).result()
    assert convert.ran == ["a.txt", "a.txt"]


@durable
async def test_a_job_does_not_undo_what_another_did_under_the_key(app: App) -> None:
    convert = Convert(app)
    async with app.running():
        await (await convert.submit("a.txt")).result()
        failed = await convert.submit("a.txt", "fails")
        assert await failed.wait() is JobState.FAILED
        await (await convert.submit("a.txt")).result()
    assert convert.undone == []
    assert convert.ran == ["a.txt"]


@durable
async def test_a_fork_does_not_lend_what_it_was_given(app: App) -> None:
    convert = Convert(app)

    @app.step
    async def end(ctx: StepContext) -> None: ...

    @app.job
    async def long(ctx: JobContext) -> None:
        await convert.step("a.txt")
        await end()
        await ctx.receive("go on")

    async with app.running():
        source = await app.submit(long())
        await source.until(JobState.WAITING)
        fork = await source.fork("end#1")
        await fork.until(JobState.WAITING)
        (copied, _, _) = await fork.journal()
        assert (copied.attempt, copied.key) == (0, None)
        await asyncio.gather(source.cancel(), fork.cancel())


@durable
async def test_a_key_that_is_no_text_fails_the_step_before_it_begins(app: App) -> None:
    convert = Convert(app)
    async with app.running():
        with pytest.raises(JobFailed, match="idempotency_key of convert returned ''"):
            await (await convert.submit("no key")).result()
    assert convert.ran == []


@durable
async def test_the_same_key_with_other_arguments_is_a_mistake(app: App) -> None:
    convert = Convert(app)

    @app.job
    async def other(ctx: JobContext) -> str:
        return await convert.step("a.txt", "in another way")

    async with app.running():
        await (await convert.submit("a.txt")).result()
        with pytest.raises(JobFailed, match="was done with other arguments"):
            await (await app.submit(other(), tenant="acme")).result()
    assert convert.ran == ["a.txt"]
    assert convert.undone == [None]  # as of every step that failed


@durable
async def test_a_result_of_another_type_is_not_taken_for_ours(app: App) -> None:
    convert, new = Convert(app), App(app.url, worker=QUICK)

    def key_of(file: str, note: str = "") -> str:
        return f"convert {file}"

    @new.step(name="convert", idempotency_key=key_of, retry=ONCE)
    async def other(ctx: StepContext, file: str, note: str = "") -> int:
        return 1

    @new.job
    async def count(ctx: JobContext) -> int:
        return await other("a.txt")

    async with app.running():
        await (await convert.submit("a.txt", tenant="default")).result()
    async with new.running():
        with pytest.raises(JobFailed, match="the result of step 'convert'"):
            await (await new.submit(count())).result()
    await new.close()


@durable
async def test_while_it_is_being_undone_nobody_is_given_the_result_of_a_step(app: App) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()
    log: list[str] = []
    fails = [True]

    @app.step(idempotency_key=lambda: "order 7")
    async def pay(ctx: StepContext) -> str:
        log.append("charge")
        return f"charge {log.count('charge')}"

    @pay.compensate
    async def refund(ctx: StepContext, output: str | None) -> None:
        log.append(f"refund {output}")

    @app.step
    async def pack(ctx: StepContext) -> None: ...

    @pack.compensate
    async def unpack(ctx: StepContext, output: None) -> None:
        begun.set()
        await goes_on.wait()

    @app.job
    async def order(ctx: JobContext) -> str:
        paid = await pay()
        if fails[0]:
            await pack()
            raise Permanent("out of stock")
        return paid

    async with app.running():
        first = await app.submit(order())
        await begun.wait()
        fails[0] = False
        second = await app.submit(order())
        await second.until(JobState.WAITING, JobState.COMPLETED)
        goes_on.set()
        assert await first.wait("20s") is JobState.COMPENSATED
        assert await second.result("20s") == "charge 2"
    assert log == ["charge", "refund charge 1", "charge"]
