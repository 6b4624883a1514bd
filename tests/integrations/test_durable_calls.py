"""What all adapters share: model calls and tool calls, and questions, as durable steps."""

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from perdure import JobContext, StepContext
from perdure.app import App
from perdure.base.codec import decode
from perdure.base.errors import (
    DefinitionError,
    JobFailed,
    JobParked,
    Permanent,
    Refused,
    StepFailed,
)
from perdure.base.retry import Retry
from perdure.integrations import durable_calls
from perdure.integrations.durable_calls import (
    MODEL_RETRY,
    ModelAnswer,
    ModelCall,
    ToolOptions,
    ToolRun,
    ask,
    emit,
    estimated,
    idempotency_key,
    job,
    key_of,
    message,
    model_call,
    text_part,
    tool_call,
)
from perdure.integrations.type_codec import TypeCodec
from perdure.jobs.budget import BudgetLimits, ModelUsage
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.support.engine import durable, until

pytestmark = pytest.mark.once

ODD = "nul \0, half a pair \ud800"
USED = ModelUsage(model="m", input_tokens=70, output_tokens=20, cache_read_tokens=50)


def answer(value: Any = "yes", usage: ModelUsage = USED) -> ModelAnswer:
    return ModelAnswer(
        value=value, usage=usage, messages=[message("assistant", text_part(str(value)))]
    )


class HTTPError(Exception):
    """Like the errors of a framework."""

    def __init__(self, status_code: int, body: Any = None) -> None:
        self.status_code = status_code
        self.body = body
        super().__init__(f"status {status_code}")


# Models

GEN_AI = {
    "provider": "p",
    "model": "m",
    "answered_by": "m",
    "agent": "ann",
    "finish_reason": "",
    "cost_usd": 0.09,
    "usage": {
        "input_tokens": 70,
        "output_tokens": 20,
        "cache_read_tokens": 50,
        "cache_write_tokens": 0,
    },
    "input": [{"role": "user", "parts": [{"type": "text", "content": "really?"}]}],
    "output": [{"role": "assistant", "parts": [{"type": "text", "content": ODD}]}],
}


@durable
async def test_a_model_call_is_stored_with_its_transcript_and_its_cost(app: App) -> None:
    calls: list[str] = []

    async def body(step: StepContext) -> ModelAnswer:
        calls.append(step.step_id)
        return answer(ODD)

    @app.job(budget=BudgetLimits(usd=1, tokens=2000))
    async def agent(ctx: JobContext) -> str:
        question = [message("user", text_part("really?"))]
        call = ModelCall(
            model="m",
            provider="p",
            agent="ann",
            key=key_of(ctx, "run", 1),
            messages=question,
            estimate=estimated("m", length=300, most_output=100),
            price=lambda used: used.tokens / 1000,
        )
        found = await model_call(ctx, call, body)
        await ctx.receive("go")
        return found

    async with app.running():
        handle = await app.submit(agent())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == ODD
    assert calls == ["call:chat:ann#run.1"]
    entry = (await handle.journal())[0]
    assert decode(entry.output or b"") == {"gen_ai": GEN_AI, "value": ODD}
    budget = await handle.budget()
    assert budget is not None
    assert (budget.spent.usd, budget.spent.tokens, budget.spent.calls) == (0.09, 90, 1)
    assert budget.reserved == {}


@durable
async def test_a_budget_stops_a_model_before_the_call_that_would_exceed_it(app: App) -> None:
    calls: list[int] = []

    async def body(step: StepContext) -> ModelAnswer:
        calls.append(1)
        return answer()

    @app.job(budget=BudgetLimits(tokens=300))
    async def agent(ctx: JobContext) -> None:
        for _ in range(4):
            guess = estimated("m", length=297, most_output=20)
            await model_call(ctx, ModelCall(model="m", estimate=guess), body)

    async with app.running():
        handle = await app.submit(agent(), user="kim")
        question = await asked(app)
        assert "tokens are needed" in question.title
        assert len(calls) == 3  # each used 90, and 120 are set aside for the fourth
        await app.decide(question, "reject", by=ANN, reason="enough")
        with pytest.raises(JobFailed, match="ann said no: enough"):
            await handle.result("10s")
    budget = await handle.budget()
    assert budget is not None
    assert budget.spent.tokens == 270


@durable
async def test_a_limit_in_dollars_needs_a_price(app: App) -> None:
    async def body(step: StepContext) -> ModelAnswer:
        raise NotImplementedError

    @app.job(budget=BudgetLimits(usd=1))
    async def agent(ctx: JobContext) -> None:
        await model_call(ctx, ModelCall(model="nobody knows this"), body)

    with pytest.raises(JobFailed, match="'nobody knows this' is unknown to genai-prices: pass"):
        await app.run(agent())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_calls, "price_of", None)
        with pytest.raises(JobFailed, match="without genai-prices"):
            await app.run(agent())


