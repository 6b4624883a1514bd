"""A stored journal is replayed against other code: what differs is reported, nothing is done."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.base.errors import JobNotFound, Unstorable
from perdure.engine.recorded import recorded_job
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from perdure.testing import RecordedJob, replay
from tests.support.job_environment import NEVER_OPENED

Code = Callable[[JobContext, Any], Any]


def app_with(code: Code, ran: list[str], **options: Any) -> App:
    """Return an app with two steps, and a job that does what `code` says."""
    app = App(NEVER_OPENED)

    @app.step
    async def load(ctx: StepContext, page: int) -> int:
        ran.append(f"load {page}")
        return page * 10

    @app.step
    async def send(ctx: StepContext, text: str) -> str:
        ran.append(f"send {text}")
        return text

    @app.job(name="report", **options)
    async def report(ctx: JobContext, pages: int) -> Any:
        return await code(ctx, pages)

    return app


async def as_it_was(ctx: JobContext, pages: int) -> Any:
    load, send = step(ctx, "load"), step(ctx, "send")
    moment = ctx.now()
    loaded = [await load(page) for page in range(pages)]
    await ctx.sleep("20ms")
    word = await ctx.receive("word")
    return [word, await send(str(sum(loaded))), moment.timestamp()]


def step(ctx: JobContext, name: str) -> Any:
    """Return a step of the app that runs a job."""
    return ctx._run.node.registry.steps[name]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def recorded(
    url: str, *, until: JobState = JobState.COMPLETED, code: Code = as_it_was
) -> RecordedJob:
    """Run the job as it was, up to a state, and return it as it is exported and read again."""

    async def main() -> RecordedJob:
        app = app_with(code, [])
        app.url = url
        async with app:
            async with app.running():
                handle = await app.submit(app.jobs["report"](3))
                if until is JobState.COMPLETED:
                    await handle.send("word", "hello")
                await handle.until(until)
            return await recorded_job(await app.store(), handle.id)

    return RecordedJob.from_json(perdure.run(main).to_json())


def drift_of(found: RecordedJob, code: Code, **options: Any) -> str | None:
    """Return what a replay says, and check that it did nothing."""
    ran: list[str] = []
    report = asyncio.run(replay(app_with(code, ran, **options), found))
    assert not ran
    return report.drift


def test_unchanged_code_fits_its_journal(url: str) -> None:
    found = recorded(url)
    assert found.job.result is not None
    assert drift_of(found, as_it_was) is None


def test_a_job_that_waits_fits_and_shows_what_comes_next(url: str) -> None:
    found = recorded(url, until=JobState.WAITING)
    ran: list[str] = []
    report = asyncio.run(replay(app_with(as_it_was, ran), found))
    assert (report.drift, report.next, ran) == (None, ("receive:word#1",), [])


def test_a_changed_argument_is_drift(url: str) -> None:
    async def other(ctx: JobContext, pages: int) -> Any:
        for page in range(pages):
            await step(ctx, "load")(page + 1)

    drift = drift_of(recorded(url), other) or ""
    assert "load#1 was called with other arguments before" in drift


def test_a_step_in_between_is_drift(url: str) -> None:
    async def other(ctx: JobContext, pages: int) -> Any:
        await step(ctx, "load")(0)
        await step(ctx, "send")("new")

    drift = drift_of(recorded(url), other) or ""
    assert "send#1 was called with other arguments before" in drift


def test_a_step_left_out_is_drift(url: str) -> None:
    async def other(ctx: JobContext, pages: int) -> Any:
        return await step(ctx, "load")(0)

    drift = drift_of(recorded(url), other) or ""
    assert "the code has ended, but the journal expects" in drift


def test_a_new_step_at_the_end_is_drift_of_a_job_that_completed(url: str) -> None:
    async def more(ctx: JobContext, pages: int) -> Any:
        result = await as_it_was(ctx, pages)
        await step(ctx, "load")(99)
        return result

    drift = drift_of(recorded(url), more)
    assert drift == "the code asks for load#4, and the job completed without it"


def test_another_result_is_drift(url: str) -> None:
    async def other(ctx: JobContext, pages: int) -> Any:
        await as_it_was(ctx, pages)
        return "something else"

    drift = drift_of(recorded(url), other) or ""
    assert drift.startswith('the code returns "something else", and the job returned')


def test_another_version_is_drift_unless_the_code_accepts_it(url: str) -> None:
    found = recorded(url)
    drift = drift_of(found, as_it_was, version="2") or ""
    assert "submitted for version '1'" in drift
    assert drift_of(found, as_it_was, version="2", accepts=("1",)) is None


def test_a_job_that_is_not_there_any_more_is_drift(url: str) -> None:
    report = asyncio.run(replay(App(NEVER_OPENED), recorded(url)))
    assert "report" in (report.drift or "")


def test_a_large_result_is_exported_as_a_whole(url: str) -> None:
    async def large(ctx: JobContext, pages: int) -> Any:
        return len(await step(ctx, "send")("x" * 300_000))

    found = recorded(url, code=large)
    assert len(found.journal[0].output or b"") > 300_000
    assert drift_of(found, large) is None


def test_a_job_is_replayed_from_the_store_and_from_a_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"

    async def main() -> None:
        app = app_with(as_it_was, [])
        app.url = url
        async with app:
            async with app.running():
                handle = await app.submit(app.jobs["report"](3))
                await handle.until(JobState.WAITING)
            store = await app.store()
            before = await store.journal(handle.id), await store.job(handle.id)
            assert (await replay(app, handle.id)).fits
            assert (await store.journal(handle.id), await store.job(handle.id)) == before
            file.write_text((await recorded_job(store, handle.id)).to_json())
            with pytest.raises(JobNotFound):
                await replay(app, "no such job")
        assert (await replay(app_with(as_it_was, []), file)).fits

    perdure.run(main)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    for text in ("{}", "[1]", "no json", '{"format": 99}'):
        file.write_text(text)
        with pytest.raises(Unstorable):
            asyncio.run(replay(App(NEVER_OPENED), file))
