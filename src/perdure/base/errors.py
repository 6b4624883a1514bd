"""Every exception of Perdure; users import them from `perdure.errors`.

    ProcError(Exception)            the runtime cannot do what was asked
     ├── NotInProcess               your code: a kernel verb outside any process
     ├── NotOwner                   your code: an object that belongs to another process
     ├── NameTaken                  the name belongs to another living process
     ├── NotRegistered              no process has that name now
     ├── NoProcess                  the process is dead: an ordinary race
     ├── NoTable                    the table is gone: its owner ended, or it was deleted
     ├── SpawnError                 a process could not be started; nothing was created
     ├── ChannelClosed              the other side closed the channel
     ├── MailboxFull                the receiver is slower than its senders
     ├── MaxChildren                a supervisor has reached its limit of children
     ├── StartError                 a child did not start; `reason` says why
     ├── ChildError                 a child of a supervisor is not in the state that the call needs
     ├── BadReturn                  a callback returned an invalid value
     ├── SnapshotError              a saved state cannot be read or written
     ├── HostBusy                   a worker of a host is slower than its senders
     ├── NotPortable                your code: a value that cannot cross to another OS process
     ├── EntriesError               your files: entries with mistakes, all reported at once
     └── CallExit                   a request will get no answer; `reason` says why
          ├── NoServer              … nobody has the name; also a NotRegistered
          ├── TaskExit              … the task ended without a result
          ├── CallTimeout           … within the timeout; also a TimeoutError
          └── TaskTimeout           … within the timeout; also a TimeoutError

    ProcessExit(BaseException)      reasons why a process ended; `except Exception` lets them pass
     ├── Shutdown                   planned: somebody asked it to stop
     ├── Killed                     forced: somebody killed it
     ├── HostDown                   the OS process or thread that it ran in is gone
     └── LinkedProcessDown          a linked process died, and this one with it

    RemoteError(Exception)          replaces an exception that is not here itself

    JobError(Exception)             durable jobs: something cannot be done, or failed
     ├── JobNotFound                no job has that id
     ├── AmbiguousId                several jobs have an id that begins or ends so
     ├── WorkerNotFound             no worker has that id: it has stopped, or never was
     ├── WorkerSilent               a worker did not answer in time; also a TimeoutError
     ├── CommandRefused             a worker refused a command; the message says why
     ├── KeyConflict                the key of a submission was used for a different one
     ├── IllegalTransition          the state of the job does not allow that
     ├── JobFailed                  the job ended without a result; `state` says how
     ├── JobParked                  the job cannot continue until a person acts
     ├── StepFailed                 a step failed for good: no retry is left, or none would help
     ├── Permanent                  your code: raised in a step, no retry can help
     │    └── BadResponse           … an HTTP call was made, but its response cannot be read
     ├── Unavailable                another system does not answer now; also a ConnectionError
     ├── OperationCancelled         another operation has ended first: see `ctx.first`
     ├── StepTimeout                a step took longer than its timeout; also a TimeoutError
     ├── StepCrashed                the OS process of a step ended before the step did
     ├── Refused                    your code: raised in the call of an effect, nothing happened
     ├── EffectInDoubt              nobody knows whether an effect happened: a person must decide
     ├── ApprovalRejected           a person rejected the action
     ├── ApprovalExpired            nobody answered in time, which is not a rejection
     ├── AccessDenied               whoever asks may not do that; `code` says why
     ├── DecisionRefused            your vote on an approval does not count; `code` says why
     ├── BudgetExceeded             it would cost more than was granted
     ├── LeaseLost                  another worker may own the job: nothing more is written
     ├── JournalConflict            two entries claim one position of a journal: nothing is written
     ├── Drift                      what is stored no longer fits the code
     ├── NotInJob                   your code: a call was awaited where no job runs
     ├── UnrecordedIO               your code: a connection or subprocess outside of a step; refused
     ├── DefinitionError            your code: an invalid step, job or app
     │    └── UnknownName           … no step or job has that name; also a LookupError
     ├── ArgumentError              your call: arguments that do not fit; also a TypeError
     │    └── QueryError            … a text that does not say which jobs; `position` says where
     ├── PlanError                  a plan with mistakes, all reported at once
     ├── Unstorable                 a value that would not come back equal
     │    ├── WrongType             … since it is not of the declared type
     │    └── PayloadTooLarge       … since it is larger than its limit
     ├── RequestRefused             a request over HTTP is refused; `status` and `code` say how
     └── StoreError                 the store failed
          ├── StoreUnreachable      … the database does not answer; also a ConnectionError
          ├── StoreFull             … the disk is full
          ├── StoreReadOnly         … it is read-only
          ├── QueryTooSlow          … a search took longer than it may, and was given up
          ├── EncryptionError       … its payloads cannot be decrypted: a key is missing, or wrong
          └── SchemaError           … its schema is newer than the code, or not ours

An exit reason is any exception, or None for a normal end.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from perdure.base.pid import Pid


class ProcError(Exception):
    """The runtime cannot do what was asked."""


class NotInProcess(ProcError):
    """A kernel verb was used outside any process."""

    def __init__(self, verb: str = "this") -> None:
        super().__init__(
            f"{verb} works only inside a process: start the program with `perdure.run(main)`, "
            "or wrap the body in `async with perdure.process.Runtime():`",
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
    """There is no such table: its owner ended, or it was deleted, or it never existed."""


class SpawnError(ProcError):
    """A process could not be started; nothing was created."""


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
    """The supervisor has reached its limit of children."""


class StartError(ProcError):
    """A child did not start: `child` is its id, `reason` the original exception."""

    def __init__(self, child: object, reason: BaseException) -> None:
        super().__init__(f"child {child!r} did not start: {describe(reason)}")
        self.child = child
        self.reason = reason


ChildProblem = Literal["not_found", "running", "restarting", "already_started", "already_present"]


class ChildError(ProcError):
    """The child is not in the state that the request needs; `reason` says what it is."""

    def __init__(self, reason: ChildProblem, child: object, pid: Pid | None = None) -> None:
        super().__init__(f"child {child!r}: {reason.replace('_', ' ')}")
        self.reason: ChildProblem = reason
        self.child = child
        self.pid = pid


class BadReturn(ProcError):
    """A callback returned an invalid value."""


class SnapshotError(ProcError):
    """A saved state cannot be read or written."""


class Mistake(NamedTuple):
    """One mistake in entries, and what to write instead."""

    file: str
    line: int  # 0: the entries do not come from a file
    entry: str  # "": it does not belong to one entry
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return (
            f"{where}: entry {self.entry}: {self.text}" if self.entry else f"{where}: {self.text}"
        )


class EntriesError(ProcError):
    """Entries have mistakes, and nothing was started; `mistakes` lists all of them."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        number = len(self.mistakes)
        title = "a mistake in the entries" if number == 1 else f"{number} mistakes in the entries"
        super().__init__("\n  ".join([f"{title}:", *map(str, self.mistakes)]))


