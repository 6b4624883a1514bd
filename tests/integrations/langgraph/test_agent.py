"""Agents and graphs in jobs: calls and nodes are steps, interrupts are questions to people."""

# LangGraph leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

import asyncio
import logging
import operator
from typing import Annotated, Any, TypedDict

import pytest

import perdure

pytest.importorskip("langchain.agents")

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph._internal import _config
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel

from perdure import JobContext
from perdure.app import App
from perdure.base.codec import decode, encode
from perdure.base.errors import DefinitionError, JobFailed
from perdure.integrations import durable_calls
from perdure.integrations.durable_calls import ToolOptions
from perdure.integrations.langgraph import PerdureMiddleware, PerdureSaver, run_graph
from perdure.integrations.langgraph.plain import dump, load
from perdure.jobs.approval import Approval
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.integrations.langgraph.fake_model import ScriptedModel, calls, says
from tests.support.engine import QUICK, durable, until

pytestmark = pytest.mark.once

ODD = "nul \0, half a pair \ud800"
GO: Any = {"messages": [HumanMessage("go")]}


def talking(app: App, agent: Any, **options: Any) -> Any:
    """Return a call of a job that runs an agent, and returns what was said."""

    @app.job(name="talk", **{k: v for k, v in options.items() if k == "budget"})
    async def talk(ctx: JobContext) -> list[str]:
        more = {name: value for name, value in options.items() if name != "budget"}
        state = await run_graph(ctx, agent, GO, **more)
        return [f"{each.type}: {each.text}" for each in state["messages"]]

    return talk()


async def answer(app: App, *verdicts: Any, number: int = 1) -> list[Approval]:
    """Wait for questions, and answer each: True, False, or with other arguments."""
    await asked(app, len(verdicts) * number)
    questions = sorted(await app.approvals(), key=lambda each: each.action.step)
    for question, verdict in zip(questions, verdicts, strict=True):
        if verdict is False:
            await app.decide(question, "reject", by=ANN, reason="too dear")
        else:
            given = None if verdict is True else verdict
            await app.decide(question, "approve", by=ANN, arguments=given)
    return questions


@tool
async def pay(usd: int) -> str:
    """Pay, if a person agrees."""
    return f"paid {usd}: {interrupt(f'Pay {usd} USD?')}"


# Calls


@durable
async def test_each_call_of_a_model_and_a_tool_is_a_step_of_its_own(app: App) -> None:
    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    script = [calls(("1", "add", {"a": 1, "b": 2})), says("three")]
    agent = create_agent(ScriptedModel(script=script), [add], middleware=[PerdureMiddleware()])
    async with app.running():
        handle = await app.submit(talking(app, agent))
        assert await handle.result("20s") == ["human: go", "ai: ", "tool: 3", "ai: three"]
    steps = [each.id for each in await handle.journal()]
    assert steps == [
        "graph.LangGraph/call:chat:scriptedmodel#1.model",
        "graph.LangGraph/call:tool:add#2.tools.0.1",
        "graph.LangGraph/call:chat:scriptedmodel#3.model",
    ]
    entries = await handle.journal()
    assert decode(entries[1].input or b"") == {"a": 1, "b": 2}
    told = decode(entries[2].output or b"")["gen_ai"]
    assert told["usage"]["output_tokens"] == 20
    assert told["input"] == [
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "1", "response": "3"}],
        }
    ]
    assert told["output"] == [
        {"role": "assistant", "parts": [{"type": "text", "content": "three"}]}
    ]


@durable
async def test_odd_and_large_answers_come_back_as_they_were(app: App) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return ODD + "x" * 3_000_000

    script = [calls(("1", "look", {})), says(ODD + "y" * 3_000_000)]
    agent = create_agent(ScriptedModel(script=script), [look], middleware=[PerdureMiddleware()])

    @app.job
    async def talk(ctx: JobContext) -> list[bool]:
        state = await run_graph(ctx, agent, GO)
        await ctx.receive("go")
        return [
            state["messages"][2].text == ODD + "x" * 3_000_000,
            state["messages"][3].text == ODD + "y" * 3_000_000,
        ]

    async with app.running():
        handle = await app.submit(talk())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")  # it is replayed
        assert await handle.result("30s") == [True, True]