@durable
async def test_an_outage_of_a_model_is_retried_and_costs_nothing(app: App) -> None:
    attempts: list[int] = []

    async def body(step: StepContext) -> ModelAnswer:
        attempts.append(step.attempt)
        if step.attempt < 3:
            raise HTTPError(503)
        return answer()

    @app.job(budget=BudgetLimits(tokens=130))
    async def agent(ctx: JobContext) -> str:
        guess = estimated("m", length=297, most_output=20)
        quick = Retry(attempts=5, initial_delay="1ms", on=MODEL_RETRY.on)
        call = ModelCall(model="m", estimate=guess, retry=quick, raises=(HTTPError,))
        return await model_call(ctx, call, body)

    assert await app.run(agent()) == "yes"
    assert attempts == [1, 2, 3]


@durable
async def test_a_certain_error_of_a_model_comes_back_as_its_own_type(app: App) -> None:
    calls: list[int] = []

    async def body(step: StepContext) -> ModelAnswer:
        calls.append(1)
        raise HTTPError(400, {"why": ODD})

    @app.job
    async def agent(ctx: JobContext) -> list[Any]:
        try:
            await model_call(ctx, ModelCall(model="m", raises=(HTTPError,)), body)
        except HTTPError as error:
            await ctx.receive("go")
            return [error.status_code, error.body]
        return []

    async with app.running():
        handle = await app.submit(agent())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == [400, {"why": ODD}]
    assert calls == [1]


@durable
async def test_an_agent_may_get_another_model_while_its_jobs_wait(app: App) -> None:
    models, called = ["old"], list[str]()

    async def body(step: StepContext) -> ModelAnswer:
        called.append(models[0])
        return ModelAnswer(value=models[0], usage=ModelUsage(model=models[0]))

    @app.job
    async def agent(ctx: JobContext) -> list[str]:
        first = await model_call(ctx, ModelCall(model=models[0], agent="ann"), body)
        await ctx.receive("go")
        return [first, await model_call(ctx, ModelCall(model=models[0], agent="ann"), body)]

    async with app.running():
        handle = await app.submit(agent())
        await until(app, handle.id, JobState.WAITING)
        models[0] = "new"
        await handle.send("go")
        assert await handle.result("10s") == ["old", "new"]
    assert called == ["old", "new"]


@durable
async def test_an_outage_that_lasts_parks_the_job(app: App) -> None:
    async def body(step: StepContext) -> ModelAnswer:
        raise ConnectionError("no route")

    once = Retry(attempts=1)

    @app.job
    async def agent(ctx: JobContext) -> None:
        await model_call(ctx, ModelCall(model="m", retry=once), body)

    with pytest.raises(JobParked, match=r"Unavailable: ConnectionError: no route"):
        await app.run(agent())


@durable
async def test_an_answer_of_three_megabytes_is_stored_whole_and_shown_in_part(app: App) -> None:
    huge = "x" * 3_000_000

    async def body(step: StepContext) -> ModelAnswer:
        emit(step, huge)
        return answer(huge)

    @app.job
    async def agent(ctx: JobContext) -> int:
        found = await model_call(ctx, ModelCall(model="m"), body)
        await ctx.receive("go")
        return len(found)

    async with app.running():
        handle = await app.submit(agent())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("20s") == 3_000_000
    pieces = [piece.value async for piece in handle.stream()]
    assert len(pieces) == 1
    assert "more characters" in pieces[0]["cut"]


# Tools


@durable
async def test_a_tool_is_called_once_and_its_error_ends_it(app: App) -> None:
    calls: list[Any] = []

    async def body(run: ToolRun) -> Any:
        calls.append(run.arguments)
        raise ValueError("odd")

    @app.job
    async def agent(ctx: JobContext) -> str:
        try:
            await tool_call(ctx, "a tool", body, key="1", arguments={"x": ODD})
        except StepFailed as error:
            return error.error_type
        return ""

    assert await app.run(agent()) == "ValueError"
    assert calls == [{"x": ODD}]


