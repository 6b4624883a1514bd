"""LangGraph: a graph whose one node comes back to itself, with a checkpoint before each step.

It has no queue: a job is a line of a file here, and the worker runs it in a thread.
"""

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from bench.durable.contenders import Client
from bench.durable.marks import mark, ready
from bench.durable.place import SQLITE, Place

_LOOK_EVERY = 0.005


class _State(TypedDict):
    job: int
    step: int
    steps: int


def _step(state: _State) -> dict[str, int]:
    mark(state["job"], state["step"])
    return {"step": state["step"] + 1}


@contextmanager
def saver_of(place: Place) -> Iterator[Any]:
    if place.store == SQLITE:
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(str(place.file)) as saver:
            yield saver
    else:
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        with ConnectionPool(place.url, min_size=4, max_size=20, kwargs=options) as pool:
            yield PostgresSaver(pool)


def prepare(_: Place) -> None:
    """Leave it to the worker: here it would only take the time to import it."""


def work(place: Place, concurrency: int) -> None:
    from langgraph.graph import END, START, StateGraph

    def next_node(state: _State) -> str:
        return "step" if state["step"] < state["steps"] else END

    with saver_of(place) as saver, ThreadPoolExecutor(concurrency) as pool:
        saver.setup()
        graph = StateGraph(_State)
        graph.add_node("step", _step)
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", next_node)
        compiled = graph.compile(checkpointer=saver)

        def run(job: int, steps: int) -> None:
            config: Any = {"configurable": {"thread_id": str(job)}, "recursion_limit": steps + 10}
            begun = saver.get_tuple(config) is not None
            given = None if begun else {"job": job, "step": 0, "steps": steps}
            compiled.invoke(given, config, durability="sync")

        ready()
        for job, steps in _requests(place):
            pool.submit(run, job, steps).add_done_callback(Future.result)


def _requests(place: Place) -> Iterator[tuple[int, int]]:
    _file(place).touch()
    with _file(place).open() as file:
        while True:
            line = file.readline()
            if line.endswith("\n"):
                yield tuple(json.loads(line))
            else:
                time.sleep(_LOOK_EVERY)


def _file(place: Place) -> Path:
    return place.folder / "requests"


class _Client:
    def __init__(self, place: Place) -> None:
        self._place = place

    def submit(self, job: int, steps: int) -> None:
        self.submit_many([job], steps)

    def submit_many(self, jobs: Iterable[int], steps: int) -> None:
        with _file(self._place).open("a") as file:
            file.writelines(f"{json.dumps([job, steps])}\n" for job in jobs)


@contextmanager
def client(place: Place) -> Iterator[Client]:
    yield _Client(place)
