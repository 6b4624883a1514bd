"""A client of the HTTP API, without a network, and a gate that believes what a header says."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.requests import Request

from perdure import App
from perdure.web.access.principal import Principal, Role


class TrustingGate:
    """Believes the header `x-who`, such as `kim@acme operator,viewer`; `@*`: of all tenants."""

    async def authenticate(self, request: Request, /) -> Principal | None:
        who, _, roles = request.headers.get("x-who", "").partition(" ")
        if not who:
            return None
        id, _, tenant = who.partition("@")
        return Principal(
            id=id,
            tenant=None if tenant == "*" else tenant,
            roles=frozenset(map(Role, roles.split(","))),
            signed_in_at=float(request.headers.get("x-signed-in", "0")) or None,
        )


@asynccontextmanager
async def api_of(
    app: App, who: str = "kim@default operator,admin", **options: Any
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the API of an app, signed in as somebody."""
    asgi = app.asgi(access=TrustingGate(), **options)
    transport = httpx.ASGITransport(app=asgi, raise_app_exceptions=True)
    headers = {"x-who": who} if who else {}
    async with (
        app,
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
    ):
        yield client
