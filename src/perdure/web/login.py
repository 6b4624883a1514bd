"""Signing in and out with a browser: pages from the server, which need JavaScript for links alone.

A person signs in with a token of theirs, or with a link that `perdure serve` and `dev` print on the
machine itself: `/login#link=SECRET`. A browser keeps what is behind the # to itself, so no log of a
server or a proxy has the secret; a script of the page puts it into the form. Programs that look at
links see only a page with a button, and do not use them up. The POST of the button does, once.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from html import escape
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, quote

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from perdure.base.errors import AccessDenied, RequestRefused
from perdure.web.access.gate import Access
from perdure.web.access.principal import Principal
from perdure.web.access.sessions import (
    cookie_name,
    delete_cookie,
    link_in,
    set_cookie,
    sign_in,
    sign_out,
    use_sign_in_link,
    with_address,
)
from perdure.web.access.site import check_site
from perdure.web.body import LIMITS, RequestLimits, check_head, read_body

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS: Final = 10
LONGEST_FORM: Final = 16 * 1024  # bytes, which anybody may send
_MOST_PIECES: Final = 64  # in which it comes
_WRONG: Final = "That did not work: it is unknown, used, revoked or expired."
_HEADERS: Final = {"cache-control": "no-store"}

_STYLE: Final = """\
:root { color-scheme: light dark; font: 14px/20px system-ui, sans-serif;
  --page: light-dark(#fff, #0d1117); --text: light-dark(#1f2328, #e6edf3);
  --muted: light-dark(#59636e, #9198a1); --line: light-dark(#d1d9e0, #30363d);
  --strong: light-dark(#1f2328, #e6edf3); --on-strong: light-dark(#fff, #0d1117);
  --focus: light-dark(#0969da, #58a6ff); --failed: light-dark(#cf222e, #f85149); }
body { display: grid; place-items: center; min-height: 84vh; margin: 0 20px;
  background: var(--page); color: var(--text); }
main { width: 100%; max-width: 340px; }
svg { display: block; margin-bottom: 20px; }
svg rect { fill: var(--strong); }
svg path { fill: none; stroke: var(--on-strong); stroke-width: 3; stroke-linecap: round;
  stroke-linejoin: round; }
svg circle { fill: light-dark(#3fb950, #1a7f37); }
h1 { margin: 0 0 4px; font-size: 20px; line-height: 28px; font-weight: 600; }
p { margin: 0 0 20px; color: var(--muted); }
label { display: block; font-size: 12px; font-weight: 500; color: var(--muted); }
input, button { display: block; width: 100%; box-sizing: border-box; height: 36px; font: inherit;
  padding: 0 12px; margin: 4px 0 16px; border-radius: 6px; color: inherit; }
input { border: 1px solid var(--line); background: var(--page); }
button { border: 0; background: var(--strong); color: var(--on-strong); font-weight: 500;
  cursor: pointer; }
button:hover { opacity: .88; }
:focus-visible { outline: 2px solid var(--focus); outline-offset: 1px; }
code { font: 12px ui-monospace, monospace; }
a { color: inherit; }
.wrong { color: var(--failed); }
"""

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · Perdure</title>
<link rel="stylesheet" href="{base}/login.css">
</head>
<body>
<main>
<svg width="36" height="36" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32"
 rx="7"/><path d="M9 25V8h8.2a5.4 5.4 0 0 1 0 10.8H13"/><circle cx="22.5" cy="24" r="2.5"/></svg>
<h1>Sign in to Perdure</h1>
{wrong}
<form method="post" action="{base}/login{kept}">
<input type="hidden" name="next" value="{next}">
{ask}
<button type="submit">Sign in</button>
</form>
{more}
</main>
<script src="{base}/login.js"></script>
</body>
</html>
"""
_AGAIN: Final = (
    "<p>What you want to do needs a recent sign-in. You then continue where you were.</p>"
    "<p id=how>Sign in as you did before. A link works once: if you came by one, "
    "<code>perdure tokens sign-in</code> prints a new one.</p>"
)
_HOW: Final = (
    "<p id=how>With a token of yours, which <code>perdure tokens create NAME --role ROLE --person "
    "YOU</code> makes, or with a link, which <code>perdure tokens sign-in</code> prints.</p>"
)
_ASK: Final = """\
<div id="ask"><label for="token">Your token, or a link</label>
<input id="token" name="token" type="password" autocomplete="current-password" required
 autofocus></div>"""
# Also when a link is pasted into the page that is already there: then nothing is loaded.
_SCRIPT: Final = """\
function takeLink() {
  const link = new URLSearchParams(location.hash.slice(1)).get("link");
  if (!link) return;
  history.replaceState(null, "", location.pathname + location.search);
  const field = document.createElement("input");
  field.type = "hidden";
  field.name = "link";
  field.value = link;
  document.getElementById("ask").replaceChildren(field);
  document.getElementById("how")?.remove();
}
addEventListener("hashchange", takeLink);
takeLink();
"""


def login_routes(access: Access, limits: RequestLimits = LIMITS) -> list[Route]:
    """Return the routes of signing in and out."""
    limits = replace(limits, body=LONGEST_FORM, messages=_MOST_PIECES)
    return [
        Route("/login", partial(_show, access), methods=["GET"]),
        Route("/login", partial(_answered, access, limits, _sign_in), methods=["POST"]),
        Route("/logout", partial(_answered, access, limits, _sign_out), methods=["POST"]),
        Route("/login.css", partial(_file, _STYLE, "text/css"), methods=["GET"]),
        Route("/login.js", partial(_file, _SCRIPT, "text/javascript"), methods=["GET"]),
        *([] if access.login is None else access.login.routes(access)),
    ]


async def _file(text: str, kind: str, _: Request) -> Response:
    return Response(text, 200, {"cache-control": "public, max-age=3600"}, kind)


async def _show(access: Access, request: Request) -> Response:
    try:
        access.admit(request)
    except RequestRefused as refused:
        return login_page(request, str(refused), refused.status)
    return login_page(request, more="" if access.login is None else access.login.begins)


_Form: TypeAlias = Callable[[], Awaitable[Mapping[str, str]]]
_Answer: TypeAlias = Callable[[Access, Request, _Form], Awaitable[Response]]


async def _answered(
    access: Access, limits: RequestLimits, answer: _Answer, request: Request
) -> Response:
    """Answer a form; what is refused comes back as the page."""
    try:
        access.admit(request)
        return await answer(access, request, partial(_form, request, limits))
    except RequestRefused as refused:
        page = login_page(request, str(refused), refused.status)
        if refused.retry:
            page.headers["retry-after"] = f"{max(1, round(refused.retry))}"
        return page
    except AccessDenied as denied:
        return login_page(request, str(denied), 403)


async def _sign_in(access: Access, request: Request, read: _Form) -> Response:
    access.count_sign_in(request)
    check_site(request, access.settings.origin)
    form = await read()
    person, token_id = await _person(access, form)
    if person is None:
        by_link = "link" in form or link_in(form.get("token", ""))
        await access.note_failed_sign_in(request, "link" if by_link else "token")
        return login_page(request, _WRONG, 403)
    person = with_address(person, request)
    name, secret = await sign_in(access.store, request, person, access.settings, token_id)
    where = f"{base_of(request)}{local_path(form.get('next', ''))}"
    response = RedirectResponse(where, 303, _HEADERS)
    set_cookie(response, name, secret)
    return response


async def _person(access: Access, form: Mapping[str, str]) -> tuple[Principal | None, str | None]:
    """Return who has proved who they are, and the token by which they did."""
    given = form.get("token", "").strip()
    if link := form.get("link") or link_in(given):
        return await use_sign_in_link(access.store, link), None
    found = await access.by_token(given)
    return found, None if found is None else found.credential.removeprefix("token ")


async def _sign_out(access: Access, request: Request, read: _Form) -> Response:
    form = await read()
    session = await access.session(request, form.get("csrf"))
    if session is not None:
        await sign_out(access.store, session)
        access.recheck()
    response = RedirectResponse(f"{base_of(request)}/login", 303, _HEADERS)
    name = cookie_name(request)
    if name is not None:
        delete_cookie(response, name)
    return response


async def _form(request: Request, limits: RequestLimits) -> dict[str, str]:
    check_head(request, limits)
    body = await read_body(request, limits)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body and not media:  # a script that signs out has no fields
        return {}
    if media != _FORM:
        raise RequestRefused(415, "not_a_form", "this is not the form of the sign-in page")
    try:
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=_FIELDS))
    except ValueError:
        raise RequestRefused(400, "bad_form", "this is not the form of the sign-in page") from None


def local_path(text: str) -> str:
    """Return where to go after a sign-in: a path of our own, and nothing else."""
    plain = text.startswith("/") and not text.startswith("//") and text.isprintable()
    return text if plain and "\\" not in text else "/"


def base_of(request: Request) -> str:
    """Return the prefix that this app is mounted at."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def login_page(request: Request, wrong: str = "", status: int = 200, more: str = "") -> Response:
    """Return the page; `more` is the path of a further way to sign in."""
    base = escape(base_of(request))
    elsewhere = f'<p><a href="{base}{escape(more)}">Sign in with your organisation</a></p>'
    asked = _AGAIN if request.query_params.get("again") else _HOW
    after = local_path(request.query_params.get("next", ""))
    text = _PAGE.format(
        base=base,
        more=elsewhere if more else "",
        next=escape(after),
        kept=f"?next={quote(after, safe='/')}" if after != "/" else "",  # also after a mistake
        wrong=f'<p class="wrong" role="alert">{escape(wrong)}</p>' if wrong else asked,
        ask=_ASK,
    )
    return Response(text, status, _HEADERS, "text/html; charset=utf-8")
