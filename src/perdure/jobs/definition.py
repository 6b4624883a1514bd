"""Steps and jobs as they are defined, and the calls that they are made into.

`@app.step` and `@app.job` come here through `JobRegistry`. Everything that can be wrong with a
definition is found when the module is imported, never in the middle of a job.

Calling a definition runs nothing: it returns a `Call`, which is data. Awaited in the code of a job,
a call becomes a durable operation of that job. Anywhere else it raises `NotInJob`, so that a step
can never run without being recorded because somebody forgot where they were. The function itself is
`definition.fn`.
"""

import difflib
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextvars import ContextVar
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from perdure.base.checked import misfit
from perdure.base.codec import LIMITS, Codec, PayloadLimits
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import DefinitionError, NotInJob
from perdure.base.retry import Retry
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.failure import Raises
from perdure.jobs.parameters import (
    Context,
    InputParameter,
    Parameters,
    Partial,
    context_of,
    parameters_of,
    result_type,
)
from perdure.jobs.risk import RiskLevel
from perdure.jobs.text_limits import check_defined

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

Isolation: TypeAlias = Literal["inline", "thread", "process"]
OnCancel: TypeAlias = Literal["abandon", "compensate", "finish"]
OnFailure: TypeAlias = Literal["undo", "park", "ask"]
OnOutage: TypeAlias = Literal["park", "fail"]
OnUndoFailure: TypeAlias = Literal["stop", "continue"]
ApprovalMode: TypeAlias = Literal["required", "by_risk", "never"]
GuardMode: TypeAlias = Literal["refuse", "warn", "off"]

_log = logging.getLogger("perdure.worker")

LONGEST_NAME = 200

MAX_CLAIMS = 5  # a job that crashes its worker must not be claimed for ever

_FLAGS_AND_NUMBERS = (bool, int, float, int | None)
_ISOLATIONS = ("inline", "thread", "process")
_APPROVAL_MODES = ("required", "by_risk", "never")
_ON_CANCEL = ("abandon", "compensate", "finish")
_ON_FAILURE = ("undo", "park", "ask")
_ON_OUTAGE = ("park", "fail")
_ON_UNDO_FAILURE = ("stop", "continue")
_GUARD_MODES = ("refuse", "warn", "off")


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
    raises: Iterable[type[Exception]] | type[Exception]
    on_failure: OnFailure
    description: str


class JobOptions(TypedDict, total=False):
    """The options of a job; `JobDefinition` explains them."""

    name: str
    version: str
    accepts: Iterable[str]
    queue: str
    priority: int
    timeout: Duration
    on_cancel: OnCancel
    on_failure: OnFailure
    on_outage: OnOutage
    on_undo_failure: OnUndoFailure
    guard: GuardMode
    budget: BudgetLimits | None
    max_claims: int
    raises: Iterable[type[Exception]] | type[Exception]
    description: str


class ClosureOptions(TypedDict, total=False):
    """The options of `JobContext.call`; `Step` explains them."""

    retry: Retry | None
    timeout: Duration
    tags: Iterable[str]
    risk: RiskLevel | str
    irreversible: bool
    approval: ApprovalMode
    cost: float
    estimated_duration: Duration
    raises: Iterable[type[Exception]] | type[Exception]
    on_failure: OnFailure
    description: str


class CompensationOptions(TypedDict, total=False):
    """The options of a compensation; `Compensation` explains them."""

    retry: Retry | None
    timeout: Duration
    isolation: Isolation


# Calls


class JobScope(Protocol):
    """The job in whose code a call is awaited."""

    def start(self, call: "Call[R]", /) -> Awaitable[R]:
        """Begin a durable operation for a call; return what to await."""
        ...

    async def gather(self, *operations: Any, return_exceptions: Literal[True]) -> tuple[Any, ...]:
        """Return the results of operations in this order, and exceptions in place of others."""
        ...


# Where the running code is: in the code of a job, in a step (its identity), or in neither.
scope: ContextVar[JobScope | str | None] = ContextVar("perdure.scope", default=None)


class CallOptions(Struct, frozen=True, kw_only=True):
    """What `Call.options` changes; None leaves the option of the definition."""

    id: str | None = None
    timeout: float | None = None
    retry: Retry | None = None
    queue: str | None = None
    priority: int | None = None
    tool: str = ""  # the name by which a model has called it
    compared: bool = True  # whether the arguments must be those in the journal


