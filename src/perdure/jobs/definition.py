"""Steps and jobs as they are defined: a function, its types, and how it is to be run."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from msgspec import Struct
from msgspec.structs import force_setattr

from perdure.base.backoff import Retry
from perdure.base.codec import LIMITS, Codec, Limits
from perdure.base.errors import DefinitionError
from perdure.jobs.budget import Limits as BudgetLimits
from perdure.jobs.compensation import Compensation, compensation_of
from perdure.jobs.length import check_defined
from perdure.jobs.option import (
    CompensationOptions,
    Isolation,
    JobOptions,
    OnCancel,
    OnOutage,
    OnUndoFailure,
    StepOptions,
    check_choice,
    check_function,
    check_isolation,
    check_name,
    check_retry,
    check_seconds,
    description_of,
    is_async,
)
from perdure.jobs.parameter import Parameters, parameters_of, result_type
from perdure.jobs.risk import RiskLevel

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

MAX_CLAIMS = 5  # a job that crashes its worker must not go round for ever

_ON_CANCEL = ("abandon", "compensate", "finish")
_ON_OUTAGE = ("park", "fail")
_ON_UNDO_FAILURE = ("stop", "continue")


class Step(Struct, Generic[P, R], frozen=True, kw_only=True, eq=False, weakref=True):
    """A step: a unit of work whose result is stored, so that it need not run again.

    To call a step is to call its function: only `ctx.run` runs it as a step.

    Attributes:
        name: Its name in the journal; of letters, digits and whatever but spaces and `#`.
        version: Written into the journal; raise it when the meaning of the result changes.
        fn: The function, async or sync, its context first.
        is_async: Whether the function must be awaited.
        parameters: Its parameters but the context.
        retry: When to try again; None: by the kind of the error (see `policy`).
        timeout: Seconds that one attempt may take; None = no limit.
        tags: Words about the step, by which its risk is judged.
        risk: The least risk, whatever the rules find.
        irreversible: What it does cannot be undone, so it needs an approval first …
        ungated: … unless the code says here that it needs none.
        pivot: After it there is no way back: neither it nor what was before is undone.
        isolation: Where it runs: on the loop, in a thread, or in a killable OS process.
        idempotency_key: Gives a key by the arguments; what succeeded under it is not done again.
        queue: The queue of a plan or job that consists of this step alone; None = the default.
        cost: Estimated USD, for the judgement of risk.
        takes: Estimated seconds, likewise.
        undo: The compensation, if there is one.
        description: What it does, for people.
    """

    name: str
    fn: Callable[..., Any]
    is_async: bool
    parameters: Parameters
    result: Codec[Any]
    result_type: Any = Any
    version: str = "1"
    retry: Retry | None = None
    timeout: float | None = None
    tags: frozenset[str] = frozenset()
    risk: RiskLevel = RiskLevel.LOW
    irreversible: bool = False
    ungated: bool = False
    pivot: bool = False
    isolation: Isolation = "inline"
    idempotency_key: Callable[..., str] | None = None
    queue: str | None = None
    cost: float | None = None
    takes: float | None = None
    undo: Compensation | None = None
    description: str = ""

    def __call__(self, ctx: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself: nothing is stored. For tests of the function."""
        return self.fn(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    def pack(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: Limits = LIMITS
    ) -> bytes:
        """Give the arguments of a call as JSON; see `Parameters.pack`."""
        return self.parameters.pack(args, kwargs, limits)

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the arguments of a stored call; see `Parameters.unpack`."""
        return self.parameters.unpack(data)

    def pack_result(self, value: Any, limits: Limits = LIMITS) -> bytes:
        """Give the result as JSON; see `Codec.encode`."""
        return self.result.encode(value, limits)

    def unpack_result(self, data: bytes) -> R:
        """Read a stored result; see `Codec.decode`."""
        return self.result.decode(data)

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Give the step's own key for these arguments; None if it does not make keys."""
        return None if self.idempotency_key is None else self.idempotency_key(*args, **kwargs)

    @overload
    def compensate(self, fn: F, /) -> F: ...
    @overload
    def compensate(self, /, **options: Unpack[CompensationOptions]) -> Callable[[F], F]: ...
    def compensate(
        self, fn: Callable[..., Any] | None = None, /, **options: Unpack[CompensationOptions]
    ) -> Any:
        """Decorate the function that undoes this step.

        It takes the context, the arguments of the step, and the step's output,
        which is None if the step failed or was interrupted.

        Raises:
            DefinitionError: There is one already, or it does not take these parameters.
        """

        def add(undo: F) -> F:
            what = f"step {self.name}"
            if self.undo is not None:
                raise DefinitionError(f"{what} has a compensation already")
            made = compensation_of(undo, self.parameters, what, **options)
            force_setattr(self, "undo", made)
            return undo

        return add if fn is None else add(fn)


class JobDefinition(Struct, Generic[P, R], frozen=True, kw_only=True, eq=False, weakref=True):
    """A job: ordinary code that is run again from its journal after a crash.

    Attributes:
        name: Its name in the store.
        version: Written with each job; raise it when running jobs cannot go on with new code.
        fn: The async function, its context first.
        parameters: Its parameters but the context.
        queue: Where it waits for a worker.
        priority: Higher is earlier.
        timeout: Seconds from the submission within which it must have ended; None = no limit.
        on_cancel: What a cancel does with what was done: leaves it, undoes it,
            or lets the job come to its end.
        on_outage: Whether a job that failed since another system is down is parked for a person,
            who resumes it where it stood, or fails, and is undone.
        on_undo_failure: Whether the undo stops for a person where something cannot be undone,
            or continues with the rest.
        budget: The most that it and all its children may spend; None = no limit.
        max_claims: Claims in a row without progress after which a job is parked.
        description: What it does, for people.
    """

    name: str
    fn: Callable[..., Any]
    parameters: Parameters
    result: Codec[Any]
    result_type: Any = Any
    version: str = "1"
    queue: str = "default"
    priority: int = 0
    timeout: float | None = None
    on_cancel: OnCancel = "abandon"
    on_outage: OnOutage = "park"
    on_undo_failure: OnUndoFailure = "stop"
    budget: BudgetLimits | None = None
    max_claims: int = MAX_CLAIMS
    description: str = ""

    def __call__(self, ctx: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself: nothing is stored. For tests of the function."""
        return self.fn(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<JobDefinition {self.name}>"

    def pack(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: Limits = LIMITS
    ) -> bytes:
        """Give the arguments of a submission as JSON; see `Parameters.pack`."""
        return self.parameters.pack(args, kwargs, limits)

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the arguments of a stored job; see `Parameters.unpack`."""
        return self.parameters.unpack(data)

    def pack_result(self, value: Any, limits: Limits = LIMITS) -> bytes:
        """Give the result as JSON; see `Codec.encode`."""
        return self.result.encode(value, limits)

    def unpack_result(self, data: bytes) -> R:
        """Read a stored result; see `Codec.decode`."""
        return self.result.decode(data)


def step_of(fn: Callable[..., Any], **options: Unpack[StepOptions]) -> Step[..., Any]:
    """Make a step of a function whose first parameter is the context.

    Raises:
        DefinitionError: It cannot work; the text says why.
    """
    what = "step " + check_name(options.get("name") or getattr(fn, "__name__", None), "step")
    check_function(fn, what)
    return make_step(fn, parameters_of(fn, what), result_type(fn, what), **options)


def make_step(
    fn: Callable[..., Any], parameters: Parameters, declared: Any, **options: Unpack[StepOptions]
) -> Step[..., Any]:
    """Make a step whose types are known already."""
    name = options.get("name") or getattr(fn, "__name__", "")
    what = f"step {name}"
    if options.get("ungated") and not options.get("irreversible"):
        raise DefinitionError(f"{what} is `ungated`: only an `irreversible` step has a gate")
    check_defined(what, version=options.get("version"), queue=options.get("queue"))
    return Step(
        name=name,
        fn=fn,
        is_async=is_async(fn),
        parameters=parameters,
        result=Codec(declared, f"the result of {what}"),
        result_type=declared,
        version=options.get("version", "1"),
        retry=check_retry(options.get("retry"), what),
        timeout=check_seconds(options.get("timeout"), f"timeout of {what}"),
        tags=_tags(options.get("tags", ()), what),
        risk=RiskLevel.of(options.get("risk", RiskLevel.LOW)),
        irreversible=options.get("irreversible", False),
        ungated=options.get("ungated", False),
        pivot=options.get("pivot", False),
        isolation=check_isolation(options.get("isolation"), fn, what),
        idempotency_key=options.get("idempotency_key"),
        queue=options.get("queue"),
        cost=options.get("cost"),
        takes=check_seconds(options.get("takes"), f"takes of {what}"),
        description=description_of(options.get("description"), fn),
    )


def job_of(fn: Callable[..., Any], **options: Unpack[JobOptions]) -> JobDefinition[..., Any]:
    """Make a job of an async function whose first parameter is the context.

    Raises:
        DefinitionError: It cannot work; the text says why.
    """
    name = check_name(options.get("name") or getattr(fn, "__name__", None), "job")
    what = f"job {name}"
    check_function(fn, what)
    if not is_async(fn):
        raise DefinitionError(f"{what} must be `async def`: it awaits its steps")
    check_defined(what, version=options.get("version"), queue=options.get("queue"))
    declared = result_type(fn, what)
    return JobDefinition(
        name=name,
        fn=fn,
        parameters=parameters_of(fn, what),
        result=Codec(declared, f"the result of {what}"),
        result_type=declared,
        version=options.get("version", "1"),
        queue=options.get("queue", "default"),
        priority=options.get("priority", 0),
        timeout=check_seconds(options.get("timeout"), f"timeout of {what}"),
        on_cancel=check_choice(
            options.get("on_cancel", "abandon"), _ON_CANCEL, f"on_cancel of {what}"
        ),
        on_outage=check_choice(
            options.get("on_outage", "park"), _ON_OUTAGE, f"on_outage of {what}"
        ),
        on_undo_failure=check_choice(
            options.get("on_undo_failure", "stop"),
            _ON_UNDO_FAILURE,
            f"on_undo_failure of {what}",
        ),
        budget=options.get("budget"),
        max_claims=options.get("max_claims", MAX_CLAIMS),
        description=description_of(options.get("description"), fn),
    )


def _tags(tags: object, what: str) -> frozenset[str]:
    # The letters of a single text would all become tags.
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise DefinitionError(f"tags of {what} must be a set of texts, not {tags!r}")
    made = frozenset(str(tag) for tag in cast("Iterable[object]", tags))
    for tag in made:
        check_defined(what, tag=tag)
    return made
