"""From a call of a job to the job that is stored."""

import secrets
from typing import Any

from perdure.base.clock import SystemClock
from perdure.base.codec import digest
from perdure.jobs.definition import JobDefinition
from perdure.jobs.model import Entry, Job, NewJob

_CLOCK = SystemClock()


def new_id() -> str:
    """Draw the id of a job: in the order of time, which keeps indexes small; the rest by chance."""
    return f"{_CLOCK.time_ns():016x}{secrets.token_hex(8)}"


def child_id(parent_id: str, entry_id: str) -> str:
    """Give the id of the job that a parent submits at a place of its journal: always the same."""
    return parent_id[:16] + digest("child", parent_id, entry_id)[:16]


def child_job(
    parent: Job, entry: Entry, definition: "JobDefinition[Any, Any]", name: str, packed: bytes
) -> NewJob:
    """Make the job that a parent submits; the same one, however often it is asked for."""
    return NewJob(
        id=child_id(parent.id, entry.id),
        tenant=parent.tenant,
        user=parent.user,
        name=name,
        version=definition.version,
        input=packed,
        queue=definition.queue or parent.queue,
        priority=parent.priority,
        parent=parent.id,
        parent_seq=entry.seq,
        budget_of=parent.budget_of or parent.id,
        deadline=definition.timeout,
    )