NO_OPTIONS = CallOptions()


class Call(Generic[R_co]):
    """A call of a step or job: a definition and its arguments, until it is awaited in a job.

    Attributes:
        definition: The step or job.
        args: The positional arguments.
        kwargs: The arguments by name.
        given: The options of this one call.
    """

    __slots__ = ("_used", "args", "definition", "given", "kwargs")

    def __init__(
        self,
        definition: "Step[..., R_co] | JobDefinition[..., R_co]",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: CallOptions = NO_OPTIONS,
    ) -> None:
        self.definition: Step[..., R_co] | JobDefinition[..., R_co] = definition
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self.given: CallOptions = given
        self._used = False

    def options(
        self,
        *,
        id: str | None = None,
        timeout: Duration = None,
        retry: Retry | None = None,
        queue: str | None = None,
        priority: int | None = None,
    ) -> Self:
        """Return the same call with other options; what is None stays as the definition has it.

        Args:
            id: Identifies the call in its job, instead of its ordinal: `load#page 3`.
            timeout: How long one attempt of a step, or a child job as a whole, may take.
            retry: When a step is retried.
            queue: The queue of a child job.
            priority: The priority of a child job.

        Raises:
            DefinitionError: An option is invalid, or does not apply to this kind of call.
        """
        what = f"call of {_label(self.definition)}"
        is_step = isinstance(self.definition, Step)
        foreign = {"queue": queue, "priority": priority} if is_step else {"retry": retry}
        for name, value in foreign.items():
            if value is not None:
                kind = "child job" if is_step else "step"
                raise DefinitionError(f"`{name}` of a {what}: only a {kind} has this option")
        check_defined(what, id=id, queue=queue)
        self._used = True
        given = CallOptions(
            id=id,
            timeout=check_seconds(timeout, f"timeout of a {what}"),
            retry=check_retry(retry, what),
            queue=queue,
            priority=priority,
        )
        return type(self)(self.definition, self.args, self.kwargs, given)

    def use(self) -> Self:
        """Return this call, and record that something is done with it."""
        self._used = True
        return self

    def __await__(self) -> Generator[Any, None, R_co]:
        self._used = True
        here = scope.get()
        if here is None or isinstance(here, str):
            raise NotInJob(self._not_in_job(here))
        return here.start(self).__await__()

    def _not_in_job(self, here: str | None) -> str:
        name, is_step = self.definition.name, isinstance(self.definition, Step)
        if here is not None:
            other = f"or call the function itself, `{name}.fn(…)`, as part of this step"
            return (
                f"{self!r} was awaited inside the step {here}, where nothing would record it: "
                f"await it in the code of the job, {other if is_step else 'as a child job'}"
            )
        if is_step:
            return (
                f"{self!r} was awaited outside of a job: call it in the code of a job; "
                f"in a test, call the function itself: `{name}.fn(…)`"
            )
        return (
            f"{self!r} was awaited outside of a job: write `await app.run({name}(…))` to run it "
            f"here, or `await app.submit({name}(…))` to hand it to a worker"
        )

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        text = ", ".join(given)
        shown = text if len(text) <= _LONGEST_REPR else text[:_LONGEST_REPR] + "…"
        return f"{self.definition.name}({shown})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
            return NotImplemented
        they = cast("Call[Any]", other)
        mine = (self.definition, self.args, self.kwargs, self.given)
        return mine == (they.definition, they.args, they.kwargs, they.given)

    # What asyncio does with an awaitable of its own: `gather` and `wait` hash it, so that two equal
    # calls would become one, and a task is only made of what has the methods of a coroutine.

    def __hash__(self) -> int:
        raise TypeError(self._not_for_asyncio())

    def send(self, value: Any, /) -> NoReturn:
        """Refuse to be run as an asyncio task, and say what to write.

        Raises:
            TypeError, NotInJob: Always.
        """
        del value
        self._used = True
        here = scope.get()
        if here is None or isinstance(here, str):
            raise NotInJob(self._not_in_job(here))
        raise TypeError(self._not_for_asyncio())

    def throw(self, error: BaseException, /, *_: Any) -> NoReturn:
        """Raise the error, as a coroutine does that has not begun."""
        self._used = True
        raise error

    def close(self) -> None:
        """Do nothing, as a coroutine that has not begun."""
        self._used = True

    def _not_for_asyncio(self) -> str:
        self._used = True
        return (
            f"asyncio cannot run {self!r}, and no set or dict can hold it. To run calls at the "
            f"same time, write `await ctx.gather({self!r}, …)`; to begin one now and await it "
            f"later, `ctx.start({self!r})`"
        )

    def __del__(self) -> None:
        # Like Python's own warning about coroutines. Outside of a job a call may well be only data.
        if not self._used and (here := scope.get()) is not None:
            where = f"step {here}" if isinstance(here, str) else repr(here)
            _log.warning("%r was never awaited, so nothing of it was done (%s)", self, where)


