import asyncio
import contextlib
from typing import Any

import pytest

from perdure import Settings, process
from perdure.errors import Killed, LinkedProcessDown, NotInProcess
from perdure.process import Cancel, LinkDown, Runtime, sleep
from perdure.testing import VirtualLoop
from tests.support.processes import Function, crash, end_of, give, records, wait_forever


def drive(main: Any) -> Any:
    """Run a plain asyncio program in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


async def in_a_runtime(body: Function, settings: Settings | None = None) -> None:
    """Run a body as the root process of a runtime."""
    async with Runtime(settings):
        await body()


# Adoption


async def test_the_running_task_becomes_the_root_process() -> None:
    async with Runtime():
        me = process.self_pid()
        assert process.alive(me)
        assert process.context() == {}
        assert [info.pid for info in process.processes()] == [me]
        process.send(me, "topic", 1)
        assert (await process.inbox().receive()).payload == 1


async def test_the_root_monitors_and_gets_events() -> None:
    async with Runtime():
        assert (await end_of(give, 42)).value == 42


async def test_the_root_can_trap_links() -> None:
    async with Runtime():
        process.set_options(trap_links=True)
        process.spawn_linked(crash)
        assert isinstance(await process.events().receive(), LinkDown)


async def test_the_verbs_work_only_inside() -> None:
    async with Runtime():
        pid = process.self_pid()
    with pytest.raises(NotInProcess):
        process.self_pid()
    assert not process.alive(pid)


async def test_a_task_made_before_does_not_belong_to_the_process() -> None:
    begun = asyncio.Event()

    async def outside() -> None:
        await begun.wait()
        with pytest.raises(NotInProcess):
            process.self_pid()

    task = asyncio.create_task(outside())
    async with Runtime():
        begun.set()
        await task


async def test_a_runtime_inside_of_a_process_is_refused() -> None:
    async with Runtime():
        with pytest.raises(RuntimeError, match="already runs in a process"):
            async with Runtime():
                pass
        assert (await end_of(give, 1)).value == 1


# The end


def test_what_the_body_leaves_gets_a_cancel_and_then_is_killed() -> None:
    ends: list[tuple[str, float]] = []

    async def polite() -> None:
        assert isinstance(await process.events().receive(), Cancel)
        ends.append(("polite", asyncio.get_running_loop().time()))

    async def ignoring() -> None:
        process.events()
        try:
            await wait_forever()
        finally:
            ends.append(("ignoring", asyncio.get_running_loop().time()))

    async def main() -> None:
        async with Runtime(Settings(stop_timeout="2s")):
            process.spawn(polite)
            process.spawn(ignoring)
            await sleep("1s")

    drive(main)
    assert ends == [("polite", 1.0), ("ignoring", 3.0)]


async def test_tasks_started_in_the_body_are_stopped_with_it() -> None:
    async with Runtime():
        task = asyncio.create_task(wait_forever())
        await asyncio.sleep(0)
    assert task.cancelled()


async def test_an_error_of_the_body_goes_through_unchanged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ValueError("boom")
    with pytest.raises(ValueError, match="boom") as caught:
        async with Runtime():
            raise error
    assert caught.value is error
    assert records(caplog) == []


async def test_an_error_of_the_body_ends_the_processes_linked_to_it() -> None:
    reasons: list[BaseException | None] = []

    async def watcher(victim: process.Pid) -> None:
        process.monitor(victim)
        async for event in process.events():  # the runtime's own CANCEL comes too
            if isinstance(event, process.Exit):
                reasons.append(event.result.error)
                return

    async def body() -> None:
        process.spawn(watcher, process.spawn_linked(wait_forever))
        await asyncio.sleep(0)
        await crash()

    with pytest.raises(ValueError, match="boom"):
        await in_a_runtime(body)
    assert isinstance(reasons[0], LinkedProcessDown)


async def test_an_exit_without_a_reason_ends_the_body_and_raises_nothing() -> None:
    steps: list[str] = []
    async with Runtime():
        steps.append("before")
        process.exit()
        steps.append("not reached")
    await asyncio.sleep(0)  # nor does a cancellation come later
    assert steps == ["before"]


def test_what_an_exit_leaves_still_has_time_to_clean_up() -> None:
    cleaned: list[str] = []

    async def polite() -> None:
        await process.events().receive()
        await sleep("1s")
        cleaned.append("polite")

    async def body() -> None:
        process.spawn(polite)
        await sleep("1s")
        process.exit(ValueError("reason"))

    async def main() -> None:
        with pytest.raises(ValueError, match="reason"):
            await in_a_runtime(body)
        await asyncio.sleep(0)  # nor does a cancellation come later

    drive(main)
    assert cleaned == ["polite"]


# A linked failure


async def fail_by_link() -> None:
    process.spawn_linked(crash, "child")
    await wait_forever()


async def test_a_linked_failure_cancels_the_body_and_is_raised_at_its_end() -> None:
    steps: list[str] = []

    async def body() -> None:
        try:
            await fail_by_link()
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    with pytest.raises(LinkedProcessDown) as caught:
        await in_a_runtime(body)
    assert steps == ["cancelled"]
    assert str(caught.value.root) == "child"


async def test_the_task_is_not_cancelled_after_a_linked_failure() -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(LinkedProcessDown):
        await in_a_runtime(fail_by_link)
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_body_that_swallows_the_cancellation_does_not_hide_the_failure() -> None:
    async def body() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await fail_by_link()

    with pytest.raises(LinkedProcessDown):
        await in_a_runtime(body)


async def test_an_error_in_the_cleanup_of_the_body_is_kept_as_context() -> None:
    async def body() -> None:
        try:
            await fail_by_link()
        finally:
            raise KeyError("cleanup")

    with pytest.raises(LinkedProcessDown) as caught:
        await in_a_runtime(body)
    assert isinstance(caught.value.__context__, KeyError)


async def kill(victim: process.Pid) -> None:
    process.kill(victim)


async def test_a_killed_body_raises_killed() -> None:
    async def body() -> None:
        process.spawn(kill, process.self_pid())
        await wait_forever()

    with pytest.raises(Killed):
        await in_a_runtime(body)


def test_a_body_that_refuses_its_kill_for_long_still_ends_in_order() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        process.spawn(kill, process.self_pid())
        while loop.time() < 2:
            with contextlib.suppress(asyncio.CancelledError):
                await sleep("500ms")

    async def main() -> None:
        with pytest.raises(Killed):
            await in_a_runtime(body, Settings(abandon_after="1s"))
        assert asyncio.get_running_loop().get_task_factory() is None

    drive(main)


# Cancellation from outside


async def test_a_cancellation_from_outside_goes_through() -> None:
    async def body() -> None:
        async with Runtime():
            await wait_forever()

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_time_limit_around_the_runtime_works() -> None:
    async def main() -> None:
        async with asyncio.timeout(1):
            await in_a_runtime(wait_forever)

    with pytest.raises(TimeoutError):
        drive(main)


async def test_a_cancellation_from_outside_is_kept_beside_a_linked_failure() -> None:
    inside = asyncio.Event()

    async def fail_when_told() -> None:
        await process.inbox().receive()
        await crash()

    async def body() -> None:
        async with Runtime():
            child = process.spawn_linked(fail_when_told)
            process.send(child, "fail")
            inside.set()
            await wait_forever()

    task = asyncio.create_task(body())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_second_cancellation_from_outside_ends_the_patience_with_what_is_left() -> None:
    async def ignoring() -> None:
        process.events()
        await wait_forever()

    async def body() -> None:
        async with Runtime(Settings(stop_timeout="1h")):
            process.spawn(ignoring)
            await wait_forever()

    async def main() -> float:
        task = asyncio.create_task(body())
        for _ in range(2):
            await sleep("1s")
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time()

    assert drive(main) < 10


# The loop


async def test_the_loop_is_left_as_it_was() -> None:
    loop = asyncio.get_running_loop()
    before = (loop.get_task_factory(), loop.get_debug(), asyncio.all_tasks())
    async with Runtime():
        process.spawn(wait_forever)
        await end_of(give)
    assert (loop.get_task_factory(), loop.get_debug(), asyncio.all_tasks()) == before


async def test_a_task_factory_of_the_user_goes_on_to_make_the_tasks() -> None:
    made: list[asyncio.Task[Any]] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(asyncio.Task(coro, loop=loop, **options))
        return made[-1]

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        async with Runtime():
            inside = asyncio.create_task(wait_forever())
            await asyncio.sleep(0)
        assert made == [inside]
        assert inside.cancelled()
        assert loop.get_task_factory() is factory
    finally:
        loop.set_task_factory(None)


async def test_the_loop_is_left_as_it_was_after_a_failure() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(LinkedProcessDown):
        await in_a_runtime(fail_by_link)
    assert loop.get_task_factory() is None


async def test_two_runtimes_of_one_loop_that_overlap_leave_it_as_it_was() -> None:
    loop = asyncio.get_running_loop()
    first_inside, second_inside = asyncio.Event(), asyncio.Event()
    first_over = asyncio.Event()

    async def first() -> None:
        async with Runtime():
            first_inside.set()
            await second_inside.wait()
            assert (await end_of(give, 1)).value == 1
        first_over.set()

    async def second() -> None:
        await first_inside.wait()
        async with Runtime():
            second_inside.set()
            await first_over.wait()
            assert (await end_of(give, 2)).value == 2
            task = asyncio.create_task(wait_forever())
            await asyncio.sleep(0)
        assert task.cancelled()

    await asyncio.gather(first(), second())
    assert loop.get_task_factory() is None
