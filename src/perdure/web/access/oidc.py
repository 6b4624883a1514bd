"""Sign in with OpenID Connect: the code flow with PKCE, state and nonce.

    Access(login=oidc_login(Oidc(issuer="https://login.example.com", client_id="perdure",
                                 client_secret=Secret("…"), principal=who)))

`who` maps the verified claims of a person to a principal, and decides alone who gets in; None lets
nobody in. What a sign-in needs to remember is kept here for ten minutes, once, and bound to the
browser that began it. Needs the extra `perdure[oidc]`.
"""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from perdure.base.checked import Checked
from perdure.base.errors import AccessDenied
from perdure.base.extra import extra
from perdure.base.secret import Secret
from perdure.store.store import Store
from perdure.web.access.principal import Principal
from perdure.web.access.secret_text import hash_secret, new_secret, same_secret

with extra("oidc", "OpenID Connect"):
    import httpx
    from joserfc import jwt
    from joserfc.jwk import KeySet

PENDING: Final = 600.0  # seconds in which somebody must come back from the provider

_ALGORITHMS: Final = ["RS256", "PS256", "ES256", "EdDSA"]
_LEEWAY: Final = 60
_TIMEOUT: Final = 10.0
_LARGEST: Final = 1024 * 1024
D = TypeVar("D", bound=Struct)

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Oidc(Checked, frozen=True, kw_only=True):
    """A provider, and who gets in by it.

    Attributes:
        issuer: Its address, exactly as its tokens name it; HTTPS, except on loopback.
        client_id: What it calls us.
        client_secret: What it knows us by; None: a public client.
        principal: Returns the principal of verified claims; None: this person gets no access. Check
            `email_verified` before you trust `email`.
        scopes: What we ask it for.
    """

    issuer: str
    client_id: str
    principal: Callable[[Mapping[str, Any]], Principal | None]
    client_secret: Secret[str] | None = None
    scopes: tuple[str, ...] = ("openid", "email", "profile")

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise ValueError(f"the issuer {self.issuer!r} must be reached by HTTPS")


class _Provider(Struct, frozen=True):
    """What a provider says about itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class _Tokens(Struct, frozen=True):
    """What a provider gives for a code."""

    id_token: str


class _Keys(Struct, frozen=True):
    """The keys by which a provider signs."""

    keys: list[dict[str, Any]]


class Pending(Struct, frozen=True, kw_only=True):
    """What is remembered of somebody who is at the provider."""

    verifier: str
    nonce: str
    next: str
    redirect: str


async def begin(store: Store, oidc: Oidc, redirect: str, next_path: str) -> tuple[str, str]:
    """Return where to send the browser, and the state that it must bring back.

    Args:
        store: Where the rest is kept meanwhile.
        oidc: The provider.
        redirect: Where it sends the browser back to.
        next_path: Where to go afterwards.

    Raises:
        AccessDenied: The provider does not answer.
    """
    provider = await _provider(oidc)
    state, verifier, nonce = new_secret(), secrets.token_urlsafe(64), new_secret()
    kept = Pending(verifier=verifier, nonce=nonce, next=next_path, redirect=redirect)
    await store.add_sign_in_link(_key(state), msgspec.json.encode(kept).decode(), PENDING)
    challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": oidc.client_id,
        "redirect_uri": redirect,
        "scope": " ".join(oidc.scopes),
        "state": state,
        "nonce": nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return f"{provider.authorization_endpoint}?{urlencode(query)}", state


async def finish(
    store: Store, oidc: Oidc, query: Mapping[str, str], state: str | None
) -> tuple[Principal, str]:
    """Return who has signed in at the provider, and where they want to go.

    Args:
        store: Where the rest was kept.
        oidc: The provider.
        query: What the provider sent along.
        state: What the browser has brought back; only the one that began knows it.

    Raises:
        AccessDenied: Something does not fit, or the person gets no access.
    """
    given, code = query.get("state", ""), query.get("code", "")
    if not state or not code or not same_secret(state, given):
        raise _refused("this sign-in was not begun here: begin again")
    found = await store.take_sign_in_link(_key(given))
    if found is None:
        raise _refused("this sign-in took too long, or was used before: begin again")
    pending = msgspec.json.decode(found, type=Pending)
    claims = await _claims(oidc, code, pending)
    person = oidc.principal(claims)
    if person is None or person.kind != "person":
        raise _refused("you have no access here")
    return person, pending.next


async def _claims(oidc: Oidc, code: str, pending: Pending) -> Mapping[str, Any]:
    """Return the claims of the person, verified."""
    provider = await _provider(oidc)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": pending.redirect,
        "client_id": oidc.client_id,
        "code_verifier": pending.verifier,
    }
    if oidc.client_secret is not None:
        form["client_secret"] = oidc.client_secret.reveal()
    given = await _asked(_Tokens, "POST", provider.token_endpoint, data=form)
    published = await _asked(_Keys, "GET", provider.jwks_uri)
    rules = jwt.JWTClaimsRegistry(
        leeway=_LEEWAY,
        iss={"essential": True, "value": oidc.issuer},
        sub={"essential": True},
        exp={"essential": True},
        nonce={"essential": True, "value": pending.nonce},
    )
    try:
        keys = KeySet.import_key_set({"keys": published.keys})
        token = jwt.decode(given.id_token, keys, algorithms=_ALGORITHMS)
        rules.validate(token.claims)
    except Exception as error:
        raise _refused("the provider's token is not valid") from error
    _check_audience(oidc, token.claims)
    return token.claims


def _check_audience(oidc: Oidc, claims: Mapping[str, Any]) -> None:
    """Refuse a token that was made for another client."""
    given = claims.get("aud")
    audience = [given] if isinstance(given, str) else given
    party = claims.get("azp", oidc.client_id)
    if not isinstance(audience, list) or oidc.client_id not in audience or party != oidc.client_id:
        raise _refused("the provider's token is for another client")


async def _provider(oidc: Oidc) -> _Provider:
    where = f"{oidc.issuer.rstrip('/')}/.well-known/openid-configuration"
    found = await _asked(_Provider, "GET", where)
    if found.issuer != oidc.issuer:
        raise _refused("the provider has another name than the one that is configured")
    return found


async def _asked(kind: type[D], method: str, url: str, **given: Any) -> D:
    """Return what a provider answers, decoded strictly: it is a program of others."""
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as client:
            answer = await client.request(method, url, **given)
            answer.raise_for_status()
            if len(answer.content) > _LARGEST:
                raise _refused("the provider's answer is too large")
            return msgspec.json.decode(answer.content, type=kind)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise _refused("the provider does not answer as it should") from error


def _key(state: str) -> str:
    return hash_secret(f"oidc {state}")


def _refused(text: str) -> AccessDenied:
    return AccessDenied("forbidden", text)
