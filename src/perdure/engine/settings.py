"""The settings of a worker, checked to be consistent with each other."""

from dataclasses import dataclass

from perdure.base.checked import misfit
from perdure.base.duration import Duration, job_seconds, named_seconds
from perdure.base.machine import cores


@dataclass(frozen=True, slots=True, init=False)
class WorkerSettings:
    """The settings of a worker; durations are kept as seconds."""

    # The most jobs that run at once in this worker.
    concurrency: int
    # OS processes for steps with `isolation="process"`; started when the first of them runs.
    processes: int
    # How long a claim is valid without a renewal.
    lease: float
    # How often all claims of the worker are renewed, in one write.
    heartbeat: float
    # How long before its lease runs out a job is stopped, if no renewal has come through.
    stop_before_expiry: float
    # A job that makes no progress for this long is stuck: people are alerted.
    # An event loop that is blocked for this long counts as dead: its leases are not renewed.
    stuck_after: float
    # How often a job may crash its worker before it needs attention.
    max_claims: int
    # A shorter wait keeps the job in memory; a longer one frees the worker.
    keep_in_memory: float
    # During a replay, how long code may wait, without being resumed, for something that is not an
    # operation, such as an answer over HTTP, before it counts as drifted from its journal.
    replay_patience: float
    # The same for code whose operations all wait: then the job is suspended until they are due.
    idle_patience: float
    # How often, at most, what steps report of their progress is written, for all jobs at once.
    report_every: float
    # How often to look for work without a hint; hints may be lost, polls are not.
    poll: float
    # The time that a cancelled step gets between CANCEL and kill.
    cancel_grace: float
    # The time that the steps of a draining worker get to reach a safe point.
    drain_grace: float
    # A step that runs longer is recorded as started, too; a shorter one only when it ends.
    start_record_after: float
    # The most that is kept of the output of a job, for each topic; the oldest is dropped.
    output_pieces: int
    output_bytes: int
    # How often to look for neighbours on the same machine that have died: by their locks.
    reap_every: float
    # How often all workers together look for leases that have run out: each takes its turn.
    expiry_every: float
    # How many jobs may be taken from dead owners at a time.
    reap_limit: int
    # How long ended jobs are kept; None: for ever.
    keep: float | None
    # Whether operators may kill processes of this worker; its jobs go on from their journals.
    allow_kill: bool

    def __init__(  # noqa: PLR0913  a record has a parameter for each field
        self,
        *,
        concurrency: int = 100,
        processes: int | None = None,
        lease: Duration = "2m",
        heartbeat: Duration = "30s",
        stop_before_expiry: Duration = "35s",
        stuck_after: Duration = "5m",
        max_claims: int = 5,
        keep_in_memory: Duration = "1s",
        replay_patience: Duration = "1m",
        idle_patience: Duration = "1s",
        report_every: Duration = "2s",
        poll: Duration = "5s",
        cancel_grace: Duration = "1s",
        drain_grace: Duration = "20s",
        start_record_after: Duration = "100ms",
        output_pieces: int = 10_000,
        output_bytes: int = 8 * 1024 * 1024,
        reap_every: Duration = "500ms",
        expiry_every: Duration = "5s",
        reap_limit: int = 100,
        keep: Duration = None,
        allow_kill: bool = False,
    ) -> None:
        """Check every field, and that they fit together.

        Raises:
            ValueError: A rule is broken; the message names it.
        """
        given = {
            "lease": lease,
            "heartbeat": heartbeat,
            "stop_before_expiry": stop_before_expiry,
            "stuck_after": stuck_after,
            "keep_in_memory": keep_in_memory,
            "replay_patience": replay_patience,
            "idle_patience": idle_patience,
            "report_every": report_every,
            "poll": poll,
            "cancel_grace": cancel_grace,
            "drain_grace": drain_grace,
            "start_record_after": start_record_after,
            "reap_every": reap_every,
            "expiry_every": expiry_every,
        }
        for name, value in given.items():
            object.__setattr__(self, name, named_seconds(name, value))
        object.__setattr__(self, "keep", job_seconds(keep))
        if wrong := misfit(allow_kill, bool):
            raise TypeError(f"allow_kill {wrong}")
        object.__setattr__(self, "allow_kill", allow_kill)
        for name, count in (
            ("concurrency", concurrency),
            ("processes", cores() if processes is None else processes),
            ("max_claims", max_claims),
            ("output_pieces", output_pieces),
            ("output_bytes", output_bytes),
            ("reap_limit", reap_limit),
        ):
            if type(count) is not int:  # a bool is not accepted either
                raise TypeError(f"{name} must be an integer, not {count!r}")
            if count < 1:
                raise ValueError(f"{name} is at least 1, not {count}")
            object.__setattr__(self, name, count)
        self._check_fit()

    def _check_fit(self) -> None:
        for name in ("heartbeat", "poll", "reap_every", "expiry_every"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be longer than 0: it is how often to look")
        if self.heartbeat > self.lease / 3:
            raise ValueError(
                f"heartbeat ({self.heartbeat:g} s) must be at most a third of "
                f"lease ({self.lease:g} s): "
                "two renewals may fail before a claim is lost"
            )
        if not self.heartbeat <= self.stop_before_expiry <= self.lease / 2:
            raise ValueError(
                f"stop_before_expiry ({self.stop_before_expiry:g} s) must be between "
                f"heartbeat ({self.heartbeat:g} s) and "
                f"half of lease ({self.lease / 2:g} s): a worker must stop before its lease ends"
            )
        if self.stuck_after < self.lease:
            raise ValueError(
                f"stuck_after ({self.stuck_after:g} s) must be at least lease ({self.lease:g} s)"
            )
