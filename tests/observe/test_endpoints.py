"""Probes and metrics over HTTP, from a worker's own thread."""

import socket
import threading
from collections.abc import Awaitable, Callable
from http.client import HTTPConnection
from typing import Any

import pytest

from perdure.app import App
from perdure.base.errors import StoreUnreachable
from perdure.observe.endpoints import Endpoints, why_unhealthy, why_workers_unready
from perdure.observe.prometheus import Metrics
from perdure.observe.server import serving
from perdure.store.store import Store
from tests.support.engine import durable, nodes
from tests.support.store import sql

Asgi = Callable[..., Awaitable[None]]


async def get(app: Asgi, path: str, method: str = "GET", **scope: Any) -> tuple[int, str]:
    """Ask an ASGI app."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    await app({"type": "http", "method": method, "path": path, **scope}, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


def fetch(port: int, path: str) -> tuple[int, str]:
    """Ask over HTTP."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@durable
async def test_a_worker_is_ready_once_it_is_registered_and_until_it_drains(app: App) -> None:
    endpoints = Endpoints(app.store, Metrics(), lambda: app.running_workers, needs_worker=True)
    assert await get(endpoints, "/readyz") == (503, "the worker is not up\n")
    async with app.running():
        assert await get(endpoints, "/readyz") == (200, "ok\n")
        assert await get(endpoints, "/healthz") == (200, "ok\n")
        (node,) = nodes(app)
        node.drain()
        assert await get(endpoints, "/readyz") == (503, "the worker drains\n")
        assert await get(endpoints, "/healthz") == (200, "ok\n")


@durable
async def test_a_worker_that_cannot_renew_is_not_ready_and_one_without_a_pulse_not_healthy(
    app: App,
) -> None:
    async with app.running():
        (node,) = nodes(app)
        assert why_workers_unready([node]) is None
        assert why_unhealthy([node]) is None
        node.registered_at = node.loop.time() - 1000
        assert "could not renew" in (why_workers_unready([node]) or "")
        node.pulse_at = node.loop.time() - 1000
        assert "no pulse" in (why_unhealthy([node]) or "")


@durable
async def test_a_store_with_another_schema_is_not_ready(app: App) -> None:
    endpoints = Endpoints(app.store)
    assert await get(endpoints, "/readyz") == (200, "ok\n")
    sql(app.url, "INSERT INTO perdure_migration VALUES (9999, 'later', 'x')")
    status, text = await get(endpoints, "/readyz")
    assert (status, "schema 9999" in text) == (503, True)


async def test_a_store_that_is_down_is_not_ready_and_its_password_is_not_told() -> None:
    async def store() -> Store:
        raise StoreUnreachable("postgresql://kim:hunter2@db/x does not answer")

    status, text = await get(Endpoints(store), "/readyz")
    assert (status, "hunter2" in text, "does not answer" in text) == (503, False, True)


@durable
async def test_paths_are_below_the_prefix_and_others_are_not_there(app: App) -> None:
    endpoints = Endpoints(app.store, Metrics())
    assert (await get(endpoints, "/ops/healthz", root_path="/ops"))[0] == 200
    assert (await get(endpoints, "/other"))[0] == 404
    assert (await get(endpoints, "/metrics", "POST"))[0] == 405
    assert await get(endpoints, "/metrics", "HEAD") == (200, "")
    assert (await get(Endpoints(app.store), "/metrics"))[0] == 404
    status, text = await get(endpoints, "/metrics")
    assert (status, "perdure_store_up 1.0" in text) == (200, True)


def test_a_server_in_a_thread_answers_and_ends_with_its_block() -> None:
    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    with serving(hello, "127.0.0.1", 0) as port:
        assert port is not None
        assert fetch(port, "/x") == (200, "/x")
        idle = socket.create_connection(("127.0.0.1", port))  # who says nothing holds nothing up
    idle.close()
    assert not [each for each in threading.enumerate() if each.name == "perdure-metrics"]
    with pytest.raises(ConnectionError):
        fetch(port, "/x")


def test_a_port_that_is_taken_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None: ...

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(never, "127.0.0.1", port) as served:
            assert served is None
    assert "cannot be served" in caplog.text
