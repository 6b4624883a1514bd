from typing import Any

import pytest

from perdure import Settings, process
from perdure.errors import NotInProcess, SpawnError
from perdure.process import Message, Spawner
from perdure.testing import simulated
from tests.support.processes import (
    crash,
    exit_of,
    give,
    link_down_of,
    living,
    others_rest,
    wait_forever,
    waiting_events,
)


async def seen() -> dict[str, Any]:
    return dict(process.context())


async def read(count: int) -> list[Message]:
    return [await process.inbox().receive() for _ in range(count)]


async def context_of(builder: Spawner) -> dict[str, Any]:
    return (await exit_of(builder.spawn_monitored(seen))).value


# Immutable


@simulated
async def test_adding_context_leaves_the_old_builder_as_it_was() -> None:
    old = process.spawner(context={"a": 1})
    new = old.with_context({"b": 2})
    assert await context_of(old) == {"a": 1}
    assert await context_of(new) == {"a": 1, "b": 2}


@simulated
async def test_the_later_value_of_a_context_key_wins() -> None:
    builder = (
        process.spawner(context={"a": 1, "b": 1}).with_context({"a": 2}).with_context({"a": 3})
    )
    assert await context_of(builder) == {"a": 3, "b": 1}


@simulated
async def test_adding_a_name_leaves_the_old_builder_as_it_was() -> None:
    old = process.spawner()
    named = old.with_name("worker").spawn(wait_forever)
    unnamed = old.spawn(wait_forever)
    assert process.info(named).names == ("worker",)
    assert process.info(unnamed).names == ()


@simulated
async def test_adding_a_message_leaves_the_old_builder_as_it_was() -> None:
    old = process.spawner().with_message("a")
    old.with_message("b")
    assert process.info(old.spawn(wait_forever)).mailbox == 1


@simulated
async def test_a_builder_does_not_change_with_the_mapping_that_it_was_made_of() -> None:
    values = {"a": 1}
    built, added = process.spawner(context=values), process.spawner().with_context(values)
    values["a"] = 2
    assert await context_of(built) == {"a": 1}
    assert await context_of(added) == {"a": 1}


@simulated
async def test_a_builder_spawns_as_often_as_it_is_asked() -> None:
    builder = process.spawner(context={"a": 1})
    pids = [builder.spawn(wait_forever) for _ in range(3)]
    assert len(set(pids)) == 3
    assert [await context_of(builder) for _ in range(3)] == [{"a": 1}] * 3


# Spawn or signal


@simulated
async def test_a_free_name_is_held_from_birth() -> None:
    pid = process.spawner().with_name("worker").spawn(wait_forever)
    assert process.whereis("worker") is pid


@simulated
async def test_a_held_name_starts_nothing_and_gives_the_holder() -> None:
    holder = process.spawn(wait_forever, name="worker")
    before = living()
    assert process.spawner().with_name("worker").spawn(crash) is holder
    assert process.spawner(name="worker").spawn(crash) is holder
    await others_rest()
    assert living() == before


@simulated
async def test_the_messages_for_a_held_name_go_to_its_holder() -> None:
    holder = process.spawn_monitored(read, 2)
    process.register("reader", holder)
    builder = process.spawner().with_name("reader")
    builder.with_message("first", 1).with_message("second", 2).spawn(crash)
    messages: list[Message] = (await exit_of(holder)).value
    assert [(message.topic, message.payload) for message in messages] == [
        ("first", 1),
        ("second", 2),
    ]


@simulated
async def test_the_name_of_a_dead_process_starts_a_new_one() -> None:
    builder = process.spawner().with_name("worker")
    first = builder.spawn_monitored(give)
    await exit_of(first)
    second = builder.spawn(wait_forever)
    assert second is not first
    assert process.whereis("worker") is second


@simulated
async def test_the_holder_of_the_name_is_linked_and_monitored_as_a_new_process_would_be() -> None:
    process.set_options(trap_links=True)
    holder = process.spawn(wait_forever, name="worker")
    process.spawner().with_name("worker").spawn_linked_monitored(crash)
    process.exit(ValueError("now"), holder)
    assert isinstance((await exit_of(holder)).error, ValueError)
    assert isinstance(await link_down_of(holder), ValueError)


# Messages at birth


@simulated
async def test_queued_messages_come_first_and_in_order() -> None:
    pid = process.spawner().with_message("a").with_message("b").spawn_monitored(read, 3)
    process.send(pid, "c")
    messages: list[Message] = (await exit_of(pid)).value
    assert [message.topic for message in messages] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("payload", "received"), [((), None), ((1,), 1), ((1, 2), [1, 2]), ((None,), None)]
)
def test_a_queued_payload_has_the_shape_that_send_gives_it(
    payload: tuple[object, ...], received: object
) -> None:
    @simulated
    async def main() -> None:
        pid = process.spawner().with_message("topic", *payload).spawn_monitored(read, 1)
        [message] = (await exit_of(pid)).value
        assert message == Message("topic", received, process.self_pid())

    main()


@simulated
async def test_the_four_ways_of_starting_are_there() -> None:
    process.set_options(trap_links=True)
    builder = process.spawner()
    plain, linked = builder.spawn(wait_forever), builder.spawn_linked(wait_forever)
    monitored, both = (
        builder.spawn_monitored(wait_forever),
        builder.spawn_linked_monitored(wait_forever),
    )
    me = process.info(process.self_pid())
    assert me.links == {linked, both}
    assert me.monitors == (monitored, both)
    assert process.alive(plain)


@simulated
async def test_a_host_can_be_given() -> None:
    pid = process.spawner().with_host("inline").spawn_monitored(give, 1)
    assert (await exit_of(pid)).value == 1


# Refused


@pytest.mark.parametrize("topic", ["@exit", "@", ""])
def test_a_topic_that_is_not_the_users_is_refused_at_once(topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        process.spawner().with_message(topic)


def test_an_empty_name_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        process.spawner().with_name("")
    with pytest.raises(ValueError, match="name must not be empty"):
        process.spawner(name="")


@simulated
async def test_an_unknown_host_is_refused_and_creates_nothing() -> None:
    before = living()
    builder = process.spawner().with_host("nowhere").with_name("worker").with_message("a")
    with pytest.raises(SpawnError, match="nowhere"):
        builder.spawn_linked_monitored(give)
    assert living() == before
    assert process.whereis("worker") is None
    assert await waiting_events() == []


def test_a_builder_made_outside_of_a_runtime_says_what_to_do_when_it_spawns() -> None:
    builder = process.spawner().with_name("worker")
    with pytest.raises(NotInProcess, match=r"perdure\.run\(main\)"):
        builder.spawn(give)


@simulated(settings=Settings(mailbox_limit=1))
async def test_messages_that_do_not_fit_into_the_new_mailbox_leave_no_process_behind() -> None:
    before = living()
    builder = process.spawner().with_name("worker").with_message("a").with_message("b")
    with pytest.raises(SpawnError, match="2 messages"):
        builder.spawn(wait_forever)
    await others_rest()
    assert living() == before
    assert process.whereis("worker") is None
