"""What may be said of steps and jobs when they are defined, and which of it makes no sense."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, TypedDict

from perdure.base.backoff import Retry
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import DefinitionError
from perdure.jobs.budget import Limits
from perdure.jobs.risk import RiskLevel

Isolation: TypeAlias = Literal["inline", "thread", "process"]
OnCancel: TypeAlias = Literal["abandon", "compensate", "finish"]
OnOutage: TypeAlias = Literal["park", "fail"]
OnUndoFailure: TypeAlias = Literal["stop", "continue"]

LONGEST_NAME = 200

_ISOLATIONS = ("inline", "thread", "process")


class StepOptions(TypedDict, total=False):
    """What may be said of a step; the words are those of `Step`."""

    name: str
    version: str
    retry: Retry | None
    timeout: Duration
    tags: Iterable[str]
    risk: RiskLevel | str
    irreversible: bool
    ungated: bool
    pivot: bool
    isolation: Isolation
    idempotency_key: Callable[..., str]
    queue: str
    cost: float
    takes: Duration
    description: str


class JobOptions(TypedDict, total=False):
    """What may be said of a job; the words are those of `JobDefinition`."""

    name: str
    version: str
    queue: str
    priority: int
    timeout: Duration
    on_cancel: OnCancel
    on_outage: OnOutage
    on_undo_failure: OnUndoFailure
    budget: Limits | None
    max_claims: int
    description: str


class CompensationOptions(TypedDict, total=False):
    """What may be said of a compensation; the words are those of `Compensation`."""

    retry: Retry | None
    timeout: Duration
    isolation: Isolation


def is_async(fn: Callable[..., Any]) -> bool:
    """Tell whether calling gives something to await; an object is judged by its `__call__`."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004  not whether it can be called, but how it is written
    )


def check_name(name: object, what: str) -> str:
    """Refuse names that journals and people could not tell apart from other text."""
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"the name of a {what} must be text, not {name!r}")
    if len(name) > LONGEST_NAME or not name.isprintable() or any(c in "# " for c in name):
        raise DefinitionError(
            f"{name[:LONGEST_NAME]!r} cannot be the name of a {what}: "
            f"at most {LONGEST_NAME} printable characters, no spaces, no `#`"
        )
    return name


def check_function(fn: Callable[..., Any], what: str) -> None:
    """Refuse what is no function, and generators."""
    if not callable(fn):
        raise DefinitionError(f"{what} must be a function, not {fn!r}")
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise DefinitionError(f"{what} must return its result, not yield it")


def check_isolation(wanted: object, fn: Callable[..., Any], what: str) -> Isolation:
    """Choose where a function runs: on the loop if it is async, else in a thread."""
    if wanted is None:
        return "inline" if is_async(fn) else "thread"
    if wanted not in _ISOLATIONS:
        raise DefinitionError(
            f"isolation of {what} must be one of {', '.join(_ISOLATIONS)}, not {wanted!r}"
        )
    if wanted == "process" and "<" in getattr(fn, "__qualname__", "<"):  # <locals>, <lambda>
        raise DefinitionError(
            f"{what} cannot run in another OS process: it must be defined at the top of a module, "
            "so that the other process can import it"
        )
    return wanted


def check_choice(wanted: object, choices: tuple[str, ...], what: str) -> Any:
    """Refuse a word that is none of the choices."""
    if wanted not in choices:
        raise DefinitionError(f"{what} must be one of {', '.join(choices)}, not {wanted!r}")
    return wanted


def check_seconds(duration: Duration, what: str) -> float | None:
    """Give a duration in seconds; None = no limit."""
    try:
        return job_seconds(duration)
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{what}: {error}") from None


def check_retry(retry: object, what: str) -> Retry | None:
    """Refuse a policy that is none; None leaves it to the kind of the error."""
    if retry is None or isinstance(retry, Retry):
        return retry
    raise DefinitionError(f"retry of {what} must be a Retry, such as Retry(attempts=5): {retry!r}")


def description_of(given: str | None, thing: Any) -> str:
    """Give the description, or else the first line of the docstring."""
    lines = (inspect.getdoc(thing) or "").strip().splitlines() if given is None else [given]
    return lines[0] if lines else ""
