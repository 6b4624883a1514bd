"""The state that all parts of one worker share: its store, its settings, its running jobs."""

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections import deque
from collections.abc import Collection, Sequence

import msgspec

from perdure.base.clock import BootClock, SystemClock
from perdure.base.codec import PayloadLimits
from perdure.base.errors import EncryptionError
from perdure.base.machine import boot_id
from perdure.engine.journal.run import Run
from perdure.engine.journal.verdict import Cancelled, Drained, Paused, RunLost, Unwound
from perdure.engine.policy import Gatekeeper, Policy
from perdure.engine.progress_reports import ProgressReports
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.redis_hint import RedisHint
from perdure.engine.worker.worker_lock import WorkerLock
from perdure.engine.worker_port import StartedStep, StepHost
from perdure.jobs.fleet import Definitions, Known, WorkerInfo
from perdure.jobs.model import JobNews, QueueLimit
from perdure.jobs.registry import DefinitionTable
from perdure.jobs.state import JobState
from perdure.process.lifecycle import PLAIN, spawn_process
from perdure.process.process import Process, current
from perdure.store.store import Store

_log = logging.getLogger("perdure.worker")

# Shorter ones change nothing for a lease, and cannot be told from a slow read of the clock.
_LEAST_SUSPENSION = 0.05  # seconds
_MOST_REMEMBERED = 10_000  # jobs that wait, of which it is known that only this worker has run them


def _process_for_worker() -> Process:
    me = current("a worker")
    if not getattr(me.runtime.loop, "is_held", True):
        raise RuntimeError(
            "a worker cannot run in virtual time, which does not wait for a database: "
            "use `async with perdure.testing.environment(app):` in this test"
        )
    return me


