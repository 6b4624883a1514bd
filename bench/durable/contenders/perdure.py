"""Perdure: a job of steps, with the settings that every user gets."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bench.durable.marks import mark, ready
from bench.durable.place import Place
from perdure import App, JobContext, StepContext, WorkerSettings


def _app(place: Place, concurrency: int = 1) -> App:
    app = App(place.url, worker=WorkerSettings(concurrency=concurrency))

    @app.step
    async def step(job: int, number: int) -> int:
        mark(job, number)
        return number

    @app.job
    async def row(job: int, steps: int) -> None:
        for number in range(steps):
            await step(job, number)

    @app.step
    async def effect_step(context: StepContext, job: int, number: int) -> int:
        await context.effect("bench", _nothing, target="nowhere")
        mark(job, number)
        return number

    @app.job
    async def effect_row(job: int, steps: int) -> None:
        for number in range(steps):
            await effect_step(job, number)

    @app.job
    async def family(context: JobContext, job: int, children: int) -> None:
        await context.gather(*(row(child, 1) for child in range(children)))
        await step(job, 0)

    return app


async def _nothing(*_: object) -> None:
    pass


def prepare(place: Place) -> None:
    with client(place):
        pass


def work(place: Place, concurrency: int) -> None:
    ready()
    _app(place, concurrency).serve_sync()


class PerdureClient:
    """Submits from outside, as a user's program does."""

    def __init__(self, place: Place, runner: asyncio.Runner) -> None:
        self._app = _app(place)
        self._row = self._app.find_job("row")
        self._effect_row = self._app.find_job("effect_row")
        self._runner = runner

    def open(self) -> None:
        self._runner.run(self._app.store())

    def submit(self, job: int, steps: int, *, effects: bool = False) -> None:
        row = self._effect_row if effects else self._row
        self._runner.run(self._app.submit(row(job, steps)))

    def submit_family(self, job: int, children: int) -> None:
        self._runner.run(self._app.submit(self._app.find_job("family")(job, children)))

    def submit_many(self, jobs: Iterable[int], steps: int) -> None:
        self._runner.run(self._app.submit_many([self._row(job, steps) for job in jobs]))

    def close(self) -> None:
        self._runner.run(self._app.close())


@contextmanager
def client(place: Place) -> Iterator[PerdureClient]:
    with asyncio.Runner() as runner:
        connected = PerdureClient(place, runner)
        connected.open()
        try:
            yield connected
        finally:
            connected.close()
