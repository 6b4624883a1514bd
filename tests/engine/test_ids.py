"""The id of a job may be shortened to its first or last characters, wherever a job is named."""

import pytest

from perdure import App, JobContext
from perdure.errors import AmbiguousId, JobNotFound
from tests.support.engine import durable


def nothing(app: App) -> None:
    @app.job(name="nothing")
    async def do_nothing(ctx: JobContext) -> None: ...


@durable
async def test_a_job_is_found_by_the_beginning_and_by_the_end_of_its_id(app: App) -> None:
    nothing(app)
    first = await app.submit(app.find_job("nothing")())
    await app.submit(app.find_job("nothing")())
    assert (await app.handle(first.id[-8:])).id == first.id
    assert (await app.handle(first.id[:31])).id == first.id
    assert await app.send(first.id[-8:], "topic")


@durable
async def test_what_fits_several_jobs_is_refused_with_their_ids(app: App) -> None:
    nothing(app)
    handles = await app.submit_many([app.find_job("nothing")(), app.find_job("nothing")()])
    ids = sorted((handle.id for handle in handles), reverse=True)
    with pytest.raises(AmbiguousId, match=f"use more characters: {', '.join(ids)}") as caught:
        await app.handle(ids[0][:4])
    assert caught.value.candidates == tuple(ids)


@durable
async def test_a_few_characters_and_wildcards_name_no_job(app: App) -> None:
    nothing(app)
    handle = await app.submit(app.find_job("nothing")())
    for text in (handle.id[:3], "", "%%%%", "____", f"{handle.id}0", handle.id[1:-1]):
        with pytest.raises(JobNotFound):
            await app.handle(text)
