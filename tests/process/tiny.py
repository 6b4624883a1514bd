"""Tiny processes that many tests start, and ways to wait for what becomes of them."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import process
from perdure.process import Channel, Event, Exit, ExitResult, LinkDown, sleep

Function = Callable[..., Coroutine[Any, Any, Any]]


async def give(value: object = None) -> object:
    return value


async def crash(text: str = "boom") -> None:
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
