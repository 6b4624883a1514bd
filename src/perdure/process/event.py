"""What a process receives: messages from others, events from the kernel.

They are msgspec structs: immutable, usable in `match`, and four times as fast to create as
dataclasses.
"""

from enum import StrEnum
from typing import Any, ClassVar

from msgspec import Struct

from perdure.base.pid import MonitorRef, Pid


class Message(Struct, frozen=True):
    """One message: `sender` is None if it came from outside of any process."""

    topic: str
    payload: Any
    sender: Pid | None


class EventKind(StrEnum):
    """The three kinds of event."""

    EXIT = "pid.exit"
    LINK_DOWN = "pid.link.down"
    CANCEL = "pid.cancel"


class ExitResult(Struct, frozen=True):
    """How a process ended: with a value, or with an error."""

    value: Any = None
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """True for a normal end."""
        return self.error is None


class Exit(Struct, frozen=True):
    """A monitored process ended."""

    kind: ClassVar[EventKind] = EventKind.EXIT
    sender: Pid
    result: ExitResult
    ref: MonitorRef


class LinkDown(Struct, frozen=True):
    """A linked process ended abnormally, and this process traps links."""

    kind: ClassVar[EventKind] = EventKind.LINK_DOWN
    sender: Pid
    error: BaseException


class Cancel(Struct, frozen=True):
    """Somebody asks this process to end.

    `deadline` is in the loop's time, None without a limit; at the deadline the process is killed.
    """

    kind: ClassVar[EventKind] = EventKind.CANCEL
    sender: Pid | None
    deadline: float | None = None
    reason: object = None


Event = Exit | LinkDown | Cancel
