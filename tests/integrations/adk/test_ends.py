"""An agent is ended from outside at every call and between: nothing is left open anywhere."""

from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk import apps as adk
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import FunctionTool
from google.genai import types

from perdure.app import App
from perdure.integrations.adk import DurableSessions, PerdurePlugin
from tests.integrations.adk.fake_models import ScriptedLlm, calls, says
from tests.support.agent_ends import BUDGET, DONE, World, cancelled, late

pytestmark = pytest.mark.once

SCRIPT: dict[int, Any] = {
    0: [calls("look", n=n) for n in range(3)],
    3: [calls("mail")],
    4: [calls("pay")],
    5: [says(DONE)],
}
BEGIN = types.Content(role="user", parts=[types.Part(text="?")])


def agent_job(app: App, world: World) -> Any:
    model = ScriptedLlm(model="m", script=SCRIPT, before=world.dawdle)
    tools = [world.look, world.mail, FunctionTool(world.pay, require_confirmation=True)]
    agent = LlmAgent(name="ann", model=model, tools=[*tools])
    plugin = PerdurePlugin(tools={"mail": {"effect": True, "in_doubt": "replay"}})
    sessions = DurableSessions(InMemorySessionService())

    @app.job(budget=BUDGET)
    async def work(number: int) -> str:
        runner = Runner(
            app=adk.App(name="test", root_agent=agent, plugins=[plugin]),
            session_service=sessions,
            auto_create_session=True,
        )
        found = runner.run_async(user_id="kim", session_id=f"s{number}", new_message=BEGIN)
        said: list[Any] = [event.content async for event in found]
        return said[-1].parts[0].text

    return work


test_agents_that_are_cancelled_at_any_moment_leave_nothing_open = cancelled(agent_job)
test_agents_whose_deadline_passes_at_any_moment_leave_nothing_open = late(agent_job)
