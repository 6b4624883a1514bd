"""Sessions of people who are signed in with a browser: kept here, and opened by a cookie.

Who signs in gets a new secret each time, and the session that the browser had before ends: a cookie
that somebody planted is never the one of a person. A session ends when the person has done nothing
for a while, at a fixed time after the sign-in, with the token that it began with, and at a
sign-out. A stream that is open, and a page that keeps itself up to date, are no person.

Over TLS the cookie is `__Host-perdure`, which no other host can set. Over plain HTTP browsers
refuse that name, so on loopback it is `perdure-local`; elsewhere, nobody can sign in without TLS.
"""

from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from perdure.base.errors import AccessDenied
from perdure.jobs.credential import EXACT_TO, SessionRow
from perdure.store.store import Store
from perdure.web.access.audit_trail import audited_verbs
from perdure.web.access.principal import LOCAL, Permission, Principal, Role, check_somebody
from perdure.web.access.secret_text import LONGEST, hash_secret, new_secret
from perdure.web.access.settings import AccessSettings
from perdure.web.access.site import LOOPBACK, host_name

COOKIE: Final = "__Host-perdure"
LOCAL_COOKIE: Final = "perdure-local"
LINK_LIFETIME: Final = 15 * 60.0  # seconds in which a link must be used
UNATTENDED_HEADER: Final = "x-unattended"  # of what a page asks for while nobody uses it
_UNATTENDED_SCOPE: Final = "perdure.unattended"


class SignedIn(Struct, frozen=True, kw_only=True):
    """Who is signed in, or who will be by a link; stored with a hash."""

    id: str
    name: str = ""
    roles: tuple[Role, ...] = ()
    scopes: tuple[Permission, ...] | None = None
    tenant: str | None = None
    makers: tuple[str, ...] = ()


def _signed_in(person: Principal) -> str:
    """Return what is stored of a person: all that limits what they may do and decide."""
    data = SignedIn(
        id=person.id,
        name=person.name,
        roles=tuple(sorted(person.roles)),
        scopes=None if person.scopes is None else tuple(sorted(person.scopes)),
        tenant=person.tenant,
        makers=tuple(sorted(person.makers)),
    )
    return msgspec.json.encode(data).decode()


def _principal(data: SignedIn, credential: str, signed_in_at: float | None = None) -> Principal:
    return Principal(
        id=data.id,
        name=data.name,
        tenant=data.tenant,
        roles=frozenset(data.roles),
        scopes=None if data.scopes is None else frozenset(data.scopes),
        makers=frozenset(data.makers),
        signed_in_at=signed_in_at,
        credential=credential,
    )


class OpenSession(NamedTuple):
    """A principal who is signed in, and the secret of the session."""

    principal: Principal
    secret: str


def cookie_name(request: Request) -> str | None:
    """Return the name of the cookie; None if nobody can sign in by this connection."""
    if request.scope["scheme"] in ("https", "wss"):
        return COOKIE
    return LOCAL_COOKIE if host_name(request) in LOOPBACK else None


def _cookie(request: Request) -> str | None:
    name = cookie_name(request)
    secret = None if name is None else request.cookies.get(name)
    return secret if secret and len(secret) <= LONGEST else None


def mark_unattended(request: Request) -> None:
    """Let a request be no activity of the person: it begins a stream, which may stay open."""
    request.scope[_UNATTENDED_SCOPE] = True


def _is_unattended(request: Request) -> bool:
    """Whether a browser asked by itself: a stream, or a page that keeps itself up to date.

    Our page says so of its own requests. Who claims it falsely only ends their session earlier.
    """
    return _UNATTENDED_SCOPE in request.scope or UNATTENDED_HEADER in request.headers


async def find_session(
    store: Store, request: Request, settings: AccessSettings
) -> OpenSession | None:
    """Return who is signed in with this browser; None if nobody is, or not any more."""
    secret = _cookie(request)
    found = None if secret is None else await store.session_by_hash(hash_secret(secret))
    if secret is None or found is None:
        return None
    row, now = found
    if now >= row.expires_at or now - row.seen_at >= settings.idle:
        await store.end_session(row.hash)
        return None
    if now - row.seen_at >= EXACT_TO and not _is_unattended(request):
        await store.see_session(row.hash)
    data = msgspec.json.decode(row.data, type=SignedIn)
    return OpenSession(_principal(data, f"session {row.hash[:12]}", row.created_at), secret)


