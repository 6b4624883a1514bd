"""Events and messages: their shapes, their kinds, and that nobody can change them."""

from typing import Any

import pytest

from perdure import process
from perdure.errors import Killed
from perdure.process import Cancel, Event, EventKind, Exit, ExitResult, LinkDown, Message
from perdure.testing import simulated
from tests.support.processes import crash, drain, give, others_rest, wait_forever


async def one_of_each() -> tuple[Exit, LinkDown, Cancel]:
    """Bring about an event of each kind."""
    process.set_options(trap_links=True)
    process.spawn_monitored(give, 7)
    await others_rest()
    process.spawn_linked(crash)
    await others_rest()
    process.cancel(process.self_pid(), "1h", "why")
    first, second, third = await drain(process.events())
    assert isinstance(first, Exit)
    assert isinstance(second, LinkDown)
    assert isinstance(third, Cancel)
    process.unmonitor(first.sender)
    return first, second, third


@simulated
async def test_the_three_kinds_mix_in_one_channel_in_the_order_of_arrival() -> None:
    kinds = [event.kind for event in await one_of_each()]
    assert kinds == [EventKind.EXIT, EventKind.LINK_DOWN, EventKind.CANCEL]


def test_the_kinds_are_the_three_texts_of_the_protocol() -> None:
    assert [str(kind) for kind in EventKind] == ["pid.exit", "pid.link.down", "pid.cancel"]
    assert (Exit.kind, LinkDown.kind, Cancel.kind) == tuple(EventKind)


@simulated
async def test_an_exit_has_a_sender_a_result_and_the_ref_of_its_monitor() -> None:
    pid = process.spawn(give, 7)
    ref = process.monitor(pid)
    assert await process.events().receive() == Exit(pid, ExitResult(7, None), ref)


@simulated
async def test_a_link_down_has_a_sender_and_always_an_error() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked(wait_forever)
    process.kill(pid)
    event = await process.events().receive()
    assert isinstance(event, LinkDown)
    assert event.sender is pid
    assert isinstance(event.error, Killed)


@simulated
async def test_a_cancel_has_a_sender_a_deadline_and_a_reason() -> None:
    *_, event = await one_of_each()
    assert event.sender is process.self_pid()
    assert event.deadline == pytest.approx(3600, abs=1)
    assert event.reason == "why"


@simulated
async def test_events_that_came_before_they_were_asked_for_are_kept() -> None:
    process.cancel(process.self_pid())
    process.spawn_monitored(give)
    await others_rest()
    assert [event.kind for event in await drain(process.events())] == ["pid.cancel", "pid.exit"]


def test_a_result_is_ok_if_it_has_no_error() -> None:
    assert ExitResult(None, None).ok
    assert ExitResult("text", None).ok
    assert not ExitResult(None, ValueError()).ok
    assert ExitResult() == ExitResult(None, None)


@simulated
async def test_a_process_that_returns_nothing_has_an_ok_result_without_a_value() -> None:
    process.spawn_monitored(give)
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert (event.result.ok, event.result.value, event.result.error) == (True, None, None)


@simulated
async def test_nobody_can_change_an_event_or_a_message() -> None:
    exit_, down, cancel = await one_of_each()
    message = Message("a", 1, None)
    things: list[tuple[Any, str]] = [
        (exit_, "sender"),
        (exit_, "kind"),
        (exit_.result, "value"),
        (down, "error"),
        (cancel, "deadline"),
        (message, "payload"),
        (message, "something_new"),
    ]
    for thing, field in things:
        with pytest.raises((AttributeError, TypeError)):
            setattr(thing, field, 1)


def tell(event: Event | Message) -> str:
    match event:
        case Exit(result=ExitResult(error=None, value=value)):
            return f"ended with {value}"
        case Exit(sender=_, result=result):
            return f"failed with {result.error}"
        case LinkDown(sender=_, error=error):
            return f"link down: {error}"
        case Cancel(reason=reason):
            return f"cancelled: {reason}"
        case Message("work", payload=job):
            return f"work on {job}"
        case Message(topic, payload, _):
            return f"{topic}: {payload}"


@simulated
async def test_events_and_messages_are_matched_by_class_and_field() -> None:
    said = [tell(event) for event in await one_of_each()]
    assert said == ["ended with 7", "link down: boom", "cancelled: why"]
    assert tell(Message("work", 1, None)) == "work on 1"
    assert tell(Message("play", 2, None)) == "play: 2"
    assert tell(
        Exit(process.self_pid(), ExitResult(None, ValueError("x")), process.MonitorRef())
    ) == ("failed with x")


def test_messages_with_the_same_content_are_equal() -> None:
    assert Message("a", [1], None) == Message("a", [1], None)
    assert Message("a", [1], None) != Message("b", [1], None)


@simulated
async def test_events_say_in_print_what_they_are() -> None:
    for event, name in zip(await one_of_each(), ("Exit", "LinkDown", "Cancel"), strict=True):
        assert repr(event).startswith(f"{name}(")
        assert str(event.sender) in repr(event)
