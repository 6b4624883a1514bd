"""What a loop may touch of a process: the process itself, or what stands in for it here.

A pid leads to its process, wherever that runs.
Code on another loop must not touch it: there a stand-in takes its place, which passes on by
signals what is done to it (see `perdure.process.hosts`).
"""

from typing import TYPE_CHECKING

from perdure.base.pid import Pid

if TYPE_CHECKING:
    from perdure.process.process import Process
    from perdure.process.runtime import Runtime


class Elsewhere:
    """What a stand-in does otherwise than a process, since it cannot know how the other stands."""

    __slots__ = ()

    def kill(self, detail: object) -> None:
        """End it by force."""
        raise NotImplementedError

    def stop_politely(self, timeout: float, sender: Pid | None, why: str | None) -> None:
        """End it by CANCEL if it reads its events, else by a shutdown."""
        raise NotImplementedError


def reach(pid: Pid, runtime: "Runtime") -> "Process | None":
    """Give what code of this runtime may touch; None if the process is dead."""
    target: Process | None = pid.target
    if target is None or target.loop is runtime.loop or runtime.node is None:
        return target
    return runtime.node.stand_in(pid)


def known(pid: Pid, runtime: "Runtime") -> "Process | None":
    """Give what this runtime has of a process, and make nothing; also if it is dead elsewhere."""
    if runtime.node is not None and (stand_in := runtime.node.stand_ins.get(pid)) is not None:
        return stand_in
    target: Process | None = pid.target
    return None if target is None or target.loop is not runtime.loop else target
