"""GenServer: calls, casts and infos, in the order of their arrival."""

import asyncio
import logging
from typing import Any

import pytest

from perdure import Settings, process
from perdure.base.errors import NoServer
from perdure.errors import CallExit, CallTimeout, NoProcess, NotRegistered
from perdure.otp.server import GenServer, NoReply, ServerHandle
from perdure.process import Message, Overflow, Request, Runtime, sleep
from perdure.testing import simulate, simulated
from tests.support.otp_servers import Add, Counter, Diary
from tests.support.processes import exit_of, others_rest

# Call


@simulated
async def test_a_call_of_an_unknown_name_fails_at_once_and_says_so() -> None:
    with pytest.raises(NoServer, match="nobody") as caught:
        await GenServer.call("nobody", 1)
    assert isinstance(caught.value, CallExit)
    assert isinstance(caught.value, NotRegistered)
    assert isinstance(caught.value.reason, NoProcess)
    assert str(caught.value) == (
        "the call to 'nobody' got no answer: no process is registered under this name"
    )


@simulated
async def test_a_call_of_a_dead_server_fails_at_once() -> None:
    counter = await Counter.start()
    await counter.stop()
    with pytest.raises(CallExit) as caught:
        await GenServer.call(counter, 1)
    assert isinstance(caught.value.reason, NoProcess)


@simulated
async def test_what_is_no_server_is_refused() -> None:
    wrongs: list[Any] = [None, 3, object()]
    for wrong in wrongs:
        with pytest.raises(TypeError, match="pid, a name"):
            await GenServer.call(wrong, 1)


@simulated
async def test_a_call_without_answer_times_out_and_the_late_answer_is_dropped() -> None:
    class Slow(GenServer):
        async def handle_call(self, request: float, frm: Request[Any]) -> float:
            await sleep(request)
            return request

    slow = await Slow.start_link()
    with pytest.raises(CallTimeout):
        await GenServer.call(slow, 2.0, timeout="1s")
    assert await GenServer.call(slow, 0.5, timeout="5s") == 0.5


@pytest.mark.parametrize("timeout", [-1, "soon", float("inf"), float("nan"), True])
def test_a_bad_time_out_is_refused_and_the_server_hears_nothing(timeout: Any) -> None:
    @simulated
    async def check() -> None:
        diary: list[Any] = []
        server = await Diary.start_link(diary)
        with pytest.raises((ValueError, TypeError)):
            await GenServer.call(server, 1, timeout=timeout)
        assert diary == []

    check()


@simulated
async def test_a_call_fails_at_once_when_the_server_dies_and_says_why() -> None:
    class Fragile(GenServer):
        async def handle_call(self, request: Any, frm: Request[Any]) -> None:
            await sleep("1ms")
            raise request

    for server in (await Fragile.start(), await Fragile.start()):
        error = ValueError("too much")
        with pytest.raises(CallExit) as caught:
            await GenServer.call(server, error, timeout=None)
        assert caught.value.reason is error
        assert not process.alive(server.pid)


@simulated
async def test_a_crash_in_the_very_step_of_a_call_fails_it_too() -> None:
    class Fragile(GenServer):
        def handle_call(self, request: Any, frm: Request[Any]) -> None:
            raise request

    error = ValueError("at once")
    with pytest.raises(CallExit) as caught:
        await GenServer.call(await Fragile.start(), error, timeout=None)
    assert caught.value.reason is error


@simulated
async def test_a_caller_that_is_linked_dies_with_the_server_and_sees_no_answer() -> None:
    class Fragile(GenServer):
        def handle_call(self, request: Any, frm: Request[Any]) -> None:
            raise ValueError("both")

    seen: list[str] = []

    async def caller() -> None:
        server = await Fragile.start_link()
        try:
            await GenServer.call(server, 1)
        except CallExit:
            seen.append("went on")

    end = await exit_of(process.spawn_monitored(caller))
    assert "both" in str(end.error)
    assert seen == []


@simulated
async def test_a_server_cannot_call_itself() -> None:
    class Narcissus(GenServer):
        async def handle_call(self, request: Any, frm: Request[Any]) -> str:
            with pytest.raises(CallExit, match="itself"):
                await GenServer.call(process.self_pid(), request)
            with pytest.raises(CallExit, match="itself"):
                await GenServer.stop(process.self_pid())
            return "alone"

    assert await GenServer.call(await Narcissus.start_link(), 1) == "alone"


@simulated
async def test_servers_that_call_each_other_in_a_row_all_answer() -> None:
    class Chain(GenServer):
        async def init(self, rest: ServerHandle | None) -> None:
            self.rest = rest

        async def handle_call(self, request: int, frm: Request[Any]) -> int:
            return request if self.rest is None else await self.rest.call(request + 1)

    server: ServerHandle | None = None
    for _ in range(2000):
        server = await Chain.start_link(server)
    assert server is not None
    assert await server.call(0) == 1999


@simulated
async def test_a_call_without_a_callback_ends_the_server_with_a_clear_error() -> None:
    with pytest.raises(CallExit, match="has no handle_call"):
        await GenServer.call(await GenServer.start(), 1)


