"""DBOS: each turn is a step, which gets the history as its argument; it stores only results."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dbos import DBOS, DBOSClient, DBOSConfig

from bench.durable.contenders import Client
from bench.durable.contenders.agent import is_resumed, said
from bench.durable.marks import mark, ready
from bench.durable.place import Place

_QUEUE = "bench"
_VERSION = "1"
_POLL = 0.02  # of 1 s by default


def _launch(place: Place) -> None:
    config = DBOSConfig(
        name="bench",
        system_database_url=place.url,
        application_version=_VERSION,
        log_level="WARNING",
    )
    DBOS(config=config)

    @DBOS.step()
    def think(history: list[str], turns: int) -> str:
        turn = len(history)
        mark(0, turn)
        if turn == turns and not is_resumed(place.folder):
            threading.Event().wait()
        return said(turn)

    @DBOS.workflow(name="agent")
    def agent(turns: int) -> int:
        history: list[str] = []
        for _ in range(turns + 1):
            history.append(think(history, turns))
        return len(history)

    DBOS.launch()
    DBOS.register_queue(_QUEUE, worker_concurrency=1, polling_interval_sec=_POLL)


def prepare(place: Place) -> None:
    _launch(place)
    DBOS.destroy()


def work(place: Place, _: int) -> None:
    ready()
    _launch(place)
    threading.Event().wait()


class _Client:
    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    def submit(self, job: int, steps: int) -> None:
        del job
        self._client.enqueue(
            {"queue_name": _QUEUE, "workflow_name": "agent", "app_version": _VERSION}, steps
        )

    def submit_many(self, jobs: Iterable[int], steps: int) -> None:
        for job in jobs:
            self.submit(job, steps)


@contextmanager
def client(place: Place) -> Iterator[Client]:
    connected = DBOSClient(system_database_url=place.url)
    try:
        yield _Client(connected)
    finally:
        connected.destroy()
