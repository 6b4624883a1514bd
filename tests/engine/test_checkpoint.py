"""Checkpoints that are records: saved as they are, and read back as their type."""

from dataclasses import dataclass
from datetime import date

import msgspec
import pytest

from perdure.app import App
from perdure.base.errors import JobFailed
from perdure.base.retry import Retry
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.parameters import Partial
from tests.support.engine import durable, job_of

TWICE = Retry(attempts=2, initial_delay="1ms")


@dataclass
class Place:
    page: int
    day: date


class Row(msgspec.Struct):
    no: int


@durable
async def test_a_record_that_was_saved_is_read_back_as_its_type(app: App) -> None:
    @app.step(retry=TWICE)
    async def read(ctx: StepContext) -> list[int]:
        place = ctx.load_checkpoint(Place)
        if place is None:
            await ctx.save_checkpoint(Place(7, date(2024, 5, 1)))
            raise ConnectionError
        assert place.day == date(2024, 5, 1)
        assert ctx.load_checkpoint() == {"page": 7, "day": "2024-05-01"}
        return [place.page]

    handle = await app.submit(job_of(app, read)())
    async with app.running():
        assert await handle.result("10s") == [7]


@durable
async def test_a_partial_result_may_have_a_record_as_its_checkpoint(app: App) -> None:
    @app.step
    async def read(ctx: StepContext) -> int | Partial[int]:
        row = ctx.load_checkpoint(Row) or Row(0)
        return row.no if row.no == 2 else Partial(row.no, Row(row.no + 1))

    handle = await app.submit(job_of(app, read)())
    async with app.running():
        assert await handle.result("10s") == 2


@durable
async def test_what_would_not_come_back_as_it_is_cannot_be_saved(app: App) -> None:
    @app.step
    async def save(ctx: StepContext) -> None:
        await ctx.save_checkpoint({"place": Place(7, date(2024, 5, 1))})

    handle = await app.submit(job_of(app, save)())
    async with app.running():
        with pytest.raises(JobFailed, match="a `Place` would come back as a `dict`"):
            await handle.result("10s")
