"""From a call of a job to the job that is stored."""

import uuid
from typing import Any

from perdure.base.codec import digest
from perdure.jobs.definition import JobDefinition
from perdure.jobs.model import Entry, Job, NewJob


def new_id() -> str:
    """Draw the id of a job: unguessable, and sorted roughly by time."""
    return uuid.uuid4().hex


def child_job(
    parent: Job, entry: Entry, definition: "JobDefinition[Any, Any]", name: str, packed: bytes
) -> NewJob:
    """Make the job that a parent submits; the same one, however often it is asked for."""
    return NewJob(
        id=digest("child", parent.id, entry.id)[:32],
        tenant=parent.tenant,
        user=parent.user,
        name=name,
        version=definition.version,
        input=packed,
        queue=definition.queue or parent.queue,
        priority=parent.priority,
        parent=parent.id,
        parent_seq=entry.seq,
        deadline=definition.timeout,
    )
