"""The fetcher: gets one page and counts its words. It runs as a task, one for each page."""

import asyncio
import functools
import logging
import ssl
from typing import Any

import httpx

from examples.url_indexer.index import inc_tokens
from examples.url_indexer.tokens import tokenize
from perdure import telemetry, with_retry
from perdure.otp import Err, Ok

log = logging.getLogger(__name__)

FETCH = ("app", "fetch")


async def fetch_and_tokenize(url: str) -> Ok[int] | Err[Any]:
    """Fetch a page, with up to four attempts, and count its words; return how many."""
    with telemetry.span(FETCH, url=url) as span:
        result = await _counted(await with_retry(functools.partial(http_get, url)))
        if isinstance(result, Err):
            log_failure(url, result.error)
        span.update(result=result)
    return result


async def _counted(page: Ok[str] | Err[Any]) -> Ok[int] | Err[Any]:
    """Count the words of a page, if there is one."""
    if isinstance(page, Err):
        return page
    tokens = tokenize(page.value)
    await inc_tokens(tokens)
    return Ok(len(tokens))


async def http_get(url: str, *, timeout: float = 4.0) -> Ok[str] | Err[Any]:
    """Get the text of a page.

    Returns:
        `Ok(text)`, `Err(("http", status))`, `Err("timeout")` or `Err(exception)`.
    """
    try:
        async with asyncio.timeout(timeout), _client() as client:
            response = await client.get(url)
    except TimeoutError:
        return Err("timeout")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Err(error)
    if response.status_code != 200:
        return Err(("http", response.status_code))
    return Ok(response.text)


def _client() -> httpx.AsyncClient:
    # `http_get` limits the whole exchange, which the client's own limits do not.
    return httpx.AsyncClient(verify=_trusted(), follow_redirects=True, timeout=None)  # noqa: S113


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Load the certificates once, since that takes longer than fetching a page."""
    return httpx.create_ssl_context()


def log_failure(url: str, reason: object) -> None:
    """Log which page is skipped, and why."""
    log.warning("fetch failed %s: %s", url, spell(reason))


def spell(reason: object) -> str:
    match reason:
        case ("http", int(status)):
            return f"HTTP {status}"
        case TimeoutError():
            return "timeout"
        case BaseException():
            return f"{type(reason).__name__}: {reason}"
        case _:
            return str(reason)
