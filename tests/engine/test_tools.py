"""Steps that a model calls by name: whatever it writes, and whatever happens, is an answer."""

import json
import logging

import pytest

from perdure import App, BudgetLimits, JobContext, Retry, StepContext, ToolAnswer, ToolCall, Tools
from perdure.approvals import Person
from perdure.errors import JobFailed, NotInJob, Permanent
from perdure.jobs.state import JobState
from tests.support.engine import durable, until

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))


class NoSuchPage(Exception):
    pass


@durable
async def test_a_result_is_told_as_text_and_the_call_is_known_by_the_id_of_the_model(
    app: App,
) -> None:
    @app.step
    async def double(ctx: StepContext, number: int, *, note: str = "") -> dict[str, int]:
        return {"twice": 2 * number}

    @app.step
    async def greet(name: str) -> str:
        return f"hello {name}\0"

    tools = Tools([double, greet])

    @app.job
    async def agent(ctx: JobContext) -> list[ToolAnswer]:
        first = await tools.call("double", {"number": 4}, id="call_7")
        rest = await tools.call_all(
            [
                ToolCall("greet", '{"name": "Kim"}', "call_8"),
                ToolCall("double", {"number": 1}, "call_7"),  # a model that uses an id again
                ToolCall("double", {"number": 2}, "1"),
                ToolCall("double", {"number": 3, "note": "x"}),
            ]
        )
        return [first, *rest]

    told: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("perdure.worker").addHandler(listener)
    async with app.running():
        handle = await app.submit(agent())
        answers = await handle.result()
        ids = [entry.id for entry in await handle.journal()]
    logging.getLogger("perdure.worker").removeHandler(listener)
    assert not [each for each in told if "never awaited" in each]
    assert [each.text for each in answers] == [
        '{"twice":8}',
        "hello Kim\0",
        '{"twice":2}',
        '{"twice":4}',
        '{"twice":6}',
    ]
    assert not any(each.failed for each in answers)
    assert ids == ["double#call_7", "greet#call_8", "double#1", "double#call_1", "double#2"]


@durable
async def test_what_a_model_writes_wrong_is_an_answer_with_every_reason(app: App) -> None:
    @app.step
    async def double(ctx: StepContext, number: int, times: int) -> int:
        return number

    tools = Tools([double])

    @app.job
    async def agent(ctx: JobContext) -> list[ToolAnswer]:
        return await tools.call_all(
            [
                ToolCall("triple", {}),
                ToolCall("double", {"number": "4", "colour": 1}),
                ToolCall("double", "{"),
                ToolCall("double", ""),
                ToolCall("double", "[1, 2]"),
            ]
        )

    async with app.running():
        handle = await app.submit(agent())
        answers = await handle.result()
        assert await handle.journal() == []
    assert all(each.failed for each in answers)
    unknown, wrong, no_json, empty, a_list = (each.text for each in answers)
    assert unknown == "there is no tool 'triple'; the tools are: double"
    for reason in ("`times` is missing", "no parameter `colour`", "`number` has the wrong type"):
        assert reason in wrong
    assert "must be JSON" in no_json
    assert "`number` is missing" in empty
    assert "a JSON object" in a_list


@durable
async def test_a_failure_a_rejection_and_a_child_that_fails_are_answers_of_their_own(
    app: App,
) -> None:
    @app.step(retry=Retry(attempts=1))
    async def fetch(url: str) -> str:
        raise LookupError("no such page")

    @app.step(raises=NoSuchPage)
    async def look(url: str) -> str:
        raise NoSuchPage("a page that was declared")

    @app.step(irreversible=True)
    async def pay(usd: int) -> str:
        raise AssertionError("nobody has approved this")

    @app.job
    async def research(subject: str) -> str:
        raise Permanent("nothing is known")

    tools = Tools([fetch, look, pay, research])

    @app.job
    async def agent(ctx: JobContext) -> list[ToolAnswer]:
        return await tools.call_all(
            [
                ToolCall("fetch", {"url": "x"}),
                ToolCall("look", {"url": "x"}),
                ToolCall("research", {"subject": "x"}, "c1"),
                ToolCall("pay", {"usd": 9}, "c2"),
            ]
        )

    async with app.running():
        handle = await app.submit(agent(), user="kim")
        await until(app, handle.id, JobState.WAITING)
        while not (asked := await app.approvals()):
            await until(app, handle.id, JobState.WAITING)
        await app.decide(asked[0], "reject", by=ANN, reason="too dear")
        texts = [each.text for each in await handle.result()]
    assert texts[0] == "failed: LookupError: no such page"
    assert texts[1].startswith("failed: ")
    assert texts[1].endswith("NoSuchPage: a page that was declared")
    assert texts[2].startswith("failed: ")
    assert "nothing is known" in texts[2]
    assert texts[3].startswith("rejected: ann rejected ")
    assert texts[3].endswith("too dear")


@durable
async def test_a_cancel_and_a_budget_that_is_used_up_are_no_answers(app: App) -> None:
    @app.step
    async def think(ctx: StepContext) -> str:
        async with ctx.spend(usd=3):
            return "dear"

    @app.step
    async def wait_for_ever(ctx: StepContext) -> None:
        await ctx.cancelled.wait()

    tools, told = Tools([think, wait_for_ever]), list[str]()

    @app.job(budget=BudgetLimits(usd=1))
    async def poor(ctx: JobContext) -> str:
        told.append((await tools.call("think", {})).text)
        return told[-1]

    @app.job
    async def stopped(ctx: JobContext) -> None:
        told.append((await tools.call("wait_for_ever", {})).text)

    async with app.running():
        handle = await app.submit(poor(), user="kim")
        await until(app, handle.id, JobState.WAITING)
        assert told == []
        (asked,) = await app.approvals()
        await app.decide(asked, "approve", by=ANN, arguments={"usd": 10})
        assert await handle.result() == "dear"
        other = await app.submit(stopped())
        await until(app, other.id, JobState.RUNNING)
        await other.cancel()
        with pytest.raises(JobFailed):
            await other.result()
    assert told == ["dear"]


@durable
async def test_tools_are_called_in_the_code_of_a_job(app: App) -> None:
    @app.step
    async def tool() -> None: ...

    with pytest.raises(NotInJob, match="tools are called in the code of a job"):
        await Tools([tool]).call("tool", {})
    assert json.dumps(Tools([tool]).schemas())
