"""Absurd: tasks in stored procedures of PostgreSQL, and the faster of its two kinds of worker."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from absurd_sdk import Absurd

from bench.durable.contenders import Client
from bench.durable.marks import mark, ready
from bench.durable.place import Place
from bench.durable.postgres import environment_with_psql

_QUEUE = "bench"
# How long the task of a dead worker stays claimed; two minutes by default.
_CLAIM_SECONDS = 10
_POLL_SECONDS = 0.02  # of 0.25 by default


def prepare(place: Place) -> None:
    control = str(Path(sys.executable).parent / "absurdctl")
    for command in (["init"], ["create-queue", _QUEUE]):
        subprocess.run(
            [control, *command, "-d", place.url],
            env=environment_with_psql(),
            check=True,
            capture_output=True,
        )


def work(place: Place, concurrency: int) -> None:
    app = Absurd(place.url, queue_name=_QUEUE)

    @app.register_task("job")
    def run(given: dict[str, int], context: Any) -> None:
        for number in range(given["steps"]):

            def step(number: int = number) -> int:
                mark(given["job"], number)
                return number

            context.step(f"step-{number}", step)

    ready()
    app.start_worker(
        concurrency=concurrency, claim_timeout=_CLAIM_SECONDS, poll_interval=_POLL_SECONDS
    )


class _Client:
    def __init__(self, app: Absurd) -> None:
        self._app = app

    def submit(self, job: int, steps: int) -> None:
        self._app.spawn("job", {"job": job, "steps": steps}, queue=_QUEUE)

    def submit_many(self, jobs: Iterable[int], steps: int) -> None:
        for job in jobs:
            self.submit(job, steps)


@contextmanager
def client(place: Place) -> Iterator[Client]:
    app = Absurd(place.url, queue_name=_QUEUE)
    try:
        yield _Client(app)
    finally:
        app.close()
