"""Tiny processes that many tests start, ways to end them, and ways to see what becomes of them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import pytest

from perdure import process
from perdure.errors import Shutdown
from perdure.process import Channel, Event, Exit, ExitResult, LinkDown, Pid, select, sleep

T = TypeVar("T")

Function = Callable[..., Coroutine[Any, Any, Any]]
Interrupt = Callable[[Pid], object]


# Processes


async def give(value: object = None) -> object:
    return value


async def crash(text: str = "boom") -> NoReturn:
    raise ValueError(text)


async def wait_forever() -> None:
    await Channel[None]().receive()


async def forever() -> None:
    """Wait for what never comes, in asyncio and not in the kernel."""
    await asyncio.get_running_loop().create_future()


async def trap_and_wait() -> None:
    process.set_options(trap_links=True)
    await wait_forever()


async def dead() -> Pid:
    """Return the pid of a process that has ended."""
    pid = process.spawn(give)
    await others_rest()
    assert not process.alive(pid)
    return pid


# Ways to end one from outside


def shut_down(pid: Pid) -> None:
    """Send an exit signal: the process may clean up."""
    process.exit(Shutdown(), pid)


def cancel_at_once(pid: Pid) -> None:
    """Cancel with a deadline that is now."""
    process.cancel(pid, 0)


INTERRUPTS: list[Interrupt] = [process.kill, shut_down, cancel_at_once]


# Waiting for what becomes of them


async def others_rest() -> None:
    """Go on when all others wait: the virtual clock moves only then."""
    await sleep("1ms")


async def end_of(function: Function, *args: Any) -> ExitResult:
    """Run a process to its end, and return how it ended."""
    return await exit_of(process.spawn_monitored(function, *args))


async def exit_of(pid: Pid) -> ExitResult:
    """Wait for the EXIT of a process that is monitored, and return how it ended."""
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert event.sender is pid
    return event.result


async def link_down_of(pid: Pid) -> BaseException:
    """Wait for the LINK_DOWN of a process that is linked, and return its reason."""
    event = await process.events().receive()
    assert isinstance(event, LinkDown)
    assert event.sender is pid
    return event.error


async def waiting_events() -> list[Event]:
    """Take the events that are there now."""
    events: list[Event] = []
    while not (selected := await process.select(process.events(), default=True)).default:
        events.append(selected.value)
    return events


async def drain(channel: Channel[T]) -> list[T]:
    """Take what waits in a channel now."""
    values: list[T] = []
    while True:
        found = await select(channel, default=True)
        if found.default or not found.ok:
            return values
        values.append(found.value)


# Looking without changing anything


def living() -> set[Pid]:
    return {info.pid for info in process.processes()}


def me() -> "asyncio.Task[Any]":
    """Return what asyncio takes for the running task."""
    task = asyncio.current_task()
    assert task is not None
    return task


def now() -> float:
    """Return the loop's time, which is virtual in a simulated test."""
    return asyncio.get_running_loop().time()


def live_timers() -> int:
    """Count the timers of the loop that are armed."""
    scheduled: Any = getattr(asyncio.get_running_loop(), "_scheduled", None)
    return sum(not handle.cancelled() for handle in scheduled)


def records(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> list[str]:
    """Return the messages that were logged at this level or above."""
    return [record.getMessage() for record in caplog.records if record.levelno >= level]