async def sign_in(
    store: Store,
    request: Request,
    person: Principal,
    settings: AccessSettings,
    token_id: str | None = None,
) -> tuple[str, str]:
    """Open a session for a person, in place of the one that the browser has.

    Args:
        store: Where sessions are.
        request: By which they sign in.
        person: Who has proved who they are.
        settings: How long the session may last.
        token_id: The token by which they did: its end is that of the session, too.

    Returns:
        The name and the value of the cookie.

    Raises:
        AccessDenied: It is a program or nobody, or the connection is neither TLS nor loopback.
    """
    name = cookie_name(request)
    if name is None:
        raise AccessDenied("insecure", "sign in by HTTPS: a cookie would be readable on its way")
    _check_person(person)
    old, secret = _cookie(request), new_secret()
    row = SessionRow(
        hash=hash_secret(secret),
        person=person.id,
        data=_signed_in(person),
        tenant=person.tenant,
        token_id=token_id,
    )
    replaces = None if old is None else hash_secret(old)
    await audited_verbs(person, store).open_session(row, settings.absolute, replaces)
    return name, secret


def _check_person(principal: Principal) -> None:
    check_somebody(principal)
    if principal.kind != "person":
        text = (
            "this token is that of a program, which does not sign in but sends it; to sign in, "
            "a person needs one of their own: perdure tokens create NAME --role ROLE --person ID"
        )
        raise AccessDenied("forbidden", text)


async def sign_out(store: Store, session: OpenSession) -> None:
    """End a session."""
    await audited_verbs(session.principal, store).end_session(hash_secret(session.secret))


def set_cookie(response: Response, name: str, secret: str) -> None:
    """Give the browser the cookie of a session; it forgets it when it is closed."""
    response.set_cookie(
        name, secret, path="/", secure=name == COOKIE, httponly=True, samesite="strict"
    )


def delete_cookie(response: Response, name: str) -> None:
    """Make the browser forget the cookie."""
    response.delete_cookie(name, path="/", secure=name == COOKIE, httponly=True, samesite="strict")


# Links


async def new_sign_in_link(store: Store, person: Principal, lifetime: float = LINK_LIFETIME) -> str:
    """Return the secret of a link that signs a person in once, within some seconds.

    Raises:
        AccessDenied: It is a program, or nobody.
    """
    _check_person(person)
    secret = new_secret()
    await store.add_sign_in_link(hash_secret(secret), _signed_in(person), lifetime)
    return secret


_LINK: Final = "/login#link="


def link_path(secret: str) -> str:
    """Return the path of a link: its secret is behind the #, which no browser sends."""
    return f"{_LINK}{secret}"


def link_in(text: str) -> str:
    """Return the secret of a link that somebody pasted, with or without the host; else nothing."""
    return text.partition(_LINK)[2].strip()


async def use_sign_in_link(store: Store, secret: str) -> Principal | None:
    """Return whom a link signs in, and use it up; None if it is unknown, used or expired."""
    if len(secret) > LONGEST:
        return None
    found = await store.take_sign_in_link(hash_secret(secret))
    if found is None:
        return None
    try:
        data = msgspec.json.decode(found, type=SignedIn)
    except msgspec.MsgspecError:  # it was kept for something else
        return None
    return _principal(data, f"link {hash_secret(secret)[:12]}")


def local_operator() -> Principal:
    """Return who uses `perdure dev`, `demo` and `serve` on their own machine: everything."""
    return Principal(
        id=LOCAL, name="local operator", tenant=None, roles=frozenset({Role.ADMIN, Role.APPROVER})
    )


def with_address(principal: Principal, request: Request) -> Principal:
    """Return a principal with the address that their request came from."""
    return replace(principal, address=request.client.host if request.client else "")
