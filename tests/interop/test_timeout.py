"""`asyncio.timeout` and `asyncio.wait_for` inside a process."""
# ruff: noqa: PT012 - the body of a group or of a time-out is more than one statement

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import process
from perdure.errors import Killed, Shutdown
from perdure.process import Channel, select, sleep
from perdure.testing import simulated
from tests.support.processes import end_of, exit_of, forever, me, now

Wait = Callable[[], Coroutine[Any, Any, Any]]


async def wait_in_inbox() -> None:
    await process.inbox().receive()


async def wait_in_sleep() -> None:
    await sleep("1h")


async def wait_in_select() -> None:
    await select(process.inbox(), process.events())


async def wait_in_send() -> None:
    await Channel[int]().send(1)


async def wait_in_call() -> None:
    await process.call(process.spawn(wait_in_inbox), "?", timeout=None)


async def wait_for_a_process() -> None:
    await process.run_process(wait_in_inbox)


async def wait_for_an_event() -> None:
    await asyncio.Event().wait()


async def wait_for_a_task() -> None:
    await asyncio.create_task(forever())


WAITS: list[Wait] = [
    wait_in_inbox,
    wait_in_sleep,
    wait_in_select,
    wait_in_send,
    wait_in_call,
    wait_for_a_process,
    wait_for_an_event,
    wait_for_a_task,
    forever,
]


@pytest.mark.parametrize("wait", WAITS)
@simulated
async def test_a_timeout_ends_any_wait(wait: Wait) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await wait()

    assert now() == 5
    assert me().cancelling() == 0


@pytest.mark.parametrize("wait", WAITS)
@simulated
async def test_wait_for_ends_any_wait(wait: Wait) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait(), 5)

    assert now() == 5
    assert me().cancelling() == 0


@simulated
async def test_what_comes_in_time_comes_through() -> None:
    process.send(process.self_pid(), "hello", 1)

    async with asyncio.timeout(5) as limit:
        message = await process.inbox().receive()
        await sleep(4)

    assert message.payload == 1
    assert not limit.expired()
    await sleep(10)  # nothing of the timeout comes later


@simulated
async def test_only_the_inner_timeout_expires() -> None:
    async with asyncio.timeout(10) as outer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await forever()
        await sleep(2)

    assert now() == 3
    assert not outer.expired()


@simulated
async def test_the_outer_timeout_passes_through_the_inner_one() -> None:
    seen: list[type[BaseException]] = []

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            try:
                async with asyncio.timeout(10):
                    await process.inbox().receive()
            except BaseException as error:
                seen.append(type(error))
                raise

    assert seen == [asyncio.CancelledError]
    assert now() == 1


@pytest.mark.parametrize("wait", [wait_in_inbox, forever])
@simulated
async def test_two_timeouts_at_the_same_moment_both_expire(wait: Wait) -> None:
    outer, inner = asyncio.timeout(1), asyncio.timeout(1)
    with pytest.raises(TimeoutError):
        async with outer, inner:
            await wait()

    assert outer.expired()
    assert inner.expired()
    assert me().cancelling() == 0
    await sleep(1)


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.parametrize("wait", [wait_in_inbox, forever])
@simulated
async def test_a_timeout_of_no_time_ends_the_first_wait(wait: Wait, limit: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(limit):
            await wait()

    assert now() == 0


@simulated
async def test_a_timeout_of_no_time_lets_code_without_a_wait_pass() -> None:
    async with asyncio.timeout(0) as limit:  # noqa: ASYNC100 - it has no wait on purpose
        passed = True

    assert passed
    assert not limit.expired()
    assert me().cancelling() == 0
    await sleep(1)


@simulated
async def test_a_timeout_can_be_put_off_and_brought_forward() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1) as limit:
            await sleep(0.5)
            limit.reschedule(now() + 10)
            await sleep(5)
            limit.reschedule(now() + 0.5)
            await forever()

    assert now() == 6


@simulated
async def test_a_timeout_without_limit_can_get_one() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            await sleep(100)
            limit.reschedule(now() + 1)
            await process.inbox().receive()

    assert now() == 101


