"""`perdure serve`, the server behind it, and the page."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import App
from perdure.errors import DefinitionError
from perdure.web import page, server
from perdure.web.server import ServerSettings
from tests.support.web_client import TrustingGate

INDEX = '<meta name="perdure-base" content="/"><script src="/assets/page-1.js"></script>'


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.com"])
def test_an_address_that_others_reach_needs_tls_or_a_proxy(host: str, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="in the clear"):
        ServerSettings(host=host)
    ServerSettings(host=host, trusted_proxy="10.0.0.1")
    ServerSettings(host=host, tls_certificate=tmp_path, tls_key=tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_an_address_of_this_machine_needs_nothing(host: str) -> None:
    assert ServerSettings(host=host).scheme == "http"


def test_the_sockets_of_connections_send_at_once() -> None:
    with server.listener_at("127.0.0.1", 0) as found:
        assert found.proto == socket.IPPROTO_TCP  # by it asyncio knows that it is TCP


async def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with App(url) as app:
        await app.store()
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "perdure", "serve", "--url", url, "--port", "0",
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert program.stdout is not None
    said = (await program.stdout.readline()).decode()
    address = said.split()[1]
    async with httpx.AsyncClient(base_url=address) as client:
        assert (await client.get("/api/v1/jobs")).status_code == 401
        link = (await program.stdout.readline()).decode().split("link=")[1].strip()
        answer = await client.post("/login", data={"link": link}, headers={"origin": address})
        assert answer.status_code == 303
        assert (await client.get("/api/v1/jobs")).status_code == 200
    program.send_signal(signal.SIGTERM)
    assert await program.wait() == 0


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "assets" / "page-1.js").write_text("let x;")
    (tmp_path / "secret.txt").write_text("secret")
    monkeypatch.setattr(page, "STATIC", tmp_path)


def client_of(prefix: str, folder: Path) -> httpx.AsyncClient:
    """A client of the app, mounted in another one."""
    asgi = App(f"sqlite:///{folder / 'jobs.db'}").asgi(access=TrustingGate())
    outer = Starlette(routes=[Mount(prefix, asgi)]) if prefix else asgi
    transport = httpx.ASGITransport(app=outer)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("prefix", ["", "/ops", "/a/b"])
async def test_the_page_answers_every_path_at_its_prefix(prefix: str, tmp_path: Path) -> None:
    async with client_of(prefix, tmp_path) as client:
        for path in ("/", "/jobs", "/jobs/abc?tab=raw"):
            answer = await client.get(prefix + path)
            assert f'src="{prefix}/assets/page-1.js"' in answer.text
            assert f'content="{prefix}/"' in answer.text
            assert answer.headers["cache-control"] == "no-store"
        asset = await client.get(f"{prefix}/assets/page-1.js")
        assert asset.text == "let x;"
        assert "immutable" in asset.headers["cache-control"]
        for path in ("/assets/none.js", "/assets/..%2fsecret.txt", "/assets/%2e%2e/secret.txt"):
            answer = await client.get(prefix + path)
            assert "secret" not in answer.text
        assert (await client.get(f"{prefix}/api/v1/nothing")).status_code == 404


async def test_without_the_built_page_a_text_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "STATIC", tmp_path)
    async with client_of("", tmp_path) as client:
        assert "scripts/page" in (await client.get("/")).text
