"""An agent of the ADK that is killed: parallel tools, an effect, a question, a session."""

import asyncio
import warnings
from pathlib import Path
from typing import Any

from google.adk import apps as adk
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner, Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import AgentTool, FunctionTool
from google.genai import types

from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.settings import WorkerSettings
from perdure.integrations.adk import DurableSessions, PerdurePlugin
from perdure.integrations.durable_calls import idempotency_key
from perdure.jobs.approval import Person
from tests.integrations.adk.fake_models import ScriptedLlm, calls, says
from tests.support.agent_kills import note

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
HAPPENED: Any = {"result": "sent to kim", "actions": {}}

warnings.simplefilter("ignore", DeprecationWarning)  # AgentTool passes plugins as of old


async def _run_once() -> None:
    """Let the ADK import what it imports only when it runs, once instead of in each child."""

    async def nothing() -> None:
        """Do nothing."""

    script = {0: [calls("nothing")], 1: [says("done")]}
    agent = LlmAgent(name="warm", model=ScriptedLlm(model="m", script=script), tools=[nothing])
    runner = InMemoryRunner(app=adk.App(name="warm", root_agent=agent))
    runner.auto_create_session = True
    begin = types.Content(role="user", parts=[types.Part(text="begin")])
    async for _ in runner.run_async(user_id="kim", session_id="s1", new_message=begin):
        pass


asyncio.run(_run_once())


def agent_of(log: Path, name: str, script: dict[int, Any], *tools: Any) -> LlmAgent:
    """Return an agent whose model answers by a script, and notes each real call."""
    model = ScriptedLlm(model=name, script=script, log=lambda text: note(log, text))
    return LlmAgent(name=name, model=model, tools=list(tools), description=name)


def build(url: str, log: Path) -> App:
    """Make the app; its job returns the transcript of the agent."""
    app = App(url, worker=WorkerSettings(idle_patience="20ms", poll="200ms"))
    boss = _boss(log)

    @app.job
    async def agent() -> list[Any]:
        sessions = DurableSessions(SqliteSessionService(str(log.with_name("sessions.db"))))
        plugin = PerdurePlugin(tools={"mail": {"effect": True}})
        runner = Runner(
            app=adk.App(name="test", root_agent=boss, plugins=[plugin]),
            session_service=sessions,
            auto_create_session=True,
        )
        begin = types.Content(role="user", parts=[types.Part(text="begin")])
        events = runner.run_async(user_id="kim", session_id="s1", new_message=begin)
        told = [_told(event) async for event in events]
        session = await sessions.get_session(app_name="test", user_id="kim", session_id="s1")
        return [told, [] if session is None else [_told(event) for event in session.events]]

    return app


def _told(event: Any) -> list[Any]:
    answers = [part.function_response for part in event.content.parts]
    return [
        event.author,
        [part.text for part in event.content.parts],
        sorted(str(each.response) for each in answers if each is not None),
    ]


def _boss(log: Path) -> LlmAgent:
    done = [asyncio.Event() for _ in range(3)]

    async def search(page: int) -> str:
        """Search."""
        note(log, f"search {page}")
        if page < 2:  # the last one that was asked for is the first to end, if it runs now
            await asyncio.wait([asyncio.ensure_future(done[page + 1].wait())], timeout=0.02)
        done[page].set()
        return f"page {page}"

    async def mail(to: str) -> str:
        """Send a mail."""
        note(log, f"effect mail {idempotency_key()}")
        return f"sent to {to}"

    async def pay(usd: int) -> str:
        """Pay."""
        note(log, f"pay {usd}")
        return f"paid {usd}"

    helper = agent_of(log, "helper", {0: [says("helped")]})
    searches = [calls("search", page=page) for page in range(3)]
    script = {
        0: [*searches, calls("helper", request="now")],
        4: [calls("mail", to="kim")],
        5: [calls("pay", usd=500)],
        6: [says("all is done")],
    }
    to_pay = FunctionTool(pay, require_confirmation=True)
    return agent_of(log, "boss", script, search, AgentTool(helper), mail, to_pay)


async def people(app: App, handle: Handle[Any]) -> None:
    """Approve the payment, of less."""
    for asked in await app.approvals():
        if asked.job_id == handle.id:
            await app.decide(asked, "approve", by=ANN, arguments={"usd": 90})
