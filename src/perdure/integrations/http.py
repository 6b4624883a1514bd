"""HTTP requests as effects, with httpx; needs `perdure[http]`.

    answer = await send(ctx, client, "POST", url, json=order, kind="payment", in_doubt="replay")
    answer["body"]["id"]

The key of the effect is sent as `Idempotency-Key`. For a first call, a 4xx status (except 408, 409,
425 and 429) and a connection that was never made prove that nothing happened; after any other error
the effect is in doubt. A redirect is such an error, and is never followed: its sender may have
acted before.
"""

from typing import Any, Final, NotRequired, TypedDict, Unpack, cast

from perdure.base.codec import LIMITS
from perdure.base.duration import Duration, required_seconds
from perdure.base.errors import BadResponse
from perdure.base.extra import extra
from perdure.base.secret import without_secrets
from perdure.engine.steps.effects import EffectOptions
from perdure.engine.steps.step_context import StepContext

with extra("http", "an HTTP effect"):
    import httpx

    from perdure.base.http_response import fetch

HEADER: Final = "Idempotency-Key"
# Only these response headers are kept: others may hold cookies and other secrets.
KEPT: Final = ("content-type", "etag", "location", "request-id", "x-request-id", "retry-after")

TOTAL_TIMEOUT: Final = "10m"

_OWN: Final = frozenset({"kind", "target", "header", "max_bytes", "total_timeout"})
_EFFECT: Final = frozenset(EffectOptions.__annotations__)


class HttpReply(TypedDict):
    """What is kept of a response."""

    status: int
    headers: dict[str, str]
    body: Any  # values if it is JSON, otherwise text
    unread: NotRequired[str]  # why the body, which is None then, could not be read


class SendOptions(EffectOptions, total=False):
    """The options of `send`, besides those of an effect; all others go to httpx.

    `kind`: the kind of the effect. `target`: its target, by default the host and path of the URL.
    `header`: the header that the key is sent in. `max_bytes`: the limit of the decoded body, by
    default 2 MiB, which is also the limit of the result of an effect. `total_timeout`: the limit
    for the request and its whole response, by default ten minutes.
    """

    kind: str
    target: str
    header: str
    max_bytes: int
    total_timeout: Duration
    json: Any
    data: Any
    content: Any
    params: Any
    headers: dict[str, str]
    timeout: Any
    auth: Any


async def send(
    ctx: StepContext,
    client: httpx.AsyncClient,
    method: str,
    url: str,
    **options: Unpack[SendOptions],
) -> HttpReply:
    """Make a request once, whatever happens; return its response, or the recorded one.

    Raises:
        httpx.HTTPStatusError: The receiver refused it, or redirected it.
        httpx.TransportError: There was no response, or not all of it in time.
        BadResponse: It was done, but the response body is too large, or cannot be decoded.
    """
    given = cast("dict[str, Any]", options)
    effect = cast("EffectOptions", {name: given[name] for name in given if name in _EFFECT})
    rest = {name: value for name, value in given.items() if name not in _EFFECT | _OWN}
    headers = dict(rest.pop("headers", {}))
    header = given.get("header", HEADER)
    auth = {"auth": rest.pop("auth")} if "auth" in rest else {}
    limit = given.get("max_bytes", LIMITS.record)
    within = required_seconds(given.get("total_timeout", TOTAL_TIMEOUT))

    async def call(key: str) -> HttpReply:
        request = client.build_request(method, url, headers={**headers, header: key}, **rest)
        answer, unread = await fetch(client, request, limit=limit, within=within, **auth)
        answer.raise_for_status()
        return reply_of(answer, unread)

    target = given.get("target") or _target(client, method, url)
    reply: HttpReply = await ctx.effect(given.get("kind", "http"), call, target=target, **effect)
    if unread := reply.get("unread"):
        raise BadResponse(
            f"{target} was done, and answered {reply['status']}, "
            f"but its response cannot be used: {unread}"
        )
    return reply


def reply_of(answer: httpx.Response, unread: str = "") -> HttpReply:
    """Return what is kept of a response."""
    kept = {name: answer.headers[name] for name in KEPT if name in answer.headers}
    if "location" in kept:  # its query may hold a secret
        kept["location"] = without_secrets(kept["location"])
    if unread:
        return HttpReply(status=answer.status_code, headers=kept, body=None, unread=unread)
    body: Any = answer.text
    if "json" in kept.get("content-type", "") and answer.content:
        try:
            body = answer.json()
        except (ValueError, RecursionError):  # it is not JSON, or made to do harm
            body = answer.text
    return HttpReply(status=answer.status_code, headers=kept, body=body)


def _target(client: httpx.AsyncClient, method: str, url: str) -> str:
    """Return the method and the URL without its query, which may hold anything."""
    full = client.base_url.join(url)
    return f"{method} {full.host}{full.path}"
