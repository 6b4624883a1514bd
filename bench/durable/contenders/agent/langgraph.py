"""LangGraph: the history is the state of a graph, saved at every turn."""

import operator
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

from bench.durable.contenders import Client
from bench.durable.contenders.agent import is_resumed, said
from bench.durable.contenders.langgraph import saver_of
from bench.durable.marks import mark, ready
from bench.durable.place import Place

_LOOK_EVERY = 0.005


class _State(TypedDict):
    history: Annotated[list[str], operator.add]
    turns: int


def prepare(_: Place) -> None:
    """Leave it to the worker: here it would only take the time to import it."""


def work(place: Place, _: int) -> None:
    from langgraph.graph import END, START, StateGraph

    def think(state: _State) -> dict[str, list[str]]:
        turn = len(state["history"])
        mark(0, turn)
        if turn == state["turns"] and not is_resumed(place.folder):
            threading.Event().wait()
        return {"history": [said(turn)]}

    def next_node(state: _State) -> str:
        return "think" if len(state["history"]) <= state["turns"] else END

    ready()
    with saver_of(place) as saver:
        saver.setup()
        graph = StateGraph(_State)
        graph.add_node("think", think)
        graph.add_edge(START, "think")
        graph.add_conditional_edges("think", next_node)
        compiled = graph.compile(checkpointer=saver)
        turns = _requested(place)
        config: Any = {"configurable": {"thread_id": "0"}, "recursion_limit": turns + 10}
        begun = saver.get_tuple(config) is not None
        given = None if begun else {"history": [], "turns": turns}
        compiled.invoke(given, config, durability="sync")
    threading.Event().wait()


def _requested(place: Place) -> int:
    file = place.folder / "turns"
    while not file.exists():
        time.sleep(_LOOK_EVERY)
    return int(file.read_text())


class _Client:
    def __init__(self, place: Place) -> None:
        self._place = place

    def submit(self, job: int, steps: int) -> None:
        del job
        written = self._place.folder / "turns.new"
        written.write_text(str(steps))
        written.rename(self._place.folder / "turns")

    def submit_many(self, jobs: Iterable[int], steps: int) -> None:
        for job in jobs:
            self.submit(job, steps)


@contextmanager
def client(place: Place) -> Iterator[Client]:
    yield _Client(place)
