"""No value from outside is a fault of the server: every field of every route, at its edges."""

import json
import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

import httpx
import msgspec
import pytest

from perdure import App
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import JobState
from perdure.web.request import EVENTS, Route
from perdure.web.routes import ROUTES
from tests.support.web_client import api_of

EDGES: list[Any] = [
    "", " ", "\0", "\ud800", "x" * 70_000, "²", "\u202e\n", "-1", "0", "1e999", str(2**63), "../x",
    None, True, -1, 0, 2**63, 1e308, [], {}, [""], [{}], {"": ""}, {"$ref": ""}, {"x": None},
]  # fmt: skip


def plain_of(kind: Any) -> Any:
    """Return a value that a field may have."""
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    for wanted, value in ((str, "x"), (int, 1), (float, 1.0), (bool, False)):
        if kind is wanted:
            return value
    made: dict[Any, Any] = {dict: {}, list: [], tuple: []}
    return made.get(get_origin(kind) or kind, "x")


def bodies(route: Route) -> list[Any]:
    """Return bodies of a route, each with one field at an edge."""
    if route.request is None:
        return [None]
    if not isinstance(route.request, type) or not issubclass(route.request, msgspec.Struct):
        return EDGES
    kinds = get_type_hints(route.request)
    fields = msgspec.structs.fields(route.request)
    base = {each.encode_name: plain_of(kinds[each.name]) for each in fields if each.required}
    return [base, *EDGES, *({**base, each.encode_name: edge} for each in fields for edge in EDGES)]


def queries(route: Route) -> list[dict[str, str]]:
    texts = [each for each in EDGES if isinstance(each, str) and len(each) < 100]
    names = [each.encode_name for each in msgspec.structs.fields(route.query)]
    return [{}, *({name: text} for name in names for text in texts if text != "\ud800")]


async def sent(
    api: httpx.AsyncClient, route: Route, path: str, query: dict[str, str], body: Any
) -> str | None:
    """Send a request; return what went wrong if the server is at fault."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} if content is not None else {}
    answer = await api.request(route.method, path, params=query, content=content, headers=headers)
    if answer.status_code != 500:
        return None
    return f"{route.method} {path} {query} {str(body)[:200]}"


def paths(route: Route, known: dict[str, str]) -> list[str]:
    """Return paths of a route: of what is there, and of what cannot be."""
    mine = next((id for part, id in known.items() if f"/{part}/" in route.path), "x")
    found = [re.sub(r"\{\w+\}", id, route.path) for id in (mine, "%00", "%F0%9F", "x" * 300)]
    return list(dict.fromkeys(found))


@pytest.fixture
def app(url: str) -> App:
    app = App(url)

    @app.step(risk=RiskLevel.MEDIUM, approval="required")
    async def pay(amount: int) -> int:
        return amount

    @app.job
    async def asks(amount: int) -> int:
        return await pay(amount)

    del asks
    return app


@pytest.mark.timeout(600)
async def test_no_value_of_any_field_is_a_fault_of_the_server(app: App) -> None:
    faults: list[str] = []
    async with api_of(app, "ann@default admin,operator,approver") as api:
        async with app.running():
            job = await app.submit(app.jobs["asks"](1), user="kim")
            await job.until(JobState.WAITING)
        (asked,) = await app.approvals()
        known = {"jobs": job.id, "approvals": asked.id}
        for route in ROUTES:
            if route.media == EVENTS:
                continue
            mine, *strange = paths(route, known)
            asked_for: list[tuple[str, dict[str, str], Any]] = [
                *((mine, query, each) for each in bodies(route) for query in queries(route)[:1]),
                *((mine, query, bodies(route)[0]) for query in queries(route)),
                *((path, {}, bodies(route)[0]) for path in strange),
            ]
            for path, query, body in asked_for:
                if fault := await sent(api, route, path, query, body):
                    faults.append(fault)
    assert faults == []
