"""Prometheus metrics: counts what telemetry tells, and shows what the store holds.

    metrics = Metrics()
    with metrics.listening():
        ...
        text = await metrics.text(app.store)

Counters and histograms come from telemetry events of this OS process. Gauges about jobs, queues,
approvals, effects and workers come from the store, and are therefore the same in every process
that exports them: take their maximum, not their sum. They are read when somebody asks for the
metrics, at most every few seconds.

Every metric belongs to the registry of one `Metrics`; nothing is global. A label never has more
than a hundred values: what comes later is counted as "other". Ids of jobs are never labels.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from itertools import count
from operator import add
from typing import Any, Final, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from perdure.base import telemetry
from perdure.base.clock import Clock, SystemClock
from perdure.base.errors import StoreError
from perdure.base.telemetry import Event, Values
from perdure.engine import events
from perdure.engine.attendance import SILENT
from perdure.jobs.gauges import StoreGauges
from perdure.otp.supervision.loop import GIVE_UP_EVENT, RESTART_EVENT, RETRY_EVENT
from perdure.process.lifecycle import EXIT_EVENT, SPAWN_EVENT
from perdure.store.db_thread import BATCH
from perdure.store.store import Store

MOST_VALUES: Final = 100  # of one label
OTHER: Final = "other"
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_CACHED: Final = 5.0  # seconds for which what was read from the store is shown again
_PATIENCE: Final = 3.0  # seconds that the store has to answer

StoreGetter: TypeAlias = Callable[[], Awaitable[Store]]

_handlers = count(1)  # each `Metrics` listens under an id of its own

# What is counted

_HOURS: Final = tuple(3600 * hours for hours in (0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48))
# From a quarter of an hour on, twice as long is never the same bucket.
_WORK: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, *_HOURS)
_STEP: Final = (0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200)
_WAIT: Final = (1, 10, 60, 300, 900, 3600, 4 * 3600, 86400, 3 * 86400, 7 * 86400)
_QUICK: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_ATTEMPTS: Final = (1, 2, 3, 4, 5, 7, 10, 20, 50)
_BYTES: Final = (128, 512, 1024, 4096, 10_240, 65_536, 262_144, 1_048_576)


class Counted(NamedTuple):
    """A metric that grows with events: a histogram if it has buckets, otherwise a counter."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


COUNTED: Final = (
    Counted("perdure_jobs_submitted_total", "Jobs that this process has submitted.", ("name",)),
    Counted("perdure_jobs_unserved_total", "Submissions that no worker could claim.", ("queue",)),
    Counted("perdure_job_claims_total", "Claims of jobs.", ("queue",)),
    Counted("perdure_job_queued_seconds", "From submission to the first claim.", ("queue",), _WAIT),
    Counted("perdure_jobs_total", "Jobs that have ended.", ("name", "outcome")),
    Counted(
        "perdure_job_duration_seconds", "Time that workers had a job that ended.", ("name",), _WORK
    ),
    Counted(
        "perdure_job_age_seconds", "From the submission of a job to its end.", ("name",), _WAIT
    ),
    Counted("perdure_jobs_parked_total", "Jobs that have come to need attention.", ("name",)),
    Counted("perdure_job_stalls_total", "Jobs found to make no progress."),
    Counted("perdure_step_attempts_total", "Attempts that have ended.", ("step", "outcome")),
    Counted("perdure_step_duration_seconds", "How long an attempt took.", ("step",), _STEP),
    Counted(
        "perdure_step_attempts_needed", "How many attempts a success took.", ("step",), _ATTEMPTS
    ),
    Counted("perdure_step_retries_total", "Failed attempts that are repeated.", ("step",)),
    Counted("perdure_checkpoint_size_bytes", "The size of a checkpoint.", ("step",), _BYTES),
    Counted("perdure_payloads_large_total", "Results and checkpoints of 10 KB or more.", ("what",)),
    Counted("perdure_compensations_total", "Undos that have ended.", ("outcome",)),
    Counted("perdure_effects_total", "Lines of the ledger.", ("kind", "state")),
    Counted(
        "perdure_effect_duplicates_total", "Effects not repeated, thanks to the ledger.", ("kind",)
    ),
    Counted("perdure_approvals_asked_total", "Questions to people.", ("risk",)),
    Counted(
        "perdure_approvals_decided_total", "Questions that were decided.", ("state", "channel")
    ),
    Counted("perdure_approval_wait_seconds", "From a question to its answer.", ("risk",), _WAIT),
    Counted("perdure_notices_total", "Deliveries of messages and alerts.", ("channel", "state")),
    Counted("perdure_spend_usd_total", "What steps have spent, in USD.", ("step",)),
    Counted("perdure_spend_tokens_total", "Tokens that steps have used.", ("step",)),
    Counted("perdure_schedule_delay_seconds", "How late a schedule was run.", (), _WAIT),
    Counted("perdure_leases_lost_total", "Jobs that this worker lost, or may have lost."),
    Counted("perdure_writes_refused_total", "Writes that the store refused to a former owner."),
    Counted("perdure_jobs_taken_over_total", "Jobs taken from workers that are gone."),
    Counted("perdure_lease_renewal_seconds", "How long a renewal of all leases took.", (), _QUICK),
    Counted("perdure_loop_lag_seconds", "How late the event loop of a worker was.", (), _QUICK),
    Counted("perdure_store_seconds", "How long a batch of requests took.", ("thread",), _QUICK),
    Counted("perdure_store_errors_total", "Requests to the store that failed.", ("thread",)),
    Counted("perdure_processes_spawned_total", "Processes that have started."),
    Counted("perdure_processes_exited_total", "Processes that have ended.", ("outcome",)),
    Counted("perdure_process_restarts_total", "Restarts of children by supervisors.", ("child",)),
    Counted("perdure_supervisor_failures_total", "Supervisors that gave up."),
)