@durable
async def test_a_budget_stops_an_agent_before_the_call_that_would_exceed_it(app: App) -> None:
    turns: list[int] = []

    @tool
    async def more() -> str:
        """Go on."""
        return "more"

    script = [calls((str(turn), "more", {})) for turn in range(9)]
    agent = create_agent(
        ScriptedModel(script=script, asked=turns.append), [more], middleware=[PerdureMiddleware()]
    )
    async with app.running():
        call = talking(app, agent, budget=BudgetLimits(tokens=1200))
        handle = await app.submit(call, user="kim")
        assert "tokens are needed" in (await asked(app)).title
        assert turns == [0, 1]  # 90 each; a third needs over 1,024 more
        budget = await handle.budget()
        assert budget is not None
        assert budget.spent.tokens == 180


@durable
async def test_a_late_reader_gets_the_whole_stream(app: App) -> None:
    @tool
    async def work() -> str:
        """Work."""
        get_stream_writer()({"half": "done"})
        return "done"

    script = [calls(("1", "work", {})), says("well done indeed")]
    agent = create_agent(ScriptedModel(script=script), [work], middleware=[PerdureMiddleware()])
    async with app.running():
        handle = await app.submit(talking(app, agent, stream="live"))
        await handle.result("20s")
    found = [piece.value async for piece in handle.stream("live")]
    assert found == [
        {"node": "tools", "custom": {"half": "done"}},
        *({"node": "model", "text": text} for text in ("well ", "done ", "indeed ")),
    ]


@durable
async def test_outside_of_a_job_the_middleware_says_once_that_nothing_is_durable(app: App) -> None:
    durable_calls._told.discard("langgraph")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("perdure.integrations").addHandler(handler)
    agent = create_agent(ScriptedModel(script=[says("yes")]), [], middleware=[PerdureMiddleware()])
    for _ in range(2):
        state = await agent.ainvoke(GO)
        assert state["messages"][-1].text == "yes"
    logging.getLogger("perdure.integrations").removeHandler(handler)
    assert len(heard) == 1
    assert "langgraph is not durable here" in heard[0]


# People


@durable
async def test_an_interrupt_in_a_tool_is_a_question_that_outlives_its_worker(app: App) -> None:
    script = [calls(("1", "pay", {"usd": 5})), says("done")]
    agent = create_agent(ScriptedModel(script=script), [pay], middleware=[PerdureMiddleware()])
    call = talking(app, agent)
    async with app.running():
        handle = await app.submit(call, user="kim")
        question = await asked(app)
        assert decode(question.action.input or b"")["question"] == "Pay 5 USD?"
        await until(app, handle.id, JobState.WAITING)
    await answer(app, {"question": "Pay 5 USD?", "answer": "from the blue account"})
    async with app.running():
        said = await handle.result("20s")
    assert said[2] == "tool: paid 5: from the blue account"


@durable
async def test_questions_of_parallel_tools_get_their_own_answers(app: App) -> None:
    script = [calls(*((str(n), "pay", {"usd": n}) for n in range(3))), says("done")]
    agent = create_agent(ScriptedModel(script=script), [pay], middleware=[PerdureMiddleware()])
    async with app.running():
        handle = await app.submit(talking(app, agent), user="kim")
        await asked(app, 3)
        for question in await app.approvals():  # the newest first
            about = decode(question.action.input or b"")["question"]
            given = {"question": about, "answer": f"yes to {about}"}
            await app.decide(question, "approve", by=ANN, arguments=given)
        said = await handle.result("20s")
    assert said[2:5] == [f"tool: paid {n}: yes to Pay {n} USD?" for n in range(3)]


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_people_decide_for_the_middleware_of_langchain(url: str, mode: Any) -> None:
    async def main() -> None:
        app = App(url, worker=QUICK)

        @tool
        async def mail(to: str) -> str:
            """Send a mail."""
            return f"sent to {to}"

        script = [calls(*((str(n), "mail", {"to": f"kim{n}"}) for n in range(3))), says("done")]
        people = HumanInTheLoopMiddleware({"mail": True}, interrupt_mode=mode)
        middleware = [people, PerdureMiddleware()]
        agent = create_agent(ScriptedModel(script=script), [mail], middleware=middleware)
        async with app.running():
            handle = await app.submit(talking(app, agent), user="kim")
            await answer(app, True, {"to": "lee"}, False)
            said = await handle.result("20s")
        assert "tool: sent to kim0" in said
        assert [each for each in said if each.endswith("sent to lee")]
        assert [each for each in said if "ann rejected the call of mail: too dear" in each]
        assert not [each for each in said if each.endswith(("to kim1", "to kim2"))]
        await app.close()

    perdure.run(main)


