import asyncio
import signal
import threading
from typing import Any

import pytest

import perdure
from perdure import Settings, process
from perdure.errors import Killed, Shutdown, SpawnError
from perdure.process import Cancel, LinkDown
from perdure.testing import VirtualLoop, simulate
from tests.support.processes import crash, give, records, wait_forever

# The value and the error


def test_run_gives_the_value_of_main() -> None:
    assert perdure.run(give, 42) == 42


def test_run_raises_what_main_raised() -> None:
    error = ValueError("boom")

    async def main() -> None:
        raise error

    with pytest.raises(ValueError, match="boom") as caught:
        perdure.run(main)
    assert caught.value is error


def test_run_raises_the_reason_that_main_exits_with() -> None:
    async def main() -> None:
        process.exit(Shutdown("enough"))

    with pytest.raises(Shutdown, match="enough"):
        perdure.run(main)


def test_main_may_end_by_exit_without_a_reason() -> None:
    async def main() -> str:
        process.exit()
        return "not reached"

    assert perdure.run(main) is None


def test_a_program_may_end_with_an_exit_code() -> None:
    async def main() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        perdure.run(main)
    assert caught.value.code == 3


def test_the_failure_of_a_linked_process_is_raised_by_run() -> None:
    async def main() -> None:
        process.spawn_linked(crash, "in the child")
        await wait_forever()

    with pytest.raises(perdure.errors.LinkedProcessDown, match="in the child"):
        simulate(main)


def test_an_error_of_main_is_raised_and_not_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="boom"):
        perdure.run(crash)
    assert records(caplog) == []


# The root process


def test_the_root_is_a_process_like_any_other() -> None:
    async def main() -> None:
        me = process.self_pid()
        assert process.alive(me)
        assert process.context() == {}
        process.send(me, "topic", 1)
        process.cancel(me)
        assert (await process.inbox().receive()).sender is me
        assert isinstance(await process.events().receive(), Cancel)
        process.register("root")
        assert process.whereis("root") is me

    perdure.run(main)


def test_the_root_can_trap_links() -> None:
    async def main() -> object:
        process.set_options(trap_links=True)
        process.spawn_linked(crash)
        return await process.events().receive()

    assert isinstance(simulate(main), LinkDown)


def test_the_time_limits_of_asyncio_work_inside() -> None:
    async def main() -> str:
        try:
            async with asyncio.timeout(1):
                await wait_forever()
        except TimeoutError:
            return "in time"
        return "never"

    assert simulate(main) == "in time"


def test_every_run_begins_with_an_empty_runtime() -> None:
    async def main() -> int:
        process.register("root")
        process.spawn(wait_forever, name="left over")
        return len(process.processes())

    assert [perdure.run(main) for _ in range(3)] == [2, 2, 2]


# What main leaves


def left_over(child: Any, **options: Any) -> None:
    """Run a main that starts the child, lets it wait, and returns."""

    async def main() -> None:
        process.spawn(child)
        await process.sleep("1ms")

    simulate(main, **options)


def test_a_process_that_is_left_gets_a_cancel_and_time_to_clean_up() -> None:
    seen: list[object] = []

    async def child() -> None:
        event = await process.events().receive()
        assert isinstance(event, Cancel)
        await process.sleep("1s")
        seen.append(event)

    left_over(child)
    assert len(seen) == 1


def test_the_deadline_of_the_cancel_is_the_stop_timeout() -> None:
    seen: list[float | None] = []

    async def child() -> None:
        event = await process.events().receive()
        assert isinstance(event, Cancel)
        now = asyncio.get_running_loop().time()
        seen.append(event.deadline and round(event.deadline - now, 3))

    left_over(child, settings=Settings(stop_timeout="7s"))
    assert seen == [7.0]


def test_a_process_that_is_left_and_reads_no_events_is_interrupted_at_once() -> None:
    ends: list[tuple[type[BaseException], float]] = []

    async def child() -> None:
        try:
            await wait_forever()
        except asyncio.CancelledError as error:
            ends.append((type(error), asyncio.get_running_loop().time()))
            raise

    left_over(child)
    assert ends == [(asyncio.CancelledError, 0.001)]


