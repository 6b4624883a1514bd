"""Waiting for a job without being its worker."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from perdure.base.duration import spell
from perdure.base.retry import pause
from perdure.engine.handle import Handle
from perdure.jobs.model import Job
from perdure.jobs.state import ENDED, JobState
from perdure.store.port import Store

# A hint tells when to look; so often at most, and so seldom at least.
AT_MOST_EVERY, AT_LEAST_EVERY = 0.05, 0.5

# Nothing happens any more before a person does something.
AT_REST = ENDED | {JobState.ATTENTION}


async def looks(store: Store) -> AsyncGenerator[None, None]:
    """Give a turn at once, and then whenever something may have changed."""
    changed = asyncio.Event()
    unwatch = store.watch(changed.set)
    try:
        while True:
            changed.clear()
            yield
            await pause(AT_MOST_EVERY)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AT_LEAST_EVERY):
                    await changed.wait()
    finally:
        unwatch()


async def settled(store: Store, handle: Handle[Any], timeout: float | None) -> Job:
    """Wait until a job has ended, or needs a person.

    Raises:
        TimeoutError: It has not, in this time.
    """
    try:
        async with asyncio.timeout(timeout), contextlib.aclosing(looks(store)) as turns:
            async for _ in turns:
                job = await handle.job()
                if job.state in AT_REST:
                    return job
    except TimeoutError:
        pass
    raise TimeoutError(f"job {handle.id} has not ended within {spell(timeout)}; it goes on")
