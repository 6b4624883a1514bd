"""Agent: state behind functions, by handle and by name, one after another."""

import asyncio
import logging
from typing import Any

import pytest

from perdure import process, telemetry
from perdure.base.restart import Restart
from perdure.errors import (
    BadReturn,
    CallExit,
    CallTimeout,
    NameTaken,
    NoProcess,
    NotRegistered,
    StartError,
)
from perdure.otp.agent import Agent
from perdure.otp.server import Stop
from perdure.process import Channel, sleep
from perdure.testing import simulated
from tests.support.otp_servers import start_any
from tests.support.processes import exit_of, now, others_rest


def increment(state: int, by: int = 1) -> int:
    return state + by


async def increment_later(state: int, by: int = 1) -> int:
    await sleep("1s")
    return state + by


# Starting


@simulated
async def test_an_agent_starts_with_what_its_function_gives() -> None:
    agent = await Agent.start_link(lambda: 41)
    assert await agent.get(lambda state: state + 1) == 42


@simulated
async def test_the_first_state_may_come_from_an_async_function() -> None:
    async def load() -> dict[str, int]:
        await sleep("1s")
        return {"a": 1}

    agent = await Agent.start_link(load)
    assert now() == 1
    assert await agent.get(lambda state: state["a"]) == 1


@simulated
async def test_a_first_function_that_raises_fails_the_start_and_harms_nobody() -> None:
    def broken() -> int:
        raise ValueError("no state")

    for start in (Agent.start, Agent.start_link):
        with pytest.raises(StartError) as caught:
            await start(broken)
        assert isinstance(caught.value.reason, ValueError)


@simulated
async def test_a_first_function_that_takes_too_long_fails_the_start() -> None:
    async def endless() -> None:
        await sleep("1h")

    with pytest.raises(StartError) as caught:
        await Agent.start_link(endless, timeout="2s")
    assert isinstance(caught.value.reason, TimeoutError)
    assert now() == 2


@simulated
async def test_bad_options_are_refused_before_anything_runs() -> None:
    wrong: Any = 3
    wrong_options: Any = {"colour": "red"}
    with pytest.raises(TypeError, match="function"):
        await Agent.start_link(wrong)
    with pytest.raises(TypeError):
        await Agent.start_link(lambda: 1, **wrong_options)
    with pytest.raises(ValueError, match="warn_after"):
        await Agent.start_link(lambda: 1, warn_after=-1)
    assert len(process.processes()) == 1


@simulated
async def test_a_taken_name_is_refused() -> None:
    first = await Agent.start_link(lambda: 1, name="kv")
    with pytest.raises(NameTaken) as caught:
        await Agent.start(lambda: 2, name="kv")
    assert caught.value.pid is first.pid


# Functions


@simulated
async def test_an_update_sets_the_state_and_get_leaves_it() -> None:
    agent = await Agent.start_link(lambda: 1)
    assert await agent.update(lambda state: state + 1) is None
    assert await agent.get(lambda state: state * 100) == 200
    assert await agent.get(lambda state: state) == 2


@simulated
async def test_get_and_update_gives_the_reply_and_sets_the_state() -> None:
    agent = await Agent.start_link(lambda: [1, 2, 3])
    assert await agent.get_and_update(lambda state: (state[0], state[1:])) == 1
    assert await agent.get(lambda state: state) == [2, 3]


@simulated
async def test_arguments_come_after_the_state() -> None:
    agent = await Agent.start_link(lambda: 10)
    await agent.update(increment, 5)
    assert await agent.get(lambda state, a, b: (state, a, b), "x", "y") == (15, "x", "y")
    agent.cast(increment, 100)
    assert await agent.get_and_update(lambda state, n: (state - n, n), 15) == 100
    assert await agent.get(lambda state: state) == 15


@simulated
async def test_async_functions_run_inside_and_hold_the_agent() -> None:
    agent = await Agent.start_link(lambda: 0)
    await asyncio.gather(*(agent.update(increment_later) for _ in range(3)))
    assert now() == 3

    async def later(state: int) -> tuple[str, int]:
        return "was", state + 10

    assert await agent.get_and_update(later) == "was"
    assert await agent.get(increment_later) == 14


@simulated
async def test_functions_run_in_the_agents_own_process() -> None:
    agent = await Agent.start_link(process.self_pid)
    assert await agent.get(lambda state: (state, process.self_pid())) == (agent.pid, agent.pid)


