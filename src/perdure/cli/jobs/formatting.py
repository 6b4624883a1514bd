"""How jobs are printed: as JSON for programs, and as short texts for people."""

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct
from rich.text import Text

from perdure.base.duration import spell
from perdure.base.visible import visible
from perdure.cli.output import as_json, cell
from perdure.jobs.effect import Effect
from perdure.jobs.failure import Failure
from perdure.jobs.model import Job, JobEvent, JobMessage, JournalEntry
from perdure.jobs.redaction import for_people

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


# For people.

STYLES: Final = {
    "PENDING": "cyan",
    "RUNNING": "bold blue",
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


def clock_time(moment: float, now: float) -> str:
    """Return a moment in local time, with its date unless it is within a day."""
    local = datetime.fromtimestamp(moment).astimezone()
    return local.strftime("%H:%M:%S" if abs(now - moment) < _DAY else "%Y-%m-%d %H:%M:%S")


def shorten(text: str, most: int) -> str:
    """Return a text on one line, with an ellipsis if it was cut."""
    line = visible(" ".join(text.split()), None)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def short_json(data: Any, most: int) -> str:
    """Return a payload on one line."""
    return shorten(as_json(data), most)


def short_failure(data: bytes, most: int) -> str:
    """Return a packed failure on one line."""
    return shorten(Failure.unpack(data).summary(), most)


class _Wait(Struct):
    """One thing that a job waits for, as its worker stored it."""

    kind: str
    id: str = ""
    until: float | None = None
    topic: str = ""
    job: str = ""
    state: str = ""


def describe_waits(data: bytes, now: float) -> str:
    """Return what a job waits for, in words."""
    try:
        found = msgspec.json.decode(data, type=list[_Wait])
    except msgspec.DecodeError:  # stored by another version
        return shorten(data.decode(), 200)
    return ", ".join(_describe_wait(each, now) for each in found)


def _describe_wait(one: _Wait, now: float) -> str:
    when = "" if one.until is None else f" until {clock_time(one.until, now)}"
    match one.kind:
        case "timer":
            what = "a timer"
        case "message":
            what = f"a message {one.topic!r}"
        case "child":
            needs = ", which needs a person" if one.state == "NEEDS_ATTENTION" else ""
            what = f"job {one.job}{needs}"
        case "retry":
            what = f"the next attempt of {one.id}"
        case _:
            what = f"{one.kind} {one.id}"
    return what + when
