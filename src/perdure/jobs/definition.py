"""Steps and jobs as they are defined: a function, its types, and how to run it.

`@app.step` and `@app.job` come here through `JobRegistry`. Everything that can be wrong with a
definition is found when the module is imported, never in the middle of a job.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from msgspec import Struct
from msgspec.structs import force_setattr

from perdure.base.codec import LIMITS, Codec, PayloadLimits
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import DefinitionError
from perdure.base.retry import Retry
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.parameters import Parameters, Partial, parameters_of, result_type
from perdure.jobs.risk import RiskLevel
from perdure.jobs.text_limits import check_defined

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Isolation: TypeAlias = Literal["inline", "thread", "process"]
OnCancel: TypeAlias = Literal["abandon", "compensate", "finish"]
OnOutage: TypeAlias = Literal["park", "fail"]
OnUndoFailure: TypeAlias = Literal["stop", "continue"]
ApprovalMode: TypeAlias = Literal["required", "by_risk", "never"]

LONGEST_NAME = 200

MAX_CLAIMS = 5  # a job that crashes its worker must not be claimed for ever

_ISOLATIONS = ("inline", "thread", "process")
_APPROVAL_MODES = ("required", "by_risk", "never")
_ON_CANCEL = ("abandon", "compensate", "finish")
_ON_OUTAGE = ("park", "fail")
_ON_UNDO_FAILURE = ("stop", "continue")


class StepOptions(TypedDict, total=False):
    """The options of a step; `Step` explains them."""

    name: str
    version: str
    retry: Retry | None
    timeout: Duration
    tags: Iterable[str]
    risk: RiskLevel | str
    irreversible: bool
    approval: ApprovalMode
    pivot: bool
    isolation: Isolation
    idempotency_key: Callable[..., str]
    cost: float
    estimated_duration: Duration
    description: str


class JobOptions(TypedDict, total=False):
    """The options of a job; `JobDefinition` explains them."""

    name: str
    version: str
    queue: str
    priority: int
    timeout: Duration
    on_cancel: OnCancel
    on_outage: OnOutage
    on_undo_failure: OnUndoFailure
    budget: BudgetLimits | None
    max_claims: int
    description: str


class CompensationOptions(TypedDict, total=False):
    """The options of a compensation; `Compensation` explains them."""

    retry: Retry | None
    timeout: Duration
    isolation: Isolation


class Compensation(Struct, frozen=True, kw_only=True):
    """A function that undoes a step: `fn(ctx, *arguments of the step, output)`.

    The output is None if the step failed or was interrupted, or that of its last `Partial`.
    `retry`, `timeout` and `isolation` mean the same as for a step.
    """

    fn: Callable[..., Any]
    is_async: bool
    retry: Retry | None = None
    timeout: float | None = None
    isolation: Isolation = "inline"

    def __call__(self, ctx: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Call the function with the arguments and the output of the step."""
        return self.fn(ctx, *args, output, **kwargs)


