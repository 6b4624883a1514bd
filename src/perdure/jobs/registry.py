"""Where steps and jobs are registered and found by name."""

import difflib
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast, overload

from msgspec import Struct

from perdure.base.errors import DefinitionError, UnknownName
from perdure.jobs.definition import (
    LONGEST_NAME,
    GuardMode,
    JobDefinition,
    OnFailure,
    Step,
    StepClass,
    SyncStepClass,
    check_name,
    step_of_object,
)

StepOrJob: TypeAlias = Step[..., Any] | JobDefinition[..., Any]

D = TypeVar("D", bound=StepOrJob)
I = TypeVar("I")  # noqa: E741  input and output of an object with `execute`
O = TypeVar("O")  # noqa: E741


class AttemptedCall(Struct, frozen=True, kw_only=True):
    """An attempt of a step that is about to be made, as a test sees it.

    Attributes:
        step: The full name of the step; that of a compensation begins with `undo:`.
        id: The identity of the call in its job, such as `charge#1`.
        job_id: The job.
        attempt: The number of the attempt, from 1.
        args: The positional arguments of the call.
        kwargs: The arguments by name.
        proceed: Calls the function of the step, and returns its result.
    """

    step: str
    id: str
    job_id: str
    attempt: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    proceed: Callable[[], Awaitable[Any]]


Intercept: TypeAlias = Callable[[AttemptedCall], Awaitable[Any]]


class DefinitionTable:
    """Steps and jobs by their full names; `JobRegistry` adds the decorators that make them.

    A step or job is identified by its *full* name: its own name after the prefix of its registry
    and of each registry that includes that one. What is registered later is included too.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._steps: dict[str, Step[..., Any]] = {}
        self._jobs: dict[str, JobDefinition[..., Any]] = {}
        self._names: dict[int, str] = {}  # by the `id()` of the definition, which lives as long
        self._parents: list[tuple[DefinitionTable, str]] = []
        self.on_failure: OnFailure = "undo"  # of jobs and plans that do not say it themselves
        self.guard: GuardMode = "refuse"  # for jobs that do not say
        self.intercept: Intercept | None = None  # in a test: makes the attempts of all steps

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]:
        """All steps by full name."""
        return MappingProxyType(self._steps)

    @property
    def jobs(self) -> Mapping[str, JobDefinition[..., Any]]:
        """All jobs by full name."""
        return MappingProxyType(self._jobs)

    @overload
    def add(self, thing: D) -> D: ...
    @overload
    def add(self, thing: StepClass[I, O]) -> Step[[I], O]: ...
    @overload
    def add(self, thing: SyncStepClass[I, O]) -> Step[[I], O]: ...
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

    def include(self, other: "DefinitionTable", prefix: str = "") -> None:
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

    def _is_within(self, other: "DefinitionTable") -> bool:
        above = (parent for parent, _ in self._parents)
        return any(each is other or each._is_within(other) for each in above)  # noqa: SLF001


def _label(made: StepOrJob, name: str = "") -> str:
    return f"{'job' if isinstance(made, JobDefinition) else 'step'} {name or made.name!r}"


def _unknown(what: str, name: str, known: Mapping[str, object]) -> Any:
    # Comparing takes time quadratic in the length, and no known name is longer than the limit.
    near = difflib.get_close_matches(name, known, n=3) if len(name) <= LONGEST_NAME else []
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownName(f"there is no {what} {name[:LONGEST_NAME]!r}{hint}")
