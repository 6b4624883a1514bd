"""What somebody without a credential can make a server do: nothing that costs more than a look."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import repeat
from typing import Any

import pytest
from starlette.routing import Route

from perdure import Secret
from perdure.notify.links import LinkTokens
from perdure.notify.slack import SlackSettings
from perdure.notify.web import LONGEST_BODY
from perdure.web.access.gate import Access
from perdure.web.access.principal import Role
from perdure.web.access.rates import Rate
from perdure.web.access.settings import AccessSettings
from perdure.web.app import WebApp
from perdure.web.body import RequestLimits
from perdure.web.login import LONGEST_FORM
from perdure.web.page import STATIC
from perdure.web.pieces import PIECE as PIECE_OF_ANSWER
from tests.support.asgi_request import PIECE, SentRequest
from tests.support.browser_like import bearer, token_of
from tests.support.tenants import tenant_app

LINKS = LinkTokens((Secret("a key of at least thirty-two bytes, for tests"),))
SLACK = SlackSettings(
    token=Secret("xoxb"),
    signing_secrets=(Secret("a secret for tests"),),
    channel="C1",
    teams=frozenset({"T1"}),
    apps=frozenset({"A1"}),
)
FREE = AccessSettings(per_address=Rate(1e9, 10**9), sign_ins=Rate(1e9, 10**9))

# What authenticates by its body reads so much of it at most; nothing else reads anything.
BY_BODY = {
    "/login": LONGEST_FORM,
    "/logout": LONGEST_FORM,
    "/approvals/view": LONGEST_BODY,
    "/approvals/decide": LONGEST_BODY,
    "/slack/interactive": LONGEST_BODY,
}
REFUSED = {400, 401, 403, 404, 405, 408, 413, 415, 421, 429}
BODIES: dict[str, Callable[[], Iterator[bytes]]] = {
    "endless": lambda: repeat(b"x" * PIECE),
    "deep": lambda: repeat(b"[" * PIECE),
    "unfinished": lambda: iter([b"x" * 100]),
    "in empty pieces": lambda: repeat(b""),
    "silent": lambda: iter(()),
}


def site(url: str, **options: Any) -> WebApp:
    app = tenant_app(url)
    limits = options.pop("limits", RequestLimits(body_timeout=0.05))
    access = Access(settings=options.pop("settings", FREE))
    return app.asgi(access=access, limits=limits, links=LINKS, slack=SLACK, **options)


def every_request(web: WebApp) -> list[tuple[str, str]]:
    """Method and path of everything that is served, and of a method that is not."""
    found: list[tuple[str, str]] = []
    for route in web.routes:
        assert isinstance(route, Route)
        path = route.path.replace("{path:path}", "anything").replace("{", "").replace("}", "")
        methods = sorted(route.methods or {"GET", "POST"})
        found += [(method, path) for method in (*methods, "PATCH")]
    return found


@pytest.fixture
async def web(url: str) -> AsyncIterator[WebApp]:
    made = site(url)
    async with made.lifespan():
        yield made


@pytest.mark.parametrize("kind", BODIES)
async def test_without_a_credential_no_route_reads_more_than_its_named_bound(
    web: WebApp, kind: str
) -> None:
    requests = every_request(web)
    assert {path for _, path in requests} >= {*BY_BODY, "/api/v1/jobs", "/metrics", "/healthz"}
    for method, path in requests:
        request = SentRequest(method, path, BODIES[kind]())
        await request.sent_to(web)
        bound = BY_BODY.get(path, 0) if method == "POST" else 0
        what = f"{method} {path} was answered {request.status} after {request.read} bytes"
        assert request.read <= bound + PIECE * bool(bound), what
        assert request.status in REFUSED or method in ("GET", "HEAD"), what
        assert request.is_closed, f"{what}, and may go on sending"


async def test_an_address_that_asks_too_often_is_refused_before_anything_is_read(url: str) -> None:
    settings = AccessSettings(per_address=Rate(1e-3, 1))
    web = site(url, settings=settings)
    async with web.lifespan():
        await SentRequest("GET", "/login", iter(())).sent_to(web)
        for method, path in every_request(web):
            request = SentRequest(method, path, repeat(b"x" * PIECE))
            await request.sent_to(web)
            # A process manager must not end a server because somebody asks it too often.
            assert request.status == 429 or path == "/healthz", f"{method} {path}"
            assert request.read == 0, f"{method} {path}"


async def test_what_anybody_may_read_is_sent_in_small_pieces(web: WebApp) -> None:
    assets = [f"/assets/{each.name}" for each in STATIC.joinpath("assets").iterdir()]
    paths = [path for method, path in every_request(web) if method == "GET"]
    sizes: dict[str, int] = {}
    for path in (*assets, *paths):
        request = SentRequest("GET", path, iter(()))
        await request.sent_to(web)
        assert request.largest <= PIECE_OF_ANSWER, path
        sizes[path] = len(request.body)
    assert max(sizes.values()) > PIECE_OF_ANSWER


class Unfinished:
    """Requests whose bodies stop before their end, all at once."""

    def __init__(self, web: WebApp, requests: list[SentRequest]) -> None:
        self._requests = requests
        self._tasks = [asyncio.ensure_future(each.sent_to(web)) for each in requests]

    async def settled(self) -> list[SentRequest]:
        """Wait until each is answered or waits for the rest of its body; return those that do."""
        for request, task in zip(self._requests, self._tasks, strict=True):
            waits = asyncio.ensure_future(request.waits.wait())
            await asyncio.wait([waits, task], return_when=asyncio.FIRST_COMPLETED)
            waits.cancel()
        return [each for each in self._requests if each.status is None]

    async def over(self) -> None:
        """Hang up, and wait until each has ended."""
        for request in self._requests:
            request.hang_up()
        await asyncio.wait(self._tasks)
        await asyncio.gather(*self._tasks, return_exceptions=True)  # they say that it hung up


async def test_unfinished_forms_of_one_address_hold_a_bounded_number_of_bytes(url: str) -> None:
    limits = RequestLimits(bodies=8 * PIECE, body=PIECE)
    web = site(url, limits=limits)
    async with web.lifespan():
        form = {"content-type": "application/x-www-form-urlencoded", **OUR_PAGE}
        many = [SentRequest("POST", "/login", iter([b"x" * 1000] * 10), form) for _ in range(100)]
        unfinished = Unfinished(web, many)
        held = await unfinished.settled()
        assert 0 < sum(each.read for each in held) <= 2 * PIECE  # a quarter of all
        assert {each.status for each in many} == {None, 429}
        other = SentRequest("POST", "/login", iter([b"x" * 100]), form, ("203.0.113.9", 1))
        others = Unfinished(web, [other])
        assert await others.settled(), "another address was refused"
        await unfinished.over()
        again = SentRequest("POST", "/login", iter([b"x" * 1000] * 10), form)
        once_more = Unfinished(web, [again])
        assert await once_more.settled(), "what was held was not given back"
        await others.over()
        await once_more.over()


OUR_PAGE = {"origin": "https://jobs.test", "sec-fetch-site": "same-origin"}


async def test_unfinished_bodies_of_one_tenant_leave_room_for_those_of_another(url: str) -> None:
    limits = RequestLimits(bodies=8 * PIECE, body=PIECE)
    app = tenant_app(url)
    web = app.asgi(access=Access(settings=FREE), limits=limits)
    async with web.lifespan():
        _, acme = await token_of(app, Role.OPERATOR, tenant="acme")
        _, globex = await token_of(app, Role.OPERATOR, tenant="globex")
        json = {"content-type": "application/json"}

        def submit(secret: str, *pieces: bytes) -> SentRequest:
            headers = json | bearer(secret)
            return SentRequest("POST", "/api/v1/jobs", iter(pieces), headers)

        many = [submit(acme, *[b" " * 1000] * 10) for _ in range(50)]
        unfinished = Unfinished(web, many)
        held = await unfinished.settled()
        assert 0 < sum(each.read for each in held) <= 2 * PIECE
        assert {each.status for each in many} == {None, 429}
        refused = next(each for each in many if each.status == 429)
        assert b'"too_many_at_once"' in refused.body
        assert int(refused.headers["retry-after"]) >= 1
        others = Unfinished(web, [submit(globex, b" " * 1000)])
        assert await others.settled(), "another tenant was refused"
        await unfinished.over()
        again = Unfinished(web, [submit(acme, *[b" " * 1000] * 10)])
        assert await again.settled(), "what was held was not given back"
        await others.over()
        await again.over()


async def test_a_tenant_has_a_limited_number_of_requests_under_way(url: str) -> None:
    limits = RequestLimits(at_once=16)
    app = tenant_app(url)
    web = app.asgi(access=Access(settings=FREE), limits=limits)
    async with web.lifespan():
        _, secret = await token_of(app, Role.OPERATOR)
        headers = {"content-type": "application/json", **bearer(secret)}
        many = [SentRequest("POST", "/api/v1/jobs", iter(()), headers) for _ in range(12)]
        unfinished = Unfinished(web, many)
        held = await unfinished.settled()
        assert len(held) == 4  # a quarter of all
        assert sorted(each.status or 0 for each in many) == [0] * 4 + [429] * 8
        await unfinished.over()
        again = Unfinished(web, [SentRequest("POST", "/api/v1/jobs", iter(()), headers)])
        assert await again.settled(), "its place was not given back"
        await again.over()


async def test_without_a_permission_no_body_is_read(url: str) -> None:
    app = tenant_app(url)
    web = app.asgi(access=Access(settings=FREE))
    async with web.lifespan():
        _, secret = await token_of(app, Role.VIEWER)
        request = SentRequest("POST", "/api/v1/jobs", repeat(b"x" * PIECE), bearer(secret))
        await request.sent_to(web)
        assert (request.status, request.read) == (403, 0)
