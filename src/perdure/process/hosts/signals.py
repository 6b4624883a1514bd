"""The signals between nodes: each is one thing that is done to a process on another loop.

Signals between two nodes arrive in the order in which they were sent.
"""

from typing import Any, get_args

from msgspec import Struct

from perdure.base.pid import Pid
from perdure.process.event import ExitResult, Message
from perdure.process.introspect import Info


class SendSignal(Struct):
    """Deliver a message."""

    dest: Pid
    message: Message


class RequestSignal(Struct):
    """Deliver a request; the reply carries the same number."""

    dest: Pid
    number: int
    body: Any
    sender: Pid | None


class ReplySignal(Struct):
    """The reply to a request."""

    number: int
    value: Any


class RequestFailedSignal(Struct):
    """A request gets no reply, for this reason."""

    number: int
    reason: BaseException


class WithdrawSignal(Struct):
    """Nobody waits for the reply to a request any more."""

    number: int


class SpawnSignal(Struct):
    """Start a process; `call` is pickled separately, so that a bad one ends only this process."""

    pid: Pid
    parent: Pid | None
    name: str | None
    call: bytes


class StartSignal(Struct):
    """Start a process that another thread has made."""

    process: Any


class SpawnOnHostSignal(Struct):
    """Start a process on a host, which only the root node knows.

    With a number it is answered by `PlacedSignal`.
    """

    host: str
    pid: Pid
    parent: Pid | None
    name: str | None
    call: Any
    number: int = 0


class PlacedSignal(Struct):
    """Whether a process was started on the worker that asked for it."""

    number: int
    here: bool


class WatchSignal(Struct):
    """Notify the sender when a process ends; with its outcome if `full`."""

    pid: Pid
    full: bool


class ExitedSignal(Struct):
    """A process has ended; the outcome is None if the receiver had not asked for it in full."""

    pid: Pid
    outcome: ExitResult | None


class WireLostSignal(Struct):
    """The thread at the other end of this wire has ended, or is abandoned."""

    reason: BaseException


class LinkSignal(Struct):
    """Link two processes; the first one is the sender's."""

    mine: Pid
    yours: Pid


class UnlinkSignal(Struct):
    """Unlink two processes; the first one is the sender's."""

    mine: Pid
    yours: Pid


class ExitSignal(Struct):
    """Send an exit signal to a process."""

    dest: Pid
    sender: Pid
    reason: BaseException


class ForceExitSignal(Struct):
    """Decide how a process ends, and interrupt it."""

    dest: Pid
    outcome: ExitResult


class CancelSignal(Struct):
    """Send CANCEL to a process, and kill it after the timeout."""

    dest: Pid
    sender: Pid | None
    timeout: float | None
    reason: object


class StopGracefullySignal(Struct):
    """Send CANCEL to a process that reads its events, and a shutdown signal to any other."""

    dest: Pid
    timeout: float
    sender: Pid | None
    why: str | None


class KillSignal(Struct):
    """End a process by force."""

    dest: Pid
    detail: object


class ClaimNameSignal(Struct):
    """Give a name to a process of the sender, if it is free."""

    number: int
    name: str
    pid: Pid


class NameClaimedSignal(Struct):
    """The holder of the name that was claimed; None: the claim succeeded."""

    number: int
    holder: Pid | None


class FreeNameSignal(Struct):
    """Free a name; answered by a `NameClaimedSignal` with its holder."""

    number: int
    name: str


class NameRemovedSignal(Struct):
    """A process no longer holds a name."""

    name: str
    pid: Pid


class NameAddedSignal(Struct):
    """A process holds a name."""

    name: str
    pid: Pid


class HostsSignal(Struct):
    """The names of the running hosts."""

    names: list[str]


class InitWorkerSignal(Struct):
    """The initial state of a new worker."""

    worker: str
    host: str
    settings: Any
    names: dict[str, Pid]
    hosts: list[str]
    spawn_ids: dict[str, Any]
    preparation: dict[str, Any]


class WorkerReadySignal(Struct):
    """A worker is ready."""


class StopWorkerSignal(Struct):
    """End all processes within the timeout, and then the worker itself.

    With `interrupt`, a process that does not read its events is interrupted at once.
    """

    timeout: float
    interrupt: bool = True


class WorkerStoppedSignal(Struct):
    """A worker has ended all its processes; nothing follows."""


class PingSignal(Struct):
    """Ask whether the loop of a worker responds."""

    number: int


class PongSignal(Struct):
    """The loop of a worker responds."""

    number: int


class InfoRequestSignal(Struct):
    """Request infos about the given processes of a worker, or about all."""

    number: int
    pids: list[Pid] | None


class InfoReplySignal(Struct):
    """The requested infos, for those processes that exist."""

    number: int
    infos: list[Info]


class LogSignal(Struct):
    """A record of the standard `logging`."""

    record: dict[str, Any]


Signal = (
    SendSignal
    | RequestSignal
    | ReplySignal
    | RequestFailedSignal
    | WithdrawSignal
    | SpawnSignal
    | StartSignal
    | SpawnOnHostSignal
    | PlacedSignal
    | WatchSignal
    | ExitedSignal
    | WireLostSignal
    | LinkSignal
    | UnlinkSignal
    | ExitSignal
    | ForceExitSignal
    | CancelSignal
    | StopGracefullySignal
    | KillSignal
    | ClaimNameSignal
    | NameClaimedSignal
    | FreeNameSignal
    | NameRemovedSignal
    | NameAddedSignal
    | HostsSignal
    | InitWorkerSignal
    | WorkerReadySignal
    | StopWorkerSignal
    | WorkerStoppedSignal
    | PingSignal
    | PongSignal
    | InfoRequestSignal
    | InfoReplySignal
    | LogSignal
)

SIGNALS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Signal)}
