"""Small pieces of work for tests of tasks and streams."""

from typing import NoReturn

from perdure import process
from perdure.process import Exit, ExitResult, Pid, sleep
from perdure.process.process import Function


async def give(value: int) -> int:
    return value


async def slowly(value: int, delay: float = 1.0) -> int:
    await sleep(delay)
    return value


async def crash_later(delay: float = 1.0, text: str = "boom") -> NoReturn:
    await sleep(delay)
    raise ValueError(text)


async def leave() -> int:
    process.exit()
    return 1


async def exit_of(pid: Pid) -> ExitResult:
    """Wait for the end of a process that is monitored, whatever else is told meanwhile."""
    while True:
        event = await process.events().receive()
        if isinstance(event, Exit) and event.sender is pid:
            return event.result


async def end_of(function: Function, *args: object) -> ExitResult:
    """Run a process, and tell how it ended."""
    return await exit_of(process.spawn_monitored(function, *args))
