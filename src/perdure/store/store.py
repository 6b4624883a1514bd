"""What the engine, the channels and people ask of a store about deeds and approvals."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from perdure.base.errors import StoreError
from perdure.jobs.approval import (
    Approval,
    ApprovalLink,
    ApprovalState,
    Delegation,
    LinkUse,
    Refusal,
    Vote,
)
from perdure.jobs.budget import Amount, Budget, BudgetLimits, Exceeded, Reservation
from perdure.jobs.effect import Effect
from perdure.jobs.invariant import Violation
from perdure.jobs.model import (
    Claim,
    Command,
    Job,
    JobEvent,
    JobMessage,
    JobNews,
    JobOutcome,
    JobQuery,
    JournalEntry,
    KeyedEntry,
    NewJob,
    QueueLimit,
    Schedule,
    Submitted,
    Write,
)
from perdure.jobs.outbox import Notice
from perdure.store.db_thread import Call, Done, Lane
from perdure.store.statements import Session
from perdure.store.verbs import approval as approvals
from perdure.store.verbs import budget as budgets
from perdure.store.verbs import claim, command, outbox, read, submit
from perdure.store.verbs import command as commands
from perdure.store.verbs import effect as ledger
from perdure.store.verbs import schedule as small


class DeedStore(Protocol):
    """The part of a store that knows what jobs did to the world, and whom they ask first.

    It is the `Desk` of the channels.
    """

    async def effects(self, job_id: str) -> list[Effect]:
        """Read the ledger of a job, in order."""
        ...

    async def effect_by_key(self, tenant: str, key: str) -> Effect | None: ...

    async def effect_of_business(self, tenant: str, business: str) -> Effect | None:
        """Find the latest generation of what all jobs of a tenant do only once."""
        ...

    async def open_effects(self, tenant: str | None = None, limit: int = 100) -> list[Effect]:
        """List effects of which it is not known what became of them, the oldest first."""
        ...

    async def approval(self, approval_id: str) -> Approval | None: ...

    async def approval_of_step(
        self, job_id: str, step: str, state: ApprovalState | None = None
    ) -> Approval | None:
        """Read what was last asked for a step, of those in a state if one is named."""
        ...

    async def approvals(
        self,
        state: ApprovalState | None = None,
        tenant: str | None = None,
        job: str | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        """Find approvals, the newest first."""
        ...

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        """Judge a vote and write it if it counts, with its audit and its notices; wake the job."""
        ...

    async def pass_on(self, approval_id: str, handover: Delegation) -> Approval | Refusal:
        """Let another person decide instead of one who may, who is told; audited."""
        ...

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
        """Audit an attempt that came to no vote."""
        ...

    async def let_time_pass(self, limit: int = 100) -> int:
        """Remind, ask others and expire what is due; give how many were looked at."""
        ...

    async def keep_link(self, link: ApprovalLink) -> None: ...

    async def link(self, link_id: str) -> ApprovalLink | None: ...

    async def take_notices(
        self, channels: Sequence[str], limit: int = 20, lease: float = 120.0
    ) -> list[Notice]:
        """Take what is due for these channels; what is not given back is due again later."""
        ...

    async def give_back(self, notice: Notice, *more: Notice) -> None:
        """Write what became of a notice, and keep others that come of it."""
        ...

    async def notices(self, job_id: str) -> list[Notice]: ...

    async def budget(self, root_id: str) -> Budget | None: ...

    async def set_aside(self, asked: Reservation, new: Budget) -> Budget | Exceeded:
        """Reserve an amount, unless that would exceed a limit; fenced as a write is.

        When the job ends, what is still reserved is settled as spent.

        Raises:
            LeaseLost: The job has ended, or is another's.
        """
        ...

    async def settle_spending(self, root_id: str, id: str, actual: Amount | None) -> None: ...

    async def raise_limits(self, root_id: str, limits: BudgetLimits, new: Budget) -> None: ...


# What the engine asks of a store. Two implementations, one conformance suite.
#
# Every verb is one transaction; what it returned is durable, and what raised did nothing.
# A verb that is cancelled while it waits happens as a whole or not at all.
#
# A job that has not ended has exactly one *lease* row: who owns it (nobody, while it waits),
# its epoch, when it may next be claimed, and a counter of news from outside.


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

    async def journal(self, job_id: str) -> list[JournalEntry]: ...

    async def entry_by_key(self, key: str) -> KeyedEntry | None:
        """Read a step that has succeeded under its key, in whichever job, and was not undone."""
        ...

    async def events(self, job_id: str, after: int = 0, limit: int = 1000) -> list[JobEvent]:
        """Read a page of a job's log: what comes after the event of this number."""
        ...

    async def has_event(self, job_id: str, types: Sequence[str], since: float) -> bool:
        """Tell whether a job's log has an event of one of these types since a time."""
        ...

    async def messages(self, job_id: str) -> list[JobMessage]:
        """Read what was sent to a job and not yet received."""
        ...

    async def outcomes(self, job_ids: Sequence[str]) -> list[JobOutcome]: ...

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

    async def journal_and_ledger(
        self, job_id: str, owner: str, epoch: int
    ) -> tuple[list[JournalEntry], list[Effect]]:
        """Read journal and ledger of an owned job, behind all that was written before.

        Raises:
            LeaseLost: As above.
        """
        ...

    async def news(self, owner: str) -> list[JobNews]:
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


