"""A job as a file, and as a copy in another store."""

from pathlib import Path

import msgspec
import pytest

from perdure.app import App
from perdure.client import Client
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.errors import ArgumentError, IllegalTransition, JobNotFound
from perdure.jobs.bundle import read_bundle
from perdure.jobs.effect import EffectState
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from tests.support.engine import durable

CANARY = "canary-4711"


def _define(app: App) -> None:
    @app.step
    async def pay(ctx: StepContext, password: str) -> dict[str, str]:
        await ctx.effect("payment", _answer, target="card 1", undo=None)
        return {"token": password, "state": "paid"}

    @app.job
    async def order(ctx: JobContext, password: str, wait: bool) -> str:
        ctx.emit({"secret": password, "text": "hello"})
        await pay(password)
        if wait:
            await ctx.receive("go")
        return "done"

    _ = order


async def _answer(key: str) -> str:
    return "receipt"


@durable
async def test_a_bundle_has_everything_but_secrets(app: App) -> None:
    _define(app)
    async with app.running():
        handle = await app.submit(app.jobs["order"](CANARY, False), labels={"team": "data"})
        await handle.wait("10s")
        data = await app.export_job(handle.id)
        assert CANARY.encode() not in data
        bundle = read_bundle(data)
        assert (bundle.job.state, bundle.job.result) == (JobState.COMPLETED, "done")
        assert [each.id for each in bundle.journal] == ["pay#1"]
        assert bundle.journal[0].output["state"] == "paid"
        assert [each.target for each in bundle.effects] == ["card 1"]
        assert bundle.output["output"][0].value["text"] == "hello"
        assert bundle.events[0].type == "submitted"
        assert bundle.definitions is not None
        with pytest.raises(JobNotFound):
            await app.export_job("nobody")


@durable
async def test_an_imported_job_can_be_looked_at_and_never_runs(app: App) -> None:
    _define(app)
    async with app.running():
        handle = await app.submit(app.jobs["order"](CANARY, False), labels={"team": "data"})
        await handle.wait("10s")
        copy = await app.import_job(await app.export_job(handle.id), by="ann")
        job = await copy.job()
        assert copy.id != handle.id
        assert (job.state, job.tenant, job.queue) == (JobState.COMPLETED, "imported", "imported")
        assert await copy.output("pay") == {"token": "[removed]", "state": "paid"}
        assert [each.state for each in await copy.effects()] == [EffectState.DONE]
        assert [each.type for each in await copy.events()][-1] == "imported"
        pieces = [piece async for piece in copy.stream("output")]
        assert [piece.value_as(dict)["text"] for piece in pieces] == ["hello"]
        found = await app.find_jobs(JobQuery(tenant="imported", labels={"team": "data"}))
        assert [each.id for each in found] == [copy.id]
        assert await (await app.store()).violations() == []


@durable
async def test_a_job_that_still_ran_is_imported_as_cancelled(app: App) -> None:
    _define(app)
    async with app.running():
        handle = await app.submit(app.jobs["order"](CANARY, True))
        await handle.until(JobState.WAITING)
        copy = await app.import_job(await app.export_job(handle.id))
        assert await copy.status() is JobState.CANCELLED
        failure = await copy.failure()
        assert failure is not None
        assert "was WAITING when it was exported" in failure.message
        assert await handle.status() is JobState.WAITING
        with pytest.raises(IllegalTransition):
            await copy.cancel()
        assert await (await app.store()).violations() == []
        await handle.cancel()
        await handle.wait("10s")


def test_a_bundle_goes_from_one_database_to_another(url: str, tmp_path: Path) -> None:
    @durable
    async def case(app: App) -> None:
        _define(app)
        async with app.running():
            handle = await app.submit(app.jobs["order"](CANARY, False))
            await handle.wait("10s")
        async with Client(f"sqlite:///{tmp_path}/other.db") as client:
            copies = [await client.import_job(await app.export_job(handle.id)) for _ in range(2)]
            assert [await each.status() for each in copies] == [JobState.COMPLETED] * 2

    case(url)


@durable
async def test_what_is_no_bundle_is_refused(app: App) -> None:
    for data in (b"", b"{}", b"[1]", b'{"format": "perdure.job"}'):
        with pytest.raises(ArgumentError, match="not a bundle"):
            await app.import_job(data)


@durable
async def test_a_bundle_of_a_later_version_is_refused(app: App) -> None:
    _define(app)
    handle = await app.submit(app.jobs["order"](CANARY, False))
    bundle = msgspec.json.decode(await app.export_job(handle.id))
    with pytest.raises(ArgumentError, match="its version is 99"):
        await app.import_job(msgspec.json.encode({**bundle, "version": 99}))
