"""What people are shown in the place of a value never becomes a value itself."""

from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Client, Plan, PlanCall
from perdure.app import App
from perdure.base.codec import encode
from perdure.base.encryption import locked_text, missing_text
from perdure.base.errors import ArgumentError
from perdure.base.secret import REMOVED
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.support.engine import durable
from tests.support.store import new_job

IBAN = "DE02120300000000202051"
SHOWN = "[removed: …2051, fp 0123abcd]"


@dataclass
class Payee:
    name: str
    iban: str


def transfers(app: App) -> list[tuple[int, str]]:
    """Define a job that transfers money after a person has agreed; return what was transferred."""
    done: list[tuple[int, str]] = []

    @app.step(irreversible=True)
    async def pay(ctx: StepContext, usd: int, iban: str) -> None:
        done.append((usd, iban))

    @app.job
    async def transfer(ctx: JobContext, usd: int, iban: str, note: str = "") -> None:
        await pay(usd, iban)

    @app.job
    async def listens(ctx: JobContext, password: str = "") -> Any:
        return await ctx.receive("go")

    _ = transfer, listens
    return done


@pytest.mark.parametrize("marker", [REMOVED, SHOWN, "[removed: …2051]", f" {SHOWN} "])
def test_an_edit_that_sends_back_what_was_shown_is_refused(url: str, marker: str) -> None:
    @durable
    async def refused(app: App) -> None:
        done = transfers(app)
        async with app.running():
            handle = await app.submit(app.jobs["transfer"](1400, IBAN), user="kim")
            seen = await asked(app)
            with pytest.raises(ArgumentError, match="only stands for a value that is not shown"):
                await app.decide(seen, "approve", by=ANN, arguments={"usd": 1, "iban": marker})
            assert done == []
            await app.decide(seen, "approve", by=ANN, arguments={"usd": 1399})
            await handle.result("20s")
        assert done == [(1399, IBAN)]

    refused(url)


@durable
async def test_a_fork_has_the_arguments_of_its_source_but_for_those_that_are_given(
    app: App,
) -> None:
    done = transfers(app)
    async with app.running():
        handle = await app.submit(app.jobs["transfer"](1400, IBAN, note="rent"), user="kim")
        seen = await asked(app)
        await app.decide(seen, "approve", by=ANN)
        await handle.result("20s")
        with pytest.raises(ArgumentError, match=r"`iban` is '.removed: …2051"):
            await handle.fork("pay", usd=5, iban=SHOWN)
        with pytest.raises(ArgumentError, match="`usd` has the wrong type"):
            await handle.fork("pay", usd="much")
        fork = await handle.fork("pay", 1399, by="lee")
        await app.decide(await asked(app), "approve", by=ANN)
        await fork.result("20s")
    assert done == [(1400, IBAN), (1399, IBAN)]
    assert (await fork.job()).input == b'{"usd":1399,"iban":"%s","note":"rent"}' % IBAN.encode()


@durable
async def test_a_fork_takes_values_and_plain_json_for_its_types(app: App) -> None:
    @app.step
    async def act(ctx: StepContext) -> None: ...

    @app.job
    async def job(ctx: JobContext, payee: Payee, by: str) -> str:
        await act()
        return f"{payee.name} {payee.iban} {by}"

    async with app.running():
        handle = await app.submit(job(Payee("kim", IBAN), "mail"))
        await handle.result("20s")
        one = await handle.fork("act", Payee("lee", "DE1"))
        other = await handle.fork("act", arguments={"payee": {"name": "x", "iban": "y"}, "by": "z"})
        with pytest.raises(ArgumentError, match="`payee` is not of the declared type"):
            await handle.fork("act", {1, 2})
        assert await one.result("20s") == "lee DE1 mail"
        assert await other.result("20s") == "x y z"


@durable
async def test_no_way_in_takes_what_only_stands_for_a_value(app: App) -> None:
    transfers(app)
    job, listens = app.jobs["transfer"], app.jobs["listens"]
    plan = Plan(PlanCall("pay", usd=5, iban=SHOWN))
    waiting = await app.submit(listens())
    client = Client(app.url)
    ways = (
        lambda: app.submit(job(5, SHOWN)),
        lambda: app.submit_many([job(5, IBAN), job(5, SHOWN)]),
        lambda: app.submit(listens(password=REMOVED)),
        lambda: app.submit(plan),
        lambda: client.submit("transfer", check=False, usd=5, iban=SHOWN),
        lambda: app.schedules.put("nightly", "0 3 * * *", job(5, SHOWN)),
        lambda: app.send(waiting.id, "go", {"deep": [{"apiKey": REMOVED}]}),
        lambda: app.send(waiting.id, "go", SHOWN),
    )
    for way in ways:
        with pytest.raises(ArgumentError, match="only stands for a value"):
            await way()
    assert [each.id for each in await app.find_jobs()] == [waiting.id]
    await client.close()


@durable
async def test_what_a_person_says_that_a_step_returned_is_no_marker(app: App) -> None:
    transfers(app)
    async with app.running():
        handle = await app.submit(app.jobs["listens"]())
        await handle.until(JobState.WAITING)
        with pytest.raises(ArgumentError, match="only stands for a value"):
            await handle.skip("receive:go", "by hand", output={"token": REMOVED})
        await handle.skip("receive:go", "by hand", output={"token": "t"})
        assert await handle.result("20s") == {"token": "t"}


@durable
async def test_a_text_that_says_removed_is_a_value_where_no_secret_is_named(app: App) -> None:
    @app.job
    async def moderate(ctx: JobContext, comment: str) -> str:
        return comment

    async with app.running():
        assert await app.run(moderate(REMOVED)) == REMOVED


@durable
async def test_an_imported_copy_whose_values_were_removed_is_not_forked_without_them(
    app: App,
) -> None:
    transfers(app)
    async with app.running():
        handle = await app.submit(app.jobs["transfer"](1400, IBAN), user="kim")
        await app.decide(await asked(app), "approve", by=ANN)
        await handle.result("20s")
        copy = await app.handle((await app.import_job(await app.export_job(handle.id))).id)
        with pytest.raises(ArgumentError, match=r"`iban` is '.removed"):
            await copy.fork("pay", by="kim")
        with pytest.raises(ArgumentError, match=r"`iban` is '.removed"):
            await copy.fork("pay", by="kim", usd=5)
        fork = await copy.fork("pay", by="kim", iban=IBAN)
        assert (await fork.job()).input == b'{"usd":1400,"iban":"%s","note":""}' % IBAN.encode()


@durable
async def test_what_says_that_a_key_is_missing_is_neither_submitted_nor_edited(app: App) -> None:
    transfers(app)
    stored = encode(locked_text(missing_text(["k1"], ())))  # as a schedule or a job is shown
    made = new_job("locked", name="transfer", input=stored)
    with pytest.raises(ArgumentError, match="only stands for a value"):
        await app.submit_new(made)
    with pytest.raises(ArgumentError, match="only stands for a value"):
        app.jobs["transfer"].parameters.edited(stored, {"usd": 5})
    with pytest.raises(ArgumentError, match="none are stored by name"):
        app.jobs["transfer"].parameters.edited(b"null", {"usd": 5})
