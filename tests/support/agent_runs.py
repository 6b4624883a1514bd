"""What tests of all agent frameworks do with a job in which an agent runs.

handle = await replayed(app, work())      # `work` receives "go" when its agent is done
"""

import asyncio
from typing import Any

import pytest

from perdure.app import App
from perdure.base.errors import JobFailed
from perdure.engine.handle import Handle
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.support.engine import until


async def replayed(app: App, call: Any) -> Handle[Any]:
    """Run a job to where it waits for "go", replay it until there, and let it end."""
    async with app.running():
        handle = await app.submit(call)
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        await handle.wait("30s")
    return handle


async def approved_after_restart(app: App, call: Any, **edited: Any) -> Handle[Any]:
    """Run a job that asks about a tool; another worker gets the answer, with edited arguments."""
    async with app.running():
        handle = await app.submit(call, user="agent")
        await until(app, handle.id, JobState.WAITING)
    async with app.running():
        await app.decide(await asked(app), "approve", by=ANN, arguments=edited)
        await handle.wait("30s")
    return handle


async def stopped_by_budget(app: App, call: Any) -> Handle[Any]:
    """Run a job that asks for more tokens, in vain."""
    async with app.running():
        handle = await app.submit(call, user="agent")
        question = await asked(app)
        assert "tokens are needed" in question.title
        await app.decide(question, "reject", by=ANN, reason="enough")
        with pytest.raises(JobFailed, match="enough"):
            await handle.result("30s")
    return handle


class HangingModel:
    """What a model does before it answers: it never does, and knows whether it was ended."""

    def __init__(self) -> None:
        self._begun, self._ended = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        self._begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._ended.set()

    async def ends_with_its_job(self, app: App, call: Any) -> None:
        """Cancel a job in the middle of its model call, and check that both end."""
        self._begun.clear()
        self._ended.clear()
        async with app.running():
            handle = await app.submit(call)
            await self._begun.wait()
            await handle.cancel()
            with pytest.raises(JobFailed, match="CANCELLED"):
                await handle.result("30s")
        assert self._ended.is_set()
