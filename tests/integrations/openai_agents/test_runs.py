"""The `Runner` of the OpenAI Agents SDK in the code of a job: the real SDK, scripted models."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

import httpx2
from agents import (
    Agent,
    ModelBehaviorError,
    ModelSettings,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    RunState,
    SQLiteSession,
    handoff,
    set_tracing_disabled,
)
from agents.mcp import MCPServer
from agents.retry import ModelRetrySettings
from agents.run import set_default_agent_runner
from agents.tool import FunctionTool, ToolOutputImage, function_tool
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations
from openai import BadRequestError

from perdure import BudgetLimits, JobContext, current_job
from perdure.app import App
from perdure.base.errors import DefinitionError, JobFailed, JobParked, Refused
from perdure.integrations import durable_calls
from perdure.integrations.openai_agents import (
    JobSession,
    durable,
    durable_session,
    install,
)
from perdure.jobs.output import OutputPiece
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.integrations.openai_agents.fake_models import ScriptedModel, calls, says
from tests.support import engine
from tests.support.agent_runs import (
    HangingModel,
    replayed,
    stopped_by_budget,
)
from tests.support.engine import until

pytestmark = pytest.mark.once

ODD = "nul \0, half a pair \ud800"


@pytest.fixture(autouse=True)
def installed() -> Generator[None]:
    """The durable runner, for one test."""
    set_tracing_disabled(True)
    install()
    yield
    set_default_agent_runner(None)


def agent_of(script: dict[int, Any], *tools: Any, name: str = "ann", **options: Any) -> Agent[Any]:
    """Return an agent that calls tools as a script says."""
    return Agent(name=name, model=ScriptedModel(name, script), tools=list(tools), **options)


def tool_named(name: str, run: Callable[[int], Any], **options: Any) -> FunctionTool:
    """Return a tool that calls a function with a number."""

    async def body(x: int) -> Any:
        return run(x)

    return function_tool(body, name_override=name, **options)


async def ids(handle: Any) -> list[str]:
    return [entry.id for entry in await handle.journal()]


def answers(result: Any) -> list[Any]:
    """Return what the tools of a run have answered."""
    items = [item for item in result.new_items if item.type == "tool_call_output_item"]
    return [item.to_input_item()["output"] for item in items]


@engine.durable
async def test_each_call_of_a_model_and_a_tool_is_a_step(app: App) -> None:
    seen: list[int] = []
    double = tool_named("double", lambda x: seen.append(x) or 2 * x)
    ann = agent_of({0: [calls("double", "c1", x=4), calls("double", "c2", x=5)], 2: [says("ok")]})
    ann.tools = [double]

    @app.job(budget=BudgetLimits(tokens=10_000))
    async def work(ctx: JobContext) -> str:
        result = await Runner.run(ann, "begin")
        await ctx.receive("go")
        return f"{result.final_output} by {result.last_agent.name}"

    handle = await replayed(app, work())
    assert await handle.result() == "ok by ann"
    assert sorted(seen) == [4, 5]
    assert (await ids(handle))[:4] == [
        "run.ann/call:chat:ann#1",
        "run.ann/call:tool:double#c1",
        "run.ann/call:tool:double#c2",
        "run.ann/call:chat:ann#2",
    ]
    budget = await handle.budget()
    assert budget is not None
    assert (budget.spent.tokens, budget.spent.calls) == (240, 2)


@engine.durable
async def test_an_error_of_an_effect_is_left_to_a_person_and_not_to_the_model(app: App) -> None:
    paid: list[int] = []

    def fail(x: int) -> str:
        paid.append(x)
        raise ValueError("the bank said something odd")

    pay = durable(effect=True)(tool_named("pay", fail))
    again = {0: [calls("pay", "c1", x=5)], 1: [calls("pay", "c2", x=5)], 2: [says("ok")]}
    ann = agent_of(again, pay)

    @app.job
    async def work() -> str:
        return (await Runner.run(ann, "begin")).final_output

    with pytest.raises(JobParked, match="something odd"):
        await app.run(work())
    assert paid == [5]


@engine.durable
async def test_the_model_gets_the_error_of_an_effect_that_certainly_did_not_happen(
    app: App,
) -> None:
    def fail(x: int) -> str:
        raise Refused(f"no account for {x}")

    def explain(context: Any, error: Exception) -> str:
        return f"sorry: {error}"

    pay = durable(effect=True)(tool_named("pay", fail, failure_error_function=explain))
    ann = agent_of({0: [calls("pay", "c1", x=5)], 1: [says("ok")]}, pay)

    @app.job
    async def work(ctx: JobContext) -> list[Any]:
        result = await Runner.run(ann, "begin")
        await ctx.receive("go")
        return answers(result)

    handle = await replayed(app, work())
    (said,) = await handle.result()
    assert said.startswith("sorry: ")
    assert said.endswith("no account for 5")


@engine.durable
async def test_the_model_hears_of_wrong_arguments_of_an_effect(app: App) -> None:
    pay = durable(effect=True)(tool_named("pay", lambda x: f"paid {x}"))
    ann = agent_of({0: [calls("pay", "c1", x="many")], 1: [says("ok")]}, pay)

    @app.job
    async def work() -> list[Any]:
        return answers(await Runner.run(ann, "begin"))

    (said,) = await app.run(work())
    assert said.startswith("An error occurred")


@engine.durable
async def test_a_timeout_of_an_effect_is_left_to_a_person(app: App) -> None:
    async def pay(x: int) -> None:
        await asyncio.Event().wait()

    slow = durable(effect=True)(function_tool(pay, timeout=0.1))
    ann = agent_of({0: [calls("pay", "c1", x=5)], 1: [says("ok")]}, slow)

    @app.job
    async def work() -> str:
        return (await Runner.run(ann, "begin")).final_output

    with pytest.raises(JobParked, match="took longer"):
        await app.run(work())


def test_outside_of_a_job_nothing_changes_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_calls, "_told", set[str]())
    ann = agent_of({0: [says("hello")]})
    with caplog.at_level(logging.WARNING, "perdure.integrations"):
        for _ in range(2):
            assert asyncio.run(Runner.run(ann, "begin")).final_output == "hello"
    assert len([each for each in caplog.records if "not durable here" in each.message]) == 1


# People


@engine.durable
async def test_an_approval_waits_over_a_restart_and_its_arguments_may_be_edited(app: App) -> None:
    paid: list[tuple[int, str]] = []

    @durable(effect=True)
    @function_tool(needs_approval=True)
    async def pay(context: RunContextWrapper[str], usd: int) -> str:
        paid.append((usd, context.context))
        return f"paid {usd}"

    ann = agent_of({0: [calls("pay", "c1", usd=500)], 1: [says("done")]}, pay)

    @app.job
    async def work() -> str:
        result = await Runner.run(ann, "begin", context="for kim")
        return answers(result)[0]

    async with app.running():
        handle = await app.submit(work(), user="agent")
        await until(app, handle.id, JobState.WAITING)
    assert paid == []
    async with app.running():
        await app.decide(await asked(app), "approve", by=ANN, arguments={"usd": 90})
        assert await handle.result("10s") == "paid 90"
    assert paid == [(90, "for kim")]


@engine.durable
async def test_a_no_is_the_answer_of_the_tool(app: App) -> None:
    async def large(_: Any, arguments: dict[str, Any], __: str) -> bool:
        return arguments["x"] > 100

    pay = tool_named("pay", lambda x: f"paid {x}", needs_approval=large)
    ann = agent_of({0: [calls("pay", "c1", x=99), calls("pay", "c2", x=101)], 2: [says("so")]}, pay)

    @app.job
    async def work() -> list[str]:
        result = await Runner.run(ann, "begin")
        assert not result.interruptions
        return answers(result)

    async with app.running():
        handle = await app.submit(work(), user="agent")
        await app.decide(await asked(app), "reject", by=ANN, reason="too much")
        refused = "Tool execution was not approved. too much"
        assert await handle.result("10s") == ["paid 99", refused]


@engine.durable
async def test_two_agents_as_tools_ask_side_by_side_each_in_its_scope(app: App) -> None:
    pay = tool_named("pay", lambda x: f"paid {x}", needs_approval=True)
    sub = agent_of({0: [calls("pay", "same id", x=1)], 1: [says("sub is done")]}, pay, name="sub")
    both = [calls("sub", "c1", input="one"), calls("sub", "c2", input="two")]
    ann = agent_of({0: both, 2: [says("all done")]}, sub.as_tool("sub", "works"))

    @app.job
    async def work() -> str:
        return (await Runner.run(ann, "begin")).final_output

    async with app.running():
        handle = await app.submit(work(), user="agent")
        await asked(app, 2)
        for question in await app.approvals():
            await app.decide(question, "approve", by=ANN)
        assert await handle.result("10s") == "all done"
    inner = [id for id in await ids(handle) if "/run.sub/" in id]
    assert len(inner) == 2 * 4
    assert {id.split("/")[1] for id in inner} == {
        "tool sub inline.sub.c1",
        "tool sub inline.sub.c2",
    }


@engine.durable
async def test_a_run_that_was_interrupted_elsewhere_is_refused(app: App) -> None:
    pay = tool_named("pay", lambda x: f"paid {x}", needs_approval=True)
    ann = agent_of({0: [calls("pay", "c1", x=5)], 1: [says("done")]}, pay)
    state = (await Runner.run(ann, "begin", context={"of": "kim"})).to_state()
    state.approve(state.get_interruptions()[0])

    @app.job
    async def work(stored: str) -> str:
        found = await RunState.from_string(ann, stored)
        return (await Runner.run(ann, found)).final_output

    with pytest.raises(JobFailed, match="begin it in the job"):
        await app.run(work(state.to_string()))


# Budgets, errors, odd and large answers


@engine.durable
async def test_a_run_stops_at_the_limit_of_its_budget(app: App) -> None:
    again = tool_named("again", lambda x: x)
    script = {n: [calls("again", f"c{n}", x=n)] for n in range(20)}
    ann = agent_of(script, again, model_settings=ModelSettings(max_tokens=20))

    @app.job(budget=BudgetLimits(tokens=500))
    async def work() -> str:
        return (await Runner.run(ann, "begin", max_turns=20)).final_output

    handle = await stopped_by_budget(app, work())
    budget = await handle.budget()
    assert budget is not None
    assert 120 <= budget.spent.tokens <= 500


@engine.durable
async def test_tokens_of_the_cache_count_for_the_price(app: App) -> None:
    install(price=lambda used: (used.input_tokens - used.cache_read_tokens) / 100)

    @app.job(budget=BudgetLimits(usd=5))
    async def work() -> str:
        return (await Runner.run(agent_of({0: [says("cheap")]}), "begin")).final_output

    async with app.running():
        handle = await app.submit(work())
        assert await handle.result("10s") == "cheap"
    budget = await handle.budget()
    assert budget is not None
    assert budget.spent.usd == pytest.approx(0.4)


class FromOpenAI(ScriptedModel, OpenAIResponsesModel):
    """A model of OpenAI, but for its answers."""


def test_the_provider_of_a_model_is_known(tmp_path: Path) -> None:
    providers: list[str] = []
    install(price=lambda used: float(providers.append(used.provider) or 0))
    models = [FromOpenAI("gpt-5", {0: [says("ok")]}), ScriptedModel("mine/x", {0: [says("ok")]})]

    @engine.durable
    async def run(app: App) -> None:
        @app.job
        async def work() -> None:
            for model in models:
                await Runner.run(Agent(name="ann", model=model), "begin")

        await app.run(work())

    run(f"sqlite:///{tmp_path}/jobs.db")
    assert providers == ["openai", "mine"]


@engine.durable
async def test_odd_and_large_answers_come_back_whole(app: App) -> None:
    huge = ODD + "x" * 3_000_000
    echo = tool_named("echo", lambda x: ODD * x)
    ann = agent_of({0: [calls("echo", "c1", x=2)], 1: [says(huge)]}, echo)

    @app.job
    async def work(ctx: JobContext) -> list[Any]:
        result = await Runner.run(ann, "begin")
        await ctx.receive("go")
        return [result.final_output == huge, *answers(result)]

    handle = await replayed(app, work())
    assert await handle.result() == [True, ODD * 2]


@engine.durable
async def test_errors_of_the_sdk_and_of_openai_come_back_as_their_own_type(app: App) -> None:
    raised: list[int] = []

    async def bad() -> None:
        raised.append(1)
        if len(raised) == 1:
            raise ModelBehaviorError("nonsense")
        refused = httpx2.Response(400, request=httpx2.Request("POST", "https://model.example"))
        raise BadRequestError("no such model", response=refused, body={"code": "model"})

    ann = Agent(name="ann", model=ScriptedModel("m", {}, before=bad))

    @app.job
    async def work(ctx: JobContext) -> list[Any]:
        found: list[str] = []
        try:
            await Runner.run(ann, "begin")
        except ModelBehaviorError as error:
            found += [str(error)]
        try:
            await Runner.run(ann, "begin")
        except BadRequestError as error:
            found += [str(error.status_code), str(error.body)]
        await ctx.receive("go")
        return found

    handle = await replayed(app, work())
    assert await handle.result() == ["nonsense", "400", "{'code': 'model'}"]
    assert len(raised) == 2


@engine.durable
async def test_only_the_step_retries_and_limits_the_time_of_a_model(app: App) -> None:
    seen: list[ModelSettings] = []

    class Watching(ScriptedModel):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs.get("model_settings") or args[2])
            return await super().get_response(*args, **kwargs)

    settings = ModelSettings(timeout=30, retry=ModelRetrySettings(max_retries=3))
    ann = Agent(name="ann", model=Watching("m", {0: [says("ok")]}), model_settings=settings)

    @app.job
    async def work() -> str:
        config: Any = {"model_settings": settings}
        return (await Runner.run(ann, "begin", run_config=config)).final_output

    assert await app.run(work()) == "ok"
    assert [(each.timeout, each.retry) for each in seen] == [(None, None)]
    assert ann.model_settings is settings


# Handoffs, other tools


@engine.durable
async def test_an_agent_after_a_handoff_is_durable_and_its_callback_is_called_once(
    app: App,
) -> None:
    handed: list[str] = []
    double = tool_named("double", lambda x: handed.append("tool") or 2 * x)
    bob = agent_of({1: [calls("double", "c2", x=2)], 2: [says("bob did it")]}, double, name="bob")
    to_bob = handoff(bob, on_handoff=lambda _: handed.append("handoff"))
    ann = agent_of({0: [calls("transfer_to_bob", "c1")]}, handoffs=[to_bob])

    @app.job
    async def work(ctx: JobContext) -> str:
        result = await Runner.run(ann, "begin")
        await ctx.receive("go")
        return f"{result.final_output} as {result.last_agent.name}"

    handle = await replayed(app, work())
    assert await handle.result() == "bob did it as bob"
    assert handed == ["handoff", "tool"]


class Mail(MCPServer):
    """A server with two tools, that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    @property
    def name(self) -> str:
        return "mail"

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...
    async def list_prompts(self) -> Any: ...
    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Tool]:
        self.asked.append("list")
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        reads = ToolAnnotations.model_validate({"readOnlyHint": True})
        return [
            Tool.model_validate({"name": "read", "inputSchema": schema, "annotations": reads}),
            Tool.model_validate({"name": "send", "inputSchema": schema}),
        ]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        self.asked.append(tool_name)
        return CallToolResult(content=[TextContent(type="text", text=f"{tool_name} is done")])


