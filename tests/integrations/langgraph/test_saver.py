"""The checkpointer: LangGraph's own suite, and what that does not cover."""

# LangGraph leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import asyncio
import operator
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, TypedDict

import pytest

from perdure.app import App
from perdure.client import Client
from perdure.engine.steps.step_context import StepContext
from perdure.errors import StoreError
from perdure.jobs.graph_thread import PAGE
from tests.support.engine import QUICK
from tests.support.store import sql

pytest.importorskip("langgraph.checkpoint.conformance")

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from perdure.integrations.langgraph import PerdureSaver

pytestmark = pytest.mark.once

LONG = PAGE + 5


def thread(name: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": name, **more}, "recursion_limit": 10_000}


async def test_the_saver_passes_all_cases_of_langgraph(client: Client) -> None:
    async def fresh() -> AsyncGenerator[BaseCheckpointSaver[Any]]:
        yield PerdureSaver(client)

    report = await validate(checkpointer_test("perdure")(fresh))
    found = [each for result in report.results.values() for each in result.failures]
    assert found == []
    assert sum(result.tests_passed for result in report.results.values()) == 81


# Long threads


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def talking(saver: BaseCheckpointSaver[Any], turns: int, size: int = 100) -> Any:
    """Return a graph that says something again and again."""

    def say(state: Talk) -> dict[str, list[AnyMessage]]:
        number = len(state["messages"])
        return {"messages": [AIMessage(f"{number} " + "x" * size, id=str(number))]}

    def after(state: Talk) -> str:
        return "say" if len(state["messages"]) % turns else END

    builder = StateGraph(Talk)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", after)
    return builder.compile(checkpointer=saver)


HELLO = {"messages": [HumanMessage("hello", id="hello")]}


async def test_a_long_thread_stores_each_message_once(client: Client, url: str) -> None:
    graph = talking(PerdureSaver(client), LONG)
    await graph.ainvoke(HELLO, thread("a"))
    ((pieces,),) = sql(url, "SELECT count(*) FROM langgraph_piece")
    assert pieces == LONG + LONG // PAGE
    ((largest,),) = sql(url, "SELECT max(length(pieces)) FROM langgraph_value")
    assert largest <= 5 + 16 * (PAGE + LONG // PAGE)
    reader = talking(PerdureSaver(client), LONG)
    state = await reader.aget_state(thread("a"))
    assert [each.id for each in state.values["messages"]] == [
        "hello", *(str(number) for number in range(1, LONG))
    ]  # fmt: skip


async def test_every_checkpoint_of_a_long_thread_has_its_own_values(client: Client) -> None:
    ours, theirs = PerdureSaver(client), InMemorySaver()
    for saver in (ours, theirs):
        await talking(saver, LONG).ainvoke(HELLO, thread("a"))

    def told(found: Sequence[Any]) -> list[Any]:
        return [(each.metadata, each.values, each.next) for each in found]

    mine = [each async for each in talking(ours, LONG).aget_state_history(thread("a"))]
    known = [each async for each in talking(theirs, LONG).aget_state_history(thread("a"))]
    assert told(mine) == told(known)


async def test_a_thread_goes_on_where_it_was_forked(client: Client) -> None:
    graph = talking(PerdureSaver(client), LONG)
    await graph.ainvoke(HELLO, thread("a"))
    history = [each async for each in graph.aget_state_history(thread("a"))]
    old = next(each for each in history if len(each.values["messages"]) == PAGE + 3)
    forked = await graph.aupdate_state(old.config, {"messages": [AIMessage("other", id="other")]})
    state = await graph.aget_state(forked)
    assert [each.id for each in state.values["messages"]][-2:] == [str(PAGE + 2), "other"]
    for each in history:  # versions of a fork are not those of what it was forked from
        assert (await graph.aget_state(each.config)).values == each.values


async def test_a_put_that_relies_on_pruned_pieces_sends_them_again(client: Client) -> None:
    saver, other = PerdureSaver(client), PerdureSaver(client)
    await talking(saver, LONG).ainvoke(HELLO, thread("a"))
    newest = await saver.aget_tuple(thread("a"))
    assert newest is not None
    await other.adelete_thread("a")
    version = newest.checkpoint["channel_versions"]
    await saver.aput(thread("a"), newest.checkpoint, newest.metadata, version)
    again = await other.aget_tuple(thread("a"))
    assert again is not None
    assert again.checkpoint["channel_values"] == newest.checkpoint["channel_values"]


async def test_a_mapping_that_grows_stores_each_entry_once(client: Client, url: str) -> None:
    saver, files = PerdureSaver(client), dict[str, str]()
    config = thread("a", checkpoint_ns="")
    for number in range(PAGE + 7):
        files[f"file {number}"] = "x" * 200
        point = empty_checkpoint()
        versions: Any = {"files": str(number)}
        point["channel_values"], point["channel_versions"] = {"files": dict(files)}, versions
        config = await saver.aput(config, point, {}, versions)
    found = await saver.aget_tuple(thread("a"))
    assert found is not None
    assert found.checkpoint["channel_values"]["files"] == files
    ((pieces,),) = sql(url, "SELECT count(*) FROM langgraph_piece")
    assert pieces == PAGE + 7 + 1


async def test_pieces_that_are_lost_are_told(client: Client, url: str) -> None:
    await talking(PerdureSaver(client), LONG).ainvoke(HELLO, thread("a"))
    sql(url, "DELETE FROM langgraph_piece")
    with pytest.raises(StoreError, match="pieces of a value are gone"):
        await PerdureSaver(client).aget_tuple(thread("a"))


# Pruning


def appended(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for each in writes for item in each)]


class Notes(TypedDict):
    notes: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=4)]
    count: int


