"""What the engine asks of a store. Two implementations, one conformance suite.

Every verb is one transaction; what it returned is durable, and what raised did nothing.
A verb that is cancelled while it waits happens as a whole or not at all.

A job that has not ended has exactly one *lease* row: who owns it (nobody, while it waits),
its epoch, when it may next be claimed, and a counter of news from outside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from perdure.jobs.effect import Effect
from perdure.jobs.invariant import Violation
from perdure.jobs.model import (
    Claim,
    Command,
    Entry,
    Event,
    Job,
    KeyedEntry,
    Message,
    NewJob,
    News,
    Outcome,
    QueueLimit,
    Schedule,
    Submitted,
    Write,
)
from perdure.jobs.query import JobQuery
from perdure.store.deed_port import DeedStore


class Store(DeedStore, Protocol):
    """The door to the database."""

    async def open(self) -> None:
        """Connect, check what the database can do, bring its schema up to date.

        Raises:
            StoreUnreachable, StoreReadOnly, SchemaError: With what to do.
        """
        ...

    async def close(self) -> None:
        """Finish what is under way and let the database go."""
        ...

    async def now(self) -> float:
        """Read the store's clock: UNIX seconds, by which all due times are kept."""
        ...

    # Submitting and reading

    async def submit(self, jobs: Sequence[NewJob], actor: str = "") -> list[Submitted]:
        """Keep new jobs, all or none; a job whose key is known is the job of that key.

        Raises:
            KeyConflict: The key is known with another fingerprint.
        """
        ...

    async def job(self, job_id: str, tenant: str | None = None) -> Job | None: ...

    async def jobs(self, query: JobQuery) -> list[Job]:
        """Find jobs, newest first."""
        ...

    async def counts(self, tenant: str | None = None) -> dict[str, int]:
        """Count jobs by state."""
        ...

    async def journal(self, job_id: str) -> list[Entry]: ...

    async def entry_by_key(self, key: str) -> KeyedEntry | None:
        """Read a step that has succeeded under its key, in whichever job, and was not undone."""
        ...

    async def events(self, job_id: str, after: int = 0, limit: int = 1000) -> list[Event]:
        """Read a page of a job's log: what comes after the event of this number."""
        ...

    async def has_event(self, job_id: str, types: Sequence[str], since: float) -> bool:
        """Tell whether a job's log has an event of one of these types since a time."""
        ...

    async def messages(self, job_id: str) -> list[Message]:
        """Read what was sent to a job and not yet received."""
        ...

    async def outcomes(self, job_ids: Sequence[str]) -> list[Outcome]: ...

    # Owning

    async def claim(
        self,
        owner: str,
        queues: Mapping[str, QueueLimit],
        free: int,
        lease: float,
    ) -> list[Claim]:
        """Take up to `free` due jobs of these queues: by priority, then in turn by tenant.

        The epoch grows by one, `claims` too, the state becomes RUNNING (COMPENSATING stays).
        """
        ...

    async def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        """Prolong leases `(job, epoch)`; a job that is not returned is lost."""
        ...

    def renew_blocking(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        """Do the same from a thread, also while the loop or the writer is held up."""
        ...

    def write_soon(
        self, write: Write, done: Callable[[BaseException | None], None], *, alone: bool = False
    ) -> bool:
        """Do a fenced write of journal and ledger alone, without a wait.

        Args:
            write: What is written.
            done: Called on the loop when it is durable, or with what `write` would raise.
            alone: Nothing else is under way in this process, so the loop may wait for the disk.

        Returns:
            True if it is durable already: `done` is not called.
        """
        ...

    async def write(
        self,
        write: Write,
        *,
        alone: bool = False,
        done: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        """Do a fenced write. Concurrent writes share one commit.

        If it is `alone`, as above, and small, the loop may wait for the disk.
        `done` is called as above, also if whoever waits is cancelled; not if the store is closed.

        Raises:
            LeaseLost: The owner or the epoch is not that of the lease; nothing was written.
            JournalConflict: Another entry has the place of one of these; nothing was written.
        """
        ...

    async def own_deeds(
        self, job_id: str, owner: str, epoch: int
    ) -> tuple[list[Entry], list[Effect]]:
        """Read journal and ledger of an owned job, behind all that was written before.

        Raises:
            LeaseLost: As above.
        """
        ...

    async def news(self, owner: str) -> list[News]:
        """List the owned jobs with their counters of news and what is asked of them."""
        ...

    async def reap(self, limit: int, dead: Sequence[str] = ()) -> list[str]:
        """Free all jobs of dead owners, and up to `limit` whose lease has run out: due at once."""
        ...

    async def next_due(self, queues: Sequence[str]) -> float | None:
        """Tell when the next unowned job falls due; None if none has a time."""
        ...

    # From outside

    async def send(self, job_id: str, topic: str, payload: bytes, key: str | None = None) -> bool:
        """Leave a message for a job and wake it; False if that key was sent before."""
        ...

    async def command(self, command: Command) -> None:
        """Ask something of a job.

        Raises:
            JobNotFound, IllegalTransition: The text says what state the job is in.
        """
        ...

    async def fork(self, source: str, job: NewJob, before: int, actor: str) -> None:
        """Submit a job with a copy of the journal entries of `source` with `seq < before`."""
        ...

    # Schedules, old jobs, workers

    async def put_schedule(self, schedule: Schedule) -> None:
        """Keep a schedule under its tenant and name.

        One that is there keeps its next time, unless cron or time zone change, and stays paused.
        """
        ...

    async def schedules(self, tenant: str | None = None) -> list[Schedule]:
        """List the schedules by tenant and name."""
        ...

    async def delete_schedule(self, tenant: str, name: str) -> bool:
        """Forget a schedule; False if there is none."""
        ...

    async def pause_schedule(
        self, tenant: str, name: str, next_at: float | None, *, paused: bool
    ) -> bool:
        """Let a schedule rest, or go on from a time; False if there is none."""
        ...

    async def fire(self, schedule: Schedule, next_at: float | None, jobs: Sequence[NewJob]) -> bool:
        """Submit a schedule's jobs and set its next time, if its time is still the one it has."""
        ...

    async def prune(self, ended_before: float, limit: int) -> int:
        """Delete up to so many trees of jobs that have all ended before, each as a whole."""
        ...

    async def fingerprint_key(self) -> bytes:
        """Give the key by which this store's fingerprints of personal data are made."""
        ...

    async def beat(self, owner: str, info: bytes | None) -> None:
        """Register a worker, or say that it lives; None signs it off."""
        ...

    async def workers(self) -> list[tuple[str, float, bytes]]:
        """List workers: owner, seconds since the last beat, info."""
        ...

    async def forget_workers(self, silent_for: float) -> None:
        """Delete workers without a beat for so many seconds, unless they still hold leases."""
        ...

    async def violations(self, limit: int = 100) -> list[Violation]:
        """Look for what must never be, at most so many of each kind."""
        ...

    async def durability(self) -> dict[str, str]:
        """Read the settings of the database by which a commit is durable, by their names."""
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` (on the loop) soon after somebody wrote: a hint, never the truth.

        Returns:
            A function that ends the watch.
        """
        ...
