"""Clients that send slowly, or too often: what they hold is limited, on a real server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from perdure import App, Secret
from perdure.jobs.audit import INSTALLATION
from perdure.notify.links import LinkTokens
from perdure.web.access.gate import Access
from perdure.web.access.rates import Rate
from perdure.web.access.secret_text import new_token
from perdure.web.access.settings import AccessSettings
from perdure.web.body import RequestLimits
from perdure.web.server import listener_at
from tests.support.browser_like import signed_in, web_of
from tests.support.live_server import served
from tests.support.web_client import TrustingGate

LINKS = LinkTokens((Secret("a key of at least thirty-two bytes, for tests"),))
SUBMIT = (
    b"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"x-who: kim@default operator\r\n"
)


async def sent(client: httpx.AsyncClient, data: bytes) -> bytes:
    """Send bytes over a connection of their own; return what comes until the server closes it."""
    where = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_a_body_that_does_not_come_is_refused_and_its_connection_closed(url: str) -> None:
    limits = RequestLimits(body_timeout=0.05)
    async with served(App(url), limits=limits) as client:
        answer = await sent(client, SUBMIT + b"content-length: 100\r\n\r\n{")
        assert b"408" in answer.partition(b"\r\n")[0]
        assert b"body_too_slow" in answer


async def test_a_body_that_is_too_large_is_not_awaited(url: str) -> None:
    async with served(App(url)) as client:
        answer = await sent(client, SUBMIT + b"content-length: 9999999\r\n\r\n{")
        assert b"413" in answer.partition(b"\r\n")[0]


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nhost:"])
async def test_a_connection_on_which_no_request_begins_is_closed(url: str, head: bytes) -> None:
    async with served(App(url), head_timeout=0.05) as client:
        await sent(client, head)


async def test_without_a_credential_an_unfinished_body_ends_its_connection_at_once(
    url: str,
) -> None:
    async with served(App(url), Access()) as client:
        answer = await sent(client, SUBMIT + b"content-length: 100000\r\n\r\n[[[")
        assert b"401" in answer.partition(b"\r\n")[0]
        assert b"connection: close" in answer.lower()


async def opened(client: httpx.AsyncClient, address: str) -> asyncio.StreamWriter:
    """Open a connection from an address of this machine."""
    where = urlsplit(str(client.base_url))
    _, writer = await asyncio.open_connection(where.hostname, where.port, local_addr=(address, 0))
    return writer


async def test_one_address_has_a_quarter_of_all_connections(url: str) -> None:
    async with served(App(url), connections=8) as client:
        writers = [await opened(client, "127.0.0.2") for _ in range(2)]
        assert not await sent_from(client, "127.0.0.2")
        assert b" 200 " in await sent_from(client, "127.0.0.3")
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        again = b""
        while not again:  # until the server has noticed
            again = await sent_from(client, "127.0.0.2")


async def sent_from(client: httpx.AsyncClient, address: str) -> bytes:
    """Ask the probe from an address; return the answer, or nothing if there is none."""
    where = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(
        where.hostname, where.port, local_addr=(address, 0)
    )
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_an_address_can_neither_ask_the_probe_nor_open_links_without_limit(url: str) -> None:
    for method, path in (("GET", "/readyz"), ("POST", "/approvals/view")):
        access = Access(settings=AccessSettings(per_address=Rate(1e-3, 2)))
        async with web_of(App(url), access, links=LINKS) as web:
            answers = [await web.request(method, path) for _ in range(3)]
            assert [each.status_code == 429 for each in answers] == [False, False, True]
            assert int(answers[-1].headers["retry-after"]) >= 1


class StillClock:
    """Stands still until it is set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    time_ns = monotonic_ns


async def test_failed_sign_ins_are_audited_without_filling_the_log(url: str) -> None:
    clock = StillClock()
    settings = AccessSettings(sign_ins=Rate(1e6, 10**6))
    access, app = Access(settings=settings, clock=clock), App(url)
    async with web_of(app, access) as web:
        secret = new_token()
        for _ in range(30):
            assert (await signed_in(web, token=secret)).status_code == 403
        entries = [each.entry for each in await app.verbs.audit_rows(INSTALLATION)]
        assert [each.action for each in entries] == ["sign_in_failed"] * 20
        assert entries[0].data == {"by": "token"}
        assert secret not in "".join(each.line() for each in entries)
        clock.now = 120.0
        await signed_in(web, link="forged")
        last = (await app.verbs.audit_rows(INSTALLATION))[-1].entry
        assert last.data == {"by": "link", "left_out": 10}


@asynccontextmanager
async def mounted(app: App, limits: RequestLimits) -> AsyncGenerator[httpx.AsyncClient]:
    """The app below `/ops` of another one, behind a plain uvicorn."""
    pages = app.asgi(access=TrustingGate(), limits=limits)
    site = Starlette(routes=[Mount("/ops", pages)], lifespan=pages.lifespan)
    listener = listener_at("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(site, log_config=None, lifespan="on"))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[listener]))
        where = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=where, timeout=30) as client:
            listener.listen()  # who comes before the server is ready waits for it
            yield client
        server.should_exit = True


async def test_in_another_server_unfinished_bodies_are_cut_off_by_time_and_by_their_sum(
    url: str,
) -> None:
    limits = RequestLimits(body=20_000, bodies=80_000, body_timeout=2.0)
    async with mounted(App(url), limits) as client:
        begun = SUBMIT.replace(b"/api", b"/ops/api") + b"content-length: 19999\r\n\r\n"
        whole = begun + b" " * 10_000
        answers = await asyncio.gather(*(sent(client, whole) for _ in range(12)))
        assert {each[9:12] for each in answers} == {b"408", b"429"}
        assert (await client.get("/ops/healthz")).status_code == 200
