"""Small verbs that the tests of this folder share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from perdure import process
from perdure.process import ExitResult, Pid


def now() -> float:
    """Give the loop's time, which is virtual in a simulated test."""
    return asyncio.get_running_loop().time()


async def forever() -> None:
    """Wait for what never comes, in asyncio and not in the kernel."""
    await asyncio.get_running_loop().create_future()


async def end_of(pid: Pid) -> ExitResult:
    """Wait for the end of a process that is already monitored."""
    event = await process.events().receive()
    assert isinstance(event, process.Exit)
    assert event.sender is pid
    return event.result


async def run_child(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> ExitResult:
    """Run a function as a process, and give its end."""
    return await end_of(process.spawn_monitored(function, *args))


def me() -> "asyncio.Task[Any]":
    """Give what asyncio takes for the running task."""
    task = asyncio.current_task()
    assert task is not None
    return task
