"""An agent is ended from outside at every call and between: nothing is left open anywhere."""

from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.app import App
from perdure.integrations.pydantic_ai import PerdureDurability
from tests.support.agent_ends import BUDGET, DONE, World, cancelled, late

pytestmark = pytest.mark.once

TURNS = [
    [ToolCallPart("look", {"n": n}, tool_call_id=f"a{n}") for n in range(3)],
    [ToolCallPart("mail", {}, tool_call_id="b")],
    [ToolCallPart("pay", {}, tool_call_id="c")],
    [TextPart(DONE)],
]


def agent_job(app: App, world: World) -> Any:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await world.dawdle()
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        return ModelResponse(parts=TURNS[turn])

    agent = Agent(
        FunctionModel(answer, model_name="m"),
        name="ann",
        capabilities=[PerdureDurability(stream=False, approvals=True)],
    )
    agent.tool_plain(world.look)
    agent.tool_plain(metadata={"perdure": {"effect": True, "in_doubt": "replay"}})(world.mail)

    agent.tool_plain(requires_approval=True)(world.pay)

    @app.job(budget=BUDGET)
    async def work(_number: int) -> str:
        return (await agent.run("?")).output

    return work


test_agents_that_are_cancelled_at_any_moment_leave_nothing_open = cancelled(agent_job)
test_agents_whose_deadline_passes_at_any_moment_leave_nothing_open = late(agent_job)