@engine.durable
async def test_tools_of_an_mcp_server_are_steps_and_hints_say_which_are_effects(app: App) -> None:
    server = Mail()
    ann = agent_of({0: [calls("read", "c1"), calls("send", "c2")], 2: [says("ok")]})
    ann.mcp_servers = [server]

    @app.job
    async def work(ctx: JobContext) -> str:
        result = await Runner.run(ann, "begin")
        await ctx.receive("go")
        return result.final_output

    handle = await replayed(app, work())
    assert await handle.result() == "ok"
    assert sorted(server.asked) == ["list", "list", "read", "send"]
    assert [effect.target for effect in await handle.effects()] == ["send"]


@engine.durable
async def test_a_tool_may_answer_with_a_picture_and_be_part_of_the_job(app: App) -> None:
    url = "data:image/png;base64,AAAA"
    draw = tool_named("draw", lambda _: ToolOutputImage(image_url=url))

    async def step() -> int:
        return 7

    @function_tool
    async def count() -> int:
        return await current_job().call("counted", step)

    install(tools={"count": False})

    ann = agent_of({0: [calls("draw", "c1", x=1), calls("count", "c2")], 2: [says("ok")]})
    ann.tools = [draw, count]

    @app.job
    async def work() -> list[Any]:
        result = await Runner.run(ann, "begin")
        return answers(result)

    async with app.running():
        handle = await app.submit(work())
        drawn, counted = await handle.result("10s")
    assert (drawn[0]["image_url"], counted) == (url, "7")
    assert "run.ann/tool count inline.count.c2/call:counted#1" in await ids(handle)


