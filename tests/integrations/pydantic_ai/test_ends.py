"""An agent is ended from outside at every call and between: nothing is left open anywhere."""

import random
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import perdure
from perdure.app import App
from perdure.base.errors import IllegalTransition
from perdure.engine.handle import Handle
from perdure.integrations.pydantic_ai import PerdureDurability
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.state import ENDED, JobState
from tests.support.engine import durable

pytestmark = pytest.mark.once

SEED = 15
TURNS = [
    [ToolCallPart("look", {"n": n}, tool_call_id=f"a{n}") for n in range(3)],
    [ToolCallPart("mail", {}, tool_call_id="b")],
    [TextPart("done")],
]


def agent_job(app: App, chance: random.Random) -> Any:
    """Make a job whose agent takes a while, now here and now there."""

    async def dawdle() -> None:
        await perdure.process.sleep(chance.random() / 50)

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await dawdle()
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        return ModelResponse(parts=TURNS[turn])

    agent = Agent(
        FunctionModel(answer, model_name="m"),
        name="ann",
        capabilities=[PerdureDurability(stream=False)],
    )

    @agent.tool_plain
    async def look(n: int) -> int:
        await dawdle()
        return n

    @agent.tool_plain(metadata={"perdure": {"effect": True, "in_doubt": "replay"}})
    async def mail() -> str:
        await dawdle()
        return "sent"

    @app.job(budget=BudgetLimits(tokens=1_000_000))
    async def ask(_number: int) -> str:
        return (await agent.run("?")).output

    return ask


async def check_ends(app: App, handles: list[Handle[Any]]) -> None:
    """Wait until all have ended in a way that may be, with nothing left open."""
    for handle in handles:
        state = await handle.wait("30s")
        assert state in ENDED
        assert state is not JobState.COMPLETED or await handle.result() == "done"
        budget = await handle.budget()
        assert budget is None or budget.reserved == {}
    assert await (await app.store()).violations() == []


@durable
async def test_agents_that_are_cancelled_at_any_moment_leave_nothing_open(app: App) -> None:
    chance = random.Random(SEED)
    job = agent_job(app, chance)
    async with app.running():
        handles: list[Handle[Any]] = []
        for number in range(20):
            handles.append(await app.submit(job(number)))
            await perdure.process.sleep(chance.random() / 15)
            with suppress(IllegalTransition):  # it was quicker
                await handles[-1].cancel()
        await check_ends(app, handles)


@durable
async def test_agents_whose_deadline_passes_at_any_moment_leave_nothing_open(app: App) -> None:
    chance = random.Random(SEED)
    job = agent_job(app, chance)
    async with app.running():
        handles = [
            await app.submit(job(number), deadline=0.01 + chance.random() / 5)
            for number in range(20)
        ]
        await check_ends(app, handles)
