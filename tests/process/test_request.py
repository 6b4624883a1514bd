"""Call and reply: one answer, in time, to the right caller, or a clear failure at once."""

import asyncio
from typing import Any

import pytest

from perdure import process
from perdure.errors import CallExit, CallTimeout, Killed, NoProcess, NotRegistered, Shutdown
from perdure.process import Channel, Pid, Request, call, sleep
from perdure.testing import simulate, simulated
from tests.support.processes import (
    INTERRUPTS,
    Interrupt,
    dead,
    drain,
    exit_of,
    live_timers,
    now,
    others_rest,
    wait_forever,
)


async def echo() -> None:
    while True:
        request = await process.requests().receive()
        request.reply(request.body)


async def slow_echo() -> None:
    """Answer each request after as many seconds as it says."""
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(answer_later(await process.requests().receive()))


async def answer_later(request: Request[Any]) -> None:
    await sleep(request.body)
    request.reply(request.body)


async def collect(into: list[Request[Any]]) -> None:
    """Take requests and answer none."""
    while True:
        into.append(await process.requests().receive())


# Reply


@simulated
async def test_a_call_gets_the_reply() -> None:
    assert await call(process.spawn(echo), "hello") == "hello"


@simulated
async def test_a_call_by_name_reaches_who_has_the_name() -> None:
    process.spawn(echo, name="echo")
    assert await call("echo", 1) == 1


@simulated
async def test_none_is_a_reply_like_any_other() -> None:
    assert await call(process.spawn(echo), None) is None


@simulated
async def test_a_request_names_its_sender_and_carries_the_very_body() -> None:
    taken: list[Request[Any]] = []
    body, server = object(), process.spawn(collect, taken)
    asking = asyncio.ensure_future(call(server, body))
    await others_rest()
    assert (taken[0].body, taken[0].sender) == (body, process.self_pid())
    assert taken[0].reply(1) is True
    assert await asking == 1


@simulated
async def test_requests_come_in_the_order_in_which_they_were_made() -> None:
    taken: list[Request[Any]] = []
    server = process.spawn(collect, taken)
    calls = [asyncio.ensure_future(call(server, n)) for n in range(5)]
    await others_rest()
    assert [request.body for request in taken] == list(range(5))
    for request in reversed(taken):
        request.reply(request.body * 10)
    assert await asyncio.gather(*calls) == [0, 10, 20, 30, 40]


@simulated
async def test_only_the_first_reply_counts() -> None:
    taken: list[Request[Any]] = []
    server = process.spawn(collect, taken)
    asking = asyncio.ensure_future(call(server, "x"))
    await others_rest()
    assert [taken[0].reply(n) for n in (1, 2)] == [True, False]
    assert await asking == 1


@simulated
async def test_another_process_may_reply_while_the_server_goes_on() -> None:
    async def clerk(request: Request[Any]) -> None:
        await sleep(1)
        request.reply(f"clerk {request.body}")

    async def server() -> None:
        while True:
            process.spawn(clerk, await process.requests().receive())

    pid = process.spawn(server)
    answers = await asyncio.gather(*(call(pid, n) for n in range(3)))
    assert answers == ["clerk 0", "clerk 1", "clerk 2"]
    assert now() == 1


@simulated
async def test_a_call_does_not_touch_the_mailbox_of_the_caller() -> None:
    process.send(process.self_pid(), "waiting")
    await call(process.spawn(echo), 1)
    assert len(await drain(process.inbox())) == 1
    assert await drain(process.events()) == []


# Time-out


@simulated
async def test_without_a_reply_a_call_times_out_after_five_seconds() -> None:
    with pytest.raises(CallTimeout) as caught:
        await call(process.spawn(wait_forever), "x")
    assert now() == 5
    assert isinstance(caught.value, TimeoutError | CallExit)
    assert isinstance(caught.value.reason, TimeoutError)


@simulated
async def test_a_call_without_a_limit_waits_as_long_as_it_takes() -> None:
    assert await call(process.spawn(slow_echo), 10_000, timeout=None) == 10_000


@simulated
async def test_a_call_that_timed_out_leaves_the_server_alive() -> None:
    server = process.spawn(wait_forever)
    with pytest.raises(CallTimeout):
        await call(server, "x", timeout="1s")
    assert process.alive(server)


@simulated
async def test_a_late_reply_is_dropped_and_the_next_call_gets_its_own() -> None:
    taken: list[Request[Any]] = []
    server = process.spawn(collect, taken)
    with pytest.raises(CallTimeout):
        await call(server, "first", timeout="1s")
    asking = asyncio.ensure_future(call(server, "second"))
    await others_rest()
    assert taken[0].reply("late") is False
    assert taken[1].reply("right") is True
    assert await asking == "right"
    assert await drain(process.inbox()) == []


@simulated
async def test_many_calls_with_various_time_outs_each_end_at_their_own_time() -> None:
    server, ended = process.spawn(wait_forever), dict[float, float]()

    async def client(timeout: float) -> None:
        with pytest.raises(CallTimeout):
            await call(server, "x", timeout)
        ended[timeout] = now()

    timeouts = [n / 4 for n in range(40, 0, -1)]
    for timeout in timeouts:
        process.spawn(client, timeout)
    await sleep(60)
    assert ended == {timeout: timeout for timeout in timeouts}


