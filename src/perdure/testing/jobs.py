"""Tests of jobs: an app on a new store, a worker, and time that skips.

    async with environment(app) as env:
        env.answer_approvals("approve", by="kim")
        env.fail(charge, ConnectionError("reset"), times=2)
        handle = await app.submit(onboard("acme"))
        assert await handle.result() == "welcome"

The worker is a real one, on a real store. Only two things differ from production: attempts of steps
pass through `StepFaults`, and the clock is set forward when nothing else can happen. That is so
when the test waits (for a job, or in `env.sleep`), no code is about to run, the store has answered
everything, and no step of a job can be waiting for a thread, an OS process or a socket. The clock
then moves to the next thing that is due: a job, an approval, a schedule, or a timer of the loop.
Pauses between two rounds of periodic work (`idle`) do not count, or eight hours would take tens of
thousands of rounds; they are found overdue after the jump, and happen once.

If nothing is due, the test would wait for ever: it gets `Deadlock` instead, which says what each
job waits for.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import Context
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from perdure.app import App
from perdure.base.clock import Clock
from perdure.base.codec import decode
from perdure.base.duration import Duration
from perdure.base.errors import NoProcess, NotInProcess
from perdure.base.retry import idle, pause
from perdure.engine.handle import JobWaits
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step import StepOperation
from perdure.engine.steps.thread_step import is_any_at_work
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.worker import runtime_settings
from perdure.jobs.approval import Approval, ApprovalState, Person, VoteVerdict
from perdure.jobs.failure import Failure
from perdure.jobs.model import Job, JobQuery
from perdure.jobs.registry import AttemptedCall, Intercept
from perdure.jobs.state import ENDED
from perdure.process.api import spawn
from perdure.process.lifecycle import kill
from perdure.process.process import current
from perdure.process.runtime import Runtime
from perdure.process.threads import is_offloading
from perdure.store.store import Store
from perdure.testing.clock import Deadlock
from perdure.testing.skipping import SkippingClock, SkippingLoop, StoreTime
from perdure.testing.step_faults import (
    Behaviour,
    StepFaults,
    Target,
    failing,
    hang,
    seconds_of,
    slow,
)
from perdure.testing.watched_store import CrashPoint, Moment, WatchedStore

T = TypeVar("T")
# "approve" or "reject", or a function that returns one of them, or None to leave it open.
Answer: TypeAlias = VoteVerdict | Callable[[Approval], VoteVerdict | None]

# Real seconds between two looks at whether there is anything left to do.
_LOOK_EVERY = 0.001

# How many looks in a row must find nothing before a test is told that it waits for ever. A hint
# from a thread of the store may still be on its way.
_LOOKS_BEFORE_DEADLOCK = 50

# How many looks in a row must find nothing under way before a sleep of the test is over.
_LOOKS_UNTIL_SETTLED = 5

_TIME_SKIPS = (
    ". In this environment time skips to the next timer whenever everything waits, and that was "
    "the timeout itself: wait without one, or for longer than the job waits"
)

# Time is not skipped for less than this: it passes by itself.
_SHORTEST_SKIP = 0.002

_APPROVER = frozenset({"approver"})
_WAITS_FOR_EVER = "nothing is due any more, and the test waits for a job that cannot end:"
_WHAT_TO_DO = (
    "send it what it waits for, answer with `env.answer_approvals`, or resume it before you wait "
    "for its result"
)


class AnswerRule(Struct, frozen=True, kw_only=True):
    """How people answer some of the questions."""

    answer: Answer
    by: tuple[Person | str, ...]
    title: str | None  # a part of the title
    step: str | None  # the step that waits
    after: float  # seconds after the question
    reason: str

    def verdict_for(self, approval: Approval) -> VoteVerdict | None:
        """Return the answer to a question; None if this rule does not answer it."""
        waiting = (approval.step, approval.step.partition("#")[0])
        if self.title is not None and self.title not in approval.title:
            return None
        if self.step is not None and self.step not in waiting:
            return None
        return self.answer(approval) if callable(self.answer) else self.answer

    def voters(self, approval: Approval, *, listed: bool) -> Sequence[Person | str]:
        """Return those who have not voted yet; `listed`: the app itself knows the people."""
        voted = {decision.person for decision in approval.decisions}
        people = [
            Person(id=each, tenant=approval.tenant, roles=_APPROVER)
            if isinstance(each, str) and not listed
            else each
            for each in self.by
        ]
        return [each for each in people if _id(each) not in voted]


def _id(person: Person | str) -> str:
    return person if isinstance(person, str) else person.id


class Environment:
    """An app in a test; made by `environment`."""

    def __init__(self, app: App, settings: WorkerSettings) -> None:
        self.app = app
        self._settings = settings
        self._clock = SkippingClock()
        self._loop = SkippingLoop(asyncio.get_running_loop(), self._clock)
        self._store_time: StoreTime | None = None  # None: the store reads the clock itself
        self._faults = StepFaults(app)
        self._rules: list[AnswerRule] = []
        self._sleepers = 0
        # Those who wait until all is settled, with how many looks in a row found nothing under way.
        self._settling: dict[asyncio.Future[None], int] = {}
        self._fruitless = 0  # looks in a row that found nothing to do
        self._up = asyncio.Event()  # a worker is running
        self._worker_ends = asyncio.Event()
        self._closing = False
        self._closed = asyncio.Event()  # no worker is running, and none will be
        self._closed.set()
        self._failure: Exception | None = None  # why none could be started

    # Steps

    def fail(
        self,
        step: Target,
        error: BaseException | type[BaseException] = ConnectionError,
        *,
        times: int | None = 1,
    ) -> None:
        """Let the next attempts of a step raise an error; `times=None` is for ever.

        Args:
            step: The step, its name, or one of its calls (`"charge#2"`).
            error: What is raised.
            times: How many attempts fail; the one after them calls the step.
        """
        self._faults.add(step, failing(error), times)

    def hang(self, step: Target, *, times: int | None = 1) -> None:
        """Let the next attempts of a step never return: its timeout ends them."""
        self._faults.add(step, hang, times)

    def delay(self, step: Target, duration: Duration, *, times: int | None = None) -> None:
        """Let the attempts of a step begin only after some time, which is skipped."""
        self._faults.add(step, slow(duration), times)

    def returns(self, step: Target, value: Any, *, times: int | None = None) -> None:
        """Let a step return a value; its function is not called."""
        self._faults.add(step, lambda _: value, times)

    def replace(self, step: Target, behaviour: Behaviour, *, times: int | None = None) -> None:
        """Let a function make the attempts of a step.

        Args:
            step: The step, its name, or one of its calls.
            behaviour: Called with the attempt: its arguments are `args` and `kwargs`, and
                `await attempt.proceed()` calls the step itself.
            times: How many attempts; by default all of them.
        """
        self._faults.add(step, behaviour, times)

    def attempts(self, step: Target | None = None) -> list[AttemptedCall]:
        """Return the attempts so far, of a step, of one of its calls, or of all steps."""
        if step is None:
            return list(self._faults.attempts)
        name = self._faults.name_of(step)
        return [each for each in self._faults.attempts if name in (each.step, each.id)]

    # People

    def answer_approvals(
        self,
        answer: Answer,
        *,
        by: Person | str | Sequence[Person | str] = "tester",
        title: str | None = None,
        step: Target | None = None,
        after: Duration = 0,
        reason: str = "",
    ) -> None:
        """Answer questions to people; of several rules, the first one that applies is used.

        Args:
            answer: "approve", "reject", or a function that takes the `Approval` and returns one of
                them, or None to leave it open.
            by: Who answers. If the app lists its people, it is one of them; several people vote
                one after the other.
            title: Answer only questions whose title contains this.
            step: Answer only questions of this step, or of one of its calls.
            after: How long after the question the answer comes.
            reason: The reason that they give.
        """
        voters = (by,) if isinstance(by, Person | str) else tuple(by)
        self._rules.append(
            AnswerRule(
                answer=answer,
                by=voters,
                title=title,
                step=None if step is None else self._faults.name_of(step),
                after=seconds_of(after),
                reason=reason,
            )
        )

    # Time

    @property
    def skipped(self) -> timedelta:
        """How much time was skipped so far."""
        return timedelta(seconds=self._clock.skipped)

    def now(self) -> datetime:
        """Return the time by the clock of the test, in UTC."""
        return datetime.fromtimestamp(self._clock.time(), UTC)

    async def sleep(self, duration: Duration) -> None:
        """Let time pass: whatever is due meanwhile happens, in its order."""
        self._sleepers += 1
        try:
            await pause(seconds_of(duration))
        finally:
            self._sleepers -= 1
        await self._until_settled()

    # A worker that dies

    async def crash(self) -> None:
        """Kill the worker as a power cut would, and start another one, which continues its jobs.

        Nothing more is written by the old one. What its code still does in `finally` happens.
        """
        self._crash()
        await self._up.wait()

    def crash_at(self, number: int, moment: Moment = "after") -> None:
        """Kill the worker at its write of this number, from 1; another one continues."""
        self._watched.crash_point = CrashPoint(number, moment, self._crash)

    @property
    def writes(self) -> tuple[str, ...]:
        """What the workers have written for jobs so far, in a few words each."""
        return tuple(self._watched.writes)

    @property
    def crashed(self) -> bool:
        """Whether the point of `crash_at` was reached."""
        point = self._watched.crash_point
        return point is not None and point.reached

    def _crash(self) -> None:
        # Nothing may be written from here on; what is running is killed when it is not running.
        self._up.clear()
        self._watched.dead.update(node.owner for node in self._nodes)
        self._loop.loop.call_soon(self._kill_runs)

    def _kill_runs(self) -> None:
        for node in self._nodes:
            for run in tuple(node.runs.values()):
                run.lose_lease()
                kill(run.process, "the worker has died")
        self._worker_ends.set()

    # Open and close

    async def open(self, url: str, store_time: StoreTime | None) -> None:
        """Open the store, and start a worker; called by `environment`."""
        self._store_time = store_time
        app = self.app
        app.url, app.intercept = url, self._faults.intercept
        app.clock = self._clock if store_time is None else None
        self._loop.install()
        self._waits.remark = _TIME_SKIPS
        try:
            self._store: Store = await app.store()
            self._watched = WatchedStore(self._store)
            await self._start_worker()
            spawn(self._skip_time)
        except BaseException:
            await self.close()
            raise

    async def _start_worker(self) -> None:
        self._closed.clear()
        spawn(self._keep_worker)
        await self._up.wait()
        if self._failure is not None:
            raise self._failure

    async def _keep_worker(self) -> None:
        """The process that runs a worker, and another one after each crash."""
        try:
            while not self._closing:
                self._worker_ends.clear()
                async with self.app.running(self._settings):
                    self._up.set()
                    await self._worker_ends.wait()
        except Exception as error:  # noqa: BLE001 - raised where the test waits
            self._failure = error
            self._tell(error)
        finally:
            self._up.set()
            self._closed.set()

    async def close(self) -> None:
        """Stop the worker, and close the store; called by `environment`."""
        self._closing = True
        self._worker_ends.set()
        for node in self._nodes:
            if any(run.working for run in node.runs.values()):
                node.hurry()  # nobody waits for its steps any more
        await self._closed.wait()
        await self.app.close()
        self._loop.uninstall()

    @property
    def _nodes(self) -> list[WorkerNode]:
        return self.app._nodes  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    @property
    def _waits(self) -> JobWaits:
        return self.app._waits.here()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    # Skipping

    async def _skip_time(self) -> None:
        """The process that looks whether time can be skipped, until the end of the test.

        It is the only one that looks. Timers of the same millisecond fire in the same turn of the
        loop, so of two that look, each would find the other about to run, again and again.
        """
        self._watched.observer = current()
        while not self._closing:
            await idle(_LOOK_EVERY)
            try:
                if self._settling:
                    self._count_settled(settled=await self._on_loop(self._is_settled))
                if self._is_awaited and await self._is_quiet():
                    await self._look()
            except Exception as error:  # noqa: BLE001 - raised where the test waits
                self._tell(error)
        for future in self._settling:
            if not future.done():
                future.set_result(None)

    @property
    def _is_awaited(self) -> bool:
        return self._sleepers > 0 or bool(self._waits.awaited)

    async def _look(self) -> None:
        """Answer people, or skip to what is due next; fail the test if nothing will ever be."""
        begun = self._watched.begun
        if await self._is_anything_reached() or await self._answer_people():
            return
        seconds = self._until_next(await self._due_in())
        if seconds is None:
            await self._found_nothing()
        elif seconds > _SHORTEST_SKIP and self._watched.begun == begun:
            await self._on_loop(partial(self._skip, seconds, begun))

    async def _is_anything_reached(self) -> bool:
        """Whether the test is about to learn that a job has ended: then no time passes before."""
        awaited = self._waits.awaited
        outcomes = await self._store.outcomes(list(awaited)) if awaited else []
        return any(each.state in ENDED | awaited[each.job_id] for each in outcomes)

    async def _answer_people(self) -> bool:
        """Vote on what is asked and to be answered by now; return whether anybody voted."""
        self._answers_in: list[float] = []  # seconds until further answers
        if not self._rules:
            return False
        listed, voted = bool(self.app.policy.people.contacts), False
        now = await self._store.now()
        for approval in await self._store.approvals(ApprovalState.PENDING, None, limit=1000):
            rule, verdict = self._rule_for(approval)
            voters = () if rule is None else rule.voters(approval, listed=listed)
            if rule is None or verdict is None or not voters:
                continue
            wait = approval.created_at + rule.after - now
            if wait > 0:
                self._answers_in.append(wait)
            else:
                await self.app.decide(approval, verdict, by=voters[0], reason=rule.reason)
                voted = True
        return voted

    def _rule_for(self, approval: Approval) -> tuple[AnswerRule | None, VoteVerdict | None]:
        for rule in self._rules:
            if (verdict := rule.verdict_for(approval)) is not None:
                return rule, verdict
        return None, None

    async def _due_in(self) -> list[float]:
        """Return in how many seconds something is due in the store."""
        found: list[float | None] = [*self._answers_in]
        channels = [channel.name for channel in self.app.policy.all_channels]
        agenda = await self._store.agenda(channels)
        found += (agenda.schedules_in, agenda.approvals_in, agenda.notices_in)
        for node in self._nodes:
            for queue in await self._store.outlook(list(node.queues), node.known):
                found.append(0.0 if queue.ready else queue.due_in)
        return [seconds for seconds in found if seconds is not None]

    def _until_next(self, due_in: Sequence[float]) -> float | None:
        """Return the seconds until something happens; None if nothing is due."""
        overdue = any(seconds <= 0 for seconds in due_in)
        # What is overdue is found in the next round of some periodic work.
        timer = self._loop.next_timer(periodic=overdue)
        waits = [] if timer is None else [timer - self._clock.monotonic()]
        return min(waits if overdue else (*waits, *due_in), default=None)

    def _skip(self, seconds: float, begun: int) -> None:
        """Set the clocks forward, unless something has begun; nothing runs in between."""
        if self._watched.begun != begun or not self._looks_quiet():
            return
        self._fruitless = 0
        if self._store_time is not None:
            self._store_time.skip(seconds)
        self._clock.skipped += seconds
        for node in self._nodes:  # which has renewed its leases all the time
            for run in node.runs.values():
                run.trusted_until += seconds
            if held := node.held():
                self._store.renew_blocking(node.owner, held, node.settings.lease)

    async def _found_nothing(self) -> None:
        self._fruitless += 1
        if self._fruitless >= _LOOKS_BEFORE_DEADLOCK and not self._loop.has_open_io:
            self._fruitless = 0
            self._tell(Deadlock(await self._explanation()))

    def _tell(self, error: Exception) -> None:
        """Raise an error where the test waits for a job."""
        self._waits.fail(error)

    async def _until_settled(self) -> None:
        """Wait until the store has answered what was due up to now."""
        if self._closing:
            return
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling[settled] = 0
        try:
            await settled
        finally:
            del self._settling[settled]

    def _is_settled(self) -> bool:
        return self._watched.under_way == 0 and self._loop.is_quiet

    def _count_settled(self, *, settled: bool) -> None:
        for future, looks in self._settling.items():
            self._settling[future] = looks + 1 if settled else 0
            if looks + 1 >= _LOOKS_UNTIL_SETTLED and settled and not future.done():
                future.set_result(None)

    # Whether everything waits

    async def _is_quiet(self) -> bool:
        return await self._on_loop(self._looks_quiet)

    async def _on_loop(self, function: Callable[[], T]) -> T:
        """Call a function as a callback of the loop, when no process is running."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        loop.call_soon(lambda: future.set_result(function()))
        return await future

    def _looks_quiet(self) -> bool:
        """Whether nothing can happen before a time has come."""
        at_work = self._watched.under_way or is_any_at_work() or is_offloading()
        if at_work or not self._loop.is_quiet:
            return False
        for node in self._nodes:
            if node.claiming or node.looking or _uses_os_process(node):
                return False
            if node.runs and self._loop.has_open_io:
                return False
        return True

    async def _explanation(self) -> str:
        """Return why the test would wait for ever."""
        jobs = await self._store.jobs(JobQuery(limit=20))
        waiting = [
            f"  job {job.id} ({job.name}) is {job.state.value}{_reason(job)}"
            for job in jobs
            if job.state not in ENDED
        ]
        return "\n".join([_WAITS_FOR_EVER, *waiting, _WHAT_TO_DO])


