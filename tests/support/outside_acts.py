"""What code can do to the world outside, with every common client, and a server that notices it."""

import asyncio
import multiprocessing
import os
import smtplib
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Condition, Thread
from typing import Any, NamedTuple

from perdure.errors import UnrecordedIO

PATIENCE = 5.0  # seconds for a call that reaches nobody who answers
LONG = 60.0  # seconds within which a connection that was made is accepted


class Outside(ThreadingHTTPServer):
    """An HTTP server that keeps connections open, and a file that subprocesses touch."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.connections = 0
        self._counted = Condition()
        self.requests: list[str] = []
        self.port: int = self.server_address[1]
        self.site = f"http://127.0.0.1:{self.port}"
        self.mark = folder / "mark"
        self.touch = [sys.executable, "-c", f"open({str(self.mark)!r}, 'a').close()"]
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(("127.0.0.1", 0))
        self.datagrams.setblocking(False)

    def get_request(self) -> tuple[Any, Any]:
        """Count a connection."""
        found = super().get_request()
        with self._counted:
            self.connections += 1
            self._counted.notify_all()
        return found

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of what is no HTTP."""

    @property
    def noticed(self) -> bool:
        """Whether anything has been done to the outside."""
        with suppress(BlockingIOError):
            self.connections += bool(self.datagrams.recv(1))
        return bool(self.connections or self.mark.exists())

    def counts(self, connections: int) -> bool:
        """Wait until it has noticed so many connections; whether it has not noticed more."""
        with self._counted:
            self._counted.wait_for(lambda: self.connections >= connections, LONG)
        return self.connections == connections

    def notices(self) -> bool:
        """Wait until it has noticed something, which has been done; whether it has."""
        return self.noticed or self.counts(1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answer, and note the request."""
        server: Any = self.server
        self.rfile.read(int(self.headers.get("content-length", 0)))
        server.requests.append(f"{self.command} {self.path}")
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_GET  # noqa: N815 - a name of the standard library

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as in the base
        """Say nothing."""


@contextmanager
def outside(folder: Path) -> Generator[Outside]:
    """Serve while the block runs."""
    with Outside(folder) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            server.datagrams.close()
            thread.join()


class Act(NamedTuple):
    """Something that is done to the outside: by a plain or an async function."""

    name: str
    do: Callable[[Outside], Any]
    needs: str = ""  # the library

    @property
    def is_possible(self) -> bool:
        """Whether its library is installed."""
        return not self.needs or find_spec(self.needs) is not None


def _httpx(at: Outside) -> None:
    httpx = import_module("httpx")
    httpx.post(at.site)


async def _httpx_async(at: Outside) -> None:
    httpx = import_module("httpx")
    async with httpx.AsyncClient() as client:
        await client.post(at.site)


async def _httpx2(at: Outside) -> None:
    httpx2 = import_module("httpx2")
    async with httpx2.AsyncClient() as client:
        await client.post(at.site)


def _requests(at: Outside) -> None:
    requests = import_module("requests")
    requests.post(at.site, timeout=PATIENCE)


def _urllib3(at: Outside) -> None:
    urllib3 = import_module("urllib3")
    urllib3.PoolManager().request("POST", at.site)


def _urllib(at: Outside) -> None:
    urllib.request.urlopen(at.site).close()


async def _aiohttp(at: Outside) -> None:
    aiohttp = import_module("aiohttp")
    async with aiohttp.ClientSession() as session, session.post(at.site):
        pass


def _psycopg(at: Outside) -> None:
    psycopg = import_module("psycopg")
    psycopg.connect(f"host=127.0.0.1 port={at.port} connect_timeout=2")


async def _psycopg_async(at: Outside) -> None:
    psycopg = import_module("psycopg")
    await psycopg.AsyncConnection.connect(f"host=127.0.0.1 port={at.port} connect_timeout=2")


async def _asyncpg(at: Outside) -> None:
    asyncpg = import_module("asyncpg")
    await asyncpg.connect(host="127.0.0.1", port=at.port, timeout=PATIENCE, user="u", database="d")


def _redis(at: Outside) -> None:
    redis = import_module("redis")
    redis.Redis(port=at.port, socket_timeout=PATIENCE).ping()


async def _redis_async(at: Outside) -> None:
    redis = import_module("redis.asyncio")
    async with redis.Redis(port=at.port, socket_timeout=PATIENCE) as client:
        await client.ping()


def _plain(value: bytes) -> bytes:
    return value


def _grpc(at: Outside) -> None:
    grpc = import_module("grpc")
    with grpc.insecure_channel(f"127.0.0.1:{at.port}") as channel:
        call = channel.unary_unary("/bank.Bank/Pay", _plain, _plain)
        call(b"", timeout=PATIENCE)


async def _grpc_async(at: Outside) -> None:
    aio = import_module("grpc.aio")
    async with aio.insecure_channel(f"127.0.0.1:{at.port}") as channel:
        call = channel.unary_unary("/bank.Bank/Pay", _plain, _plain)
        await call(b"", timeout=PATIENCE)


def _mail(at: Outside) -> None:
    smtplib.SMTP("127.0.0.1", at.port, timeout=PATIENCE)


def _socket(at: Outside) -> None:
    socket.create_connection(("127.0.0.1", at.port)).close()


async def _stream(at: Outside) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", at.port)
    writer.close()


def _datagram(at: Outside) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", at.datagrams.getsockname())


def _subprocess(at: Outside) -> None:
    subprocess.run(at.touch, check=True)


async def _subprocess_async(at: Outside) -> None:
    child = await asyncio.create_subprocess_exec(*at.touch)
    await child.wait()


def _system(at: Outside) -> None:
    os.system(f": > '{at.mark}'")  # pyright: ignore[reportDeprecated]  people use it


def _posix_spawn(at: Outside) -> None:
    os.waitpid(os.posix_spawn(sys.executable, at.touch, os.environ), 0)


def _multiprocessing(at: Outside) -> None:
    child = multiprocessing.get_context("spawn").Process(target=at.mark.touch)
    child.start()
    child.join()


def _fork(at: Outside) -> None:
    child = os.fork()
    if child == 0:
        os.close(os.open(at.mark, os.O_CREAT))
        os._exit(0)
    os.waitpid(child, 0)


ACTS = [
    Act("httpx", _httpx, "httpx"),
    Act("httpx-async", _httpx_async, "httpx"),
    Act("httpx2", _httpx2, "httpx2"),
    Act("requests", _requests, "requests"),
    Act("urllib3", _urllib3, "urllib3"),
    Act("urllib", _urllib),
    Act("aiohttp", _aiohttp, "aiohttp"),
    Act("psycopg", _psycopg, "psycopg"),
    Act("psycopg-async", _psycopg_async, "psycopg"),
    Act("asyncpg", _asyncpg, "asyncpg"),
    Act("redis", _redis, "redis"),
    Act("redis-async", _redis_async, "redis"),
    Act("grpc", _grpc, "grpc"),
    Act("grpc-async", _grpc_async, "grpc"),
    Act("mail", _mail),
    Act("socket", _socket),
    Act("stream", _stream),
    Act("datagram", _datagram),
    Act("subprocess", _subprocess),
    Act("subprocess-async", _subprocess_async),
    Act("system", _system),
    Act("posix_spawn", _posix_spawn),
    Act("multiprocessing", _multiprocessing),
    Act("fork", _fork),
]


async def do(act: Act, at: Outside) -> None:
    """Do it here; the server does not speak every language, and that is no matter."""
    try:
        done = act.do(at)
        if asyncio.iscoroutine(done):
            await done
    except UnrecordedIO:
        raise
    except Exception:  # noqa: BLE001 - the other side has hung up, in some words
        pass