# Streaming


@engine.durable
async def test_a_stream_is_live_output_of_the_job_and_whole_for_a_late_reader(app: App) -> None:
    ann = agent_of({0: [calls("double", "c1", x=4)], 1: [says("one two three")]})
    ann.tools = [tool_named("double", lambda x: 2 * x)]

    @app.job
    async def work(ctx: JobContext) -> list[str]:
        result = Runner.run_streamed(ann, "begin")
        kinds = [event.type async for event in result.stream_events()]
        await ctx.receive("go")
        return [result.final_output, *kinds]

    async with app.running():
        handle = await app.submit(work())
        await until(app, handle.id, JobState.WAITING)
        late = [piece async for piece in _first(handle.stream(), 5)]
        await handle.send("go")
        final, *kinds = await handle.result("10s")
    assert final == "one two three"
    assert kinds.count("raw_response_event") == 1 + 4
    assert kinds.count("run_item_stream_event") == 3
    words = [piece.value.get("delta") for piece in late if piece.kind == "value"]
    assert [word for word in words if word] == ["one", "two", "three"]
    rest = [piece async for piece in handle.stream(after=late[-1].position)]
    assert rest == []


async def _first(pieces: AsyncGenerator[OutputPiece], count: int) -> AsyncGenerator[OutputPiece]:
    """Yield some pieces of a stream that does not end yet."""
    async for piece in pieces:
        yield piece
        count -= 1
        if not count:
            return


