"""HTTP calls as effects, by httpx; needs `perdure[http]`.

    answer = await send(ctx, client, "POST", url, json=order, kind="payment", in_doubt="replay")
    answer["body"]["id"]

The key goes along as `Idempotency-Key`. At a first call, 4xx (but 408, 409, 425 and 429) and
a connection that was never made prove that nothing happened; every other error leaves it in doubt.
A redirect is such an error: who sends one may have acted before, so it is never followed.
"""

from typing import Any, Final, NotRequired, TypedDict, Unpack, cast

import httpx

from perdure.base.codec import LIMITS
from perdure.base.duration import Duration, required_seconds
from perdure.base.errors import BadResponse
from perdure.base.http_response import fetch
from perdure.base.secret import without_secrets
from perdure.engine.steps.effects import EffectOptions
from perdure.engine.steps.step_context import StepContext

HEADER: Final = "Idempotency-Key"
# Of an answer's headers only these are kept: others hold cookies and other secrets.
KEPT: Final = ("content-type", "etag", "location", "request-id", "x-request-id", "retry-after")

TOTAL_TIMEOUT: Final = "10m"

_OWN: Final = frozenset({"kind", "target", "header", "max_bytes", "total_timeout"})
_EFFECT: Final = frozenset(EffectOptions.__annotations__)


class Reply(TypedDict):
    """What is kept of an answer."""

    status: int
    headers: dict[str, str]
    body: Any  # JSON values if it is JSON, else text
    unread: NotRequired[str]  # why the body could not be read: it is None then


class SendOptions(EffectOptions, total=False):
    """What may be said besides the options of an effect; all else goes to httpx.

    `kind`: of the effect. `target`: if it is not the host and path of the URL.
    `header`: the name under which the key goes along. `max_bytes`: of the decoded body;
    2 MiB if not said, which is also the most that is stored of a result.
    `total_timeout`: for the request and all of its answer; ten minutes if not said.
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
) -> Reply:
    """Make a request once, whatever happens; give its answer, or the answer that it had.

    Raises:
        httpx.HTTPStatusError: The receiver did not take it, or sends us elsewhere.
        httpx.TransportError: There was no answer, or not all of it in time.
        BadResponse: It is done, but the body of the answer is too large, or cannot be decoded.
    """
    given = cast("dict[str, Any]", options)
    effect = cast("EffectOptions", {name: given[name] for name in given if name in _EFFECT})
    rest = {name: value for name, value in given.items() if name not in _EFFECT | _OWN}
    headers = dict(rest.pop("headers", {}))
    header = given.get("header", HEADER)
    auth = {"auth": rest.pop("auth")} if "auth" in rest else {}
    limit = given.get("max_bytes", LIMITS.result)
    within = required_seconds(given.get("total_timeout", TOTAL_TIMEOUT))

    async def call(key: str) -> Reply:
        request = client.build_request(method, url, headers={**headers, header: key}, **rest)
        answer, unread = await fetch(client, request, limit=limit, within=within, **auth)
        answer.raise_for_status()
        return reply_of(answer, unread)

    target = given.get("target") or _target(client, method, url)
    reply: Reply = await ctx.effect(given.get("kind", "http"), call, target=target, **effect)
    if unread := reply.get("unread"):
        raise BadResponse(
            f"{target} is done, and answered {reply['status']}, "
            f"but the answer is of no use: {unread}"
        )
    return reply


def reply_of(answer: httpx.Response, unread: str = "") -> Reply:
    """Give what is kept of an answer."""
    kept = {name: answer.headers[name] for name in KEPT if name in answer.headers}
    if "location" in kept:  # its query may be a key to what it leads to
        kept["location"] = without_secrets(kept["location"])
    if unread:
        return Reply(status=answer.status_code, headers=kept, body=None, unread=unread)
    body: Any = answer.text
    if "json" in kept.get("content-type", "") and answer.content:
        try:
            body = answer.json()
        except (ValueError, RecursionError):  # it says so, and is not, or only to hurt
            body = answer.text
    return Reply(status=answer.status_code, headers=kept, body=body)


def _target(client: httpx.AsyncClient, method: str, url: str) -> str:
    """Name the receiver; without the query, which may hold anything."""
    full = client.base_url.join(url)
    return f"{method} {full.host}{full.path}"
