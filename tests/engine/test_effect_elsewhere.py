"""A business key that is in doubt in one job: the others wait, and go on when it is settled."""

import asyncio
from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import Happened, QueryAnswer, Unknown
from perdure.jobs.state import JobState
from tests.support.engine import durable, job_of, until

TWICE = Retry(attempts=2, initial_delay="1ms", jitter=0)
CHOICES = pytest.mark.parametrize(
    ("choice", "given", "calls"), [("happened", "by kim", 1), ("did not happen", "call 2", 2)]
)


class Greeting:
    """Two jobs that greet the same person; the call of the first gets no answer."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.calls: list[str] = []
        self.answer: QueryAnswer = Unknown()

        @app.step(retry=TWICE)
        async def greet(ctx: StepContext) -> str:
            kim: Any = {"target": "kim", "key": "welcome kim"}
            return str(
                await ctx.effect("email", self._send, query=self._ask, settle_after=0, **kim)
            )

        self._job = job_of(app, greet)

    def _ask(self, _: str) -> QueryAnswer:
        return self.answer

    async def _send(self, key: str) -> str:
        self.calls.append(key)
        if len(self.calls) == 1:
            raise TimeoutError("no answer")
        return f"call {len(self.calls)}"

    async def in_doubt(self) -> tuple[Handle[Any], Handle[Any]]:
        """Let the first be in doubt, and the second wait for it."""
        async with asyncio.timeout(20):
            first = await self._app.submit(self._job())
            await until(self._app, first.id, JobState.NEEDS_ATTENTION)
            second = await self._app.submit(self._job())
            await until(self._app, second.id, JobState.WAITING)
        return first, second


@CHOICES
def test_who_waits_goes_on_when_a_person_has_settled_it(
    url: str, choice: Any, given: str, calls: int
) -> None:
    @durable
    async def case(app: App) -> None:
        greeting = Greeting(app)
        async with app.running():
            first, second = await greeting.in_doubt()
            (entry,) = await second.journal()
            assert f"job {first.id} must first settle".encode() in (entry.error or b"")
            await first.resolve(1, choice, result="by kim", by="kim")
            assert [await each.result("20s") for each in (first, second)] == [given, given]
        assert len(greeting.calls) == calls
        (entry,) = await second.journal()
        assert (entry.attempt, entry.error) == (1, None)

    case(url)


@CHOICES
def test_a_worker_that_starts_later_goes_on_with_it(
    url: str, choice: Any, given: str, calls: int
) -> None:
    @durable
    async def case(app: App) -> None:
        greeting = Greeting(app)
        async with app.running():
            first, second = await greeting.in_doubt()
        await first.resolve(1, choice, result="by kim", by="kim")
        assert await second.status() is JobState.WAITING
        async with app.running():
            assert [await each.result("20s") for each in (first, second)] == [given, given]
        assert len(greeting.calls) == calls

    case(url)


@durable
async def test_who_waits_goes_on_when_the_receiver_has_answered_the_first(app: App) -> None:
    greeting = Greeting(app)
    async with app.running():
        first, second = await greeting.in_doubt()
        greeting.answer = Happened("asked")
        await first.resume(by="kim")
        assert [await each.result("20s") for each in (first, second)] == ["asked", "asked"]
    assert len(greeting.calls) == 1


@CHOICES
def test_who_waits_goes_on_though_the_first_was_given_up(
    url: str, choice: Any, given: str, calls: int
) -> None:
    @durable
    async def case(app: App) -> None:
        greeting = Greeting(app)
        async with app.running():
            first, second = await greeting.in_doubt()
            await first.cancel("never mind", by="kim")
            assert await first.wait("20s") is JobState.CANCELLED
            await first.resolve(1, choice, result="by kim", by="kim")
            assert await second.result("20s") == given
        assert len(greeting.calls) == calls

    case(url)
