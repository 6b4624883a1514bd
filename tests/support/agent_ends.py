"""Agents that are ended from outside at random moments: nothing may be left open anywhere.

A kill ends everything. After a cancel or a deadline, code still runs: a framework may catch it, and
its tasks may go on. Each agent looks at three things at once, sends a mail, and asks a person.

    def agent_job(app: App, world: World) -> …     # makes the job

    test_agents_that_are_cancelled_at_any_moment_leave_nothing_open = cancelled(agent_job)
    test_agents_whose_deadline_passes_at_any_moment_leave_nothing_open = late(agent_job)
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import perdure
from perdure.app import App
from perdure.base.clock import SystemClock
from perdure.base.errors import DecisionRefused, IllegalTransition
from perdure.engine.handle import Handle
from perdure.integrations.durable_calls import idempotency_key
from perdure.jobs.approval import Person
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.state import ENDED, JobState
from tests.support.engine import durable

ANN: Final = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
BUDGET: Final = BudgetLimits(tokens=1_000_000)
DONE: Final = "done"
_SEED: Final = 15
_NUMBER: Final = 24  # jobs
_AT_ONCE: Final = 4


class World:
    """What agents do something to, and who ends them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._chance = random.Random(_SEED)
        self._mails: Counter[str] = Counter()
        self._still_working = 0

    # What agents do

    async def dawdle(self, *_: Any) -> None:
        """Take a while."""
        self._still_working += 1
        try:
            await perdure.process.sleep(self._chance.random() / 50)
        finally:
            self._still_working -= 1

    async def look(self, n: int) -> int:
        """Look at something."""
        await self.dawdle()
        return n

    async def mail(self) -> str:
        """Send a mail."""
        self._mails[idempotency_key()] += 1
        await self.dawdle()
        return "sent"

    async def pay(self) -> str:
        """Pay."""
        await self.dawdle()
        return "paid"

    # Who ends them

    async def cancel_jobs(self, job: Any) -> None:
        """Cancel jobs at random moments, and check what is left of them."""

        async def cancel(number: int, after: float) -> Handle[Any]:
            handle = await self._app.submit(job(number), user="kim")
            await perdure.process.sleep(after)
            with suppress(IllegalTransition):  # it was quicker
                await handle.cancel()
            return handle

        await self._end_jobs(job, cancel)

    async def end_by_deadline(self, job: Any) -> None:
        """Let deadlines of jobs pass at random moments, and check what is left of them."""

        async def submit(number: int, after: float) -> Handle[Any]:
            return await self._app.submit(job(number), user="kim", deadline=0.001 + after)

        await self._end_jobs(job, submit)

    async def _end_jobs(self, job: Any, end: Any) -> None:
        slots, clock, begin = asyncio.Semaphore(_AT_ONCE), SystemClock(), 0.0
        handles: list[Handle[Any]] = []

        async def one(number: int) -> None:
            async with slots:
                handle = await end(number, self._chance.random() * took)
                assert await handle.wait("30s") in ENDED
                handles.append(handle)

        async with self._app.running():
            people = asyncio.ensure_future(self._answer_questions())
            try:
                for number in range(2):  # the first one also imports parts of the framework
                    begin = clock.monotonic()
                    handles.append(await self._app.submit(job(number), user="kim"))
                    assert await handles[-1].result("30s", if_parked="raise") == DONE
                took = clock.monotonic() - begin
                async with asyncio.TaskGroup() as group:
                    for number in range(2, _NUMBER):
                        group.create_task(one(number))
            finally:
                people.cancel()
                await asyncio.wait([people])
            await self._check(handles)

    async def _answer_questions(self) -> None:
        while True:
            for question in await self._app.approvals():
                with suppress(DecisionRefused, IllegalTransition):  # the job has just ended
                    await self._app.decide(question, "approve", by=ANN)
            await self.dawdle()

    async def _check(self, handles: list[Handle[Any]]) -> None:
        for handle in handles:
            state, budget = await handle.wait("1s"), await handle.budget()
            assert state is not JobState.COMPLETED or await handle.result() == DONE
            assert budget is not None
            assert budget.reserved == {}
        assert await (await self._app.store()).violations() == []
        assert await self._app.approvals() == []
        assert set(self._mails.values()) <= {1}
        async with asyncio.timeout(10):
            while self._still_working or _tasks_of_frameworks():  # they may be about to end
                await perdure.process.sleep("2ms")


MakeJob: TypeAlias = Callable[[App, World], Any]


def cancelled(make: MakeJob) -> Callable[..., None]:
    """Return a test that cancels jobs at random moments."""

    @durable
    async def test(app: App) -> None:
        world = World(app)
        await world.cancel_jobs(make(app, world))

    return test


def late(make: MakeJob) -> Callable[..., None]:
    """Return a test that lets deadlines of jobs pass at random moments."""

    @durable
    async def test(app: App) -> None:
        world = World(app)
        await world.end_by_deadline(make(app, world))

    return test


def _tasks_of_frameworks() -> list[Any]:
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    codes = [getattr(each, "cr_code", None) for each in coroutines]
    return [each for each in codes if each is not None and "site-packages" in each.co_filename]
