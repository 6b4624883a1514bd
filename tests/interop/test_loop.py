"""The loop's debug mode, tracebacks, and things that nobody can await."""

import asyncio
import logging
import traceback
import warnings
from collections.abc import Generator
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.process import select, sleep
from perdure.testing import VirtualLoop, simulated
from tests.support.processes import end_of, exit_of, forever

# Strange awaits


class Strange:
    """Yields what no task can wait for."""

    def __init__(self, yielded: object) -> None:
        self.yielded = yielded

    def __await__(self) -> Generator[Any, None, None]:
        yield self.yielded


@pytest.mark.parametrize("yielded", [42, "text", object(), [None]])
@simulated
async def test_awaiting_something_strange_is_refused_with_its_name(yielded: object) -> None:
    with pytest.raises(RuntimeError) as caught:
        await Strange(yielded)

    assert repr(yielded) in str(caught.value)
    await sleep(1)  # and the process goes on


@simulated
async def test_a_future_that_is_yielded_and_not_awaited_is_refused() -> None:
    with pytest.raises(RuntimeError):
        await Strange(asyncio.get_running_loop().create_future())


@simulated
async def test_a_future_of_another_loop_is_refused() -> None:
    other = asyncio.new_event_loop()
    future = other.create_future()

    async def child() -> None:
        await future

    pid = process.spawn_monitored(child)
    process.cancel(pid, "1s")  # should it hang, not for ever
    result = await exit_of(pid)
    other.close()

    assert isinstance(result.error, RuntimeError)
    assert repr(future) in str(result.error)


@simulated
async def test_a_bare_yield_is_one_turn() -> None:
    await Strange(None)
    await asyncio.sleep(0)


@simulated
async def test_a_strange_await_that_nobody_catches_ends_the_process_with_its_error() -> None:
    async def child() -> None:
        await Strange(42)

    result = await end_of(child)

    assert isinstance(result.error, RuntimeError)


# Tracebacks


async def broken() -> None:
    await sleep(1)
    await deeper()


async def deeper() -> None:
    await asyncio.sleep(0)
    raise ValueError("down here")


def names_of(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@simulated
async def test_a_traceback_shows_the_frames_of_the_user() -> None:
    result = await end_of(broken)

    assert names_of(result.error) == ["broken", "deeper"]


@simulated
async def test_the_crash_report_has_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        await end_of(broken)

    assert "in deeper" in caplog.text
    assert "ValueError: down here" in caplog.text
    assert "process.py" not in caplog.text


@simulated
async def test_the_traceback_of_a_task_leads_through_the_await() -> None:
    async def child() -> None:
        await asyncio.create_task(deeper())

    result = await end_of(child)

    assert names_of(result.error)[0] == "child"
    assert names_of(result.error)[-1] == "deeper"


@simulated
async def test_a_stack_walked_inside_a_process_shows_its_callers() -> None:
    def look() -> list[str]:
        return [frame.name for frame in traceback.extract_stack()]

    async def child() -> list[str]:
        await asyncio.sleep(0)
        return look()

    result = await end_of(child)

    assert result.value[-2:] == ["child", "look"]


# Debug mode


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def debugging_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop


def test_processes_work_in_debug_mode(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> int:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            task = group.create_task(answer())
        return await task

    async def crash() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def main() -> None:
        assert asyncio.get_running_loop().get_debug()
        assert (await end_of(work)).value == 42
        assert isinstance((await end_of(crash)).error, ValueError)
        doomed = process.spawn_monitored(forever)
        process.cancel(doomed, "1ms")
        assert not (await exit_of(doomed)).ok
        selected = await select(process.inbox(), perdure.process.after("1ms"))
        assert selected.ok

    with caplog.at_level(logging.WARNING, "asyncio"):
        perdure.run(main, loop_factory=debugging_loop)

    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_a_slow_step_is_reported_in_debug_mode(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = 0
        await sleep(0.001)

    with caplog.at_level(logging.WARNING, "asyncio"):
        perdure.run(main, loop_factory=debugging_loop)

    assert "Executing" in caplog.text


def test_debug_mode_can_be_switched_on_inside() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_debug(True)
        await sleep(0.001)
        assert (await end_of(answer)).value == 42

    perdure.run(main)


def test_nothing_warns_when_processes_are_left_to_the_runtime() -> None:
    async def main() -> None:
        process.spawn(forever)
        process.spawn(sleep, "1h")
        asyncio.get_running_loop().set_debug(True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        perdure.run(main)


class _AppendsWhenLookedAt:
    """A callback that stands for another thread: looking at it appends to the ready queue."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.calls: list[str] = []

    @property
    def __self__(self) -> None:
        self._loop.call_soon(self.calls.append, "appended")

    def __call__(self) -> None:
        self.calls.append("called")


def test_another_thread_may_append_while_a_seeded_loop_shuffles_what_is_ready() -> None:
    loop = VirtualLoop(seed=1)
    callback = _AppendsWhenLookedAt(loop)
    loop.call_soon(callback)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert set(callback.calls) == {"called", "appended"}
