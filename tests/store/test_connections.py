"""The connections of a process to PostgreSQL: how many, who is told, and through a pooler."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

import psycopg
import pytest

from perdure.base.errors import StoreError, StoreUnreachable
from perdure.base.retry import pause
from perdure.base.secret import without_secrets
from perdure.store.open import open_store
from perdure.store.postgres.connection import Target, translate
from perdure.store.store import Store
from tests.support.store import claim_one, new_job, sql


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Store]:
    store = open_store(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def named(url: str, name: str) -> str:
    return f"{url}&application_name={name}"


def connections(url: str, name: str) -> list[int]:
    """Return the server's processes for the connections of this name."""
    found = sql(url, f"SELECT pid FROM pg_stat_activity WHERE application_name = '{name}'")
    return [each[0] for each in found]


async def test_a_process_that_watches_and_renews_has_three_connections(postgres_url: str) -> None:
    async with opened(named(postgres_url, "three")) as store:
        told = asyncio.Event()
        unwatch = store.watch(told.set)
        await store.submit([new_job("a")])
        claim = await claim_one(store)
        held = [("a", claim.epoch)]
        kept = await asyncio.to_thread(store.renew_blocking, "w1", held, 60.0)
        assert kept == {"a"}
        assert await store.job("a") is not None
        assert len(connections(postgres_url, "three")) == 3
        unwatch()


async def test_a_reader_that_lost_its_connection_is_told_again(postgres_url: str) -> None:
    async with opened(named(postgres_url, "lost")) as store, opened(postgres_url) as other:
        told = asyncio.Event()
        unwatch = store.watch(told.set)
        await asyncio.wait_for(told.wait(), 10)  # it listens now
        before = set(connections(postgres_url, "lost"))
        sql(
            postgres_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'lost' AND query LIKE 'LISTEN%'",
        )
        while not set(connections(postgres_url, "lost")) - before:
            await pause(0.01)
        told.clear()
        while not told.is_set():  # the first one may come before it listens again
            await other.submit([new_job(f"j{asyncio.get_running_loop().time()}")])
            await pause(0.02)
        unwatch()


async def test_a_notification_that_arrives_during_a_query_is_told(postgres_url: str) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        told = asyncio.Event()
        unwatch = store.watch(told.set)
        await asyncio.wait_for(told.wait(), 10)
        told.clear()

        async def ask() -> None:
            while not told.is_set():
                await store.counts()

        async with asyncio.timeout(10):
            await asyncio.gather(ask(), other.submit([new_job("a")]))
        unwatch()


async def test_through_a_pooler_a_listen_url_still_tells_of_changes(postgres_url: str) -> None:
    direct = quote(postgres_url.rpartition("&schema=")[0], safe="")
    pooled = f"{postgres_url}&pgbouncer=1&listen_url={direct}"
    async with opened(pooled) as store, opened(pooled) as other:
        told = asyncio.Event()
        unwatch = store.watch(told.set)
        await asyncio.wait_for(told.wait(), 10)
        told.clear()
        await other.submit([new_job("a")])
        await asyncio.wait_for(told.wait(), 10)
        claim = await claim_one(store)
        held = [("a", claim.epoch)]
        assert await asyncio.to_thread(store.renew_blocking, "w1", held, 60.0) == {"a"}
        unwatch()


ERRORS = [
    'prepared statement "perdure_write" does not exist',
    'prepared statement "_pg3_0" already exists',
    "unsupported startup parameter: options",
    "LISTEN is not supported in transaction pooling mode",
]


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_of_a_pooler_says_what_to_add_to_the_url(text: str) -> None:
    target = Target("postgresql://kim@localhost/jobs")
    for error in (psycopg.OperationalError(text), psycopg.ProgrammingError(text)):
        assert "add pgbouncer=1 to the URL, and listen_url=" in str(translate(error, target))
    pooled = Target("postgresql://kim@localhost/jobs?pgbouncer=1")
    assert "listen_url" not in str(translate(psycopg.OperationalError(text), pooled))


def test_another_error_says_nothing_of_poolers() -> None:
    target = Target("postgresql://kim@localhost/jobs")
    for text in ("connection refused", 'relation "job" does not exist', "deadlock detected"):
        assert "pgbouncer" not in str(translate(psycopg.OperationalError(text), target))


async def test_a_pooler_that_refuses_the_options_of_a_session_is_recognised() -> None:
    """PgBouncer's answer to the startup packet, word for word."""
    async with pooler() as port:
        store = open_store(
            f"postgresql://kim@127.0.0.1:{port}/jobs?sslmode=disable&gssencmode=disable"
        )
        with pytest.raises(StoreUnreachable, match=r"PgBouncer.*pgbouncer=1"):
            await store.open()


@asynccontextmanager
async def pooler() -> AsyncGenerator[int]:
    message = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
    answer = b"E" + (len(message) + 4).to_bytes(4, "big") + message

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_the_password_of_a_listen_url_is_never_shown() -> None:
    inner = quote("postgresql://kim:hunter22@db/jobs", safe="")
    url = f"postgresql://kim@pool/jobs?pgbouncer=1&listen_url={inner}"
    target = Target(url)
    assert "hunter22" not in without_secrets(url)
    assert "hunter22" not in target.hide("connection to kim:hunter22@db failed")
    with pytest.raises(StoreError) as refused:
        Target(f"postgresql://kim@pool/jobs?listen_url={inner}&nonsense=1")
    assert not re.search("hunter22", str(refused.value))