class Step(Struct, Generic[P, R], frozen=True, kw_only=True, eq=False, weakref=True):
    """A step: a unit of work whose result is stored, so that it does not run again.

    Calling a step calls its function; only `ctx.run` runs it as a step.

    Attributes:
        name: Its name in the journal: printable, without spaces and `#`.
        version: Part of the journal; raise it when the meaning of the result changes.
        fn: The function, async or sync, its context first.
        is_async: Whether the function must be awaited.
        parameters: Its parameters, without the context.
        result: The codec of its result.
        result_type: The declared type of its result.
        retry: When to retry; None: the kind of the error decides (see `policy`).
        timeout: Seconds that one attempt may take; None means no limit.
        tags: Labels by which its risk is judged.
        risk: The least risk, whatever the rules find.
        irreversible: What it does cannot be undone.
        approval: Whether a person must approve a call first: "required", "by_risk", or "never".
            The default is "required" for an irreversible step, else "by_risk".
        pivot: After it, neither it nor anything before it is undone.
        isolation: Where it runs: on the event loop, in a thread, or in a killable OS process.
        idempotency_key: Returns a key for the arguments; what succeeded under a key is not
            done again.
        cost: Estimated USD, by which its risk is judged.
        estimated_duration: Estimated seconds, by which its risk is judged.
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
    approval: ApprovalMode = "by_risk"
    pivot: bool = False
    isolation: Isolation = "inline"
    idempotency_key: Callable[..., str] | None = None
    cost: float | None = None
    estimated_duration: float | None = None
    undo: Compensation | None = None
    description: str = ""

    def __call__(self, ctx: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself; nothing is stored. Useful in tests of the function."""
        return self.fn(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    def pack(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: PayloadLimits = LIMITS
    ) -> bytes:
        """Return the arguments of a call as JSON; see `Parameters.pack`."""
        return self.parameters.pack(args, kwargs, limits)

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a stored call; see `Parameters.unpack`."""
        return self.parameters.unpack(data)

    def pack_result(self, value: Any, limits: PayloadLimits = LIMITS) -> bytes:
        """Return the result as JSON; see `Codec.encode`."""
        return self.result.encode(value, limits)

    def unpack_result(self, data: bytes) -> R:
        """Read a stored result; see `Codec.decode`."""
        return self.result.decode(data)

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return the idempotency key for these arguments; None if the step has none."""
        return None if self.idempotency_key is None else self.idempotency_key(*args, **kwargs)

    @overload
    def compensate(self, fn: F, /) -> F: ...
    @overload
    def compensate(self, /, **options: Unpack[CompensationOptions]) -> Callable[[F], F]: ...
    def compensate(
        self, fn: Callable[..., Any] | None = None, /, **options: Unpack[CompensationOptions]
    ) -> Any:
        """Decorate the function that undoes this step.

        It takes the context, the arguments of the step, and the output of the step, which is None
        if the step failed or was interrupted.

        Raises:
            DefinitionError: There already is one, or it does not take these parameters.
        """

        def add(undo: F) -> F:
            what = f"step {self.name!r}"
            if self.undo is not None:
                raise DefinitionError(f"{what} already has a compensation")
            made = compensation_of(undo, self.parameters, what, **options)
            force_setattr(self, "undo", made)
            return undo

        return add if fn is None else add(fn)


class JobDefinition(Struct, Generic[P, R], frozen=True, kw_only=True, eq=False, weakref=True):
    """A job: ordinary code that is replayed from its journal after a crash.

    Attributes:
        name: Its name in the store.
        version: Stored with each job; raise it when running jobs cannot continue with new code.
        fn: The async function, its context first.
        parameters: Its parameters, without the context.
        result: The codec of its result.
        result_type: The declared type of its result.
        queue: The queue in which it waits for a worker.
        priority: Higher runs earlier.
        timeout: Seconds from submission within which it must end; None means no limit.
        on_cancel: What a cancel does: "abandon" leaves what was done, "compensate" undoes it, and
            "finish" lets the job run to its end.
        on_outage: What happens after an outage of another system: "park" leaves the job to a
            person, who resumes it where it stopped; "fail" fails the job, which undoes it.
        on_undo_failure: What follows an undo that fails: "stop" waits for a person, "continue"
            undoes the rest.
        budget: The most that it and all its children may spend; None means no limit.
        max_claims: Consecutive claims without progress after which the job is parked.
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
        """Call the function itself; nothing is stored. Useful in tests of the function."""
        return self.fn(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<JobDefinition {self.name}>"

    def pack(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: PayloadLimits = LIMITS
    ) -> bytes:
        """Return the arguments of a submission as JSON; see `Parameters.pack`."""
        return self.parameters.pack(args, kwargs, limits)

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a stored job; see `Parameters.unpack`."""
        return self.parameters.unpack(data)

    def pack_result(self, value: Any, limits: PayloadLimits = LIMITS) -> bytes:
        """Return the result as JSON; see `Codec.encode`."""
        return self.result.encode(value, limits)

    def unpack_result(self, data: bytes) -> R:
        """Read a stored result; see `Codec.decode`."""
        return self.result.decode(data)


# Making definitions from functions.


def step_of(fn: Callable[..., Any], **options: Unpack[StepOptions]) -> Step[..., Any]:
    """Make a step from a function whose first parameter is the context.

    Raises:
        DefinitionError: The definition is invalid; the message says why.
    """
    name = check_name(options.get("name") or getattr(fn, "__name__", None), "step")
    what = f"step {name!r}"
    check_function(fn, what)
    return make_step(fn, parameters_of(fn, what), result_type(fn, what), **options)


def make_step(
    fn: Callable[..., Any], parameters: Parameters, declared: Any, **options: Unpack[StepOptions]
) -> Step[..., Any]:
    """Make a step whose types are already known."""
    name = options.get("name") or getattr(fn, "__name__", "")
    what = f"step {name!r}"
    check_defined(what, version=options.get("version"))
    risk = RiskLevel.of(options.get("risk", RiskLevel.LOW))
    irreversible = options.get("irreversible", False)
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
        risk=risk,
        irreversible=irreversible,
        approval=_approval(options.get("approval"), risk, what, irreversible=irreversible),
        pivot=options.get("pivot", False),
        isolation=check_isolation(options.get("isolation"), fn, what),
        idempotency_key=options.get("idempotency_key"),
        cost=options.get("cost"),
        estimated_duration=check_seconds(
            options.get("estimated_duration"), f"estimated_duration of {what}"
        ),
        description=description_of(options.get("description"), fn),
    )


