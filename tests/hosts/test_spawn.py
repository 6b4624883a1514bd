"""Births on every kind of host."""

import os

import pytest

from perdure import process
from perdure.errors import LinkedProcessDown, NameTaken, SpawnError
from perdure.process import Exit, Pid, ProcessHost
from tests.support import work
from tests.support.hosts import event_of, on_every_host, on_hosts_elsewhere, on_os_host


@on_every_host
async def test_a_spawned_process_gives_its_value_to_its_monitor(host: str) -> None:
    pid = process.spawn_monitored(work.double, 21, host=host)

    ended = await event_of(Exit)

    assert (ended.sender, ended.result.value, ended.result.error) == (pid, 42, None)
    assert not process.alive(pid)


@on_every_host
async def test_a_pid_is_there_at_once_and_alive(host: str) -> None:
    pid = process.spawn(work.wait_for_ever, host=host)
    assert isinstance(pid, Pid)
    assert process.alive(pid)
    process.kill(pid)


@on_os_host
async def test_an_os_host_runs_processes_in_other_os_processes(host: str) -> None:
    process.spawn_monitored(work.where, host=host)
    there = (await event_of(Exit)).result.value[0]
    assert there != os.getpid()


@on_hosts_elsewhere
async def test_processes_are_spread_over_the_workers(host: str) -> None:
    for _ in range(2):
        process.spawn_monitored(work.where, host=host)
    places = {(await event_of(Exit)).result.value for _ in range(2)}
    assert len(places) == 2


@on_every_host
async def test_wrong_arguments_are_refused_at_the_spawn(host: str) -> None:
    with pytest.raises(SpawnError, match="double"):
        process.spawn(work.double, 1, 2, 3, host=host)


@on_os_host
async def test_a_lambda_or_a_local_function_is_refused_with_advice(host: str) -> None:
    async def local() -> None: ...

    with pytest.raises(SpawnError, match="functions and classes of a module"):
        process.spawn(local, host=host)


@on_every_host
async def test_a_name_given_at_birth_is_known_before_the_spawn_returns(host: str) -> None:
    name = f"born-{host}"
    pid = process.spawn_monitored(work.until_told, host=host, name=name)
    assert process.whereis(name) is pid
    with pytest.raises(NameTaken):
        process.spawn(work.wait_for_ever, host=host, name=name)
    process.send(name, "end", "bye")
    assert (await event_of(Exit)).result.value == "bye"
    assert process.whereis(name) is None


@on_every_host
async def test_context_values_reach_the_child(host: str) -> None:
    process.spawner(host=host).with_context({"tenant": "acme"}).spawn_monitored(work.see_context)
    assert (await event_of(Exit)).result.value["tenant"] == "acme"


@on_every_host
async def test_a_message_of_the_spawner_is_there_at_birth(host: str) -> None:
    process.spawner(host=host).with_message("hello", "early").spawn_monitored(work.until_told)
    assert (await event_of(Exit)).result.value == "early"


@on_hosts_elsewhere
async def test_a_worker_starts_processes_beside_itself(host: str) -> None:
    parent = process.spawn(work.spawn_here, process.self_pid(), host=host)
    child = (await process.inbox().receive()).payload
    process.monitor(child)
    process.kill(child)
    assert (await event_of(Exit)).sender is child
    process.kill(parent)


@on_hosts_elsewhere
async def test_a_worker_starts_processes_on_any_host(host: str) -> None:
    for target in ("threads-host", "os-host"):
        process.spawn_monitored(work.spawn_on, target, 21, host=host)
        ended = await event_of(Exit)
        assert ended.result.value == 42, ended


@on_every_host
async def test_an_unknown_host_is_refused(host: str) -> None:
    with pytest.raises(SpawnError, match="unknown host 'nowhere'"):
        process.spawn(work.wait_for_ever, host="nowhere")
    assert host


@on_hosts_elsewhere
async def test_what_a_worker_sends_to_a_process_that_it_starts_arrives_in_order(host: str) -> None:
    for target in (host, "threads-host", "os-host"):
        for _ in range(10):
            process.spawn_monitored(work.spawn_and_send, target, 300, host=host)
            assert (await event_of(Exit)).result.value == list(range(300))


@on_hosts_elsewhere
async def test_a_worker_may_start_processes_on_itself(host: str) -> None:
    kind = "os" if host.startswith("os") else "threads"
    async with ProcessHost("single", kind=kind, workers=1):
        process.spawn_monitored(work.spawn_on, "single", 21, host="single")
        assert (await event_of(Exit)).result.value == 42
        process.spawn_monitored(work.task_on, "single", 21, host="single")
        assert (await event_of(Exit)).result.value == 42
        process.spawn_monitored(work.die_with_linked_on, "single", host="single")
        error = (await event_of(Exit)).result.error
        assert isinstance(error, LinkedProcessDown)
        assert isinstance(error.reason, ValueError)
        process.spawn_monitored(work.unpickled_on, "single", host="single")
        assert "not here" in str((await event_of(Exit)).result.value)
