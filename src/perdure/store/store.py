"""The store: every verb that the engine, the channels and the tools ask of a database.

A verb is written once, as a function over a `Session` in `verbs/`. It is declared here, with its
name, the database thread that runs it, and whether watchers are notified:

    job = reads(verbs.read.job)
    vote = changes(verbs.command.vote, announces=True)

`store.job(...)` is then a coroutine function with the parameters of `verbs.read.job` without its
session, and type checkers know it as such. Both databases run the same verbs; `sqlite/` and
`postgres/` hold only how a connection is opened, kept and used.

Every verb is one transaction: what it returned is durable, and what raised did nothing. A verb that
is cancelled while it waits happens as a whole or not at all; see `db_thread`.

A job that has not ended has exactly one *lease* row: its owner (nobody, while it waits), its epoch,
when it may next be claimed, and a counter of changes from outside.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from perdure.base.clock import Clock
from perdure.base.errors import EncryptionError, StoreError
from perdure.jobs.fleet import Known
from perdure.jobs.model import Claim, QueueLimit
from perdure.store import verbs
from perdure.store.db_thread import DbThread, Search, SearchThread, VerbCall
from perdure.store.statements import Session
from perdure.store.verbs.claim import Grant, refused

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("perdure.store")


class Verb(Generic[P, R]):
    """A verb of the store: a function over a session, and the thread that runs it."""

    def __init__(
        self,
        function: Callable[Concatenate[Session, P], R],
        thread: Literal["reader", "control", "writer"],
        *,
        announces: bool = False,
        apart: bool = False,
        inline: bool = False,
    ) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self._thread = thread
        self._announces = announces
        self._apart = apart
        self._inline = inline

    @property
    def changes(self) -> bool:
        """Whether it changes something, other than the owner of a job does."""
        return self._thread == "control"

    @property
    def reads(self) -> bool:
        """Whether it changes nothing, and needs nothing that is still being written."""
        return self._thread == "reader"

    @overload
    def __get__(self, store: None, owner: type) -> "Verb[P, R]": ...

    @overload
    def __get__(self, store: "Store", owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...

    def __get__(
        self, store: "Store | None", owner: type
    ) -> "Verb[P, R] | Callable[P, Coroutine[Any, Any, R]]":
        if store is None:
            return self

        async def verb(*args: P.args, **kwargs: P.kwargs) -> R:
            thread: DbThread = getattr(store, self._thread)
            call = VerbCall(self.function, args, kwargs)
            return await thread.call(
                call, announces=self._announces, apart=self._apart, inline=self._inline
            )

        return verb


def reads(function: Callable[Concatenate[Session, P], R]) -> Verb[P, R]:
    """Declare a verb that changes nothing."""
    return Verb(function, "reader")


def changes(
    function: Callable[Concatenate[Session, P], R], *, announces: bool = False, apart: bool = False
) -> Verb[P, R]:
    """Declare a verb that writes.

    Args:
        function: The verb.
        announces: It may make a job due, so watchers are notified.
        apart: It is a transaction of its own: it takes a lock that nothing may be locked after.
    """
    return Verb(function, "control", announces=announces, apart=apart)


def follows_writes(
    function: Callable[Concatenate[Session, P], R], *, apart: bool = False
) -> Verb[P, R]:
    """Declare a verb that writes, after every write that was requested before it."""
    return Verb(function, "writer", apart=apart)


def changes_inline(function: Callable[Concatenate[Session, P], R]) -> Verb[P, R]:
    """Declare a verb that writes what may be written twice: the loop may send it by itself.

    Over the connection of fenced writes, as leases are renewed over the other one: that must not
    wait for a loop that is blocked and does not read its answer.
    """
    return Verb(function, "writer", inline=True)


def reads_written(function: Callable[Concatenate[Session, P], R]) -> Verb[P, R]:
    """Declare a verb that reads after every write that was requested before it."""
    return Verb(function, "writer", apart=True)


SEARCHERS: Final = 2  # threads: while one tenant searches, another can


class Renewer(Protocol):
    """Renews leases over a connection of its own."""

    def renew(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]: ...

    def close(self) -> None: ...


class Store:
    """The interface to the database; may be used from any thread that has a loop.

    `writer` makes the fenced writes, `control` all other changes, `reader` answers questions.
    Two of them may be the same thread. `searchers` answer questions that may take long.
    """

    path: Path | None = None  # of the file, if the store is one

    def __init__(
        self,
        *,
        writer: DbThread,
        control: DbThread,
        reader: DbThread,
        renewer: Renewer,
        searchers: Sequence[SearchThread],
        clock: Clock | None = None,
    ) -> None:
        self.writer = writer
        self.control = control
        self.reader = reader
        self.searchers = searchers
        # Fenced writes. Every step makes one, so there is nothing in between.
        self.write = writer.write
        self.write_soon = writer.write_soon
        self._renewer = renewer
        self._clock = clock  # of this machine, if the store counts by it
        self._watchers: list[_Watcher] = []
        self._is_open = False

    async def open(self) -> None:
        """Connect, check what the database can do, and bring its schema up to date.

        Raises:
            StoreUnreachable, StoreReadOnly, SchemaError: The message says what to do.
        """
        if self._is_open:
            raise StoreError("the store is already open")
        started: list[DbThread] = []
        try:
            for thread in self._threads():
                await thread.start()
                started.append(thread)
        except BaseException:
            for thread in started:
                await thread.stop()
            raise
        self._is_open = True

    async def close(self) -> None:
        """Finish what is under way and disconnect."""
        if self._is_open:
            self._is_open = False
            await asyncio.gather(*(thread.stop() for thread in self._threads()))

    def _threads(self) -> list[DbThread]:
        # The writer brings the schema up to date, so it starts first.
        return list(dict.fromkeys([self.writer, self.control, self.reader, *self.searchers]))

    async def search(self, call: VerbCall, search: Search) -> Any:
        """Run a verb that reads where nothing but other searches waits for it.

        Raises:
            QueryTooSlow: It took longer than it may.
        """
        return await min(self.searchers, key=lambda each: each.unanswered).search(call, search)

    _server_time = reads(verbs.read.now)

    async def now(self) -> float:
        """Return UNIX seconds by the store's clock, by which all due times are kept."""
        return await self._server_time() if self._clock is None else self._clock.time()

    # Jobs

    submit = changes(verbs.submit.submit, announces=True)
    fork = changes(verbs.submit.fork, announces=True)
    fork_refusal = reads(verbs.submit.fork_refusal)
    send = changes(verbs.command.send, announces=True)
    command = changes(verbs.command.command, announces=True)
    command_jobs = changes(verbs.command.command_jobs, announces=True)
    job = reads(verbs.read.job)
    jobs = reads(verbs.read.jobs)
    listed_jobs = reads(verbs.listing.listed_jobs)
    failed_jobs = reads(verbs.insight.failed_jobs)
    error_marks = reads(verbs.insight.error_marks)
    mark_error = changes(verbs.insight.mark_error)
    metrics = reads(verbs.insight.metrics)
    import_job = changes(verbs.bundle.import_job)
    saved_views = reads(verbs.saved_view.saved_views)
    save_view = changes(verbs.saved_view.save_view)
    delete_view = changes(verbs.saved_view.delete_view)
    listed_jobs_of = reads(verbs.listing.listed_jobs_of)
    listed_job = reads(verbs.listing.listed_job)
    query_words = reads(verbs.read.query_words)
    ids_like = reads(verbs.read.ids_like)
    counts = reads(verbs.read.counts)
    outcomes = reads(verbs.read.outcomes)
    may_run_again = reads(verbs.read.may_run_again)
    journal = reads(verbs.read.journal)
    payload = reads(verbs.read.payload)
    messages = reads(verbs.read.messages)
    events = reads(verbs.read.events)
    has_event = reads(verbs.read.has_event)
    trace = reads(verbs.trace.trace)
    keep_trace = changes(verbs.trace.keep_trace)
    output = reads(verbs.output.output)
    topics = reads(verbs.output.topics)
    entry_by_key = reads(verbs.read.entry_by_key)
    is_being_undone = reads(verbs.read.is_being_undone)
    journal_and_ledger = reads_written(verbs.read.journal_and_ledger)
    prune = changes(verbs.read.prune)
    has_old = reads(verbs.read.has_old)
    violations = reads(verbs.read.violations)
    signs = reads(verbs.read.signs)
    effects_without_undo = reads(verbs.read.effects_without_undo)

    journal_page = reads(verbs.browse.journal_page)
    whole_job = reads(verbs.browse.whole_job)
    newest_event = reads(verbs.browse.newest_event)
    logged_changes = reads(verbs.browse.logged_changes)
    owned_jobs = reads(verbs.browse.owned_jobs)

    # Requests over HTTP

    begin_answer = changes(verbs.answer.begin_answer)
    keep_answer = changes(verbs.answer.keep_answer)
    give_back_answer = changes(verbs.answer.give_back_answer)

    # Leases

    _grant = changes(verbs.claim.claim)
    _load = reads(verbs.claim.load)
    news = reads(verbs.claim.news)
    report = changes(verbs.claim.report)
    reap = changes(verbs.claim.reap)
    expired = reads(verbs.claim.expired)
    outlook = reads(verbs.claim.outlook)

    async def claim(
        self,
        owner: str,
        queues: Mapping[str, QueueLimit],
        free: int,
        lease: float,
        known: Known | None = None,
    ) -> list[Claim]:
        """Claim up to `free` due jobs of these queues: by priority, then in turn by tenant.

        The epoch and `claims` grow by one; the state becomes RUNNING (COMPENSATING stays). `known`
        says which kinds of jobs the owner knows; None: all of them.
        """
        grants = await self._grant(owner, queues, free, lease, known)
        # Loaded apart from the claim: a long journal must not hold up those who write.
        unread = [grant for grant in grants if grant.job is None]
        loaded = await self._loaded(unread, owner) if unread else []
        return verbs.claim.in_order(grants, loaded)

    async def _loaded(self, grants: Sequence[Grant], owner: str) -> list[Claim]:
        """Load jobs; one with a payload that is refused is parked, and holds up no other."""
        try:
            return await self._load(grants)
        except EncryptionError as error:
            if error.missing:
                raise
            if len(grants) == 1:
                await self.write(refused(grants[0], owner, error))
                return []
        return [claim for grant in grants for claim in await self._loaded([grant], owner)]

    def renew_blocking(self, owner: str, held: Sequence[tuple[str, int]], lease: float) -> set[str]:
        """Renew leases `(job, epoch)` from a thread, even while loop and writer are blocked.

        Returns:
            The jobs whose leases were renewed; the others are lost.
        """
        return self._renewer.renew(owner, held, lease)

    # Effects and budgets

    effects = reads(verbs.effect.effects)
    effect_by_key = reads(verbs.effect.effect_by_key)
    effect_of_business = reads(verbs.effect.effect_of_business)
    open_effects = reads(verbs.effect.open_effects)
    budget = reads(verbs.budget.budget)
    reserve = follows_writes(verbs.budget.reserve)
    raise_limits = changes(verbs.budget.raise_limits)

    # Approvals and notices

    approval = reads(verbs.approval.approval)
    approval_of_step = reads(verbs.approval.approval_of_step)
    approvals = reads(verbs.approval.approvals)
    vote = changes(verbs.command.vote, announces=True)
    delegate = changes(verbs.approval.delegate)
    reveal = changes(verbs.approval.reveal)
    keep_link = changes(verbs.approval.keep_link)
    link = reads(verbs.approval.link)
    take_notices = changes(verbs.outbox.take_notices)
    settle_notice = changes(verbs.outbox.settle_notice)
    is_closed = reads(verbs.outbox.is_closed)
    alert_workers = changes(verbs.outbox.alert_workers)
    _audit_attempt = changes(verbs.approval.audit_attempt)
    _due_approvals = reads(verbs.approval.due_approvals)
    _tick = changes(verbs.approval.tick_approval, announces=True)

    async def audit_attempt(self, approval_id: str | None, channel: str, why: str) -> None:
        """Audit an attempt that led to no vote: forged, replayed, or by an unknown person."""
        if approval_id is None:  # about no approval, so it must not fill the store
            _log.warning("%s: an attempt to decide was refused: %s", channel, why)
        else:
            await self._audit_attempt(approval_id, channel, why)

    async def run_approval_timers(self, limit: int = 100) -> int:
        """Remind, escalate and expire what is due; return how many approvals were due."""
        due = await self._due_approvals(limit)
        for approval_id in due:  # a transaction for each: they lock leases
            await self._tick(approval_id)
        return len(due)

    # Schedules and workers

    agenda = reads(verbs.schedule.agenda)
    put_schedule = changes(verbs.schedule.put_schedule, announces=True)
    schedules = reads(verbs.schedule.schedules)
    delete_schedule = changes(verbs.schedule.delete_schedule)
    pause_schedule = changes(verbs.schedule.pause_schedule, announces=True)
    fire = changes(verbs.schedule.fire, announces=True)
    publish = changes(verbs.fleet.publish)
    definitions = reads(verbs.fleet.definitions)
    heartbeat = changes(verbs.fleet.heartbeat)
    workers = reads(verbs.fleet.workers)
    running_of = reads(verbs.fleet.running_of)
    forget_workers = changes(verbs.fleet.forget_workers)
    fleet = reads(verbs.fleet.fleet)
    queues = reads(verbs.fleet.queues)
    unclaimed = reads(verbs.fleet.unclaimed)
    gauges = reads(verbs.gauges.gauges)
    schema_number = reads(verbs.gauges.schema_number)
    pause_queue = changes(verbs.fleet.pause_queue, announces=True)
    ask_worker = changes(verbs.worker_command.ask_worker, announces=True)
    open_commands = reads(verbs.worker_command.open_commands)
    answer_command = changes(verbs.worker_command.answer_command, announces=True)
    command_state = reads(verbs.worker_command.command_state)
    withdraw_command = changes(verbs.worker_command.withdraw_command)
    fingerprint_key = changes(verbs.schedule.fingerprint_key)
    durability: Verb[[], dict[str, str]]  # declared by each database

    # Encryption

    reseal = changes(verbs.reseal.reseal)
    sealed_page = reads(verbs.reseal.sealed_page)
    check_keys = reads(verbs.reseal.check_keys)
    own_keys = reads(verbs.reseal.own_keys)
    store_keys = reads(verbs.reseal.store_keys)
    forget_keys = changes(verbs.reseal.forget_keys)

    # The audit log

    audit = changes(verbs.audit.audit)
    audited = changes(verbs.audit.audited, announces=True)
    audit_rows = reads(verbs.audit.audit_rows)
    audit_newest = reads(verbs.audit.audit_newest)
    audit_tenants = reads(verbs.audit.audit_tenants)

    # Tokens and sessions

    add_token = changes(verbs.credential.add_token)
    token_by_hash = reads(verbs.credential.token_by_hash)
    tokens = reads(verbs.credential.tokens)
    revoke_token = changes(verbs.credential.revoke_token)
    use_token = changes(verbs.credential.use_token)
    open_session = changes(verbs.credential.open_session)
    session_by_hash = reads(verbs.credential.session_by_hash)
    see_session = changes(verbs.credential.see_session)
    end_session = changes(verbs.credential.end_session)
    end_sessions = changes(verbs.credential.end_sessions)
    add_sign_in_link = changes(verbs.credential.add_sign_in_link)
    take_sign_in_link = changes(verbs.credential.take_sign_in_link)

    # Threads of LangGraph

    put_graph = changes_inline(verbs.langgraph.put_graph)
    prove_progress = changes(verbs.langgraph.prove_progress, apart=True)
    graph_checkpoint = reads(verbs.langgraph.graph_checkpoint)
    graph_checkpoints = reads(verbs.langgraph.graph_checkpoints)
    graph_content = reads(verbs.langgraph.graph_content)
    graph_history = reads(verbs.langgraph.graph_history)
    threads_of_runs = reads(verbs.langgraph.threads_of_runs)
    # After the last put, also if nobody waits for that any more.
    delete_graph_thread = follows_writes(verbs.langgraph.delete_graph_thread, apart=True)
    delete_graph_runs = changes(verbs.langgraph.delete_graph_runs, apart=True)
    prune_graph_thread = changes(verbs.langgraph.prune_graph_thread, apart=True)
    copy_graph_thread = changes(verbs.langgraph.copy_graph_thread, apart=True)

    # Checkpoints of the Agent Framework

    save_workflow_checkpoint = changes(verbs.workflow.save_workflow_checkpoint)
    workflow_checkpoint = reads(verbs.workflow.workflow_checkpoint)
    workflow_checkpoints = reads(verbs.workflow.workflow_checkpoints)
    newest_workflow_checkpoint = reads(verbs.workflow.newest_workflow_checkpoint)
    workflow_checkpoint_ids = reads(verbs.workflow.workflow_checkpoint_ids)
    delete_workflow_checkpoint = changes(verbs.workflow.delete_workflow_checkpoint)

    # Long-term memory of LangGraph

    graph_items = reads(verbs.graph_item.graph_items)
    newest_graph_items = reads(verbs.graph_item.newest_graph_items)
    graph_items_after = reads(verbs.graph_item.graph_items_after)
    graph_namespaces = reads(verbs.graph_item.graph_namespaces)
    put_graph_items = changes(verbs.graph_item.put_graph_items)
    refresh_graph_items = changes(verbs.graph_item.refresh_graph_items)
    delete_expired_graph_items = changes(verbs.graph_item.delete_expired_graph_items)

    # Watching

    def watch(self, changed: Callable[[], None], *, output: bool = False) -> Callable[[], None]:
        """Call `changed` (on the loop) soon after a write: only a hint, never relied upon.

        Args:
            changed: Called when a job may be due or may have ended.
            output: Call it also when a job has emitted something.

        Returns:
            A function that ends the watch.
        """
        watcher = _Watcher(changed, output=output)
        self._watchers.append(watcher)
        self.writer.look_up()
        return partial(self._unwatch, watcher)

    def tell_watchers(self) -> None:
        """Notify the watchers that a job may be due; may be called from any thread."""
        self._tell(tuple(self._watchers))

    def tell_readers(self) -> None:
        """Notify those who watch output; workers have nothing to do with it."""
        self._tell([each for each in tuple(self._watchers) if each.output])

    def _tell(self, watchers: Sequence["_Watcher"]) -> None:
        for watcher in watchers:
            if not watcher.tell():
                self._unwatch(watcher)

    def _unwatch(self, watcher: "_Watcher") -> None:
        with suppress(ValueError):  # its loop has ended, and it was removed before
            self._watchers.remove(watcher)


class _Watcher:
    """Notifies a loop of changes; those that come before it has handled the last are merged.

    Waking a loop from another thread is expensive, and jobs end by the hundred.
    """

    __slots__ = ("_changed", "_loop", "_told", "output")

    def __init__(self, changed: Callable[[], None], *, output: bool) -> None:
        self.output = output
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._told = False

    def tell(self) -> bool:
        """Notify the loop; return False if it has ended."""
        if self._loop.is_closed():  # perhaps before it has handled what it was told
            return False
        if not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._hear)
            except RuntimeError:  # it has ended since
                return False
        return True

    def _hear(self) -> None:
        self._told = False  # before it looks: what changes meanwhile is notified again
        self._changed()