def noting(saver: BaseCheckpointSaver[Any]) -> Any:
    """Return a graph whose notes are rebuilt from what was written since every fourth step."""

    def note(state: Notes) -> dict[str, Any]:
        number = state["count"]
        return {"notes": [f"note {number}"], "count": number + 1}

    def after(state: Notes) -> str:
        return "note" if state["count"] % 10 else END

    builder = StateGraph(Notes)
    builder.add_node("note", note)
    builder.add_edge(START, "note")
    builder.add_conditional_edges("note", after)
    return builder.compile(checkpointer=saver)


NOTED = [f"note {number}" for number in range(10)]


async def test_a_pruned_thread_still_has_its_delta_channels(client: Client) -> None:
    saver = PerdureSaver(client)
    await noting(saver).ainvoke({"notes": [], "count": 0}, thread("a"))
    before = [each async for each in saver.alist(thread("a"))]
    await saver.aprune(["a"])
    left = [each async for each in saver.alist(thread("a"))]
    assert 1 < len(left) < len(before)  # the newest, and the ancestors up to its seed
    assert left[0].config == before[0].config
    state = await noting(PerdureSaver(client)).aget_state(thread("a"))
    assert state.values["notes"] == NOTED
    await noting(saver).ainvoke({"count": 11}, thread("a"))
    state = await noting(PerdureSaver(client)).aget_state(thread("a"))
    assert state.values["notes"][:10] == NOTED


async def test_deleting_a_run_leaves_what_delta_channels_of_others_need(client: Client) -> None:
    saver = PerdureSaver(client)
    first = {**thread("a"), "metadata": {"run_id": "first"}}
    await noting(saver).ainvoke({"notes": [], "count": 0}, first)
    second = {**thread("a"), "metadata": {"run_id": "second"}}
    await noting(saver).ainvoke({"count": 18}, second)
    mine = [each async for each in saver.alist(thread("a"), filter={"run_id": "second"})]
    before = [(await noting(saver).aget_state(each.config)).values for each in mine]
    await saver.adelete_for_runs(["first"])
    after = [(await noting(saver).aget_state(each.config)).values for each in mine]
    assert after == before
    await saver.adelete_for_runs(["first", "second"])
    assert [each async for each in saver.alist(thread("a"))] == []


async def test_a_pruned_thread_has_no_pieces_that_nothing_names(client: Client, url: str) -> None:
    graph = talking(PerdureSaver(client), LONG)
    await graph.ainvoke(HELLO, thread("a"))
    anew = [RemoveMessage(REMOVE_ALL_MESSAGES), *(AIMessage("y" * 500) for _ in range(LONG - 1))]
    await graph.ainvoke({"messages": anew}, thread("a"))
    before = (await graph.aget_state(thread("a"))).values
    saver = PerdureSaver(client)
    await saver.aprune(["a"])
    assert (await graph.aget_state(thread("a"))).values == before
    for table in ("langgraph_checkpoint", "langgraph_value"):
        ((rows,),) = sql(url, f"SELECT count(*) FROM {table}")
        assert rows <= 4, table
    ((pieces,),) = sql(url, "SELECT count(*) FROM langgraph_piece")
    assert pieces == LONG + LONG // PAGE
    await saver.aprune(["a"], strategy="delete")
    for table in ("checkpoint", "value", "piece", "write"):
        assert sql(url, f"SELECT count(*) FROM langgraph_{table}") == [(0,)], table
    with pytest.raises(ValueError, match="not a strategy"):
        await saver.aprune(["a"], strategy="most")