def job_of(fn: Callable[..., Any], **options: Unpack[JobOptions]) -> JobDefinition[..., Any]:
    """Make a job from an async function whose first parameter is the context.

    Raises:
        DefinitionError: The definition is invalid; the message says why.
    """
    name = check_name(options.get("name") or getattr(fn, "__name__", None), "job")
    what = f"job {name!r}"
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


def _approval(
    wanted: ApprovalMode | None, risk: RiskLevel, what: str, *, irreversible: bool
) -> ApprovalMode:
    """Return the option `approval`; the default is "required" for an irreversible step."""
    if wanted is None:
        return "required" if irreversible else "by_risk"
    check_choice(wanted, _APPROVAL_MODES, f"approval of {what}")
    if wanted == "never" and risk >= RiskLevel.HIGH:
        raise DefinitionError(
            f"{what} has risk={str(risk).lower()!r} and approval='never': a step of high risk "
            "cannot opt out of approval; lower its risk or leave `approval` out"
        )
    return wanted


def _tags(tags: object, what: str) -> frozenset[str]:
    # A single string is iterable, too: each of its letters would become a tag.
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise DefinitionError(f"tags of {what} must be a set of strings, not {tags!r}")
    made = frozenset(str(tag) for tag in cast("Iterable[object]", tags))
    for tag in made:
        check_defined(what, tag=tag)
    return made


def compensation_of(
    fn: Callable[..., Any],
    parameters: Parameters,
    what: str,
    **options: Unpack[CompensationOptions],
) -> Compensation:
    """Make a compensation of a step with these parameters.

    Raises:
        DefinitionError: The function does not take the step's parameters and the output.
    """
    whose = f"the compensation of {what}"
    check_function(fn, whose)
    _check_signature(fn, parameters, whose)
    return Compensation(
        fn=fn,
        is_async=is_async(fn),
        retry=check_retry(options.get("retry"), whose),
        timeout=check_seconds(options.get("timeout"), f"timeout of {whose}"),
        isolation=check_isolation(options.get("isolation"), fn, whose),
    )


def _check_signature(fn: Callable[..., Any], parameters: Parameters, whose: str) -> None:
    values = [None for each in parameters.all if each.by_position]
    named = {each.name: None for each in parameters.all if not each.by_position}
    try:
        inspect.signature(fn).bind(None, *values, None, **named)
    except TypeError as error:
        names = [each.name for each in parameters.all]
        wanted = ", ".join(["ctx", *names, "output"])
        raise DefinitionError(f"{whose} must take ({wanted}): {error}") from None


# Steps written as classes: `name`, `execute`, `compensate`, `idempotency_key`. Returning means
# success, raising means failure, and returning `Partial(output, checkpoint)` means not done yet.
# Every option of a step may be an attribute of the class.

I_contra = TypeVar("I_contra", contravariant=True)
O_co = TypeVar("O_co", covariant=True)

_STEP_OPTIONS = tuple(key for key in StepOptions.__annotations__ if key != "name")


class StepClass(Protocol[I_contra, O_co]):
    """What a class must have to be a step."""

    name: Any

    async def execute(self, input: I_contra, ctx: Any, /) -> O_co | Partial[O_co]:
        """Do the work."""
        ...


def is_step_class(thing: object) -> bool:
    """Whether this is a class with `execute`."""
    return inspect.isclass(thing) and callable(getattr(thing, "execute", None))


