"""GenServer: when `terminate` runs and when it does not; `stop`; exits of parents and others."""

import asyncio
from typing import Any

import pytest

from perdure import process
from perdure.errors import CallExit, CallTimeout, Killed, NoProcess, Shutdown
from perdure.otp.server import GenServer, ServerHandle
from perdure.process import LinkDown, Request, sleep
from perdure.testing import simulate, simulated
from tests.support.otp_servers import Counter, Diary, TrappingDiary
from tests.support.processes import exit_of, others_rest, wait_forever


def ends(diary: list[Any]) -> list[Any]:
    """Give the reasons that `terminate` was given."""
    return [entry[1] for entry in diary if entry[0] == "terminate"]


# Ends of its own


@simulated
async def test_terminate_runs_when_a_callback_raises() -> None:
    diary: list[Any] = []
    server = await Diary.start(diary)

    def crash() -> None:
        raise error

    error = ValueError("boom")
    with pytest.raises(CallExit) as caught:
        await GenServer.call(server, crash)
    assert caught.value.reason is error
    assert ends(diary) == [error]


@pytest.mark.parametrize("reason", [None, Shutdown("x"), ValueError("y")])
def test_terminate_runs_when_a_callback_exits(reason: BaseException | None) -> None:
    @simulated
    async def check() -> None:
        diary: list[Any] = []
        server = await Diary.start(diary)
        process.monitor(server.pid)
        GenServer.cast(server, lambda: process.exit(reason))
        assert (await exit_of(server.pid)).error is reason
        assert ends(diary) == [reason]

    check()


@simulated
async def test_an_error_in_terminate_is_the_reason_of_the_end() -> None:
    class Clumsy(GenServer):
        async def terminate(self, reason: BaseException | None) -> None:
            raise ValueError("in terminate")

    server = await Clumsy.start()
    with pytest.raises(CallExit, match="in terminate"):
        await GenServer.stop(server)


@simulated
async def test_init_that_fails_is_not_followed_by_terminate() -> None:
    class Broken(Diary):
        async def init(self, diary: list[Any], *, trap: bool = False) -> None:
            await super().init(diary, trap=trap)
            raise ValueError("no")

    diary: list[Any] = []
    with pytest.raises(Exception, match="no"):
        await Broken.start(diary)
    assert diary == []


# Ends from outside


@simulated
async def test_a_kill_runs_no_terminate() -> None:
    diary: list[Any] = []
    for kind in (Diary, TrappingDiary):
        server = await kind.start(diary)
        process.monitor(server.pid)
        process.kill(server.pid)
        assert isinstance((await exit_of(server.pid)).error, Killed)
    assert ends(diary) == []


@simulated
async def test_a_server_that_kills_itself_runs_no_terminate() -> None:
    diary: list[Any] = []
    server = await Diary.start(diary)
    process.monitor(server.pid)
    GenServer.cast(server, lambda: process.kill(process.self_pid()))
    assert isinstance((await exit_of(server.pid)).error, Killed)
    assert ends(diary) == []


@simulated
async def test_a_server_whose_task_is_cancelled_runs_no_terminate() -> None:
    class Waiting(Diary):
        async def handle_cast(self, request: list[Any]) -> None:
            request.append(asyncio.current_task())
            await wait_forever()

    diary: list[Any] = []
    tasks: list[Any] = []
    server = await Waiting.start(diary)
    process.monitor(server.pid)
    GenServer.cast(server, tasks)
    await others_rest()
    tasks[0].cancel()
    assert isinstance((await exit_of(server.pid)).error, Killed)
    assert ends(diary) == []


@simulated
async def test_a_signal_ends_a_server_that_does_not_trap_without_terminate() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    process.unlink(server.pid)
    process.monitor(server.pid)
    reason = Shutdown("now")
    process.exit(reason, server.pid)
    assert (await exit_of(server.pid)).error is reason
    assert ends(diary) == []


@simulated
async def test_a_signal_in_the_middle_of_a_callback_runs_no_terminate() -> None:
    class Slow(Diary):
        async def handle_cast(self, request: Any) -> None:
            try:
                await wait_forever()
            finally:
                self.note("cleaned up")

    diary: list[Any] = []
    server = await Slow.start(diary)
    GenServer.cast(server, 1)
    await others_rest()
    process.exit(Shutdown(), server.pid)
    await others_rest()
    assert diary == [("cleaned up",)]


@simulated
async def test_a_signal_of_the_parent_ends_a_trapping_server_by_terminate() -> None:
    diary: list[Any] = []
    process.set_options(trap_links=True)
    for reason in (Shutdown("please"), ValueError("now")):
        server = await TrappingDiary.start_link(diary)
        process.monitor(server.pid)
        process.exit(reason, server.pid)
        await others_rest()
        assert not process.alive(server.pid)
        assert ends(diary)[-1] is reason


@simulated
async def test_what_was_received_before_the_signal_of_the_parent_is_still_served() -> None:
    diary: list[Any] = []
    process.set_options(trap_links=True)
    server = await TrappingDiary.start_link(diary)
    GenServer.cast(server, 1)
    process.exit(Shutdown(), server.pid)
    GenServer.cast(server, 2)
    await others_rest()
    assert [entry[0] for entry in diary] == ["cast", "terminate"]


@simulated
async def test_the_death_of_the_parent_ends_a_trapping_server_by_terminate() -> None:
    diary: list[Any] = []

    async def parent() -> None:
        await TrappingDiary.start_link(diary)
        raise ValueError("parent")

    process.spawn(parent)
    await others_rest()
    [reason] = ends(diary)
    assert "parent" in str(reason)
    assert len(process.processes()) == 1


