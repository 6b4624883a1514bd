"""HTTP calls as effects, by httpx; needs `perdure[http]`.

    answer = await send(ctx, client, "POST", url, json=order, kind="payment", in_doubt="replay")
    answer["body"]["id"]

The key goes along as `Idempotency-Key`. An answer of 4xx (but 408, 409, 425 and 429), and
a connection that was never made, prove that nothing happened; every other error leaves it in doubt.
"""

from typing import Any, Final, TypedDict, Unpack, cast

import httpx

from perdure.engine.effect_call import EffectOptions
from perdure.engine.step_context import StepContext

HEADER: Final = "Idempotency-Key"
# Of an answer's headers only these are kept: others hold cookies and other secrets.
KEPT: Final = ("content-type", "etag", "location", "request-id", "x-request-id", "retry-after")

_OWN: Final = frozenset({"kind", "target", "header"})
_EFFECT: Final = frozenset(EffectOptions.__annotations__)


class Reply(TypedDict):
    """What is kept of an answer."""

    status: int
    headers: dict[str, str]
    body: Any  # JSON values if it is JSON, else text


class SendOptions(EffectOptions, total=False):
    """What may be said besides the options of an effect; all else goes to httpx.

    `kind`: of the effect. `target`: if it is not the host and path of the URL.
    `header`: the name under which the key goes along.
    """

    kind: str
    target: str
    header: str
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
        httpx.HTTPStatusError: The receiver did not take it.
        httpx.TransportError: There was no answer.
    """
    given = cast("dict[str, Any]", options)
    effect = cast("EffectOptions", {name: given[name] for name in given if name in _EFFECT})
    request = {name: value for name, value in given.items() if name not in _EFFECT | _OWN}
    headers = dict(request.pop("headers", {}))
    header = given.get("header", HEADER)

    async def call(key: str) -> Reply:
        answer = await client.request(method, url, headers={**headers, header: key}, **request)
        answer.raise_for_status()
        return reply_of(answer)

    target = given.get("target") or _target(client, method, url)
    return await ctx.effect(given.get("kind", "http"), call, target=target, **effect)


def reply_of(answer: httpx.Response) -> Reply:
    """Give what is kept of an answer."""
    kept = {name: answer.headers[name] for name in KEPT if name in answer.headers}
    body: Any = answer.text
    if "json" in kept.get("content-type", "") and answer.content:
        try:
            body = answer.json()
        except ValueError:  # it says so, and is not
            body = answer.text
    return Reply(status=answer.status_code, headers=kept, body=body)


def _target(client: httpx.AsyncClient, method: str, url: str) -> str:
    """Name the receiver; without the query, which may hold anything."""
    full = client.base_url.join(url)
    return f"{method} {full.host}{full.path}"