_DECLARED: Final = {each.name: each for each in COUNTED}


class _Rule(NamedTuple):
    """Which event changes which metric: by 1, or by one of its measurements."""

    event: Event
    metric: str
    value: str = ""
    fixed: Mapping[str, str] = {}
    when: Callable[[Values], bool] = lambda _: True
    opens: bool = False  # it only shows the zero, which the first value is compared with


def _is_new(facts: Values) -> bool:
    return bool(facts["new"])


def _is_first(facts: Values) -> bool:
    return bool(facts["first"])


def _succeeded(facts: Values) -> bool:
    return facts["outcome"] == "succeeded"


def _undid(facts: Values) -> bool:
    return _succeeded(facts) and str(facts["step"]).startswith("undo:")


_RULES: Final = (
    _Rule(events.JOB_SUBMIT, "perdure_jobs_submitted_total", when=_is_new),
    _Rule(events.JOB_UNSERVED, "perdure_jobs_unserved_total"),
    _Rule(events.JOB_CLAIM, "perdure_job_claims_total"),
    _Rule(events.JOB_CLAIM, "perdure_job_queued_seconds", "age", when=_is_first),
    # A long job may be the only one of its name that ends before the next restart.
    _Rule(events.JOB_CLAIM, "perdure_job_duration_seconds", opens=True),
    _Rule(events.JOB_END, "perdure_jobs_total"),
    _Rule(events.JOB_END, "perdure_job_duration_seconds", "worked"),
    _Rule(events.JOB_END, "perdure_job_age_seconds", "age"),
    _Rule(events.JOB_PARK, "perdure_jobs_parked_total"),
    _Rule(events.JOB_STUCK, "perdure_job_stalls_total"),
    _Rule(events.STEP_STOP, "perdure_step_attempts_total"),
    _Rule(events.STEP_STOP, "perdure_step_duration_seconds", "duration"),
    _Rule(events.STEP_STOP, "perdure_step_attempts_needed", "attempt", when=_succeeded),
    _Rule(events.STEP_STOP, "perdure_compensations_total", when=_undid),
    _Rule(events.UNDO_FAIL, "perdure_compensations_total", fixed={"outcome": "failed"}),
    _Rule(events.STEP_RETRY, "perdure_step_retries_total"),
    _Rule(events.STEP_CHECKPOINT, "perdure_checkpoint_size_bytes", "bytes"),
    _Rule(events.PAYLOAD_LARGE, "perdure_payloads_large_total"),
    *(
        _Rule(event, "perdure_effects_total", fixed={"state": state.lower()})
        for state, event in events.EFFECT.items()
    ),
    _Rule(events.EFFECT_REUSE, "perdure_effect_duplicates_total"),
    _Rule(events.APPROVAL_ASK, "perdure_approvals_asked_total"),
    _Rule(events.APPROVAL_DECIDE, "perdure_approvals_decided_total", "decided"),
    _Rule(events.APPROVAL_DECIDE, "perdure_approval_wait_seconds", "waited"),
    _Rule(events.NOTICE_SEND, "perdure_notices_total"),
    _Rule(events.SPEND, "perdure_spend_usd_total", "usd"),
    _Rule(events.SPEND, "perdure_spend_tokens_total", "tokens"),
    _Rule(events.SCHEDULE_FIRE, "perdure_schedule_delay_seconds", "lag"),
    _Rule(events.LEASE_LOSE, "perdure_leases_lost_total"),
    _Rule(events.LEASE_REFUSE, "perdure_writes_refused_total"),
    _Rule(events.LEASE_TAKE, "perdure_jobs_taken_over_total", "jobs"),
    _Rule(events.LEASE_RENEW, "perdure_lease_renewal_seconds", "duration"),
    _Rule(events.LOOP_LAG, "perdure_loop_lag_seconds", "lag"),
    _Rule(BATCH, "perdure_store_seconds", "duration"),
    _Rule(BATCH, "perdure_store_errors_total", "failed"),
    _Rule(SPAWN_EVENT, "perdure_processes_spawned_total"),
    _Rule(EXIT_EVENT, "perdure_processes_exited_total"),
    _Rule(RESTART_EVENT, "perdure_process_restarts_total"),
    _Rule(RETRY_EVENT, "perdure_process_restarts_total"),
    _Rule(GIVE_UP_EVENT, "perdure_supervisor_failures_total"),
)


