"""The transcript of an agent through the API, on both databases."""

from typing import Any

import httpx
import pytest

from perdure import App, JobContext, StepContext
from perdure.integrations.durable_calls import (
    ModelAnswer,
    ModelCall,
    ToolRun,
    emit,
    message,
    model_call,
    text_part,
    tool_call,
    tool_call_part,
    tool_response_part,
)
from perdure.jobs.budget import ModelUsage
from tests.support.web_client import api_of

USED = ModelUsage(model="gpt-5", input_tokens=900, cache_read_tokens=512, output_tokens=40)


@pytest.fixture
def app(url: str) -> App:
    app = App(url)
    _agents(app)
    return app


def _agents(app: App) -> None:
    @app.step
    async def look_up(words: str) -> str:
        return f"found {words}"

    @app.step
    async def think(ctx: StepContext, turn: int) -> dict[str, Any]:
        async with ctx.spend(tokens=2_000) as spent:
            await spent.settle(usd=0.25, usage=USED)
        return {"text": f"turn {turn}", "calls": []}

    @app.job
    async def own_loop() -> None:
        await think(1)
        await look_up("lamps")
        await think(2)

    @app.job
    async def plain() -> str:
        return await look_up("nothing")

    @app.job
    async def by_adapter(ctx: JobContext, size: int = 0) -> None:
        async def body(step: StepContext) -> ModelAnswer:
            emit(step, "I look.", topic="tokens")
            said = message(
                "assistant", text_part("I look."), tool_call_part("c1", "find", {"x": 1})
            )
            return ModelAnswer(value="x" * size, usage=USED, messages=[said])

        async def find(run: ToolRun) -> Any:
            return run.arguments

        asked = [message("user", text_part("Find it."))]
        call = ModelCall(model="gpt-5", key="turn 1", messages=asked, price=lambda _: 0.25)
        await model_call(ctx, call, body)
        found = await tool_call(ctx, "find", find, key="c1", arguments={"x": 1})
        answered = [message("tool", tool_response_part("c1", found))]
        last = ModelCall(model="gpt-5", key="turn 2", messages=answered, price=lambda _: 0.25)
        await model_call(ctx, last, body)

    _ = own_loop, plain, by_adapter


async def transcript(api: httpx.AsyncClient, app: App, name: str, *args: Any) -> list[Any]:
    handle = await app.submit(app.jobs[name](*args))
    async with app.running():
        await handle.result()
    answer = await api.get(f"/api/v1/jobs/{handle.id}/transcript")
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def test_a_loop_of_ones_own_has_a_transcript_by_the_usage_that_it_settles(app: App) -> None:
    async with api_of(app) as api:
        first, tool, second = await transcript(api, app, "own_loop")
        assert first["model"]["model"] == second["model"]["model"] == "gpt-5"
        assert (first["model"]["usage"]["cache_read_tokens"], first["model"]["cost_usd"]) == (
            512,
            0.25,
        )
        assert first["model"]["output"][0]["parts"] == [{"type": "text", "content": "turn 1"}]
        assert (tool["kind"], tool["name"], tool["answer"]) == ("step", "look_up", "found lamps")
        assert tool["arguments"] == {"words": "lamps"}


@pytest.mark.parametrize("size", [0, 3_000_000])
async def test_the_calls_of_an_adapter_have_messages_tools_and_costs(app: App, size: int) -> None:
    async with api_of(app) as api:
        first, tool, second = await transcript(api, app, "by_adapter", size)
        assert first["model"]["input"][0]["parts"][0]["content"] == "Find it."
        assert [each["type"] for each in first["model"]["output"][0]["parts"]] == [
            "text",
            "tool_call",
        ]
        assert (first["model"]["usage"]["input_tokens"], first["model"]["cost_usd"]) == (900, 0.25)
        assert (tool["kind"], tool["call_id"], tool["arguments"]) == ("tool", "c1", {"x": 1})
        assert second["model"]["input"][0]["parts"][0]["response"] == {"x": 1}


async def test_a_job_without_models_has_no_transcript_nor_has_that_of_another_tenant(
    app: App,
) -> None:
    async with api_of(app) as api:
        assert await transcript(api, app, "plain") == []
        elsewhere = await app.submit(app.jobs["own_loop"](), tenant="other")
        assert (await api.get(f"/api/v1/jobs/{elsewhere.id}/transcript")).status_code == 404


async def test_a_call_of_a_model_leaves_one_line_in_the_log(app: App) -> None:
    async with app:
        handle = await app.submit(app.jobs["own_loop"]())
        async with app.running():
            await handle.result()
        lines = [each.data for each in await handle.events() if each.type == "model.called"]
        assert [(each["step"], each["input_tokens"], each["usd"]) for each in lines] == [
            ("think#1", 900, 0.25),
            ("think#2", 900, 0.25),
        ]
