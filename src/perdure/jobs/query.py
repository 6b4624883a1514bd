"""What may be asked about many jobs."""

from msgspec import Struct

from perdure.jobs.state import JobState


class JobQuery(Struct, frozen=True, kw_only=True):
    """Which jobs to list. None = does not matter."""

    tenant: str | None = None
    states: tuple[JobState, ...] | None = None
    name: str | None = None
    queue: str | None = None
    parent: str | None = None
    key: str | None = None
    before: tuple[float, str] | None = None  # (created_at, id) of the last one seen: the next page
    limit: int = 50
