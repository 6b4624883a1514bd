"""DynamicSupervisor: starts empty, gets children at run time, each for itself.

`DynamicChildren` is its inside, on which other supervisors of many like children build.
"""

from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from perdure.base.duration import Duration
from perdure.base.errors import ChildError, MaxChildren
from perdure.base.pid import Pid
from perdure.otp.handle import Ref, Supervised, request
from perdure.otp.oversight import ChildInfo, Counts, Oversight, Ward, count
from perdure.otp.spec import (
    IGNORE,
    Child,
    ChildSpec,
    RestartWord,
    Shutdowns,
    as_spec,
)
from perdure.otp.strategy import Fate, Intensity, Strategy, fate
from perdure.otp.via import Via
from perdure.process.process import Process

# The requests


class StartChild(NamedTuple):
    """Start a child."""

    spec: ChildSpec


class TerminateChild(NamedTuple):
    """Stop a child and forget it."""

    pid: Pid


class WhichChildren(NamedTuple):
    """List the children."""


class CountChildren(NamedTuple):
    """Count the children."""


class DynamicChildren(Oversight):
    """The children of a dynamic supervisor, by their pids.

    One that is being restarted is still known by its last pid.
    """

    def __init__(self, label: str, intensity: Intensity, max_children: int | None = None) -> None:
        super().__init__(label, intensity)
        self.max_children = max_children
        self.children: dict[Pid, Ward] = {}

    def wards(self) -> Iterable[Ward]:
        return self.children.values()

    def check_room(self) -> None:
        """Refuse one child too many; those that are being restarted count too."""
        if self.max_children is not None and len(self.children) >= self.max_children:
            raise MaxChildren(
                f"{self.label} has {len(self.children)} children, and may have no more"
            )

    def admit(self, spec: ChildSpec, process: Process) -> Ward:
        """Take in a process that was just born, at once and without a request."""
        ward = Ward(spec)
        self.adopt(ward, process.pid, process.pid)
        self.children[process.pid] = ward
        return ward

    async def ended(self, ward: Ward, reason: BaseException | None) -> None:
        if fate(ward.spec.restart, reason) is Fate.RESTART:
            self.count_restart(ward, reason)
            await self._restart(ward)
        else:
            self._forget(ward)

    async def try_again(self, ward: Ward) -> None:
        self.count_restart(ward, ward.failure)
        await self._restart(ward)

    async def _restart(self, ward: Ward) -> None:
        if await self.restart(ward):
            self._forget(ward)
            if ward.pid_now is not None:  # else it said IGNORE
                self.children[ward.pid_now] = ward

    def _forget(self, ward: Ward) -> None:
        if ward.key is not None:
            self.children.pop(ward.key, None)

    async def end_children(self) -> None:
        await self.stop(tuple(self.children.values()))

    # Requests

    async def answer(self, body: object) -> Any:
        match body:
            case StartChild(spec=spec):
                return await self._add(spec)
            case TerminateChild(pid=pid):
                return await self._terminate(pid)
            case WhichChildren():
                return [ward.info(None) for ward in reversed(self.children.values())]
            case CountChildren():
                return count(self.children.values())
            case _:
                return await super().answer(body)

    async def _add(self, spec: ChildSpec) -> Any:
        self.check_room()
        ward = Ward(spec)
        given = await self.start(ward)
        if given is not IGNORE:
            self.children[ward.last_pid] = ward
        return given

    async def _terminate(self, pid: Pid) -> None:
        ward = self.children.get(pid)
        if ward is None:
            raise ChildError("not_found", pid)
        await self.stop([ward])
        self.children.pop(pid)