class WorkerNode:
    """One worker. It belongs to one event loop; only `held` is called from another thread."""

    # By the loop's clock: when the store last heard of it, and the last pulse of its loop.
    registered_at: float | None = None
    pulse_at: float | None = None
    _suspended = 0.0  # see `suspended`
    key = ""  # the id of the key by which it encrypts payloads
    lacks_keys: tuple[str, ...] = ()  # of the store; it claims nothing without them

    def __init__(  # noqa: PLR0915 - one state
        self,
        store: Store,
        registry: DefinitionTable,
        settings: WorkerSettings,
        queues: dict[str, QueueLimit],
        limits: PayloadLimits,
        policy: Policy | None = None,
    ) -> None:
        me = _process_for_worker()
        self.store = store
        self.registry = registry
        self.settings = settings
        self.queues = queues
        self.limits = limits
        self.policy = policy or Policy()
        self.gatekeeper = Gatekeeper(self.policy)
        self.fingerprint_key = b""  # the store's, once this worker is up
        self.notices_due = asyncio.Event()  # there may be something to send to people
        self.schedules_due = asyncio.Event()  # a schedule may be due
        self.approvals_due = asyncio.Event()  # people may have to be reminded of an approval
        self.commanded = asyncio.Event()  # somebody asks something of this worker
        self.lock: WorkerLock | None = None  # for its neighbours, once this worker is up
        self.owner = uuid.uuid4().hex  # never used again, not even by a worker of the same process
        self.runtime, self.loop = me.runtime, me.runtime.loop
        self.runs: dict[str, Run] = {}
        self.claimed: set[str] = set()  # jobs that run here, or are about to
        # Jobs that only this worker has run since they began, by the epoch of their last run here.
        self._only_here: dict[str, int] = {}
        self.looking = False  # the producer is looking: a command to a job may be known soon
        self.claiming = False  # a claim is under way: we may own jobs that are not in `claimed` yet
        self.draining = self.stopping = False  # stopping: it drains for good
        self.wanted = asyncio.Event()  # the producer should look for work
        self.changed = asyncio.Event()  # set when a run ends
        self.hurried = asyncio.Event()  # do not wait for safe points any more
        self.hint: RedisHint | None = None  # when to claim; set before the worker starts
        self.step_host = StepHost(self.owner, settings.processes)
        self.large_payloads: set[tuple[str, str, str]] = set()  # that were logged
        self.known_steps: dict[int, tuple[str, bool]] = {}  # of registered steps, which live on
        self.started: deque[StartedStep] = deque()
        self.flush_timer: asyncio.TimerHandle | None = None
        self.reports = ProgressReports(store, self.owner, me.runtime, settings.report_every)
        self.known = Known("[]", "[]")  # which jobs it may claim
        self.fleet_size = 1  # how many workers were alive at its last heartbeat
        # How many jobs and steps it has published, and the digest of them.
        self._published_size, self._digest = (-1, -1), ""
        self._info = WorkerInfo(
            host=socket.gethostname(),
            boot=boot_id(),
            pid=os.getpid(),
            started_at=SystemClock().time(),
            queues=tuple(queues),
            concurrency=settings.concurrency,
            allow_kill=settings.allow_kill,
        )

    # What this worker says about itself

    @property
    def os_pid(self) -> int:
        """The OS process that it runs in."""
        return self._info.pid

    async def register(self) -> None:
        """Tell the store that this worker is alive, and what it knows if that is new."""
        size = len(self.registry.jobs), len(self.registry.steps)
        if size != self._published_size:  # what is registered stays, so nothing else changes
            definitions = Definitions.of(self.registry)
            self._digest = await self.store.publish(definitions.pack())
            self.known, self._published_size = definitions.known(), size
        silence = self.settings.lease
        said = msgspec.structs.replace(self._info, draining=self.draining, key=self.key)
        info = msgspec.json.encode(said)
        since = self.lease_time()
        heard = await self.store.heartbeat(self.owner, info, self._digest, silence)
        self.fleet_size, self.registered_at = heard.workers, self.loop.time()
        for run in self.runs.values():  # somebody may have set the store's clock
            run.correct_clock(heard.now - self.lease_time(), heard.now - since)
        await self._look_for_keys()

    async def _look_for_keys(self) -> None:
        """Say so if this worker lacks a new key of the store: it claims nothing then."""
        try:
            await self.store.check_keys()
        except EncryptionError as error:
            if not self.lacks_keys:
                _log.error("this worker claims no more jobs: %s", error)
            self.lacks_keys = error.missing
        else:
            self.lacks_keys = ()

    @property
    def knows_more(self) -> bool:
        """Whether steps or jobs were registered since this worker has published what it knows."""
        return (len(self.registry.jobs), len(self.registry.steps)) != self._published_size

    # Runs

    def admit(self, run: Run, since: float) -> None:
        """Add a run, claimed at that `lease_time` or later."""
        run.trusted_until = since + self.settings.lease - self.settings.stop_before_expiry
        self.claimed.add(run.job.id)
        if old := self.runs.get(run.job.id):  # its lease ran out, and we claimed the job again
            old.lose_lease()
        self.runs[run.job.id] = run
        last = self._only_here.pop(run.job.id, None)
        run.same_code = not run.journal.entries or last == run.epoch - 1
        if self.draining:
            run.end(Drained())

    def dismiss(self, run: Run) -> None:
        """Remove a run that has ended."""
        if self.runs.get(run.job.id) is run:
            del self.runs[run.job.id]
            self.claimed.discard(run.job.id)
            if run.same_code and run.verdict is not None:  # else the code itself has ended the job
                self._remember(run)
        self.changed.set()
        self.poke()

    def _remember(self, run: Run) -> None:
        self._only_here[run.job.id] = run.epoch
        if len(self._only_here) > _MOST_REMEMBERED:
            del self._only_here[next(iter(self._only_here))]

    @property
    def free(self) -> int:
        """The number of jobs that may still be claimed."""
        return 0 if self.draining else self.settings.concurrency - len(self.claimed)

    def poke(self) -> None:
        """Make the producer look for work soon."""
        self.wanted.set()

    def drain(self) -> None:
        """Claim nothing more, and release every job at its next safe point."""
        self.draining = True
        for run in tuple(self.runs.values()):
            run.end(Drained())

    def resume(self) -> None:
        """Claim again after a drain, unless this worker is stopping."""
        self.draining = self.stopping
        self.poke()

    def hurry(self) -> None:
        """Stop waiting for safe points: steps are cancelled, and their jobs released."""
        self.hurried.set()
        self.changed.set()

    # News: requests and messages to jobs that run here

    def apply_news(self, news: Sequence[JobNews], asked_for: Collection[Run]) -> None:
        """Carry out what is requested of our jobs, and stop those that we no longer own.

        Args:
            news: Of all jobs that this worker owns, as the store reports it.
            asked_for: The runs that were here when the store was queried.
        """
        ours = {each.job_id for each in news}
        for run in asked_for:
            if run.job.id not in ours and run.verdict is None and not run.code_ended:
                run.lose_lease()
        for each in news:
            run = self.runs.get(each.job_id)
            if run is not None and (each.news, each.ends) != (run.news, run.ends):
                self._apply_request(run, each)

    def _apply_request(self, run: Run, news: JobNews) -> None:
        match news.request:
            case "cancel":  # also that of a job that finishes: see `after_failure`
                run.job = msgspec.structs.replace(run.job, request="cancel")
                if run.job.state is not JobState.COMPENSATING and not self._finishes(run):
                    run.end(Cancelled())
            case "pause":
                run.end(Paused())
            case _:
                run.unpause()
                spawn_process(self.runtime, run.process, _read_news, (run, news), PLAIN)

    def _finishes(self, run: Run) -> bool:
        """Whether a job runs to its end although somebody has cancelled it."""
        definition = self.registry.jobs.get(run.job.name)
        return definition is not None and definition.on_cancel == "finish"

    # Leases

    def lease_time(self) -> float:
        """Return seconds by which leases are trusted: the loop's, and those of suspensions."""
        return self.loop.time() + self.suspended()

    def suspended(self) -> float:
        """Return for how long the machine was suspended, without the noise of reading two clocks.

        The two reads may be some time apart on a busy machine. Times that this is part of must not
        go back and forth for that.
        """
        seconds = BootClock.suspended()
        if seconds > self._suspended + _LEAST_SUSPENSION:
            self._suspended = seconds
        return self._suspended

    def held(self) -> list[tuple[str, int]]:
        """Return the leases to be renewed, as pairs of job and epoch.

        This includes jobs that make no progress: another worker that took such a job would run its
        code a second time, concurrently. People are alerted instead.
        """
        return [
            (run.job.id, run.epoch)
            for run in tuple(self.runs.values())
            if (run.verdict is None and not run.code_ended) or self.makes_progress(run)
        ]

    def held_by_running_code(self, blocks: Run | None) -> list[tuple[str, int]]:
        """Return the leases of the job that blocks the loop, and of steps that run beside it."""
        return [
            (run.job.id, run.epoch)
            for run in tuple(self.runs.values())
            if run is blocks or any(operation.runs_beside_loop for operation in tuple(run.working))
        ]

    def makes_progress(self, run: Run) -> bool:
        """Whether a run has made progress lately."""
        return self.loop.time() - run.progress_at <= self._patience(run)

    def _patience(self, run: Run) -> float:
        """Return how long a run may make no progress: a step's own timeout may allow more."""
        limits = [op.max_duration for op in tuple(run.working)]
        return max(self.settings.stuck_after, *limits, 0.0)

    def renewed(self, asked: list[tuple[str, int]], kept: set[str], since: float) -> None:
        """Record which leases were renewed, and stop the runs whose lease was not.

        Args:
            asked: The leases that were to be renewed.
            kept: The jobs whose leases were.
            since: When the renewal was sent, by `lease_time`: the lease counts from then.
        """
        for job_id, epoch in asked:
            run = self.runs.get(job_id)
            if run is None or run.epoch != epoch:
                continue
            if job_id in kept:
                run.trusted_until = since + self.settings.lease - self.settings.stop_before_expiry
            else:
                run.lose_lease()

    def stop_expired(self) -> None:
        """Stop the runs whose lease may run out soon, because no renewal came through."""
        now = self.lease_time()
        for run in tuple(self.runs.values()):
            if run.verdict is None and now > run.trusted_until:
                run.lose_lease()

    # Buffered writes

    def flush_soon(self) -> None:
        """Write what is buffered soon, if no other write takes it along."""
        if self.flush_timer is None:
            after = self.settings.start_record_after
            self.flush_timer = self.loop.call_later(after, self._flush_now)

    def _flush_now(self) -> None:
        self.flush_timer = None
        limit = self.loop.time() - self.settings.start_record_after
        while self.started and self.started[0].begun_at <= limit:
            self.started.popleft().record_start()
        for run in tuple(self.runs.values()):
            if run.has_buffered and run.verdict is None:
                spawn_process(self.runtime, run.process, _flush_run, (run,), PLAIN)
        if self.started:
            self.flush_soon()

    def close(self) -> None:
        """Cancel the timers, and stop what still runs."""
        self.reports.close()
        if self.flush_timer is not None:
            self.flush_timer.cancel()
        for run in tuple(self.runs.values()):
            run.stop(RunLost())


async def _flush_run(run: Run) -> None:
    await run.flush()


async def _read_news(run: Run, news: JobNews) -> None:
    with contextlib.suppress(Unwound):
        run.on_news(news, await run.ask(lambda store: store.messages(run.job.id)))
