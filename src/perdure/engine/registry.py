"""The decorators that make steps and jobs, typed so that every call of them is checked.

To a type checker, a function with a context (`async def load(ctx: StepContext, page: int)`) and one
without it (`async def load(page: int)`) are steps with the same parameters: `load(3)`. That takes
overloads which name the classes of the contexts, so the decorators live here, in the engine; the
table of names that they fill is `DefinitionTable`.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, Unpack, overload

from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.engine.steps.transaction import TransactionDecorator
from perdure.jobs.definition import (
    JobDefinition,
    JobOptions,
    Step,
    StepClass,
    StepOptions,
    SyncStepClass,
    check_options,
    is_step_class,
    job_of,
    step_of,
    step_of_object,
)
from perdure.jobs.parameters import Partial
from perdure.jobs.registry import DefinitionTable

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741  input and output of a step class
O = TypeVar("O")  # noqa: E741

Async: TypeAlias = Coroutine[Any, Any, R]
StepWithContext: TypeAlias = Callable[Concatenate[StepContext, P], Async[R | Partial[R]]]
SyncStepWithContext: TypeAlias = Callable[Concatenate[SyncStepContext, P], R | Partial[R]]
AsyncStep: TypeAlias = Callable[P, Async[R | Partial[R]]]
SyncStep: TypeAlias = Callable[P, R | Partial[R]]
JobWithContext: TypeAlias = Callable[Concatenate[JobContext, P], Async[R]]
JobFunction: TypeAlias = Callable[P, Async[R]]


class _StepDecorator:
    """What `@registry.step(…)` returns; it keeps the types of the function that it decorates."""

    __slots__ = ("_options", "_registry")

    def __init__(self, registry: "JobRegistry", options: StepOptions) -> None:
        self._registry = registry
        self._options = options

    @overload
    def __call__(self, fn: type[StepClass[I, O]], /) -> Step[[I], O]: ...
    @overload
    def __call__(self, fn: type[SyncStepClass[I, O]], /) -> Step[[I], O]: ...
    @overload
    def __call__(self, fn: StepWithContext[P, R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: AsyncStep[P, R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: SyncStepWithContext[P, R], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: SyncStep[P, R], /) -> Step[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        if is_step_class(fn):
            made = step_of_object(fn(), **self._options)
        else:
            made = step_of(fn, **self._options)
        self._registry.add(made)
        return made


class _JobDecorator:
    """What `@registry.job(…)` returns; it keeps the types of the function that it decorates."""

    __slots__ = ("_options", "_registry")

    def __init__(self, registry: "JobRegistry", options: JobOptions) -> None:
        self._registry = registry
        self._options = options

    @overload
    def __call__(self, fn: JobWithContext[P, R], /) -> JobDefinition[P, R]: ...
    @overload
    def __call__(self, fn: JobFunction[P, R], /) -> JobDefinition[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        made = job_of(fn, **self._options)
        self._registry.add(made)
        return made


class JobRegistry(DefinitionTable):
    """A set of steps and jobs; an app includes registries, as a web app includes routers.

    ```python
    billing = JobRegistry(prefix="billing.")

    @billing.step
    async def charge(order: Order) -> Receipt: ...

    app.include(billing)
    ```
    """

    @overload
    def step(self, fn: type[StepClass[I, O]], /) -> Step[[I], O]: ...
    @overload
    def step(self, fn: type[SyncStepClass[I, O]], /) -> Step[[I], O]: ...
    @overload
    def step(self, fn: StepWithContext[P, R], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: AsyncStep[P, R], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: SyncStepWithContext[P, R], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: SyncStep[P, R], /) -> Step[P, R]: ...
    @overload
    def step(self, /, **options: Unpack[StepOptions]) -> _StepDecorator: ...
    def step(self, fn: Any = None, /, **options: Unpack[StepOptions]) -> Any:
        """Decorate a function, or a class with `execute`, to make it a step.

        A first parameter annotated `StepContext` (`SyncStepContext` in a plain function) is the
        context of the step; all others are its arguments, which are stored.

        Raises:
            DefinitionError: The definition is invalid, or its name is taken.
        """
        check_options(options, StepOptions, "a step")
        decorate = _StepDecorator(self, options)
        return decorate if fn is None else decorate(fn)

    def transaction(self, database: Any, /, **options: Unpack[StepOptions]) -> TransactionDecorator:
        """Decorate a function to make it a step that is one transaction of your own database.

        Its work and its result are committed together, so that it happens exactly once. The
        function takes a connection first, after the context if it wants one; see `transaction`.

        Args:
            database: A URL (`sqlite:///file.db`, `postgresql://…`), a pool of psycopg, an engine or
                session maker of SQLAlchemy, or a function that connects.
            **options: The options of the step.

        Raises:
            DefinitionError: The function cannot use this database, or the definition is invalid.
        """
        return TransactionDecorator(database, self.step(**options))

    @overload
    def job(self, fn: JobWithContext[P, R], /) -> JobDefinition[P, R]: ...
    @overload
    def job(self, fn: JobFunction[P, R], /) -> JobDefinition[P, R]: ...
    @overload
    def job(self, /, **options: Unpack[JobOptions]) -> _JobDecorator: ...
    def job(self, fn: Any = None, /, **options: Unpack[JobOptions]) -> Any:
        """Decorate an async function to make it a job.

        A first parameter annotated `JobContext` is the context of the job; all others are its
        arguments, which are stored.

        Raises:
            DefinitionError: The definition is invalid, or its name is taken.
        """
        check_options(options, JobOptions, "a job")
        decorate = _JobDecorator(self, options)
        return decorate if fn is None else decorate(fn)
