"""Who wants to know of entries listens to the registry."""

from typing import Any, Literal

import pytest

from perdure import process
from perdure.otp.registry import Registry
from perdure.otp.start import Ack, start
from perdure.process import Message, select
from perdure.process.process import current
from perdure.testing import simulated
from tests.support.processes import exit_of, others_rest, wait_forever


async def listened_to(
    keys: Literal["unique", "duplicate"] = "unique", listeners: tuple[str, ...] = ("log",)
) -> Registry:
    process.register("log")
    return await Registry.start_link(keys=keys, name="names", listeners=listeners)


async def heard() -> list[tuple[str, Any]]:
    """Take the messages that are there now."""
    messages: list[tuple[str, Any]] = []
    while not (selected := await select(process.inbox(), default=True)).default:
        messages.append((selected.value.topic, selected.value.payload))
    return messages


@simulated
async def test_a_listener_gets_a_message_for_each_register_and_unregister() -> None:
    registry = await listened_to()
    me = process.self_pid()
    registry.register("k", "value")
    registry.unregister("k")
    assert await process.inbox().receive() == Message("register", ["names", "k", me, "value"], me)
    assert await process.inbox().receive() == Message("unregister", ["names", "k", me], me)


@simulated
async def test_of_duplicate_entries_each_is_told() -> None:
    registry = await listened_to("duplicate")
    me = process.self_pid()
    registry.register("k", 1)
    registry.register("k", 2)
    registry.unregister("k")
    assert await heard() == [
        ("register", ["names", "k", me, 1]),
        ("register", ["names", "k", me, 2]),
        ("unregister", ["names", "k", me]),
        ("unregister", ["names", "k", me]),
    ]


@simulated
async def test_what_changes_nothing_is_not_told() -> None:
    registry = await listened_to()
    registry.unregister("k")
    registry.register("k", 1)
    await heard()
    with pytest.raises(Exception, match="taken"):
        registry.register("k", 2)
    registry.update_value("k", str)
    registry.lookup("k")
    assert await heard() == []


@simulated
async def test_a_death_is_not_told_to_listeners_who_can_monitor() -> None:
    registry = await listened_to()

    async def child() -> None:
        registry.register("k")
        await wait_forever()

    pid = process.spawn_monitored(child)
    await others_rest()
    process.kill(pid)
    await exit_of(pid)
    assert await heard() == [("register", ["names", "k", pid, None])]


@simulated
async def test_a_name_given_by_via_is_told_with_its_process() -> None:
    registry = await listened_to()

    async def server(ack: Ack) -> None:
        ack.ready(current())
        await wait_forever()

    child, _ = await start("server", server, name=registry.via("k", 7), link=False)
    assert await heard() == [("register", ["names", "k", child.pid, 7])]


@simulated
async def test_all_listeners_are_told() -> None:
    process.register("second")
    registry = await listened_to(listeners=("log", "second"))
    registry.register("k")
    assert [topic for topic, _ in await heard()] == ["register", "register"]


@simulated
async def test_a_listener_that_is_not_there_holds_up_nobody() -> None:
    registry = await listened_to(listeners=("nobody", "log"))
    registry.register("k")
    assert [topic for topic, _ in await heard()] == ["register"]


@simulated
async def test_a_listener_whose_mailbox_is_full_holds_up_nobody() -> None:
    registry = await listened_to()
    process.set_options(mailbox_limit=1)
    registry.register("a")
    registry.register("b")
    assert registry.keys() == ["a", "b"]
    assert len(await heard()) == 1