@engine.durable
async def test_people_are_asked_in_the_middle_of_a_stream(app: App) -> None:
    pay = tool_named("pay", lambda x: f"paid {x}", needs_approval=True)
    ann = agent_of({0: [calls("pay", "c1", x=5)], 1: [says("done")]}, pay)

    @app.job
    async def work() -> list[str]:
        result = Runner.run_streamed(ann, "begin")
        names = [e.name async for e in result.stream_events() if e.type == "run_item_stream_event"]
        return [*names, result.final_output]

    async with app.running():
        handle = await app.submit(work(), user="agent")
        await until(app, handle.id, JobState.WAITING)
        await app.decide(await asked(app), "approve", by=ANN)
        assert await handle.result("10s") == [
            "tool_called",
            "tool_output",
            "message_output_created",
            "done",
        ]


# Sessions


@engine.durable
async def test_a_session_gets_each_item_once(app: App) -> None:
    folder = Path(app.url.partition("///")[2]).parent if "sqlite" in app.url else None
    ann = agent_of({0: [calls("double", "c1", x=4)], 1: [says("ok")]})
    ann.tools = [tool_named("double", lambda x: 2 * x)]
    session = SQLiteSession("kim", (folder or Path(tempfile.mkdtemp())) / "sessions.db")

    @app.job
    async def work(ctx: JobContext) -> int:
        await Runner.run(ann, "begin", session=session)
        await ctx.receive("go")
        return len(await durable_session(session).get_items())

    handle = await replayed(app, work())
    assert await handle.result() == 4
    assert len(await session.get_items()) == 4
    session.close()


