import asyncio
import functools
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import pytest

from perdure import process
from perdure.errors import CallExit, Killed, LinkedProcessDown, NameTaken
from perdure.process import Exit, LinkDown
from perdure.testing import simulated
from tests.support.processes import (
    crash,
    end_of,
    exit_of,
    give,
    link_down_of,
    living,
    others_rest,
    wait_forever,
    waiting_events,
)


@simulated
async def test_spawn_returns_before_the_process_has_run_a_line() -> None:
    lines: list[str] = []

    async def child() -> None:
        lines.append("ran")

    process.spawn(child)
    assert lines == []
    await others_rest()
    assert lines == ["ran"]


@simulated
async def test_a_process_is_alive_from_the_moment_spawn_returns() -> None:
    pid = process.spawn(give)
    assert process.alive(pid)
    assert pid in living()


@simulated
async def test_arguments_are_handed_over_in_order() -> None:
    async def child(*args: object) -> tuple[object, ...]:
        return args

    assert (await end_of(child, 1, "two", None)).value == (1, "two", None)


@simulated
async def test_a_missing_argument_takes_its_default() -> None:
    async def pool(worker_count: int = 4) -> int:
        return worker_count

    assert (await end_of(pool)).value == 4
    assert (await end_of(pool, 2)).value == 2


@simulated
async def test_an_argument_is_handed_over_as_it_is_and_not_copied() -> None:
    shared: list[int] = []
    assert (await end_of(give, shared)).value is shared


@simulated
async def test_plain_spawn_makes_neither_a_link_nor_a_monitor() -> None:
    process.spawn(crash)
    await others_rest()
    assert await waiting_events() == []


@simulated
async def test_a_monitored_child_that_ends_at_once_still_gives_its_exit() -> None:
    assert (await end_of(give, "at once")).value == "at once"
    assert isinstance((await end_of(crash)).error, ValueError)


@simulated
async def test_a_linked_child_that_fails_at_once_still_takes_its_parent_with_it() -> None:
    async def parent() -> None:
        process.spawn_linked(crash)
        await wait_forever()

    error = (await end_of(parent)).error
    assert isinstance(error, LinkedProcessDown)
    assert isinstance(error.root, ValueError)


@simulated
async def test_a_trapping_parent_is_told_of_a_linked_child_that_fails_at_once() -> None:
    process.set_options(trap_links=True)
    assert isinstance(await link_down_of(process.spawn_linked(crash)), ValueError)


@simulated
async def test_the_failure_of_a_parent_takes_its_linked_child_with_it() -> None:
    children: list[process.Pid] = []

    async def parent() -> None:
        children.append(process.spawn_linked(wait_forever))
        await crash()

    await end_of(parent)
    await others_rest()
    assert not process.alive(children[0])


@simulated
async def test_a_linked_and_monitored_child_gives_both_notices_once() -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked_monitored(crash)
    await others_rest()
    events = await waiting_events()
    assert [type(event) for event in events] == [Exit, LinkDown]
    assert {event.sender for event in events} == {pid}


@simulated
async def test_a_linked_and_monitored_child_that_returns_gives_only_its_exit() -> None:
    process.set_options(trap_links=True)
    process.spawn_linked_monitored(give)
    await others_rest()
    assert [type(event) for event in await waiting_events()] == [Exit]


@simulated
async def test_the_parent_is_recorded_by_plain_spawn_too() -> None:
    pid = process.spawn(wait_forever)
    assert process.info(pid).parent is process.self_pid()


@simulated
async def test_the_death_of_the_parent_does_not_touch_a_child_without_a_link() -> None:
    children: list[process.Pid] = []

    async def parent() -> None:
        children.append(process.spawn(wait_forever))
        await crash()

    await end_of(parent)
    await others_rest()
    assert process.alive(children[0])


@simulated
async def test_a_task_inside_a_process_spawns_in_the_name_of_the_process() -> None:
    async def inner() -> process.Pid:
        return process.spawn(wait_forever)

    pid = await asyncio.create_task(inner())
    assert process.info(pid).parent is process.self_pid()


class Greeter:
    async def method(self, name: str) -> str:
        return f"hello {name}"

    async def __call__(self, name: str) -> str:
        return f"hello {name}"

    @staticmethod
    async def static(name: str) -> str:
        return f"hello {name}"