def _uses_os_process(node: WorkerNode) -> bool:
    return any(
        isinstance(operation, StepOperation) and operation.step.isolation == "process"
        for run in node.runs.values()
        for operation in run.working
    )


def _reason(job: Job) -> str:
    if job.error is not None:
        return f": {Failure.unpack(job.error).summary()}"
    if job.wait is None:
        return ""
    waits = decode(job.wait, list[dict[str, Any]])
    return ", and waits for " + ", ".join(
        f"{each.get('kind')} {each.get('topic') or each.get('title') or each.get('id')!r}"
        for each in waits
    )


@contextlib.asynccontextmanager
async def environment(
    app: App, *, url: str | None = None, worker: WorkerSettings | None = None
) -> AsyncGenerator[Environment, None]:
    """Run an app in a test: on a new store, with a worker, in time that skips.

    Inside the block everything that the app does goes to that store; the app's own is not touched.

    Args:
        app: The app, which must not be open.
        url: By default a temporary SQLite file. `postgresql://…` is a server: the test gets a new
            schema there, deleted at its end. `sqlite:///…` is a file that stays.
        worker: The settings of the worker; by default those of the app.

    Raises:
        StoreError: The store cannot be opened.
        RuntimeError: The loop is not one of asyncio's own.
    """
    try:
        current()
    except (NotInProcess, NoProcess):
        opened = _in_task(app, url, worker or app.worker_settings)
    else:
        opened = _in_process(app, url, worker or app.worker_settings)
    async with opened as env:
        yield env


