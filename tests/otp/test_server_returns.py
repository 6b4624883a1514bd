"""GenServer: what each callback may return, and what then happens."""

import asyncio
from typing import Any

import pytest

from perdure import process
from perdure.errors import BadReturn, CallExit, Shutdown, StartError
from perdure.otp.server import Continue, GenServer, NoReply, Reply, Stop, Timeout
from perdure.process import Message, Request, sleep
from perdure.testing import simulated
from tests.support.otp_servers import Diary
from tests.support.processes import exit_of, live_timers, now, others_rest

# Reply


@pytest.mark.parametrize("value", [None, 0, "", [], (1, 2), {"a": 1}, ValueError("a value")])
def test_any_other_value_is_the_reply(value: Any) -> None:
    @simulated
    async def check() -> None:
        server = await Diary.start_link([])
        assert await GenServer.call(server, lambda: value) == value
        assert await GenServer.call(server, lambda: Reply(value)) == value

    check()


@simulated
async def test_a_directive_can_be_a_reply_when_it_is_wrapped() -> None:
    server = await Diary.start_link([])
    assert await GenServer.call(server, lambda: Reply(Stop())) == Stop()
    assert await GenServer.call(server, "alive") == "alive"


@simulated
async def test_a_reply_is_sent_before_what_follows_it() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    GenServer.cast(server, "queued")

    assert await GenServer.call(server, lambda: Reply(1, Continue("next"))) == 1
    assert [entry[0] for entry in diary] == ["cast", "call", "continue"]


def test_a_reply_can_be_made_with_its_type() -> None:
    assert Reply[int](1) == Reply(1)


# Continue


@simulated
async def test_a_continue_comes_before_everything_that_waits() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    GenServer.cast(server, lambda: Continue(1))
    GenServer.cast(server, "later")
    await others_rest()
    assert [entry[0] for entry in diary] == ["cast", "continue", "cast"]


@simulated
async def test_a_continue_may_lead_to_another() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    GenServer.cast(server, lambda: Continue(lambda: Continue("end")))
    GenServer.cast(server, "later")
    await others_rest()
    assert [entry[0] for entry in diary] == ["cast", "continue", "continue", "cast"]


@simulated
async def test_a_start_does_not_wait_for_the_continue_of_init() -> None:
    class Lazy(GenServer):
        async def init(self) -> Continue:
            self.loaded = False
            return Continue("load")

        async def handle_continue(self, value: str) -> None:
            await sleep("1s")
            self.loaded = True

        async def handle_call(self, request: Any, frm: Request[Any]) -> bool:
            return self.loaded

    lazy = await Lazy.start_link()
    assert now() == 0
    assert await GenServer.call(lazy, "loaded?") is True
    assert now() == 1


@simulated
async def test_a_call_can_go_on_without_a_reply_yet() -> None:
    class Later(GenServer):
        async def handle_call(self, request: Any, frm: Request[Any]) -> Continue:
            return Continue(frm)

        async def handle_continue(self, value: Request[Any]) -> None:
            GenServer.reply(value, "from the continue")

    assert await GenServer.call(await Later.start_link(), 1) == "from the continue"


# Timeout


@simulated
async def test_a_time_out_is_told_when_nothing_comes() -> None:
    diary: list[Any] = []
    limit = Timeout("2s")
    server = await Diary.start_link(diary)
    GenServer.cast(server, lambda: limit)
    await sleep(5)
    assert diary[1] == ("info", limit)
    assert diary[1][1] is limit
    assert len(diary) == 2


@simulated
async def test_anything_that_comes_ends_the_waiting() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    GenServer.cast(server, lambda: Timeout(2))
    await sleep(1)
    process.send(server.pid, "news")
    await sleep(10)
    assert [type(entry[1]) for entry in diary[1:]] == [Message]
    assert live_timers() == 0


@simulated
async def test_a_time_out_that_was_overtaken_does_not_count_for_the_next_one() -> None:
    limit = Timeout(1)

    class Slow(GenServer):
        async def init(self, log: list[float]) -> Timeout:
            self.log = log
            return limit

        async def handle_cast(self, request: float) -> Timeout:
            await sleep(request)
            return limit

        async def handle_info(self, message: Any) -> None:
            self.log.append(now())

    log: list[float] = []
    slow = await Slow.start_link(log)
    GenServer.cast(slow, 5)
    await sleep(20)
    assert log == [6]


@simulated
async def test_a_time_out_that_runs_out_just_behind_a_message_is_void() -> None:
    class Idle(GenServer):
        async def init(self, log: list[tuple[str, float]]) -> Timeout:
            self.log = log
            return Timeout(1)

        async def handle_info(self, message: Any) -> Timeout | None:
            self.log.append((type(message).__name__, now()))
            return Timeout(3) if isinstance(message, Message) else None

    def knock() -> None:
        process.send("idle", "knock")

    log: list[tuple[str, float]] = []
    asyncio.get_running_loop().call_later(1, knock)  # in the same turn, before the time-out
    await Idle.start_link(log, name="idle")
    await sleep(10)
    assert log == [("Message", 1), ("Timeout", 4)]


@simulated
async def test_a_time_out_of_zero_comes_at_once_if_nothing_waits() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    GenServer.cast(server, lambda: Timeout(0))
    await others_rest()
    assert [entry[1] for entry in diary[1:]] == [Timeout(0)]


