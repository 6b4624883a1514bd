"""One child under supervision, and what others may know of it."""

from collections.abc import Hashable, Iterable
from typing import Any, Literal, NamedTuple

from perdure.base.pid import Pid, Ref
from perdure.otp.spec import ChildSpec, ChildType
from perdure.process.process import Process

RESTARTING: Literal["restarting"] = "restarting"


class ChildInfo(NamedTuple):
    """A child as `which_children` shows it."""

    id: Hashable
    pid: Pid | Literal["restarting"] | None
    type: ChildType
    restarts: int


class Counts(NamedTuple):
    """What `count_children` counts."""

    specs: int
    active: int
    supervisors: int
    workers: int


class Ward:
    """One child under supervision, over all its lives."""

    __slots__ = (
        "failure",
        "handle",
        "last_pid",
        "process",
        "ref",
        "restarting",
        "restarts",
        "since",
        "spec",
    )

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: Process | None = None  # until its end has been dealt with
        self.last_pid: Pid | None = None
        self.ref: Ref | None = None
        self.handle: Any = None  # what its start function gave
        self.restarting = False
        self.failure: BaseException | None = None  # why it is still restarting
        self.restarts = 0
        self.since = 0.0  # the loop's time of its last start

    @property
    def pid(self) -> Pid | Literal["restarting"] | None:
        """What others see as its pid."""
        if self.process is not None:
            return self.process.pid
        return RESTARTING if self.restarting else None

    def info(self, id: Hashable) -> ChildInfo:
        """Give what others may know of it."""
        return ChildInfo(id, self.pid, self.spec.type, self.restarts)


def count(wards: Iterable[Ward]) -> Counts:
    """Count children."""
    all_of_them = tuple(wards)
    supervisors = sum(ward.spec.type is ChildType.SUPERVISOR for ward in all_of_them)
    active = sum(ward.process is not None for ward in all_of_them)
    return Counts(len(all_of_them), active, supervisors, len(all_of_them) - supervisors)
