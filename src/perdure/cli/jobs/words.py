"""How times, payloads and states are spelled for people."""

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct
from rich.text import Text

from perdure.base.duration import spell
from perdure.base.visible import visible
from perdure.cli.output import as_json, cell
from perdure.jobs.failure import Failure
from perdure.jobs.model import Job, JobEvent, JobMessage, JournalEntry
from perdure.jobs.redaction import for_people

# Jobs, journals and events for programs: everything but secrets, and nothing shortened.

Facts = dict[str, Any]

_PAYLOADS = ("input", "plan", "options", "result", "error", "wait", "output", "checkpoint")
_PAYLOADS_OF_A_MESSAGE = ("payload",)


def payload(data: bytes | None) -> Any:
    """Read what is stored, as plain values, without those whose names say that they are secret."""
    return None if data is None else for_people(data)


def job_facts(job: Job) -> Facts:
    """Return a job."""
    return _facts(job, _PAYLOADS)


def entry_facts(entry: JournalEntry) -> Facts:
    """Return an entry of the journal."""
    return _facts(entry, _PAYLOADS)


def event_facts(event: JobEvent) -> Facts:
    """Return a line of the log."""
    return _facts(event, ())


def message_facts(message: JobMessage) -> Facts:
    """Return a message that waits for the job."""
    return _facts(message, _PAYLOADS_OF_A_MESSAGE)


def _facts(thing: msgspec.Struct, payloads: tuple[str, ...]) -> Facts:
    return {
        name: payload(value) if name in payloads else value
        for name, value in msgspec.structs.asdict(thing).items()
    }


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


def span(length: float | None) -> str:
    """Spell how long something took, as exactly as people care."""
    if length is None:
        return ""
    if length < 1:
        return f"{length * 1000:.0f}ms"
    return f"{length:.1f}s" if length < _MINUTE else spell(int(length))


def between(start: float | None, end: float | None, now: float) -> str:
    """Spell the time from a start to an end, or until now."""
    return "" if start is None else span(max(0.0, (now if end is None else end) - start))


def ago(moment: float, now: float) -> str:
    """Spell a moment of the past."""
    age = now - moment
    for limit, size, unit in ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "m"), (_DAY, _HOUR, "h")):
        if age < limit:
            return f"{max(0, age) // size:.0f}{unit} ago"
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")


def clock_time(moment: float, now: float) -> str:
    """Spell a moment by the local clock, with its day unless it is near."""
    local = datetime.fromtimestamp(moment).astimezone()
    return local.strftime("%H:%M:%S" if abs(now - moment) < _DAY else "%Y-%m-%d %H:%M:%S")


def cut(text: str, most: int) -> str:
    """Shorten a text, so that it shows that it was."""
    line = visible(" ".join(text.split()), None)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def value(data: Any, most: int) -> str:
    """Spell a payload on one line."""
    return cut(as_json(data), most)


def failure(data: bytes, most: int) -> str:
    """Spell an error on one line."""
    return cut(Failure.unpack(data).summary(), most)


class _Wait(Struct):
    """One thing that a job waits for, as its worker told it."""

    kind: str
    id: str = ""
    until: float | None = None
    topic: str = ""
    job: str = ""
    state: str = ""


def waits(data: bytes, now: float) -> str:
    """Spell what a job waits for."""
    try:
        found = msgspec.json.decode(data, type=list[_Wait])
    except msgspec.DecodeError:  # of another version
        return cut(data.decode(), 200)
    return ", ".join(_wait(each, now) for each in found)


def _wait(one: _Wait, now: float) -> str:
    when = "" if one.until is None else f" until {clock_time(one.until, now)}"
    match one.kind:
        case "timer":
            what = "the time"
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
