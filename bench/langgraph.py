"""Checkpointers of LangGraph: ours beside the official ones for the same database.

``passed``, ``total``      cases of LangGraph's own conformance suite, of ours
``steps_per_second``       steps of a graph whose one node comes back to itself, each durable before
                           the next one begins
``thread_mb``              what a conversation of many messages of 4 KB leaves in the database
``thread_seconds``         how long it takes, model and tools taking no time

Those of the official checkpointer begin with ``official_``, those of the one that keeps everything
in memory with ``memory_``: that is what LangGraph itself takes.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph, add_messages

from bench.durable import postgres
from bench.durable.bench import server_of
from bench.durable.place import POSTGRES, SQLITE, STORES, Place, fresh, scratch
from bench.outcome import Options, Outcome, machine
from bench.runner import show
from bench.table import render
from perdure import App
from perdure.integrations.langgraph import PerdureSaver

Saver = BaseCheckpointSaver[Any]
SAID = "x" * 4000
FIGURES = ("steps_per_second", "thread_mb", "thread_seconds")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    steps: int
    messages: int
    rounds: int


FULL = Size(steps=500, messages=250, rounds=3)
QUICK = Size(steps=150, messages=60, rounds=1)


# Savers


@asynccontextmanager
async def ours(place: Place) -> AsyncGenerator[Saver]:
    async with App(place.url) as app:
        yield PerdureSaver(app)


@asynccontextmanager
async def official(place: Place) -> AsyncGenerator[Saver]:
    if place.store == SQLITE:
        async with AsyncSqliteSaver.from_conn_string(str(place.file)) as saver:
            await saver.setup()
            yield saver
    else:
        async with AsyncPostgresSaver.from_conn_string(place.url) as saver:
            await saver.setup()
            yield saver


@asynccontextmanager
async def memory(_: Place) -> AsyncGenerator[Saver]:
    yield InMemorySaver()


SAVERS: dict[str, Callable[[Place], AbstractAsyncContextManager[Saver]]] = {
    "": ours,
    "official_": official,
    "memory_": memory,
}


# Graphs


class _Count(TypedDict):
    count: int
    most: int


class _Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    most: int


def counting(saver: Saver) -> Any:
    async def step(state: _Count) -> dict[str, int]:
        return {"count": state["count"] + 1}

    def after(state: _Count) -> str:
        return "step" if state["count"] < state["most"] else END

    builder = StateGraph(_Count).add_node("step", step).add_edge(START, "step")
    return builder.add_conditional_edges("step", after).compile(checkpointer=saver)


def talking(saver: Saver) -> Any:
    async def say(state: _Talk) -> dict[str, list[AnyMessage]]:
        return {"messages": [AIMessage(f"{len(state['messages'])} {SAID}")]}

    def after(state: _Talk) -> str:
        return "say" if len(state["messages"]) < state["most"] else END

    builder = StateGraph(_Talk).add_node("say", say).add_edge(START, "say")
    return builder.add_conditional_edges("say", after).compile(checkpointer=saver)


async def _seconds(graph: Any, given: dict[str, Any], thread: str) -> float:
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 100_000}
    begun = time.perf_counter()
    await graph.ainvoke(given, config, durability="sync")
    return time.perf_counter() - begun


# Figures


async def _conformance(place: Place) -> dict[str, float]:
    async def saver() -> AsyncIterator[Saver]:
        async with ours(place) as opened:
            yield opened

    report = await validate(checkpointer_test("perdure")(saver))
    results = report.results.values()
    passed = sum(each.tests_passed for each in results)
    missed = sum(each.tests_failed + each.tests_skipped for each in results)
    return {"passed": passed, "total": passed + missed}


async def _measured(name: str, place: Place, size: Size) -> dict[str, float]:
    async with SAVERS[name](place) as saver:
        await _seconds(counting(saver), {"count": 0, "most": 20}, "warm")
        begun = _bytes(place)
        took = await _seconds(talking(saver), {"messages": [], "most": size.messages}, "talk")
        grown = _bytes(place) - begun
        steps = await _seconds(counting(saver), {"count": 0, "most": size.steps}, "count")
    found = (size.steps / steps, grown / 1e6, took)
    return {f"{name}{figure}": value for figure, value in zip(FIGURES, found, strict=True)}


def _bytes(place: Place) -> int:
    if place.store == SQLITE:
        return sum(each.stat().st_size for each in place.folder.glob("store.db*"))
    import psycopg

    query = b"""SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
                WHERE relname LIKE 'checkpoint%' OR relname LIKE 'langgraph_%'"""
    with psycopg.connect(place.url) as pg:
        found = pg.execute(query).fetchone()
    return found[0] if found else 0


def run(options: Options) -> Outcome:
    """Measure on both stores."""
    return measure(QUICK if options.quick else FULL)


def measure(size: Size) -> Outcome:
    """Measure on both stores, as much as this."""
    figures = {
        store: _measure_store(store, size)
        for store in STORES
        if store == SQLITE or postgres.is_installed()
    }
    texts = [_heading(size), *(_table(store, found) for store, found in figures.items())]
    if POSTGRES not in figures:
        texts.append(f"Skipped: PostgreSQL, which comes with the package {postgres.PACKAGE}")
    return Outcome("\n\n".join(texts), figures, only_figures=True)


def _measure_store(store: str, size: Size) -> dict[str, float]:
    samples: dict[str, list[float]] = {}
    with scratch() as folder, server_of(store, folder) as server:
        show(f"{store}: conformance")
        with fresh(store, folder, server) as place:
            found = asyncio.run(_conformance(place))
        for _ in range(size.rounds):  # interleaved: a machine that is slow for a while slows all
            for name in SAVERS:
                show(f"{store}: {name or 'ours'}")
                with fresh(store, folder, server) as place:
                    for figure, value in asyncio.run(_measured(name, place, size)).items():
                        samples.setdefault(figure, []).append(value)
    show("")
    return found | {figure: statistics.median(values) for figure, values in samples.items()}


# The text


def _heading(size: Size) -> str:
    return "\n".join(
        [
            f"{machine()}, {time.strftime('%Y-%m-%d %H:%M')}",
            f"A graph of {size.steps:,} steps, and a conversation of {size.messages:,} messages of",
            '4 KB, both with durability="sync". The database is what the conversation added to it,',
            "with SQLite's log.",
        ]
    )


def _table(store: str, found: dict[str, float]) -> str:
    heads = [store, "steps a second", "conversation, MB", "conversation, s"]
    rows = [
        [name.strip("_") or "perdure", *(f"{found[f'{name}{each}']:,.2f}" for each in FIGURES)]
        for name in SAVERS
    ]
    passed = f"Conformance: {found['passed']:.0f} of {found['total']:.0f}"
    return f"{render(heads, rows)}\n{passed}"
