"""A client that does as a browser does: it has cookies, and says where a request comes from."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from perdure import App
from perdure.web.access.gate import Access
from perdure.web.access.principal import Principal, Role
from perdure.web.access.sessions import local_operator
from perdure.web.access.tokens import NewToken, create_token

SITE = "https://jobs.test"


@asynccontextmanager
async def web_of(
    app: App, access: Access | None = None, *, site: str = SITE, **options: Any
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the whole ASGI app, without a credential."""
    transport = httpx.ASGITransport(app=app.asgi(access=access or Access(), **options))
    async with app, httpx.AsyncClient(transport=transport, base_url=site) as client:
        yield client


async def token_of(
    app: App, *roles: Role, tenant: str | None = "acme", person: str = "", **more: Any
) -> tuple[str, str]:
    """Make a token, of a person if one is named; return its id and its secret."""
    kind = "person" if person else "service"
    asked = NewToken(name="test", roles=roles, kind=kind, principal=person, **more)
    made = await create_token(app.verbs, asked, tenant, local_operator())
    return made.token.id, made.secret


def bearer(secret: str) -> dict[str, str]:
    """Return the header of a token."""
    return {"authorization": f"Bearer {secret}"}


def from_page(client: httpx.AsyncClient, csrf: str = "") -> dict[str, str]:
    """Return the headers that a browser adds to what our own page changes."""
    site = str(client.base_url).rstrip("/")
    return {"origin": site, "sec-fetch-site": "same-origin"} | (
        {"x-csrf-token": csrf} if csrf else {}
    )


async def signed_in(client: httpx.AsyncClient, **form: str) -> httpx.Response:
    """Send the form of the login page."""
    return await client.post("/login", data=form, headers=from_page(client))


async def csrf_of(client: httpx.AsyncClient) -> str:
    """Return the token that the page gets with the session."""
    answer = await client.get("/api/v1/session")
    assert answer.status_code == 200, answer.text
    return answer.json()["csrf"]


def operator(tenant: str | None) -> Principal:
    """Return an operator of a tenant."""
    return Principal(id="ann", tenant=tenant, roles=frozenset({Role.OPERATOR}))