class StepCall(Call[R_co]):
    """A call of a step: awaited in the code of a job, or put into a plan."""

    __slots__ = ()


class JobCall(Call[R_co]):
    """A call of a job: submitted, or awaited in the code of another job as its child."""

    __slots__ = ()


_LONGEST_REPR = 100


def _label(definition: "Step[..., Any] | JobDefinition[..., Any]") -> str:
    return f"{'step' if isinstance(definition, Step) else 'job'} {definition.name!r}"


# Definitions


class Compensation(Struct, frozen=True, kw_only=True):
    """A function that undoes a step: `fn([ctx,] *arguments of the step, output)`.

    The output is None if the step failed or was interrupted, or that of its last `Partial`.
    `retry`, `timeout` and `isolation` mean the same as for a step.
    """

    fn: Callable[..., Any]
    is_async: bool
    takes_context: bool = True
    retry: Retry | None = None
    timeout: float | None = None
    isolation: Isolation = "inline"

    def invoke(self, ctx: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Call the function with the arguments and the output of the step."""
        first = (ctx,) if self.takes_context else ()
        return self.fn(*first, *args, output, **kwargs)


class Step(Struct, Generic[P, R], frozen=True, kw_only=True, eq=False, weakref=True):
    """A step: a unit of work whose result is stored, so that it does not run again.

    Calling a step returns a `Call`, which a job awaits.

    Attributes:
        name: Its name in the journal: printable, without spaces and `#`.
        version: Raise it when the result means something else: results are reused, and approvals
            hold, for one version only.
        fn: The function, async or sync, as it was written.
        is_async: Whether the function must be awaited.
        takes_context: Whether the function takes its context first.
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
        raises: Exceptions that are outcomes of the step: they are not retried, and the job gets
            them as their own type.
        on_failure: What happens to the job if it fails because this step has; None: as the job
            says.
        undo: The compensation, if there is one.
        description: What it does, for people.
        tool: For one call: the name by which a model has called it.
    """

    name: str
    fn: Callable[..., Any]
    is_async: bool
    parameters: Parameters
    result: Codec[Any]
    takes_context: bool = True
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
    raises: Raises = ()
    on_failure: OnFailure | None = None
    undo: Compensation | None = None
    description: str = ""
    tool: str = ""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> StepCall[R]:
        """Return a call of this step, to be awaited in the code of a job."""
        return StepCall(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    @property
    def is_tool(self) -> bool:
        """Whether a model has called it."""
        return bool(self.tool) or self.name.startswith(TOOL)

    def invoke(self, ctx: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function itself, with its context if it takes one."""
        return self.fn(ctx, *args, **kwargs) if self.takes_context else self.fn(*args, **kwargs)

    def with_options(self, given: CallOptions) -> "Step[P, R]":
        """Return the step as one call wants it."""
        return replace(
            self,
            timeout=self.timeout if given.timeout is None else given.timeout,
            retry=self.retry if given.retry is None else given.retry,
            tool=given.tool,
        )

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

        It takes a context if it wants one, the arguments of the step, and the output of the step,
        which is None if the step failed or was interrupted.

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
        version: Stored with each job, which keeps it until it takes the new way of a change: only
            workers that know this version run it. Raise it when running jobs cannot continue with
            new code, and at each `JobContext.patched`.
        accepts: Older versions whose jobs this code can continue: see `JobContext.patched`.
        fn: The async function, as it was written.
        takes_context: Whether the function takes its context first.
        parameters: Its parameters, without the context.
        result: The codec of its result.
        result_type: The declared type of its result.
        queue: The queue in which it waits for a worker.
        priority: Higher runs earlier.
        timeout: Seconds from submission within which it must end; None means no limit.
        on_cancel: What a cancel does: "abandon" leaves what was done, "compensate" undoes it, and
            "finish" lets the job run to its end.
        on_failure: What happens when it fails: "undo" undoes what it did, "park" keeps all of it
            and leaves the job to a person, "ask" does that and asks people whether to undo it;
            None: as the app says.
        on_outage: What happens after an outage of another system: "park" leaves the job to a
            person, who resumes it where it stopped; "fail" fails the job: see `on_failure`.
        on_undo_failure: What follows an undo that fails: "stop" waits for a person, "continue"
            undoes the rest.
        guard: What happens to a connection or subprocess that its code begins outside of a step:
            "refuse" parks the job before it happens, "warn" logs each line once, "off" lets it be;
            None: as the app has it.
        budget: The most that it and all its children may spend; None means no limit.
        max_claims: Consecutive claims without progress after which the job is parked.
        raises: Exceptions that are outcomes of the job: who waits for it gets them as their own
            type.
        description: What it does, for people.
    """

    name: str
    fn: Callable[..., Any]
    parameters: Parameters
    result: Codec[Any]
    takes_context: bool = True
    result_type: Any = Any
    version: str = "1"
    accepts: tuple[str, ...] = ()
    queue: str = "default"
    priority: int = 0
    timeout: float | None = None
    on_cancel: OnCancel = "abandon"
    on_failure: OnFailure | None = None
    on_outage: OnOutage = "park"
    on_undo_failure: OnUndoFailure = "stop"
    guard: GuardMode | None = None
    budget: BudgetLimits | None = None
    max_claims: int = MAX_CLAIMS
    raises: Raises = ()
    description: str = ""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """Return a call of this job, to be submitted, or awaited in another job as its child."""
        return JobCall(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<JobDefinition {self.name}>"

    def invoke(self, ctx: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function itself, with its context if it takes one."""
        return self.fn(ctx, *args, **kwargs) if self.takes_context else self.fn(*args, **kwargs)

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
    """Make a step from a function.

    Raises:
        DefinitionError: The definition is invalid; the message says why.
    """
    name = check_name(options.get("name") or getattr(fn, "__name__", None), "step")
    what = f"step {name!r}"
    check_function(fn, what)
    context = _check_context(fn, "a step" if is_async(fn) else "a sync step", what)
    parameters = parameters_of(fn, what, context=None if context is None else 0)
    made = make_step(fn, parameters, result_type(fn, what), **options)
    return made if context is not None else replace(made, takes_context=False)


CLOSURE = "call:"  # begins the name of a step that is a closure; no compensation belongs to it
# How the names of an agent's steps begin: a model call, a tool call, a question about a tool.
CHAT, TOOL, ASK = f"{CLOSURE}chat:", f"{CLOSURE}tool:", f"{CLOSURE}approve:"
_INPUT = InputParameter("a call")


def spoken_name(step: str) -> str:
    """Return the name of a step for people: that of the model or the tool, if it calls one."""
    for prefix in (CHAT, TOOL, ASK, CLOSURE):
        step = step.removeprefix(prefix)
    return step


def step_of_closure(
    name: str, body: Callable[..., Any], **options: Unpack[ClosureOptions]
) -> Step[..., Any]:
    """Make a step from a function that has its values already, or takes only its `input`.

    Raises:
        DefinitionError: The definition is invalid; the message says why.
    """
    what = f"call {check_name(name, 'call')!r}"
    check_options(options, ClosureOptions, what)
    check_function(body, what)
    context = _check_context(body, "a step" if is_async(body) else "a sync step", what)
    taken = list(inspect.signature(body).parameters)[0 if context is None else 1 :]
    if taken not in ([], ["input"]):
        raise DefinitionError(
            f"{what} takes no arguments but a context and its `input`: use a lambda or a closure"
        )
    given = cast("StepOptions", {**options, "name": CLOSURE + name})
    made = make_step(body, _INPUT, result_type(body, what), **given)
    fn = _of_input(body, takes_context=context is not None, takes_input=bool(taken))
    return replace(made, fn=fn)


def any_closure(name: str, risk: RiskLevel) -> Step[..., Any]:
    """Return a step that stands for a closure of a journal, which only its job can make."""
    options = StepOptions(name=name, risk=risk, approval="required")
    return make_step(_stands_for_a_closure, _INPUT, Any, **options)


def _stands_for_a_closure(_ctx: Any, _input: Any) -> None:
    raise NotImplementedError


def _of_input(
    body: Callable[..., Any], *, takes_context: bool, takes_input: bool
) -> Callable[..., Any]:
    """Return the function of a step, which gets the input that is recorded for it."""

    def called(ctx: Any, input: Any) -> Any:
        first = (ctx,) if takes_context else ()
        return body(*first, input) if takes_input else body(*first)

    async def awaited(ctx: Any, input: Any) -> Any:
        found = called(ctx, input)
        return await found if inspect.isawaitable(found) else found

    return awaited if is_async(body) else called


_CONTEXTS = {"a step": "StepContext", "a sync step": "SyncStepContext", "a job": "JobContext"}


def _check_context(fn: Callable[..., Any], wanted: str, what: str) -> type[Context] | None:
    """Return the type of context that a function takes; None if it takes none.

    Raises:
        DefinitionError: It is the context of something else.
    """
    context = context_of(fn)
    if context is None or context is Context or context.of == wanted:
        return context
    raise DefinitionError(
        f"{what} takes a {context.__name__}, the context of {context.of}: annotate it as "
        f"{_CONTEXTS[wanted]}"
    )


def make_step(
    fn: Callable[..., Any], parameters: Parameters, declared: Any, **options: Unpack[StepOptions]
) -> Step[..., Any]:
    """Make a step that takes a context first, and whose types are already known."""
    name = options.get("name") or getattr(fn, "__name__", "")
    what = f"step {name!r}"
    check_options(options, StepOptions, what)
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
        raises=check_raises(options.get("raises", ()), what),
        on_failure=check_on_failure(options.get("on_failure"), what),
        description=description_of(options.get("description"), fn),
    )


