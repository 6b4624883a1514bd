"""Tasks, streams, servers, agents, supervisors and pools with their work on a host."""

from typing import Any

import pytest

from perdure import process
from perdure.errors import CallExit, StartError, TaskExit
from perdure.otp import (
    BRUTAL_KILL,
    Agent,
    Exited,
    GenServer,
    Ok,
    Pool,
    Supervisor,
    Task,
    async_stream,
    child,
)
from perdure.process import Exit, sleep
from tests.support import work
from tests.support.hosts import event_of, on_every_host, on_os_host


@on_every_host
async def test_a_task_gives_its_result(host: str) -> None:
    task = Task.create(work.double, 4, host=host)
    assert await task.join() == 8


@on_every_host
async def test_the_failure_of_a_task_is_raised_where_it_is_awaited(host: str) -> None:
    task = Task.create(work.fail_oddly, host=host)
    with pytest.raises(TaskExit) as raised:
        await task.join()
    assert isinstance(raised.value.reason, work.Odd)


@on_every_host
async def test_a_task_is_shut_down(host: str) -> None:
    assert await Task.create(work.wait_for_ever, host=host).shutdown() is None
    assert await Task.create(work.wait_for_ever, host=host).shutdown(BRUTAL_KILL) is None


@on_os_host
async def test_a_result_that_cannot_cross_fails_the_task_and_says_why(host: str) -> None:
    task = Task.create(work.lambda_result, host=host)
    with pytest.raises(TaskExit, match="cannot cross"):
        await task.join()


@on_every_host
async def test_a_stream_gives_its_results_in_order(host: str) -> None:
    results = await async_stream(range(40), work.double, host=host, max_concurrency=4).to_list()
    assert results == [Ok(2 * number) for number in range(40)]


@on_every_host
async def test_failing_items_of_a_stream_are_told_and_the_others_go_on(host: str) -> None:
    results: list[Any] = await async_stream(["a", "b"], work.fail, host=host).to_list()
    assert [type(result) for result in results] == [Exited, Exited]
    assert [result.reason.args for result in results] == [("a",), ("b",)]


@on_every_host
async def test_a_server_serves(host: str) -> None:
    name = f"counter-{host}"
    server = await work.Counter.start_link(5, host=host, name=name)
    assert await server.call(3) == 8
    server.cast(2)
    assert await GenServer.call(name, 0) == 10
    await server.stop()
    assert not process.alive(server.pid)
    with pytest.raises(CallExit):
        await server.call(1)


@on_every_host
async def test_a_server_that_cannot_start_is_told_to_the_starter(host: str) -> None:
    with pytest.raises(StartError) as raised:
        await work.Counter.start_link(1, 2, 3, host=host)
    assert isinstance(raised.value.reason, TypeError)


@on_every_host
async def test_an_agent_keeps_its_state(host: str) -> None:
    agent = await Agent.start_link(int, host=host)
    for _ in range(10):
        await agent.update(work.add, 2)
    assert await agent.get(work.same) == 20
    await agent.stop()


@on_every_host
async def test_a_supervisor_restarts_its_child_on_the_host(host: str) -> None:
    name = f"kept-{host}"
    async with Supervisor([child(work.wait_for_ever, host=host, name=name)]) as supervisor:
        first = process.pid_of(name)
        process.monitor(first)
        process.kill(first)
        await event_of(Exit)
        while (second := process.whereis(name)) is None:
            await sleep("1ms")
        assert second is not first
        assert [info.pid for info in await supervisor.which_children()] == [second]
    assert process.whereis(name) is None


@on_every_host
async def test_a_supervised_server_on_a_host_is_restarted(host: str) -> None:
    name = f"server-{host}"
    async with Supervisor([work.Counter.child(1, host=host, name=name)]):
        first = process.pid_of(name)
        process.monitor(first)
        process.exit(ValueError("crash"), first)
        await event_of(Exit)
        while process.whereis(name) is None:
            await sleep("1ms")
        assert await GenServer.call(name, 1) == 2


@on_every_host
async def test_a_pool_keeps_its_workers_on_the_host(host: str) -> None:
    pool = await Pool.start_link(_worker, size=2, restart_delay="1ms", host=host)
    first = [worker.pid for worker in pool.workers()]
    process.monitor(first[0])
    process.kill(first[0])
    await event_of(Exit)
    while len(pool.workers()) < 2:
        await sleep("1ms")
    second = [worker.pid for worker in pool.workers()]
    assert second[1] is first[1]
    assert second[0] is not first[0]
    await pool.stop()
    assert not any(map(process.alive, second))


async def _worker(number: int) -> None:
    assert number
    await work.wait_for_ever()