@simulated
async def test_a_signal_of_a_stranger_is_an_info_for_a_trapping_server() -> None:
    diary: list[Any] = []
    server = await TrappingDiary.start_link(diary)

    async def stranger() -> None:
        process.exit(Shutdown("hello"), server.pid)

    process.spawn(stranger)
    await others_rest()
    [(kind, event)] = diary
    assert kind == "info"
    assert isinstance(event, LinkDown)
    assert process.alive(server.pid)


@simulated
async def test_a_server_that_was_started_without_a_link_has_no_parent() -> None:
    diary: list[Any] = []
    server = await TrappingDiary.start(diary)
    process.exit(Shutdown("hello"), server.pid)
    await others_rest()
    assert [entry[0] for entry in diary] == ["info"]
    assert process.alive(server.pid)


@simulated
async def test_a_kill_ends_a_terminate_that_takes_too_long() -> None:
    class Endless(TrappingDiary):
        async def terminate(self, reason: BaseException | None) -> None:
            await super().terminate(reason)
            await wait_forever()

    diary: list[Any] = []
    server = await Endless.start(diary)
    stopping = asyncio.ensure_future(GenServer.stop(server))
    await others_rest()
    process.kill(server.pid)
    with pytest.raises(CallExit) as caught:
        await stopping
    assert isinstance(caught.value.reason, Killed)
    assert ends(diary) == [None]


def test_the_end_of_the_program_ends_servers_by_terminate() -> None:
    diary: list[Any] = []
    times: list[float] = []

    class Informed(Diary):
        async def handle_info(self, message: Any) -> Any:
            raise AssertionError("the runtime's order is no info")

    async def main() -> None:
        await Informed.start(diary)
        await Counter.start(diary)
        times.append(asyncio.get_running_loop().time())

    simulate(main)
    [reason] = ends(diary)
    assert isinstance(reason, Shutdown)


@simulated
async def test_a_cancel_ends_a_server_without_handle_info_normally() -> None:
    server = await Counter.start_link()
    process.monitor(server.pid)
    process.cancel(server.pid)
    assert (await exit_of(server.pid)).ok


# Stop


@simulated
async def test_stop_runs_terminate_and_waits_for_the_end() -> None:
    class Slow(Diary):
        async def terminate(self, reason: BaseException | None) -> None:
            await sleep("10s")
            self.note("terminate", reason)

    diary: list[Any] = []
    server = await Slow.start_link(diary)
    await GenServer.stop(server)
    assert ends(diary) == [None]
    assert not process.alive(server.pid)


@simulated
async def test_stop_with_a_reason_ends_with_it_and_is_no_error() -> None:
    diary: list[Any] = []
    reason = Shutdown("maintenance")
    server = await Diary.start(diary, name="diary")
    process.monitor(server.pid)
    await GenServer.stop("diary", reason)
    assert ends(diary) == [reason]
    assert (await exit_of(server.pid)).error is reason


@simulated
async def test_stop_comes_after_what_was_asked_before() -> None:
    diary: list[Any] = []
    server = await Diary.start_link(diary)
    for number in range(3):
        GenServer.cast(server, number)
    await GenServer.stop(server)
    assert [entry[0] for entry in diary] == ["cast"] * 3 + ["terminate"]


@simulated
async def test_stop_says_when_the_end_had_another_reason() -> None:
    server = await Diary.start([])

    def crash() -> None:
        raise error

    error = ValueError("first")
    GenServer.cast(server, crash)
    with pytest.raises(CallExit) as caught:
        await GenServer.stop(server)
    assert caught.value.reason is error


@simulated
async def test_stop_waits_only_as_long_as_it_is_told() -> None:
    class Busy(GenServer):
        async def handle_cast(self, request: float) -> None:
            await sleep(request)

    server = await Busy.start()
    GenServer.cast(server, 10)
    with pytest.raises(CallTimeout):
        await GenServer.stop(server, timeout="1s")
    assert process.alive(server.pid)
    await sleep(10)
    assert not process.alive(server.pid)


@simulated
async def test_stop_of_who_is_not_there_says_so() -> None:
    server = await Counter.start()
    await server.stop()
    for ref in (server, server.pid, "nobody"):
        with pytest.raises(CallExit) as caught:
            await GenServer.stop(ref)
        assert isinstance(caught.value.reason, NoProcess)


@simulated
async def test_stop_takes_an_exception_as_its_reason() -> None:
    server = await Counter.start()
    with pytest.raises(TypeError, match="exit reason"):
        await server.stop("because")  # pyright: ignore[reportArgumentType]
    assert process.alive(server.pid)


@simulated
async def test_calls_that_wait_when_a_server_is_stopped_fail_at_once() -> None:
    class Silent(GenServer):
        async def init(self, kept: list[Any]) -> None:
            self.kept = kept

        async def handle_call(self, request: Any, frm: Request[Any]) -> Any:
            self.kept.append(frm)
            await sleep("1s")
            return 1

    async def ask(server: ServerHandle) -> None:
        with pytest.raises(CallExit) as caught:
            await server.call("second", timeout=None)
        assert caught.value.reason is None

    server = await Silent.start_link([])
    first = asyncio.ensure_future(server.call("first"))
    stop = asyncio.ensure_future(others_rest())
    await stop
    stopping = asyncio.ensure_future(server.stop())
    await others_rest()
    await ask(server)
    assert await first == 1
    await stopping
