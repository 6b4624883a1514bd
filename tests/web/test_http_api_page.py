"""The page of the HTTP API has every route, as the table of routes says."""

import re
import sys
from pathlib import Path

import msgspec
from msgspec.structs import FieldInfo, fields

from perdure.web.body import RequestLimits
from perdure.web.routes import ROUTES

PAGE = Path(__file__).parent.parent.parent / "docs/jobs/http_api.md"
_TABLE = re.compile(r"(<!-- routes: [^\n]*-->\n).*?(<!-- /routes -->)", re.DOTALL)


def shown(field: FieldInfo) -> str:
    return f"**`{field.encode_name}`**" if field.required else f"`{field.encode_name}`"


def table() -> str:
    lines = ["| method | path | permission | what | body |", "|---|---|---|---|---|"]
    for route in ROUTES:
        needed = str(route.permission or "any")
        body = "" if route.request is None else ", ".join(map(shown, fields(route.request)))
        start = f"| {route.method} | `{route.path}` | {needed} | {route.summary} |"
        lines.append(f"{start} {body} |" if body else f"{start} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    return _TABLE.sub(lambda found: f"{found[1]}\n{table()}\n{found[2]}", page)


def test_the_page_lists_every_route() -> None:
    page = PAGE.read_text("utf-8")
    assert page == written(page), "run `python -m tests.web.test_http_api_page --write`"


def test_the_page_lists_every_limit() -> None:
    page = PAGE.read_text("utf-8")
    for field in msgspec.structs.fields(RequestLimits):
        assert f"| `{field.name}` |" in page


def test_every_route_has_a_summary_and_a_path_of_its_own() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert all(route.summary and route.summary[0].isupper() for route in ROUTES)


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