@durable
async def test_tools_run_side_by_side_and_are_known_by_their_keys(app: App) -> None:
    turns: list[int] = []
    gates = [asyncio.Event() for _ in range(4)]

    async def body(run: ToolRun) -> Any:
        number = int(run.arguments["n"])
        if number < 3:
            await gates[number + 1].wait()
        turns.append(number)
        gates[number].set()
        return number * 10

    @app.job
    async def agent(ctx: JobContext) -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    tool_call(ctx, "t", body, key=key_of(ctx, "same id"), arguments={"n": number})
                )
                for number in range(4)
            ]
        await ctx.receive("go")
        return [task.result() for task in tasks]

    async with app.running():
        handle = await app.submit(agent())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == [0, 10, 20, 30]
    assert turns == [3, 2, 1, 0]


@durable
async def test_an_effect_has_a_key_and_a_line_in_the_ledger(app: App) -> None:
    keys: list[str] = []

    async def body(run: ToolRun) -> Any:
        keys.extend([run.key, idempotency_key()])
        return "sent"

    @app.job
    async def agent(ctx: JobContext) -> str:
        options = ToolOptions.of({"perdure": {"effect": True, "in_doubt": "replay"}})
        return await tool_call(ctx, "mail", body, key="1", arguments={}, options=options)

    async with app.running():
        handle = await app.submit(agent())
        assert await handle.result("10s") == "sent"
    (effect,) = await handle.effects()
    assert (effect.kind, effect.target, effect.in_doubt) == ("tool call", "mail", "replay")
    assert keys == [effect.key, effect.key]
    assert idempotency_key() == ""


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts after an outage, without long pauses."""
    quick = Retry(attempts=20, initial_delay="1ms", on=MODEL_RETRY.on)
    monkeypatch.setattr(durable_calls, "MODEL_RETRY", quick)


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("trouble", ["timeout", "outage"])
def test_an_effect_that_may_be_repeated_is_repeated_before_the_model_hears_of_a_failure(
    url: str, trouble: str
) -> None:
    keys: list[str] = []

    async def body(run: ToolRun) -> Any:
        keys.append(run.key)
        if len(keys) == 1 and trouble == "outage":
            raise ConnectionError("no answer")
        if len(keys) == 1:
            await asyncio.Event().wait()
        return "sent"

    @durable
    async def run(app: App) -> None:
        @app.job
        async def agent(ctx: JobContext) -> str:
            options = ToolOptions(effect=True, in_doubt="replay", timeout="300ms")
            return await tool_call(ctx, "mail", body, key="1", arguments={}, options=options)

        assert await app.run(agent()) == "sent"

    run(url)
    assert len(keys) > 1
    assert len(set(keys)) == 1


async def mailed(app: App, body: Any, **options: Any) -> tuple[JobState, list[str]]:
    """Let an agent send a mail, twice if it hears of a failure; return its state, and its steps."""

    @app.job(name=f"{body.__name__}-{options['in_doubt']}")
    async def agent(ctx: JobContext) -> None:
        for key in "12":
            with contextlib.suppress(StepFailed):
                how = ToolOptions(effect=True, **options)
                await tool_call(ctx, "mail", body, key=key, arguments={}, options=how)

    handle = await app.submit(agent())
    state = await handle.until(JobState.NEEDS_ATTENTION)
    return state, [entry.id for entry in await handle.journal()]


@durable
async def test_an_effect_that_never_gets_an_answer_is_left_to_a_person(app: App) -> None:
    keys: list[str] = []

    async def hang(run: ToolRun) -> Any:
        keys.append(run.key)
        await asyncio.Event().wait()

    async def fail(run: ToolRun) -> Any:
        keys.append(run.key)
        raise ConnectionError("no answer")

    async with app.running():
        quick = Retry(attempts=3, initial_delay="1ms", on=MODEL_RETRY.on)
        for body, in_doubt, called in [
            (fail, "replay", 3),
            (hang, "replay", 3),
            (fail, "ask", 1),
            (hang, "ask", 1),
        ]:
            keys.clear()
            options = {"in_doubt": in_doubt, "timeout": "100ms", "retry": quick}
            found = await mailed(app, body, **options)
            assert found == (JobState.NEEDS_ATTENTION, ["call:tool:mail#1"])
            assert len(keys) == called
            assert len(set(keys)) == 1


@durable
async def test_the_model_hears_of_an_effect_that_certainly_did_not_happen(app: App) -> None:
    async def refuse(run: ToolRun) -> Any:
        raise Refused("no such account")

    async with app.running():
        for in_doubt in ("ask", "replay"):
            found = await mailed(app, refuse, in_doubt=in_doubt)
            assert found == (JobState.COMPLETED, ["call:tool:mail#1", "call:tool:mail#2"])


@durable
async def test_a_tool_of_high_risk_waits_for_a_person_who_may_edit_its_arguments(app: App) -> None:
    ran: list[Any] = []

    async def body(run: ToolRun) -> Any:
        ran.append(run.arguments)
        return run.arguments["usd"]

    @app.job
    async def agent(ctx: JobContext) -> int:
        options = ToolOptions(risk="high")
        return await tool_call(
            ctx, "pay", body, key="1", arguments={"usd": 500, "to": "kim"}, options=options
        )

    async with app.running():
        handle = await app.submit(agent(), user="kim")
        question = await asked(app)
        assert decode(question.shown) == {"usd": 500, "to": "kim"}
        await app.decide(question, "approve", by=ANN, arguments={"usd": 90})
        assert await handle.result("10s") == 90
    assert ran == [{"usd": 90, "to": "kim"}]


@durable
async def test_an_inline_tool_has_a_branch_of_its_own(app: App) -> None:
    async def step() -> int:
        return 1

    @app.job
    async def agent(ctx: JobContext) -> list[str]:
        async def body(run: ToolRun) -> Any:
            assert (run.step, run.key) == (None, "")
            return await ctx.call("inner", step)

        options = ToolOptions.of({"perdure": False})
        async with asyncio.TaskGroup() as group:
            for key in "ab":
                group.create_task(
                    tool_call(ctx, "sub", body, key=key, arguments={}, options=options)
                )
        return []

    async with app.running():
        handle = await app.submit(agent())
        await handle.result("10s")
    assert sorted(entry.id for entry in await handle.journal()) == [
        "tool sub inline.sub.a/call:inner#1",
        "tool sub inline.sub.b/call:inner#1",
    ]


def test_unknown_options_of_a_tool_and_unknown_values_are_refused() -> None:
    with pytest.raises(DefinitionError, match="no option efect; it has effect, in_doubt"):
        ToolOptions.of({"perdure": {"efect": True}})
    with pytest.raises(DefinitionError, match="options or False"):
        ToolOptions.of({"perdure": True})
    with pytest.raises(DefinitionError, match="in_doubt of a tool is 'replay' or 'ask', not 'no'"):
        ToolOptions.of({"perdure": {"effect": True, "in_doubt": "no"}})
    with pytest.raises(DefinitionError, match="effect of a tool is True or False, not 'no'"):
        ToolOptions.of({"perdure": {"effect": "no"}})
    assert ToolOptions.of(None) == ToolOptions()
    assert ToolOptions.of({"perdure": {"retry": 3}}).retry == Retry(attempts=3)


# People


@durable
async def test_a_question_is_answered_with_edited_arguments(app: App) -> None:
    @app.job
    async def agent(ctx: JobContext) -> list[Any]:
        yes = await ask(ctx, "pay", {"usd": 500, "to": "kim"}, key="1")
        return [yes.approved, yes.arguments]

    async with app.running():
        handle = await app.submit(agent(), user="kim")
        question = await asked(app)
        assert question.title == "pay of job agent"
        assert "pay always needs an approval" in question.reasons
        await app.decide(question, "approve", by=ANN, arguments={"usd": 90})
        assert await handle.result("10s") == [True, {"usd": 90, "to": "kim"}]


@durable
async def test_a_no_is_an_answer(app: App) -> None:
    @app.job
    async def agent(ctx: JobContext) -> list[Any]:
        no = await ask(ctx, "pay", {"usd": 500}, key="1")
        await ctx.receive("go")
        return [no.approved, no.arguments, no.reason, no.person]

    async with app.running():
        handle = await app.submit(agent(), user="kim")
        await app.decide(await asked(app), "reject", by=ANN, reason="too much")
        await handle.send("go")
        assert await handle.result("10s") == [False, {"usd": 500}, "too much", "ann"]


# Outside


def test_outside_of_a_job_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_calls, "_told", set[str]())
    with caplog.at_level(logging.WARNING, "perdure.integrations"):
        assert job("this") is None
        assert job("this") is None
        assert job("that") is None
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "this is not durable here, and nothing is recorded",
        "that is not durable here, and nothing is recorded",
    ]


def test_errors_of_our_own_are_no_outages() -> None:
    mine = Permanent("no")
    assert durable_calls.as_outage(mine) is mine
    assert durable_calls.as_outage(ValueError("x")).__class__ is ValueError
    slow = HTTPError(429)
    slow.retry_after = 7  # pyright: ignore[reportAttributeAccessIssue]
    assert vars(durable_calls.as_outage(slow)) == {"retry_after": 7.0}


def test_values_of_a_framework_come_back_with_odd_characters() -> None:
    codec = TypeCodec[dict[str, tuple[int, str]]](dict[str, tuple[int, str]])
    plain = codec.dump({"a": (1, ODD)})
    assert plain == {"a": [1, ODD]}
    assert codec.load(plain) == {"a": (1, ODD)}