async def greet(greeting: str, name: str) -> str:
    return f"{greeting} {name}"


@pytest.mark.parametrize(
    "function",
    [Greeter().method, Greeter(), Greeter.static, functools.partial(greet, "hello")],
    ids=["method", "callable object", "static method", "partial"],
)
def test_whatever_makes_a_coroutine_can_be_spawned(function: Any) -> None:
    @simulated
    async def main() -> None:
        assert (await end_of(function, "you")).value == "hello you"

    main()


@simulated
async def test_the_host_of_the_running_loop_can_be_named() -> None:
    pid = process.spawn_monitored(give, 1, host="inline")
    assert (await exit_of(pid)).value == 1


# Context


async def seen() -> Mapping[str, Any]:
    return process.context()


async def grandchild_sees() -> Any:
    return (await end_of(seen)).value


@simulated
async def test_a_process_sees_the_context_that_it_was_spawned_with() -> None:
    pid = process.spawn_monitored(seen, context={"user": "kim"})
    assert (await exit_of(pid)).value == {"user": "kim"}


@simulated
async def test_context_is_inherited_through_plain_spawn() -> None:
    pid = process.spawn_monitored(grandchild_sees, context={"user": "kim"})
    assert (await exit_of(pid)).value == {"user": "kim"}


@simulated
async def test_a_childs_own_context_wins_over_the_inherited_one() -> None:
    async def parent() -> Any:
        pid = process.spawn_monitored(seen, context={"user": "lee"})
        return dict((await exit_of(pid)).value), dict(process.context())

    pid = process.spawn_monitored(parent, context={"user": "kim", "job": 7})
    assert (await exit_of(pid)).value == ({"user": "lee", "job": 7}, {"user": "kim", "job": 7})


@simulated
async def test_the_context_of_a_parent_does_not_change_by_what_a_child_gets() -> None:
    process.spawn(seen, context={"user": "kim"})
    assert process.context() == {}


@simulated
async def test_the_context_cannot_be_written() -> None:
    context: Any = process.context()
    with pytest.raises(TypeError):
        context["user"] = "kim"


@simulated
async def test_a_later_change_of_the_mapping_does_not_reach_the_process() -> None:
    values = {"user": "kim"}
    pid = process.spawn_monitored(seen, context=values)
    values["user"] = "lee"
    assert (await exit_of(pid)).value == {"user": "kim"}


@simulated
async def test_context_variables_set_in_a_child_do_not_reach_its_parent() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="parent's")

    async def child() -> str:
        inherited = variable.get()
        variable.set("child's")
        return inherited

    variable.set("set before")
    assert (await end_of(child)).value == "set before"
    assert variable.get() == "set before"


# run_process


@simulated
async def test_run_process_gives_the_value() -> None:
    assert await process.run_process(give, 42) == 42


@simulated
async def test_run_process_runs_a_process_of_its_own() -> None:
    async def child() -> process.Pid:
        return process.self_pid()

    assert await process.run_process(child) is not process.self_pid()


@simulated
async def test_run_process_raises_the_error_of_the_process() -> None:
    with pytest.raises(ValueError, match="boom"):
        await process.run_process(crash)


@simulated
async def test_run_process_of_a_killed_process_raises_an_ordinary_error() -> None:
    async def child() -> None:
        process.kill(process.self_pid())

    with pytest.raises(CallExit) as caught:
        await process.run_process(child)
    assert isinstance(caught.value.reason, Killed)


@simulated
async def test_run_process_leaves_no_event_behind() -> None:
    await process.run_process(give)
    assert await waiting_events() == []


@simulated
async def test_the_process_goes_on_when_the_caller_of_run_process_is_cancelled() -> None:
    finished: list[str] = []

    async def child() -> None:
        await process.sleep("1s")
        finished.append("child")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await process.run_process(child)
    await process.sleep("1s")
    assert finished == ["child"]


# Refused


@simulated
async def test_a_name_that_is_taken_refuses_the_birth_and_creates_nothing() -> None:
    holder = process.spawn(wait_forever, name="worker")
    before = living()
    with pytest.raises(NameTaken, match="worker") as caught:
        process.spawn_linked_monitored(crash, name="worker")
    assert caught.value.pid is holder
    await others_rest()
    assert living() == before
    assert await waiting_events() == []
