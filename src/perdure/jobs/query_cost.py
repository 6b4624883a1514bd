"""Which queries an index answers at once, however many jobs there are."""

from typing import Final

from perdure.jobs.model import JobQuery

# They bound the part of an index that is read, whichever index that is.
_BOUNDS: Final = frozenset({"tenant", "created", "before", "limit"})
_CONDITIONS: Final = frozenset(JobQuery.__struct_fields__) - _BOUNDS
_DEFAULTS: Final = JobQuery()


def is_bounded(query: JobQuery) -> bool:
    """Whether an index has the jobs that match next to each other, in the order of the list.

    All others are looked at one by one until there are enough of them, which may be never.
    """
    given = {name for name in _CONDITIONS if getattr(query, name) != getattr(_DEFAULTS, name)}
    if not given or given & {"ids", "stuck"} or given == {"parent"}:
        return True
    if query.tenant is not None:
        return given == {"key"}
    return given == {"name"} or (given == {"states"} and len(query.states or ()) == 1)
