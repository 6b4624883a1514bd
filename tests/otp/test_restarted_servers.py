"""Servers, agents and tasks that a supervisor restarts: what comes back, and what is lost."""

from pathlib import Path
from typing import Any

import pytest

from perdure import process
from perdure.errors import CallExit
from perdure.otp import Agent, GenServer, Registry, Snapshot, Supervisor, Task, tree
from perdure.process import Pid, Request, sleep
from perdure.testing import simulated
from tests.support.processes import others_rest


class Counter(GenServer):
    async def init(self, first: int) -> None:
        self.count = first

    async def handle_call(self, request: int, frm: Request[Any]) -> float:
        self.count += request
        return self.count

    async def handle_cast(self, request: object) -> None:
        raise ValueError(request)


def broken(state: int) -> int:
    raise ValueError(state)


@simulated
async def test_a_server_that_crashed_answers_again_by_its_name_from_its_first_state() -> None:
    async with Supervisor([Counter.child(10, id="counter", name="counter")]) as sup:
        first = process.pid_of("counter")
        assert await GenServer.call("counter", 5) == 15
        GenServer.cast("counter", "boom")
        await others_rest()
        assert await GenServer.call("counter", 1) == 11
        assert process.pid_of("counter") is not first
        assert [info.restarts for info in await sup.which_children()] == [1]


@simulated
async def test_a_caller_of_a_server_that_crashes_is_told_why_and_may_call_again() -> None:
    async with Supervisor([Counter.child(10, id="counter", name="counter")]):
        with pytest.raises(CallExit) as caught:
            await GenServer.call("counter", "no number")
        assert isinstance(caught.value.reason, TypeError)
        await others_rest()
        assert await GenServer.call("counter", 1) == 11


@simulated
async def test_an_agent_that_crashed_begins_anew() -> None:
    async with Supervisor([Agent.child(lambda: 1, name="number")]):
        await Agent.update("number", lambda state: state + 41)
        with pytest.raises(CallExit):
            await Agent.update("number", broken)
        await others_rest()
        assert await Agent.get("number", lambda state: state) == 1


@simulated(patience=0.5)  # a thread of a busy machine reads and writes the file
async def test_an_agent_with_a_snapshot_comes_back_with_what_it_saved(tmp_path: Path) -> None:
    snapshot = Snapshot(tmp_path / "number.json", every="1s", kind=int)
    async with Supervisor([Agent.child(lambda: 1, name="number", snapshot=snapshot)]):
        await Agent.update("number", lambda state: state + 41)
        await sleep(2)
        with pytest.raises(CallExit):
            await Agent.update("number", broken)
        await others_rest()
        assert await Agent.get("number", lambda state: state) == 42


@simulated
async def test_a_server_that_was_killed_is_restarted_and_takes_its_key_in_a_registry_again() -> (
    None
):
    async with await Registry.start_link(keys="unique", name="registry") as registry:
        key = registry.via("counter")
        async with Supervisor([Counter.child(10, id="counter", name=key)]):
            [(first, _)] = registry.lookup("counter")
            process.kill(first)
            await others_rest()
            [(second, _)] = registry.lookup("counter")
            assert second is not first
            assert await GenServer.call(key, 1) == 11


@simulated
async def test_those_that_depend_on_a_server_are_restarted_with_it() -> None:
    children = [
        Counter.child(10, id="counter", name="counter"),
        Agent.child(lambda: process.pid_of("counter"), name="user"),
    ]
    async with Supervisor(children, strategy="rest_for_one"):
        GenServer.cast("counter", "boom")
        await others_rest()
        known: Pid = await Agent.get("user", lambda pid: pid)
        assert known is process.pid_of("counter")


@simulated
async def test_a_transient_task_is_restarted_until_it_succeeds() -> None:
    attempts: list[int] = []

    async def third_time_lucky() -> None:
        attempts.append(len(attempts))
        if len(attempts) < 3:
            raise ValueError(attempts)

    async with Supervisor([Task.child(third_time_lucky, restart="transient")]) as sup:
        await others_rest()
        assert len(attempts) == 3
        [info] = await sup.which_children()
        assert (info.pid, info.restarts) == (None, 2)


@simulated
async def test_the_tree_shows_how_often_a_server_was_restarted() -> None:
    async with Supervisor([Counter.child(10, id="counter", name="counter")], name="App"):
        for _ in range(2):
            GenServer.cast("counter", "boom")
            await others_rest()
        node = tree("App").find("counter")
        assert node is not None
        assert (node.restarts, node.kind) == (2, "worker")
