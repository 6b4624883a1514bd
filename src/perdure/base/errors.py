"""Every exception of Perdure.

    ProcError(Exception)            something was asked that cannot be done
     ├── NotInProcess               your code: a kernel verb outside of any process
     ├── NotOwner                   your code: a thing that belongs to another process
     ├── NameTaken                  the name belongs to another living process
     ├── NotRegistered              no process has that name (now)
     ├── NoProcess                  the process is dead: an ordinary race
     ├── NoTable                    the table is gone: its owner ended, or it was deleted
     ├── SpawnError                 a process could not be started; nothing was created
     │    └── NameTakenAtBirth      … because its name is taken; also a NameTaken
     ├── ChannelClosed              the other side closed the channel
     ├── MailboxFull                the receiver is slower than its senders
     ├── MaxChildren                a supervisor has as many children as it may have
     ├── StartError                 a child did not start; `reason` says why
     ├── ChildError                 a supervisor's child is not in the state that was asked for
     ├── BadReturn                  a callback returned what it may not return
     ├── SnapshotError              a saved state cannot be read or written
     ├── HostBusy                   a worker of a host is slower than those who send to it
     ├── NotPortable                your code: a thing that cannot cross to another OS process
     ├── EntriesError               your files: entries with mistakes, all of them told at once
     └── CallExit                   a request will get no answer; `reason` says why
          ├── NoServer              … nobody has the name; also a NotRegistered
          ├── TaskExit              … the task ended without a result
          ├── CallTimeout           … in the given time; also a TimeoutError
          └── TaskTimeout           … in the given time; also a TimeoutError

    ProcessExit(BaseException)      reasons why a process ended; `except Exception` lets them pass
     ├── Shutdown                   planned: somebody asked for the end
     ├── Killed                     forced: it was killed
     ├── HostDown                   the OS process or thread that it ran in is gone
     └── LinkedProcessDown          a linked process died, and this one with it

    RemoteError(Exception)          stands for an exception that could not cross as it was

    JobError(Exception)             durable jobs: drawn in `base/job_errors.py`

An exit reason is any exception, or None for a normal end.
"""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

# One place to import errors from, in two files.
# pyright: reportUnusedImport=false
from perdure.base.job_errors import (  # noqa: F401
    ApprovalExpired,
    ApprovalRejected,
    ArgumentError,
    BadResponse,
    BudgetExceeded,
    DecisionRefused,
    DefinitionError,
    Drift,
    EffectInDoubt,
    IllegalTransition,
    JobError,
    JobFailed,
    JobNotFound,
    JobParked,
    JournalConflict,
    KeyConflict,
    LeaseLost,
    PayloadTooLarge,
    Permanent,
    PlanError,
    Refused,
    SchemaError,
    StepCrashed,
    StepFailed,
    StepTimeout,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    UnknownName,
    Unstorable,
    WrongType,
)
from perdure.base.pid import Pid


class ProcError(Exception):
    """Something was asked of the runtime that cannot be done."""


class NotInProcess(ProcError):
    """A kernel verb was used outside of any process."""

    def __init__(self, verb: str = "this") -> None:
        super().__init__(
            f"{verb} works only inside a process: start the program with `perdure.run(main)`, "
            "or wrap the body in `async with perdure.Runtime():`",
        )


class NotOwner(ProcError):
    """The channel, task or table belongs to another process."""


class NameTaken(ProcError):
    """The name belongs to another living process, `pid`."""

    def __init__(self, name: str, pid: Pid) -> None:
        super().__init__(f"the name {name!r} is taken by {pid}")
        self.name = name
        self.pid = pid


class NotRegistered(ProcError, LookupError):
    """No living process has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no process is registered as {name!r}")
        self.name = name


class NoProcess(ProcError):
    """The process is dead, or was never alive."""

    def __init__(self, pid: Pid | None = None, doing: str = "") -> None:
        task = f"; cannot {doing}" if doing else ""
        super().__init__(f"process {pid} is not alive{task}" if pid else "no such process" + task)
        self.pid = pid


class NoTable(ProcError, LookupError):
    """The table is gone: its owner ended, or it was deleted, or there never was one."""


class SpawnError(ProcError):
    """A process could not be started; nothing was created."""


class NameTakenAtBirth(NameTaken, SpawnError):
    """A process could not be started because the name it was to have is taken."""


class ChannelClosed(ProcError):
    """The channel is closed: nothing can be sent, and nothing is left to receive."""

    def __init__(self, message: str = "the channel is closed") -> None:
        super().__init__(message)


class MailboxFull(ProcError):
    """The receiver's mailbox has reached its limit."""

    def __init__(self, pid: Pid, limit: int) -> None:
        super().__init__(f"the mailbox of {pid} is full ({limit} messages wait)")
        self.pid = pid
        self.limit = limit


class MaxChildren(ProcError):
    """The supervisor already has as many children as it may have."""


class StartError(ProcError):
    """A child did not start: `child` is its id, `reason` the original exception."""

    def __init__(self, child: object, reason: BaseException) -> None:
        super().__init__(f"child {child!r} did not start: {describe(reason)}")
        self.child = child
        self.reason = reason


ChildProblem = Literal["not_found", "running", "restarting", "already_started", "already_present"]