@simulated
async def test_nothing_is_lost_when_many_update_at_the_same_time() -> None:
    agent = await Agent.start_link(lambda: 0)

    async def client() -> None:
        for _ in range(100):
            await agent.update(increment)

    for _ in range(10):
        process.spawn_monitored(client)
    for _ in range(10):
        await process.events().receive()
    assert await agent.get(lambda state: state) == 1000


@simulated
async def test_a_read_comes_after_every_write_before_it() -> None:
    agent = await Agent.start_link(lambda: 0)
    for _ in range(100):
        agent.cast(increment)
    assert await agent.get(lambda state: state) == 100


@simulated
async def test_a_state_may_be_anything() -> None:
    agent = await start_any(lambda: None)
    for value in (None, 0, (), Stop(), ValueError("x"), lambda: 1):
        await agent.update(lambda _, value=value: value)
        assert await agent.get(lambda state: state, isolate=False) is value


# By name and pid


@simulated
async def test_every_method_works_on_the_class_with_a_name_or_a_pid() -> None:
    agent = await Agent.start(lambda: 1, name="kv")
    for ref in ("kv", agent.pid, agent):
        await Agent.update(ref, lambda state: state + 1)
        Agent.cast(ref, lambda state: state + 1)
    assert await Agent.get("kv", lambda state: state) == 7
    assert await Agent.get_and_update(agent.pid, lambda state: (state, 0)) == 7
    await Agent.stop("kv")
    assert not process.alive(agent.pid)


@simulated
async def test_an_agent_that_is_not_there_fails_a_get_and_no_cast() -> None:
    agent = await Agent.start(lambda: 1)
    await agent.stop()
    with pytest.raises(CallExit) as caught:
        await agent.get(increment)
    assert isinstance(caught.value.reason, NoProcess)
    with pytest.raises(NotRegistered):
        await Agent.update("nobody", increment)
    agent.cast(increment)
    Agent.cast("nobody", increment)


# Failures