def test_a_process_that_ignores_its_cancel_is_killed_at_the_deadline() -> None:
    ends: list[float] = []

    async def child() -> None:
        process.events()
        try:
            await wait_forever()
        finally:
            ends.append(asyncio.get_running_loop().time())

    left_over(child, settings=Settings(stop_timeout="2s"))
    assert ends == [2.001]


def test_a_long_deadline_of_an_earlier_cancel_does_not_hold_the_end_up() -> None:
    loop = VirtualLoop()

    async def child() -> None:
        process.events()
        await wait_forever()

    async def main() -> None:
        pid = process.spawn(child)
        await process.sleep("1ms")
        process.cancel(pid, "1h")

    perdure.run(main, loop_factory=lambda: loop)
    assert loop.time() < 10


def test_children_of_a_process_that_is_left_end_after_it() -> None:
    ends: list[str] = []

    async def member(name: str) -> None:
        if name == "parent":
            process.spawn(member, "child")
        await process.events().receive()
        ends.append(name)

    async def main() -> None:
        process.spawn(member, "parent")
        await process.sleep("1ms")

    simulate(main)
    assert ends == ["parent", "child"]


def test_a_process_started_while_the_runtime_stops_is_ended_too() -> None:
    async def child() -> None:
        await process.events().receive()
        process.spawn(wait_forever)

    left_over(child)


def test_what_main_leaves_is_ended_also_when_main_fails() -> None:
    ends: list[str] = []

    async def child() -> None:
        try:
            await wait_forever()
        finally:
            ends.append("child")

    async def main() -> None:
        process.spawn(child)
        await process.sleep("1ms")
        await crash()

    with pytest.raises(ValueError, match="boom"):
        simulate(main)
    assert ends == ["child"]


def test_the_ordinary_end_of_what_is_left_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    left_over(wait_forever)
    assert caplog.records == []


# Refused


def test_a_run_inside_of_a_run_is_refused_and_harms_nothing() -> None:
    async def main() -> int:
        with pytest.raises(RuntimeError, match="running event loop"):
            perdure.run(give)
        pid = process.spawn_monitored(give, 1)
        await process.events().receive()
        return int(not process.alive(pid))

    assert perdure.run(main) == 1


@pytest.mark.parametrize(
    "main", [lambda: None, len, None, 5, "main"], ids=lambda main: type(main).__name__
)
def test_a_main_that_is_no_coroutine_function_is_refused(main: Any) -> None:
    with pytest.raises(SpawnError, match="`async def`"):
        perdure.run(main)


def test_a_coroutine_as_main_is_refused_with_the_right_spelling() -> None:
    mistake: Any = give(1)
    with pytest.raises(SpawnError, match=r"run\(give"):
        perdure.run(mistake)


def test_wrong_arguments_for_main_are_refused() -> None:
    async def main(needed: int) -> None: ...

    with pytest.raises(SpawnError, match="needed"):
        perdure.run(main)


# Its surroundings


def test_the_handlers_of_signals_are_as_before() -> None:
    def handler(number: int, frame: object) -> None: ...

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        perdure.run(give)
        assert [signal.getsignal(number) for number in numbers] == [handler, handler]
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


def test_run_works_in_a_thread_too() -> None:
    values: list[object] = []
    thread = threading.Thread(target=lambda: values.append(perdure.run(give, 42)))
    thread.start()
    thread.join()
    assert values == [42]


def test_a_given_loop_factory_makes_the_loop() -> None:
    loop = VirtualLoop()

    async def main() -> bool:
        await process.sleep("1h")
        return asyncio.get_running_loop() is loop

    assert perdure.run(main, loop_factory=lambda: loop) is True


def test_a_keyboard_interrupt_in_a_process_ends_the_program_with_it() -> None:
    ends: list[str] = []

    async def child() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        process.spawn(child)
        try:
            await wait_forever()
        finally:
            ends.append("main")

    with pytest.raises(KeyboardInterrupt):
        simulate(main)
    assert ends == ["main"]


def test_a_killed_root_is_raised_as_killed() -> None:
    async def killer(victim: process.Pid) -> None:
        process.kill(victim)

    async def main() -> None:
        process.spawn(killer, process.self_pid())
        await wait_forever()

    with pytest.raises(Killed):
        simulate(main)
