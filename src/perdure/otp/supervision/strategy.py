"""Which children are restarted together, and when a supervisor ends with its children; pure.

Whether a child is restarted at all is decided in `perdure.base.restart`.
"""

from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


class Strategy(StrEnum):
    """Which children are restarted together."""

    ONE_FOR_ONE = "one_for_one"  # only that child
    ONE_FOR_ALL = "one_for_all"  # all children
    REST_FOR_ONE = "rest_for_one"  # that child, and those started after it


class AutoShutdown(StrEnum):
    """When the end of significant children ends their supervisor."""

    NEVER = "never"
    ANY_SIGNIFICANT = "any_significant"
    ALL_SIGNIFICANT = "all_significant"


def affected(strategy: Strategy, ids: Sequence[K], failed: K) -> list[K]:
    """Return the failed child and those that are restarted with it, in start order.

    They are stopped in the reverse of this order, and started in it.
    """
    match strategy:
        case Strategy.ONE_FOR_ONE:
            return [failed]
        case Strategy.ONE_FOR_ALL:
            return list(ids)
        case Strategy.REST_FOR_ONE:
            return list(ids[ids.index(failed) :])


def affected_again(strategy: Strategy, ids: Sequence[K], failed: K) -> list[K]:
    """Return the children to start when the start of `failed` is retried.

    Those before it have just been started, and are left alone.
    """
    again = Strategy.ONE_FOR_ONE if strategy is Strategy.ONE_FOR_ONE else Strategy.REST_FOR_ONE
    return affected(again, ids, failed)


def ends_supervisor(auto_shutdown: AutoShutdown, *, others_active: bool) -> bool:
    """Whether the supervisor ends with a significant child that is not restarted.

    Args:
        auto_shutdown: The rule of the supervisor.
        others_active: Whether another significant child still runs.
    """
    match auto_shutdown:
        case AutoShutdown.NEVER:
            return False
        case AutoShutdown.ANY_SIGNIFICANT:
            return True
        case AutoShutdown.ALL_SIGNIFICANT:
            return not others_active
