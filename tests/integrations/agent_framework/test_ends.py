"""An agent is ended from outside at every call and between: nothing is left open anywhere."""

from typing import Any

import pytest

pytest.importorskip("agent_framework")

from agent_framework import Agent, tool

from perdure.app import App
from perdure.integrations.agent_framework import durable_middleware
from tests.integrations.agent_framework.fake_models import ScriptedClient, calls, says
from tests.support.agent_ends import BUDGET, DONE, World, cancelled, late

pytestmark = pytest.mark.once

SCRIPT: dict[int, Any] = {
    0: [calls("look", f"a{n}", n=n) for n in range(3)],
    3: [calls("mail", "b")],
    4: [calls("pay", "c")],
    5: [says(DONE)],
}


def agent_job(app: App, world: World) -> Any:
    agent: Any = Agent(
        ScriptedClient("m", SCRIPT, before=world.dawdle),
        name="ann",
        tools=[tool(world.look), tool(world.mail), tool(world.pay, approval_mode="always_require")],
        middleware=durable_middleware(tools={"mail": {"effect": True, "in_doubt": "replay"}}),
    )

    @app.job(budget=BUDGET)
    async def work(_number: int) -> str:
        return (await agent.run("?")).text

    return work


test_agents_that_are_cancelled_at_any_moment_leave_nothing_open = cancelled(agent_job)
test_agents_whose_deadline_passes_at_any_moment_leave_nothing_open = late(agent_job)
