"""Faults of steps in a test: one that fails, hangs, takes long, or is replaced."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, TypeAlias

from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import UnknownName
from perdure.base.retry import pause
from perdure.jobs.definition import Step
from perdure.jobs.registry import AttemptedCall, DefinitionTable

# A step, its full name ("charge"), or one call of it ("charge#2"); "undo:charge#1" is an undo.
Target: TypeAlias = Step[..., Any] | str

Behaviour: TypeAlias = Callable[[AttemptedCall], Any]


class _Rule:
    """What the next attempts of a step do instead of calling its function."""

    def __init__(self, target: str, behaviour: Behaviour, times: int | None) -> None:
        self._target = target
        self.behaviour = behaviour
        self._left = times  # None: for ever

    def takes(self, attempted: AttemptedCall) -> bool:
        """Whether the rule is for this attempt; if so, it is used once."""
        if self._target not in (attempted.step, attempted.id) or self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        return True


class StepFaults:
    """Makes the attempts of all steps, and remembers them."""

    def __init__(self, registry: DefinitionTable) -> None:
        self._registry = registry
        self._rules: list[_Rule] = []
        self.attempts: list[AttemptedCall] = []

    async def intercept(self, attempted: AttemptedCall) -> Any:
        """Make an attempt: by the first rule that is left for it, else by the step's function."""
        self.attempts.append(attempted)
        for rule in self._rules:
            if rule.takes(attempted):
                result = rule.behaviour(attempted)
                return await result if isawaitable(result) else result
        return await attempted.proceed()

    def add(self, target: Target, behaviour: Behaviour, times: int | None) -> None:
        """Let the next attempts of a step, or of one of its calls, do something else."""
        self._rules.append(_Rule(self.name_of(target), behaviour, times))

    def name_of(self, target: Target) -> str:
        """Return the full name of a step, or the identity of a call.

        Raises:
            UnknownName: The app has no such step.
        """
        if not isinstance(target, str):
            return self._registry.name(target)
        name = target.removeprefix("undo:").partition("#")[0]
        if name not in self._registry.steps:
            known = ", ".join(sorted(self._registry.steps)) or "none"
            raise UnknownName(f"there is no step {name!r}; the app has: {known}")
        return target


def failing(error: BaseException | type[BaseException]) -> Behaviour:
    """Return the behaviour of a step that raises."""

    def fail(_: AttemptedCall) -> Any:
        raise error

    return fail


def slow(duration: Duration) -> Behaviour:
    """Return the behaviour of a step that works, but only after some time."""
    seconds = seconds_of(duration)

    async def work_slowly(attempted: AttemptedCall) -> Any:
        await pause(seconds)
        return await attempted.proceed()

    return work_slowly


async def hang(_: AttemptedCall) -> Any:
    """Never return: only a timeout, or the end of the job, ends this step."""
    await asyncio.get_running_loop().create_future()


def seconds_of(duration: Duration) -> float:
    """Return a duration in seconds; None is none at all. It may be given in days and weeks."""
    return job_seconds(duration) or 0.0
