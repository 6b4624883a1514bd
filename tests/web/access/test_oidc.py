"""Signing in with OpenID Connect, at a real provider on loopback."""

from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import RSAKey

from perdure import App
from perdure.base.secret import Secret
from perdure.web.access.gate import Access
from perdure.web.access.oidc import Oidc
from perdure.web.access.principal import Principal, Role
from perdure.web.access.rates import Rate
from perdure.web.access.settings import AccessSettings
from perdure.web.oidc_login import oidc_login
from tests.support.browser_like import web_of
from tests.support.oidc_provider import Provider, running_provider
from tests.support.tenants import tenant_app


@pytest.fixture
def app(url: str) -> App:
    return tenant_app(url)


@pytest.fixture
def provider() -> Generator[Provider]:
    with running_provider() as found:
        yield found


def who(claims: Mapping[str, Any]) -> Principal | None:
    if not str(claims.get("email", "")).endswith("@acme.test"):
        return None
    return Principal(id=str(claims["sub"]), tenant="acme", roles=frozenset({Role.OPERATOR}))


def access_by(provider: Provider, settings: AccessSettings | None = None) -> Access:
    oidc = Oidc(
        issuer=provider.url, client_id="perdure", client_secret=Secret("s3cret"), principal=who
    )
    return Access(login=oidc_login(oidc), settings=settings)


async def at_provider(web: httpx.AsyncClient) -> str:
    """Begin a sign-in, and return the path by which the provider sends the browser back."""
    away = await web.get("/login/oidc", params={"next": "/approvals"})
    assert away.status_code == 303, away.text
    async with httpx.AsyncClient() as outside:
        back = await outside.get(away.headers["location"])
    parts = urlsplit(back.headers["location"])
    assert parts.netloc == "jobs.test"
    return f"{parts.path}?{parts.query}"


async def test_a_person_signs_in_at_the_provider_and_comes_back(
    app: App, provider: Provider
) -> None:
    async with web_of(app, access_by(provider)) as web:
        assert "/login/oidc" in (await web.get("/login")).text
        answer = await web.get(await at_provider(web))
        assert (answer.status_code, answer.headers["location"]) == (303, "/approvals")
        shown = (await web.get("/api/v1/session")).json()
        assert (shown["principal"]["id"], shown["principal"]["tenant"]) == ("ann", "acme")
        assert shown["principal"]["signed_in_at"]


async def test_an_answer_of_the_provider_works_once_and_only_in_the_browser_that_began(
    app: App, provider: Provider
) -> None:
    async with web_of(app, access_by(provider)) as web:
        path = await at_provider(web)
        kept = dict(web.cookies)
        web.cookies.clear()
        assert (await web.get(path)).status_code == 403
        for name, value in kept.items():
            web.cookies.set(name, value, domain="jobs.test")
        assert (await web.get(path)).status_code == 303
        for name, value in kept.items():
            web.cookies.set(name, value, domain="jobs.test")
        assert (await web.get(path)).status_code == 403


@pytest.mark.parametrize(
    "claims",
    [
        {"email": "eve@evil.test"},
        {"iss": "https://evil.test"},
        {"aud": "another"},
        {"aud": ["perdure", "another"], "azp": "another"},
        {"nonce": "another"},
        {"exp": 1},
    ],
)
async def test_a_token_that_is_not_for_us_or_not_for_this_sign_in_is_refused(
    app: App, provider: Provider, claims: dict[str, Any]
) -> None:
    provider.claims |= claims
    async with web_of(app, access_by(provider)) as web:
        answer = await web.get(await at_provider(web))
        assert answer.status_code == 403
        assert "__Host-perdure=" not in answer.headers.get("set-cookie", "")
        assert (await web.get("/api/v1/session")).status_code == 401


async def test_a_token_that_another_key_has_signed_is_refused(app: App, provider: Provider) -> None:
    provider.key = RSAKey.generate_key(2048, {"kid": "one"})
    async with web_of(app, access_by(provider)) as web:
        assert (await web.get(await at_provider(web))).status_code == 403


# What a provider may answer that is not what it should be; "KEY" is its own key.
ODD = [
    b"", b"{}", b"[]", b"null", b"7", b'"x"', b"{", b"\xff", b"[" * 2000, b'{"issuer": 7}',
    b'{"keys": null}', b'{"keys": {}}', b'{"keys": 7}', b'{"keys": []}', b'{"keys": [null]}',
    b'{"keys": ["x"]}', b'{"keys": [{}]}', b'{"keys": [{"kty": 7}]}', b'{"keys": [{"kty": "RSA"}]}',
    b'{"keys": [{"kty": "RSA", "kid": "one", "n": 7, "e": []}]}',
    b'{"keys": [{"kty": "RSA", "kid": "one", "n": "", "e": ""}]}',
    b'{"keys": [{"kty": "EC", "kid": "one", "crv": "x", "x": "AA", "y": "AA"}]}',
    b'{"keys": [{"kty": "oct", "kid": "one", "k": "AA"}]}',
    b'{"id_token": null}', b'{"id_token": 7}', b'{"id_token": {}}', b'{"id_token": ""}',
    b'{"id_token": "a.b.c"}', b'{"id_token": "\\ud800"}', b'{"id_token": "e30.e30.e30"}',
    b'{"error": "invalid_grant"}',
]  # fmt: skip


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/keys", "/token"])
async def test_no_document_of_a_provider_is_a_fault_of_the_server(
    app: App, provider: Provider, path: str
) -> None:
    settings = AccessSettings(sign_ins=Rate(1000.0, 1000))
    async with web_of(app, access_by(provider, settings)) as web:
        for odd in ODD:
            provider.says = {}
            back = await at_provider(web)
            provider.says = {path: odd}
            answer = await web.get(back)
            assert answer.status_code == 403, (path, odd)
            assert "__Host-perdure=" not in answer.headers.get("set-cookie", "")
            away = await web.get("/login/oidc")
            assert away.status_code in (303, 403), (path, odd)


async def test_no_claim_of_a_provider_is_a_fault_of_the_server(
    app: App, provider: Provider
) -> None:
    plain = dict(provider.claims)
    odd_claims: list[Any] = [None, [], {}, [7], "x", -1, 1e300]
    settings = AccessSettings(sign_ins=Rate(1000.0, 1000))
    async with web_of(app, access_by(provider, settings)) as web:
        for name in ("iss", "aud", "azp", "nonce", "exp", "iat", "nbf", "sub"):
            for odd in odd_claims:
                provider.claims = {**plain, name: odd}
                answer = await web.get(await at_provider(web))
                assert answer.status_code in (303, 403), (name, odd)


async def test_another_state_is_refused(app: App, provider: Provider) -> None:
    async with web_of(app, access_by(provider)) as web:
        path = await at_provider(web)
        state = parse_qs(urlsplit(path).query)["state"][0]
        assert (await web.get(path.replace(state, "A" * 43))).status_code == 403


def test_a_provider_elsewhere_needs_https() -> None:
    with pytest.raises(ValueError, match="HTTPS"):
        Oidc(issuer="http://login.example.com", client_id="perdure", principal=who)