def _outcome(facts: Values) -> str:
    if "result" in facts:  # of a process
        return "normal" if facts["result"].error is None else "error"
    return str(facts["outcome"] if "outcome" in facts else facts["state"]).lower()


# Labels whose value is not simply the fact of that name.
_LABELS: Final[Mapping[str, Callable[[Values], object]]] = {
    "outcome": _outcome,
    "state": lambda facts: str(facts["state"]).lower(),
    "step": lambda facts: facts["step_name"],
}


class Bounded:
    """The values of one label, of which there are at most so many."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: object) -> str:
        """Return the value as it is shown: itself, or "other"."""
        text = str(value)
        if text in self._known:
            return text
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(text)
        return text


class Metrics:
    """The metrics of one OS process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        """Start at zero; nothing is counted before `listening`.

        Args:
            clock: Of this machine, for the age of what was read, and for the skew of clocks.
        """
        self.registry = CollectorRegistry()
        self._clock = clock or SystemClock()
        self._labels: dict[str, Bounded] = {}
        self._store = _StoreGauges(self._bounded)
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._metrics = {each.name: self._made(each) for each in COUNTED}
        self._rules: dict[Event, list[_Rule]] = {}
        for rule in _RULES:
            self._rules.setdefault(rule.event, []).append(rule)
        # An alert on the first failure needs the zero before it.
        self._metrics["perdure_compensations_total"].labels("failed")
        self.registry.register(self._store)

    def _made(self, metric: Counted) -> Any:
        name, text, labels, buckets = metric
        if buckets:
            return Histogram(name, text, labels, buckets=buckets, registry=self.registry)
        return Counter(name, text, labels, registry=self.registry)

    # Listening

    @contextlib.contextmanager
    def listening(self) -> Generator["Metrics", None, None]:
        """Count the telemetry of this OS process inside the block."""
        id = ("perdure.observe.prometheus", next(_handlers))
        telemetry.attach_many(id, self._rules, self._hear)
        try:
            yield self
        finally:
            with contextlib.suppress(LookupError):  # a handler that failed was detached
                telemetry.detach(id)

    def _hear(self, event: Event, measured: Values, facts: Values, _config: object) -> None:
        for rule in self._rules[event]:
            amount = measured.get(rule.value) if rule.value else 1
            if amount is not None and rule.when(facts):
                self._count(rule, amount, facts)

    def _count(self, rule: _Rule, amount: float, facts: Values) -> None:
        declared, metric = _DECLARED[rule.metric], self._metrics[rule.metric]
        values = [self._value(name, rule, facts) for name in declared.labels]
        child = metric.labels(*values) if values else metric
        if rule.opens:
            return
        (child.observe if declared.buckets else child.inc)(amount)

    def _value(self, label: str, rule: _Rule, facts: Values) -> str:
        if label in rule.fixed:
            return rule.fixed[label]
        found = _LABELS[label](facts) if label in _LABELS else facts[label]
        return self._bounded(label, found)

    def _bounded(self, label: str, value: object) -> str:
        return self._labels.setdefault(label, Bounded())(value)

    # Showing

    async def text(self, store: StoreGetter | None = None) -> bytes:
        """Return all metrics in the text format of Prometheus.

        Args:
            store: Returns the store to be read; without it, only what was counted is shown. If it
                does not answer, `perdure_store_up` is 0 and its gauges are left out.
        """
        if store is not None:
            async with self._reading:  # who asks meanwhile gets the same answer
                await self._refresh(store)
        return generate_latest(self.registry)

    async def _refresh(self, store: StoreGetter) -> None:
        now = self._clock.monotonic()
        if self._read_at is not None and now - self._read_at < _CACHED:
            return
        self._read_at = now
        try:
            async with asyncio.timeout(_PATIENCE):
                self._store.found = await (await store()).gauges()
        except (StoreError, TimeoutError):
            self._store.found = None
        else:
            self._store.skew = self._store.found.now - self._clock.time()