@durable
async def test_a_tool_of_high_risk_waits_for_a_person_whose_no_goes_to_the_model(app: App) -> None:
    @tool
    async def drop(table: str) -> str:
        """Drop a table."""
        return f"dropped {table}"

    script = [
        calls(("1", "drop", {"table": "a"})),
        calls(("2", "drop", {"table": "b"})),
        says("done"),
    ]
    middleware = PerdureMiddleware(tools=ToolOptions(risk="high"))
    agent = create_agent(ScriptedModel(script=script), [drop], middleware=[middleware])
    async with app.running():
        handle = await app.submit(talking(app, agent), user="kim")
        await answer(app, False)
        await answer(app, {"table": "c"})
        said = await handle.result("20s")
    assert said[2] == "tool: ann rejected the call of drop: too dear"
    assert said[4] == "tool: dropped c"


@durable
async def test_an_error_of_an_effect_is_left_to_a_person_who_says_what_it_returned(
    app: App,
) -> None:
    paid: list[int] = []

    @tool
    async def give(usd: int) -> str:
        """Give money."""
        paid.append(usd)
        raise ValueError("the bank said something odd")

    script = [calls(("1", "give", {"usd": 5})), says("done")]
    middleware = PerdureMiddleware(tools=ToolOptions(effect=True))
    agent = create_agent(ScriptedModel(script=script), [give], middleware=[middleware])
    async with app.running():
        handle = await app.submit(talking(app, agent))
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
        await handle.resolve(1, "happened", result="ref 9", by="ann")
        assert await handle.result("10s") == ["human: go", "ai: ", "tool: ref 9", "ai: done"]
    assert paid == [5]


# Sub-agents and structured answers


@durable
async def test_the_calls_of_a_sub_agent_are_steps_too_and_a_plain_tool_may_block(app: App) -> None:
    @tool
    def count(word: str) -> int:
        """Count letters, in a thread."""
        return len(word)

    scripted = ScriptedModel(script=[calls(("1", "count", {"word": "four"})), says("4 letters")])
    expert = create_agent(scripted, [count], middleware=[PerdureMiddleware(agent="expert")])

    @tool
    async def ask_expert(word: str) -> str:
        """Ask an expert."""
        state = await expert.ainvoke({"messages": [HumanMessage(word)]})
        return str(state["messages"][-1].content)

    ask_expert.metadata = {"perdure": False}
    script = [
        calls(*((str(n), "ask_expert", {"word": "four"}) for n in range(2))),
        says("done"),
    ]
    middleware = [PerdureMiddleware(agent="boss")]
    agent = create_agent(ScriptedModel(script=script), [ask_expert], middleware=middleware)

    @app.job
    async def talk(ctx: JobContext) -> list[str]:
        state = await run_graph(ctx, agent, GO)
        await ctx.receive("go")
        return [str(each.content) for each in state["messages"]]

    async with app.running():
        handle = await app.submit(talk())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")  # it is replayed
        assert await handle.result("20s") == ["go", "", "4 letters", "4 letters", "done"]
    steps = [each.id for each in await handle.journal() if each.kind == "step"]
    assert len(steps) == len(set(steps)) == 2 + 2 * 3
    assert sum("call:chat:expert" in each for each in steps) == 4


class City(BaseModel):
    """What an agent is asked for."""

    name: str


@durable
async def test_a_structured_answer_comes_back_as_its_type(app: App) -> None:
    model = ScriptedModel(script=[calls(("1", "City", {"name": "Rome"}))])
    agent = create_agent(
        model, [], middleware=[PerdureMiddleware()], response_format=ToolStrategy(City)
    )

    @app.job
    async def job(ctx: JobContext) -> bool:
        state = await run_graph(ctx, agent, GO)
        await ctx.receive("go")
        return state["structured_response"] == City(name="Rome")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("20s")


