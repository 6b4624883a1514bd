"""Runs of the ADK in the code of a job: the real framework, scripted models."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk import apps as adk
from google.adk.agents import LlmAgent, run_config
from google.adk.agents.run_config import RunConfig
from google.adk.models import Gemini
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import AgentTool, FunctionTool, ToolContext
from google.genai import types

from perdure import BudgetLimits, JobContext
from perdure.app import App
from perdure.base.errors import JobFailed
from perdure.integrations.adk import DurableSessions, PerdurePlugin
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.integrations.adk.fake_models import ScriptedLlm, calls, says
from tests.support.agent_runs import (
    HangingModel,
    approved_after_restart,
    replayed,
    stopped_by_budget,
)
from tests.support.engine import durable, until

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore:The `plugins` argument:DeprecationWarning"),  # AgentTool
]

ODD = "nul \0, half a pair \ud800"


def agent_of(script: dict[int, Any], *tools: Any, name: str = "ann", **options: Any) -> LlmAgent:
    """Return an agent that calls tools as a script says."""
    return LlmAgent(
        name=name, model=ScriptedLlm(model=name, script=script), tools=list(tools), **options
    )


async def events_of(
    agent: LlmAgent, service: Any = None, plugin: PerdurePlugin | None = None, **options: Any
) -> list[Any]:
    """Run an agent, as users do; return its events."""
    runner = Runner(
        app=adk.App(name="test", root_agent=agent, plugins=[plugin or PerdurePlugin()]),
        session_service=service or InMemorySessionService(),
        auto_create_session=True,
    )
    begin = types.Content(role="user", parts=[types.Part(text="begin")])
    found = runner.run_async(user_id="kim", session_id="s1", new_message=begin, **options)
    return [event async for event in found]


def told(events: list[Any]) -> list[str]:
    """Return what was said, and what tools have answered."""
    parts = [part for event in events if not event.partial for part in event.content.parts]
    answers = [part.function_response for part in parts if part.function_response is not None]
    texts = [part.text for part in parts if part.text is not None]
    return [*(str(next(iter(each.response.values()))) for each in answers), *texts]


@durable
async def test_each_call_of_a_model_and_a_tool_is_a_step(app: App) -> None:
    seen: list[int] = []

    def double(x: int, tool_context: ToolContext) -> int:
        """Double a number."""
        seen.append(x)
        tool_context.state[f"double of {x}"] = 2 * x
        return 2 * x

    both = [calls("double", x=4), calls("double", x=5)]
    ann = agent_of({0: both, 2: [says("ok {double of 4}")]}, double)

    @app.job(budget=BudgetLimits(tokens=10_000))
    async def work(ctx: JobContext) -> list[Any]:
        service = InMemorySessionService()
        events = await events_of(ann, service)
        await ctx.receive("go")
        session = await service.get_session(app_name="test", user_id="kim", session_id="s1")
        return [told(events), session and dict(session.state)]

    handle = await replayed(app, work())
    texts, state = await handle.result()
    assert texts == ["8", "10", "ok {double of 4}"]
    assert state == {"double of 4": 8, "double of 5": 10}
    assert sorted(seen) == [4, 5]
    assert [each.name for each in await handle.journal()][:4] == [
        "call:chat:ann",
        "call:tool:double",
        "call:tool:double",
        "call:chat:ann",
    ]
    budget = await handle.budget()
    assert budget is not None
    assert (budget.spent.tokens, budget.spent.calls) == (240, 2)


def test_outside_of_a_job_nothing_changes() -> None:
    ann = agent_of({0: [calls("double", x=4)], 1: [says("ok")]}, lambda_tool("double"))
    assert told(asyncio.run(events_of(ann))) == ["8", "ok"]


def lambda_tool(name: str, run: Callable[[int], Any] = lambda x: 2 * x, **options: Any) -> Any:
    """Return a tool that calls a function with a number."""

    async def body(x: int) -> Any:
        return run(x)

    body.__name__, body.__doc__ = name, "A tool."
    return FunctionTool(body, **options)


@durable
async def test_an_error_of_an_effect_is_left_to_a_person_who_says_what_it_returned(
    app: App,
) -> None:
    paid: list[int] = []

    def fail(x: int) -> str:
        paid.append(x)
        raise ValueError("the bank said something odd")

    ann = agent_of({0: [calls("pay", x=5)], 1: [says("ok")]}, lambda_tool("pay", fail))
    plugin = PerdurePlugin(tools={"pay": {"effect": True}})

    @app.job
    async def work() -> list[str]:
        return told(await events_of(ann, plugin=plugin))

    async with app.running():
        handle = await app.submit(work())
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.resolve(1, "happened", result="ref 9", by="ann")
        assert await handle.result("10s") == ["ref 9", "ok"]
    assert paid == [5]


@durable
async def test_an_approval_waits_over_a_restart_and_its_arguments_may_be_edited(app: App) -> None:
    paid: list[int] = []
    pay = lambda_tool("pay", lambda x: paid.append(x) or f"paid {x}", require_confirmation=True)
    ann = agent_of({0: [calls("pay", x=500)], 1: [says("done")]}, pay)

    @app.job
    async def work() -> list[str]:
        return told(await events_of(ann, plugin=PerdurePlugin(tools={"pay": {"effect": True}})))

    handle = await approved_after_restart(app, work(), x=90)
    assert await handle.result() == ["paid 90", "done"]
    assert paid == [90]
    assert len(await handle.effects()) == 1


@durable
async def test_a_no_is_the_answer_of_the_tool(app: App) -> None:
    def large(x: int) -> bool:
        return x > 100

    pay = lambda_tool("pay", require_confirmation=large)
    ann = agent_of({0: [calls("pay", x=99), calls("pay", x=101)], 2: [says("so")]}, pay)

    @app.job
    async def work() -> list[str]:
        return told(await events_of(ann))

    async with app.running():
        handle = await app.submit(work(), user="agent")
        await app.decide(await asked(app), "reject", by=ANN, reason="too much")
        expected = ["198", "This tool call is rejected. too much", "so"]
        assert await handle.result("10s") == expected


@durable
async def test_sub_agents_are_durable_by_transfer_and_as_tools(app: App) -> None:
    helper = agent_of({0: [says("helped")]}, name="helper")
    bob = agent_of({2: [says("bob did it")]}, name="bob", description="does it")
    first = [calls("helper", request="now")]
    ann = agent_of(
        {0: first, 1: [calls("transfer_to_agent", agent_name="bob")]},
        AgentTool(helper),
        sub_agents=[bob],
    )

    @app.job
    async def work(ctx: JobContext) -> str:
        events = await events_of(ann)
        await ctx.receive("go")
        return told(events)[-1]

    handle = await replayed(app, work())
    assert await handle.result() == "bob did it"
    names = [entry.id.rpartition("/")[2] for entry in await handle.journal()]
    assert names[:4] == [
        "call:chat:ann#1",
        "call:chat:helper#1",
        "call:chat:ann#2",
        "call:chat:bob#1",
    ]


@durable
async def test_a_run_stops_at_the_limit_of_its_budget(app: App) -> None:
    again = {n: [calls("again", x=n)] for n in range(20)}
    config = types.GenerateContentConfig(max_output_tokens=20)
    ann = agent_of(again, lambda_tool("again"), generate_content_config=config)

    @app.job(budget=BudgetLimits(tokens=600))
    async def work() -> None:
        await events_of(ann)

    handle = await stopped_by_budget(app, work())
    budget = await handle.budget()
    assert budget is not None
    assert 120 <= budget.spent.tokens <= 600


class FromGoogle(ScriptedLlm, Gemini):
    """A model of Google, but for its answers."""


def test_the_provider_of_a_model_is_known(tmp_path: Path) -> None:
    providers: list[str] = []
    plugin = PerdurePlugin(price=lambda used: float(providers.append(used.provider) or 0))
    script = {0: [says("ok")]}
    models = [FromGoogle(model="gemini-x", script=script), ScriptedLlm(model="a/x", script=script)]

    @durable
    async def run(app: App) -> None:
        @app.job
        async def work() -> None:
            for model in models:
                await events_of(LlmAgent(name="ann", model=model), plugin=plugin)

        await app.run(work())

    run(f"sqlite:///{tmp_path}/jobs.db")
    assert providers == ["gcp.gen_ai", "a"]


@durable
async def test_odd_and_large_answers_come_back_whole(app: App) -> None:
    huge = ODD + "x" * 3_000_000
    ann = agent_of({0: [says(huge)]})

    @app.job
    async def work(ctx: JobContext) -> bool:
        events = await events_of(ann)
        await ctx.receive("go")
        return told(events) == [huge]

    handle = await replayed(app, work())
    assert await handle.result()


@durable
async def test_a_stream_is_live_output_of_the_job(app: App) -> None:
    ann = agent_of({0: [says("one two")]})
    streaming = RunConfig.model_validate({"streaming_mode": "sse"})

    @app.job
    async def work(ctx: JobContext) -> list[bool]:
        events = await events_of(ann, run_config=streaming)
        await ctx.receive("go")
        return [bool(event.partial) for event in events]

    handle = await replayed(app, work())
    assert await handle.result() == [True, True, False]
    texts = [piece.value["content"]["parts"][0]["text"] async for piece in handle.stream()]
    assert texts == ["one", "two", "one two"]


@durable
async def test_a_session_gets_each_event_once(app: App) -> None:
    at = Path(app.url.partition("///")[2]) if "sqlite" in app.url else Path("/nowhere")
    service = SqliteSessionService(str(at.with_name("sessions.db")))
    ann = agent_of({0: [calls("double", x=4)], 1: [says("ok")]}, lambda_tool("double"))

    @app.job
    async def work(ctx: JobContext) -> int:
        sessions = DurableSessions(service)
        await events_of(ann, sessions)
        await ctx.receive("go")
        found = await sessions.get_session(app_name="test", user_id="kim", session_id="s1")
        return 0 if found is None else len(found.events)

    @app.job
    async def careless() -> None:
        await events_of(ann, service)

    if "sqlite" not in app.url:
        return  # the sessions are no matter of our store
    handle = await replayed(app, work())
    assert await handle.result() == 4
    with pytest.raises(JobFailed, match=r"pass session_service=DurableSessions\(Sqlite"):
        await app.run(careless())


@durable
async def test_a_cancel_ends_a_run_and_its_model_call(app: App) -> None:
    hangs = HangingModel()
    ann = LlmAgent(name="ann", model=ScriptedLlm(model="m", script={}, before=hangs))

    @app.job
    async def work() -> None:
        await events_of(ann)

    await hangs.ends_with_its_job(app, work())


# Limits


def look() -> str:
    """Look once more."""
    return "nothing yet"


def looping(turns: int) -> LlmAgent:
    """Return an agent that calls a tool this many times before it answers."""
    script = {each: [calls("look")] for each in range(turns)}
    return agent_of({**script, turns: [says("done")]}, look)


@pytest.mark.parametrize(
    ("budget", "config", "ends"),
    [
        (BudgetLimits(calls=1000), {}, True),
        (BudgetLimits(calls=1000), {"custom_metadata": {"a": 1}}, True),
        (BudgetLimits(calls=1000), {"max_llm_calls": 3}, False),
        (None, {}, False),
    ],
    ids=["by default", "another option", "by the user", "no budget"],
)
def test_the_budget_of_a_job_decides_and_not_the_default_limit_of_calls(
    url: str, monkeypatch: pytest.MonkeyPatch, budget: Any, config: Any, ends: bool
) -> None:
    monkeypatch.setattr(run_config, "_DEFAULT_MAX_LLM_CALLS", 3)
    ann, given = looping(5), RunConfig(**config)

    @durable
    async def test(app: App) -> None:
        @app.job(budget=budget)
        async def work() -> str:
            return told(await events_of(ann, run_config=given))[-1]

        if ends:
            assert await app.run(work()) == "done"
        else:
            with pytest.raises(JobFailed, match="limit of `3` exceeded"):
                await app.run(work())

    test(url)
    assert given.max_llm_calls == 3
