"""An agent of the Agent Framework that is killed: parallel tools, an effect, a question."""

import asyncio
from pathlib import Path
from typing import Any

from agent_framework import Agent, tool

from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.settings import WorkerSettings
from perdure.integrations.agent_framework import durable_middleware
from perdure.integrations.durable_calls import idempotency_key
from perdure.jobs.approval import Person
from tests.integrations.agent_framework.fake_models import ScriptedClient, calls, says
from tests.support.agent_kills import note

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
HAPPENED = {"contents": [{"type": "text", "text": "sent to kim"}]}


def agent_of(log: Path, name: str, script: dict[int, Any], *tools: Any) -> Any:
    """Return an agent whose model answers by a script, and notes each real call."""
    client = ScriptedClient(name, script, log=lambda text: note(log, text))
    middleware = durable_middleware(tools={"mail": {"effect": True}})
    return Agent(client, name=name, tools=list(tools), middleware=middleware)


def build(url: str, log: Path) -> App:
    """Make the app; its job returns the transcript of the agent."""
    app = App(url, worker=WorkerSettings(idle_patience="20ms", poll="200ms"))
    boss = _boss(log)

    @app.job
    async def agent() -> list[Any]:
        response = await boss.run("begin", session=boss.create_session())
        parts = [part for each in response.messages for part in each.contents]
        told = [part.result for part in parts if part.type == "function_result"]
        return [*map(str, told), response.text]

    return app


def _boss(log: Path) -> Any:
    done = [asyncio.Event() for _ in range(3)]

    @tool
    async def search(page: int) -> str:
        """Search."""
        note(log, f"search {page}")
        if page < 2:  # the last one that was asked for is the first to end, if it runs now
            await asyncio.wait([asyncio.ensure_future(done[page + 1].wait())], timeout=0.02)
        done[page].set()
        return f"page {page}"

    @tool
    async def mail(to: str) -> str:
        """Send a mail."""
        note(log, f"effect mail {idempotency_key()}")
        return f"sent to {to}"

    @tool(approval_mode="always_require")
    async def pay(usd: int) -> str:
        """Pay."""
        note(log, f"pay {usd}")
        return f"paid {usd}"

    helper = agent_of(log, "helper", {0: [says("helped")]})
    searches = [calls("search", f"s{page}", page=page) for page in range(3)]
    script = {
        0: [*searches, calls("help", "h1", task="now")],
        4: [calls("mail", "m1", to="kim")],
        5: [calls("pay", "p1", usd=500)],
        6: [says("all is done")],
    }
    helps = helper.as_tool(name="help", description="Helps.")
    return agent_of(log, "boss", script, search, helps, mail, pay)


async def people(app: App, handle: Handle[Any]) -> None:
    """Approve the payment, of less."""
    for asked in await app.approvals():
        if asked.job_id == handle.id:
            await app.decide(asked, "approve", by=ANN, arguments={"usd": 90})
