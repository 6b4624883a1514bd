"""An agent is ended from outside at every call and between: nothing is left open anywhere."""

from collections.abc import Generator
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, Runner, set_tracing_disabled
from agents.run import set_default_agent_runner
from agents.tool import function_tool

from perdure.app import App
from perdure.integrations.openai_agents import durable, install
from tests.integrations.openai_agents.fake_models import ScriptedModel, calls, says
from tests.support.agent_ends import BUDGET, DONE, World, cancelled, late

pytestmark = pytest.mark.once

SCRIPT: dict[int, Any] = {
    0: [calls("look", f"a{n}", n=n) for n in range(3)],
    3: [calls("mail", "b")],
    4: [calls("pay", "c")],
    5: [says(DONE)],
}


@pytest.fixture(autouse=True)
def installed() -> Generator[None]:
    """The durable runner, for one test."""
    set_tracing_disabled(True)
    install()
    yield
    set_default_agent_runner(None)


def agent_of(world: World) -> Agent[Any]:
    mail = durable(effect=True, in_doubt="replay")(function_tool(world.mail))
    tools = [function_tool(world.look), mail, function_tool(world.pay, needs_approval=True)]
    return Agent("ann", model=ScriptedModel("m", SCRIPT, before=world.dawdle), tools=[*tools])


def agent_job(app: App, world: World) -> Any:
    agent = agent_of(world)

    @app.job(budget=BUDGET)
    async def work(_number: int) -> str:
        return (await Runner.run(agent, "?")).final_output

    return work


def streamed_job(app: App, world: World) -> Any:
    agent = agent_of(world)

    @app.job(budget=BUDGET)
    async def work(_number: int) -> str:
        result = Runner.run_streamed(agent, "?")
        async for _ in result.stream_events():
            pass
        return result.final_output

    return work


test_agents_that_are_cancelled_at_any_moment_leave_nothing_open = cancelled(agent_job)
test_agents_whose_deadline_passes_at_any_moment_leave_nothing_open = late(agent_job)
test_streams_that_are_cancelled_at_any_moment_leave_nothing_open = cancelled(streamed_job)
test_streams_whose_deadline_passes_at_any_moment_leave_nothing_open = late(streamed_job)
