"""The approval web and hostile requests: bodies without end, and forms of other sites."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from perdure.base.errors import StoreUnreachable
from perdure.base.secret import Secret
from perdure.jobs.approval import ApprovalState
from perdure.notify.links import LinkTokens
from perdure.notify.web import LONGEST_BODY, MOST_MESSAGES, ApprovalWeb, LinkPages
from tests.notify.test_mail import KEY, Invitation, invite
from tests.notify.test_slack import SETTINGS, body_of, payload, signed
from tests.support.approvals import ASKED, MemoryStore, staff

PATHS = ["/approvals/view", "/approvals/decide", "/slack/interactive"]
HOST = (b"host", b"perdure.example.com")
HOME = "https://perdure.example.com"

Message = dict[str, Any]


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def flood(piece: bytes, number: int) -> Iterator[Message]:
    """Give a body in as many pieces."""
    yield from (part(piece) for _ in range(number))
    yield part(b"", more=False)


class Server:
    """An ASGI server with one request, whose body comes in the pieces that a test gives."""

    def __init__(self, store: MemoryStore, **options: Any) -> None:
        pages = LinkPages(store, staff(), LinkTokens((KEY,)))
        self.app = ApprovalWeb(store, staff(), pages, slack=SETTINGS, **options)
        self.pieces: Iterator[Message] = iter(())
        self.read = 0
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        """Give the next piece; after the last one, be silent."""
        self.read += 1
        piece = next(self.pieces, None)
        if piece is None:
            await asyncio.Event().wait()
        assert piece is not None
        return piece

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def post(
        self, path: str, pieces: Iterable[Message], *headers: tuple[bytes, bytes], **scope: Any
    ) -> int | None:
        """Post; give the status of the answer, if there is one."""
        self.pieces = iter(pieces)
        given = {"type": "http", "method": "POST", "path": path, "scheme": "https", **scope}
        await self.app({**given, "headers": [HOST, *headers]}, self.receive, self.send)
        return self.sent[0]["status"] if self.sent else None

    async def decide(self, ann: Invitation, *headers: tuple[bytes, bytes], **scope: Any) -> Any:
        form = {"token": ann.token, "code": ann.code, "verdict": "approve"}
        body = [part(urlencode(form).encode(), more=False)]
        return await self.post("/approvals/decide", body, *headers, **scope)


# Bodies


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("piece", [b"", b"x"])
async def test_a_body_in_countless_pieces_is_refused_after_a_few_of_them(
    path: str, piece: bytes
) -> None:
    server = Server(MemoryStore())
    assert await server.post(path, flood(piece, 3000)) == 413
    assert server.read <= MOST_MESSAGES + 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_is_read_no_further_than_to_its_limit(path: str) -> None:
    server = Server(MemoryStore())
    assert await server.post(path, flood(b"x" * 1024, 3000)) == 413
    assert server.read == LONGEST_BODY // 1024 + 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [b"65537", b"9" * 5000, b"-1", b"many"])
async def test_a_body_that_says_that_it_is_too_long_is_not_read_at_all(
    path: str, length: bytes
) -> None:
    server = Server(MemoryStore())
    assert await server.post(path, flood(b"x", 1), (b"content-length", length)) in (400, 413)
    assert server.read == 0


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_does_not_come_to_its_end_in_time_is_given_up(path: str) -> None:
    store = MemoryStore()
    server = Server(store)
    server.app.body_timeout = 0.01
    assert await server.post(path, [part(b"token=")]) == 408
    assert store.refused == []  # nothing else was done


async def test_a_form_whose_sender_has_hung_up_halfway_decides_nothing() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    form = urlencode({"token": ann.token, "code": ann.code, "verdict": "approve"})
    pieces = [part(form.encode()), {"type": "http.disconnect"}]
    assert await Server(store).post("/approvals/decide", pieces) is None
    assert store.only == ASKED


async def test_a_body_in_a_few_pieces_is_whole() -> None:
    store = MemoryStore()
    body = body_of(payload())
    pieces = [part(body[at : at + 40]) for at in range(0, len(body), 40)] + [part(b"", more=False)]
    headers = [(name.encode(), value.encode()) for name, value in signed(body, store.time).items()]
    server = Server(store)
    assert await server.post("/slack/interactive", pieces, *headers) == 200
    assert store.only.state is ApprovalState.APPROVED


async def test_a_web_socket_is_closed() -> None:
    server = Server(MemoryStore())
    await server.app({"type": "websocket", "path": "/"}, server.receive, server.send)
    assert server.sent == [{"type": "websocket.close"}]


class Down(MemoryStore):
    """A store that does not answer."""

    async def now(self) -> float:
        raise StoreUnreachable("no answer")


async def test_who_has_no_token_does_not_reach_the_store() -> None:
    body = [part(b"token=" + LinkTokens((Secret("x" * 32),)).make(1.0).encode(), more=False)]
    assert await Server(Down()).post("/approvals/view", body) == 403


async def test_a_store_that_does_not_answer_is_said_so() -> None:
    body = [part(b"token=" + LinkTokens((KEY,)).make(1.0).encode(), more=False)]
    assert await Server(Down()).post("/approvals/view", body) == 503


# Where a form comes from

FOREIGN = [
    b"null",
    b"",
    b"http://perdure.example.com",  # another scheme
    b"https://perdure.example.com:8443",  # another port
    b"https://evil.example.com",
    b"https://perdure.example.com.evil.com",
    b"https://perdure.example.com@evil.com",
    b"https://perdure.example.com/",  # no browser spells it like this
    b"https://perdure.example.com, https://evil.com",
    b"\xff",
]


@pytest.mark.parametrize("metadata", [None, b"same-origin", b"none", b"same-site", b"cross-site"])
@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_foreign_origin_is_refused_with_and_without_fetch_metadata(
    origin: bytes, metadata: bytes | None
) -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    more = [] if metadata is None else [(b"sec-fetch-site", metadata)]
    for options in ({}, {"origin": HOME}):
        server = Server(store, **options)
        assert await server.decide(ann, (b"origin", origin), *more) == 403
    assert store.only == ASKED


@pytest.mark.parametrize("metadata", [b"same-site", b"cross-site", b"", b"x"])
async def test_metadata_of_another_site_is_refused_whatever_the_origin_says(
    metadata: bytes,
) -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    headers = [(b"origin", HOME.encode()), (b"sec-fetch-site", metadata)]
    assert await Server(store).decide(ann, *headers) == 403
    assert await Server(store).decide(ann, headers[1]) == 403


async def test_one_good_origin_does_not_hide_another() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    two = [(b"origin", b"https://evil.com"), (b"origin", HOME.encode())]
    assert await Server(store).decide(ann, *two) == 403
    assert await Server(store).decide(ann, *reversed(two)) == 403


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "configured"),
    [
        (HOME, "perdure.example.com", "https", None),
        (HOME, "Perdure.Example.com:443", "https", None),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "http", None),
        ("http://[::1]", "[::1]:80", "http", None),
        (HOME, "inside:8000", "http", HOME),  # a proxy stands in front
        (HOME, "inside:8000", "http", "https://Perdure.example.com:443/"),
    ],
)
async def test_a_form_of_our_own_pages_counts(
    origin: str, host: str, scheme: str, configured: str | None
) -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    server = Server(store, origin=configured)
    server_host = (b"host", host.encode())
    form = {"token": ann.token, "code": ann.code, "verdict": "approve"}
    server.pieces = iter([part(urlencode(form).encode(), more=False)])
    scope = {"type": "http", "method": "POST", "path": "/approvals/decide", "scheme": scheme}
    headers = [server_host, (b"origin", origin.encode())]
    await server.app({**scope, "headers": headers}, server.receive, server.send)
    assert server.sent[0]["status"] == 200


async def test_who_is_no_browser_names_no_origin_and_needs_the_code_as_everybody_does() -> None:
    store = MemoryStore()
    ann = (await invite(store))["ann@example.com"]
    assert await Server(store, origin=HOME).decide(ann) == 200


@pytest.mark.parametrize("origin", ["perdure.example.com", "https://", "ftp://x", "https://x/y"])
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        Server(MemoryStore(), origin=origin)