def job_of(fn: Callable[..., Any], **options: Unpack[JobOptions]) -> JobDefinition[..., Any]:
    """Make a job from an async function.

    Raises:
        DefinitionError: The definition is invalid; the message says why.
    """
    name = check_name(options.get("name") or getattr(fn, "__name__", None), "job")
    what = f"job {name!r}"
    check_options(options, JobOptions, what)
    check_function(fn, what)
    if not is_async(fn):
        raise DefinitionError(f"{what} must be `async def`: it awaits its steps")
    check_defined(what, version=options.get("version"), queue=options.get("queue"))
    context = _check_context(fn, "a job", what)
    declared = result_type(fn, what)
    return JobDefinition(
        name=name,
        fn=fn,
        takes_context=context is not None,
        parameters=parameters_of(fn, what, context=None if context is None else 0, kind="record"),
        result=Codec(declared, f"the result of {what}", "record"),
        result_type=declared,
        version=options.get("version", "1"),
        accepts=_accepts(options, what),
        queue=options.get("queue", "default"),
        priority=options.get("priority", 0),
        timeout=check_seconds(options.get("timeout"), f"timeout of {what}"),
        on_cancel=check_choice(
            options.get("on_cancel", "abandon"), _ON_CANCEL, f"on_cancel of {what}"
        ),
        on_failure=check_on_failure(options.get("on_failure"), what),
        on_outage=check_choice(
            options.get("on_outage", "park"), _ON_OUTAGE, f"on_outage of {what}"
        ),
        on_undo_failure=check_choice(
            options.get("on_undo_failure", "stop"),
            _ON_UNDO_FAILURE,
            f"on_undo_failure of {what}",
        ),
        guard=check_guard(options.get("guard"), f"guard of {what}"),
        budget=options.get("budget"),
        max_claims=options.get("max_claims", MAX_CLAIMS),
        raises=check_raises(options.get("raises", ()), what),
        description=description_of(options.get("description"), fn),
    )