@durable
async def test_a_conversation_is_continued_by_the_next_job_and_saved_once(app: App) -> None:
    script = [says("hello Kim"), says("again")]
    saver = PerdureSaver(app)
    middleware = [PerdureMiddleware()]
    model = ScriptedModel(script=script)
    agent = create_agent(model, [], middleware=middleware, checkpointer=saver)
    bare = create_agent(model, [], middleware=middleware)

    @app.job
    async def talk(ctx: JobContext, said: str) -> list[str]:
        state = await run_graph(ctx, agent, {"messages": [HumanMessage(said)]}, thread="kim")
        await ctx.receive("go")
        with pytest.raises(DefinitionError, match="needs a graph with a checkpointer"):
            await run_graph(ctx, bare, GO, thread="kim")
        return [str(each.content) for each in state["messages"]]

    expected = ["I am Kim", "hello Kim", "who am I?", "again"]
    async with app.running():
        for said, length in (("I am Kim", 2), ("who am I?", 4)):
            handle = await app.submit(talk(said))
            await until(app, handle.id, JobState.WAITING)
            await handle.send("go")  # it is replayed
            assert await handle.result("20s") == expected[:length]
    found = [each async for each in saver.alist({"configurable": {"thread_id": "kim"}})]
    assert [len(each.checkpoint["channel_values"]["messages"]) for each in found] == [4, 2]
    assert found[0].parent_config == found[1].config


# Graphs


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


async def say(state: Said) -> Any:
    return {"said": [f"after {len(state['said'])}"]}


@durable
async def test_nodes_may_send_go_elsewhere_and_ask(app: App) -> None:
    ran: list[str] = []

    def fan_out(state: Said) -> list[Send]:
        return [Send("one", {"said": [str(number)]}) for number in range(3)]

    async def one(state: Said) -> Any:
        ran.append(f"one {state['said'][0]}")
        return Command(update={"said": state["said"]}, goto="ask" if state["said"] == ["2"] else ())

    async def ask(state: Said) -> Any:
        ran.append("ask")
        return {"said": [f"{interrupt({'about': state['said']})}", f"{interrupt('sure?')}"]}

    builder = StateGraph(Said).add_node("one", one).add_node("ask", ask)
    graph = builder.add_conditional_edges(START, fan_out, ["one"]).compile()

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return (await run_graph(ctx, graph, {"said": []}))["said"]

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await answer(app, True)
        await answer(app, {"question": "sure?", "answer": "quite"})
        assert await handle.result("20s") == ["0", "1", "2", "True", "quite"]
    assert sorted(ran) == ["ask", "ask", "ask", "one 0", "one 1", "one 2"]


@durable
async def test_nodes_that_are_no_steps_and_breakpoints_ask_people_too(app: App) -> None:
    async def inline(state: Said) -> Any:
        return {"said": [str(interrupt("which?"))]}

    builder = StateGraph(Said).add_node("say", say)
    for name in ("left", "right"):
        builder.add_node(name, inline, metadata={"perdure": False})
        builder.add_edge(START, name)
    builder.add_edge(["left", "right"], "say")
    graph = builder.compile(interrupt_before=["say"])
    seen: list[Any] = []

    async def reply(ctx: JobContext, value: Any) -> str:
        seen.append(value)
        return await ctx.receive("reply", kind=str)

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return (await run_graph(ctx, graph, {"said": []}, on_interrupt=reply))["said"]

    async with app.running():
        handle = await app.submit(job(), user="kim")
        await handle.send("reply", "a")
        await handle.send("reply", "b")
        assert (await asked(app)).action.step.endswith("call:approve:breakpoint#breakpoint")
        await answer(app, True)
        assert await handle.result("20s") == ["a", "b", "after 2"]
        refused = await app.submit(job(), user="kim")
        await refused.send("reply", "a")
        await refused.send("reply", "b")
        await answer(app, False)
        with pytest.raises(JobFailed, match="ann rejected 'continue with say': too dear"):
            await refused.result("20s")


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@durable
async def test_each_call_of_a_node_of_tools_is_a_step(app: App) -> None:
    model = ScriptedModel(script=[calls(("1", "pay", {"usd": 1}), ("2", "pay", {"usd": 2}))])

    async def think(state: Talk) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(Talk).add_node("think", think).add_node("tools", ToolNode([pay]))
    graph = builder.add_edge(START, "think").add_edge("think", "tools").compile()
    async with app.running():
        handle = await app.submit(talking(app, graph, stream=True), user="kim")
        await asked(app, 2)
        await answer(app, True, False)
        assert (await handle.result("20s"))[2:] == ["tool: paid 1: True", "tool: paid 2: False"]
    steps = {each.id.partition("/")[2] for each in await handle.journal()}
    assert {"call:node:think#1.think", "call:tool:pay#2.tools.1", "call:tool:pay#2.tools.2"} < steps


