"""What the handles of all supervisors share: to be started, asked, and stopped."""

from typing import Any, Self, TypeVar

from perdure.base.duration import Duration
from perdure.base.errors import CallExit, ProcError, Shutdown, StartError
from perdure.base.pid import Pid
from perdure.base.result import Err
from perdure.otp.oversight import (
    CountChildren,
    Oversight,
    Stop,
    WhichChildren,
    oversee,
    oversight_of,
)
from perdure.otp.ref import ServerRef, pid_of
from perdure.otp.start import start
from perdure.otp.stoppable import Stoppable
from perdure.otp.via import Via
from perdure.otp.ward import ChildInfo, Counts
from perdure.process.exits import same_reason
from perdure.process.messaging import alive_or_raise, call

Kind = TypeVar("Kind", bound=Oversight)


async def request(ref: ServerRef, body: object, timeout: Duration = None) -> Any:
    """Ask a supervisor; an answer that is an error is raised."""
    answer = await call(pid_of(ref, "ask a supervisor"), body, timeout)
    if isinstance(answer, Err):
        raise answer.error  # pyright: ignore[reportUnknownMemberType]
    return answer.value


def inside(ref: ServerRef, kind: type[Kind]) -> Kind:
    """Look into a living supervisor of this kind, without a request.

    Raises:
        NoProcess: It is dead.
        TypeError: It is something else.
    """
    process = alive_or_raise(pid_of(ref, "look into"), "look into it")
    oversight = oversight_of(process)
    if not isinstance(oversight, kind):
        raise TypeError(f"{ref!r} is no supervisor of the kind that is needed here")
    oversight.open(process)
    return oversight


class Supervised(Stoppable):
    """A supervisor that is described here, and runs between `start` and `stop`."""

    def __init__(self, name: str | Via | None) -> None:
        self.name = name
        self._pid: Pid | None = None

    def __repr__(self) -> str:
        return f"<{self._label()} {self._pid or 'not started'}>"

    @property
    def pid(self) -> Pid:
        """Its process.

        Raises:
            ProcError: It was not started.
        """
        if self._pid is None:
            kind = type(self).__name__
            raise ProcError(
                f"this {kind} was not started: use `async with`, or `await {kind}.start_link(…)`"
            )
        return self._pid

    def _label(self) -> str:
        return type(self).__name__ if self.name is None else f"{type(self).__name__} {self.name}"

    def _oversight(self) -> Oversight:
        raise NotImplementedError

    async def start(self) -> Self:
        """Start it, linked to this process, and wait until its children have started."""
        if self._pid is not None and self._pid.target is not None:
            raise ProcError(f"{self!r} runs already")
        label = self.name or type(self)
        try:
            process, ready = await start(label, oversee, self._oversight(), name=self.name)
        except StartError as error:
            raise _first_child_error(error) from error.reason
        if not ready:
            raise StartError(label, Shutdown("it was stopped while its children started"))
        self._pid = process.pid
        return self

    async def which_children(self: ServerRef) -> list[ChildInfo]:
        """List the children, last started first."""
        return await request(self, WhichChildren())

    async def count_children(self: ServerRef) -> Counts:
        """Count specs, running children, supervisors and workers."""
        return await request(self, CountChildren())

    async def stop(
        self: ServerRef, reason: BaseException | None = None, timeout: Duration = None
    ) -> None:
        """Stop all children and end, normally unless a reason is given; wait until it is over.

        Raises:
            CallExit: It was dead already, or ended for another reason.
            CallTimeout: It did not end in time, and goes on stopping.
        """
        try:
            await request(self, Stop(reason), timeout)
        except CallExit as error:
            if not same_reason(error.reason, reason):
                raise

    async def __aenter__(self) -> Self:
        return await self.start()


def _first_child_error(error: StartError) -> StartError:
    """Give the error of the child that failed, out of the end of the supervisor by it."""
    if isinstance(error.reason, Shutdown) and isinstance(error.reason.detail, StartError):
        return error.reason.detail
    return error