def step_of_object(thing: Any, **options: Unpack[StepOptions]) -> Step[..., Any]:
    """Make a step from an object with a name and `execute`.

    Raises:
        DefinitionError: It has none, or the definition is invalid.
    """
    execute = getattr(thing, "execute", None)
    if inspect.isclass(thing) or not callable(execute):
        raise DefinitionError(
            f"{thing!r} is not a step: pass an object with `name` and `execute(input, ctx)`, "
            "or decorate a function with `step`"
        )
    given = cast("StepOptions", {**_attributes(thing), **options})
    what = f"step {check_name(given.get('name'), 'step')!r}"
    check_function(execute, what)
    given.setdefault("description", description_of(None, type(thing)))
    parameters = parameters_of(execute, what, context=-1)
    declared = result_type(execute, what)
    made = make_step(_context_last(execute), parameters, declared, **given)
    _add_compensation(made, thing)
    return made


def _attributes(thing: Any) -> dict[str, Any]:
    name = getattr(thing, "name", None)
    found = {key: getattr(thing, key) for key in _STEP_OPTIONS if hasattr(thing, key)}
    return {**found, "name": name() if callable(name) else name}


def _context_last(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Turn `fn(…, ctx)` into `fn(ctx, …)`."""

    async def awaited(ctx: Any, *args: Any) -> Any:
        return await fn(*args, ctx)

    def called(ctx: Any, *args: Any) -> Any:
        return fn(*args, ctx)

    turned = awaited if is_async(fn) else called
    turned.__name__, turned.__qualname__ = fn.__name__, fn.__qualname__
    turned.__module__ = fn.__module__
    return turned


def _add_compensation(step: Step[..., Any], thing: Any) -> None:
    undo = getattr(thing, "compensate", None)
    if undo is not None:
        step.compensate(_context_last(undo))


# Checking options.


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a call must be awaited; for an object, its `__call__` decides."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004  asks how it is written, not whether it can be called
    )


def check_name(name: object, what: str) -> str:
    """Return a valid name; raise DefinitionError for one that journals could not hold."""
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"the name of a {what} must be a string, not {name!r}")
    if len(name) > LONGEST_NAME or not name.isprintable() or any(c in "# " for c in name):
        raise DefinitionError(
            f"{name[:LONGEST_NAME]!r} cannot be the name of a {what}: "
            f"at most {LONGEST_NAME} printable characters, no spaces, no `#`"
        )
    return name


def check_function(fn: Callable[..., Any], what: str) -> None:
    """Raise DefinitionError unless this is a function that returns its result."""
    if not callable(fn):
        raise DefinitionError(f"{what} must be a function, not {fn!r}")
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise DefinitionError(f"{what} must return its result, not yield it")


def check_isolation(wanted: object, fn: Callable[..., Any], what: str) -> Isolation:
    """Return where a function runs; by default on the event loop if it is async, else a thread."""
    if wanted is None:
        return "inline" if is_async(fn) else "thread"
    if wanted not in _ISOLATIONS:
        raise DefinitionError(
            f"isolation of {what} must be one of {', '.join(_ISOLATIONS)}, not {wanted!r}"
        )
    if wanted == "process" and "<" in getattr(fn, "__qualname__", "<"):  # <locals>, <lambda>
        raise DefinitionError(
            f"{what} cannot run in another OS process: define it at the top of a module, so that "
            "the other process can import it"
        )
    return wanted


def check_choice(wanted: object, choices: tuple[str, ...], what: str) -> Any:
    """Return one of the choices; raise DefinitionError for anything else."""
    if wanted not in choices:
        raise DefinitionError(f"{what} must be one of {', '.join(choices)}, not {wanted!r}")
    return wanted


def check_seconds(duration: Duration, what: str) -> float | None:
    """Return a duration in seconds; None means no limit."""
    try:
        return job_seconds(duration)
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{what}: {error}") from None


def check_retry(retry: object, what: str) -> Retry | None:
    """Return a retry policy; None leaves the decision to the kind of the error."""
    if retry is None or isinstance(retry, Retry):
        return retry
    raise DefinitionError(
        f"retry of {what} must be a Retry, such as Retry(attempts=5), not {retry!r}"
    )


def description_of(given: str | None, thing: Any) -> str:
    """Return the description, or the first line of the docstring."""
    lines = (inspect.getdoc(thing) or "").strip().splitlines() if given is None else [given]
    return lines[0] if lines else ""
