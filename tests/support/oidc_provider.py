"""A small OpenID provider on loopback: it signs in whoever comes, with the claims of the test."""

import threading
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from perdure.base.clock import SystemClock

Answering: TypeAlias = Callable[[Request], Awaitable[Response]]


class Provider:
    """The provider; `claims` are added to those of each token, `key` signs them."""

    def __init__(self) -> None:
        self.url = ""
        self.claims: dict[str, Any] = {"sub": "ann", "email": "ann@acme.test"}
        self.key = self.published = RSAKey.generate_key(2048, {"kid": "one"})
        self.says: dict[str, bytes] = {}  # what it answers instead, by path
        self._codes: dict[str, dict[str, str]] = {}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._or_else(self._configuration)),
                Route("/authorize", self._authorize),
                Route("/token", self._or_else(self._token), methods=["POST"]),
                Route("/keys", self._or_else(self._keys)),
            ]
        )

    def _or_else(self, answer: Answering) -> Answering:
        async def answered(request: Request) -> Response:
            found = await answer(request)
            return Response(self.says.get(request.url.path, found.body), media_type="text/plain")

        return answered

    async def _configuration(self, _: Request) -> Response:
        paths = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
        paths["jwks_uri"] = "keys"
        found = {name: f"{self.url}/{path}" for name, path in paths.items()}
        return JSONResponse({"issuer": self.url, **found})

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        code = f"code{len(self._codes)}"
        self._codes[code] = asked
        query = urlencode({"code": code, "state": asked["state"]})
        return RedirectResponse(f"{asked['redirect_uri']}?{query}", 303)

    async def _token(self, request: Request) -> Response:
        form = {name: each[0] for name, each in parse_qs((await request.body()).decode()).items()}
        asked = self._codes.pop(form["code"], None)
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if asked is None or asked["code_challenge"] != challenge.decode():
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(SystemClock().time())
        claims = {"iss": self.url, "aud": asked["client_id"], "nonce": asked["nonce"]}
        claims |= {"iat": now, "exp": now + 300, **self.claims}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)
        return JSONResponse({"id_token": token, "token_type": "Bearer"})

    async def _keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [self.published.as_dict(private=False)]})


@contextmanager
def running_provider() -> Generator[Provider]:
    """Run a provider in a thread."""
    provider, listening = Provider(), threading.Event()
    config = uvicorn.Config(provider.app(), port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)

    async def startup(sockets: Any = None) -> None:
        await uvicorn.Server.startup(server, sockets)
        port = server.servers[0].sockets[0].getsockname()[1]
        provider.url = f"http://127.0.0.1:{port}"
        listening.set()

    server.startup = startup  # to know when it listens
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    listening.wait(30)
    try:
        yield provider
    finally:
        server.should_exit = True
        thread.join(30)
