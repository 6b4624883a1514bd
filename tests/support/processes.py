"""Tiny processes that many tests start, ways to end them, and ways to see what becomes of them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import pytest

from perdure import process
from perdure.errors import Shutdown
from perdure.process import Channel, Event, Exit, ExitResult, LinkDown, Pid, select, sleep

Function = Callable[..., Coroutine[Any, Any, Any]]


async def give(value: object = None) -> object:
    return value


async def crash(text: str = "boom") -> NoReturn:
    raise ValueError(text)


async def wait_forever() -> None:
    await Channel[None]().receive()


async def trap_and_wait() -> None:
    process.set_options(trap_links=True)
    await wait_forever()


async def others_rest() -> None:
    """Go on when all others wait: the virtual clock moves only then."""
    await sleep("1ms")


async def end_of(function: Function, *args: Any) -> ExitResult:
    """Run a process to its end and say how it ended."""
    return await exit_of(process.spawn_monitored(function, *args))


async def exit_of(pid: process.Pid) -> ExitResult:
    """Wait for the EXIT of a process that is monitored."""
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert event.sender is pid
    return event.result


async def link_down_of(pid: process.Pid) -> BaseException:
    """Wait for the LINK_DOWN of a process that is linked."""
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


def living() -> set[process.Pid]:
    return {info.pid for info in process.processes()}


def records(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> list[str]:
    """Give the messages that were logged at this level or above."""
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


T = TypeVar("T")


async def drain(channel: Channel[T]) -> list[T]:
    """Take what waits in a channel now."""
    values: list[T] = []
    while True:
        found = await select(channel, default=True)
        if found.default or not found.ok:
            return values
        values.append(found.value)


async def dead() -> Pid:
    """Give the pid of a process that has ended."""
    pid = process.spawn(give)
    await others_rest()
    assert not process.alive(pid)
    return pid


def now() -> float:
    """Give the loop's time."""
    return asyncio.get_running_loop().time()


def live_timers() -> int:
    """Count the timers of the loop that are armed."""
    scheduled: Any = getattr(asyncio.get_running_loop(), "_scheduled", None)
    return sum(not handle.cancelled() for handle in scheduled)


Interrupt = Callable[[Pid], object]


def shut_down(pid: Pid) -> None:
    """Send an exit signal: the process may clean up."""
    process.exit(Shutdown(), pid)


def cancel_at_once(pid: Pid) -> None:
    """Cancel with a deadline that is now."""
    process.cancel(pid, 0)


INTERRUPTS: list[Interrupt] = [process.kill, shut_down, cancel_at_once]


async def forever() -> None:
    """Wait for what never comes, in asyncio and not in the kernel."""
    await asyncio.get_running_loop().create_future()


def me() -> "asyncio.Task[Any]":
    """Give what asyncio takes for the running task."""
    task = asyncio.current_task()
    assert task is not None
    return task
