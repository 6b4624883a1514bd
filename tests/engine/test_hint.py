"""The hint in Redis may lie, be slow, be empty or be away: no harm comes of it."""

import asyncio
import importlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.base.errors import DefinitionError
from perdure.base.retry import pause
from perdure.engine.run.context import JobContext
from perdure.engine.worker import redis_hint
from perdure.engine.worker.redis_hint import RedisHint
from tests.support.engine import QUICK, durable

JOBS = 30

Answer = Callable[[str], bytes | None]

# A worker has its answer at once, so that no patience is needed for the test to end.
ANSWERS: dict[str, Answer] = {
    "says yes to everybody": lambda _: b"+OK\r\n",
    "says nonsense": lambda _: b"@#!?\r\n",
    "says that something is wrong": lambda _: b"-ERR out of order\r\n",
    "hangs up": lambda _: b"",
}
# A worker waits until its patience is over.
NO_TURN: dict[str, Answer] = {
    "says no to everybody": lambda name: b"$-1\r\n" if name == "SET" else b"+OK\r\n",
    "says nothing": lambda _: None,
}
# Longer than the busiest machine takes for an answer.
LONG = 30


@asynccontextmanager
async def fake_redis(answer: Answer, asked: list[str]) -> AsyncGenerator[str, None]:
    """Give the address of a server that speaks like Redis, and answers as it likes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append("a connection")
        with suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
            while line := await reader.readline():
                words: list[str] = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2].decode())
                asked.append(words[0].upper())
                greeting = words[0].upper() in ("CLIENT", "HELLO")
                said = b"+OK\r\n" if greeting else answer(words[0].upper())
                if said == b"":
                    break
                if said is not None:
                    writer.write(said)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.close()


async def work_with(app: App, hint: str) -> None:
    """Let two workers share jobs; each must be run by one of them, once."""
    ran: list[int] = []

    @app.job
    async def job(ctx: JobContext, number: int) -> int:
        ran.append(number)
        return number

    app.hint = hint
    async with app.running(), app.running():
        handles = await app.submit_many([job(number) for number in range(JOBS)])
        assert [await handle.result("20s") for handle in handles] == list(range(JOBS))
    assert sorted(ran) == list(range(JOBS))


async def work_beside(app: App, answer: Answer) -> list[str]:
    """Let two workers work with a server that answers like this; return what it was asked."""
    asked: list[str] = []
    async with fake_redis(answer, asked) as address:
        await work_with(app, address)
    return asked


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_whatever_the_hint_says_each_job_is_done_once(
    url: str, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_hint, "_PATIENCE", LONG)

    @durable
    async def case(app: App) -> None:
        assert "SET" in await work_beside(app, answer)

    case(url)


@pytest.mark.parametrize("answer", NO_TURN.values(), ids=NO_TURN)
def test_without_a_turn_each_job_is_done_once_all_the_same(url: str, answer: Answer) -> None:
    @durable
    async def case(app: App) -> None:
        # On a busy machine the patience may be over before the first question is sent.
        assert "a connection" in await work_beside(app, answer)

    case(url)


@durable
async def test_without_a_server_work_goes_on(app: App) -> None:
    await work_with(app, "redis://127.0.0.1:1")


def test_a_bad_address_is_refused() -> None:
    async def main() -> None:
        app = App("sqlite:///:memory:", worker=QUICK, hint="http://example.com")
        with pytest.raises(DefinitionError, match="invalid Redis URL"):
            RedisHint(app.hint or "", "x")

    perdure.run(main)


def test_turns_are_given_back_and_taken_only_from_their_holder(
    redis_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"unix://{redis_server}"
    monkeypatch.setattr(redis_hint, "_PATIENCE", LONG)
    monkeypatch.setattr(redis_hint, "_TURN_MS", LONG * 1000)

    async def main() -> None:
        hint, hurried = RedisHint(address, "turns"), RedisHint(address, "turns")
        async with hint.turn() as mine:
            assert mine.token is not None
            with monkeypatch.context() as patch:
                patch.setattr(redis_hint, "_PATIENCE", 0.02)
                async with hurried.turn() as theirs:
                    assert theirs.token is None  # not in time: it goes on without
            await mine.renew()
            assert mine.token is not None
        async with hint.turn() as again:
            assert again.token is not None
        await hint.close()
        await hurried.close()

    perdure.run(main)


STEAL = """
for _, name in ipairs(redis.call("keys", "perdure:claims:*")) do
  redis.call("set", name, "somebody else", "px", 1000)
end
"""

HARMS = {
    "nothing": ["PING"],
    "it forgets everything": ["FLUSHALL"],
    "it is slow": ["CLIENT", "PAUSE", "100"],
    "it gives turns to others": ["EVAL", STEAL, "0"],
}


async def connections(redis: Any) -> int:
    """Count those that were ever made to a server."""
    return int((await redis.info("stats"))["total_connections_received"])


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_whatever_happens_to_a_real_redis_each_job_is_done_once(
    url: str, redis_server: Path, harm: list[str]
) -> None:
    async def harm_on(redis: Any, done: asyncio.Event) -> None:
        while not done.is_set():
            await redis.execute_command(*harm)
            await pause(0.005)

    @durable
    async def case(app: App) -> None:
        address = f"unix://{redis_server}"
        client: Any = importlib.import_module("redis.asyncio")
        async with client.from_url(address) as redis:
            done, before = asyncio.Event(), await connections(redis)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(harm_on(redis, done))
                try:
                    await work_with(app, address)
                finally:
                    done.set()
            assert await connections(redis) > before, "the workers have not asked it"

    case(url)