@engine.durable
async def test_a_conversation_of_a_job_needs_no_database(app: App) -> None:
    ann = agent_of({0: [says("ok")]})

    @app.job
    async def work(ctx: JobContext) -> list[Any]:
        session = JobSession()
        await Runner.run(ann, "one", session=session)
        await ctx.receive("go")
        await Runner.run(ann, "two", session=session)
        last = await session.get_items(limit=1)
        await session.pop_item()
        left = len(await session.get_items())
        await session.clear_session()
        return [last[0].get("role"), left, await session.pop_item()]

    handle = await replayed(app, work())
    assert await handle.result() == ["assistant", 3, None]


def test_a_session_in_memory_is_refused() -> None:
    with pytest.raises(DefinitionError, match="a restart loses it: use JobSession"):
        durable_session(SQLiteSession("kim"))


# Cancel and deadline


@engine.durable
async def test_a_cancel_ends_a_run_and_its_model_call(app: App) -> None:
    hangs = HangingModel()
    ann = Agent(name="ann", model=ScriptedModel("m", {}, before=hangs))

    @app.job
    async def work(streamed: bool) -> None:
        if streamed:
            async for _ in Runner.run_streamed(ann, "begin").stream_events():
                pass
        else:
            await Runner.run(ann, "begin")

    for streamed in (False, True):
        await hangs.ends_with_its_job(app, work(streamed))


