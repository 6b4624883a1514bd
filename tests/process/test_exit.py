import asyncio
import contextlib
from typing import Any

import pytest

from perdure import process
from perdure.errors import Killed, LinkedProcessDown, NoProcess, NotRegistered, Shutdown
from perdure.process import Exit, ExitResult, LinkDown, is_normal, is_planned
from perdure.testing import simulated
from tests.support.processes import (
    end_of,
    exit_of,
    give,
    link_down_of,
    others_rest,
    trap_and_wait,
    wait_forever,
    waiting_events,
)

# By its own code


@simulated
async def test_what_the_function_returns_is_the_value() -> None:
    result = await end_of(give, {"a": 1})
    assert result == ExitResult({"a": 1}, None)
    assert result.ok


@simulated
async def test_a_function_that_returns_nothing_ends_normally_with_none() -> None:
    assert await end_of(give, None) == ExitResult(None, None)


@simulated
async def test_a_returned_pair_with_a_text_is_a_value_and_no_failure() -> None:
    assert (await end_of(give, (None, "text"))).value == (None, "text")


@simulated
async def test_a_returned_exception_is_a_value_and_no_failure() -> None:
    error = ValueError("returned")
    assert await end_of(give, error) == ExitResult(error, None)


@simulated
async def test_what_the_function_raises_is_the_error_itself() -> None:
    error = ValueError("boom")

    async def child() -> None:
        raise error

    result = await end_of(child)
    assert result.error is error
    assert result.value is None
    assert not result.ok


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, Shutdown, Killed, BaseException])
def test_any_exception_is_an_abnormal_end_that_the_loop_survives(
    kind: type[BaseException],
) -> None:
    async def child() -> None:
        raise kind

    @simulated
    async def main() -> None:
        assert type((await end_of(child)).error) is kind
        assert (await end_of(give, 1)).value == 1

    main()


@simulated
async def test_a_process_ends_exactly_once() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.exit(ValueError("a"), pid)
    process.exit(ValueError("b"), pid)
    process.kill(pid)
    await process.sleep("1h")
    assert [event.sender for event in await waiting_events()] == [pid]


@simulated
async def test_a_process_that_cancels_its_own_task_is_killed() -> None:
    async def child() -> None:
        task: Any = asyncio.current_task()
        task.cancel()
        await wait_forever()

    error = (await end_of(child)).error
    assert isinstance(error, Killed)
    assert "cancelled" in str(error)


@simulated
async def test_fail_ends_with_an_error_of_that_text() -> None:
    async def child() -> None:
        process.fail("linked_process_died")

    error = (await end_of(child)).error
    assert isinstance(error, Exception)
    assert str(error) == "linked_process_died"


# Exit by hand, of oneself


@simulated
async def test_exit_without_a_reason_is_a_normal_end_without_a_value() -> None:
    async def child() -> str:
        process.exit()
        return "not reached"

    assert await end_of(child) == ExitResult(None, None)


@simulated
async def test_exit_with_a_reason_ends_with_that_reason() -> None:
    reason = Shutdown("enough")

    async def deep() -> None:
        process.exit(reason)

    async def child() -> None:
        await deep()

    assert (await end_of(child)).error is reason


@simulated
async def test_a_handler_of_ordinary_errors_does_not_catch_an_exit() -> None:
    async def child() -> str:
        try:
            process.exit()
        except Exception:  # noqa: BLE001 - this is what must not catch it
            return "caught"
        return "returned"

    assert (await end_of(child)).value is None


@simulated
async def test_code_that_catches_everything_cannot_take_its_exit_back() -> None:
    async def child() -> str:
        with contextlib.suppress(BaseException):
            process.exit(Shutdown("final"))
        return "taken back"

    error = (await end_of(child)).error
    assert isinstance(error, Shutdown)
    assert error.detail == "final"


@simulated
async def test_cleanup_runs_after_an_exit_and_may_wait() -> None:
    steps: list[str] = []

    async def child() -> None:
        try:
            process.exit()
        finally:
            await process.sleep("1s")
            steps.append("cleaned")

    await end_of(child)
    assert steps == ["cleaned"]


