"""The arguments of a job whose code is not here, checked by the schema that its workers publish.

The values are plain: what a caller passes becomes JSON, and the worker that has the types reads it.
Pure.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.base.codec import LIMITS, PayloadLimits, encode
from perdure.base.errors import ArgumentError, UnknownName, Unstorable
from perdure.base.schema import NEVER_STORED, holds_secret, write_unknown
from perdure.base.schema_check import misfits
from perdure.jobs.definition import LONGEST_NAME
from perdure.jobs.fleet import PublishedDefinitions, PublishedJob


def published_jobs(found: Sequence[PublishedDefinitions]) -> dict[str, PublishedJob]:
    """Return the jobs that workers know, by name; those of running workers before all others."""
    jobs: dict[str, PublishedJob] = {}
    for each in sorted(found, key=lambda each: (each.workers > 0, each.published_at)):
        jobs |= each.definitions.jobs
    return jobs


def unknown_job(name: str, known: Mapping[str, PublishedJob]) -> UnknownName:
    """Return the error for a name that no worker knows."""
    near = difflib.get_close_matches(name, known, n=3) if len(name) <= LONGEST_NAME else []
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if not known:
        hint = ": none has said yet what it knows"
    return UnknownName(
        f"no worker knows the job {name[:LONGEST_NAME]!r}{hint} "
        "(start one that does, or pass check=False to submit it all the same)"
    )


def pack_arguments(
    name: str,
    job: PublishedJob | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    limits: PayloadLimits = LIMITS,
    *,
    check: bool = True,
) -> bytes:
    """Return the arguments of a call as a JSON object by parameter name, defaults included.

    Args:
        name: The name of the job.
        job: What its workers publish; None if nobody knows it.
        args: The arguments by position.
        kwargs: The arguments by name.
        limits: The largest payloads.
        check: Whether they are checked by the schema.

    Raises:
        ArgumentError: They do not fit; every reason is named.
        Unstorable, PayloadTooLarge: They cannot be stored.
    """
    what = f"the arguments of job {name!r}"
    names = () if job is None else job.positional
    problems: list[str] = []
    if len(args) > len(names):
        takes = f"it takes {len(names)}" if job else "the names of its parameters are unknown"
        problems.append(f"{len(args)} positional arguments were given, but {takes}")
    problems += [f"`{each}` is given twice" for each in names[: len(args)] if each in kwargs]
    given = {**(job.defaults if job else {}), **dict(zip(names, args, strict=False)), **kwargs}
    plain = _plain(given, what)
    if job is not None and check:
        problems += misfits(job.schema, plain, "")
    if problems:
        raise ArgumentError(f"{what} do not fit", problems)
    return encode(plain, what=what, kind="argument", limits=limits)


def _plain(value: Any, what: str) -> Any:
    """Return a value as plain JSON: dates as texts, objects as mappings of their fields."""
    if holds_secret(value):
        raise Unstorable(f"{what}: {NEVER_STORED}")
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=write_unknown)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise Unstorable(f"{what}: {error}") from None