@simulated
async def test_plain_functions_serve_as_callbacks_too() -> None:
    class Plain(GenServer):
        def init(self, start: int) -> None:
            self.count = start

        def handle_call(self, request: int, frm: Request[Any]) -> int:
            return self.count + request

        def handle_cast(self, request: int) -> None:
            self.count = request

    plain = await Plain.start_link(1)
    GenServer.cast(plain, 40)
    assert await GenServer.call(plain, 2) == 42


@simulated
async def test_tasks_of_a_process_call_at_the_same_time_and_get_their_own_answers() -> None:
    counter = await Counter.start_link()
    answers = await asyncio.gather(*(counter.call(Add(1)) for _ in range(50)))
    assert sorted(answers) == list(range(1, 51))


async def test_a_server_can_be_called_from_an_adopted_task() -> None:
    async with Runtime(), await Counter.start_link(1) as counter:
        assert [await counter.call(Add(1)) for _ in range(40)] == list(range(2, 42))


@simulated
async def test_an_answer_at_once_leaves_the_caller_the_current_task() -> None:
    counter = await Counter.start_link()
    for _ in range(40):
        before = asyncio.current_task()
        await counter.call(Add(1))
        assert asyncio.current_task() is before
    async with asyncio.timeout(1):
        await counter.call(Add(1))


@simulated
async def test_a_busy_caller_lets_others_run() -> None:
    counter = await Counter.start_link()
    turns: list[int] = []

    async def relay(rest: int) -> None:
        turns.append(rest)
        if rest:
            process.spawn(relay, rest - 1)

    process.spawn(relay, 9)
    for _ in range(1000):
        await counter.call(Add(1))
    assert len(turns) == 10


def test_calls_work_in_every_seeded_order() -> None:
    async def main() -> list[int]:
        counter = await Counter.start_link()

        async def client() -> None:
            for _ in range(5):
                await counter.call(Add(1))

        for _ in range(4):
            process.spawn_monitored(client)
        for _ in range(4):
            await process.events().receive()
        return await counter.call("count")

    assert [simulate(main, seed=seed) for seed in range(10)] == [20] * 10


# Cast, info


@simulated
async def test_a_cast_to_nobody_is_fine() -> None:
    counter = await Counter.start()
    await counter.stop()
    for ref in (counter, counter.pid, "nobody"):
        GenServer.cast(ref, Add(1))


@simulated
async def test_a_cast_without_a_callback_ends_the_server() -> None:
    server = await GenServer.start()
    process.monitor(server.pid)
    GenServer.cast(server, 1)
    assert isinstance((await exit_of(server.pid)).error, NotImplementedError)


@simulated
async def test_messages_and_events_go_to_handle_info() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    process.send(server.pid, "news", 1)
    process.cancel(server.pid)
    await others_rest()
    me = process.self_pid()
    assert diary[0] == ("info", Message("news", 1, me))
    assert diary[1] == ("info", process.Cancel(me, None, None))


@simulated
async def test_an_info_that_nobody_handles_is_logged_and_harms_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counter = await Counter.start_link(3)
    process.send(counter.pid, "stray", 1)
    assert await counter.call("count") == 3
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "stray" in record.getMessage()


@simulated
async def test_everything_is_served_in_the_order_of_its_arrival() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    calls: list[asyncio.Future[Any]] = []
    for number in range(4):
        GenServer.cast(server, 4 * number)
        process.send(server.pid, "n", 4 * number + 1)
        calls.append(asyncio.ensure_future(GenServer.call(server, 4 * number + 2)))
        await asyncio.sleep(0)
        process.cancel(server.pid, reason=4 * number + 3)
    await asyncio.gather(*calls)
    assert [entry[0] for entry in diary] == ["cast", "info", "call", "info"] * 4


@simulated
async def test_what_arrives_before_init_is_done_waits_in_order() -> None:
    class Slow(Diary):
        async def init(self, diary: list[Any], *, trap: bool = False) -> None:
            await sleep("1s")
            await super().init(diary, trap=trap)

    diary: list[Any] = []

    async def early() -> None:
        await sleep("10ms")
        process.send("slow", "first")
        GenServer.cast("slow", "second")
        await GenServer.call("slow", "third")
        process.send("slow", "fourth")

    process.spawn(early)
    await Slow.start_link(diary, name="slow")
    await others_rest()
    assert [entry[0] for entry in diary] == ["info", "cast", "call", "info"]


@simulated(settings=Settings(mailbox_limit=2, overflow=Overflow.DROP_OLDEST))
async def test_a_full_mailbox_drops_messages_but_never_requests() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    asking = asyncio.ensure_future(GenServer.call(server, "asked"))
    await asyncio.sleep(0)
    for number in range(10):
        process.send(server.pid, "n", number)
    assert await asking == "asked"


# Reply later


@simulated
async def test_a_reply_can_be_given_later_and_by_another_process() -> None:
    class Front(GenServer):
        async def handle_call(self, request: Any, frm: Request[Any]) -> Any:
            process.spawn(back, frm, request)
            return NoReply

    async def back(frm: Request[Any], request: Any) -> None:
        await sleep("1s")
        assert GenServer.reply(frm, request * 2) is True
        assert GenServer.reply(frm, "again") is False

    assert await GenServer.call(await Front.start_link(), 21) == 42
