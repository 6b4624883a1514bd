"""What a job waits for, as its worker stored it, and the words for it; pure."""

from typing import Final

import msgspec
from msgspec import Struct

from perdure.jobs.model import Job
from perdure.jobs.state import JobState
from perdure.jobs.wording import clock_time, shorten

_NEEDS_PERSON: Final = "NEEDS_ATTENTION"


class Wait(Struct, frozen=True):
    """One thing that a job waits for."""

    kind: str  # timer | message | child | children | approval | retry | effect | undo
    id: str = ""
    until: float | None = None
    topic: str = ""
    job: str = ""
    state: str = ""
    approval: str = ""
    title: str = ""
    of: int = 0  # the number of children, if there are many


def waits_of(job: Job) -> list[Wait]:
    """Return what a job waits for; nothing if another version of Perdure stored it."""
    if job.wait is None:
        return []
    try:
        found = msgspec.json.decode(job.wait, type=list[Wait])
    except msgspec.DecodeError:
        return []
    if any(one.kind == "children" for one in found):  # some of them by name, too
        return [one for one in found if one.kind != "child" or one.state == _NEEDS_PERSON]
    return found


def is_left(job: Job) -> bool:
    """Whether the worker that had a job is gone, and the job waits for another one."""
    return job.state is JobState.RUNNING and job.owner is None


def describe_waits(job: Job, now: float | None) -> str:
    """Return what a job waits for, in words: "message 'signed' until 12:00:00"; "" for nothing.

    Without `now`, until when it waits is left out.
    """
    if job.wait is None:
        return "a worker" if is_left(job) or job.state is JobState.WAITING else ""
    found = waits_of(job)
    if not found and job.wait != b"[]":
        return shorten(job.wait.decode(), 200)
    return ", ".join(_describe(each, job.awaits, now) for each in found)


def _describe(one: Wait, awaits: int, now: float | None) -> str:
    until = None if now is None or one.until is None else clock_time(one.until, now)
    when = "" if until is None else f" until {until}"
    match one.kind:
        case "timer":
            what = "a timer"
        case "message":
            what = f"message {one.topic!r}"
        case "child":
            needs = ", which needs a person" if one.state == _NEEDS_PERSON else ""
            what = f"job {one.job}{needs}"
        case "children":
            what = f"{awaits or one.of} of {one.of} children"
        case "approval":
            what = f"approval {one.approval[:8]} of {repr(one.title) if one.title else one.id}"
        case "retry":
            what = f"the next attempt of {one.id}"
        case _:
            what = f"{one.kind} {one.id}"
    return what + when
