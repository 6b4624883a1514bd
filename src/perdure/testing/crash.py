"""Kill a job at every point at which it can be killed, and compare how it ends.

    async def test_onboarding_survives_any_crash():
        await crash_everywhere(app, onboard("acme"), observe=lambda: bank.charges)

First the job runs undisturbed, and its writes are counted. Then it runs again for each write twice:
the worker dies just before the write, or just after it, and another worker continues. Each run must
end in the same state, with the same result, with the same effects in its ledger, and must leave the
same in the world as far as the test can `observe` it.
"""

import contextlib
import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias, Unpack

from msgspec import Struct

from perdure.app import App
from perdure.base.codec import decode
from perdure.engine.handle import Handle
from perdure.engine.submission import SubmitOptions
from perdure.jobs.definition import JobCall
from perdure.jobs.failure import Failure
from perdure.jobs.plan import Plan
from perdure.jobs.state import JobState
from perdure.testing.clock import Deadlock
from perdure.testing.jobs import Environment, environment
from perdure.testing.watched_store import Moment

Arrange: TypeAlias = Callable[[Environment], Awaitable[object] | None]
Observe: TypeAlias = Callable[[], Any]

_BOTH: tuple[Moment, Moment] = ("before", "after")
_NEVER = 1e9  # seconds


class CrashFound(AssertionError):
    """A job ends differently if its worker dies at some point."""


class CrashReport(Struct, frozen=True):
    """What `crash_everywhere` tried.

    Attributes:
        state: How the job ends, always.
        result: Its result, if it completes.
        writes: What the job wrote when it was not disturbed, in a few words each.
        crashes: How often it was killed and continued.
    """

    state: JobState
    result: Any
    writes: tuple[str, ...]
    crashes: int


class _End(Struct, frozen=True):
    """How a run ended, as far as it can be compared."""

    state: JobState
    result: Any
    error: str | None
    effects: Counter[tuple[str, str, str, str]]
    seen: Any

    def differs_from(self, expected: "_End") -> list[str]:
        """Return what is different, in words."""
        found: list[str] = []
        if self.state is not expected.state:
            why = "" if self.error is None else f" ({self.error})"
            found.append(f"it is {self.state.value}{why} instead of {expected.state.value}")
        elif self.result != expected.result:
            found.append(f"its result is {self.result!r} instead of {expected.result!r}")
        for effect in self.effects | expected.effects:
            times, wanted = self.effects[effect], expected.effects[effect]
            if times != wanted:
                kind, target, step, state = effect
                what = f"{kind} to {target} by {step} is in the ledger as {state}"
                found.append(f"{what} {times} times instead of {wanted}")
        if self.seen != expected.seen:
            found.append(f"the test observes {self.seen!r} instead of {expected.seen!r}")
        return found


async def crash_everywhere(
    app: App,
    call: JobCall[Any] | Plan,
    *,
    arrange: Arrange | None = None,
    observe: Observe | None = None,
    result: Callable[[Any], Any] | None = None,
    url: str | None = None,
    **options: Unpack[SubmitOptions],
) -> CrashReport:
    """Run a job once for each point at which its worker can die, and check that it ends the same.

    Args:
        app: The app.
        call: A call of a job, or a plan.
        arrange: Called at the start of each run with its `Environment`: empties the test's own
            world, answers approvals, lets steps fail. It may be an `async def`.
        observe: Returns what the job left in the test's own world, to be compared; each run must
            leave the same.
        result: Returns the part of the result that is compared, if a run has times or ids of its
            own in it.
        url: A PostgreSQL server; each run gets a new schema there. By default, and for SQLite,
            each run gets a new file.
        **options: Those of `App.submit`.

    Returns:
        What was tried.

    Raises:
        CrashFound: The job ended differently; every such point is named.
    """
    server = None if url is None or url.startswith("sqlite:") else url
    trial = _Trial(app, (call, options), arrange, observe, result, server)
    expected = await trial.run(None)
    writes, found, crashes = trial.writes, list[str](), 0
    for number, moment in _points():
        end = await trial.run((number, moment))
        if not trial.crashed:  # it has ended before
            break
        crashes += 1
        where = f"killed {moment} write {number} ({trial.writes[number - 1]})"
        found += [f"  {where}: {each}" for each in end.differs_from(expected)]
    if found:
        raise CrashFound("\n".join(["the job does not end the same after a crash:", *found]))
    return CrashReport(expected.state, expected.result, writes, crashes)


def _points() -> Iterator[tuple[int, Moment]]:
    for number in itertools.count(1):
        for moment in _BOTH:
            yield number, moment


class _Trial(Struct, kw_only=False):
    """What is run again and again, and what the last run showed."""

    app: App
    call: tuple[Any, SubmitOptions]
    arrange: Arrange | None
    observe: Observe | None
    result: Callable[[Any], Any] | None
    url: str | None
    writes: tuple[str, ...] = ()
    crashed: bool = False

    async def run(self, crash: tuple[int, Moment] | None) -> _End:
        """Run the job in a new environment, and let its worker die at one point."""
        call, options = self.call
        # A step that takes long is recorded as started: a write that depends on the machine.
        worker = dataclasses.replace(self.app.worker_settings, start_record_after=_NEVER)
        async with environment(self.app, url=self.url, worker=worker) as env:
            if self.arrange is not None and (begun := self.arrange(env)) is not None:
                await begun
            if crash is not None:
                env.crash_at(*crash)
            handle = await self.app.submit(call, **options)
            with contextlib.suppress(Deadlock):  # then it waits for ever, as in the other runs
                await handle.until(JobState.NEEDS_ATTENTION)
            end = await self._end(handle)
            self.writes, self.crashed = env.writes, env.crashed
        return end

    async def _end(self, handle: Handle[Any]) -> _End:
        (outcome,) = await (await self.app.store()).outcomes([handle.id])
        value = None if outcome.result is None else decode(outcome.result, Any)
        effects = Counter(
            (each.kind, each.target, each.place.step, each.state.value)
            for each in await handle.effects()
        )
        return _End(
            state=outcome.state,
            result=value if self.result is None or value is None else self.result(value),
            error=None if outcome.error is None else Failure.unpack(outcome.error).summary(),
            effects=effects,
            seen=None if self.observe is None else copy.deepcopy(self.observe()),
        )
