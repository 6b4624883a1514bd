"""The report of a crash, for each kind of child: who, under whom, how often, and where."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import process
from perdure.errors import CallExit, TaskExit
from perdure.otp import (
    Agent,
    ChildSpec,
    DynamicSupervisor,
    GenServer,
    Pool,
    Supervisor,
    Task,
    TaskSupervisor,
    async_stream,
    child,
)
from perdure.process import Request, sleep
from perdure.testing import simulate, simulated

PID = re.compile(r"\{inline\|\d+\}")

Caplog = pytest.LogCaptureFixture


class Divider(GenServer):
    async def init(self, number: int) -> None:
        self.number = number

    async def handle_call(self, request: int, frm: Request[Any]) -> float:
        await asyncio.sleep(0)
        return self.divide(request)

    def divide(self, by: int) -> float:
        return self.number / by


def divide_state(number: int, by: int) -> float:
    return number / by


async def divide(by: int) -> float:
    await sleep(1)
    return 1 / by


async def divide_as_worker(worker_id: int) -> float:
    return await divide(worker_id - 2)


async def load() -> int:
    return 1


async def crash_of_a_server() -> None:
    with pytest.raises(CallExit):
        await GenServer.call("child", 0)


async def crash_of_an_agent() -> None:
    with pytest.raises(CallExit):
        await Agent.get("child", divide_state, 0)


async def crash_of_a_task() -> None:
    with pytest.raises(TaskExit):
        await TaskSupervisor.create_nolink("child", divide, 0)


async def crash_of_a_dynamic_child() -> None:
    await DynamicSupervisor.start_child("child", child(divide, 0, restart="temporary"))
    await sleep(2)


async def crash_of_a_streamed_item() -> None:
    await TaskSupervisor.async_stream("child", [0], divide).run()


CRASHES: list[tuple[str, ChildSpec, Callable[[], Awaitable[None]], str, str, list[str]]] = [
    (
        "server",
        Divider.child(10, id="divider", name="child"),
        crash_of_a_server,
        "tests.otp.test_crash_report.Divider(10)",
        "Supervisor App PID as 'divider', permanent",
        ["handle_call", "divide"],
    ),
    (
        "agent",
        Agent.child(load, name="child", allow_none=True),
        crash_of_an_agent,
        "perdure.otp.Agent(load, allow_none=True)",
        "Supervisor App PID as 'child', permanent",
        ["divide_state"],
    ),
    (
        "task",
        TaskSupervisor.child(name="child"),
        crash_of_a_task,
        "tests.otp.test_crash_report.divide(0)",
        "TaskSupervisor child PID as 'divide', temporary",
        ["divide"],
    ),
    (
        "streamed item",
        TaskSupervisor.child(name="child"),
        crash_of_a_streamed_item,
        "tests.otp.test_crash_report.divide(0)",
        "TaskSupervisor child PID as 'divide', temporary",
        ["divide"],
    ),
    (
        "dynamic child",
        DynamicSupervisor.child(name="child"),
        crash_of_a_dynamic_child,
        "tests.otp.test_crash_report.divide(0)",
        "DynamicSupervisor child PID as 'divide', temporary",
        ["divide"],
    ),
    (
        "worker of a pool",
        Pool.child(divide_as_worker, size=2, name="child"),
        lambda: sleep(1.05),
        "tests.otp.test_crash_report.divide_as_worker(2)",
        "Pool child PID as worker 2",
        ["divide_as_worker", "divide"],
    ),
]


@pytest.mark.parametrize(
    ("spec", "crash", "function", "supervisor", "frames"),
    [each[1:] for each in CRASHES],
    ids=[each[0] for each in CRASHES],
)
def test_the_report_names_the_supervisor_and_begins_with_the_users_code(
    spec: ChildSpec,
    crash: Callable[[], Awaitable[None]],
    function: str,
    supervisor: str,
    frames: list[str],
    caplog: Caplog,
) -> None:
    async def main() -> None:
        async with Supervisor([spec], name="App"):
            await crash()

    simulate(main)
    [text] = crashes(caplog)
    assert f"\n  function: {function}\n" in text
    place = f"\n  supervised by: {supervisor}, restarted 0 times before\n"
    assert place in PID.sub("PID", text)
    assert ", since 1970-01-01 00:00:0" in text
    assert frames_of(text) == frames
    assert text.endswith("\n  ZeroDivisionError: division by zero")


@simulated
async def test_the_report_of_a_pool_counts_the_restarts_of_that_worker(caplog: Caplog) -> None:
    async with await Pool.start_link(divide_as_worker, size=2, restart_delay=0.5):
        await sleep(4.2)
    counts = [text.split("restarted ")[1].split(" before")[0] for text in crashes(caplog)]
    assert counts == ["0 times", "once", "2 times"]


@simulated
async def test_the_report_of_a_supervised_task_names_its_caller_too(caplog: Caplog) -> None:
    async with TaskSupervisor(name="tasks") as tasks:
        with pytest.raises(TaskExit):
            await tasks.create_nolink(divide, 0)
        [text] = crashes(caplog)
        assert f"\n  started by: {tasks.pid} tasks\n" in text
        assert f"\n  on behalf of: {process.self_pid()}\n" in text


@simulated
async def test_the_report_of_a_plain_task_names_its_caller_once(caplog: Caplog) -> None:
    process.set_options(trap_links=True)
    with pytest.raises(TaskExit):
        await Task.create(divide, 0)
    await async_stream([0], divide).run()
    for text in crashes(caplog):
        assert f"\n  started by: {process.self_pid()} " in text
        assert "on behalf of" not in text
        assert "supervised by" not in text


def crashes(caplog: Caplog) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "perdure.process"]


def frames_of(text: str) -> list[str]:
    return [line.split(", in ")[1] for line in text.splitlines() if ", in " in line]
