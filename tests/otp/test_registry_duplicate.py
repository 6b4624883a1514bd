"""A registry with duplicate keys: publish and subscribe."""

from typing import Any

import pytest

from perdure import process
from perdure.otp.registry import Registry
from perdure.testing import simulate, simulated
from tests.support.processes import exit_of, others_rest, wait_forever


async def duplicate() -> Registry:
    return await Registry.start_link(keys="duplicate", name="topics")


async def subscribe(topic: Any, value: Any = None) -> None:
    Registry.register("topics", topic, value)
    await wait_forever()


@simulated
async def test_many_processes_may_have_one_key() -> None:
    registry = await duplicate()
    pids = [process.spawn(subscribe, "news", number) for number in range(3)]
    await others_rest()
    assert registry.lookup("news") == list(zip(pids, range(3), strict=True))
    assert registry.count() == 3


@simulated
async def test_one_process_may_have_a_key_many_times() -> None:
    registry = await duplicate()
    registry.register("news", 1)
    registry.register("news", 1)
    registry.register("news", 2)
    assert registry.values("news") == [1, 1, 2]
    assert registry.keys() == ["news", "news", "news"]
    registry.unregister("news")
    assert registry.count() == 0


@simulated
async def test_to_unregister_leaves_the_entries_of_others() -> None:
    registry = await duplicate()
    other = process.spawn(subscribe, "news")
    await others_rest()
    registry.register("news")
    registry.unregister("news")
    assert [pid for pid, _ in registry.lookup("news")] == [other]


@simulated
async def test_entries_can_be_removed_by_their_values() -> None:
    registry = await duplicate()
    for number in range(4):
        registry.register("news", number)
    registry.unregister_match("news", lambda number: number % 2 == 0)
    assert registry.values("news") == [1, 3]


@simulated
async def test_match_and_select_look_at_values() -> None:
    registry = await duplicate()
    me = process.self_pid()
    for topic, size in (("a", 1), ("a", 2), ("b", 3)):
        registry.register(topic, size)
    assert registry.match("a", lambda size: size > 1) == [(me, 2)]
    assert registry.select(lambda topic, _pid, size: size != 2) == [("a", me, 1), ("b", me, 3)]


@simulated
async def test_the_values_of_one_process_under_a_key() -> None:
    registry = await duplicate()
    other = process.spawn(subscribe, "news", "theirs")
    await others_rest()
    registry.register("news", "mine")
    assert registry.values("news") == ["mine"]
    assert registry.values("news", other) == ["theirs"]


@simulated
async def test_dispatch_calls_the_function_once_with_all_entries() -> None:
    registry = await duplicate()
    pids = [process.spawn(subscribe, "news", number) for number in range(2)]
    await others_rest()
    calls: list[list[Any]] = []
    registry.dispatch("news", calls.append)
    assert calls == [list(zip(pids, range(2), strict=True))]


@simulated
async def test_dispatch_without_entries_calls_nothing() -> None:
    registry = await duplicate()
    calls: list[Any] = []
    registry.dispatch("news", calls.append)
    assert calls == []


@simulated
async def test_an_error_in_the_function_of_dispatch_goes_to_the_caller() -> None:
    registry = await duplicate()
    registry.register("news")
    with pytest.raises(ZeroDivisionError):
        registry.dispatch("news", lambda entries: 1 / 0)
    assert process.alive(registry.pid)


@simulated
async def test_dispatch_refuses_an_async_function_which_it_would_not_await() -> None:
    registry = await duplicate()

    async def publish(entries: object) -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        registry.dispatch("news", publish)


@simulated
async def test_publish_and_subscribe() -> None:
    registry = await duplicate()
    registry.register("news")

    def publish(entries: list[Any]) -> None:
        for pid, _ in entries:
            process.send(pid, "news", "it rains")

    registry.dispatch("news", publish)
    assert (await process.inbox().receive()).payload == "it rains"


@simulated
async def test_a_subscriber_may_leave_while_the_others_are_told() -> None:
    registry = await duplicate()
    for number in range(3):
        registry.register("news", number)
    registry.dispatch("news", lambda entries: registry.unregister("news"))
    assert registry.count() == 0


@simulated
async def test_a_dead_subscriber_is_told_nothing_more() -> None:
    registry = await duplicate()
    first = process.spawn_monitored(subscribe, "news")
    second = process.spawn(subscribe, "news")
    await others_rest()
    process.kill(first)
    await exit_of(first)
    assert [pid for pid, _ in registry.lookup("news")] == [second]


@simulated
async def test_strict_keys_hold_for_duplicates_too() -> None:
    registry = await duplicate()
    registry.register(1, "int")
    registry.register(True, "bool")
    registry.register(1.0, "float")
    assert (registry.values(1), registry.values(True), registry.values(1.0)) == (
        ["int"],
        ["bool"],
        ["float"],
    )


@simulated
async def test_what_needs_unique_keys_is_refused() -> None:
    registry = await duplicate()
    registry.register("k", 1)
    with pytest.raises(ValueError, match="unique"):
        registry.update_value("k", str)
    with pytest.raises(ValueError, match="unique"):
        registry.via("k")
    with pytest.raises(ValueError, match="unique"):
        registry.whereis("k")
    assert registry.values("k") == [1]


@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_of_deaths_the_registry_holds_exactly_the_living(seed: int) -> None:
    async def main() -> None:
        registry = await duplicate()
        pids = [process.spawn_monitored(subscribe, number % 3) for number in range(30)]
        await others_rest()
        for pid in pids[::2]:
            process.kill(pid)
        for _ in pids[::2]:
            await process.events().receive()
        left = {pid for key in range(3) for pid, _ in registry.lookup(key)}
        assert left == set(pids[1::2])
        assert registry.count() == 15

    simulate(main, seed=seed)
