"""Where steps and jobs are registered and found by name."""

import difflib
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, Unpack, cast, overload

from perdure.base.errors import DefinitionError, UnknownName
from perdure.jobs.definition import (
    LONGEST_NAME,
    JobDefinition,
    JobOptions,
    Step,
    StepClass,
    StepOptions,
    check_name,
    is_step_class,
    job_of,
    step_of,
    step_of_object,
)
from perdure.jobs.parameters import Partial

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741  input and output of a step class
O = TypeVar("O")  # noqa: E741

StepOrJob: TypeAlias = Step[..., Any] | JobDefinition[..., Any]
AsyncFunction: TypeAlias = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
SyncFunction: TypeAlias = Callable[Concatenate[Any, P], R]


class _StepDecorator:
    """What `@registry.step(…)` returns; it keeps the types of the function that it decorates."""

    __slots__ = ("_options", "_registry")

    def __init__(self, registry: "JobRegistry", options: StepOptions) -> None:
        self._registry = registry
        self._options = options

    @overload
    def __call__(self, fn: type[StepClass[I, O]], /) -> Step[[I], O]: ...
    @overload
    def __call__(self, fn: AsyncFunction[P, R | Partial[R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: SyncFunction[P, R | Partial[R]], /) -> Step[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        if is_step_class(fn):
            made = step_of_object(fn(), **self._options)
        else:
            made = step_of(fn, **self._options)
        self._registry.add(made)
        return made


class JobRegistry:
    """A set of steps and jobs; an app includes registries, as a web app includes routers.

    ```python
    billing = JobRegistry(prefix="billing.")

    @billing.step
    async def charge(ctx: StepContext, order: Order) -> Receipt: ...

    app.include(billing)
    ```

    A step or job is identified by its *full* name: its own name after the prefix of its registry
    and of each registry that includes that one. What is registered later is included too.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._steps: dict[str, Step[..., Any]] = {}
        self._jobs: dict[str, JobDefinition[..., Any]] = {}
        self._names: dict[int, str] = {}  # by the `id()` of the definition, which lives as long
        self._parents: list[tuple[JobRegistry, str]] = []

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]:
        """All steps by full name."""
        return MappingProxyType(self._steps)

    @property
    def jobs(self) -> Mapping[str, JobDefinition[..., Any]]:
        """All jobs by full name."""
        return MappingProxyType(self._jobs)

    @overload
    def step(self, fn: type[StepClass[I, O]], /) -> Step[[I], O]: ...
    @overload
    def step(self, fn: AsyncFunction[P, R | Partial[R]], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: SyncFunction[P, R | Partial[R]], /) -> Step[P, R]: ...
    @overload
    def step(self, /, **options: Unpack[StepOptions]) -> _StepDecorator: ...
    def step(self, fn: Any = None, /, **options: Unpack[StepOptions]) -> Any:
        """Decorate a function, or a class with `execute`, to make it a step.

        Raises:
            DefinitionError: The definition is invalid, or its name is taken.
        """
        decorate = _StepDecorator(self, options)
        return decorate if fn is None else decorate(fn)

    @overload
    def job(self, fn: AsyncFunction[P, R], /) -> JobDefinition[P, R]: ...
    @overload
    def job(
        self, /, **options: Unpack[JobOptions]
    ) -> Callable[[AsyncFunction[P, R]], JobDefinition[P, R]]: ...
    def job(self, fn: Any = None, /, **options: Unpack[JobOptions]) -> Any:
        """Decorate an async function to make it a job.

        Raises:
            DefinitionError: The definition is invalid, or its name is taken.
        """

        def add(function: Callable[..., Any]) -> JobDefinition[..., Any]:
            made = job_of(function, **options)
            self.add(made)
            return made

        return add if fn is None else add(fn)

    def add(self, thing: Any) -> Any:
        """Register a step or job that was made elsewhere, or an object with `execute`.

        Returns:
            The step or job.

        Raises:
            DefinitionError: It is neither, or its name is taken.
        """
        known = isinstance(thing, Step | JobDefinition)
        made = cast("StepOrJob", thing) if known else step_of_object(thing)
        self._check(self.prefix + made.name, made)
        self._put(self.prefix + made.name, made)
        return made

    def include(self, other: "JobRegistry", prefix: str = "") -> None:
        """Include everything that another registry has, now and later, under a further prefix.

        Raises:
            DefinitionError: A name is taken, or the registry is included already. Nothing changes.
        """
        if other is self or self._is_within(other):
            raise DefinitionError("a registry cannot include itself")
        found = [*other.steps.items(), *other.jobs.items()]
        for name, made in found:
            self._check(self.prefix + prefix + name, made)
        for name, made in found:
            self._put(self.prefix + prefix + name, made)
        other._parents.append((self, prefix))  # noqa: SLF001  of the same class

    def find_step(self, name: str) -> Step[..., Any]:
        """Return the step with this full name.

        Raises:
            UnknownName: There is none; the message suggests similar names.
        """
        found = self._steps.get(name)
        return found if found is not None else _unknown("step", name, self._steps)

    def find_job(self, name: str) -> JobDefinition[..., Any]:
        """Return the job with this full name.

        Raises:
            UnknownName: There is none; the message suggests similar names.
        """
        found = self._jobs.get(name)
        return found if found is not None else _unknown("job", name, self._jobs)

    def name(self, definition: Step[..., Any] | JobDefinition[..., Any]) -> str:
        """Return the full name of a step or job.

        Raises:
            UnknownName: It is registered elsewhere, and that registry is not included here.
        """
        try:
            return self._names[id(definition)]
        except KeyError:
            raise UnknownName(
                f"{_label(definition)} is not registered here: decorate it with this app, or "
                "include its registry with `app.include(…)`"
            ) from None

    def _check(self, name: str, made: StepOrJob) -> None:
        known = self._jobs if isinstance(made, JobDefinition) else self._steps
        check_name(name, "step or job")  # the prefixes too
        if name in known:
            raise DefinitionError(f"{_label(made, name)} is defined twice: rename one of them")
        if id(made) in self._names:
            raise DefinitionError(
                f"{_label(made, name)} is already registered as {self.name(made)}"
            )
        for parent, prefix in self._parents:
            parent._check(parent.prefix + prefix + name, made)  # noqa: SLF001  of the same class

    def _put(self, name: str, made: StepOrJob) -> None:
        if isinstance(made, JobDefinition):
            self._jobs[name] = made
        else:
            self._steps[name] = made
        self._names[id(made)] = name
        for parent, prefix in self._parents:
            parent._put(parent.prefix + prefix + name, made)  # noqa: SLF001  of the same class

    def _is_within(self, other: "JobRegistry") -> bool:
        above = (parent for parent, _ in self._parents)
        return any(each is other or each._is_within(other) for each in above)  # noqa: SLF001


def step_name(registry: JobRegistry, step: object, verb: str) -> str:
    """Return the full name of what must be a step; `verb` is what it is used for.

    Raises:
        TypeError: It is not a step.
        UnknownName: It is not registered here.
    """
    if not isinstance(step, Step):
        raise _wrong_kind(verb, "step", step)
    return registry.name(cast("Step[..., Any]", step))


def job_name(registry: JobRegistry, job: object, verb: str) -> str:
    """Return the full name of what must be a job; `verb` is what it is used for.

    Raises:
        TypeError: It is not a job.
        UnknownName: It is not registered here.
    """
    if not isinstance(job, JobDefinition):
        raise _wrong_kind(verb, "job", job)
    return registry.name(cast("JobDefinition[..., Any]", job))


def _label(made: StepOrJob, name: str = "") -> str:
    return f"{'job' if isinstance(made, JobDefinition) else 'step'} {name or made.name!r}"


def _wrong_kind(verb: str, wanted: str, given: object) -> TypeError:
    known = isinstance(given, Step | JobDefinition)
    shown = _label(cast("StepOrJob", given)) if known else repr(given)
    return TypeError(f"{verb} takes a {wanted} made with @app.{wanted}, not {shown}")


def _unknown(what: str, name: str, known: Mapping[str, object]) -> Any:
    # Comparing takes time quadratic in the length, and no known name is longer than the limit.
    near = difflib.get_close_matches(name, known, n=3) if len(name) <= LONGEST_NAME else []
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownName(f"there is no {what} {name[:LONGEST_NAME]!r}{hint}")
