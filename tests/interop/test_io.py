"""Real input and output inside processes: threads, sockets, subprocesses."""

import asyncio
import sys
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar

import pytest

import perdure
from perdure import process
from perdure.errors import Killed, ProcError, Shutdown
from perdure.process import Pid
from tests.support.processes import end_of, exit_of, forever

Handler = Callable[[StreamReader, StreamWriter], Awaitable[None]]
request_id: ContextVar[str] = ContextVar("request_id")


# Threads


def test_a_thread_works_for_a_process() -> None:
    async def main() -> None:
        here = threading.get_ident()
        request_id.set("mine")
        there = await asyncio.to_thread(threading.get_ident)

        assert there != here
        assert await asyncio.to_thread(request_id.get) == "mine"
        assert await asyncio.get_running_loop().run_in_executor(None, max, 1, 2) == 2

    perdure.run(main)


def test_an_error_of_a_thread_comes_to_the_process() -> None:
    def fail() -> None:
        raise ValueError("in a thread")

    async def child() -> None:
        await asyncio.to_thread(fail)

    async def main() -> None:
        result = await end_of(child)
        assert isinstance(result.error, ValueError)

    perdure.run(main)


def test_other_processes_run_while_a_thread_works() -> None:
    async def main() -> None:
        release = threading.Event()

        async def child() -> None:
            release.set()

        process.spawn(child)
        assert await asyncio.to_thread(release.wait, 30)

    perdure.run(main)


def test_a_process_ends_at_once_although_its_thread_works_on() -> None:
    async def main() -> None:
        started, release, finished = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            started.set()
            release.wait(30)
            finished.set()

        async def child() -> None:
            await asyncio.to_thread(work)

        pid = process.spawn_monitored(child)
        await asyncio.to_thread(started.wait, 30)
        process.kill(pid)

        assert isinstance((await exit_of(pid)).error, Killed)
        assert not finished.is_set()
        release.set()
        assert await asyncio.to_thread(finished.wait, 30)

    perdure.run(main)


def test_a_send_from_a_thread_arrives_at_once_or_is_refused() -> None:
    async def main() -> str:
        woken = threading.Event()

        async def child() -> None:
            await process.inbox().receive()
            woken.set()

        def work() -> str:
            assert not woken.wait(0.05)  # meanwhile the loop falls asleep
            try:
                process.send(pid, "from a thread")
            except (RuntimeError, ProcError):
                return "refused"
            return "woken" if woken.wait(2) else "asleep"

        pid = process.spawn(child)
        return await asyncio.to_thread(work)

    assert perdure.run(main) in {"refused", "woken"}


def test_a_thread_reaches_a_process_by_the_loop() -> None:
    async def main() -> None:
        loop, pid = asyncio.get_running_loop(), process.self_pid()

        def work() -> None:
            loop.call_soon_threadsafe(process.send, pid, "from a thread", 1)

        await asyncio.to_thread(work)
        assert (await process.inbox().receive()).payload == 1

    perdure.run(main)


# Sockets


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def serve(handler: Handler, parent: Pid) -> None:
    async with serving(handler) as port:
        process.send(parent, "port", port)
        await process.inbox().receive()


async def port_of(server: Pid) -> int:
    message = await process.inbox().receive()
    assert message.sender is server
    return message.payload


async def ask(port: int, text: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{text}\n".encode())
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def test_processes_talk_over_a_socket() -> None:
    async def main() -> None:
        server = process.spawn_linked(serve, echo, process.self_pid())
        port = await port_of(server)

        answers = await asyncio.gather(*(ask(port, f"hello {n}") for n in range(10)))
        client = process.spawn_monitored(ask, port, "from a process")

        assert answers == [f"HELLO {n}" for n in range(10)]
        assert (await exit_of(client)).value == "FROM A PROCESS"

    perdure.run(main)


def test_a_connection_is_handled_by_the_process_that_serves_and_ends_with_it() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def handler(reader: StreamReader, writer: StreamWriter) -> None:
            try:
                writer.write(f"{process.self_pid()}\n".encode())
                await forever()
            finally:
                ended.append("handler")
                writer.close()

        server = process.spawn_monitored(serve, handler, process.self_pid())
        answer = await ask(await port_of(server), "who are you?")
        process.exit(Shutdown(), server)
        await exit_of(server)

        assert answer == str(server)
        assert ended == ["handler"]

    perdure.run(main)


def test_a_timeout_ends_a_read_that_brings_nothing() -> None:
    async def silent(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        server = process.spawn_linked(serve, silent, process.self_pid())
        port = await port_of(server)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ask(port, "hello?")

    perdure.run(main)


def test_a_killed_client_closes_its_connection() -> None:
    async def main() -> None:
        connected, closed = asyncio.Event(), asyncio.Event()

        async def handler(reader: StreamReader, writer: StreamWriter) -> None:
            await reader.readline()
            connected.set()
            await reader.read()
            closed.set()
            writer.close()

        server = process.spawn_linked(serve, handler, process.self_pid())
        client = process.spawn_monitored(ask, await port_of(server), "hello")
        await connected.wait()
        process.kill(client)
        await closed.wait()

        assert isinstance((await exit_of(client)).error, Killed)

    perdure.run(main)


# Subprocesses


def test_a_process_runs_a_program() -> None:
    async def main() -> None:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "print(input().upper())",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await program.communicate(b"hello\n")

        assert output.strip() == b"HELLO"
        assert program.returncode == 0

    perdure.run(main)


def test_the_cleanup_of_a_signalled_process_can_wait_for_its_program() -> None:
    async def main() -> None:
        codes: list[int] = []

        async def child(parent: Pid) -> None:
            program = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
            )
            process.send(parent, "started")
            try:
                await program.wait()
            finally:
                program.kill()
                codes.append(await program.wait())

        pid = process.spawn_monitored(child, process.self_pid())
        await process.inbox().receive()
        process.exit(Shutdown(), pid)

        assert isinstance((await exit_of(pid)).error, Shutdown)
        assert len(codes) == 1
        assert codes[0] != 0

    perdure.run(main)
