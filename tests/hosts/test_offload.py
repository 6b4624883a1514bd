"""`offload`: a blocking call in a thread."""

import asyncio
import contextvars
import threading
from typing import Any

import pytest

import perdure
from perdure import process
from perdure.errors import Killed
from perdure.process import Exit, offload, threads
from perdure.process.threads import ThreadPool

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


def test_a_blocking_call_runs_in_another_thread_and_gives_its_value() -> None:
    async def main() -> bool:
        return await offload(threading.get_ident) != threading.get_ident()

    assert perdure.run(main)


def test_its_failure_is_raised_at_the_wait() -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    async def main() -> None:
        with pytest.raises(ValueError, match="here"):
            await offload(fail, text="here")

    perdure.run(main)


def test_context_variables_are_kept() -> None:
    async def main() -> str:
        tenant.set("acme")
        return await offload(tenant.get)

    assert perdure.run(main) == "acme"


def test_the_loop_goes_on_meanwhile_and_the_thread_may_send() -> None:
    go = threading.Event()

    def blocking(to: perdure.process.Pid) -> str:
        process.send(to, "from the thread")
        go.wait(10)
        return "done"

    async def main() -> None:
        async def waits() -> str:
            return await offload(blocking, me)

        me = process.self_pid()
        task = perdure.otp.Task.create(waits)
        assert (await process.inbox().receive()).topic == "from the thread"
        go.set()
        assert await task == "done"

    perdure.run(main)


def test_a_killed_owner_does_not_wait_for_its_thread() -> None:
    go = threading.Event()

    async def main() -> None:
        async def waits() -> None:
            await offload(go.wait, 30)

        pid = process.spawn_monitored(waits)
        await perdure.process.sleep(0)
        await perdure.process.sleep(0)
        process.kill(pid)
        event = await process.events().receive()
        assert isinstance(event, Exit)
        assert isinstance(event.result.error, Killed)
        go.set()

    perdure.run(main)


def test_more_calls_than_threads_wait_their_turn() -> None:
    async def main() -> Any:
        stream = perdure.otp.async_stream(range(200), _one, max_concurrency=200, timeout=None)
        return await stream.to_list()

    assert perdure.run(main) == [perdure.otp.Ok(number) for number in range(200)]


async def _one(number: int) -> int:
    return await offload(int, number)


def test_a_call_that_was_left_behind_gives_its_place_to_another() -> None:
    async def main() -> None:
        pool, go = ThreadPool("test", 1), threading.Event()
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def block() -> None:
            loop.call_soon_threadsafe(started.set)
            go.wait(30)

        stuck = asyncio.ensure_future(pool.call(block, owner="stuck"))
        await started.wait()
        stuck.cancel()
        assert await pool.call(lambda: "done") == "done"
        (ended,) = pool.unfinished(lambda owner: owner == "stuck")
        go.set()
        await asyncio.wrap_future(ended)
        assert pool.unfinished(lambda _: True) == []

    perdure.run(main)


def test_a_thread_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_IDLE_TIME", 0.001)

    async def main() -> None:
        pool = ThreadPool("test", 1)
        thread = await pool.call(threading.current_thread)
        thread.join(30)
        assert not thread.is_alive()
        assert await pool.call(lambda: "again") == "again"

    perdure.run(main)
