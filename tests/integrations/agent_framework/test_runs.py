"""Runs of the Agent Framework in the code of a job: the real framework, scripted models."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agent_framework")

from agent_framework import Agent, tool

from perdure import BudgetLimits, JobContext
from perdure.app import App
from perdure.base.errors import Refused
from perdure.integrations.agent_framework import durable_middleware
from perdure.jobs.budget import ModelUsage
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.integrations.agent_framework.fake_models import ScriptedClient, calls, says
from tests.support.agent_runs import (
    HangingModel,
    approved_after_restart,
    replayed,
    stopped_by_budget,
)
from tests.support.engine import durable, until

pytestmark = pytest.mark.once

ODD = "nul \0, half a pair \ud800"


def agent_of(script: dict[int, Any], *tools: Any, name: str = "ann", **options: Any) -> Any:
    """Return an agent that calls tools as a script says."""
    client = ScriptedClient(name, script)
    middleware = durable_middleware(**options)
    return Agent(client, name=name, tools=list(tools), middleware=middleware)


def tool_named(name: str, run: Callable[[int], Any], **options: Any) -> Any:
    """Return a tool that calls a function with a number."""

    async def body(x: int) -> Any:
        return run(x)

    return tool(body, name=name, description="A tool.", **options)


def told(response: Any) -> list[str]:
    """Return what tools have answered, and what was said."""
    parts = [part for each in response.messages for part in each.contents]
    results = [str(part.result) for part in parts if part.type == "function_result"]
    return [*results, response.text]


@durable
async def test_each_call_of_a_model_and_a_tool_is_a_step(app: App) -> None:
    seen: list[int] = []
    double = tool_named("double", lambda x: seen.append(x) or 2 * x)
    both = [calls("double", "c1", x=4), calls("double", "c2", x=5)]
    ann = agent_of({0: both, 2: [says("ok")]}, double)

    @app.job(budget=BudgetLimits(tokens=10_000))
    async def work(ctx: JobContext) -> list[str]:
        response = await ann.run("begin")
        await ctx.receive("go")
        return told(response)

    handle = await replayed(app, work())
    assert await handle.result() == ["8", "10", "ok"]
    assert sorted(seen) == [4, 5]
    assert [each.id for each in await handle.journal()][:4] == [
        "call:chat:ann#1",
        "call:tool:double#c1",
        "call:tool:double#c2",
        "call:chat:ann#2",
    ]
    budget = await handle.budget()
    assert budget is not None
    assert (budget.spent.tokens, budget.spent.calls) == (240, 2)


def test_outside_of_a_job_nothing_changes_and_the_framework_asks_itself() -> None:
    pay = tool_named("pay", lambda x: f"paid {x}", approval_mode="always_require")
    ann = agent_of({0: [calls("pay", "c1", x=5)], 1: [says("ok")]}, pay)
    response = asyncio.run(ann.run("begin"))
    assert [each.type for each in response.user_input_requests] == ["function_approval_request"]


@durable
async def test_an_error_of_an_effect_is_left_to_a_person_who_says_what_it_returned(
    app: App,
) -> None:
    paid: list[int] = []

    def fail(x: int) -> str:
        paid.append(x)
        raise ValueError("the bank said something odd")

    script = {0: [calls("pay", "c1", x=5)], 1: [says("ok")]}
    ann = agent_of(script, tool_named("pay", fail), tools={"pay": {"effect": True}})

    @app.job
    async def work() -> list[str]:
        return told(await ann.run("begin"))

    async with app.running():
        handle = await app.submit(work())
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.resolve(1, "happened", result={"ref": 9}, by="ann")
        assert await handle.result("10s") == ['{"ref": 9}', "ok"]
    assert paid == [5]


@durable
async def test_the_model_hears_of_an_effect_that_certainly_did_not_happen(app: App) -> None:
    def refuse(x: int) -> str:
        raise Refused(f"no account for {x}")

    # The second call has wrong arguments.
    script = {0: [calls("pay", "c1", x=5), calls("pay", "c2", x="many")], 2: [says("ok")]}
    ann = agent_of(script, tool_named("pay", refuse), tools={"pay": {"effect": True}})

    @app.job
    async def work() -> list[str]:
        return told(await ann.run("begin"))

    assert (await app.run(work()))[-1] == "ok"


@durable
async def test_an_approval_waits_over_a_restart_and_its_arguments_may_be_edited(app: App) -> None:
    paid: list[int] = []
    pay = tool_named("pay", lambda x: paid.append(x) or f"paid {x}", approval_mode="always_require")
    ann = agent_of(
        {0: [calls("pay", "c1", x=500)], 1: [says("done")]}, pay, tools={"pay": {"effect": True}}
    )

    @app.job
    async def work() -> list[str]:
        return told(await ann.run("begin"))

    handle = await approved_after_restart(app, work(), x=90)
    assert await handle.result() == ["paid 90", "done"]
    assert paid == [90]
    assert len(await handle.effects()) == 1


@durable
async def test_a_no_is_the_answer_of_the_tool(app: App) -> None:
    pay = tool_named("pay", lambda x: f"paid {x}", approval_mode="always_require")
    ann = agent_of({0: [calls("pay", "c1", x=5)], 1: [says("so")]}, pay)

    @app.job
    async def work() -> list[str]:
        return told(await ann.run("begin"))

    async with app.running():
        handle = await app.submit(work(), user="agent")
        await app.decide(await asked(app), "reject", by=ANN, reason="too much")
        refused = "The tool call was not approved. too much"
        assert await handle.result("10s") == [refused, "so"]


@durable
async def test_an_agent_as_a_tool_is_part_of_the_job(app: App) -> None:
    helper = agent_of({0: [says("helped")]}, name="helper")
    as_tool = helper.as_tool(name="help", description="Helps.")
    ann = agent_of({0: [calls("help", "c1", task="now")], 1: [says("ok")]}, as_tool)

    @app.job
    async def work(ctx: JobContext) -> list[str]:
        response = await ann.run("begin")
        await ctx.receive("go")
        return told(response)

    handle = await replayed(app, work())
    assert await handle.result() == ["helped", "ok"]
    ids = [each.id for each in await handle.journal()]
    assert ids[1] == "tool help inline.help.c1/call:chat:helper#1"


@durable
async def test_a_run_stops_at_the_limit_of_its_budget(app: App) -> None:
    script = {n: [calls("again", f"c{n}", x=n)] for n in range(20)}
    ann = agent_of(script, tool_named("again", lambda x: x))

    @app.job(budget=BudgetLimits(tokens=1500))
    async def work() -> None:
        await ann.run("begin", options={"max_tokens": 20})

    await stopped_by_budget(app, work())


def test_the_provider_of_a_model_is_known(tmp_path: Path) -> None:
    providers: list[str] = []

    def price(used: ModelUsage) -> float:
        providers.append(used.provider)
        return 0.0

    agents = [agent_of({0: [says("ok")]}, price=price) for _ in range(2)]
    agents[0].client.OTEL_PROVIDER_NAME = "openai"

    @durable
    async def run(app: App) -> None:
        @app.job
        async def work() -> None:
            for agent in agents:
                await agent.run("begin")

        await app.run(work())

    run(f"sqlite:///{tmp_path}/jobs.db")
    assert providers == ["openai", ""]


@durable
async def test_odd_and_large_answers_come_back_whole(app: App) -> None:
    huge = ODD + "x" * 3_000_000
    ann = agent_of({0: [says(huge)]})

    @app.job
    async def work(ctx: JobContext) -> bool:
        response = await ann.run("begin")
        await ctx.receive("go")
        return response.text == huge

    handle = await replayed(app, work())
    assert await handle.result()


@durable
async def test_a_stream_is_live_output_of_the_job(app: App) -> None:
    pay = tool_named("pay", lambda x: f"paid {x}", approval_mode="always_require")
    ann = agent_of({0: [calls("pay", "c1", x=5)], 1: [says("one two")]}, pay)

    @app.job
    async def work() -> str:
        stream = ann.run("begin", stream=True)
        return "".join([update.text async for update in stream])

    async with app.running():
        handle = await app.submit(work(), user="agent")
        await app.decide(await asked(app), "approve", by=ANN)
        assert await handle.result("10s") == "onetwo"
    pieces = [piece.value["contents"][0] async for piece in handle.stream()]
    assert [each.get("text") for each in pieces if each["type"] == "text"] == ["one", "two"]


@durable
async def test_a_cancel_ends_a_run_and_its_model_call(app: App) -> None:
    hangs = HangingModel()
    client = ScriptedClient("m", {}, before=hangs)
    ann: Any = Agent(client, name="ann", middleware=durable_middleware())

    @app.job
    async def work() -> None:
        await ann.run("begin")

    await hangs.ends_with_its_job(app, work())


# Limits


def looping(turns: int) -> Any:
    """Return an agent that calls a tool this many times before it answers."""
    script = {each: [calls("look", f"c{each}", x=each)] for each in range(turns)}
    return agent_of({**script, turns: [says("done")]}, tool_named("look", lambda _: "nothing yet"))


@durable
async def test_the_budget_of_a_job_decides_and_not_the_default_limit_of_iterations(
    app: App,
) -> None:
    ann = looping(45)

    @app.job(budget=BudgetLimits(calls=1000))
    async def work() -> list[str]:
        streamed = ann.run("begin", stream=True)
        async for _ in streamed:
            pass
        return [(await ann.run("begin")).text, (await streamed.get_final_response()).text]

    assert await app.run(work()) == ["done", "done"]
    assert ann.client.function_invocation_configuration.get("max_iterations") == 40


@pytest.mark.parametrize("own", [True, False], ids=["by the user", "by default without a budget"])
def test_other_limits_of_iterations_hold_in_a_job(url: str, own: bool) -> None:
    ann = looping(45)
    if own:
        ann.client.function_invocation_configuration["max_iterations"] = 7

    @durable
    async def test(app: App) -> None:
        @app.job(budget=BudgetLimits(calls=1000) if own else None)
        async def work() -> str:
            return (await ann.run("begin")).text

        assert await app.run(work()) != "done"

    test(url)


# Tools that change while agents run


@durable
async def test_a_tool_with_a_new_default_does_not_park_an_agent_that_is_under_way(app: App) -> None:
    paid: list[Any] = []

    async def pay(usd: int, currency: str = "USD") -> str:
        paid.append((usd, currency))
        return "paid"

    async def pay_anew(usd: int, urgent: bool = False, currency: str = "EUR") -> str:
        paid.append((usd, urgent, currency))
        return "paid"

    script = {0: [calls("pay", "c1", usd=5)], 1: [says("done")]}
    agents = [agent_of(script, tool(each, name="pay")) for each in (pay, pay_anew)]

    @app.job
    async def work(ctx: JobContext) -> str:
        found = (await agents[0].run("begin")).text
        await ctx.receive("go")
        return found

    async with app.running():
        handle = await app.submit(work())
        await until(app, handle.id, JobState.WAITING)
    del agents[0]  # the new code is deployed
    async with app.running():
        await handle.send("go")
        await until(app, handle.id, JobState.COMPLETED, JobState.NEEDS_ATTENTION)
    assert (await handle.job()).error is None
    assert paid == [(5, "USD")]
