"""A server that is called while it is idle answers in the step of its caller: who notices?"""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from perdure import process
from perdure.base.errors import LinkedProcessDown, ProcError
from perdure.errors import CallExit, CallTimeout, Killed
from perdure.otp.server import GenServer, NoReply
from perdure.process import Pid, Request, sleep
from perdure.testing import simulated
from tests.support.otp_servers import Add, Counter, Diary
from tests.support.processes import exit_of, others_rest

COLOUR: ContextVar[str] = ContextVar("colour", default="none")


class Doer(GenServer):
    """Does what a request says, and answers with what came of it."""

    async def handle_call(self, request: Any, frm: Request[Any]) -> Any:
        return await request(frm)


# Order


@simulated
async def test_what_was_cast_before_a_call_is_done_before_it() -> None:
    counter = await Counter.start_link()
    await counter.call(Add(1))
    counter.cast(Add(10))
    assert await counter.call(Add(100)) == 111


@simulated
async def test_a_message_of_the_server_comes_after_an_earlier_one_of_its_caller() -> None:
    got: list[Any] = []

    async def reader() -> None:
        while True:
            got.append((await process.inbox().receive()).payload)

    async def tell(_: object) -> None:
        process.send(pid, "note", 2)

    pid = process.spawn(reader)
    doer = await Doer.start_link()
    process.send(pid, "note", 1)
    await doer.call(tell)
    process.send(pid, "note", 3)
    await others_rest()
    assert got == [1, 2, 3]


@simulated
async def test_a_message_that_the_server_sends_to_its_caller_is_there_with_the_answer() -> None:
    async def tell(frm: Request[Any]) -> str:
        assert frm.sender is not None
        process.send(frm.sender, "note", 1)
        return "answer"

    doer = await Doer.start_link()
    assert await doer.call(tell) == "answer"
    assert (await process.inbox().receive()).payload == 1


# Identity


@simulated
async def test_the_server_is_itself_while_it_answers() -> None:
    async def who(_: object) -> tuple[Pid, object]:
        return process.self_pid(), asyncio.current_task()

    doer, me = await Doer.start_link(), asyncio.current_task()
    pid, task = await doer.call(who)
    assert pid is doer.pid
    assert task is pid.target
    assert asyncio.current_task() is me


@simulated
async def test_context_variables_stay_with_their_process() -> None:
    async def paint(_: object) -> str:
        before = COLOUR.get()
        COLOUR.set("red")
        return before

    doer = await Doer.start_link()
    COLOUR.set("blue")
    assert [await doer.call(paint), await doer.call(paint)] == ["none", "red"]
    assert COLOUR.get() == "blue"


@simulated
async def test_a_server_that_calls_another_waits_for_it_as_usual() -> None:
    counter = await Counter.start_link()
    doer = await Doer.start_link()

    async def pass_on(_: object) -> int:
        return await counter.call(Add(1))

    assert [await doer.call(pass_on) for _ in range(40)] == list(range(1, 41))


@simulated
async def test_two_servers_that_call_each_other_time_out_and_do_not_nest() -> None:
    one, other = await Doer.start(), await Doer.start()

    async def ask_back(_: object) -> Any:
        return await one.call(late, 1)

    async def late(_: object) -> str:
        return "late"

    async def ask_other(_: object) -> str:
        with pytest.raises(CallTimeout):
            await other.call(ask_back, 0.5)
        return "survived"

    assert await one.call(ask_other, 5) == "survived"


# The end of one of the two


@simulated
async def test_a_caller_that_is_killed_by_the_server_dies_although_it_was_answered() -> None:
    async def kill_caller(frm: Request[Any]) -> str:
        assert frm.sender is not None
        process.kill(frm.sender)
        return "answer"

    async def caller() -> str:
        return await doer.call(kill_caller)

    doer = await Doer.start()
    ended = await exit_of(process.spawn_monitored(caller))
    assert isinstance(ended.error, Killed)


@simulated
async def test_a_caller_that_is_linked_dies_of_the_server_that_fails_while_it_answers() -> None:
    async def fail(_: object) -> None:
        raise LookupError("nothing there")

    async def caller() -> None:
        doer = await Doer.start_link()
        await doer.call(fail)

    ended = await exit_of(process.spawn_monitored(caller))
    assert isinstance(ended.error, LinkedProcessDown)
    assert isinstance(ended.error.reason, LookupError)


@simulated
async def test_a_cancelled_caller_gets_no_answer_of_a_server_that_did_the_work() -> None:
    diary: list[Any] = []

    async def write(_: object) -> str:
        diary.append("done")
        return "answer"

    doer = await Doer.start_link()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doer.call(write)
    task.uncancel()
    assert diary == ["done"]
    assert await doer.call(write) == "answer"


@simulated
async def test_a_request_that_is_answered_later_still_fails_with_the_server() -> None:
    async def keep(_: object) -> Any:
        return NoReply

    doer = await Doer.start()

    async def kill_it() -> None:
        await sleep(1)
        process.kill(doer.pid)

    process.spawn(kill_it)
    with pytest.raises(CallExit) as caught:
        await doer.call(keep)
    assert isinstance(caught.value.reason, Killed)


@simulated
async def test_a_server_that_cleans_up_is_not_idle() -> None:
    diary: list[Any] = []

    class Slow(Diary):
        async def terminate(self, reason: BaseException | None) -> None:
            self.note("begins")
            await sleep(1)
            self.note("ends")

    server = await Slow.start(diary)
    stopping = asyncio.create_task(server.stop())
    await others_rest()
    with pytest.raises(CallExit):
        await server.call("anything")
    await stopping
    assert [entry[0] if isinstance(entry, tuple) else entry for entry in diary][-2:] == [
        "begins",
        "ends",
    ]


# Fairness


@simulated
async def test_whoever_calls_many_idle_servers_lets_others_run() -> None:
    counters = [await Counter.start_link() for _ in range(100)]
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        for _ in range(4):
            turns += 1
            await asyncio.sleep(0)

    process.spawn(count_turns)
    for counter in counters:
        await counter.call(Add(1))
    assert turns >= 1


# Upgrade


@simulated
async def test_a_server_cannot_be_upgraded() -> None:
    async def other() -> None:
        """Stand for the new code."""

    async def upgrade(_: object) -> str:
        with pytest.raises(ProcError, match="a server cannot be upgraded: stop it and start"):
            process.upgrade(other)
        return "still a server"

    doer = await Doer.start_link()
    assert await doer.call(upgrade) == "still a server"
