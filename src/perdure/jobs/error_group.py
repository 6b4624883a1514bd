"""Failures that are alike, as one group: by type, normalised message, step and place; pure."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import digest
from perdure.jobs.failure import Failure
from perdure.jobs.wording import shorten

_LONGEST_MESSAGE: Final = 300

# What differs between two errors of the same cause: ids, numbers, quoted values, addresses.
_VARIES: Final = re.compile(
    r"""
      (?P<quoted>'[^']*'|"[^"]*")
    | (?P<id>\b[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4,}){1,6}\b)
    | (?P<hex>\b0x[0-9a-fA-F]+\b)
    | (?P<number>\d+(?:[.,:]\d+)*)
    """,
    re.VERBOSE,
)
_FRAME: Final = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$', re.MULTILINE
)
# Frames of Perdure itself, of installed packages and of Python say little about the cause.
_ELSEWHERE: Final = (
    *("/site-packages/", "/lib/python", "<frozen "),
    *(f"/perdure/{each}/" for each in ("base", "engine", "integrations", "jobs", "otp", "process")),
)
_BRANCH: Final = re.compile(r"#\d+$")


class ErrorState(StrEnum):
    """What people say about a group."""

    OPEN = "open"
    RESOLVED = "resolved"  # until it happens again
    IGNORED = "ignored"


class FailedJob(Struct, frozen=True, kw_only=True):
    """A job that has failed, or needs attention."""

    id: str
    tenant: str
    name: str
    at: float
    error: bytes


class ErrorMark(Struct, frozen=True, kw_only=True):
    """What a person said about a group, and when."""

    state: ErrorState
    by: str
    at: float


class ErrorGroup(Struct, frozen=True, kw_only=True):
    """Failures of the same cause."""

    fingerprint: str
    type: str
    message: str  # of the latest
    step: str  # without its number; "": in the code of the job
    frame: str  # the innermost place in the user's code
    job_name: str
    count: int
    first_at: float
    last_at: float
    sample_job: str  # the latest
    state: ErrorState = ErrorState.OPEN
    marked_by: str = ""


def group_failures(failed: Iterable[FailedJob], marks: Mapping[str, ErrorMark]) -> list[ErrorGroup]:
    """Return failures in groups, the group with the latest failure first.

    Args:
        failed: The jobs, in any order.
        marks: What people said, by fingerprint.
    """
    found: dict[str, ErrorGroup] = {}
    for job in failed:
        one = _group_of(job)
        known = found.get(one.fingerprint)
        found[one.fingerprint] = one if known is None else _merged(known, one)
    groups = [_marked(each, marks.get(each.fingerprint)) for each in found.values()]
    return sorted(groups, key=lambda group: group.last_at, reverse=True)


def _group_of(job: FailedJob) -> ErrorGroup:
    failure = Failure.unpack(job.error)
    step, frame = _BRANCH.sub("", failure.step), _frame(failure.trace)
    message = normalised(failure.message)
    return ErrorGroup(
        fingerprint=digest("error", job.name, failure.type, message, step, frame)[:16],
        type=failure.type,
        message=shorten(failure.message, _LONGEST_MESSAGE),
        step=step,
        frame=frame,
        job_name=job.name,
        count=1,
        first_at=job.at,
        last_at=job.at,
        sample_job=job.id,
    )


def normalised(message: str) -> str:
    """Return a message without what differs between two errors of the same cause."""
    return _VARIES.sub("…", message[: 4 * _LONGEST_MESSAGE])


def _frame(trace: str) -> str:
    """Return the innermost place in the user's code: "shop.py in pay"; "" if there is none."""
    frames = [each for each in _FRAME.finditer(trace) if not _is_elsewhere(each["file"])]
    if not frames:
        return ""
    last = frames[-1]
    return f"{last['file'].rpartition('/')[2]} in {last['function']}"


def _is_elsewhere(file: str) -> bool:
    return any(part in file for part in _ELSEWHERE)


def _merged(one: ErrorGroup, other: ErrorGroup) -> ErrorGroup:
    latest = one if one.last_at >= other.last_at else other
    return replace(
        latest,
        count=one.count + other.count,
        first_at=min(one.first_at, other.first_at),
    )


def _marked(group: ErrorGroup, mark: ErrorMark | None) -> ErrorGroup:
    """Return a group as people have marked it; a resolved one that happens again is open."""
    again = mark is not None and mark.state is ErrorState.RESOLVED and group.last_at > mark.at
    if mark is None or again:
        return group
    return replace(group, state=mark.state, marked_by=mark.by)
