"""What nodes tell each other: each signal is one thing that is done to a process elsewhere.

Signals between two nodes arrive in the order in which they were sent.
"""

from typing import Any

from msgspec import Struct

from perdure.base.pid import Pid
from perdure.process.event import ExitResult, Message
from perdure.process.introspect import Info


class Send(Struct):
    """Deliver a message."""

    dest: Pid
    message: Message


class Ask(Struct):
    """Deliver a request; the answer is to carry its number."""

    dest: Pid
    number: int
    body: Any
    sender: Pid | None


class Answer(Struct):
    """The answer to a request."""

    number: int
    value: Any


class NoAnswer(Struct):
    """A request gets no answer, for this reason."""

    number: int
    reason: BaseException


class Withdraw(Struct):
    """Nobody waits for the answer to a request any more."""

    number: int


class Spawn(Struct):
    """Start a process; what it runs is packed, so that a failure to unpack it is its own end."""

    pid: Pid
    parent: Pid | None
    name: str | None
    call: bytes


class Start(Struct):
    """Start a process that was made by another thread."""

    process: Any


class SpawnOn(Struct):
    """Start a process on a host, which only the first node can find.

    With a number it is answered by `Placed`.
    """

    host: str
    pid: Pid
    parent: Pid | None
    name: str | None
    call: Any
    number: int = 0


class Placed(Struct):
    """Whether a process was started on the very worker that wanted it."""

    number: int
    here: bool


class Watch(Struct):
    """Tell me of the end of a process; in full, or only that it is gone."""

    pid: Pid
    full: bool


class Exited(Struct):
    """A process has ended; None: the receiver had not asked how."""

    pid: Pid
    outcome: ExitResult | None


class Lost(Struct):
    """The thread at the other end of this wire is gone, or given up."""

    reason: BaseException


class Link(Struct):
    """Tie two processes; the first is mine."""

    mine: Pid
    yours: Pid


class Unlink(Struct):
    """Untie two processes; the first is mine."""

    mine: Pid
    yours: Pid


class ExitSignal(Struct):
    """Let a process take in an exit signal."""

    dest: Pid
    sender: Pid
    reason: BaseException


class Condemn(Struct):
    """Decide how a process ends."""

    dest: Pid
    outcome: ExitResult


class CancelAsk(Struct):
    """Ask a process to end within so many seconds."""

    dest: Pid
    sender: Pid | None
    timeout: float | None
    reason: object


class StopPolitely(Struct):
    """End a process by CANCEL if it reads its events, else by a shutdown."""

    dest: Pid
    timeout: float
    sender: Pid | None
    why: str | None


class Kill(Struct):
    """End a process by force."""

    dest: Pid
    detail: object


class Claim(Struct):
    """Give a name to a process of mine, if it is free."""

    number: int
    name: str
    pid: Pid


class Claimed(Struct):
    """Who has the name that was claimed; None: it is yours."""

    number: int
    holder: Pid | None


class Unclaim(Struct):
    """Free a name, whoever has it; answered by `Claimed` with who had it."""

    number: int
    name: str


class NameGone(Struct):
    """A process has a name no more."""

    name: str
    pid: Pid


class NameGiven(Struct):
    """A process has a name."""

    name: str
    pid: Pid


class Hosts(Struct):
    """The names of the hosts that run."""

    names: list[str]


class Begin(Struct):
    """What a new worker must know before all else."""

    worker: str
    host: str
    settings: Any
    names: dict[str, Pid]
    hosts: list[str]
    entries: dict[str, Any]
    preparation: dict[str, Any]


class Ready(Struct):
    """A worker is ready."""


class Stop(Struct):
    """End all processes within so many seconds, and then yourself."""

    timeout: float


class Stopped(Struct):
    """A worker has ended all its processes; nothing comes after this."""


class Ping(Struct):
    """Is your loop alive?"""

    number: int


class Pong(Struct):
    """It is."""

    number: int


class Look(Struct):
    """Give pictures of your processes: of these, or of all."""

    number: int
    pids: list[Pid] | None


class Seen(Struct):
    """The pictures that were asked for; one is missing if its process is not there."""

    number: int
    infos: list[Info]


class Log(Struct):
    """A record of the standard logging."""

    record: dict[str, Any]


Signal = (
    Send
    | Ask
    | Answer
    | NoAnswer
    | Withdraw
    | Spawn
    | Start
    | SpawnOn
    | Placed
    | Watch
    | Exited
    | Lost
    | Link
    | Unlink
    | ExitSignal
    | Condemn
    | CancelAsk
    | StopPolitely
    | Kill
    | Claim
    | Claimed
    | Unclaim
    | NameGone
    | NameGiven
    | Hosts
    | Begin
    | Ready
    | Stop
    | Stopped
    | Ping
    | Pong
    | Look
    | Seen
    | Log
)