@contextlib.asynccontextmanager
async def _in_task(
    app: App, url: str | None, worker: WorkerSettings
) -> AsyncGenerator[Environment, None]:
    """Give an environment whose processes live in a task of its own.

    A fixture is set up in one task, used in a second one and torn down in a third: none of them can
    be the root of processes.
    """
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Environment] = loop.create_future()
    over = asyncio.Event()

    async def host() -> None:
        try:
            async with Runtime(runtime_settings(worker)), _in_process(app, url, worker) as env:
                if not opened.done():
                    opened.set_result(env)
                await over.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    task = Context().run(loop.create_task, host())  # it belongs to nobody else's process
    try:
        yield await opened
    finally:
        over.set()
        await asyncio.wait([task])
    task.result()


@contextlib.asynccontextmanager
async def _in_process(
    app: App, url: str | None, worker: WorkerSettings
) -> AsyncGenerator[Environment, None]:
    with contextlib.ExitStack() as stack:
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-test-"))
            url = f"sqlite:///{Path(folder) / 'jobs.db'}"
        store_time: StoreTime | None = None
        if not url.startswith("sqlite:"):
            made = import_module("perdure.testing.postgres_time").PostgresTime(url)
            stack.callback(made.close)
            store_time, url = made, str(made.url)
        stack.callback(_restore, app, app.url, app.clock, app.intercept)
        await app.close()
        env = Environment(app, worker)
        await env.open(url, store_time)
        try:
            yield env
        finally:
            await env.close()


def _restore(app: App, url: str, clock: Clock | None, intercept: Intercept | None) -> None:
    app.url, app.clock, app.intercept = url, clock, intercept