@simulated
async def test_a_function_that_raises_ends_the_agent_and_tells_the_caller() -> None:
    agent = await Agent.start(lambda: 1)
    process.monitor(agent.pid)
    with pytest.raises(CallExit) as caught:
        await agent.update(lambda state: state // 0)
    assert isinstance(caught.value.reason, ZeroDivisionError)
    assert isinstance((await exit_of(agent.pid)).error, ZeroDivisionError)


@simulated
async def test_a_cast_that_raises_ends_the_agent() -> None:
    agent = await Agent.start(lambda: 1)
    process.monitor(agent.pid)
    agent.cast(lambda state: state // 0)
    assert isinstance((await exit_of(agent.pid)).error, ZeroDivisionError)


@simulated
async def test_a_linked_agent_that_fails_takes_its_owner_along() -> None:
    async def owner() -> None:
        agent = await Agent.start_link(lambda: 1)
        agent.cast(lambda state: state // 0)
        await sleep("1s")

    end = await exit_of(process.spawn_monitored(owner))
    assert "ZeroDivisionError" in str(end.error)


@pytest.mark.parametrize("wrong", [None, 1, "ab", [1, 2], (1,), (1, 2, 3)])
def test_get_and_update_must_give_a_pair(wrong: Any) -> None:
    @simulated
    async def check() -> None:
        agent = await Agent.start(lambda: 1)
        with pytest.raises(CallExit) as caught:
            await agent.get_and_update(lambda state: wrong)
        assert isinstance(caught.value.reason, BadReturn)
        assert not process.alive(agent.pid)

    check()


@simulated
async def test_a_time_out_leaves_the_agent_and_its_new_state_alone() -> None:
    agent = await Agent.start_link(lambda: 1)
    with pytest.raises(CallTimeout):
        await agent.update(increment_later, timeout="100ms")
    assert await agent.get(lambda state: state) == 2


@simulated
async def test_a_caller_that_gives_up_leaves_the_agent_alone() -> None:
    agent = await Agent.start_link(lambda: 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await agent.update(increment_later)
    assert await agent.get(lambda state: state) == 2


# None


@pytest.mark.parametrize("first", [dict, list, set])
def test_an_update_that_forgot_its_return_is_refused(first: Any) -> None:
    @simulated
    async def check() -> None:
        agent = await start_any(first)
        with pytest.raises(CallExit, match="return the new state") as caught:
            await agent.update(lambda state: None)
        assert isinstance(caught.value.reason, BadReturn)

    check()


@simulated
async def test_none_is_taken_when_it_is_meant() -> None:
    one = await start_any(dict, allow_none=True)
    await one.update(lambda state: None)
    two = await start_any(dict)
    await two.update(lambda state: None, allow_none=True)
    three = await start_any(lambda: 1)
    await three.update(lambda state: None)
    for agent in (one, two, three):
        assert await agent.get(lambda state: state) is None


@simulated
async def test_a_cast_and_a_pair_that_forgot_the_state_are_refused_too() -> None:
    agent = await start_any(dict)
    process.monitor(agent.pid)
    agent.cast(lambda state: None)
    assert isinstance((await exit_of(agent.pid)).error, BadReturn)
    with pytest.raises(CallExit) as caught:
        await (await start_any(dict)).get_and_update(lambda state: (1, None))
    assert isinstance(caught.value.reason, BadReturn)


# Slow functions


@simulated
async def test_a_function_that_holds_the_agent_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = await Agent.start_link(lambda: 0, warn_after="500ms")
    held: list[Any] = []

    def note(event: Any, measurements: Any, metadata: Any, config: Any) -> None:
        held.append(measurements)

    telemetry.attach("slow", ("perdure", "agent", "slow"), note)
    try:
        await agent.update(increment_later)
    finally:
        telemetry.detach("slow")
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "increment_later" in record.getMessage()
    assert "500ms" in record.getMessage()
    assert held == [{"held": 0.5}]


@simulated
async def test_a_function_that_hangs_is_warned_of_while_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hang(state: int) -> int:
        await Channel[None]().receive()
        return state

    agent = await Agent.start(lambda: 0)
    with pytest.raises(CallTimeout):
        await agent.update(hang)
    assert "hang" in caplog.text
    process.kill(agent.pid)
    await others_rest()


@simulated
async def test_a_plain_function_that_is_slow_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    agent = await Agent.start_link(lambda: 0, warn_after=0)
    await agent.update(increment)
    assert "increment" in caplog.text


@simulated
async def test_quick_functions_and_agents_without_a_limit_are_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = await Agent.start_link(lambda: 0, warn_after=None)
    await agent.update(increment_later, timeout=None)
    await (await Agent.start_link(lambda: 0)).update(increment)
    assert caplog.records == []


@simulated
async def test_a_slow_function_is_logged_once_and_emitted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = await Agent.start_link(lambda: 0, warn_after=0)
    held: list[Any] = []

    def note(event: Any, measurements: Any, metadata: Any, config: Any) -> None:
        held.append(measurements)

    telemetry.attach("slow", ("perdure", "agent", "slow"), note)
    try:
        for _ in range(3):
            await agent.update(increment)
    finally:
        telemetry.detach("slow")
    [record] = caplog.records
    assert "do the work in a task" in record.getMessage()
    assert "GenServer" in record.getMessage()
    assert len(held) == 3


# Large states


@simulated
async def test_a_state_of_ten_thousand_entries_is_reported_once_with_what_to_use_instead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found: list[Any] = []

    def note(event: Any, measurements: Any, metadata: Any, config: Any) -> None:
        found.append(measurements)

    telemetry.attach("large", ("perdure", "agent", "large"), note)
    try:
        agent = await Agent.start_link(lambda: list(range(9_998)))
        for each in range(4):
            await agent.update(lambda state, each: [*state, each], each)
        await agent.get_and_update(lambda state: (0, [*state, 0]))
    finally:
        telemetry.detach("large")
    [record] = caplog.records
    assert "has 10000 entries" in record.getMessage()
    assert "Table" in record.getMessage()
    assert found == [{"entries": 10_000}]


# Supervision


def test_a_child_spec_says_how_it_is_supervised() -> None:
    spec = Agent.child(dict, name="kv", restart="transient", shutdown=10)
    assert (spec.id, spec.restart, spec.shutdown) == ("kv", Restart.TRANSIENT, 10)
    assert Agent.child(dict, id="a", name="kv").id == "a"
    assert Agent.child_spec(dict).shutdown == 5.0
    wrong: Any = {"colour": "red"}
    with pytest.raises(TypeError):
        Agent.child(dict, **wrong)


@simulated
async def test_the_start_of_a_child_spec_starts_a_linked_agent() -> None:
    agent = await Agent.child(dict, name="kv").start()
    assert agent.pid in process.info(process.self_pid()).links
    assert await Agent.get("kv", len) == 0