@engine.durable
async def test_a_deadline_ends_a_run_that_waits_for_a_person(app: App) -> None:
    pay = tool_named("pay", lambda x: f"paid {x}", needs_approval=True)
    ann = agent_of({0: [calls("pay", "c1", x=5)], 1: [says("done")]}, pay)

    @app.job(timeout="300ms")
    async def work() -> str:
        return (await Runner.run(ann, "begin")).final_output

    async with app.running():
        handle = await app.submit(work(), user="agent")
        with pytest.raises(JobFailed, match="deadline"):
            await handle.result("10s")
    assert await app.approvals() == []


# Limits


def looping(turns: int) -> Agent[Any]:
    """Return an agent that calls a tool this many times before it answers."""

    @function_tool
    async def look() -> str:
        return "nothing yet"

    script = {each: [calls("look", f"c{each}")] for each in range(turns)}
    return agent_of({**script, turns: [says("done")]}, look)


@engine.durable
async def test_the_budget_of_a_job_decides_and_not_the_default_limit_of_turns(app: App) -> None:
    ann = looping(15)

    @app.job(budget=BudgetLimits(calls=1000))
    async def work() -> list[str]:
        streamed = Runner.run_streamed(ann, "begin")
        async for _ in streamed.stream_events():
            pass
        return [(await Runner.run(ann, "begin")).final_output, streamed.final_output]

    assert await app.run(work()) == ["done", "done"]


@engine.durable
async def test_a_limit_of_turns_that_the_user_has_set_ends_a_run_in_a_job(app: App) -> None:
    ann = looping(15)

    @app.job(budget=BudgetLimits(calls=1000))
    async def work() -> str:
        return (await Runner.run(ann, "begin", max_turns=10)).final_output

    with pytest.raises(JobFailed, match=r"Max turns \(10\) exceeded"):
        await app.run(work())


@engine.durable
async def test_without_a_budget_the_default_limit_of_turns_holds(app: App) -> None:
    ann = looping(15)

    @app.job
    async def work() -> str:
        return (await Runner.run(ann, "begin")).final_output

    with pytest.raises(JobFailed, match=r"Max turns \(10\) exceeded"):
        await app.run(work())
