"""How jobs are printed: as JSON for programs, and as short texts for people."""

from datetime import datetime
from typing import Any, Final

import msgspec
from rich.text import Text

from perdure.base.duration import spell
from perdure.cli.output import as_json, cell
from perdure.jobs.budget import Amount, Budget
from perdure.jobs.effect import Effect
from perdure.jobs.listing import took
from perdure.jobs.model import Job, JobEvent, JobMessage, JournalEntry, Progress
from perdure.jobs.redaction import for_people
from perdure.jobs.waiting import describe_waits
from perdure.jobs.wording import shorten

# For programs: everything except secrets, and nothing shortened.

_PAYLOADS: Final = (
    "input",
    "plan",
    "options",
    "result",
    "error",
    "wait",
    "output",
    "checkpoint",
    "payload",
)


def payload(data: bytes | None) -> Any:
    """Return stored JSON as plain values, without those of secret names."""
    return None if data is None else for_people(data)


def struct_as_json(thing: Job | JournalEntry | JobEvent | JobMessage) -> dict[str, Any]:
    """Return a job, a journal entry, a line of the log or a message."""
    decoded = () if isinstance(thing, JobEvent) else _PAYLOADS
    return {
        name: payload(value) if name in decoded else value
        for name, value in msgspec.structs.asdict(thing).items()
    }


def effect_as_json(effect: Effect) -> dict[str, Any]:
    """Return an entry of the ledger."""
    return {
        "job": effect.job_id,
        "no": effect.no,
        "tenant": effect.tenant,
        "kind": effect.kind,
        "target": effect.target,
        "state": effect.state.value,
        "step": effect.place.step,
        "key": effect.key,
        "generation": effect.generation,
        "in_doubt": effect.in_doubt,
        "details": payload(effect.details),
        "result": payload(effect.result),
        "problem": effect.problem,
        "error": payload(effect.error),
        "undo": None if effect.undo is None else effect.undo.step,
        "proof": effect.proof,
        "called_at": effect.called_at,
        "ended_at": effect.ended_at,
    }


def budget_as_json(budget: Budget, now: float) -> dict[str, Any]:
    """Return the budget of a tree of jobs; `by_others` is the part of children and forks."""
    return {
        "job": budget.root,
        "limits": msgspec.to_builtins(budget.limits),
        "spent": _amount_as_json(budget.spent),
        "reserved": _amount_as_json(sum(budget.reserved.values(), Amount())),
        "by_others": _amount_as_json(budget.gone_by_others),
        "seconds": _seconds_since(budget, now),
    }


def _amount_as_json(amount: Amount) -> dict[str, float]:
    return {"usd": amount.usd, "tokens": amount.tokens, "calls": amount.calls}


def _seconds_since(budget: Budget, now: float) -> float:
    return max(0.0, now - budget.began_at) if budget.began_at else 0.0


# For people.

STYLES: Final = {
    "PENDING": "cyan",
    "RUNNING": "bold blue",
    "STUCK": "bold red",
    "WAITING": "magenta",
    "PAUSED": "yellow",
    "COMPENSATING": "yellow",
    "COMPLETED": "green",
    "SUCCEEDED": "green",
    "SKIPPED": "cyan",
    "COMPENSATED": "cyan",
    "CANCELLED": "dim",
    "FAILED": "bold red",
    "COMPENSATION_FAILED": "bold red",
    "NEEDS_ATTENTION": "bold red",
}

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def state(name: str) -> Text:
    """Return a state in its colour."""
    return cell(name, style=STYLES.get(name, ""))


def duration(length: float | None) -> str:
    """Return a duration, as exactly as people care."""
    if length is None:
        return ""
    if length < 1:
        return f"{length * 1000:.0f}ms"
    return f"{length:.1f}s" if length < _MINUTE else spell(int(length))


def duration_between(start: float | None, end: float | None, now: float) -> str:
    """Return the duration from a start to an end, or until now."""
    return "" if start is None else duration(max(0.0, (now if end is None else end) - start))


def ago(moment: float, now: float) -> str:
    """Return how long ago a moment was, or its date if that was days ago."""
    age = now - moment
    for limit, size, unit in ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "m"), (_DAY, _HOUR, "h")):
        if age < limit:
            return f"{max(0, age) // size:.0f}{unit} ago"
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")


def short_json(data: Any, most: int) -> str:
    """Return a payload on one line."""
    return shorten(as_json(data), most)


def describe_budget(budget: Budget, now: float) -> str:
    """Return what a tree of jobs has spent of its budget, in words."""
    shown = budget_as_json(budget, now)
    limits, held, others = shown["limits"], shown["reserved"], shown["by_others"]
    said: list[str] = []
    for kind in ("usd", "tokens", "calls"):
        limit, gone = limits[kind], shown["spent"][kind] + held[kind]
        if limit is None and not gone:
            continue
        of = "" if limit is None else f" of {limit:,g}"
        parts = [f"{held[kind]:,g} reserved"] if held[kind] else []
        parts += [f"{others[kind]:,g} by children and forks"] if others[kind] else []
        said.append(f"{gone:,g}{of} {kind}" + (f" ({', '.join(parts)})" if parts else ""))
    if limits["seconds"] is not None:
        said.append(f"{duration(shown['seconds'])} of {duration(limits['seconds'])}")
    return ", ".join(said) or "nothing spent"


def how_far(one: Progress) -> str:
    """Return how far a step is, in words: "3 of 10 (30%), page 3"; "" if it has not said."""
    parts: list[str] = []
    if one.done is not None:
        share = f" of {one.total:g} ({one.done / one.total:.0%})" if one.total else ""
        parts.append(f"{one.done:g}{share}")
    if one.note:
        parts.append(shorten(one.note, 80))
    return ", ".join(parts)


def describe_progress(one: Progress, now: float) -> str:
    """Return what a step reports, and how long ago it did."""
    said = how_far(one)
    told = f"{said}, {ago(one.at, now)}; " if said and one.at is not None else ""
    return f"{one.step}: {told}heartbeat {ago(one.heartbeat_at, now)}"


def job_as_json(job: Job, now: float) -> dict[str, Any]:
    """Return a job, with what it waits for in words, and the ages of what its steps report."""
    reports = [
        {
            **msgspec.structs.asdict(one),
            "age": None if one.at is None else max(0.0, now - one.at),
            "heartbeat_age": max(0.0, now - one.heartbeat_at),
        }
        for one in job.progress
    ]
    waits = describe_waits(job, now) or None
    shown = {"took": took(job, now), "waiting_for": waits, "progress": reports}
    return {**struct_as_json(job), **shown}
