"""GenServer: how it is started, named and supervised."""

import asyncio
import logging
from typing import Any

import pytest

from perdure import process
from perdure.base.restart import Restart
from perdure.errors import NameTaken, StartError
from perdure.otp.server import GenServer, ServerHandle, Stop
from perdure.otp.supervision.spec import IGNORE
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import sleep
from perdure.testing import simulate, simulated
from tests.support.otp_servers import Add, Counter, Diary
from tests.support.processes import exit_of, others_rest

# Starting


@simulated
async def test_a_server_starts_with_the_arguments_of_init() -> None:
    counter = await Counter.start_link(5)
    assert await GenServer.call(counter, "count") == 5


@simulated
async def test_a_start_waits_until_init_is_done() -> None:
    class Slow(GenServer):
        async def init(self, log: list[str]) -> None:
            await sleep("1s")
            log.append("ready")

    log: list[str] = []
    await Slow.start_link(log)
    assert log == ["ready"]


@simulated
async def test_an_init_that_raises_fails_the_start_and_does_not_kill_the_starter() -> None:
    class Broken(GenServer):
        async def init(self) -> None:
            raise ValueError("no")

    for start in (Broken.start, Broken.start_link):
        with pytest.raises(StartError, match="no") as caught:
            await start()
        assert isinstance(caught.value.reason, ValueError)


@simulated
async def test_an_init_that_takes_too_long_fails_the_start_and_is_ended() -> None:
    class Slow(GenServer):
        async def init(self) -> None:
            await sleep("1h")

    with pytest.raises(StartError, match="not ready within 1s") as caught:
        await Slow.start_link(timeout="1s")
    assert isinstance(caught.value.reason, TimeoutError)
    await others_rest()
    assert len(process.processes()) == 1


@simulated
async def test_an_init_that_stops_fails_the_start_with_its_reason() -> None:
    class Unwilling(GenServer):
        def init(self, reason: BaseException | None) -> Stop:
            return Stop(reason)

    reason = ValueError("not today")
    with pytest.raises(StartError) as caught:
        await Unwilling.start_link(reason)
    assert caught.value.reason is reason
    with pytest.raises(StartError):
        await Unwilling.start_link(None)


@simulated
async def test_an_init_that_ignores_leaves_no_process_and_is_no_failure() -> None:
    class Needless(GenServer):
        async def init(self) -> Any:
            return IGNORE

    assert await Needless.start_link(name="needless") is IGNORE
    assert process.whereis("needless") is None


@simulated
async def test_arguments_without_an_init_are_refused() -> None:
    with pytest.raises(StartError, match="takes no arguments"):
        await GenServer.start_link(1)


@simulated
async def test_a_linked_server_takes_its_starter_along_and_an_unlinked_does_not() -> None:
    async def owner(start: Any) -> None:
        server = await start([])
        process.kill(server.pid)
        await sleep("1s")

    linked = process.spawn_monitored(owner, Diary.start_link)
    assert not (await exit_of(linked)).ok
    unlinked = process.spawn_monitored(owner, Diary.start)
    assert (await exit_of(unlinked)).ok


@simulated
async def test_a_crash_report_names_the_server_and_its_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = await Counter.start(41)
    GenServer.cast(server, "no Add")
    await others_rest()
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "Counter(41)" in record.getMessage()
    assert "AttributeError" in record.getMessage()


# Names


@simulated
async def test_a_server_is_reached_by_handle_by_pid_and_by_name() -> None:
    counter = await Counter.start_link(1, name="counter")
    for ref in (counter, counter.pid, "counter"):
        assert await GenServer.call(ref, Add(1)) > 1
        GenServer.cast(ref, Add(10))
    assert await counter.call("count") == 34


@simulated
async def test_a_taken_name_is_refused_and_the_holder_is_told() -> None:
    first = await Counter.start_link(name="counter")
    with pytest.raises(NameTaken) as caught:
        await Counter.start(name="counter")
    assert caught.value.pid is first.pid


@simulated
async def test_of_two_starts_at_the_same_time_one_gets_the_name() -> None:
    async def contend() -> ServerHandle | NameTaken:
        try:
            return await Counter.start(name="counter")
        except NameTaken as error:
            return error

    results = await asyncio.gather(contend(), contend())
    assert sorted(type(result).__name__ for result in results) == ["NameTaken", "ServerHandle"]


@simulated
async def test_a_bad_name_is_refused_before_anything_runs() -> None:
    for name in ("", 3):
        with pytest.raises((ValueError, TypeError)):
            await Counter.start_link(name=name)  # pyright: ignore[reportArgumentType]
    assert len(process.processes()) == 1


@simulated
async def test_a_name_is_free_when_its_server_is_stopped() -> None:
    for _ in range(3):
        counter = await Counter.start_link(name="counter")
        await counter.stop()


# Supervision


def test_a_child_spec_says_how_it_is_supervised() -> None:
    spec = Counter.child(5, name="counter", restart="transient", shutdown=2)
    assert (spec.id, spec.restart, spec.shutdown) == ("counter", Restart.TRANSIENT, 2)
    assert Counter.child(id="a").id == "a"
    assert Counter.child().id == "Counter"
    assert Counter.child_spec(3).restart is Restart.PERMANENT


@simulated
async def test_the_start_of_a_child_spec_starts_a_linked_server() -> None:
    handle = await Counter.child(5, name="counter").start()
    assert handle.pid in process.info(process.self_pid()).links
    assert await GenServer.call("counter", "count") == 5


@simulated
async def test_a_server_can_be_used_in_a_with_block() -> None:
    async with await Counter.start_link() as counter:
        await counter.call(Add(1))
    assert not process.alive(counter.pid)
    async with await Counter.start() as counter:
        await counter.stop()


@simulated
async def test_a_plain_process_that_answers_requests_can_be_called_as_a_server() -> None:
    async def plain() -> None:
        request = await process.requests().receive()
        request.reply(request.body + 1)

    assert await GenServer.call(process.spawn(plain), 1) == 2


@simulated
async def test_the_handle_prints_what_it_is() -> None:
    counter = await Counter.start_link()
    assert repr(counter) == f"<Counter {counter.pid}>"


@simulated
async def test_the_keyword_arguments_of_init_are_passed_on() -> None:
    class Named(GenServer):
        async def init(self, first: int, *, unit: str = "s") -> None:
            self.text = f"{first} {unit}"

        def handle_call(self, request: object, frm: object) -> str:
            return self.text

    for server in (await Named.start(1, unit="ms"), await Named.start_link(1, unit="ms")):
        assert await server.call("text") == "1 ms"
    async with Supervisor([Named.child(2, unit="h", name="named")]):
        assert await GenServer.call("named", "text") == "2 h"


@simulated
async def test_a_server_without_init_takes_no_keyword_arguments() -> None:
    with pytest.raises(StartError, match="it has no init"):
        await GenServer.start(unit="ms")


def test_a_report_names_the_keyword_arguments(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(GenServer):
        def init(self, first: int, *, unit: str) -> None:
            raise ValueError(first, unit)

    async def main() -> None:
        with pytest.raises(StartError):
            await Broken.start(1, unit="ms")

    simulate(main)
    assert "Broken(1, unit='ms')" in caplog.text
