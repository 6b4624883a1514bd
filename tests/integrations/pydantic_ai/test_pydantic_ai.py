"""Agents of pydantic-ai in jobs: models, tools, streams, approvals, budgets, errors."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import ModelHTTPError, ModelServerError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from perdure import JobContext
from perdure.app import App
from perdure.base.codec import decode
from perdure.base.errors import JobFailed, JobParked
from perdure.integrations import durable_calls
from perdure.integrations.pydantic_ai import PerdureDurability
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.support.engine import durable, until

pytestmark = pytest.mark.once

ODD = "nul \0, half a pair \ud800"


def said(*parts: Any) -> ModelResponse:
    return ModelResponse(parts=list(parts), usage=RequestUsage(input_tokens=70, output_tokens=20))


class Model:
    """A model that answers with these turns, and counts its real calls."""

    def __init__(self, *turns: Any) -> None:
        self.calls = 0
        self._turns = turns
        self.seen: list[list[ModelMessage]] = []
        self.settings: Any = None  # those of the last call
        self.model = FunctionModel(self._answer, stream_function=self._stream, model_name="m")

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.calls += 1
        self.seen.append(list(messages))
        self.settings = info.model_settings
        turn = self._turns[sum(isinstance(each, ModelResponse) for each in messages)]
        if isinstance(turn, Exception):
            raise turn
        return turn if isinstance(turn, ModelResponse) else said(TextPart(turn))

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        self.calls += 1
        turn = self._turns[sum(isinstance(each, ModelResponse) for each in messages)]
        if isinstance(turn, ModelResponse):
            for number, part in enumerate(turn.parts):
                assert isinstance(part, ToolCallPart)
                call = DeltaToolCall(
                    part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id
                )
                yield {number: call}
        else:
            for word in turn.split(" "):
                yield f"{word} "


def agent_of(model: Model, **options: Any) -> Agent[None, str]:
    return Agent(model.model, name="ann", capabilities=[PerdureDurability(**options)])


def answering(app: App, agent: Agent[None, str], **options: Any) -> Any:
    """Make a job that asks the agent, then waits for a message, and returns the answer."""

    @app.job(**options)
    async def ask(ctx: JobContext, prompt: str) -> str:
        found = (await agent.run(prompt)).output
        await ctx.receive("go")
        return found

    return ask


@durable
async def test_a_run_is_replayed_and_its_odd_characters_stay(app: App) -> None:
    model = Model(ODD)
    job = answering(app, agent_of(model))
    async with app.running():
        handle = await app.submit(job("?" + ODD))
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == ODD
    assert model.calls == 1
    entry = next(each for each in await handle.journal() if each.name == "call:chat:ann")
    stored = decode(entry.output or b"")["gen_ai"]
    assert (stored["model"], stored["agent"]) == ("m", "ann")
    assert stored["input"] == [{"role": "user", "parts": [{"type": "text", "content": "?" + ODD}]}]
    assert stored["output"] == [{"role": "assistant", "parts": [{"type": "text", "content": ODD}]}]


@durable
async def test_answers_of_three_megabytes_are_stored_and_their_live_view_is_cut(app: App) -> None:
    huge = "x" * 3_000_000
    model = Model(said(ToolCallPart("read", {}, tool_call_id="a")), huge)
    agent = agent_of(model, stream=True)
    agent.tool_plain(name="read")(lambda: huge)

    @app.job
    async def ask(ctx: JobContext) -> int:
        found = (await agent.run("?")).output
        await ctx.receive("go")
        return len(found)

    async with app.running():
        handle = await app.submit(ask())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("20s") >= 3_000_000
        cut = ["cut" in piece.value async for piece in handle.stream()]
    assert model.calls == 2
    assert any(cut)


@durable
async def test_outside_of_a_job_an_agent_runs_as_ever_and_the_log_says_so_once(app: App) -> None:
    records: list[str] = []

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    seen, log = Seen(), logging.getLogger("perdure.integrations")
    log.addHandler(seen)
    durable_calls._told.clear()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    try:
        agent = agent_of(Model("yes"), approvals=True)
        assert (await agent.run("?")).output == "yes"
        assert (await agent.run("?")).output == "yes"
    finally:
        log.removeHandler(seen)
    assert [text.partition(",")[0] for text in records] == [
        "PerdureDurability of pydantic-ai is not durable here"
    ]


# Tools


@durable
async def test_a_retry_that_a_tool_asks_for_stays_with_the_framework(app: App) -> None:
    model = Model(
        said(ToolCallPart("odd", {"n": 1}, tool_call_id="a")),
        said(ToolCallPart("odd", {"n": 2}, tool_call_id="a")),
        "done",
    )
    agent, calls = agent_of(model), list[int]()

    @agent.tool_plain
    async def odd(n: int) -> str:
        calls.append(n)
        if n == 1:
            raise ModelRetry("another number")
        return "fine"

    job = answering(app, agent)
    async with app.running():
        handle = await app.submit(job("?"))
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == "done"
    assert calls == [1, 2]
    assert model.calls == 3


@durable
async def test_an_error_of_a_tool_fails_the_run_after_one_attempt(app: App) -> None:
    agent, calls = agent_of(Model(said(ToolCallPart("odd", {}, tool_call_id="a")))), list[int]()

    @agent.tool_plain
    async def odd() -> str:
        calls.append(1)
        raise ValueError("broken")

    with pytest.raises(JobFailed, match="ValueError: broken"):
        await app.run(answering(app, agent)("?"))
    assert calls == [1]


@durable
async def test_an_error_of_an_effect_is_left_to_a_person(app: App) -> None:
    class Answer(BaseModel):
        number: int

    async def fail() -> None:
        calls.append(1)
        raise ValueError("something odd")

    async def misread() -> None:
        calls.append(1)
        Answer.model_validate({"number": "something odd"})

    async def hang() -> None:
        calls.append(1)
        await asyncio.Event().wait()

    calls: list[int] = []
    for tool, error in [(fail, "something odd"), (misread, "something odd"), (hang, "Timed out")]:
        calls.clear()
        name = tool.__name__
        turns = [said(ToolCallPart(name, {}, tool_call_id=id)) for id in "ab"]
        agent = agent_of(Model(*turns, "done"))
        agent.tool_plain(timeout=0.2, metadata={"perdure": {"effect": True}})(tool)
        with pytest.raises(JobParked, match=error):
            await app.run(answering(app, agent, name=name)("?"))
        assert calls == [1]


@durable
async def test_the_model_hears_of_wrong_arguments_of_an_effect(app: App) -> None:
    turns = [said(ToolCallPart("pay", {"usd": "many"}, tool_call_id="a")), "done"]
    agent = agent_of(Model(*turns))

    @agent.tool_plain(metadata={"perdure": {"effect": True}})
    async def pay(usd: int) -> str:
        return f"paid {usd}"

    @app.job
    async def ask() -> str:
        return (await agent.run("?")).output

    assert await app.run(ask()) == "done"


@durable
async def test_an_outage_in_a_tool_parks_the_job_until_somebody_resumes_it(app: App) -> None:
    model = Model(said(ToolCallPart("fetch", {}, tool_call_id="a")), "done")
    agent, calls = agent_of(model), list[int]()

    @agent.tool_plain
    async def fetch() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("no route")
        return "fetched"

    job = answering(app, agent)
    async with app.running():
        handle = await app.submit(job("?"))
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.retry(by="kim")
        await handle.send("go")
        assert await handle.result("10s") == "done"
    assert (len(calls), model.calls) == (2, 2)


@durable
async def test_a_person_edits_the_arguments_of_a_risky_tool(app: App) -> None:
    agent = agent_of(Model(said(ToolCallPart("pay", {"usd": 500}, tool_call_id="a")), "done"))
    paid: list[int] = []

    @agent.tool_plain(metadata={"perdure": {"risk": "high", "effect": True}})
    async def pay(usd: int) -> str:
        paid.append(usd)
        return f"paid {usd}"

    job = answering(app, agent)
    async with app.running():
        handle = await app.submit(job("?"), user="kim")
        question = await asked(app)
        assert decode(question.shown) == {"usd": 500}
        await app.decide(question, "approve", by=ANN, arguments={"usd": 90})
        await handle.send("go")
        assert await handle.result("10s") == "done"
    assert paid == [90]


@durable
async def test_two_approvals_are_asked_at_once_and_a_no_goes_to_the_model(app: App) -> None:
    model = Model(
        said(
            ToolCallPart("pay", {"usd": 5}, tool_call_id="a"),
            ToolCallPart("pay", {"usd": 7}, tool_call_id="b"),
        ),
        "done",
    )
    agent, paid = agent_of(model, approvals=True), list[int]()

    @agent.tool_plain(requires_approval=True)
    async def pay(usd: int) -> str:
        paid.append(usd)
        return f"paid {usd}"

    job = answering(app, agent)
    async with app.running():
        handle = await app.submit(job("?"), user="kim")
        await asked(app, 2)
        for each in await app.approvals():
            if decode(each.shown) == {"usd": 5}:
                await app.decide(each, "approve", by=ANN, arguments={"usd": 4})
            else:
                await app.decide(each, "reject", by=ANN, reason="too much")
        await handle.send("go")
        assert await handle.result("10s") == "done"
    assert paid == [4]
    answers = [str(getattr(part, "content", "")) for part in model.seen[1][-1].parts]
    assert sorted(answers) == ["A person said no: too much", "paid 4"]


# Streams


@durable
async def test_a_stream_is_live_and_a_late_reader_gets_it_from_the_beginning(app: App) -> None:
    model, handled = Model("one two three"), list[str]()

    async def handler(ctx: RunContext[Any], events: Any) -> None:
        async for event in events:
            handled.append(event.event_kind)

    agent = agent_of(model, event_stream_handler=handler)
    job = answering(app, agent)
    async with app.running():
        handle = await app.submit(job("?"))
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == "one two three "
    assert model.calls == 1
    assert handled.count("part_start") == 1
    pieces = [piece async for piece in handle.stream()]
    assert "".join(_text(piece.value) for piece in pieces) == "one two three "
    half = pieces[len(pieces) // 2].position
    later = [piece.position async for piece in handle.stream(after=half)]
    assert later == [piece.position for piece in pieces if piece.position > half]


def _text(event: dict[str, Any]) -> str:
    name = {"part_start": "part", "part_delta": "delta"}.get(event["event_kind"])
    part: dict[str, Any] = event[name] if name else {}
    return part.get("content") or part.get("content_delta") or ""


@durable
async def test_run_stream_and_the_events_of_tools_are_emitted(app: App) -> None:
    model = Model(said(ToolCallPart("look", {}, tool_call_id="a")), "that is all")
    agent = agent_of(model, stream=True)

    @agent.tool_plain
    async def look() -> str:
        return "seen"

    @app.job
    async def ask(ctx: JobContext) -> str:
        async with agent.run_stream("?") as run:
            text = [part async for part in run.stream_text(delta=True)]
        await ctx.receive("go")
        return "".join(text)

    async with app.running():
        handle = await app.submit(ask())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == "that is all "
    kinds = [piece.value["event_kind"] async for piece in handle.stream()]
    assert kinds.count("function_tool_result") == 1
    assert model.calls == 2


@durable
async def test_a_stream_that_breaks_is_taken_back_and_begins_again_as_another_attempt(
    app: App,
) -> None:
    calls: list[int] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        calls.append(1)
        yield "one "
        if len(calls) == 1:
            raise ModelHTTPError(503, "m")
        yield "two"

    agent: Agent[None, str] = Agent(
        FunctionModel(stream_function=stream, model_name="m"),
        name="ann",
        capabilities=[PerdureDurability(stream=True)],
    )
    job = answering(app, agent)
    async with app.running():
        handle = await app.submit(job("?"))
        await handle.send("go")
        assert await handle.result("20s") == "one two"
    pieces = [piece async for piece in handle.stream()]
    values = [piece for piece in pieces if piece.kind == "value" and piece.step]
    assert {piece.attempt for piece in values} == {2}
    assert "".join(_text(piece.value) for piece in values) == "one two"


# Money and errors


@durable
async def test_a_budget_stops_an_agent_until_a_person_raises_it(app: App) -> None:
    model = Model(*[said(ToolCallPart("look", {}, tool_call_id=str(n))) for n in range(3)], "end")
    agent = Agent(
        model.model,
        name="ann",
        model_settings={"max_tokens": 30},
        capabilities=[PerdureDurability()],
    )

    @agent.tool_plain
    async def look() -> str:
        return "seen"

    job = answering(app, agent, budget=BudgetLimits(tokens=300))
    async with app.running():
        handle = await app.submit(job("?"), user="kim")
        question = await asked(app)
        assert model.calls == 2
        await app.decide(question, "approve", by=ANN, arguments={"tokens": 1000})
        await handle.send("go")
        assert await handle.result("10s") == "end"
    budget = await handle.budget()
    assert budget is not None
    assert (budget.spent.tokens, budget.spent.calls) == (360, 4)


@durable
async def test_a_refusal_of_the_model_is_not_retried_and_keeps_its_type(app: App) -> None:
    model = Model(ModelHTTPError(400, "m", {"error": "bad"}))
    agent = agent_of(model)

    @app.job
    async def ask(ctx: JobContext) -> list[Any]:
        try:
            await agent.run("?")
        except ModelHTTPError as error:
            await ctx.receive("go")
            return [error.status_code, error.model_name, error.body]
        return []

    async with app.running():
        handle = await app.submit(ask())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == [400, "m", {"error": "bad"}]
    assert model.calls == 1


@durable
async def test_an_outage_of_the_model_is_retried_here(app: App) -> None:
    class Down(Model):
        async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if self.calls == 0:
                self.calls += 1
                raise ModelHTTPError.for_category(ModelServerError, status_code=503, model_name="m")
            return await super()._answer(messages, info)

    model = Down("yes")
    job = answering(app, agent_of(model), budget=BudgetLimits(tokens=1100))
    async with app.running():
        handle = await app.submit(job("?"))
        await handle.send("go")
        assert await handle.result("20s") == "yes"
    assert model.calls == 2
    entry = next(each for each in await handle.journal() if each.name == "call:chat:ann")
    assert entry.attempt == 2
    assert model.settings["max_retries"] == 0  # nobody else retries


# Ends from outside


@durable
async def test_a_cancel_ends_an_agent_wherever_it_is(app: App) -> None:
    begun, never = asyncio.Event(), asyncio.Event()
    agent = agent_of(Model(said(ToolCallPart("wait", {}, tool_call_id="a")), "done"))

    @agent.tool_plain
    async def wait() -> str:
        begun.set()
        await never.wait()
        return "never"

    job = answering(app, agent)
    async with app.running():
        handle = await app.submit(job("?"))
        await begun.wait()
        await handle.cancel()
        assert await handle.wait("10s") is JobState.CANCELLED


# Limits


def looping(turns: int) -> Agent[None, str]:
    """Return an agent that calls a tool this many times before it answers."""
    asks = [said(ToolCallPart("look", {}, tool_call_id=f"c{each}")) for each in range(turns)]
    agent = agent_of(Model(*asks, "done"))
    agent.tool_plain(name="look")(lambda: "nothing yet")
    return agent


@durable
async def test_the_budget_of_a_job_decides_and_not_the_default_limit_of_requests(app: App) -> None:
    agent = looping(55)

    @app.job(budget=BudgetLimits(calls=1000))
    async def ask() -> str:
        return (await agent.run("?")).output

    assert await app.run(ask()) == "done"


@durable
async def test_a_limit_of_requests_that_the_user_has_set_ends_a_run_in_a_job(app: App) -> None:
    agent = looping(55)

    @app.job(budget=BudgetLimits(calls=1000))
    async def ask() -> str:
        return (await agent.run("?", usage_limits=UsageLimits(request_limit=50))).output

    with pytest.raises(JobFailed, match="request_limit of 50"):
        await app.run(ask())


@durable
async def test_without_a_budget_the_default_limit_of_requests_holds(app: App) -> None:
    agent = looping(55)

    @app.job
    async def ask() -> str:
        return (await agent.run("?")).output

    with pytest.raises(JobFailed, match="request_limit of 50"):
        await app.run(ask())


# Tools that change while agents run


@durable
async def test_a_tool_with_a_new_default_does_not_park_an_agent_that_is_under_way(app: App) -> None:
    model = Model(said(ToolCallPart("pay", {"usd": 5}, tool_call_id="c1")), "done")
    agents = [agent_of(model), agent_of(model)]
    paid: list[Any] = []

    @agents[0].tool_plain(name="pay")
    def _(usd: int, currency: str = "USD") -> str:
        paid.append((usd, currency))
        return "paid"

    @agents[1].tool_plain(name="pay")
    def _(usd: int, urgent: bool = False, currency: str = "EUR") -> str:
        paid.append((usd, urgent, currency))
        return "paid"

    @app.job
    async def ask(ctx: JobContext) -> str:
        found = (await agents[0].run("?")).output
        await ctx.receive("go")
        return found

    async with app.running():
        handle = await app.submit(ask())
        await until(app, handle.id, JobState.WAITING)
    del agents[0]  # the new code is deployed
    async with app.running():
        await handle.send("go")
        await until(app, handle.id, JobState.COMPLETED, JobState.NEEDS_ATTENTION)
    assert (await handle.job()).error is None
    assert paid == [(5, "USD")]
