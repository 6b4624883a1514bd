"""What a callback of a server returns to say what happens next."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from perdure.base.duration import Duration, required_seconds

T = TypeVar("T")


class Absent(Enum):
    """The type of `ABSENT` and of `NoReply`."""

    ABSENT = "absent"
    NO_REPLY = "no reply"

    def __repr__(self) -> str:
        return "NoReply" if self is Absent.NO_REPLY else "ABSENT"


ABSENT: Final = Absent.ABSENT
"""As the reply of a `Stop`: there is none."""

NoReply: Final = Absent.NO_REPLY
"""Returned as it is: go on; a caller gets its answer later, by `GenServer.reply`."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Call `handle_continue(value)` next, before anything else is received."""

    value: Any = None


@dataclass(frozen=True, slots=True, init=False)
class Timeout:
    """Call `handle_info` with this very object if nothing is received for so long."""

    seconds: float

    def __init__(self, seconds: Duration) -> None:
        object.__setattr__(self, "seconds", required_seconds(seconds))


class Reply(Struct, Generic[T], frozen=True):
    """Answer with `value`; needed only with `then`, or if the value is itself one of these."""

    value: T
    then: Continue | Timeout | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the server with this reason, after `terminate`; None is a normal end.

    A `reply` is sent when `terminate` is done; without one, the caller gets a `CallExit`.
    """

    reason: BaseException | None = None
    reply: Any = ABSENT

    def __post_init__(self) -> None:
        check_reason(self.reason)


def check_reason(reason: object) -> None:
    """Refuse what cannot be the reason of an end."""
    if reason is not None and not isinstance(reason, BaseException):
        raise TypeError(f"an exit reason is an exception, or None for normal; not {reason!r}")


# Everything else that `handle_call` returns is the answer.
DIRECTIVES: Final = frozenset({Absent, Continue, Timeout, Reply, Stop})
