"""Every exception of durable jobs; import them from `perdure.base.errors`.

JobError(Exception)             durable jobs: something cannot be done, or has failed
 ├── JobNotFound                no job has that id
 ├── KeyConflict                the key of a submission stands for another one
 ├── IllegalTransition          the job is not in a state in which that can be done
 ├── JobFailed                  the job ended without a result; `state` says how
 ├── JobParked                  the job cannot go on before a person has looked at it
 ├── StepFailed                 a step failed for good: its retries are used up, or no use
 ├── Permanent                  your code: raised in a step, no retry can mend this
 │    └── BadResponse           … an HTTP call is done, but its answer cannot be read
 ├── StepTimeout                … in the given time; also a TimeoutError
 ├── StepCrashed                the OS process of a step ended before the step did
 ├── Refused                    your code: raised in the call of an effect, nothing happened
 ├── EffectInDoubt              nobody knows whether an effect happened: a person must say
 ├── ApprovalRejected           a person said no
 ├── ApprovalExpired            nobody answered in time, which is not a no
 ├── DecisionRefused            your answer to an approval does not count; `code` says why
 ├── BudgetExceeded             it would cost more than was granted
 ├── LeaseLost                  another worker may own the job: nothing more is written
 ├── JournalConflict            two entries would have one place in a journal: nothing is written
 ├── Drift                      what is stored does not fit the code any more
 ├── DefinitionError            your code: a step, job or app that cannot work
 │    └── UnknownName           … no step or job has that name; also a LookupError
 ├── ArgumentError              your call: arguments that do not fit; also a TypeError
 ├── PlanError                  a plan with mistakes, all of them told at once
 ├── Unstorable                 a value that would not come back as it is
 │    ├── WrongType             … since it is not of the type that was declared
 │    └── PayloadTooLarge       … within its named limit
 └── StoreError                 the store cannot do its work
      ├── StoreUnreachable      … the database does not answer; also a ConnectionError
      ├── StoreFull             … the disk is full
      ├── StoreReadOnly         … it cannot be written
      └── SchemaError           … its schema is newer than the code, or not ours
"""


class JobError(Exception):
    """Base of what durable jobs raise.

    `step` names the entry of the journal ("send_mail#2") that gave it to the job, if one did.
    """

    step = ""


class JobNotFound(JobError, LookupError):
    """No job has that id (or none that this tenant may see)."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}")
        self.job_id = job_id


class KeyConflict(JobError):
    """The key was used before, for another job or with other arguments."""


class IllegalTransition(JobError):
    """The job is not in a state in which that can be done."""


class JobFailed(JobError):
    """The job ended without a result; `state` says how, `failure` why."""

    def __init__(self, job_id: str, state: str, failure: str) -> None:
        super().__init__(f"job {job_id} is {state}: {failure}")
        self.job_id = job_id
        self.state = state
        self.failure = failure


class JobParked(JobError):
    """The job is in ATTENTION: it has not ended, but only a person can let it go on."""

    def __init__(self, job_id: str, failure: str) -> None:
        super().__init__(
            f"job {job_id} is parked, and waits for a person: {failure}. "
            "Look at it, then resume, retry, compensate or cancel it"
        )
        self.job_id = job_id
        self.failure = failure


class StepFailed(JobError):
    """A step failed for good: its retries are used up, or its error is permanent.

    `error_type` and `error` say what it raised;
    on the first run `__cause__` is the exception itself.
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
    """Raise it in a step whose error no retry can mend."""


class BadResponse(Permanent):
    """An HTTP call was taken by its receiver, but the answer is too large or cannot be decoded."""


class StepTimeout(JobError, TimeoutError):
    """A step, or a wait of a job, took longer than it may."""


class StepCrashed(JobError):
    """The OS process that a step ran in ended before it: killed, out of memory, a fault in C."""


class Refused(JobError):
    """Raise it in the call of an effect when it is certain that nothing happened."""


class EffectInDoubt(JobError):
    """It is not known whether an effect happened, and only a person can find out."""


class ApprovalRejected(JobError):
    """What was to be done was shown to a person, who said no; `reason` is theirs."""

    def __init__(self, title: str, person: str, reason: str = "") -> None:
        why = f": {reason}" if reason else ""
        super().__init__(f"{person} rejected {title!r}{why}")
        self.title = title
        self.person = person
        self.reason = reason


class ApprovalExpired(JobError):
    """Nobody answered in time."""


class DecisionRefused(JobError):
    """The answer to an approval does not count; `code` is for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class BudgetExceeded(JobError):
    """What was to be spent is more than the job, with its children, was granted."""


class LeaseLost(JobError):
    """This worker does not own the job any more: nothing that it writes is accepted."""

    def __init__(self, job_id: str, epoch: int) -> None:
        super().__init__(f"the lease of job {job_id} (epoch {epoch}) is lost: another may own it")
        self.job_id = job_id
        self.epoch = epoch


class JournalConflict(JobError):
    """A write would put an entry where the journal of the job has another one; nothing is kept."""


class Drift(JobError):
    """The code of a job no longer fits its journal."""


class DefinitionError(JobError, ValueError):
    """A step, a job or an app is defined in a way that cannot work."""


class UnknownName(DefinitionError, LookupError):
    """No step or job of that name is registered; the text names those that look like it."""


class ArgumentError(JobError, TypeError):
    """The arguments do not fit the step or job; `problems` names every reason."""

    def __init__(self, what: str, problems: list[str]) -> None:
        super().__init__(f"{what}: {'; '.join(problems)}")
        self.problems = problems


class PlanError(JobError, ValueError):
    """A plan cannot be run; `problems` names every reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(["the plan cannot be run:", *(f"- {p}" for p in problems)]))
        self.problems = problems


class Unstorable(JobError, ValueError):
    """A value cannot be stored exactly; the text says which part, and what to do."""


class WrongType(Unstorable):
    """A value is not of the type that was declared for it."""


class PayloadTooLarge(Unstorable):
    """A value is larger than its named limit."""


class StoreError(JobError):
    """The store cannot do its work."""


class StoreUnreachable(StoreError, ConnectionError):
    """The database does not answer."""


class StoreFull(StoreError):
    """The disk is full: nothing can be written until there is room."""


class StoreReadOnly(StoreError):
    """The database cannot be written."""


class SchemaError(StoreError):
    """The database's schema is newer than this code, damaged, or not ours."""