class HostBusy(ProcError):
    """Too many signals wait for a worker of a host."""

    def __init__(self, host: str, waiting: int) -> None:
        super().__init__(
            f"{waiting} signals wait for a worker of host {host!r}, which accepts no more: "
            "wait for answers before sending more, or raise queue_size"
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
    """No server has the name that was called; it may be restarting."""

    def __init__(self, name: str) -> None:
        # By hand: otherwise both bases would build a message, one inside the other.
        what = f"the call to {name!r}"
        ProcError.__init__(self, f"{what} got no answer: no process is registered under this name")
        self.what = what
        self.name = name
        self.reason = self.__cause__ = NoProcess()


class TaskExit(CallExit):
    """The task ended without a result."""


class CallTimeout(CallExit, TimeoutError):
    """No answer came in time; the server may still be working on the request."""


class TaskTimeout(CallExit, TimeoutError):
    """The task did not finish in time; it still runs."""


class ProcessExit(BaseException):
    """Base of the exit reasons that the runtime itself uses."""


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
    """The worker of a host in which the process ran is gone, and all its processes with it.

    `cause` says why: a signal killed it, it exited, or it was blocked for too long.
    """

    def __init__(self, host: str, worker: str, cause: str) -> None:
        super().__init__(f"worker {worker} of host {host!r} is down: {cause}")
        self.host = host
        self.worker = worker
        self.cause = cause


class RemoteError(Exception):
    """Replaces an exception of another OS process, or of an earlier run, that is not here itself.

    `kind` is the name of its class, `text` its message, `trace` where it was raised.
    """

    def __init__(self, kind: str, text: str, trace: str = "") -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind = kind
        self.text = text
        self.trace = trace


class LinkedProcessDown(ProcessExit):
    """The process ended because a linked process did.

    `pid` is that process, `reason` the root cause, however many links away: a failure that
    travels through a chain of ten thousand processes is reported as one step.
    """

    def __init__(self, pid: Pid, reason: BaseException) -> None:
        if isinstance(reason, LinkedProcessDown):
            reason = reason.args[1]  # `reason`, without the property call: long chains die here
            self.args = (pid, reason)
        self.__cause__ = reason

    @property
    def pid(self) -> Pid:
        """The linked process that died."""
        return self.args[0]

    @property
    def reason(self) -> BaseException:
        """The root cause."""
        return self.args[1]

    root = reason

    def __str__(self) -> str:
        return f"linked process {self.pid} died: {describe(self.reason)}"


def is_normal(reason: BaseException | None) -> bool:
    """Whether this exit reason is a normal end."""
    return reason is None


def is_planned(reason: BaseException | None) -> bool:
    """Whether this exit reason is a normal end or a shutdown."""
    return reason is None or isinstance(reason, Shutdown)


def safe_text(thing: object, spell: Callable[[object], str] = repr) -> str:
    """Return the text of an object for a message, even if its `__repr__` is broken."""
    try:
        return spell(thing)
    except Exception as error:  # noqa: BLE001
        return f"<{type(thing).__name__}: its text raised {type(error).__name__}>"


def describe(reason: BaseException | None) -> str:
    """Return an exit reason in a few words, for messages and reports."""
    if reason is None:
        return "it ended normally"
    text = safe_text(reason, str)
    if isinstance(reason, ProcessExit | ProcError):
        return text
    return f"{type(reason).__name__}: {text}" if text else type(reason).__name__


class JobError(Exception):
    """Base of the exceptions of durable jobs.

    `step` names the journal entry ("send_mail#2") that raised it in the job, if one did.
    """

    step = ""


class JobNotFound(JobError, LookupError):
    """No job has that id (or none that this tenant may see)."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}")
        self.job_id = job_id


class AmbiguousId(JobError, LookupError):
    """Several jobs have an id that begins or ends with that text; `candidates` are some of them."""

    def __init__(self, text: str, candidates: Sequence[str]) -> None:
        super().__init__(f"{text!r} is ambiguous, use more characters: {', '.join(candidates)}")
        self.candidates = tuple(candidates)


class WorkerNotFound(JobError, LookupError):
    """No worker of the fleet has that id: it has stopped, or there never was one."""

    def __init__(self, owner: str) -> None:
        super().__init__(
            f"there is no worker {owner!r}: it has stopped, or never was; "
            "`perdure workers` lists those that are alive"
        )
        self.owner = owner


class WorkerSilent(JobError, TimeoutError):
    """A worker did not answer a command in time."""

    def __init__(self, owner: str, command: str, seconds: float) -> None:
        super().__init__(
            f"worker {owner} did not answer {command!r} within {seconds:g} seconds: it is dead or "
            "frozen, its event loop is blocked, or it cannot reach the store"
        )
        self.owner = owner


class CommandRefused(JobError):
    """A worker refused a command; the message says why."""


class KeyConflict(JobError):
    """The key was already used, for another job or with other arguments."""


class IllegalTransition(JobError):
    """The state of the job does not allow that."""


class JobFailed(JobError):
    """The job ended without a result; `state` says how, `failure` why, `__cause__` where."""

    def __init__(self, job_id: str, state: str, failure: str) -> None:
        super().__init__(f"job {job_id} is {state}: {failure}")
        self.job_id = job_id
        self.state = state
        self.failure = failure


class JobParked(JobError):
    """The job is in NEEDS_ATTENTION: it has not ended, but only a person can continue it."""

    def __init__(self, job_id: str, failure: str) -> None:
        super().__init__(
            f"job {job_id} is parked and waits for a person: {failure}. "
            "Look at it, then resume, retry, compensate or cancel it"
        )
        self.job_id = job_id
        self.failure = failure


class StepFailed(JobError):
    """A step failed for good: no retry is left, or its error is permanent.

    `error_type` and `error` say what it raised; `__cause__` is the exception, or a `RemoteError` in
    a replay.
    """

    def __init__(
        self, step: str, error_type: str, error: str, attempts: int = 1, *, outage: bool = False
    ) -> None:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"step {step} failed after {times}: {error_type}: {error}")
        self.outage = outage
        self.step = step
        self.error_type = error_type
        self.error = error
        self.attempts = attempts


class Permanent(JobError):
    """Raise this in a step if no retry can help."""


class BadResponse(Permanent):
    """The server accepted an HTTP call, but the response is too large or cannot be decoded."""


class Unavailable(JobError, ConnectionError):
    """Another system does not answer now, and may recover: raise it for such an outage.

    A step is tried again; a job that it ends is parked. `retry_after` is for how many seconds that
    system asks us to wait.
    """

    outage = True

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class OperationCancelled(JobError):
    """The job has ended an operation itself, since another one has ended first."""


class StepTimeout(JobError, TimeoutError):
    """A step, or a wait of a job, took longer than its timeout."""


class StepCrashed(JobError):
    """The OS process of a step ended before the step: killed, out of memory, a crash in C."""


class Refused(JobError):
    """Raise this in the call of an effect if it is certain that nothing happened."""


class EffectInDoubt(JobError):
    """Nobody knows whether an effect happened, and only a person can find out."""


class ApprovalRejected(JobError):
    """A person rejected the action; `reason` is theirs."""

    def __init__(self, title: str, person: str, reason: str = "") -> None:
        why = f": {reason}" if reason else ""
        super().__init__(f"{person} rejected {title!r}{why}")
        self.title = title
        self.person = person
        self.reason = reason


class ApprovalExpired(JobError):
    """Nobody answered in time."""


class AccessDenied(JobError):
    """Whoever asks may not do that; `code` is for programs, the text for people.

    The code is "forbidden", or "reauthenticate" if it needs a recent sign-in.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class DecisionRefused(JobError):
    """A vote on an approval does not count; `code` is for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class BudgetExceeded(JobError):
    """The amount is more than the job and its children were granted."""


class LeaseLost(JobError):
    """This worker no longer owns the job: none of its writes is accepted."""

    def __init__(self, job_id: str, epoch: int) -> None:
        super().__init__(
            f"the lease of job {job_id} (epoch {epoch}) is lost: another worker may own it"
        )
        self.job_id = job_id
        self.epoch = epoch


class JournalConflict(JobError):
    """A write would put an entry where the journal has another one; nothing is written."""


class Drift(JobError):
    """The code of a job no longer fits its journal."""


class NotInJob(JobError, RuntimeError):
    """A call of a step or job was awaited outside the code of a job; nothing was done."""


class UnrecordedIO(JobError):
    """The code of a job was about to do something outside of a step, and has not; see the guard.

    `act` is what it was about to do, `where` the line of your code.
    """

    def __init__(self, text: str, act: str = "", where: str = "") -> None:
        super().__init__(text)
        self.act = act
        self.where = where


class DefinitionError(JobError, ValueError):
    """The definition of a step, a job or an app is invalid."""


class UnknownName(DefinitionError, LookupError):
    """No step or job of that name is registered; the message suggests similar names."""


class ArgumentError(JobError, TypeError):
    """The arguments do not fit the step or job; `problems` names every reason."""

    def __init__(self, what: str, problems: list[str]) -> None:
        super().__init__(f"{what}: {'; '.join(problems)}")
        self.problems = problems


class QueryError(ArgumentError):
    """A text does not say which jobs are meant; `position` is where, `why` the reason."""

    def __init__(self, text: str, position: int, why: str) -> None:
        super().__init__(f"the query {text!r} cannot be read", [f"at {position + 1}: {why}"])
        self.text = text
        self.position = position
        self.why = why


class PlanError(JobError, ValueError):
    """A plan cannot run; `problems` names every reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(["the plan cannot run:", *(f"- {p}" for p in problems)]))
        self.problems = problems


