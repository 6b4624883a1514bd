"""Jobs, journals and events for programs: everything but secrets, and nothing shortened."""

from typing import Any

import msgspec

from perdure.jobs.model import Entry, Event, Job, Message
from perdure.jobs.redaction import for_people

Facts = dict[str, Any]

_PAYLOADS = ("input", "plan", "options", "result", "error", "wait", "output", "checkpoint")
_PAYLOADS_OF_A_MESSAGE = ("payload",)


def payload(data: bytes | None) -> Any:
    """Read what is stored, as plain values, without those whose names say that they are secret."""
    return None if data is None else for_people(data)


def job_facts(job: Job) -> Facts:
    """Give a job."""
    return _facts(job, _PAYLOADS)


def entry_facts(entry: Entry) -> Facts:
    """Give an entry of the journal."""
    return _facts(entry, _PAYLOADS)


def event_facts(event: Event) -> Facts:
    """Give a line of the log."""
    return _facts(event, ())


def message_facts(message: Message) -> Facts:
    """Give a message that waits for the job."""
    return _facts(message, _PAYLOADS_OF_A_MESSAGE)


def _facts(thing: msgspec.Struct, payloads: tuple[str, ...]) -> Facts:
    return {
        name: payload(value) if name in payloads else value
        for name, value in msgspec.structs.asdict(thing).items()
    }