@simulated
async def test_exit_to_the_own_pid_is_exit() -> None:
    async def child() -> str:
        process.exit(ValueError("me"), process.self_pid())
        return "not reached"

    assert str((await end_of(child)).error) == "me"


@simulated
async def test_exit_in_a_task_inside_a_process_ends_the_process() -> None:
    async def inner() -> None:
        process.exit(Shutdown("from inside"))

    async def child() -> None:
        keep = asyncio.create_task(inner())
        await wait_forever()
        del keep

    error = (await end_of(child)).error
    assert isinstance(error, Shutdown)
    assert error.detail == "from inside"


@simulated
async def test_a_normal_exit_in_a_task_inside_a_process_ends_the_process_normally() -> None:
    async def inner() -> None:
        process.exit()

    async def child() -> str:
        await asyncio.create_task(inner())
        return "not reached"

    assert await end_of(child) == ExitResult(None, None)


# An exit signal to another


@simulated
async def test_an_exit_signal_ends_the_other_with_its_reason() -> None:
    reason = ValueError("signal")
    pid = process.spawn_monitored(wait_forever)
    process.exit(reason, pid)
    assert (await exit_of(pid)).error is reason


@simulated
async def test_a_trapping_process_is_told_of_a_signal_and_lives_on() -> None:
    async def child() -> object:
        process.set_options(trap_links=True)
        return await process.events().receive()

    reason = ValueError("signal")
    pid = process.spawn_monitored(child)
    await others_rest()
    process.exit(reason, pid)
    assert (await exit_of(pid)).value == LinkDown(process.self_pid(), reason)


@pytest.mark.parametrize("function", [wait_forever, trap_and_wait])
def test_a_normal_exit_signal_to_another_is_ignored(function: Any) -> None:
    @simulated
    async def main() -> None:
        pid = process.spawn_monitored(function)
        await others_rest()
        process.exit(None, pid)
        await others_rest()
        assert process.alive(pid)
        assert process.info(pid).mailbox == 0

    main()


@simulated
async def test_a_process_told_to_exit_before_its_first_step_never_runs_a_line() -> None:
    lines: list[str] = []

    async def child() -> None:
        try:
            lines.append("body")
        finally:
            lines.append("finally")

    pid = process.spawn_monitored(child)
    process.exit(Shutdown(), pid)
    assert isinstance((await exit_of(pid)).error, Shutdown)
    assert lines == []


@simulated
async def test_a_signal_reaches_a_process_that_sleeps() -> None:
    async def child() -> None:
        await process.sleep("1h")

    pid = process.spawn_monitored(child)
    await others_rest()
    began = asyncio.get_running_loop().time()
    process.exit(Shutdown(), pid)
    await exit_of(pid)
    assert asyncio.get_running_loop().time() == began


@simulated
async def test_cleanup_after_a_signal_may_wait_as_long_as_it_needs() -> None:
    steps: list[str] = []

    async def child() -> None:
        try:
            await wait_forever()
        finally:
            await process.sleep("1h")
            steps.append("cleaned")

    pid = process.spawn_monitored(child)
    await others_rest()
    process.exit(Shutdown(), pid)
    assert isinstance((await exit_of(pid)).error, Shutdown)
    assert steps == ["cleaned"]


@simulated
async def test_what_the_code_does_after_a_signal_does_not_change_the_reason() -> None:
    async def returns() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await wait_forever()
        return "survived"

    async def raises() -> None:
        try:
            await wait_forever()
        finally:
            raise ValueError("in cleanup")

    for function in (returns, raises):
        pid = process.spawn_monitored(function)
        await others_rest()
        process.exit(Shutdown("signal"), pid)
        assert str((await exit_of(pid)).error) == "shutdown: signal"