class Unstorable(JobError, ValueError):
    """A value cannot be stored exactly; the message says which part, and what to do."""


class WrongType(Unstorable):
    """A value is not of its declared type."""


class PayloadTooLarge(Unstorable):
    """A value is larger than its named limit."""


class RequestRefused(JobError):
    """A request over HTTP is refused; `code` is for programs, `status` the status of the answer."""

    def __init__(
        self, status: int, code: str, text: str, *, errors: Sequence[str] = (), retry: float = 0
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.errors = tuple(errors)  # every reason, if there are several
        self.retry = retry  # seconds after which another try may succeed; 0: none is proposed


class StoreError(JobError):
    """The store failed."""


class StoreUnreachable(StoreError, ConnectionError):
    """The database does not answer."""


class StoreFull(StoreError):
    """The disk is full: nothing can be written until there is space."""


class StoreReadOnly(StoreError):
    """The database is read-only."""


class QueryTooSlow(StoreError):
    """A search took longer than it may, and was given up."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the search took longer than {seconds:g} s and was given up: ask for fewer jobs, "
            "by their age as in created:<1d, or by their parent or id"
        )


class EncryptionError(StoreError):
    """Payloads cannot be encrypted or decrypted: a key is missing or wrong, or one was changed.

    Attributes:
        missing: The ids of the keys that this program does not have.
    """

    def __init__(self, text: str, missing: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.missing = tuple(missing)


class SchemaError(StoreError):
    """The schema of the database is newer than this code, damaged, or not ours."""
