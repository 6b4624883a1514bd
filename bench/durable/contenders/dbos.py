"""DBOS: a queue, and a workflow of steps. Its queue is polled as often as it allows."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dbos import DBOS, DBOSClient, DBOSConfig

from bench.durable.contenders import Client
from bench.durable.marks import mark, ready
from bench.durable.place import Place

_QUEUE = "bench"
_VERSION = "1"
_POLL = 0.02  # of 1 s by default


def prepare(place: Place) -> None:
    _launch(place, 1)
    DBOS.destroy()


def _launch(place: Place, concurrency: int) -> None:
    config = DBOSConfig(
        name="bench",
        system_database_url=place.url,
        application_version=_VERSION,
        log_level="WARNING",
    )
    DBOS(config=config)

    @DBOS.step()
    def step(job: int, number: int) -> int:
        mark(job, number)
        return number

    @DBOS.workflow(name="job")
    def run(job: int, steps: int) -> None:
        for number in range(steps):
            step(job, number)

    DBOS.launch()
    DBOS.register_queue(_QUEUE, worker_concurrency=concurrency, polling_interval_sec=_POLL)


def work(place: Place, concurrency: int) -> None:
    _launch(place, concurrency)
    ready()
    threading.Event().wait()


class _Client:
    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    def submit(self, job: int, steps: int) -> None:
        self._client.enqueue(
            {"queue_name": _QUEUE, "workflow_name": "job", "app_version": _VERSION}, job, steps
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