@simulated
async def test_of_many_calls_only_those_that_are_too_slow_time_out() -> None:
    server, results = process.spawn(slow_echo), dict[int, bool]()

    async def client(start: int, work: int) -> None:
        await sleep(start)
        try:
            results[start] = await call(server, work, timeout=10) == work
        except CallTimeout:
            results[start] = False
        assert now() == start + min(work, 10)

    for start in range(40):
        process.spawn(client, start, 3 if start % 3 else 30)
    await sleep(100)
    assert results == {start: start % 3 != 0 for start in range(40)}


@simulated
async def test_answered_calls_with_many_different_time_outs_leave_few_timers() -> None:
    server = process.spawn(echo)
    for n in range(2_000):
        await call(server, n, timeout=5 + n / 1000)
    assert live_timers() < 100


@simulated
async def test_answered_calls_with_the_same_time_out_share_one_timer() -> None:
    server = process.spawn(echo)
    for n in range(2_000):
        await call(server, n)
    assert live_timers() <= 1


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan"), True])
@simulated
async def test_a_bad_time_out_is_refused_and_nothing_is_asked(timeout: Any) -> None:
    taken: list[Request[Any]] = []
    server = process.spawn(collect, taken)
    with pytest.raises((ValueError, TypeError)):
        await call(server, "x", timeout)
    await others_rest()
    assert taken == []


# The death of the server


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_the_end_of_the_server_fails_the_call_at_once(interrupt: Interrupt) -> None:
    server = process.spawn(wait_forever)
    asking = asyncio.ensure_future(call(server, "x", timeout="1h"))
    await others_rest()
    interrupt(server)
    with pytest.raises(CallExit) as caught:
        await asking
    assert isinstance(caught.value.reason, Killed | Shutdown)
    assert caught.value.__cause__ is caught.value.reason
    assert now() < 1


@simulated
async def test_the_crash_of_the_server_is_the_reason_of_the_failed_call() -> None:
    error = ValueError("bad request")

    async def fragile() -> None:
        await process.requests().receive()
        raise error

    with pytest.raises(CallExit) as caught:
        await call(process.spawn(fragile), "x")
    assert caught.value.reason is error
    assert not isinstance(caught.value, TimeoutError)


@simulated
async def test_a_server_that_ends_normally_without_a_reply_fails_the_call() -> None:
    async def silent() -> None:
        await process.requests().receive()

    with pytest.raises(CallExit) as caught:
        await call(process.spawn(silent), "x")
    assert caught.value.reason is None


@simulated
async def test_a_reply_just_before_the_end_of_the_server_counts() -> None:
    async def dying() -> None:
        (await process.requests().receive()).reply("last words")
        process.kill(process.self_pid())

    assert await call(process.spawn(dying), "x") == "last words"


@simulated
async def test_a_call_to_a_dead_process_fails_at_once() -> None:
    with pytest.raises(CallExit) as caught:
        await call(await dead(), "x")
    assert isinstance(caught.value.reason, NoProcess)


@simulated
async def test_a_call_to_an_unknown_name_raises() -> None:
    with pytest.raises(NotRegistered):
        await call("nobody", "x")


@simulated
async def test_a_call_to_oneself_fails_at_once_instead_of_waiting_in_vain() -> None:
    with pytest.raises(CallExit) as caught:
        await call(process.self_pid(), "x", timeout=None)
    assert "itself" in str(caught.value.reason)


@simulated
async def test_a_reply_after_the_death_of_the_server_is_dropped() -> None:
    taken: list[Request[Any]] = []
    server = process.spawn(collect, taken)
    asking = asyncio.ensure_future(call(server, "x"))
    await others_rest()
    process.kill(server)
    with pytest.raises(CallExit):
        await asking
    assert taken[0].reply(1) is False


# The interrupted caller


@simulated
async def test_a_caller_that_stops_waiting_is_sent_no_reply() -> None:
    taken: list[Request[Any]] = []
    server = process.spawn(collect, taken)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await call(server, "x", timeout="1h")
    assert taken[0].done
    assert taken[0].reply("late") is False
    assert process.alive(server)


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@simulated
async def test_the_end_of_the_caller_does_not_touch_the_server(interrupt: Interrupt) -> None:
    async def client(of: Pid) -> None:
        await call(of, "x")

    taken: list[Request[Any]] = []
    server = process.spawn(collect, taken)
    caller = process.spawn_monitored(client, server)
    await others_rest()
    interrupt(caller)
    await exit_of(caller)
    assert taken[0].reply(1) is False
    assert process.alive(server)


@pytest.mark.parametrize("seed", range(20))
def test_every_caller_gets_its_own_answer_in_any_order(seed: int) -> None:
    async def main() -> None:
        server, answers = process.spawn(echo), Channel[tuple[int, int]](100)

        async def client(n: int) -> None:
            for k in range(5):
                await answers.send((n * 10 + k, await call(server, n * 10 + k)))

        for n in range(6):
            process.spawn(client, n)
        await others_rest()
        pairs = await drain(answers)
        assert len(pairs) == 30
        assert all(asked == answered for asked, answered in pairs)

    simulate(main, seed=seed)
