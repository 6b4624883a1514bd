"""Decide whether a failed step is retried; pure.

A step states its policy with `Retry`: after every exception, or only those in `on`. Without one,
the kind of the error decides: a few retries within seconds, so that a bug shows soon, but about an
hour of them after an *outage* (a refused connection, a 5xx, a 429), since an error of another
system must not throw away hours of work.

`Permanent`, and errors that are certain to come again, are never retried.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from perdure.base.duration import required_seconds
from perdure.base.errors import (
    ApprovalRejected,
    ArgumentError,
    BudgetExceeded,
    DefinitionError,
    Drift,
    NotInJob,
    Permanent,
    StepFailed,
    StepTimeout,
    Unstorable,
)
from perdure.base.retry import Retry

STANDARD: Final = Retry(attempts=4, initial_delay="200ms", factor=2, jitter=0.2)
OUTAGE: Final = Retry(attempts=20, initial_delay="1s", factor=2, max_delay="5m", jitter=0.2)
LONGEST_WAIT = 24 * 3600.0  # seconds; a `Retry-After` beyond that is cut to it

_CERTAIN = (
    *(Permanent, Unstorable, ArgumentError, DefinitionError, Drift, StepFailed, NotInJob),
    *(ApprovalRejected, BudgetExceeded),
)
_PASSING_STATUS = frozenset({408, 425, 429})
_SERVER_ERROR = range(500, 600)
_NEVER_WORKS = frozenset({501, 505})  # waiting does not teach the server a new method or protocol

Why: TypeAlias = Literal["permanent", "not retried", "used up"]


class Again(Struct, frozen=True):
    """Retry after a delay in seconds."""

    delay: float


class GiveUp(Struct, frozen=True):
    """Do not try again. `outage`: the error is that of another system, which may recover."""

    why: Why
    outage: bool = False


RetryDecision: TypeAlias = Again | GiveUp


def decide_retry(
    retry: Retry | None, error: BaseException, attempt: int, random: Random | None = None
) -> RetryDecision:
    """Decide what follows a failed attempt.

    Args:
        retry: The policy of the step; None: the kind of the error decides.
        error: What it raised.
        attempt: The number of that attempt, from 1.
        random: The source of jitter.
    """
    if is_permanent(error):
        return GiveUp("permanent")
    outage = is_outage(error)
    policy = retry or (OUTAGE if outage else STANDARD)
    if policy.on and not any(isinstance(each, policy.on) for each in leaves(error)):
        return GiveUp("not retried", outage)
    if attempt >= policy.attempts:
        return GiveUp("used up", outage)
    return Again(max(policy.delay(attempt, random), asked_wait(error)))


def is_permanent(error: BaseException) -> bool:
    """Whether no retry can help."""
    return any(
        not isinstance(each, Exception) or isinstance(each, _CERTAIN) for each in leaves(error)
    )


def is_outage(error: BaseException) -> bool:
    """Whether another system failed and may recover."""
    return all(_is_one_outage(each) for each in leaves(error))


def _is_one_outage(error: BaseException) -> bool:
    status = http_status(error)
    if status is not None:
        passing = status in _PASSING_STATUS or status in _SERVER_ERROR
        return passing and status not in _NEVER_WORKS
    if isinstance(error, StepTimeout):
        return False  # our own limit: it does not say that another system is down
    # Libraries have classes of their own for what the builtin ones mean, and none is imported here.
    names = {base.__name__ for base in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(names & _OUTAGE_NAMES)


_OUTAGE_NAMES: Final = frozenset(
    {
        "TransportError",  # httpx
        "APIConnectionError",  # clients of LLMs
        "ClientConnectionError",  # aiohttp
        "ConnectTimeout",
        "ReadTimeout",
        "OperationalError",  # databases
    }
)


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, wherever its library keeps it; None if it has none."""
    response: Any = getattr(error, "response", None)
    for holder in (error, response):
        for name in ("status_code", "status"):
            found = getattr(holder, name, None)
            if isinstance(found, int) and not isinstance(found, bool):
                return int(found)
    return None


def asked_wait(error: BaseException) -> float:
    """Return the seconds that the server asks us to wait, from `retry_after` or `Retry-After`."""
    waits = [_one_wait(each) for each in leaves(error)]
    return min(max(waits, default=0.0), LONGEST_WAIT)


def _one_wait(error: BaseException) -> float:
    asked: Any = getattr(error, "retry_after", None)
    if asked is None:
        headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
        asked = headers.get("retry-after") or headers.get("Retry-After")
    try:
        return float(asked) if isinstance(asked, str) else required_seconds(asked)
    except (TypeError, ValueError):
        return 0.0  # none, or a date, which would need a clock


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(each)
    else:
        yield error
