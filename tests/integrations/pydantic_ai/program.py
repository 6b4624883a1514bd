"""An agent of pydantic-ai that is killed: parallel tools, an effect, a sub-agent, a question."""

import asyncio
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from perdure.app import App
from perdure.engine.handle import Handle
from perdure.integrations.durable_calls import idempotency_key
from perdure.integrations.pydantic_ai import PerdureDurability
from perdure.jobs.approval import Person
from tests.support.agent_kills import note
from tests.support.engine import QUICK

ANN = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
HAPPENED = "sent to kim"


def _answer(*parts: Any) -> ModelResponse:
    return ModelResponse(parts=list(parts), usage=RequestUsage(input_tokens=10, output_tokens=5))


def _call(tool: str, id: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments, tool_call_id=id)


def scripted(log: Path, name: str, turns: list[ModelResponse]) -> FunctionModel:
    """Return a model that answers with these turns, and notes each real call."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        first = messages[0].parts[0]
        asked = first.content if isinstance(first, UserPromptPart) else ""
        note(log, f"model {name} {asked} {turn}")
        return turns[turn]

    return FunctionModel(answer, model_name=name)


def build(url: str, log: Path) -> App:
    """Make the app; its job returns the transcript of the agent."""
    app = App(url, worker=QUICK)
    helper_turns = [_answer(_call("look", "h1", at="the sub-agent")), _answer(TextPart("helped"))]
    helper = Agent(
        scripted(log, "helper", helper_turns), name="helper", capabilities=[PerdureDurability()]
    )

    @helper.tool
    async def look(ctx: RunContext[Any], at: str) -> str:
        note(log, f"look {at} {ctx.prompt}")
        return f"saw {at}"

    searches = [_call("search", f"s{n}", page=n) for n in range(3)]
    boss_turns = [
        _answer(*searches, _call("delegate", "d1", n=1), _call("delegate", "d2", n=2)),
        _answer(_call("mail", "m1", to="kim")),
        _answer(_call("pay", "p1", usd=500)),
        _answer(TextPart("done")),
    ]
    boss = Agent(
        scripted(log, "boss", boss_turns),
        name="boss",
        capabilities=[PerdureDurability(approvals=True)],
    )
    _add_tools(boss, helper, log)

    @app.job
    async def agent() -> list[Any]:
        result = await boss.run("begin")
        return [
            [part.__class__.__name__, str(getattr(part, "content", ""))]
            for each in result.all_messages()
            for part in each.parts
        ]

    return app


def _add_tools(boss: Agent, helper: Agent, log: Path) -> None:
    done = [asyncio.Event() for _ in range(4)]

    @boss.tool_plain
    async def search(page: int) -> str:
        note(log, f"search {page}")
        if page < 2:  # the last one that was asked for is the first to end, if it runs now
            await asyncio.wait([asyncio.ensure_future(done[page + 1].wait())], timeout=0.02)
        done[page].set()
        return f"page {page}"

    @boss.tool(metadata={"perdure": False})
    async def delegate(ctx: RunContext[Any], n: int) -> str:
        return (await helper.run(f"help {n}")).output

    @boss.tool_plain(metadata={"perdure": {"effect": True}})
    async def mail(to: str) -> str:
        note(log, f"effect mail {idempotency_key()}")
        return f"sent to {to}"

    @boss.tool_plain(requires_approval=True)
    async def pay(usd: int) -> str:
        note(log, f"pay {usd}")
        return f"paid {usd}"


async def people(app: App, handle: Handle[Any]) -> None:
    """Approve the payment, of less."""
    for asked in await app.approvals():
        if asked.job_id == handle.id:
            await app.decide(asked, "approve", by=ANN, arguments={"usd": 90})