# Tenants, order, plain code


async def test_threads_of_other_tenants_are_not_seen(client: Client) -> None:
    await talking(PerdureSaver(client, tenant="acme"), 3).ainvoke(HELLO, thread("a"))
    other = PerdureSaver(client, tenant="globex")
    assert await other.aget_tuple(thread("a")) is None
    assert [each async for each in other.alist(None)] == []
    await other.adelete_thread("a")
    assert await PerdureSaver(client, tenant="acme").aget_tuple(thread("a")) is not None


async def test_writes_are_durable_before_the_checkpoint_that_follows(url: str) -> None:
    """Also if the store is opened by them."""
    async with Client(url) as client:
        saver = PerdureSaver(client)
        first, second = empty_checkpoint(), empty_checkpoint()
        at_first = thread("a", checkpoint_ns="", checkpoint_id=first["id"])
        writing = asyncio.ensure_future(saver.aput_writes(at_first, [("x", "y" * 2_000_000)], "t"))
        putting = asyncio.ensure_future(saver.aput(at_first, second, {}, {}))
        await putting
        assert sql(
            url,
            "SELECT task, CASE WHEN length(data) > 2000000 THEN 1 ELSE 0 END FROM langgraph_write",
        ) == [("t", 1)]
        await writing


async def test_writes_that_no_checkpoint_follows_are_stored_and_so_are_those_of_a_cancelled_one(
    client: Client,
) -> None:
    saver, point = PerdureSaver(client), empty_checkpoint()
    at = thread("a", checkpoint_ns="", checkpoint_id=point["id"])
    await saver.aput(thread("a", checkpoint_ns=""), point, {}, {})
    await saver.aput_writes(at, [("x", 1)], "alone")
    writing = asyncio.ensure_future(saver.aput_writes(at, [("x", 2)], "after"))
    await asyncio.sleep(0)  # it is held now
    putting = asyncio.ensure_future(saver.aput(at, empty_checkpoint(), {}, {}))
    await asyncio.sleep(0)
    putting.cancel()
    await asyncio.wait([putting])
    await writing
    found = await saver.aget_tuple(at)
    assert found is not None
    assert found.pending_writes == [("after", "x", 2), ("alone", "x", 1)]


def test_plain_code_has_the_same(url: str) -> None:
    client = Client(url)
    with client.sync:
        saver = PerdureSaver(client)
        graph = noting(saver)
        graph.invoke({"notes": [], "count": 0}, thread("a"))
        assert noting(PerdureSaver(client)).get_state(thread("a")).values["notes"] == NOTED
        found = list(saver.list(thread("a"), filter={"source": "loop"}, limit=3))
        assert [each.metadata.get("step") for each in found] == [10, 9, 8]
        saver.copy_thread("a", "b")
        saver.prune(["b"])
        assert graph.get_state(thread("b")).values["notes"] == NOTED
        saver.delete_for_runs(["none"])
        saver.delete_thread("a")
        assert saver.get_tuple(thread("a")) is None


def test_plain_code_may_put_from_many_threads(url: str) -> None:
    client = Client(url)
    with client.sync:
        graph = talking(PerdureSaver(client), 5)
        done: list[int] = []

        def run(number: int) -> None:
            done.append(len(graph.invoke(HELLO, thread(str(number)))["messages"]))

        workers = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
        assert done == [5] * 4


# Inside a step


class Count(TypedDict):
    count: Annotated[int, operator.add]


async def test_a_checkpoint_inside_a_step_is_progress_of_its_job(url: str) -> None:
    app = App(url, worker=QUICK)
    seen: list[Any] = []

    @app.step
    async def agent(ctx: StepContext) -> int:
        sql(url, "UPDATE lease SET claims = 4")

        async def work(state: Count) -> dict[str, int]:
            return {"count": 1}

        async def look(state: Count) -> dict[str, int]:
            seen.extend(sql(url, "SELECT claims FROM lease"))
            return {"count": 1}

        builder = StateGraph(Count).add_sequence([work, look]).add_edge(START, "work")
        graph: Any = builder.compile(checkpointer=PerdureSaver(app))
        return (await graph.ainvoke({"count": 0}, thread(ctx.job_id), durability="sync"))["count"]

    @app.job
    async def job() -> int:
        return await agent()

    async with app:
        assert await app.run(job()) == 2
    assert seen == [(0,)]
