"""Tokens of programs and people: made, listed and revoked by an admin of their tenant."""

from typing import Final

from msgspec import Struct

from perdure.web.access.principal import Permission
from perdure.web.access.tokens import NewToken, Token
from perdure.web.request import Answer, ApiRequest, Page, Route


class TokenPage(Page, frozen=True, kw_only=True):
    """All tokens, newest first."""

    items: list[Token]


class NewTokenBody(NewToken, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to be made; `lifetime` is in seconds, `scopes` limit what the roles allow."""


class MadeTokenView(Struct, frozen=True, kw_only=True):
    """A new token; `secret` is shown here, and never again."""

    token: Token
    secret: str


async def list_tokens(request: ApiRequest) -> Answer:
    """List the tokens."""
    items = await request.store.tokens()
    return Answer(TokenPage(items=items, now=await request.store.now()))


async def create_token(request: ApiRequest) -> Answer:
    """Make a token."""
    made = await request.store.create_token(request.body)
    where = {"location": request.href(f"/api/v1/tokens/{made.token.id}")}
    return Answer(MadeTokenView(token=made.token, secret=made.secret), 201, where)


async def revoke_token(request: ApiRequest) -> Answer:
    """Revoke a token, and end the sessions that began with it."""
    await request.store.revoke_token(request.path["id"])
    request.streams.recheck()
    return Answer(None, 204)


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/tokens",
        handler=list_tokens,
        permission=Permission.TOKENS_MANAGE,
        summary="List tokens",
        response=TokenPage,
        tag="access",
    ),
    Route(
        method="POST",
        path="/api/v1/tokens",
        handler=create_token,
        permission=Permission.TOKENS_MANAGE,
        summary="Make a token",
        request=NewTokenBody,
        response=MadeTokenView,
        status=201,
        tag="access",
        shown_once=True,
    ),
    Route(
        method="DELETE",
        path="/api/v1/tokens/{id}",
        handler=revoke_token,
        permission=Permission.TOKENS_MANAGE,
        summary="Revoke a token, and end the sessions that began with it",
        status=204,
        tag="access",
    ),
)
