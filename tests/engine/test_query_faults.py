"""A `query` that fails itself: what is in doubt stays in doubt, and nothing is called twice."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import EffectState, Happened, Unknown
from perdure.jobs.state import JobState
from tests.support.engine import QUICK

AGAIN = Retry(attempts=4, initial_delay="1ms", jitter=0)
Query = Callable[[str], Awaitable[Any]]


class Receiver:
    """Charges, and its first answer is lost; asked about it, it does what a test says."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.charged: list[str] = []
        self.asked = 0

    async def charge(self, key: str) -> str:
        self.charged.append(key)
        if len(self.charged) == 1:
            raise TimeoutError("no answer")
        return "charged again"

    async def ask(self, key: str) -> Any:
        self.asked += 1
        return await self.query(key)

    def job(self, app: App) -> Any:
        @app.step(retry=AGAIN, timeout="2s")
        async def pay(ctx: StepContext) -> str:
            return await ctx.effect(
                "pay", self.charge, target="card", query=self.ask, settle_after=0, undo=None
            )

        @app.job
        async def job(ctx: JobContext) -> str:
            return await pay()

        return job


def once(first: Query) -> Query:
    """Answer the first question so, and the others truly."""
    asked: list[str] = []

    async def query(key: str) -> Any:
        asked.append(key)
        return await first(key) if len(asked) == 1 else Happened("charged")

    return query


async def raises(key: str) -> Any:
    raise ConnectionError("nobody there")


async def hangs(key: str) -> Any:
    await asyncio.Event().wait()


async def talks_nonsense(key: str) -> Any:
    return {"status": "ok"}


async def does_not_know(key: str) -> Any:
    return Unknown()


async def gives_what_cannot_be_stored(key: str) -> Any:
    return Happened(object())


@pytest.mark.parametrize("first", [raises, hangs])
def test_a_query_that_fails_is_asked_again_and_the_call_is_not_repeated(
    url: str, first: Query
) -> None:
    async def main() -> None:
        async with App(url, worker=QUICK) as app:
            receiver = Receiver(once(first))
            job = receiver.job(app)
            async with app.running():
                handle = await app.submit(job())
                assert await handle.result("30s") == "charged"
            assert len(receiver.charged) == 1
            assert [each.state for each in await handle.effects()] == [EffectState.DONE]

    perdure.run(main)


@pytest.mark.parametrize("query", [raises, talks_nonsense, does_not_know])
def test_a_query_that_never_tells_leaves_the_effect_to_a_person_and_calls_nobody(
    url: str, query: Query
) -> None:
    async def main() -> None:
        async with App(url, worker=QUICK) as app:
            receiver = Receiver(query)
            job = receiver.job(app)
            async with app.running():
                handle = await app.submit(job())
                await handle.until(
                    JobState.NEEDS_ATTENTION, JobState.FAILED, JobState.COMPLETED, timeout="30s"
                )
            assert receiver.asked >= 1
            assert len(receiver.charged) == 1
            assert await handle.status() is JobState.NEEDS_ATTENTION, await handle.failure()
            assert await (await app.store()).violations() == []

    perdure.run(main)


def test_an_answer_that_cannot_be_stored_still_says_that_it_happened(url: str) -> None:
    async def main() -> None:
        async with App(url, worker=QUICK) as app:
            receiver = Receiver(gives_what_cannot_be_stored)
            job = receiver.job(app)
            async with app.running():
                handle = await app.submit(job())
                assert await handle.wait("30s") is JobState.FAILED
            assert [each.state for each in await handle.effects()] == [EffectState.DONE]
            assert len(receiver.charged) == 1

    perdure.run(main)


def test_a_worker_that_ends_during_a_query_leaves_it_to_the_next_one(url: str) -> None:
    async def main() -> None:
        async with App(url, worker=QUICK) as app:
            begun = asyncio.Event()

            async def begins(key: str) -> Any:
                begun.set()
                await asyncio.Event().wait()

            receiver = Receiver(once(begins))
            job = receiver.job(app)
            async with app.running():
                handle = await app.submit(job())
                await begun.wait()
            async with app.running():
                assert await handle.result("30s") == "charged"
            assert len(receiver.charged) == 1

    perdure.run(main)