def _accepts(options: JobOptions, what: str) -> tuple[str, ...]:
    """Return the older versions whose jobs a definition continues."""
    given = options.get("accepts", ())
    if isinstance(given, str):
        raise DefinitionError(f"`accepts` of {what} must be several versions: write ({given!r},)")
    accepted = tuple(given)
    for each in accepted:
        check_defined(f"{what}, in `accepts`,", version=each)
    if options.get("version", "1") in accepted:
        raise DefinitionError(
            f"`accepts` of {what} lists older versions, and {options.get('version', '1')!r} is its "
            "own: raise `version`, or leave it out"
        )
    return accepted


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
    check_options(options, CompensationOptions, whose)
    check_function(fn, whose)
    context = _check_context(fn, "a step" if is_async(fn) else "a sync step", whose)
    _check_signature(fn, parameters, whose, takes_context=context is not None)
    return Compensation(
        fn=fn,
        is_async=is_async(fn),
        takes_context=context is not None,
        retry=check_retry(options.get("retry"), whose),
        timeout=check_seconds(options.get("timeout"), f"timeout of {whose}"),
        isolation=check_isolation(options.get("isolation"), fn, whose),
    )


def _check_signature(
    fn: Callable[..., Any], parameters: Parameters, whose: str, *, takes_context: bool
) -> None:
    first = ["ctx"] if takes_context else []
    values = [None for each in parameters.all if each.by_position]
    named = {each.name: None for each in parameters.all if not each.by_position}
    try:
        inspect.signature(fn).bind(*first, *values, None, **named)
    except TypeError as error:
        names = [each.name for each in parameters.all]
        wanted = ", ".join([*first, *names, "output"])
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


