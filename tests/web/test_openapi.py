"""The OpenAPI document, and what schemathesis finds by it."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode

from perdure import App
from perdure.web.openapi import document
from perdure.web.routes import ROUTES
from tests.support.web_client import api_of

# It draws hundreds of requests, whose answers do not depend on the interpreter.
pytestmark = pytest.mark.once


def test_the_document_has_every_route_with_its_types() -> None:
    found = document()
    assert found["openapi"] == "3.1.0"
    methods = {(path, method) for path, item in found["paths"].items() for method in item}
    assert methods == {(route.path, route.method.lower()) for route in ROUTES}
    ids = [each["operationId"] for item in found["paths"].values() for each in item.values()]
    assert len(set(ids)) == len(ids)
    submit = found["paths"]["/api/v1/jobs"]["post"]
    body = submit["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/NewJobBody"}
    listed = found["paths"]["/api/v1/jobs"]["get"]["parameters"]
    assert {each["name"] for each in listed} == {"q", "limit", "cursor"}


async def test_the_document_is_open_to_all_and_names_the_prefix(url: str) -> None:
    async with api_of(App(url), "") as api:
        answer = await api.get("/api/openapi.json")
        assert answer.json()["servers"] == [{"url": "/"}]


async def answers_of_every_route(api: httpx.AsyncClient) -> dict[str, int]:
    found: dict[str, int] = {}
    for route in ROUTES:
        if route.media == "text/event-stream":
            continue
        path = route.path.replace("{", "").replace("}", "")
        body: dict[str, Any] = {} if route.request is None else {"json": {}}
        answer = await api.request(route.method, path, **body)
        found[f"{route.method} {path}"] = answer.status_code
    return found


@pytest.mark.parametrize("who", ["kim@* admin", "kim@acme operator,approver"])
async def test_no_route_fails_on_ids_that_do_not_exist(url: str, who: str) -> None:
    async with api_of(App(url), who) as api:
        statuses = await answers_of_every_route(api)
    assert {name: status for name, status in statuses.items() if status >= 500} == {}


@pytest.mark.timeout(600)
def test_schemathesis_finds_no_fault_of_the_server(url: str) -> None:
    app = App(url)

    @app.job
    async def twice(number: int) -> int:
        return 2 * number

    # What may be sent, and what may not; a stream has no end, and has tests of its own.
    whole: Any = schemathesis.openapi.from_dict(document())
    schema = whole.exclude(path="/api/v1/events")
    operations = [(mode, each) for mode in GenerationMode for each in schema.get_all_operations()]
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        api = runner.run(stack.enter_async_context(api_of(app, "kim@* admin,approver")))
        job = runner.run(app.submit(twice(1), key="one", user="kim"))
        ids: list[dict[str, str]] = [{}, {"id": job.id}]
        turns = itertools.cycle(ids)  # a strange id finds nothing, behind which most faults are
        for mode, found in operations:

            def send(case: Case[Any]) -> None:
                known = {
                    name: id for name, id in next(turns).items() if name in case.path_parameters
                }
                case.path_parameters = {**case.path_parameters, **known}
                runner.run(not_at_fault(api, case))

            quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
            bounds = settings(max_examples=4, derandomize=True, deadline=None, database=None)
            bounds = settings(bounds, suppress_health_check=quiet)
            given(found.ok().as_strategy(generation_mode=mode))(bounds(send))()
        runner.run(stack.aclose())


async def not_at_fault(api: httpx.AsyncClient, case: Case[Any]) -> None:
    """Send a request that schemathesis has made; whatever is in it, the server must not fail."""
    made = case.as_transport_kwargs(base_url="http://test")
    try:
        answer = await api.request(
            made["method"],
            made["url"],
            params=made.get("params"),
            headers={**dict(made.get("headers") or {}), **api.headers},
            json=made.get("json"),
            content=made.get("data"),
        )
    except (httpx.InvalidURL, UnicodeEncodeError, ValueError):
        return  # no client could send it
    assert answer.status_code < 500, f"{case.as_curl_command()}: {answer.text}"
