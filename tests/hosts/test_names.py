"""Names are those of the whole program, on whichever host."""

import select

import pytest

from perdure import process
from perdure.errors import NameTaken
from perdure.process import Exit, ProcessHost
from tests.support import work
from tests.support.hosts import event_of, on_every_host, on_os_host


@on_every_host
async def test_a_name_taken_by_a_worker_is_known_at_home(host: str) -> None:
    name = f"taken-{host}"
    pid = process.spawn_monitored(work.take_name, name, process.self_pid(), host=host)
    assert (await process.inbox().receive()).payload is True
    assert process.whereis(name) is pid
    with pytest.raises(NameTaken) as raised:
        process.register(name)
    assert raised.value.pid is pid
    process.send(name, "end")
    await event_of(Exit)
    assert process.whereis(name) is None


@on_every_host
async def test_a_worker_cannot_take_a_name_that_is_held(host: str) -> None:
    name = f"held-{host}"
    process.register(name)
    process.spawn_monitored(work.take_name, name, process.self_pid(), host=host)
    error = (await event_of(Exit)).result.error
    assert isinstance(error, NameTaken)
    assert error.pid is process.self_pid()
    process.unregister(name)


@on_every_host
async def test_who_hears_of_a_death_finds_the_name_free(host: str) -> None:
    name = f"free-{host}"
    for _ in range(20):
        pid = process.spawn_monitored(work.take_name, name, process.self_pid(), host=host)
        await process.inbox().receive()
        process.kill(pid)
        await event_of(Exit)
        assert process.whereis(name) is None


@on_every_host
async def test_a_worker_sends_by_name(host: str) -> None:
    name = f"by-name-{host}"
    process.register(name)
    process.spawn_monitored(work.send_by_name, name, 7, host=host)
    assert (await event_of(Exit)).result.value is True
    assert (await process.inbox().receive()).payload == 7
    process.unregister(name)


@on_every_host
async def test_a_name_is_freed_by_another(host: str) -> None:
    name = f"freed-{host}"
    pid = process.spawn(work.take_name, name, process.self_pid(), host=host)
    await process.inbox().receive()
    assert process.unregister(name) is True
    assert process.unregister(name) is False
    process.register(name)
    process.unregister(name)
    process.kill(pid)


@on_every_host
async def test_a_name_goes_from_process_to_process_of_a_worker(host: str) -> None:
    name = f"handed-on-{host}"
    process.spawn_monitored(work.hand_a_name_on, name, 20, host=host)
    assert (await event_of(Exit)).result.value == 20
    assert process.whereis(name) is None


@on_os_host
async def test_a_name_is_not_known_on_a_worker_before_the_process_that_has_it(host: str) -> None:
    async with ProcessHost("single", kind="os", workers=1):
        watcher = process.spawn(work.watch_name, "newborn", process.self_pid(), host="single")
        await process.inbox().receive()
        for _ in range(4095):  # a frame, but for one signal
            process.send(watcher, "look")
        newborn = process.spawn(work.until_told, name="newborn", host="single")
        # Without the loop, what is not in the frame stays here until the worker has answered.
        select.select([newborn.target.wire._sock], [], [], 0.3)  # noqa: SLF001
        process.send(watcher, "look")
        await process.inbox().receive()  # it watches
        process.send(newborn, "end", "heard")
        assert (await process.inbox().receive()).payload == [newborn, "heard"]
    assert host


@on_os_host
async def test_a_worker_may_free_a_name_that_its_process_was_given_by_another(host: str) -> None:
    pid = process.spawn(work.free_when_told, process.self_pid(), host=host)
    await process.inbox().receive()
    process.register("given", pid)
    process.send(pid, "free", "given")
    assert (await process.inbox().receive()).payload is True
    assert process.whereis("given") is None
    assert process.whereis("own") is pid
    process.kill(pid)
