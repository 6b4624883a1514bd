"""Tokens: made, listed and revoked; the secret is shown once, when it is made."""

import secrets
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from perdure.base.errors import AccessDenied, ArgumentError, UnknownName
from perdure.jobs.credential import TokenRow
from perdure.jobs.text_limits import check_given
from perdure.store.store import Store
from perdure.web.access.principal import Permission, Principal, Role, has_the_store
from perdure.web.access.secret_text import hash_secret, new_token

LIFETIME: Final = 90 * 86400.0  # seconds, where nobody says otherwise
LONGEST_LIFETIME: Final = 366 * 86400.0
MOST_MAKERS: Final = 100  # behind one token, each of which is stored with it
_SERVICE: Final = "service:"  # before the name of a program


class TokenGrant(Struct, frozen=True, kw_only=True):
    """What a token is called, and what it may do; stored with its hash."""

    name: str
    kind: Literal["person", "service"] = "service"
    roles: tuple[Role, ...] = ()
    scopes: tuple[Permission, ...] | None = None


class NewToken(Struct, frozen=True, kw_only=True):
    """A token to be made.

    Attributes:
        name: What it is for, to recognise it in the list.
        roles: What it may do.
        kind: "service" for a program; "person" to sign in with, and to decide approvals.
        principal: The id of the person; a program has the id "service:" and the name.
        scopes: The permissions that it is limited to; None: those of its roles.
        lifetime: Seconds until it expires.
    """

    name: str
    roles: tuple[Role, ...]
    kind: Literal["person", "service"] = "service"
    principal: str = ""
    scopes: tuple[Permission, ...] | None = None
    lifetime: float = LIFETIME


class Token(Struct, frozen=True, kw_only=True):
    """A token as it is listed: without its secret."""

    id: str
    name: str
    principal: str
    kind: Literal["person", "service"]
    tenant: str | None
    roles: list[Role]
    scopes: list[Permission] | None
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None


class MadeToken(NamedTuple):
    """A new token, and its secret, which is shown once."""

    token: Token
    secret: str


async def create_token(
    store: Store, asked: NewToken, tenant: str | None, by: Principal
) -> MadeToken:
    """Make a token of a tenant, or of all tenants if that is None.

    Everybody who stands behind its maker stands behind it, for as long as it is known.

    Raises:
        ArgumentError: Something in it is not valid.
        AccessDenied: It would be allowed more than its maker, or belong to another tenant.
    """
    _check(asked, tenant)
    _check_maker(asked, tenant, by)
    grant = TokenGrant(name=asked.name, kind=asked.kind, roles=asked.roles, scopes=asked.scopes)
    secret = new_token()
    row = TokenRow(
        id=secrets.token_hex(8),
        hash=hash_secret(secret),
        data=msgspec.json.encode(grant).decode(),
        tenant=tenant,
        principal=_principal_id(asked),
        created_by=by.id,
        makers=tuple(sorted(by.makers | {by.id})),
    )
    return MadeToken(listed(await store.add_token(row, asked.lifetime)), secret)


def _principal_id(asked: NewToken) -> str:
    return asked.principal or f"{_SERVICE}{asked.name}"


def _check(asked: NewToken, tenant: str | None) -> None:
    check_given(title=asked.name, user=asked.principal, tenant=tenant)
    problems: list[str] = []
    if not asked.name.strip():
        problems.append("give it a name, to recognise it by")
    if not asked.roles:
        problems.append(f"give it at least one role: {', '.join(Role)}")
    if not 0 < asked.lifetime <= LONGEST_LIFETIME:
        problems.append("its lifetime must be between a second and 366 days")
    if asked.kind == "person" and not asked.principal:
        problems.append("name the person whose token it is")
    if asked.kind == "service" and asked.principal:
        problems.append("a service token belongs to no person")
    if asked.principal.startswith(_SERVICE) or has_the_store(asked.principal):
        problems.append("this name is not that of a person")
    if problems:
        raise ArgumentError("token", problems)


def _check_maker(asked: NewToken, tenant: str | None, by: Principal) -> None:
    """Refuse a token that may do more than its maker: nobody gives what they do not have.

    Only people who run the installation make tokens for other people: an admin of a tenant could
    otherwise submit a job in the name of another person, and then approve it as themselves. That
    they made it is known when it decides: see `jobs.approval`.
    """
    if by.tenant is not None and tenant != by.tenant:
        raise AccessDenied("forbidden", "a token belongs to the tenant of its maker")
    vouches = by.kind == "person" and (by.tenant is None or asked.principal == by.id)
    if asked.kind == "person" and not vouches:
        raise AccessDenied("forbidden", "a token of a person is made by that person")
    if len(by.makers) >= MOST_MAKERS:
        raise AccessDenied("forbidden", "too many tokens were made by tokens: let a person make it")
    made = Principal(
        id=_principal_id(asked),
        kind=asked.kind,
        tenant=tenant,
        roles=frozenset(asked.roles),
        scopes=None if asked.scopes is None else frozenset(asked.scopes),
    )
    if more := sorted(made.permissions - by.permissions):
        text = f"you may not do that yourself: {', '.join(more)}"
        raise AccessDenied("forbidden", text)


def listed(row: TokenRow) -> Token:
    """Return a token as it is listed."""
    grant = grant_of(row)
    return Token(
        id=row.id,
        name=grant.name,
        principal=row.principal,
        kind=grant.kind,
        tenant=row.tenant,
        roles=list(grant.roles),
        scopes=None if grant.scopes is None else list(grant.scopes),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )


async def revoke_token(store: Store, token_id: str, tenant: str | None) -> None:
    """Revoke a token, and end the sessions that began with it.

    Raises:
        UnknownName: There is none that is valid, or it belongs to another tenant.
    """
    if not await store.revoke_token(token_id.replace("\0", ""), tenant):
        raise UnknownName(f"there is no token {token_id!r} to revoke")


def grant_of(row: TokenRow) -> TokenGrant:
    """Return what a token may do."""
    return msgspec.json.decode(row.data, type=TokenGrant)


def principal_of(row: TokenRow) -> Principal:
    """Return the principal of a token; they have not signed in."""
    grant = grant_of(row)
    return Principal(
        id=row.principal,
        name=grant.name if grant.kind == "service" else "",
        kind=grant.kind,
        tenant=row.tenant,
        roles=frozenset(grant.roles),
        scopes=None if grant.scopes is None else frozenset(grant.scopes),
        makers=frozenset(row.makers),
        credential=f"token {row.id}",
    )