class _StoreGauges(Collector):
    """Shows what was last read from the store."""

    def __init__(self, bounded: Callable[[str, object], str]) -> None:
        self.found: StoreGauges | None = None
        self.skew = 0.0
        self._bounded = bounded

    def collect(self) -> Iterable[GaugeMetricFamily]:
        found = self.found
        yield _gauge("perdure_store_up", "1: the store has answered.", found is not None)
        if found is None:
            return
        yield from self._backlogs(found)
        yield from self._workers(found)
        yield _gauge(
            "perdure_clock_skew_seconds", "The clock of the store, less that of here.", self.skew
        )

    def _backlogs(self, found: StoreGauges) -> Iterable[GaugeMetricFamily]:
        states = {state.lower(): number for state, number in found.states.items()}
        yield self._labelled("perdure_jobs_in_state", "Jobs that have not ended.", "state", states)
        depth = {name: queue.count for name, queue in found.queues.items()}
        oldest = {name: queue.oldest for name, queue in found.queues.items()}
        yield self._labelled("perdure_queue_depth", "Jobs ready to be claimed.", "queue", depth)
        yield self._labelled(
            "perdure_queue_oldest_ready_seconds", "How long the oldest is ready.", "queue", oldest
        )
        yield _gauge(
            "perdure_jobs_stuck",
            "Jobs without progress, or whose workers have not renewed their leases in time.",
            found.stuck,
        )
        for name, what, backlog in (
            ("perdure_approvals_pending", "Questions that nobody has answered", found.approvals),
            ("perdure_effects_in_doubt", "Effects whose outcome nobody knows", found.in_doubt),
            ("perdure_notices_pending", "Messages that are not delivered", found.notices),
        ):
            yield _gauge(name, f"{what}.", backlog.count)
            yield _gauge(f"{name}_oldest_seconds", f"{what}: the oldest.", backlog.oldest)
        yield _gauge(
            "perdure_schedule_lag_seconds", "How late the latest schedule is.", found.schedule_lag
        )

    def _workers(self, found: StoreGauges) -> Iterable[GaugeMetricFamily]:
        silent = [each for each in found.workers if each.silent_for > SILENT]
        counts = {"alive": len(found.workers) - len(silent), "silent": len(silent)}
        yield self._labelled("perdure_workers", "Registered workers.", "state", counts)
        slots = {
            "busy": sum(each.running for each in found.workers),
            "all": sum(each.concurrency for each in found.workers),
        }
        yield self._labelled("perdure_fleet_slots", "Slots of all workers.", "state", slots)
        ages = {each.name: each.silent_for for each in found.workers[:MOST_VALUES]}
        yield self._labelled(
            "perdure_heartbeat_age_seconds", "Since the last heartbeat.", "worker", ages
        )

    def _labelled(
        self, name: str, text: str, label: str, values: Mapping[str, float]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=(label,))
        combined: Callable[[float, float], float] = max if name.endswith("_seconds") else add
        shown: dict[str, float] = {}
        for value, number in values.items():
            # Workers come and go: those that are there now are few enough.
            seen = value if label == "worker" else self._bounded(label, value)
            shown[seen] = combined(shown.get(seen, 0), number)
        for seen, number in shown.items():
            family.add_metric((seen,), number)
        return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))
