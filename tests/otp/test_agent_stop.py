"""Agent: how it ends, and what runs then."""

from typing import Any

import pytest

from perdure import process
from perdure.errors import CallExit, Killed, Shutdown
from perdure.otp.agent import Agent
from perdure.process import sleep
from perdure.testing import simulate, simulated
from tests.support.otp_servers import start_any
from tests.support.processes import exit_of, others_rest


@simulated
async def test_a_stop_waits_until_the_agent_is_dead() -> None:
    agent = await start_any(dict)
    await agent.stop()
    assert not process.alive(agent.pid)


@simulated
async def test_a_stop_comes_after_what_was_asked_before() -> None:
    seen: list[int] = []
    agent = await Agent.start_link(lambda: 0, on_stop=seen.append)
    for _ in range(10):
        agent.cast(lambda state: state + 1)
    await agent.stop()
    assert seen == [10]


@simulated
async def test_a_stop_of_a_dead_agent_says_so() -> None:
    agent = await start_any(dict)
    await agent.stop()
    with pytest.raises(CallExit):
        await agent.stop()


@simulated
async def test_on_stop_may_be_async_and_the_stop_waits_for_it() -> None:
    saved: list[Any] = []

    async def save(state: list[int]) -> None:
        await sleep("3s")
        saved.append(state)

    agent = await Agent.start_link(lambda: [1], on_stop=save)
    await agent.stop()
    assert saved == [[1]]


@simulated
async def test_an_agent_stops_at_the_end_of_its_block() -> None:
    saved: list[Any] = []
    async with await Agent.start_link(lambda: 1, on_stop=saved.append) as agent:
        await agent.update(lambda state: state + 1)
    assert saved == [2]
    async with await Agent.start(lambda: 1) as agent:
        await agent.stop()  # the end of the block does not mind


@simulated
async def test_on_stop_runs_when_the_parent_shuts_the_agent_down() -> None:
    process.set_options(trap_links=True)
    saved: list[Any] = []
    agent = await Agent.start_link(lambda: 1, on_stop=saved.append)
    process.exit(Shutdown(), agent.pid)
    await others_rest()
    assert saved == [1]
    assert not process.alive(agent.pid)


@simulated
async def test_on_stop_runs_when_anybody_shuts_the_agent_down_or_cancels_it() -> None:
    saved: list[Any] = []
    for shut_down in (True, False):
        agent = await Agent.start(lambda: 1, on_stop=saved.append)
        if shut_down:
            process.exit(Shutdown(), agent.pid)
        else:
            process.cancel(agent.pid, "1s")
        await others_rest()
        assert not process.alive(agent.pid)
    assert saved == [1, 1]


def test_on_stop_runs_at_the_end_of_the_program() -> None:
    saved: list[Any] = []

    async def main() -> None:
        await Agent.start_link(lambda: 1, on_stop=saved.append)
        await Agent.start(lambda: 2, on_stop=saved.append)

    simulate(main)
    assert sorted(saved) == [1, 2]


@simulated
async def test_on_stop_runs_neither_at_a_kill_nor_at_a_crash() -> None:
    saved: list[Any] = []
    killed = await Agent.start(lambda: 1, on_stop=saved.append)
    process.kill(killed.pid)
    crashed = await Agent.start(lambda: 1, on_stop=saved.append)
    crashed.cast(lambda state: state // 0)
    await others_rest()
    assert not process.alive(crashed.pid)
    assert saved == []


@simulated
async def test_an_agent_with_on_stop_still_dies_with_what_it_is_linked_to() -> None:
    saved: list[Any] = []

    async def owner() -> None:
        await Agent.start_link(lambda: 1, on_stop=saved.append)
        raise ValueError("owner")

    process.spawn(owner)
    await others_rest()
    assert len(process.processes()) == 1
    assert saved == []  # no planned end


@simulated
async def test_an_agent_without_on_stop_dies_at_once_of_a_shutdown() -> None:
    agent = await Agent.start(lambda: 1)
    process.monitor(agent.pid)
    reason = Shutdown("now")
    process.exit(reason, agent.pid)
    assert (await exit_of(agent.pid)).error is reason


@simulated
async def test_an_on_stop_that_fails_is_the_reason_of_the_end() -> None:
    def fail(state: int) -> None:
        raise OSError("disk full")

    agent = await Agent.start(lambda: 1, on_stop=fail)
    with pytest.raises(CallExit, match="disk full"):
        await agent.stop()


@simulated
async def test_an_on_stop_that_takes_too_long_is_ended_by_a_kill() -> None:
    async def endless(state: int) -> None:
        await sleep("1h")

    agent = await Agent.start(lambda: 1, on_stop=endless)
    process.monitor(agent.pid)
    process.cancel(agent.pid, "2s")
    assert isinstance((await exit_of(agent.pid)).error, Killed)