@durable
async def test_a_node_is_tried_as_often_as_its_metadata_says(app: App) -> None:
    tries: list[int] = []

    async def flaky(state: Said) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return {"said": ["now"]}

    options = {"perdure": {"retry": perdure.Retry(attempts=3, initial_delay="1ms")}}
    builder = StateGraph(Said).add_node("flaky", flaky, metadata=options)
    graph = builder.add_edge(START, "flaky").compile()
    odd = StateGraph(Said).add_node("odd", say, metadata={"perdure": {"effect": True}})
    wrong = odd.add_edge(START, "odd").compile()

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        with pytest.raises(DefinitionError, match="tools have more"):
            await run_graph(ctx, wrong, {"said": []})
        with pytest.raises(TypeError, match="compiled graph"):
            await run_graph(ctx, builder, {"said": []})
        return (await run_graph(ctx, graph, {"said": []}))["said"]

    async with app.running():
        assert await (await app.submit(job())).result("20s") == ["now"]


class NotYet(Exception):
    """Says when to come again."""

    def __init__(self, after: int) -> None:
        super().__init__(f"come again after {after}")
        self.after = after


class NoWonder(ConnectionError):
    """An outage that LangGraph retries."""


def failing_graph(named: Any, error: Exception, tries: list[Exception], times: int) -> Any:
    """Return a graph whose node raises some times, with a policy of LangGraph."""

    async def node(state: Said) -> Any:
        if len(tries) < times:
            tries.append(error)
            raise error
        return {"said": ["now"]}

    policy = RetryPolicy(retry_on=named, initial_interval=0, jitter=False)
    builder = StateGraph(Said).add_node("node", node, retry_policy=policy)
    return builder.add_edge(START, "node").compile()


@durable
async def test_a_policy_of_langgraph_gets_the_exceptions_that_it_names(app: App) -> None:
    cases: list[tuple[Any, Exception]] = [
        (NotYet, NotYet(7)),
        ([KeyError, NotYet], NotYet(8)),
        (NoWonder, NoWonder("out")),
        ([NotYet, NotYet], NotYet(9)),
    ]
    tries: list[list[Exception]] = [[] for _ in cases * 2]
    twice = [failing_graph(*case, tried, 2) for case, tried in zip(cases, tries, strict=False)]
    always = [failing_graph(*case, tried, 9) for case, tried in zip(cases, tries[4:], strict=True)]
    by_any = failing_graph(Exception, ValueError("any"), [], 2)
    seen: list[Exception] = []

    @app.job
    async def job(ctx: JobContext) -> list[list[str]]:
        found = [(await run_graph(ctx, graph, {"said": []}))["said"] for graph in twice]
        for graph in always:
            try:
                await run_graph(ctx, graph, {"said": []})
            except (NotYet, NoWonder) as error:
                seen.append(error)
        await ctx.receive("go")
        return [*found, (await run_graph(ctx, by_any, {"said": []}))["said"]]

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
    await handle.send("go")
    async with app.running():  # it is replayed
        assert await handle.result("20s") == [["now"]] * 5
    assert [len(each) for each in tries] == [2] * 4 + [3] * 4
    told = [(type(each), str(each), getattr(each, "after", None)) for each in seen]
    wanted = [(type(each), str(each), getattr(each, "after", None)) for _, each in cases]
    times = len(seen) // len(cases)
    assert times > 1
    assert told == wanted * times  # at every replay


