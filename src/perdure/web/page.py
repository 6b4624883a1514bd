"""The dashboard: built files that come with the package, at any prefix.

`index.html` is never cached, and answers every path that is not something else: the page itself
reads the path. The names of its assets change with their content, so they are cached for ever. The
page is written as if it stood at the root; the prefix is filled in when it is sent.
"""

import re
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from perdure.web.pieces import in_pieces

STATIC: Final = files("perdure.web").joinpath("static")

_ASSET: Final = re.compile(r"[\w][\w.-]*", re.ASCII)
_FOREVER: Final = "public, max-age=31536000, immutable"
_TYPES: Final = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
    "json": "application/json",
    "map": "application/json",
    "txt": "text/plain; charset=utf-8",
}
_ABSENT: Final = """The dashboard of Perdure is not built here.

The API is: see {base}/api/openapi.json.
In a checkout, run `scripts/page` once; the package that pip installs includes it.
"""


def page_routes() -> list[Route]:
    """Return the routes of the dashboard; the last one takes every path that is left."""
    return [
        Route("/assets/{name}", asset, methods=["GET"]),
        Route("/{path:path}", index, methods=["GET"]),
    ]


async def asset(request: Request) -> Response:
    """Answer with a file of the dashboard."""
    name = request.path_params["name"]
    kind = _TYPES.get(name.rpartition(".")[2])
    if kind is None or not _ASSET.fullmatch(name):
        raise HTTPException(404, "there is no such file")
    data = _read(STATIC.joinpath("assets", name))
    if data is None:
        raise HTTPException(404, "there is no such file")
    return in_pieces(data, {"cache-control": _FOREVER}, kind)


async def index(request: Request) -> Response:
    """Answer with the page, whatever the path."""
    if request.path_params["path"].startswith("api/"):
        raise HTTPException(404, "there is nothing at this path")
    base = request.scope.get("root_path", "").rstrip("/")
    headers = {"cache-control": "no-store"}
    data = _read(STATIC.joinpath("index.html"))
    if data is None:
        return PlainTextResponse(_ABSENT.format(base=base), 200, headers)
    html = at_prefix(data.decode(), base)
    return in_pieces(html.encode(), headers, "text/html; charset=utf-8")


def at_prefix(html: str, base: str) -> str:
    """Return the page with a prefix before its paths."""
    prefix = escape(base)
    html = html.replace('="/assets/', f'="{prefix}/assets/')
    return html.replace(
        'name="perdure-base" content="/"', f'name="perdure-base" content="{prefix}/"'
    )


def _read(file: Traversable) -> bytes | None:
    """Return a file; None if there is none."""
    return file.read_bytes() if file.is_file() else None