class ChildError(ProcError):
    """The child is not in the state that the request needs: `reason` says which it is in."""

    def __init__(self, reason: ChildProblem, child: object, pid: Pid | None = None) -> None:
        super().__init__(f"child {child!r}: {reason.replace('_', ' ')}")
        self.reason: ChildProblem = reason
        self.child = child
        self.pid = pid


class BadReturn(ProcError):
    """A callback returned a value that means nothing there."""


class SnapshotError(ProcError):
    """A saved state cannot be read or written."""


class Mistake(NamedTuple):
    """One thing that is wrong in entries, and what to write instead."""

    file: str
    line: int  # 0: the entries are no file
    entry: str  # "": it is no part of one entry
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return (
            f"{where}: entry {self.entry}: {self.text}" if self.entry else f"{where}: {self.text}"
        )


class EntriesError(ProcError):
    """Entries have mistakes; nothing of them was started. `mistakes` are all that were found."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        number = len(self.mistakes)
        title = "a mistake in the entries" if number == 1 else f"{number} mistakes in the entries"
        super().__init__("\n  ".join([f"{title}:", *map(str, self.mistakes)]))


class HostBusy(ProcError):
    """So many signals wait for a worker of a host that it takes no more."""

    def __init__(self, host: str, waiting: int) -> None:
        super().__init__(
            f"{waiting} signals wait for a worker of host {host!r}, and it takes no more: "
            "let receivers answer before more is sent, or raise queue_size"
        )
        self.host = host


class NotPortable(ProcError, TypeError):
    """A function or a value cannot cross to another OS process."""


class CallExit(ProcError):
    """A request will get no answer; `reason` is why (None: the other side ended normally)."""

    def __init__(self, reason: BaseException | None, what: str = "the call") -> None:
        super().__init__(f"{what} got no answer: {describe(reason)}")
        self.reason = reason
        self.what = what
        self.__cause__ = reason


class NoServer(CallExit, NotRegistered):
    """A server was called by a name that nobody has, perhaps because it is being restarted."""

    def __init__(self, name: str) -> None:
        super().__init__(NoProcess(), f"the call to {name!r}")
        self.name = name


class TaskExit(CallExit):
    """The task ended without a result."""


class CallTimeout(CallExit, TimeoutError):
    """No answer came in time; the request may still be worked on."""


class TaskTimeout(CallExit, TimeoutError):
    """The task did not finish in time; it still runs."""


class ProcessExit(BaseException):
    """Base of the reasons that the runtime itself gives for the end of a process."""


class Shutdown(ProcessExit):
    """A planned end: not logged as an error, and not restarted when `transient`."""

    def __init__(self, detail: object = None) -> None:
        super().__init__("shutdown" if detail is None else f"shutdown: {detail}")
        self.detail = detail


class Killed(ProcessExit):
    """A forced end."""

    def __init__(self, detail: object = None) -> None:
        super().__init__("killed" if detail is None else f"killed: {detail}")
        self.detail = detail


class HostDown(ProcessExit):
    """The worker of a host that the process ran in is gone, and all its processes with it.

    `cause` says why: killed by a signal, ended by itself, blocked for too long.
    """

    def __init__(self, host: str, worker: str, cause: str) -> None:
        super().__init__(f"worker {worker} of host {host!r} is down: {cause}")
        self.host = host
        self.worker = worker
        self.cause = cause


class RemoteError(Exception):
    """Stands for an exception of another OS process that could not cross as it was.

    `kind` is the name of its class, `text` what it said, `trace` where it was raised.
    """

    def __init__(self, kind: str, text: str, trace: str = "") -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind = kind
        self.text = text
        self.trace = trace


class LinkedProcessDown(ProcessExit):
    """The process ended because one that it was linked to did.

    `pid` is that neighbour, `reason` the first cause, however many links away:
    a failure that walks a chain of ten thousand processes is told as one step.
    """

    def __init__(self, pid: Pid, reason: BaseException) -> None:
        if isinstance(reason, LinkedProcessDown):
            reason = reason.args[1]  # `reason`, without the call: chains of processes die here
            self.args = (pid, reason)
        self.__cause__ = reason

    @property
    def pid(self) -> Pid:
        """The neighbour that died."""
        return self.args[0]

    @property
    def reason(self) -> BaseException:
        """The first cause."""
        return self.args[1]

    root = reason

    def __str__(self) -> str:
        return f"linked process {self.pid} died: {describe(self.reason)}"


def is_normal(reason: BaseException | None) -> bool:
    """Tell whether this exit reason is a normal end."""
    return reason is None


def is_planned(reason: BaseException | None) -> bool:
    """Tell whether this exit reason is a normal end or a shutdown."""
    return reason is None or isinstance(reason, Shutdown)


def safe_text(thing: object, spell: Callable[[object], str] = repr) -> str:
    """Spell a thing for a message; somebody's broken `__repr__` must not break the message."""
    try:
        return spell(thing)
    except Exception as error:  # noqa: BLE001
        return f"<{type(thing).__name__}: its text raised {type(error).__name__}>"


def describe(reason: BaseException | None) -> str:
    """Say an exit reason in a few words, for messages and reports."""
    if reason is None:
        return "it ended normally"
    text = safe_text(reason, str)
    if isinstance(reason, ProcessExit | ProcError):
        return text
    return f"{type(reason).__name__}: {text}" if text else type(reason).__name__