@simulated
async def test_of_two_signals_the_first_is_the_reason() -> None:
    pid = process.spawn_monitored(wait_forever)
    process.exit(ValueError("first"), pid)
    process.exit(ValueError("second"), pid)
    assert str((await exit_of(pid)).error) == "first"


@simulated
async def test_a_killed_sent_by_hand_can_be_trapped() -> None:
    pid = process.spawn_monitored(trap_and_wait)
    await others_rest()
    process.exit(Killed(), pid)
    await others_rest()
    assert process.alive(pid)
    assert process.info(pid).mailbox == 1


@simulated
async def test_an_exit_signal_is_no_link_and_does_not_come_back() -> None:
    pid = process.spawn(wait_forever)
    process.exit(ValueError("signal"), pid)
    await others_rest()
    assert not process.alive(pid)
    assert await waiting_events() == []


@simulated
async def test_an_exit_signal_to_nobody_is_refused() -> None:
    pid = process.spawn_monitored(give)
    await exit_of(pid)
    with pytest.raises(NoProcess):
        process.exit(ValueError("late"), pid)
    with pytest.raises(NotRegistered):
        process.exit(ValueError("late"), "nobody")


@pytest.mark.parametrize("reason", ["text", 1, ValueError])
def test_a_reason_that_is_no_exception_is_refused_and_ends_nobody(reason: Any) -> None:
    @simulated
    async def main() -> None:
        pid = process.spawn(wait_forever)
        for dest in (None, pid):
            with pytest.raises(TypeError, match="an exit reason is an exception, or None"):
                process.exit(reason, dest)
        await others_rest()
        assert process.alive(pid)

    main()


# What spreads


@simulated
async def test_a_shutdown_goes_through_links_unchanged() -> None:
    reason = Shutdown("planned")

    async def child() -> None:
        process.spawn_linked(process_exits_with, reason)
        await wait_forever()

    assert (await end_of(child)).error is reason


async def process_exits_with(reason: BaseException | None) -> None:
    process.exit(reason)


@simulated
async def test_a_normal_exit_does_not_go_through_links() -> None:
    pid = process.spawn_linked_monitored(process_exits_with, None)
    assert await exit_of(pid) == ExitResult(None, None)
    await others_rest()
    assert await waiting_events() == []


@simulated
async def test_a_trapping_peer_is_told_the_very_reason() -> None:
    process.set_options(trap_links=True)
    reason = ValueError("told")
    assert await link_down_of(process.spawn_linked(process_exits_with, reason)) is reason


# The reasons


@pytest.mark.parametrize(
    ("reason", "normal", "planned"),
    [
        (None, True, True),
        (Shutdown(), False, True),
        (Shutdown("detail"), False, True),
        (Killed(), False, False),
        (ValueError(), False, False),
        (SystemExit(0), False, False),
    ],
    ids=repr,
)
def test_reasons_are_normal_or_planned_or_neither(
    reason: BaseException | None, normal: bool, planned: bool
) -> None:
    assert is_normal(reason) is process.is_normal(reason) is normal
    assert is_planned(reason) is process.is_planned(reason) is planned


@simulated
async def test_dying_of_a_link_is_not_planned() -> None:
    async def child() -> None:
        process.spawn_linked(process_exits_with, ValueError("cause"))
        await wait_forever()

    event_error = (await end_of(child)).error
    assert isinstance(event_error, LinkedProcessDown)
    assert not is_planned(event_error)


def test_a_handler_of_ordinary_errors_lets_the_reasons_of_the_runtime_pass() -> None:
    for reason in (Shutdown, Killed, LinkedProcessDown):
        assert issubclass(reason, BaseException)
        assert not issubclass(reason, Exception)


@simulated
async def test_the_exit_event_names_the_process_and_the_monitor() -> None:
    pid = process.spawn(wait_forever)
    ref = process.monitor(pid)
    process.exit(ValueError("now"), pid)
    event = await process.events().receive()
    assert isinstance(event, Exit)
    assert (event.kind, event.sender, event.ref) == (process.EventKind.EXIT, pid, ref)
