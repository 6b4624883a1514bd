"""`/healthz` and `/readyz`, open to all, and `/metrics`, for whoever may read them."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.base.errors import AccessDenied
from perdure.engine.caller import Caller
from perdure.observe.endpoints import Endpoints
from perdure.observe.prometheus import Metrics
from perdure.web.access.principal import Permission
from perdure.web.dispatch import AccessGate
from perdure.web.problem import problem_response


def probe_routes(caller: Caller, gate: AccessGate, metrics: Metrics) -> list[Route]:
    """Return the routes of probes and metrics."""
    endpoints = Endpoints(caller.store, metrics)

    async def answer(request: Request) -> Response:
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        found = await endpoints.answer(path)
        headers = {"cache-control": "no-store"}
        return Response(found.body, found.status, headers, found.content_type)

    async def guarded(request: Request) -> Response:
        try:
            await _check(gate, request)
        except Exception as error:  # noqa: BLE001  every error becomes an answer
            return problem_response(error)
        return await answer(request)

    return [
        Route("/healthz", answer, methods=["GET"]),
        Route("/readyz", answer, methods=["GET"]),
        Route("/metrics", guarded, methods=["GET"]),
    ]


async def _check(gate: AccessGate, request: Request) -> None:
    """Refuse whoever may not read the metrics, which are those of all tenants."""
    principal = await gate.authenticate(request)
    if principal is None:
        raise AccessDenied("unauthenticated", "sign in, or send a token of a program")
    if not principal.may(Permission.METRICS_READ) or principal.tenant is not None:
        text = f"this needs the permission {Permission.METRICS_READ}, of all tenants"
        raise AccessDenied("forbidden", text)
