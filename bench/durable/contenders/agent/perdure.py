"""Perdure: each turn is a step, which gets the history as its argument."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bench.durable.contenders import Client
from bench.durable.contenders.agent import is_resumed, said
from bench.durable.marks import mark, ready
from bench.durable.place import Place
from perdure import App


def _app(place: Place) -> App:
    app = App(place.url)

    @app.step
    async def think(history: list[str], turns: int) -> str:
        turn = len(history)
        mark(0, turn)
        if turn == turns and not is_resumed(place.folder):
            await asyncio.Event().wait()
        return said(turn)

    @app.job
    async def agent(turns: int) -> int:
        history: list[str] = []
        for _ in range(turns + 1):
            history.append(await think(history, turns))
        return len(history)

    return app


def prepare(place: Place) -> None:
    with client(place):
        pass


def work(place: Place, _: int) -> None:
    app = _app(place)
    ready()
    app.serve_sync()


class _Client:
    def __init__(self, app: App, runner: asyncio.Runner) -> None:
        self._app = app
        self._runner = runner

    def submit(self, job: int, steps: int) -> None:
        del job
        self._runner.run(self._app.submit(self._app.find_job("agent")(steps)))

    def submit_many(self, jobs: Iterable[int], steps: int) -> None:
        for job in jobs:
            self.submit(job, steps)


@contextmanager
def client(place: Place) -> Iterator[Client]:
    app = _app(place)
    with asyncio.Runner() as runner:
        runner.run(app.store())
        try:
            yield _Client(app, runner)
        finally:
            runner.run(app.close())
