"""The OpenAPI 3.1 document, made from the table of routes and the types that it names."""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from perdure.web.access.principal import Permission
from perdure.web.pieces import in_pieces
from perdure.web.problem import MEDIA_TYPE, Problem
from perdure.web.request import Route
from perdure.web.routes import ROUTES

PATH: Final = "/api/openapi.json"
_JSON: Final = "application/json"
_NAMES: Final = re.compile(r"\{(\w+)\}")
_REF: Final = "#/components/schemas/{name}"
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Sent twice, it happens once.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token `pdr_…`."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-perdure",
        "description": "The session of a browser; what changes something also needs X-CSRF-Token.",
    },
}


def document_routes() -> list[HttpRoute]:
    """Return the route of the document."""
    return [HttpRoute(PATH, _show, methods=["GET"])]


async def _show(request: Request) -> Response:
    base = request.scope.get("root_path", "").rstrip("/")
    return in_pieces(_at(base), {"cache-control": "no-cache"}, _JSON)


@lru_cache(maxsize=8)  # it is large, and anybody may ask for it
def _at(base: str) -> bytes:
    """Return the document of an app at a prefix."""
    return msgspec.json.encode({**document(), "servers": [{"url": base or "/"}]})


@cache
def document() -> dict[str, Any]:
    """Return the document of all routes."""
    return document_of(ROUTES)


def document_of(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document of some routes."""
    types = [each for route in routes for each in (route.query, route.request, route.response)]
    wanted = [each for each in dict.fromkeys([*map(_known, types), Problem]) if each is not None]
    schemas, components = msgspec.json.schema_components(
        wanted, ref_template=_REF, schema_hook=_any_value
    )
    by_type = dict(zip(wanted, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, by_type, components)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Perdure",
            "version": version("perdure"),
            "summary": "Durable jobs, and the people and workers around them.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY},
        "security": [{name: []} for name in _SECURITY],
    }


def _any_value(kind: type) -> dict[str, Any]:
    if kind is not object:
        raise NotImplementedError
    return {"description": "Any value."}


def _known(kind: Any) -> Any:
    return None if kind is Any else kind


def _operation(
    route: Route, schemas: dict[Any, dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [
            *_path_parameters(route.path),
            *_query_parameters(schemas[route.query], components),
            *([_KEY] if route.method == "POST" else ()),
        ],
        "responses": {
            str(route.status): _success(route, schemas),
            "default": {
                "description": "Why it was refused.",
                "content": {MEDIA_TYPE: {"schema": schemas[Problem]}},
            },
        },
    }
    if route.permission is not None:
        operation["description"] = f"Needs the permission `{Permission(route.permission)}`."
    if route.request is not None:
        content = {_JSON: {"schema": schemas[route.request]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def operation_id(route: Route) -> str:
    """Return a name for a route that no other one has."""
    words = [route.method.lower(), *re.findall(r"\w+", route.path.removeprefix("/api/v1"))]
    return "_".join(words)


def _success(route: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if route.response is None:
        return {"description": "Done."}
    schema = {} if route.response is Any else schemas[route.response]
    return {"description": "The answer.", "content": {route.media: {"schema": schema}}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name in _NAMES.findall(path)
    ]


def _query_parameters(
    reference: dict[str, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    kind = components[reference["$ref"].rpartition("/")[2]]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in kind.get("required", ()),
            "schema": schema,
        }
        for name, schema in kind.get("properties", {}).items()
    ]
