"""`ctx.patched`: which way a job takes at a change of its code, and who runs it afterwards."""

import asyncio
from typing import Any

import perdure
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.jobs.model import Job
from perdure.jobs.state import JobState
from perdure.testing import crash_everywhere
from tests.support.engine import QUICK, durable, until
from tests.support.job_environment import NEVER_OPENED

# After a crash


def with_a_change(app: App) -> Any:
    """Return a job of two branches, of which one comes to a change of the code."""

    @app.step
    async def work(after: int) -> int:
        await perdure.process.sleep(f"{after}ms")
        return after

    @app.job
    async def job(ctx: JobContext) -> list[bool]:
        ways = list[bool]()

        async def changed() -> None:
            with ctx.scope("changed"):
                await work(1_000)
                ways.append(ctx.patched("change"))
                await work(9_000)
                ways.append(ctx.patched("later"))

        async def other() -> None:
            with ctx.scope("other"):
                for after in (100, 2_000, 3_000):
                    for _ in range(3):
                        await asyncio.sleep(0)
                    await work(after)

        async with asyncio.TaskGroup() as group:
            group.create_task(changed())
            group.create_task(other())
        return ways

    return job


def test_a_job_that_never_saw_older_code_takes_the_new_way_wherever_its_worker_dies(
    url: str,
) -> None:
    app = App(NEVER_OPENED)
    report = asyncio.run(crash_everywhere(app, with_a_change(app)(), url=url))
    assert report.result == [True, True]
    assert report.crashes >= 10


class Branches:
    """A job of two branches that both wait for messages, before and after a change of the first."""

    def __init__(self, url: str) -> None:
        self.app = app = App(url, worker=QUICK)
        self.changed = False

        @app.step
        async def note(word: str) -> str:
            return word

        @app.job
        async def job(ctx: JobContext) -> list[bool]:
            ways = list[bool]()

            async def first() -> None:
                with ctx.scope("first"):
                    await note("before")
                    await ctx.receive("pass")
                    if self.changed:
                        ways.append(ctx.patched("change"))
                    await note("after")
                    await ctx.receive("end")

            async def second() -> None:
                with ctx.scope("second"):
                    for number in range(3):
                        for _ in range(3):
                            await asyncio.sleep(0)
                        await note(f"{number}")

            async with asyncio.TaskGroup() as group:
                group.create_task(first())
                group.create_task(second())
            return ways

        self.job = job

    async def began(self, entry: str, *topics: str) -> Handle[Any]:
        """Return a job that has got messages on these topics, and then asked for this."""
        handle = await self.app.submit(self.job())
        async with self.app.running():
            for topic in topics:
                await handle.send(topic)
            while entry not in {each.id for each in await handle.journal()}:
                await perdure.process.sleep("5ms")
            await until(self.app, handle.id, JobState.WAITING)
        return handle


def test_a_branch_that_has_passed_a_change_under_older_code_takes_the_old_way(url: str) -> None:
    async def main() -> None:
        scene = Branches(url)
        async with scene.app:
            handle = await scene.began("first/receive:end#1", "pass")
            scene.changed = True
            await handle.send("end")
            async with scene.app.running():
                assert await handle.result("20s") == [False]

    perdure.run(main)


def test_a_branch_that_has_not_passed_a_change_under_older_code_takes_the_new_way(
    url: str,
) -> None:
    async def main() -> None:
        scene = Branches(url)
        async with scene.app:
            handle = await scene.began("first/receive:pass#1")
            scene.changed = True
            await handle.send("pass")
            await handle.send("end")
            async with scene.app.running():
                assert await handle.result("20s") == [True]

    perdure.run(main)


# Rolling deploys


class Code:
    """Old or new code of a job with a change between two messages."""

    def __init__(
        self, url: str, version: str, *, accepts: tuple[str, ...] = (), knows: bool = True
    ) -> None:
        self.app = app = App(url, worker=QUICK)

        @app.step
        async def note(word: str) -> str:
            return word

        @app.job(version=version, accepts=accepts)
        async def job(ctx: JobContext) -> list[str]:
            await ctx.receive("one")
            is_new = version == "2" and knows and ctx.patched("change")
            word = await note("new" if is_new else "old")
            await ctx.receive("two")
            return [word, await note("end")]

        @app.job
        async def other() -> str:
            return "other"

        self.job, self.other = job, other

    async def get(self, handle: Handle[Any], *topics: str) -> Job:
        """Run a worker of this code, which gets these messages and runs another job; the job."""
        async with self.app.running():
            for topic in topics:
                await handle.send(topic)
            if topics:
                await self.until_asked(handle)
            await (await self.app.submit(self.other())).result("20s")
        return await handle.job()

    async def until_asked(self, handle: Handle[Any]) -> None:
        """Wait until the job has asked for its second message."""
        while "receive:two#1" not in {each.id for each in await handle.journal()}:
            await perdure.process.sleep("5ms")
        await until(self.app, handle.id, JobState.WAITING)


def codes(url: str) -> tuple[Code, Code]:
    """Return old code, and new code that continues its jobs."""
    return Code(url, "1"), Code(url, "2", accepts=("1",))


@durable
async def test_a_job_that_took_the_new_way_is_not_claimed_by_a_worker_with_the_old_code(
    app: App,
) -> None:
    old, new = codes(app.url)
    async with old.app, new.app:
        handle = await old.app.submit(old.job())
        assert (await new.get(handle, "one")).version == "2"
        await handle.send("two")
        job = await old.get(handle)
        assert (job.state, job.owner, job.claims) == (JobState.WAITING, None, 0)
        async with new.app.running():
            assert await handle.result("20s") == ["new", "end"]


@durable
async def test_a_job_that_took_the_old_way_is_continued_by_both(app: App) -> None:
    old, new = codes(app.url)
    async with old.app, new.app:
        for last in (old, new):
            handle = await old.app.submit(old.job())
            assert (await old.get(handle, "one")).version == "1"
            assert (await new.get(handle)).version == "1"
            async with last.app.running():
                await handle.send("two")
                assert await handle.result("20s") == ["old", "end"]


@durable
async def test_jobs_of_a_rolling_deploy_are_never_parked_whichever_worker_claims_them(
    app: App,
) -> None:
    old, new = codes(app.url)
    async with old.app, new.app, old.app.running(), new.app.running():
        handles = [await code.app.submit(code.job()) for code in (old, new) * 10]
        for topic in ("one", "two"):
            for handle in handles:
                await handle.send(topic)
        found = [await handle.result("40s", if_parked="raise") for handle in handles]
    assert {word for word, _ in found} <= {"old", "new"}
    for handle, (word, _) in zip(handles, found, strict=True):
        assert word == "old" or (await handle.job()).version == "2"


@durable
async def test_older_code_of_the_same_version_says_which_change_it_does_not_know(app: App) -> None:
    old, new = Code(app.url, "2", knows=False), Code(app.url, "2")
    async with old.app, new.app:
        handle = await new.app.submit(new.job())
        await new.get(handle, "one")
        async with old.app.running():
            await handle.send("two")
            await until(old.app, handle.id, JobState.NEEDS_ATTENTION)
        failure = await handle.failure()
        assert failure is not None
        assert "the new way of ctx.patched('change'), which this code did not" in failure.message
        async with new.app.running():
            await handle.resume()
            assert await handle.result("20s") == ["new", "end"]
