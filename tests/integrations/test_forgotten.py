"""Frameworks of agents that run in a job without their adapter: refused, and named."""

import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

import pytest

pytest.importorskip("agent_framework")
pytest.importorskip("agents")
pytest.importorskip("google.adk")
pytest.importorskip("langchain")
pytest.importorskip("mcp")
pytest.importorskip("pydantic_ai")

from agent_framework import Agent as FrameworkAgent
from google.adk import apps as adk
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types
from mcp import Client
from pydantic_ai import Agent
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

from perdure import App, JobContext
from perdure.errors import JobParked
from perdure.integrations.langgraph import run_graph
from perdure.integrations.pydantic_ai import PerdureDurability
from tests.integrations.adk.fake_models import ScriptedLlm
from tests.integrations.agent_framework.fake_models import ScriptedClient
from tests.integrations.langgraph.fake_model import ScriptedModel
from tests.support.engine import QUICK
from tests.support.outside_acts import Outside, outside

Run = Callable[[Outside], Awaitable[Any]]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Outside]:
    """The world outside."""
    with outside(tmp_path) as server:
        yield server


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'jobs.db'}", worker=QUICK)


async def _post(at: Outside) -> None:
    """Call a model, as the client of a provider does."""
    async with import_module("httpx").AsyncClient() as client:
        await client.post(at.site)


async def _pydantic_ai(at: Outside) -> None:
    provider = OpenAIProvider(base_url=at.site, api_key="key")
    await Agent(OpenAIChatModel("gpt-4o", provider=provider)).run("begin")


async def _tool_of_pydantic_ai(at: Outside) -> None:
    agent = Agent(TestModel())

    @agent.tool_plain
    async def pay() -> str:
        await _post(at)
        return "paid"

    await agent.run("begin")


async def _adk(at: Outside) -> None:
    model = ScriptedLlm(model="m", script={}, before=lambda: _post(at))
    runner = InMemoryRunner(app=adk.App(name="bot", root_agent=LlmAgent(name="bot", model=model)))
    runner.auto_create_session = True
    begin = types.Content(role="user", parts=[types.Part(text="begin")])
    async for _ in runner.run_async(user_id="kim", session_id="s1", new_message=begin):
        pass


async def _agent_framework(at: Outside) -> None:
    await FrameworkAgent(ScriptedClient("m", {}, before=lambda: _post(at))).run("begin")


class _State(TypedDict):
    paid: bool


def _graph(at: Outside) -> Any:
    async def pay(_: _State) -> _State:
        await _post(at)
        return {"paid": True}

    graph = import_module("langgraph.graph").StateGraph(_State)
    graph.add_node("pay", pay)
    graph.add_edge("__start__", "pay")
    return graph.compile()


async def _langgraph(at: Outside) -> None:
    await _graph(at).ainvoke({"paid": False})


async def _langchain(at: Outside) -> None:
    def asked(_: int) -> None:
        import_module("httpx").post(at.site)

    model = ScriptedModel(script=[], asked=asked)
    agent = import_module("langchain.agents").create_agent(model)
    await agent.ainvoke({"messages": ["begin"]})


async def _mcp(at: Outside) -> None:
    async with Client(f"{at.site}/mcp") as client:
        await client.list_tools()


@pytest.mark.parametrize(
    ("run", "name", "line"),
    [
        (_pydantic_ai, "pydantic-ai", "capabilities=[PerdureDurability()]"),
        (_tool_of_pydantic_ai, "pydantic-ai", "capabilities=[PerdureDurability()]"),
        (_adk, "Google ADK", "plugins=[PerdurePlugin()]"),
        (_agent_framework, "Microsoft Agent Framework", "middleware=durable_middleware()"),
        (_langgraph, "LangGraph", "run_graph"),
        (_langchain, "LangGraph", "PerdureMiddleware()"),
        (_mcp, "an MCP client", "DurableMCP(Client("),
    ],
)
def test_a_framework_without_its_adapter_is_refused_by_name(
    run: Run, name: str, line: str, app: App, at: Outside
) -> None:
    @app.job
    async def agent() -> None:
        await run(at)

    with pytest.raises(JobParked) as parked:
        app.run_sync(agent())
    text = parked.value.failure
    assert "UnrecordedIO" in text
    assert f"{name} asked for it, and not through Perdure" in text
    assert line in text
    assert "test_forgotten.py:" in text
    assert not at.noticed


def test_a_node_of_a_graph_reaches_everybody_if_the_graph_is_durable(app: App, at: Outside) -> None:
    @app.job
    async def agent(ctx: JobContext) -> bool:
        return (await run_graph(ctx, _graph(at), {"paid": False}))["paid"]

    assert app.run_sync(agent())
    assert at.requests == ["POST /"]


def test_an_agent_with_its_adapter_reaches_its_model(app: App, at: Outside) -> None:
    async def answer(_messages: Any, _info: AgentInfo) -> Any:
        await _post(at)
        raise ValueError("that is enough")

    agent = Agent(FunctionModel(answer), name="bot", capabilities=[PerdureDurability()])

    @app.job
    async def asks() -> str:
        try:
            await agent.run("begin")
        except Exception as error:  # noqa: BLE001 - whatever the framework makes of it
            return str(error)
        return ""

    assert "that is enough" in app.run_sync(asks())
    assert at.notices()


OPENAI = """
import sys
from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI
from perdure import App, JobContext

app = App("sqlite:///openai.db")
set_tracing_disabled(True)

@app.job
async def agent() -> None:
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="key")
    model = OpenAIChatCompletionsModel("gpt-4o", client)
    await Runner.run(Agent(name="bot", model=model), "begin")

try:
    app.run_sync(agent())
except Exception as error:
    print(error)
"""


def test_the_openai_agents_sdk_without_install_is_refused_by_name(
    tmp_path: Path, at: Outside
) -> None:
    # `install` cannot be undone, and other tests call it: so this is a program of its own.
    (tmp_path / "forgotten.py").write_text(OPENAI)
    command = [sys.executable, "forgotten.py", at.site]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "the OpenAI Agents SDK asked for it, and not through Perdure" in done.stdout
    assert "call `install()` of perdure.integrations.openai_agents" in done.stdout
    assert "at forgotten.py:14 in agent" in done.stdout
    assert not at.noticed