@simulated
async def test_a_message_that_comes_at_the_deadline_is_not_lost() -> None:
    parent = process.self_pid()

    async def send_at_five() -> None:
        await sleep(5)
        process.send(parent, "late", 1)

    process.spawn(send_at_five)
    try:
        async with asyncio.timeout(5):
            message = await process.inbox().receive()
    except TimeoutError:
        message = await process.inbox().receive()

    assert message.payload == 1
    assert now() == 5


# A signal at the very moment of the time-out


async def time_out_and_go_on(wait: Wait) -> str:
    try:
        async with asyncio.timeout(1):
            await wait()
    except TimeoutError:
        await sleep("1h")  # only a swallowed signal lets it come this far in time
    return "went on"


SIGNALS: list[tuple[Callable[[Any], None], type[BaseException]]] = [
    (lambda pid: process.exit(Shutdown("now"), pid), Shutdown),
    (lambda pid: process.exit(ValueError("now"), pid), ValueError),
    (process.kill, Killed),
]


@pytest.mark.parametrize(("signal", "reason"), SIGNALS)
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("signal_first", [True, False])
@simulated
async def test_a_signal_at_the_moment_of_the_timeout_is_not_swallowed(
    signal: Callable[[Any], None],
    reason: type[BaseException],
    wait: Wait,
    signal_first: bool,
) -> None:
    if signal_first:  # of two timers for the same moment the one that was set first rings first
        asyncio.get_running_loop().call_at(1, lambda: signal(child))
    child = process.spawn_monitored(time_out_and_go_on, wait)
    if not signal_first:
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_at(1, lambda: signal(child))

    result = await exit_of(child)

    assert type(result.error) is reason
    assert now() < 60


@simulated
async def test_a_cancel_event_at_the_moment_of_the_timeout_is_received() -> None:
    async def child() -> object:
        events = process.events()
        try:
            async with asyncio.timeout(1):
                return await events.receive()
        except TimeoutError:
            return await events.receive()

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.cancel(pid)

    result = await exit_of(pid)

    assert isinstance(result.value, process.Cancel)


@simulated
async def test_wait_for_gives_the_value_and_the_error() -> None:
    async def fail() -> None:
        await sleep(1)
        raise ValueError("no")

    async def answer() -> int:
        await sleep(1)
        return 42

    assert await asyncio.wait_for(answer(), 2) == 42
    with pytest.raises(ValueError, match="no"):
        await asyncio.wait_for(fail(), 2)


@simulated
async def test_wait_for_takes_a_wait_of_the_kernel_itself() -> None:
    process.send(process.self_pid(), "hello")

    message = await asyncio.wait_for(process.inbox().receive(), 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.inbox().receive(), 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(select(process.inbox(), process.events()), 1)

    assert message.topic == "hello"
    assert now() == 2


@simulated
async def test_wait_for_of_no_time_ends_at_once() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(forever(), 0)

    assert now() == 0


@simulated
async def test_a_signal_ends_wait_for_and_what_it_waits_for() -> None:
    ended: list[str] = []

    async def inner() -> None:
        try:
            await forever()
        finally:
            ended.append("inner")

    async def child() -> None:
        await asyncio.wait_for(inner(), 3600)

    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(Shutdown(), pid)

    result = await exit_of(pid)

    assert isinstance(result.error, Shutdown)
    assert ended == ["inner"]
    assert now() == 1


@simulated
async def test_the_cleanup_of_a_condemned_process_may_use_a_timeout() -> None:
    async def child() -> None:
        try:
            await forever()
        finally:
            try:
                async with asyncio.timeout(2):
                    await forever()
            except TimeoutError:
                cleaned.append(now())

    cleaned: list[float] = []
    pid = process.spawn_monitored(child)
    await sleep(1)
    process.exit(Shutdown(), pid)

    result = await exit_of(pid)

    assert isinstance(result.error, Shutdown)
    assert cleaned == [3]


@simulated
async def test_a_timeout_that_expires_makes_a_process_crash_like_any_error() -> None:
    async def child() -> None:
        async with asyncio.timeout(1):
            await process.inbox().receive()

    result = await end_of(child)

    assert isinstance(result.error, TimeoutError)
