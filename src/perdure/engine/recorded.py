"""A job with its whole journal, apart from any store: exported, kept in a file, replayed later.

The file is JSON. What the codec has written (arguments, results, errors) is in it as text, exactly
as it was: a replay compares it byte by byte, and tools that format JSON must not change it.
Large results are in it as a whole; of large arguments there is only the digest, as in the journal.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.errors import JobNotFound, Unstorable
from perdure.jobs.model import Job, JournalEntry
from perdure.jobs.payload import stand_in_of
from perdure.store.store import Store

FORMAT: Final = 1

# The fields that the codec has written.
_OF_JOB: Final = ("input", "plan", "result", "error", "wait")
_OF_ENTRY: Final = ("input", "output", "error", "checkpoint")


class RecordedJob(Struct, frozen=True, kw_only=True):
    """A job and its journal, as they were in a store."""

    job: Job
    journal: tuple[JournalEntry, ...]

    def to_json(self) -> str:
        """Return it as the text of a file."""
        found = {
            "format": FORMAT,
            "job": _as_text(self.job, _OF_JOB),
            "journal": [_as_text(entry, _OF_ENTRY) for entry in self.journal],
        }
        return json.dumps(found, indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def from_file(path: Path) -> "RecordedJob":
        """Read a file that `perdure jobs export` has written.

        Raises:
            OSError: It cannot be read.
            Unstorable: It is something else.
        """
        return RecordedJob.from_json(path.read_text("utf-8"))

    @staticmethod
    def from_json(text: str) -> "RecordedJob":
        """Read what `to_json` has written.

        Raises:
            Unstorable: It is something else.
        """
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise Unstorable(f"this journal has format {found['format']}, not {FORMAT}")
            return RecordedJob(
                job=_from_text(found["job"], Job, _OF_JOB),
                journal=tuple(
                    _from_text(entry, JournalEntry, _OF_ENTRY) for entry in found["journal"]
                ),
            )
        except (ValueError, LookupError, TypeError, msgspec.ValidationError) as error:
            raise Unstorable(
                f"this is not a journal that `perdure jobs export` has written: {error}"
            ) from error


async def recorded_job(store: Store, job_id: str) -> RecordedJob:
    """Read a job and its journal from a store.

    Raises:
        JobNotFound: There is no such job.
    """
    job = await store.job(job_id)
    if job is None:
        raise JobNotFound(job_id)
    entries = [await _whole(store, job_id, entry) for entry in await store.journal(job_id)]
    return RecordedJob(job=job, journal=tuple(entries))


async def _whole(store: Store, job_id: str, entry: JournalEntry) -> JournalEntry:
    """Return an entry with its result, if that is a large one."""
    large = stand_in_of(entry.output)
    if large is None or not large.chunks:
        return entry
    return replace(entry, output=await store.payload(job_id, large))


def _as_text(value: Struct, fields: Iterable[str]) -> dict[str, Any]:
    found = cast("dict[str, Any]", msgspec.to_builtins(value, builtin_types=(bytes,)))
    defaults = msgspec.structs.fields(value)
    for name in fields:
        if found[name] is not None:
            found[name] = found[name].decode()
    return {
        field.name: found[field.name]
        for field in defaults
        if field.required or found[field.name] != field.default
    }


def _from_text(found: dict[str, Any], kind: type[Any], fields: Iterable[str]) -> Any:
    for name in fields:
        if isinstance(found.get(name), str):
            found[name] = found[name].encode()
    return msgspec.convert(found, kind, builtin_types=(bytes,))