class SyncStepClass(Protocol[I_contra, O_co]):
    """The same with a plain function."""

    name: Any

    def execute(self, input: I_contra, ctx: Any, /) -> O_co | Partial[O_co]:
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


def check_options(given: Mapping[str, object], known: type, what: str) -> None:
    """Raise DefinitionError if an option does not exist, or a flag or number is none.

    A misspelt one must not be ignored, and `irreversible="no"` is not False.
    """
    for name, value in given.items():
        if name not in known.__annotations__:
            near = difflib.get_close_matches(name, known.__annotations__, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "there is no such option"
            raise DefinitionError(f"unknown option `{name}` of {what}: {hint}")
        declared = known.__annotations__[name]
        if declared in _FLAGS_AND_NUMBERS and (wrong := misfit(value, declared)):
            raise DefinitionError(f"`{name}` of {what} {wrong}")


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
    first = next(iter(inspect.signature(fn).parameters), "")
    if inspect.isfunction(fn) and first in ("self", "cls"):
        verb = "job" if what.startswith("job") else "step"
        raise DefinitionError(
            f"{what} is a method, and its `{first}` cannot be stored: decorate a function, or "
            f"register the method of one object, as in `app.{verb}(shop.{fn.__name__})`"
        )


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


def check_on_failure(wanted: object, what: str) -> OnFailure | None:
    """Return the option `on_failure`; None leaves it to whatever is around this."""
    return None if wanted is None else check_choice(wanted, _ON_FAILURE, f"on_failure of {what}")


def check_guard(wanted: GuardMode | None, what: str) -> GuardMode | None:
    """Return what the guard does; None leaves it to the app."""
    return None if wanted is None else check_choice(wanted, _GUARD_MODES, what)


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


def check_raises(raises: object, what: str) -> Raises:
    """Return the exceptions that are outcomes; they are told apart by the names of their classes.

    Raises:
        DefinitionError: One is not an exception, or two have the same name.
    """
    many = isinstance(raises, Iterable) and not isinstance(raises, type)
    kinds = tuple(cast("Iterable[Any]", raises) if many else (cast("Any", raises),))
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, Exception) or kind is Exception:
            raise DefinitionError(
                f"raises of {what} must be classes of exceptions of your own, not {kind!r}"
            )
    if len({kind.__name__ for kind in kinds}) < len(kinds):
        raise DefinitionError(f"raises of {what}: two exceptions have the same name")
    return kinds


def description_of(given: str | None, thing: Any) -> str:
    """Return the description, or the first line of the docstring."""
    lines = (inspect.getdoc(thing) or "").strip().splitlines() if given is None else [given]
    return lines[0] if lines else ""
