"""A process that holds up its event loop is named once, with what to do about it."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.base import telemetry
from perdure.base.clock import SystemClock
from perdure.otp import Task
from perdure.process import ProcessHost
from perdure.process.loop_watch import BLOCKED_EVENT
from perdure.testing import simulated

pytestmark = pytest.mark.once

WITHIN = 60.0


class Heard(logging.Handler):
    """What was said about processes that hold up their loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.said = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "has held its event loop" in (text := record.getMessage()):
            self.lines.append(text)

    def hear(self, _event: Any, measured: Any, facts: Any, _config: Any) -> None:
        self.events.append({**measured, **facts})
        self.said.set()  # after the line of the log


@pytest.fixture
def heard() -> Iterator[Heard]:
    found, log = Heard(), logging.getLogger("perdure.process")
    log.addHandler(found)
    telemetry.attach("test", BLOCKED_EVENT, found.hear)
    yield found
    telemetry.detach("test")
    log.removeHandler(found)


def compute(heard: Heard) -> None:
    """Use a core until somebody notices."""
    end = SystemClock().monotonic() + WITHIN
    while not heard.said.is_set() and SystemClock().monotonic() < end:
        sum(range(1000))


def test_a_task_that_computes_is_named_with_its_line_and_sent_to_an_os_host(heard: Heard) -> None:
    async def crunch() -> None:
        compute(heard)

    async def main() -> None:
        await Task.create(crunch).join(WITHIN)

    perdure.run(main)
    (line,), (event,) = heard.lines, heard.events
    assert "test_loop_watch.py" in line
    assert "in compute" in line
    assert line.endswith('ProcessHost(kind="os"), or `kind: os`')
    assert "crunch" in event["function"]
    assert event["held"] >= 1.0


def test_a_process_that_blocks_is_named_and_sent_to_a_thread(heard: Heard) -> None:
    async def main() -> None:
        assert heard.said.wait(WITHIN)

    perdure.run(main)
    (line,) = heard.lines
    assert "`await offload(function)`" in line


def test_a_function_is_named_once(heard: Heard) -> None:
    async def block() -> None:
        assert heard.said.wait(WITHIN)

    async def crunch() -> None:
        compute(heard)

    async def main() -> None:
        await process.run_process(block)
        heard.said.clear()
        async with ProcessHost("work", kind="threads", workers=1):
            process.spawn_monitored(crunch, host="work")
            await process.run_process(block)  # until the other one is named
            await process.events().receive()

    perdure.run(main)
    assert ["block" in line for line in heard.lines] == [True, False]


def test_on_a_threads_host_what_computes_is_named(heard: Heard) -> None:
    async def crunch() -> None:
        compute(heard)

    async def main() -> None:
        async with ProcessHost("work", kind="threads", workers=1):
            process.spawn_monitored(crunch, host="work")
            await process.events().receive()

    perdure.run(main)
    (line,) = heard.lines
    assert line.endswith('ProcessHost(kind="os"), or `kind: os`')


def test_on_a_threads_host_what_blocks_is_not_named(heard: Heard) -> None:
    async def wait(seen: threading.Event) -> None:
        assert seen.wait(WITHIN)

    async def main() -> None:
        seen = threading.Event()
        async with ProcessHost("work", kind="threads", workers=1):
            process.spawn_monitored(wait, seen, host="work")
            compute(heard)  # on this loop, until the watch has looked at both
            seen.set()
            await process.events().receive()

    perdure.run(main)
    assert ["main" in line for line in heard.lines] == [True]


def test_the_thread_that_looks_ends_with_the_runtime() -> None:
    async def main() -> bool:
        return any(each.name == "perdure-process-watch" for each in threading.enumerate())

    assert perdure.run(main)
    assert not any(each.name == "perdure-process-watch" for each in threading.enumerate())


@simulated
async def test_virtual_time_is_not_watched() -> None:
    assert not any(each.name == "perdure-process-watch" for each in threading.enumerate())