# Tells a loop that something in the store may have changed.


class Watcher:
    """One who wants to know; what happens before it hears of the last change is told once."""

    __slots__ = ("_changed", "_loop", "_told")

    def __init__(self, changed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._told = False

    def tell(self) -> None:
        """Say it, from any thread: to wake a loop is dear, and jobs end by the hundred."""
        if not self._told and not self._loop.is_closed():
            self._told = True
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._told = False  # before it looks: what changes meanwhile is told again
        self._changed()


# The verbs about deeds, approvals, notices and budgets, over lanes; see `deed_port`.

_log = logging.getLogger("perdure.store")


class DeedVerbs:
    """Mixed into a store, which sends each verb to the lane that does it."""

    async def _change(self, call: Call) -> Any:
        raise NotImplementedError

    async def _make_due(self, call: Call) -> Any:
        raise NotImplementedError

    async def _ask(self, call: Call) -> Any:
        raise NotImplementedError

    async def effects(self, job_id: str) -> list[Effect]:
        return await self._ask(partial(ledger.effects, job_id=job_id))

    async def effect_by_key(self, tenant: str, key: str) -> Effect | None:
        return await self._ask(partial(ledger.effect_by_key, tenant=tenant, key=key))

    async def effect_of_business(self, tenant: str, business: str) -> Effect | None:
        verb = partial(ledger.effect_of_business, tenant=tenant, business=business)
        return await self._ask(verb)

    async def open_effects(self, tenant: str | None = None, limit: int = 100) -> list[Effect]:
        return await self._ask(partial(ledger.open_effects, tenant=tenant, limit=limit))

    async def approval(self, approval_id: str) -> Approval | None:
        return await self._ask(partial(approvals.approval, approval_id=approval_id))

    async def approval_of_step(
        self, job_id: str, step: str, state: ApprovalState | None = None
    ) -> Approval | None:
        call = partial(approvals.approval_of_step, job_id=job_id, step=step, state=state)
        return await self._ask(call)

    async def approvals(
        self,
        state: ApprovalState | None = None,
        tenant: str | None = None,
        job: str | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        wanted = {"state": None if state is None else state.value, "tenant": tenant, "job": job}
        return await self._ask(partial(approvals.approvals, limit=limit, **wanted))

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        call = partial(approvals.vote, approval_id=approval_id, vote=vote, use=use)
        return await self._make_due(call)

    async def pass_on(self, approval_id: str, handover: Delegation) -> Approval | Refusal:
        call = partial(approvals.pass_on, approval_id=approval_id, handover=handover)
        return await self._change(call)

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
        if approval_id is None:  # nobody's matter: it must not fill the store
            _log.warning("%s: turned away: %s", channel, why)
            return
        call = partial(approvals.turned_away, approval_id=approval_id, channel=channel, why=why)
        await self._change(call)

    async def let_time_pass(self, limit: int = 100) -> int:
        due = await self._ask(partial(approvals.due_approvals, limit=limit))
        for approval_id in due:
            await self._make_due(partial(approvals.look_at_clock, approval_id=approval_id))
        return len(due)

    async def keep_link(self, link: ApprovalLink) -> None:
        await self._change(partial(approvals.put_link, link=link))

    async def link(self, link_id: str) -> ApprovalLink | None:
        return await self._ask(partial(approvals.link, link_id=link_id))

    async def take_notices(
        self, channels: Sequence[str], limit: int = 20, lease: float = 120.0
    ) -> list[Notice]:
        call = partial(outbox.take_notices, channels=channels, limit=limit, lease=lease)
        return await self._change(call)

    async def give_back(self, notice: Notice, *more: Notice) -> None:
        def call(session: Session) -> None:
            outbox.give_back(session, notice)
            if more:
                outbox.put_notices(session, more)

        await self._change(call)

    async def notices(self, job_id: str) -> list[Notice]:
        return await self._ask(partial(outbox.notices, job_id=job_id))

    async def budget(self, root_id: str) -> Budget | None:
        return await self._ask(partial(budgets.budget, root_id=root_id))

    async def set_aside(self, asked: Reservation, new: Budget) -> Budget | Exceeded:
        return await self._change(partial(budgets.set_aside, asked=asked, new=new))

    async def settle_spending(self, root_id: str, id: str, actual: Amount | None) -> None:
        call = partial(budgets.settle_spending, root_id=root_id, id=id, actual=actual)
        await self._change(call)

    async def raise_limits(self, root_id: str, limits: BudgetLimits, new: Budget) -> None:
        call = partial(budgets.raise_limits, root_id=root_id, limits=limits, new=new)
        await self._change(call)


# The verbs of the port over lanes: what both databases share.


class DurableStore(DeedVerbs):
    """Sends each verb to the lane that does it; may be used from any thread that has a loop.

    `_writer` does the fenced writes, `_control` all else that changes something,
    `_reader` answers. Two of them may be the same lane.
    """

    _writer: Lane
    _control: Lane
    _reader: Lane

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []
        self._is_open = False

    async def open(self) -> None:
        if self._is_open:
            raise StoreError("the store is open already")
        started: list[Lane] = []
        try:
            for lane in self._lanes():
                await lane.start()
                started.append(lane)
        except BaseException:
            for lane in started:
                await lane.stop()
            raise
        self._is_open = True

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await asyncio.gather(*(lane.stop() for lane in self._lanes()))

    def _lanes(self) -> list[Lane]:
        # The first one brings the schema up to date, so it starts first.
        return list(dict.fromkeys([self._writer, self._control, self._reader]))

    async def _change(self, call: Call) -> Any:
        return await self._control.do(call)

    async def _make_due(self, call: Call) -> Any:
        """Do something by which a job may fall due."""
        result = await self._control.do(call, announces=True)
        self._tell_watchers()
        return result

    async def _ask(self, call: Call) -> Any:
        return await self._reader.do(call)

    async def submit(self, jobs: Sequence[NewJob], actor: str = "") -> list[Submitted]:
        return await self._make_due(partial(submit.submit, jobs=jobs, actor=actor))

    async def job(self, job_id: str, tenant: str | None = None) -> Job | None:
        return await self._ask(partial(read.job, job_id=job_id, tenant=tenant))

    async def jobs(self, query: JobQuery) -> list[Job]:
        return await self._ask(partial(read.jobs, query=query))

    async def counts(self, tenant: str | None = None) -> dict[str, int]:
        return await self._ask(partial(read.counts, tenant=tenant))

    async def journal(self, job_id: str) -> list[JournalEntry]:
        return await self._ask(partial(read.journal, job_id=job_id))

    async def entry_by_key(self, key: str) -> KeyedEntry | None:
        return await self._ask(partial(read.entry_by_key, key=key))

    async def events(self, job_id: str, after: int = 0, limit: int = 1000) -> list[JobEvent]:
        return await self._ask(partial(read.events, job_id=job_id, after=after, limit=limit))

    async def has_event(self, job_id: str, types: Sequence[str], since: float) -> bool:
        return await self._ask(partial(read.has_event, job_id=job_id, types=types, since=since))

    async def messages(self, job_id: str) -> list[JobMessage]:
        return await self._ask(partial(read.messages, job_id=job_id))

    async def journal_and_ledger(
        self, job_id: str, owner: str, epoch: int
    ) -> tuple[list[JournalEntry], list[Effect]]:
        return await self._writer.do(
            partial(read.journal_and_ledger, job_id=job_id, owner=owner, epoch=epoch), apart=True
        )

    async def outcomes(self, job_ids: Sequence[str]) -> list[JobOutcome]:
        return await self._ask(partial(read.outcomes, job_ids=job_ids))

    async def claim(
        self, owner: str, queues: Mapping[str, QueueLimit], free: int, lease: float
    ) -> list[Claim]:
        work = partial(claim.claim, owner=owner, queues=queues, free=free, lease=lease)
        grants = await self._change(work)
        if not grants:
            return []
        # Read apart from the claim: a long journal must not hold up those who write.
        return await self._ask(partial(claim.load, grants=grants, lease=lease))

    async def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        return await self._change(partial(claim.renew, owner=owner, held=held, lease=lease))

    def write_soon(self, write: Write, done: Done, *, alone: bool = False) -> bool:
        return self._writer.write_soon(write, done, alone=alone)

    async def write(self, write: Write, *, alone: bool = False, done: Done | None = None) -> None:
        # A parent, a child, or the job itself may be due.
        announces = write.job is not None or bool(write.children)
        await self._writer.write(write, announces=announces, alone=alone, done=done)
        if announces:
            self._tell_watchers()

    async def news(self, owner: str) -> list[JobNews]:
        return await self._ask(partial(claim.news, owner=owner))

    async def reap(self, limit: int, dead: Sequence[str] = ()) -> list[str]:
        return await self._change(partial(claim.reap, limit=limit, dead=dead))

    async def next_due(self, queues: Sequence[str]) -> float | None:
        return await self._ask(partial(claim.next_due, queues=queues))

    async def send(self, job_id: str, topic: str, payload: bytes, key: str | None = None) -> bool:
        text = payload.decode()
        call = partial(command.send, job_id=job_id, topic=topic, payload=text, key=key)
        return await self._make_due(call)

    async def command(self, command: Command) -> None:
        await self._make_due(partial(commands.command, asked=command))

    async def fork(self, source: str, job: NewJob, before: int, actor: str) -> None:
        call = partial(submit.fork, source=source, job=job, before=before, actor=actor)
        await self._make_due(call)

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._change(partial(small.put_schedule, schedule=schedule))

    async def schedules(self, tenant: str | None = None) -> list[Schedule]:
        return await self._ask(partial(small.schedules, tenant=tenant))

    async def delete_schedule(self, tenant: str, name: str) -> bool:
        return await self._change(partial(small.delete_schedule, tenant=tenant, name=name))

    async def pause_schedule(
        self, tenant: str, name: str, next_at: float | None, *, paused: bool
    ) -> bool:
        given = {"tenant": tenant, "name": name, "next_at": next_at, "paused": paused}
        return await self._change(partial(small.pause_schedule, **given))

    async def fire(self, schedule: Schedule, next_at: float | None, jobs: Sequence[NewJob]) -> bool:
        call = partial(small.fire, schedule=schedule, next_at=next_at, jobs=jobs)
        return await self._make_due(call)

    async def prune(self, ended_before: float, limit: int) -> int:
        return await self._change(partial(read.prune, before=ended_before, limit=limit))

    async def beat(self, owner: str, info: bytes | None) -> None:
        text = None if info is None else info.decode()
        await self._change(partial(small.beat, owner=owner, info=text))

    async def workers(self) -> list[tuple[str, float, bytes]]:
        return await self._ask(small.workers)

    async def forget_workers(self, silent_for: float) -> None:
        await self._change(partial(small.forget_workers, silent_for=silent_for))

    async def fingerprint_key(self) -> bytes:
        return await self._change(small.fingerprint_key)

    async def violations(self, limit: int = 100) -> list[Violation]:
        return await self._ask(partial(read.violations, limit=limit))

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        watcher = Watcher(changed)
        self._watchers.append(watcher)
        self._writer.look_up()
        return partial(self._watchers.remove, watcher)

    def _tell_watchers(self) -> None:
        """Say that something may have fallen due; also called by a lane, from its thread."""
        for watcher in tuple(self._watchers):
            watcher.tell()
