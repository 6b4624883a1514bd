"""How a child is started, restarted and stopped: the words that supervisors share."""

from collections.abc import Awaitable, Callable
from enum import Enum, StrEnum
from typing import Any, Final


class BrutalKill(Enum):
    """The type of `BRUTAL_KILL`."""

    BRUTAL_KILL = "brutal_kill"

    def __repr__(self) -> str:
        return "BRUTAL_KILL"


class Ignore(Enum):
    """The type of `IGNORE`."""

    IGNORE = "ignore"

    def __repr__(self) -> str:
        return "IGNORE"


BRUTAL_KILL: Final = BrutalKill.BRUTAL_KILL
"""As a shutdown: kill at once, do not ask."""

IGNORE: Final = Ignore.IGNORE
"""As the result of a start: there is nothing to run, and that is fine."""


class Restart(StrEnum):
    """When a child that ended is started again."""

    PERMANENT = "permanent"  # always
    TRANSIENT = "transient"  # if it failed
    TEMPORARY = "temporary"  # never


class ChildType(StrEnum):
    """What a child is."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"


StartFunction = Callable[[], Awaitable[Any]]
"""Starts a child, in the supervisor's process; gives its pid, a handle with `.pid`, or IGNORE."""
