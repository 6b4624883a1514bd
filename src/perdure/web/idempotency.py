"""`Idempotency-Key`: a POST that is sent twice happens once, and both get the same answer.

The key belongs to a principal for 24 hours. The same key with another request is refused, and so is
the same one by a credential that lacks a permission which the first one needed. Whoever
sends it again while the first is still under way waits for its answer. A refusal or a fault is not
kept: after a new sign-in, say, the same request may be sent again.

What a request changes is noted with its key in the same transaction. If its server dies before the
answer is kept, the next request with the key runs the handler again, and each verb that has
happened returns what it returned then, instead of happening twice.

A client that hangs up, or a server that stops, does not interrupt a request with a key, so that the
next one need not wait until the key counts as given up.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from perdure.base.codec import digest
from perdure.base.errors import AccessDenied, RequestRefused
from perdure.base.retry import pause
from perdure.jobs.audit import chain_of
from perdure.store.store import Store
from perdure.store.verbs.answer import KeyedAnswer, RequestKey
from perdure.web.access.audit_trail import KeyedRequest
from perdure.web.access.principal import Permission, Principal
from perdure.web.problem import problem_response

HEADER: Final = "idempotency-key"
_LONGEST: Final = 255  # characters
_LOOK_EVERY: Final = 0.1  # seconds, while another request is under way …
_LOOKS: Final = 100  # … and how often
_TO_FINISH: Final = 5.0  # seconds that a request has which nobody waits for any more
_REFUSED: Final = 400


async def once(
    store: Store,
    request: Request,
    principal: Principal,
    body: bytes,
    answer: Callable[[KeyedRequest | None], Awaitable[Response]],
) -> Response:
    """Answer a request, or return the answer that it got before.

    Args:
        store: Where answers are kept.
        request: The request.
        principal: Who sends it.
        body: Its body.
        answer: Answers it, with its key if it has one.

    Raises:
        RequestRefused: The key cannot be one.
    """
    given = request.headers.get(HEADER)
    if given is None or request.method != "POST":
        return await answer(None)
    if not given.strip() or len(given) > _LONGEST or not given.isprintable():
        text = f"{HEADER} has 1 to {_LONGEST} printable characters"
        raise RequestRefused(400, "bad_idempotency_key", text)
    key = RequestKey(chain_of(principal.tenant), principal.id, given, secrets.token_hex(8))
    asked = digest(request.method, request.scope["path"], request.scope["query_string"], body)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(_answered(store, principal, key, asked, answer))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([work], timeout=_TO_FINISH)
            raise


async def _answered(
    store: Store,
    principal: Principal,
    key: RequestKey,
    asked: str,
    answer: Callable[[KeyedRequest | None], Awaitable[Response]],
) -> Response:
    try:
        known = await _known(store, key, asked)
        if known.status is not None:
            _check_allowed(principal, known)
            return _again(known, known.status)
        return await _kept(store, KeyedRequest(key, deque(known.done)), answer)
    except Exception as error:  # noqa: BLE001  a task group would wrap it
        return problem_response(error)


async def _known(store: Store, key: RequestKey, asked: str) -> KeyedAnswer:
    """Take the key, or return what was answered; wait for a request that is under way."""
    for _ in range(_LOOKS):
        known = await store.begin_answer(key, asked)
        if known.digest != asked:
            text = "this key was used for another request: take a new one for each request"
            raise RequestRefused(409, "idempotency_key_reused", text)
        if known.taker == key.taker or known.status is not None:
            return known
        await pause(_LOOK_EVERY)
    text = "a request with this key is still under way: ask again"
    raise RequestRefused(409, "in_progress", text, retry=1)


def _check_allowed(principal: Principal, known: KeyedAnswer) -> None:
    """Refuse an answer to a credential that could not have got it by itself.

    A principal may have several: a token with fewer scopes sends the same key.
    """
    missing = [each for each in known.needs if not principal.may(Permission(each))]
    if missing:
        raise AccessDenied("forbidden", f"this needs the permission {missing[0]}")


async def _kept(
    store: Store,
    keyed: KeyedRequest,
    answer: Callable[[KeyedRequest | None], Awaitable[Response]],
) -> Response:
    key = keyed.key
    try:
        response = await answer(keyed)
    except Exception as error:  # noqa: BLE001  the key is given back in any case
        response = problem_response(error)
    if response.status_code >= _REFUSED:
        await store.give_back_answer(key)
    else:
        body = bytes(response.body).decode()
        await store.keep_answer(key, response.status_code, body, list(keyed.needed))
    return response


def _again(known: KeyedAnswer, status: int) -> Response:
    headers = {"cache-control": "no-store", "idempotent-replayed": "true"}
    return Response((known.body or "").encode(), status, headers, "application/json")