@simulated
async def test_a_reply_and_init_can_set_a_time_out_too() -> None:
    class Idle(Diary):
        async def init(self, diary: list[Any], *, trap: bool = False) -> Any:
            await super().init(diary, trap=trap)
            return Timeout(1)

    diary: list[Any] = []
    server = await Idle.start_link(diary)
    await sleep(2)
    assert diary == [("info", Timeout(1))]
    assert await GenServer.call(server, lambda: Reply("ok", Timeout(3))) == "ok"
    await sleep(4)
    assert diary[2:] == [("info", Timeout(3))]


@simulated
async def test_a_server_that_dies_leaves_no_timer() -> None:
    server = await Diary.start([])
    GenServer.cast(server, lambda: Timeout("1h"))
    await others_rest()
    process.kill(server.pid)
    await others_rest()
    assert live_timers() == 0


@pytest.mark.parametrize("seconds", [-1, None, "soon"])
def test_a_time_out_of_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Timeout(seconds)


# Stop


@simulated
async def test_a_stop_ends_the_server_with_its_reason_after_terminate() -> None:
    diary: list[Any] = []
    server = await Diary.start(diary)
    process.monitor(server.pid)
    reason = Shutdown("enough")
    GenServer.cast(server, lambda: Stop(reason))
    assert (await exit_of(server.pid)).error is reason
    assert diary[-1] == ("terminate", reason)


@simulated
async def test_a_stop_without_a_reason_is_a_normal_end() -> None:
    server = await Diary.start_link([])
    process.monitor(server.pid)
    GenServer.cast(server, Stop)
    assert (await exit_of(server.pid)).ok


@simulated
async def test_a_stop_with_a_reply_answers_after_terminate() -> None:
    class Last(GenServer):
        async def init(self, log: list[str]) -> None:
            self.log = log

        async def handle_call(self, request: Any, frm: Request[Any]) -> Stop:
            return Stop(None, reply="bye")

        async def terminate(self, reason: BaseException | None) -> None:
            await sleep("1s")
            self.log.append("terminated")

    log: list[str] = []
    server = await Last.start_link(log)
    assert await GenServer.call(server, 1) == "bye"
    assert log == ["terminated"]
    assert not process.alive(server.pid)


@simulated
async def test_none_can_be_the_last_reply() -> None:
    server = await Diary.start([])
    assert await GenServer.call(server, lambda: Stop(Shutdown(), reply=None)) is None


@simulated
async def test_a_stop_without_a_reply_fails_the_call_with_its_reason() -> None:
    reason = Shutdown("no time")
    server = await Diary.start([])
    with pytest.raises(CallExit) as caught:
        await GenServer.call(server, lambda: Stop(reason))
    assert caught.value.reason is reason


@simulated
async def test_what_still_waits_at_a_stop_fails() -> None:
    server = await Diary.start([])
    GenServer.cast(server, Stop)
    with pytest.raises(CallExit) as caught:
        await GenServer.call(server, "too late")
    assert caught.value.reason is None


@simulated
async def test_a_stop_can_follow_a_continue() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    process.monitor(server.pid)
    GenServer.cast(server, lambda: Continue(Stop))
    assert (await exit_of(server.pid)).ok
    assert [entry[0] for entry in diary] == ["cast", "continue", "terminate"]


def test_a_stop_needs_an_exception_as_its_reason() -> None:
    with pytest.raises(TypeError, match="exit reason"):
        Stop("because")  # pyright: ignore[reportArgumentType]


# NoReply


@simulated
async def test_no_reply_is_fine_where_nobody_asked() -> None:
    server = await Diary.start_link([])
    GenServer.cast(server, lambda: NoReply)
    assert await GenServer.call(server, 1) == 1
    assert repr(NoReply) == "NoReply"


# Bad returns


@pytest.mark.parametrize("value", [1, "ok", Reply(1), Stop(None, reply=1)])
def test_anything_else_ends_the_server_with_a_bad_return(value: Any) -> None:
    @simulated
    async def check() -> None:
        diary: list[Any] = []
        server = await Diary.start(diary)
        process.monitor(server.pid)
        GenServer.cast(server, lambda: value)
        error = (await exit_of(server.pid)).error
        assert isinstance(error, BadReturn)
        assert "handle_cast" in str(error)
        assert diary[-1] == ("terminate", error)

    check()


class Odd(GenServer):
    async def handle_info(self, message: Any) -> Any:
        return "ok"

    async def handle_call(self, request: Any, frm: Request[Any]) -> Any:
        return Reply(1, then="ok")  # pyright: ignore[reportArgumentType]

    async def handle_cast(self, request: Any) -> Any:
        return Continue(1)

    async def handle_continue(self, value: Any) -> Any:
        return "ok"


@simulated
async def test_a_bad_return_names_the_callback_that_it_came_from() -> None:
    informed, called, continued = [await Odd.start() for _ in range(3)]
    process.send(informed.pid, "x")
    GenServer.cast(continued, 1)
    for server in (informed, continued, called):
        process.monitor(server.pid)
    assert await GenServer.call(called, 1) == 1  # the reply itself was fine
    ends = [await exit_of(server.pid) for server in (called, informed, continued)]
    assert [str(end.error).split()[0] for end in ends] == [
        "Odd.handle_call",
        "Odd.handle_info",
        "Odd.handle_continue",
    ]


@simulated
async def test_a_bad_return_of_init_fails_the_start() -> None:
    class OddFromTheStart(GenServer):
        async def init(self) -> Any:
            return "ok"

    with pytest.raises(StartError, match=r"OddFromTheStart.init returned 'ok'") as caught:
        await OddFromTheStart.start_link()
    assert isinstance(caught.value.reason, BadReturn)
