"""An agent of the OpenAI Agents SDK that is killed: parallel tools, an effect, a question, more."""

import asyncio
from pathlib import Path
from typing import Any

from agents import Agent, Runner, SQLiteSession, function_tool, handoff, set_tracing_disabled

from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.settings import WorkerSettings
from perdure.integrations.durable_calls import idempotency_key
from perdure.integrations.openai_agents import durable, install
from perdure.jobs.approval import Person
from tests.integrations.openai_agents.fake_models import ScriptedModel, calls, says
from tests.support.agent_kills import note

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
HAPPENED = "sent to kim"
STREAMED = False

install()
set_tracing_disabled(True)


def model_of(log: Path, name: str, script: dict[int, Any]) -> ScriptedModel:
    """Return a model that answers by a script, and notes each real call."""
    return ScriptedModel(name, script, log=lambda text: note(log, text))


def build(url: str, log: Path) -> App:
    """Make the app; its job returns the transcript of the agent."""
    app = App(url, worker=WorkerSettings(idle_patience="20ms", poll="200ms"))
    boss = _boss(log)

    @app.job
    async def agent() -> list[Any]:
        session = SQLiteSession("kim", log.with_name("session.db"))
        if STREAMED:
            result = Runner.run_streamed(boss, "begin", session=session)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(boss, "begin", session=session)
        return [result.to_input_list(), result.last_agent.name, await session.get_items()]

    return app


def _boss(log: Path) -> Agent[Any]:
    done = [asyncio.Event() for _ in range(3)]

    @function_tool
    async def search(page: int) -> str:
        note(log, f"search {page}")
        if page < 2:  # the last one that was asked for is the first to end, if it runs now
            await asyncio.wait([asyncio.ensure_future(done[page + 1].wait())], timeout=0.02)
        done[page].set()
        return f"page {page}"

    helper = Agent("helper", model=model_of(log, "helper", {0: [says("helped")]}))
    searches = [calls("search", f"s{page}", page=page) for page in range(3)]
    script = {0: [*searches, calls("help", "d1", input="now")], 4: [calls("transfer_to_kim", "t1")]}
    to_kim = handoff(_writer(log), on_handoff=lambda _: note(log, "handoff"))
    return Agent(
        "boss",
        model=model_of(log, "boss", script),
        tools=[search, helper.as_tool("help", "helps")],
        handoffs=[to_kim],
    )


def _writer(log: Path) -> Agent[Any]:
    @durable(effect=True)
    @function_tool
    async def mail(to: str) -> str:
        note(log, f"effect mail {idempotency_key()}")
        return f"sent to {to}"

    @function_tool(needs_approval=True)
    async def pay(usd: int) -> str:
        note(log, f"pay {usd}")
        return f"paid {usd}"

    script = {
        5: [calls("mail", "m1", to="kim")],
        6: [calls("pay", "p1", usd=500)],
        7: [says("all is done")],
    }
    return Agent("kim", model=model_of(log, "kim", script), tools=[mail, pay])


async def people(app: App, handle: Handle[Any]) -> None:
    """Approve the payment, of less."""
    for asked in await app.approvals():
        if asked.job_id == handle.id:
            await app.decide(asked, "approve", by=ANN, arguments={"usd": 90})
