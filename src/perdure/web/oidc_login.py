"""The pages of signing in with OpenID Connect: away to the provider, and back."""

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from perdure.base.errors import AccessDenied, RequestRefused
from perdure.web.access.gate import Access
from perdure.web.access.oidc import PENDING, Oidc, begin, finish
from perdure.web.access.sessions import cookie_name, set_cookie, sign_in, with_address
from perdure.web.access.site import origin_of
from perdure.web.login import base_of, local_path, login_page

_HEADERS: Final = {"cache-control": "no-store"}


class OidcLogin:
    """A further way to sign in, for `Access(login=…)`."""

    begins = "/login/oidc"

    def __init__(self, oidc: Oidc) -> None:
        self._oidc = oidc

    def routes(self, access: Access) -> list[Route]:
        """Return the routes: where it begins, and where the provider sends the browser back to."""
        return [
            Route(self.begins, partial(_begin, access, self._oidc), methods=["GET"]),
            Route(f"{self.begins}/callback", partial(_finish, access, self._oidc), methods=["GET"]),
        ]


def oidc_login(oidc: Oidc) -> OidcLogin:
    """Return the pages of a provider."""
    return OidcLogin(oidc)


def _state_cookie(request: Request) -> str:
    name = cookie_name(request)
    if name is None:
        raise AccessDenied("insecure", "sign in by HTTPS: a cookie would be readable on its way")
    return f"{name}-oidc"


async def _begin(access: Access, oidc: Oidc, request: Request) -> Response:
    try:
        access.admit(request)
        access.count_sign_in(request)
        name = _state_cookie(request)
        origin = origin_of(request, access.settings.origin)
        redirect = f"{origin}{base_of(request)}{OidcLogin.begins}/callback"
        wanted = local_path(request.query_params.get("next", ""))
        where, state = await begin(access.store, oidc, redirect, wanted)
    except (AccessDenied, RequestRefused) as error:
        return login_page(request, str(error), getattr(error, "status", 403))
    response = RedirectResponse(where, 303, _HEADERS)
    # Lax, since the browser comes back from another site; it opens nothing by itself.
    secure = request.scope["scheme"] == "https"
    response.set_cookie(
        name, state, max_age=int(PENDING), path="/", secure=secure, httponly=True, samesite="lax"
    )
    return response


async def _finish(access: Access, oidc: Oidc, request: Request) -> Response:
    try:
        access.admit(request)
        name = _state_cookie(request)
        state = request.cookies.get(name)
        try:
            person, wanted = await finish(access.store, oidc, request.query_params, state)
        except AccessDenied:
            await access.note_failed_sign_in(request, "oidc")
            raise
        person = with_address(person, request)
        cookie, secret = await sign_in(access.store, request, person, access.settings)
    except (AccessDenied, RequestRefused) as error:
        return login_page(request, str(error), getattr(error, "status", 403))
    response = RedirectResponse(f"{base_of(request)}{local_path(wanted)}", 303, _HEADERS)
    response.delete_cookie(name, path="/", secure=request.scope["scheme"] == "https")
    set_cookie(response, cookie, secret)
    return response
