"""Texts that one store would take and the other refuse: both refuse them, with the same words."""

from typing import Any

import pytest

from perdure.app import App
from perdure.base.errors import ArgumentError, DefinitionError
from perdure.engine.run.context import JobContext
from perdure.jobs.definition import check_name
from perdure.jobs.text_limits import (
    LONGEST_KEY,
    LONGEST_REASON,
    LONGEST_TENANT,
    check_given,
    check_labels,
)
from tests.support.engine import durable

# Long for an index of PostgreSQL however well it is packed.
LONG = "".join(chr(0x4E00 + number * 7 % 20000) for number in range(3000))


def greeting(app: App) -> Any:
    @app.job
    async def greet(ctx: JobContext) -> str:
        return str(await ctx.receive("name"))

    return greet


@durable
async def test_what_a_submission_names_has_a_length_on_both_stores(app: App) -> None:
    job = greeting(app)
    for name in ("tenant", "user", "key", "queue"):
        options: dict[str, Any] = {name: LONG}
        with pytest.raises(ArgumentError, match=f"`{name}` has 3,000 characters"):
            await app.submit(job(), **options)
    for text in ("a\0b", "a\ud800b"):
        with pytest.raises(ArgumentError, match="which databases refuse"):
            await app.submit(job(), key=text)
    with pytest.raises(ArgumentError, match="`tenant` must not be empty"):
        await app.submit(job(), tenant="")
    assert await app.find_jobs() == []


@durable
async def test_the_longest_texts_are_kept_on_both_stores(app: App) -> None:
    handle = await app.submit(
        greeting(app)(),
        tenant=LONG[:LONGEST_TENANT],
        key=LONG[:LONGEST_KEY],
    )
    job = await handle.job()
    assert (job.tenant, job.key) == (LONG[:LONGEST_TENANT], LONG[:LONGEST_KEY])
    await handle.pause(LONG[:LONGEST_REASON])


@durable
async def test_messages_commands_and_schedules_have_lengths_on_both_stores(app: App) -> None:
    job = greeting(app)
    handle = await app.submit(job())
    with pytest.raises(ArgumentError, match="`topic` has"):
        await handle.send(LONG)
    with pytest.raises(ArgumentError, match="`key` has"):
        await handle.send("name", key=LONG)
    with pytest.raises(ArgumentError, match="`by` has"):
        await handle.pause(by=LONG)
    with pytest.raises(ArgumentError, match="`reason` has"):
        await handle.pause(LONG * 2)
    with pytest.raises(ArgumentError, match="`schedule` has"):
        await app.schedules.put(LONG, "0 3 * * *", job())


def test_the_queues_of_an_app_have_lengths() -> None:
    with pytest.raises(DefinitionError, match="`queue` of the app has"):
        App("sqlite:///x.db", queues=[LONG])


INVISIBLE = {
    "a\nb": "has a character that is not printable: 'a\\\\nb'",
    "a\x1b[2Jb": "not printable",
    "a\u200bb": "not printable",
    "a\u00a0b": "not printable",
    " a": "must not begin or end with a blank: ' a'",
    "a ": "must not begin or end with a blank",
    "   ": "must not begin or end with a blank",
}


@pytest.mark.parametrize(("name", "why"), INVISIBLE.items(), ids=ascii)
def test_a_name_with_something_invisible_is_refused_whatever_it_names(name: str, why: str) -> None:
    for what in ("tenant", "queue", "topic", "schedule", "version", "tag", "label", "view"):
        with pytest.raises(ArgumentError, match=f"`{what}` {why}" if "begin" in why else why):
            check_given(**{what: name})
    with pytest.raises(ArgumentError, match=f"the name of label .*{why}"):
        check_labels({name: "x"})
    with pytest.raises(DefinitionError, match=why):
        App("sqlite:///never_opened.db", queues=[name])
    with pytest.raises(DefinitionError, match="cannot be the name of a step"):
        check_name(name, "step")


def test_only_queues_are_without_blanks_and_other_texts_have_any() -> None:
    with pytest.raises(ArgumentError, match="`queue` must be without blanks: write 'a-b'"):
        check_given(queue="a b")
    check_given(topic="a b", schedule="every night", label="the team", key=" a\n", reason="a\nb")
    check_labels({"team": " data\n"})