@durable
async def test_graphs_may_run_at_the_same_time(app: App) -> None:
    async def work(state: Said) -> Any:
        return {"said": [state["said"][0].upper()]}

    graph = StateGraph(Said).add_node("work", work).add_edge(START, "work").compile()

    @app.job
    async def job(ctx: JobContext) -> list[list[str]]:
        runs = [run_graph(ctx, graph, {"said": [name]}, key=name) for name in "abc"]
        states = await asyncio.gather(*runs)
        await ctx.receive("go")
        return [state["said"] for state in states]

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("20s") == [["a", "A"], ["b", "B"], ["c", "C"]]


# Cancel


class Hanging:
    """A model, a tool or a node that hangs until it is cancelled."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self.reached = asyncio.Event()
        self.stopped = asyncio.Event()

    async def hang(self) -> None:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    def agent(self) -> Any:
        async def before_token(_: str) -> None:
            if self.moment == "model":
                await self.hang()

        @tool
        async def work() -> str:
            """Work."""
            await self.hang()
            return "never"

        async def node(state: Talk) -> Any:
            await self.hang()

        if self.moment == "node":
            return StateGraph(Talk).add_node("node", node).add_edge(START, "node").compile()
        called = ("1", "pay", {"usd": 1}) if self.moment == "question" else ("1", "work", {})
        model = ScriptedModel(script=[calls(called)], before_token=before_token)
        return create_agent(model, [work, pay], middleware=[PerdureMiddleware()])


@pytest.mark.parametrize("moment", ["model", "tool", "question", "node"])
def test_an_agent_is_cancelled_wherever_it_is(url: str, moment: str) -> None:
    async def main() -> None:
        app, hanging = App(url, worker=QUICK), Hanging(moment)
        async with app.running():
            call = talking(app, hanging.agent(), stream=True)
            handle = await app.submit(call, user="kim")
            await (asked(app) if moment == "question" else hanging.reached.wait())
            await handle.cancel(by="kim")
            assert await handle.wait("20s") is JobState.CANCELLED
            if moment != "question":
                await hanging.stopped.wait()
        await app.close()

    perdure.run(main)


# Values


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, True, ODD], "b": (1, ("x",))},
        float("inf"),
        {1: "one"},
        {"$langgraph": "tuple"},
        b"bytes",
        AIMessage(ODD, id="1", tool_calls=[{"id": "2", "name": "x", "args": {"y": ODD}}]),
        ToolMessage("x", tool_call_id="1", artifact={"at": (1, 2)}),
        Command(update={"messages": [HumanMessage("x")]}, goto=Send("node", {"x": (1,)})),
        {"set": {1, 2}},
    ],
)
def test_values_come_back_as_they_were(value: Any) -> None:
    plain = dump(value)
    assert load(decode(encode(plain))) == value


# Limits


class Counted(TypedDict):
    count: int


async def count_up(state: Counted) -> Counted:
    return {"count": state["count"] + 1}


def again(state: Counted) -> str:
    return "up" if state["count"] < 8 else END


def looping() -> Any:
    """Return a graph that runs one node eight times."""
    graph = StateGraph(Counted)
    graph.add_node("up", count_up)
    graph.add_edge(START, "up")
    graph.add_conditional_edges("up", again)
    return graph.compile()


@pytest.mark.parametrize(
    ("budget", "graph", "config"),
    [
        (BudgetLimits(calls=1000), looping(), None),
        (BudgetLimits(calls=1000), looping(), {"recursion_limit": 5}),
        (BudgetLimits(calls=1000), looping().with_config({"recursion_limit": 5}), None),
        (None, looping(), None),
    ],
    ids=["by default", "by the config", "by the graph", "no budget"],
)
def test_the_budget_of_a_job_decides_and_not_the_default_limit_of_supersteps(
    url: str, monkeypatch: pytest.MonkeyPatch, budget: Any, graph: Any, config: Any
) -> None:
    default = type(_config.DEFAULT_RECURSION_LIMIT)(5)
    monkeypatch.setattr(_config, "DEFAULT_RECURSION_LIMIT", default)
    is_limited = budget is None or config is not None or graph.config is not None

    @durable
    async def test(app: App) -> None:
        @app.job(budget=budget)
        async def work(ctx: JobContext) -> int:
            return (await run_graph(ctx, graph, {"count": 0}, config))["count"]

        if is_limited:
            with pytest.raises(JobFailed, match="Recursion limit of 5 reached"):
                await app.run(work())
        else:
            assert await app.run(work()) == 8

    test(url)
