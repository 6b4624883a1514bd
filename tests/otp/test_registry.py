"""A registry with unique keys: names for processes, with values."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from perdure import process
from perdure.errors import Killed, NameTaken, NoProcess, NotOwner, NotRegistered, ProcError
from perdure.otp.address import Via
from perdure.otp.registry import Registry
from perdure.otp.start import Ack, start
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import Channel, sleep
from perdure.process.process import current
from perdure.testing import simulated
from tests.support.processes import crash, exit_of, give, others_rest, wait_forever


async def unique(**options: Any) -> Registry:
    return await Registry.start_link(keys="unique", name="names", **options)


async def enter_and_wait(key: Any, value: Any = None) -> None:
    Registry.register("names", key, value)
    await wait_forever()


async def server(ack: Ack) -> None:
    ack.ready(current())
    await wait_forever()


async def start_as(name: Via) -> process.Pid:
    child, _ = await start("server", server, name=name, link=False)
    return child.pid


@simulated
async def test_a_registered_process_is_found_by_its_key_with_its_value() -> None:
    registry = await unique()
    registry.register("me", {"colour": "red"})
    assert registry.lookup("me") == [(process.self_pid(), {"colour": "red"})]
    assert registry.whereis("me") is process.self_pid()


@simulated
async def test_an_unknown_key_has_no_entries() -> None:
    registry = await unique()
    assert registry.lookup("nobody") == []
    assert registry.whereis("nobody") is None
    assert registry.values("nobody") == []
    assert registry.match("nobody", bool) == []


@simulated
async def test_every_call_works_on_the_class_with_a_name_or_a_pid() -> None:
    registry = await unique()
    me = process.self_pid()
    Registry.register("names", "me", 1)
    assert Registry.lookup(registry.pid, "me") == [(me, 1)]
    assert Registry.update_value("names", "me", lambda n: n + 1) == (2, 1)
    assert Registry.keys("names", me) == ["me"]
    assert Registry.values("names", "me", me) == [2]
    assert Registry.match("names", "me", lambda n: n == 2) == [(me, 2)]
    assert Registry.select("names", lambda key, pid, value: value == 2) == [("me", me, 2)]
    async with Registry.lock("names", "me"):
        assert Registry.count("names") == 1
    Registry.put_meta("names", "m", 3)
    assert Registry.meta("names", "m") == 3
    Registry.unregister("names", "me")
    assert Registry.count(registry.pid) == 0
    await Registry.stop("names")
    assert process.whereis("names") is None


@simulated
async def test_a_key_of_another_process_is_taken() -> None:
    registry = await unique()
    holder = process.spawn(enter_and_wait, "k")
    await others_rest()
    with pytest.raises(NameTaken, match="'k'") as caught:
        registry.register("k")
    assert caught.value.pid is holder


@simulated
async def test_a_key_of_its_own_is_taken_too() -> None:
    registry = await unique()
    registry.register("k", 1)
    with pytest.raises(NameTaken) as caught:
        registry.register("k", 2)
    assert caught.value.pid is process.self_pid()
    assert registry.values("k") == [1]


@simulated
async def test_a_process_may_have_many_keys() -> None:
    registry = await unique()
    for key in ("a", "b", "c"):
        registry.register(key)
    registry.unregister("b")
    assert registry.keys() == ["a", "c"]
    assert registry.count() == 2


@simulated
async def test_keys_of_equal_value_but_different_type_are_different() -> None:
    registry = await unique()
    keys: list[Any] = [1, 1.0, True, (1,), (1.0,), (1, (True,)), (1, (1,)), frozenset({1})]
    for number, key in enumerate(keys):
        registry.register(key, number)
    assert [registry.values(key) for key in keys] == [[number] for number in range(len(keys))]
    registry.unregister(1.0)
    assert registry.lookup(1.0) == []
    assert registry.values(1) == [0]
    assert registry.values(True) == [2]
    assert [type(key) for key in registry.keys()[:2]] == [int, bool]


@simulated
async def test_a_key_that_cannot_be_hashed_is_refused() -> None:
    registry = await unique()
    with pytest.raises(TypeError, match="list"):
        registry.register(["a"])  # pyright: ignore[reportArgumentType]
    assert registry.count() == 0


@pytest.mark.parametrize("end", [give, crash])
def test_entries_vanish_before_the_exit_is_received(end: Callable[[], Any]) -> None:
    @simulated
    async def main() -> None:
        registry = await unique()

        async def child() -> None:
            registry.register("one")
            registry.register("two")
            await end()

        pid = process.spawn_monitored(child)
        await exit_of(pid)
        assert registry.count() == 0
        assert registry.keys(pid) == []
        registry.register("one")  # free for the successor at once
        assert registry.whereis("one") is process.self_pid()

    main()


@simulated
async def test_a_killed_process_leaves_no_entries() -> None:
    registry = await unique()
    pid = process.spawn_monitored(enter_and_wait, "k")
    await others_rest()
    process.kill(pid)
    await exit_of(pid)
    assert registry.lookup("k") == []


@simulated
async def test_to_unregister_removes_only_what_is_its_own() -> None:
    registry = await unique()
    holder = process.spawn(enter_and_wait, "k")
    await others_rest()
    registry.unregister("k")
    registry.unregister("unknown")
    assert registry.whereis("k") is holder


@simulated
async def test_a_key_that_was_given_up_is_not_taken_away_from_its_next_holder() -> None:
    registry = await unique()
    gate = Channel[None]()

    async def child() -> None:
        registry.register("k")
        registry.unregister("k")
        await gate.receive()

    pid = process.spawn_monitored(child)
    await others_rest()
    registry.register("k")
    await gate.send(None)
    await exit_of(pid)
    assert registry.whereis("k") is process.self_pid()


@simulated
async def test_update_value_gives_the_new_and_the_old() -> None:
    registry = await unique()
    registry.register("k", 1)
    assert registry.update_value("k", lambda value: value + 41) == (42, 1)
    assert registry.values("k") == [42]


@simulated
async def test_update_value_of_no_entry_or_of_another_process_is_refused() -> None:
    registry = await unique()
    with pytest.raises(NotRegistered, match="k"):
        registry.update_value("k", str)
    process.spawn(enter_and_wait, "k", 1)
    await others_rest()
    with pytest.raises(NotOwner):
        registry.update_value("k", str)
    assert [value for _, value in registry.lookup("k")] == [1]


@simulated
async def test_a_function_that_raises_leaves_the_value_as_it_was() -> None:
    registry = await unique()
    registry.register("k", 1)
    with pytest.raises(ZeroDivisionError):
        registry.update_value("k", lambda value: value / 0)
    assert registry.values("k") == [1]


@simulated
async def test_match_gives_the_entry_only_if_its_value_fits() -> None:
    registry = await unique()
    registry.register("k", 5)
    assert registry.match("k", lambda value: value > 4) == [(process.self_pid(), 5)]
    assert registry.match("k", lambda value: value > 5) == []


# Life of the registry itself


@simulated
async def test_the_name_of_a_registry_is_the_name_of_its_process() -> None:
    registry = await unique()
    assert process.whereis("names") is registry.pid
    with pytest.raises(NameTaken):
        await unique()


@simulated
async def test_a_registry_that_was_stopped_cannot_be_used() -> None:
    registry = await unique()
    registry.register("k")
    await registry.stop()
    assert not process.alive(registry.pid)
    with pytest.raises(NoProcess):
        registry.lookup("k")
    with pytest.raises(NotRegistered):
        Registry.lookup("names", "k")


@simulated
async def test_a_registry_dies_with_who_started_it_and_the_next_one_begins_empty() -> None:
    async def starter() -> None:
        registry = await unique()
        registry.register("k")
        process.fail("boom")

    await exit_of(process.spawn_monitored(starter))
    await others_rest()
    registry = await unique()
    assert registry.count() == 0


@simulated
async def test_the_death_of_a_member_that_outlived_the_registry_harms_nobody() -> None:
    registry = await unique()
    pid = process.spawn_monitored(enter_and_wait, "k")
    await others_rest()
    await registry.stop()
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)


@simulated
async def test_a_supervised_registry_comes_back_empty_and_is_stopped_in_order() -> None:
    async with Supervisor([Registry.child(keys="unique", name="names", meta={"m": 1})]):
        Registry.register("names", "k")
        process.kill("names")
        await others_rest()
        assert Registry.lookup("names", "k") == []
        assert Registry.meta("names", "m") == 1
    assert process.whereis("names") is None


@simulated
async def test_what_is_no_registry_is_refused() -> None:
    process.register("me")
    with pytest.raises(TypeError, match="not a registry"):
        Registry.lookup("me", "k")


@pytest.mark.parametrize(
    "options",
    [
        {"keys": "some", "name": "n"},
        {"keys": "unique", "name": ""},
        {"keys": "unique", "name": 7},
        {"keys": "unique", "name": "n", "listeners": "log"},
        {"keys": "unique", "name": "n", "listeners": [None]},
    ],
)
def test_bad_options_start_nothing(options: dict[str, Any]) -> None:
    @simulated
    async def main() -> None:
        with pytest.raises((ValueError, TypeError)):
            await Registry.start_link(**options)
        assert len(process.processes()) == 1

    main()


@simulated
async def test_a_registry_has_values_of_its_own() -> None:
    registry = await unique(meta={"colour": "red"})
    registry.put_meta(1, "int")
    registry.put_meta(1.0, "float")
    assert (registry.meta("colour"), registry.meta(1), registry.meta(1.0)) == (
        "red",
        "int",
        "float",
    )
    registry.delete_meta(1)
    assert registry.meta(1) is None
    assert registry.meta(1, "default") == "default"


# Names by via


@simulated
async def test_a_server_is_started_under_a_key() -> None:
    registry = await unique()
    name = registry.via(("room", 1), "value")
    pid = await start_as(name)
    assert name.pid is pid
    assert registry.lookup(("room", 1)) == [(pid, "value")]


@simulated
async def test_a_key_that_is_taken_starts_nothing() -> None:
    registry = await unique()
    first = await start_as(registry.via("room"))
    before = len(process.processes())
    with pytest.raises(NameTaken, match="room") as caught:
        await start_as(registry.via("room"))
    assert caught.value.pid is first
    assert len(process.processes()) == before


@simulated
async def test_a_key_without_a_process_leads_nowhere() -> None:
    registry = await unique()
    with pytest.raises(NotRegistered, match="names/room"):
        _ = registry.via("room").pid


@simulated
async def test_a_via_name_outlives_the_registry_it_was_made_of() -> None:
    name = Registry.via("names", "room")  # there is no such registry yet
    for _ in range(2):
        registry = await unique()
        pid = await start_as(name)
        assert name.pid is pid
        await registry.stop()


# Locks


@simulated
async def test_only_one_process_at_a_time_holds_the_lock_of_a_key() -> None:
    registry = await unique()
    seen: list[str] = []

    async def worker(who: str, key: str) -> None:
        async with registry.lock(key):
            seen.append(f"{who} in")
            await sleep(1)
            seen.append(f"{who} out")

    for who, key in (("a", "k"), ("b", "k"), ("c", "other")):
        process.spawn(worker, who, key)
    await sleep(5)
    assert seen[:2] == ["a in", "c in"]
    assert [event for event in seen if event[0] != "c"] == ["a in", "a out", "b in", "b out"]


@simulated
async def test_the_lock_of_a_killed_holder_is_free() -> None:
    registry = await unique()

    async def holder() -> None:
        async with registry.lock("k"):
            await wait_forever()

    pid = process.spawn(holder)
    await others_rest()
    process.kill(pid)
    async with registry.lock("k"):
        assert not process.alive(pid)


@simulated
async def test_the_lock_of_a_holder_that_refuses_to_die_is_free_when_it_is_abandoned() -> None:
    registry = await unique()

    async def holder() -> None:
        async with registry.lock("k"):
            while True:
                with suppress(asyncio.CancelledError):
                    await wait_forever()

    pid = process.spawn(holder)
    await others_rest()
    process.kill(pid)
    async with registry.lock("k"):
        assert not process.alive(pid)


@simulated
async def test_a_process_that_locks_a_thousand_times_leaves_one_hook() -> None:
    registry = await unique()
    before = len(process.self_pid().target.get_relations().cleanups or ())
    for number in range(1000):
        async with registry.lock(number % 2):
            pass
    assert len(process.self_pid().target.get_relations().cleanups) == before + 1


@simulated
async def test_who_is_killed_in_the_line_does_not_hold_up_the_next() -> None:
    registry = await unique()

    async def wait_for_it() -> str:
        async with registry.lock("k"):
            return "got it"

    async with registry.lock("k"):
        first = process.spawn(wait_for_it)
        second = process.spawn_monitored(wait_for_it)
        await others_rest()
        process.kill(first)
        await others_rest()
    assert (await exit_of(second)).value == "got it"


@simulated
async def test_a_lock_that_one_holds_already_is_refused_instead_of_waited_for() -> None:
    registry = await unique()
    async with registry.lock("k"):
        with pytest.raises(ProcError, match="already"):
            async with registry.lock("k"):
                pass
    async with registry.lock("k"):
        pass


@simulated
async def test_who_waits_for_a_lock_of_a_registry_that_dies_is_told() -> None:
    registry = await unique()

    async def wait_for_it() -> None:
        async with registry.lock("k"):
            pass

    async with registry.lock("k"):
        pid = process.spawn_monitored(wait_for_it)
        await others_rest()
        await registry.stop()
        assert isinstance((await exit_of(pid)).error, NoProcess)
