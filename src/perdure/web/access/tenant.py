"""The only way from HTTP to the store: for one principal, and with it one tenant.

A route gets a `TenantHandle` and nothing else of the store. The tenant is that of the principal,
which comes from the credential; no method takes one. Whatever belongs to another tenant is not
found, with the very error of a thing that does not exist. Every change is made in the principal's
name, and each method that changes something checks its permission once more, so that a route which
forgets it is still closed.

**What belongs to no tenant.** Workers and queues serve all tenants, and definitions are the code of
the installation. A principal of one tenant sees which queues are there and what workers know, but
counts of its own jobs alone, and neither a host nor a process id. It cannot drain, pause or kill. A
principal without a tenant runs the installation, and sees and commands everything; what it submits
belongs to the tenant "default".
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

from msgspec.structs import replace

from perdure.base.errors import (
    AccessDenied,
    AmbiguousId,
    IllegalTransition,
    JobNotFound,
    QueryError,
    UnknownName,
)
from perdure.engine.attendance import SILENT
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle
from perdure.engine.insight import ALL_TENANTS
from perdure.engine.submission import SubmitOptions, new_id
from perdure.jobs.approval import APPROVER, Approval, ApprovalState, Person, VoteVerdict
from perdure.jobs.argument_change import UNEDITED, ArgumentEdit
from perdure.jobs.audit import AuditReport, AuditRow, chain_of
from perdure.jobs.budget import Budget
from perdure.jobs.bulk import BulkAction, BulkReport
from perdure.jobs.effect import Choice, Effect
from perdure.jobs.error_group import ErrorGroup, ErrorState
from perdure.jobs.fleet import Fleet, FleetWorker, PublishedDefinitions, QueueCounts
from perdure.jobs.listing import JobRow
from perdure.jobs.model import Job, JobEvent, JobMessage, JobQuery, JournalEntry, NewJob, Schedule
from perdure.jobs.output import OutputPage, OutputPiece, OutputTopic
from perdure.jobs.payload import StandIn
from perdure.jobs.plan import Plan
from perdure.jobs.preview import ForkPreview, UndoPreview
from perdure.jobs.risk import RiskLevel
from perdure.jobs.saved_view import SavedView
from perdure.jobs.series import MetricsPage
from perdure.jobs.timeline import StepAttempt, Timeline
from perdure.jobs.worker_command import WorkerAction
from perdure.store.verbs.browse import WholeJob
from perdure.web.access.audit_trail import KeyedRequest, audited_verbs, verify_audit
from perdure.web.access.principal import (
    Permission,
    Principal,
    check_somebody,
    has_the_store,
)
from perdure.web.access.searches import Searches, searching_verbs
from perdure.web.access.shares import share_of
from perdure.web.access.tokens import (
    MadeToken,
    NewToken,
    Token,
    create_token,
    listed,
    revoke_token,
)

JobAction: TypeAlias = Literal[
    "cancel", "pause", "resume", "retry", "skip", "skip_item", "compensate", "abandon_undo"
]
DEFAULT_TENANT: Final = "default"
RECENT: Final = 15 * 60.0  # seconds within which a sign-in is recent

_MANY: Final = 10_000
_ASKED_FOR: Final = 5.0  # seconds that a worker has for an answer
_ASKS: Final = {
    WorkerAction.DRAIN: Permission.WORKERS_DRAIN,
    WorkerAction.RESUME: Permission.WORKERS_DRAIN,
    WorkerAction.TREE: Permission.PROCESSES_READ,
    WorkerAction.INSPECT: Permission.PROCESSES_READ,
    WorkerAction.KILL: Permission.PROCESSES_KILL,
    WorkerAction.RESTART: Permission.PROCESSES_KILL,
}


class JobReader(Protocol):
    """What can be read of one job of the tenant; `Handle` has it."""

    id: str

    async def job(self) -> Job: ...
    async def journal(self) -> list[JournalEntry]: ...
    async def output(self, step: str) -> Any: ...
    async def effects(self) -> list[Effect]: ...
    async def budget(self) -> Budget | None: ...
    async def events(self) -> list[JobEvent]: ...
    async def topics(self) -> list[OutputTopic]: ...
    def stream(
        self, topic: str = ..., *, after: int = ...
    ) -> AsyncGenerator[OutputPiece, None]: ...


class Preparer(Protocol):
    """Makes a job from a name or a plan, without submitting it; an app and a client differ."""

    async def __call__(
        self,
        job: str | Plan,
        arguments: Mapping[str, Any] | Sequence[Any],
        options: SubmitOptions,
    ) -> NewJob: ...


class TenantHandle:
    """The store, as one principal may use it."""

    def __init__(
        self,
        caller: Caller,
        principal: Principal,
        *,
        prepare: Preparer | None = None,
        recent: float = RECENT,
        keyed: KeyedRequest | None = None,
        searches: Searches | None = None,
    ) -> None:
        """Bind the store to a principal.

        Args:
            caller: An app or a client.
            principal: Who asks, as their credential says.
            prepare: How jobs are made; None: they cannot be submitted.
            recent: Within how many seconds of a sign-in a person may decide about HIGH risks.
            keyed: The request, if it has an idempotency key.
            searches: The searches of all tenants; None: nothing waits for its turn.

        Raises:
            AccessDenied: The principal is nobody, or of a tenant without a name.
        """
        check_somebody(principal)
        self.principal = principal
        self.tenant = principal.tenant
        self._caller = caller.over(partial(audited_verbs, principal, keyed=keyed))
        if searches is not None:
            who = share_of(principal)
            self._caller = self._caller.over(partial(searching_verbs, searches=searches, who=who))
        self._verbs = self._caller.verbs
        self._prepare = prepare
        self._recent = recent
        self._needed = set[Permission]() if keyed is None else keyed.needed

    # The store

    async def now(self) -> float:
        """Return the time of the store's clock."""
        return await self._verbs.now()

    async def watch(
        self, changed: Callable[[], None], *, output: bool = False
    ) -> Callable[[], None]:
        """Call `changed` soon after a write, of whichever tenant: a hint to read again.

        Returns:
            A function that ends the watch.
        """
        return (await self._caller.store()).watch(changed, output=output)

    # Jobs

    async def job(self, job_id: str) -> Job:
        """Return a job of the tenant; its whole id is needed.

        Raises:
            JobNotFound: There is none, or it belongs to another tenant.
        """
        found = await self._verbs.job(_text(job_id), self.tenant)
        if found is None:
            raise JobNotFound(job_id)
        return found

    async def read(self, job_id: str) -> JobReader:
        """Return what reads a job of the tenant, or raise `JobNotFound`."""
        return await self._handle(job_id)

    async def jobs(self, query: JobQuery | None = None) -> list[Job]:
        """Return jobs of the tenant, newest first."""
        return await self._caller.find_jobs(self._bound(query))

    async def rows(self, query: JobQuery | None = None) -> tuple[list[JobRow], float]:
        """Return jobs of the tenant as rows of a list, newest first; and the store's time."""
        return await self._caller.insight.page(self._bound(query))

    async def row(self, job_id: str) -> JobRow:
        """Return a job of the tenant as a row of a list, or raise `JobNotFound`."""
        return await self._caller.insight.row((await self.job(job_id)).id)

    async def counts(self, query: JobQuery | None = None) -> dict[str, int]:
        """Return the number of the tenant's jobs by state."""
        return await self._verbs.counts(self._bound(query))

    async def messages(self, job_id: str) -> list[JobMessage]:
        """Return the messages to a job that it has not received."""
        await self.job(job_id)
        return await self._verbs.messages(job_id)

    async def events(self, job_id: str, after: int = 0, limit: int = 1000) -> list[JobEvent]:
        """Return a page of a job's log."""
        await self.job(job_id)
        return await self._verbs.events(job_id, after, limit)

    async def payload(self, job_id: str, stand_in: StandIn) -> bytes:
        """Return a large payload of a job's journal."""
        await self.job(job_id)
        return await self._verbs.payload(job_id, stand_in)

    async def output(self, job_id: str, topic: str, after: int = 0) -> OutputPage:
        """Return a page of what a job has emitted."""
        await self.job(job_id)
        return await self._verbs.output(job_id, topic, after)

    async def submit(
        self,
        job: str | Plan,
        arguments: Mapping[str, Any] | Sequence[Any] = (),
        options: SubmitOptions | None = None,
    ) -> str:
        """Store a job of the tenant, requested by the principal; return its id.

        Raises:
            UnknownName: There is no such job.
            ArgumentError, PlanError, KeyConflict: As `App.submit`.
        """
        self._need(Permission.JOBS_SUBMIT)
        if self._prepare is None:
            raise AccessDenied("forbidden", "jobs cannot be submitted here")
        bound: SubmitOptions = {**(options or {}), "tenant": self._own, "user": self._actor}
        made = await self._prepare(job, arguments, bound)
        return (await self._caller.submit_new(made)).id

    async def command(
        self,
        job_id: str,
        action: JobAction,
        *,
        reason: str = "",
        step: str | None = None,
        output: Any = None,
    ) -> None:
        """Command a job of the tenant in the name of the principal.

        Args:
            job_id: The job.
            action: What it shall do.
            reason: For its log.
            step: For retry, skip, skip_item and abandon_undo: the step ("load#2").
            output: For skip: the result that the step is said to have had.

        Raises:
            JobNotFound, IllegalTransition, LookupError: It is refused; nothing was changed.
        """
        others = {"abandon_undo": "abandon", "skip_item": "skip"}
        self._need(Permission(f"jobs.{others.get(action, action)}"))
        handle, by = await self._handle(job_id), self._actor
        match action:
            case "retry":
                await handle.retry(step, reason, by=by)
            case "skip":
                await self._refuse_if_asked(job_id, _given(step))
                await handle.skip(_given(step), reason, output=output, by=by)
            case "skip_item":
                await handle.skip_item(_given(step), reason, by=by)
            case "abandon_undo":
                await handle.abandon_undo(_given(step), reason, by=by)
            case "cancel" | "pause" | "resume" | "compensate":
                await getattr(handle, action)(reason, by=by)

    async def _refuse_if_asked(self, job_id: str, step: str) -> None:
        """Refuse to skip what waits for people: that would answer, or withdraw, their question."""
        wanted = step if "#" in step else f"{step}#1"
        pending = ApprovalState.PENDING
        if await self._verbs.approval_of_step(job_id, wanted, pending) is not None:
            raise IllegalTransition(
                f"{wanted} of job {job_id} waits for people: let them decide about it, or cancel it"
            )

    async def command_jobs(
        self, action: BulkAction, query: JobQuery, *, reason: str = "", dry_run: bool = False
    ) -> BulkReport:
        """Command all jobs of the tenant that a query finds: see `Caller.command_jobs`."""
        self._need(Permission(f"jobs.{action}"))
        bound = self._bound(query)
        return await self._caller.command_jobs(
            action, bound, by=self._actor, reason=reason, dry_run=dry_run
        )

    async def send(
        self, job_id: str, topic: str, payload: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a job of the tenant a message; return False if it already has this key."""
        self._need(Permission.JOBS_SEND)
        return await (await self._handle(job_id)).send(topic, payload, key=key)

    async def fork(self, job_id: str, before: str, edit: ArgumentEdit = UNEDITED) -> str:
        """Submit a copy of a job that begins at a step, maybe with other arguments.

        Returns:
            The id of the copy.
        """
        self._need(Permission.JOBS_FORK)
        if edit != UNEDITED:
            self._need(Permission.JOBS_EDIT)
        handle = await self._handle(job_id)
        given = edit.of((await handle.job()).input) if edit != UNEDITED else None
        return (await handle.fork(before, by=self._actor, arguments=given)).id

    # People

    async def approvals(
        self,
        state: ApprovalState | None = ApprovalState.PENDING,
        *,
        job_id: str | None = None,
        limit: int = 100,
        before: tuple[float, str] | None = None,
    ) -> list[Approval]:
        """Return approvals of the tenant, newest first; `before`: behind this time and id."""
        return await self._verbs.approvals(state, self.tenant, job_id, limit, before)

    async def approval(self, approval_id: str) -> Approval:
        """Return an approval of the tenant.

        Raises:
            UnknownName: There is none, or it belongs to another tenant.
        """
        found = await self._verbs.approval(_text(approval_id))
        if found is None or not self._is_mine(found.tenant):
            raise UnknownName(f"there is no approval {approval_id!r}")
        return found

    def person(self, tenant: str) -> Person:
        """Return the principal as a person who may decide in a tenant."""
        roles = (
            frozenset({APPROVER}) if self._may(Permission.APPROVALS_DECIDE) else frozenset[str]()
        )
        return Person(
            id=self.principal.id,
            tenant=tenant,
            roles=roles,
            is_program=self.principal.kind != "person",
            makers=frozenset(each for each in self.principal.makers if not has_the_store(each)),
        )

    async def decide(
        self,
        approval_id: str,
        verdict: VoteVerdict,
        *,
        action_hash: str,
        reason: str = "",
        edit: ArgumentEdit = UNEDITED,
    ) -> Approval:
        """Approve or reject an action as the principal saw it; return the updated approval.

        Raises:
            AccessDenied: The principal may not decide, or must sign in again first.
            UnknownName: There is no such approval.
            DecisionRefused, ArgumentError: As `Caller.decide`.
        """
        self._need(Permission.APPROVALS_DECIDE)
        if edit != UNEDITED:
            self._need(Permission.APPROVALS_EDIT)
        approval = await self.approval(approval_id)
        await self._need_sign_in(approval)
        return await self._caller.decide(
            approval.id,
            verdict,
            by=self.person(approval.tenant),
            action_hash=action_hash,
            reason=reason,
            arguments=None if edit == UNEDITED else edit.of(approval.action.input),
        )

    async def delegate(self, approval_id: str, *, to: str, reason: str = "") -> Approval:
        """Let another person decide about an approval instead of the principal."""
        self._need(Permission.APPROVALS_DECIDE)
        approval = await self.approval(approval_id)
        by = self.person(approval.tenant)
        return await self._caller.delegate(approval.id, to=to, by=by, reason=reason)

    async def reveal(self, approval_id: str) -> Any:
        """Return the arguments of an approval with account numbers; that they were seen is audited.

        Raises:
            AccessDenied: The principal may not see them.
            UnknownName: There is no such approval.
        """
        self._need(Permission.APPROVALS_REVEAL)
        approval = await self.approval(approval_id)
        return await self._caller.reveal(approval, by=self._actor)

    async def _need_sign_in(self, approval: Approval) -> None:
        if approval.risk < RiskLevel.HIGH:
            return
        signed_in = self.principal.signed_in_at
        if signed_in is None or await self.now() - signed_in > self._recent:
            text = (
                f"a decision about {approval.risk.name} risk needs a recent sign-in: sign in to "
                "the dashboard again, as you did before; if that was by a link, which works once, "
                "`perdure tokens sign-in` prints a new one"
            )
            raise AccessDenied("reauthenticate", text)

    # Effects

    async def open_effects(
        self,
        limit: int = 100,
        after: tuple[float, str, int] | None = None,
        *,
        in_doubt: bool = False,
    ) -> list[Effect]:
        """Return the tenant's effects whose outcome is not known, the oldest first.

        `after`: only those behind this one, and `in_doubt`: without those under way.
        """
        return await self._verbs.open_effects(self.tenant, limit, after, in_doubt=in_doubt)

    async def effect(self, key: str) -> Effect:
        """Return an effect of the tenant by its key; without a tenant, one that is open.

        Raises:
            UnknownName: There is none, or it belongs to another tenant.
        """
        if self.tenant is None:
            listed = await self._verbs.open_effects(None, _MANY)
            found = next((each for each in listed if each.key == key), None)
        else:
            found = await self._verbs.effect_by_key(self.tenant, _text(key))
        if found is None:
            raise UnknownName(f"there is no effect {key!r}")
        return found

    async def resolve(
        self, key: str, choice: Choice, *, result: Any = None, reason: str = ""
    ) -> Effect:
        """Settle an effect of the tenant that is in doubt; return it as it was."""
        self._need(Permission.EFFECTS_RESOLVE)
        effect = await self.effect(key)
        handle = await self._handle(effect.job_id)
        await handle.resolve(effect.no, choice, result=result, reason=reason, by=self._actor)
        return effect

    # Schedules

    async def schedules(self) -> list[Schedule]:
        """Return the schedules of the tenant by name."""
        return await self._verbs.schedules(self.tenant)

    async def schedule(self, name: str) -> Schedule:
        """Return a schedule of the tenant.

        Raises:
            UnknownName: There is none, or it belongs to another tenant.
            AmbiguousId: The principal has no tenant, and several tenants have one of this name.
        """
        found = [each for each in await self.schedules() if each.name == name]
        if not found:
            raise UnknownName(f"there is no schedule {name!r}")
        if len(found) > 1:
            raise AmbiguousId(name, [f"{each.tenant}/{each.name}" for each in found])
        return found[0]

    async def put_schedule(self, schedule: Schedule) -> None:
        """Create or replace a schedule of the tenant; its jobs are requested by the principal."""
        self._need(Permission.SCHEDULES_WRITE)
        self._need(Permission.JOBS_SUBMIT)
        job = replace(schedule.job, tenant=self._own, user=self._actor)
        await self._verbs.put_schedule(replace(schedule, job=job))

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule of the tenant, or raise `UnknownName`."""
        self._need(Permission.SCHEDULES_WRITE)
        found = await self.schedule(name)
        await self._verbs.delete_schedule(found.tenant, found.name)

    async def pause_schedule(self, name: str, *, paused: bool, next_at: float | None) -> None:
        """Pause a schedule of the tenant, or resume it from a time."""
        self._need(Permission.SCHEDULES_WRITE)
        if not paused:
            self._need(Permission.JOBS_SUBMIT)
        found = await self.schedule(name)
        await self._verbs.pause_schedule(
            found.tenant, found.name, next_at, paused=paused, by=self._actor
        )

    # The audit log

    @property
    def chain(self) -> str:
        """The tenant whose audit log the principal reads; without a tenant, the installation's."""
        return chain_of(self.tenant)

    async def audit_entries(self, before: int = 2**62, limit: int = 50) -> list[AuditRow]:
        """Return rows of the audit log, newest first: those before a number."""
        self._need(Permission.AUDIT_READ)
        return await self._verbs.audit_newest(self.chain, before, limit)

    async def verify_audit(self) -> AuditReport:
        """Check the audit log of the tenant; without a tenant, that of everybody."""
        self._need(Permission.AUDIT_READ)
        return await verify_audit(self._verbs, None if self.tenant is None else [self.tenant])

    # Tokens

    async def tokens(self) -> list[Token]:
        """Return the tokens of the tenant, newest first."""
        self._need(Permission.TOKENS_MANAGE)
        return [listed(each) for each in await self._verbs.tokens(self.tenant)]

    async def create_token(self, asked: NewToken) -> MadeToken:
        """Make a token of the tenant; without a tenant, one of all tenants.

        Raises:
            ArgumentError: Something in it is not valid.
            AccessDenied: It would be allowed more than the principal is.
        """
        self._need(Permission.TOKENS_MANAGE)
        return await create_token(self._verbs, asked, self.tenant, self.principal)

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token of the tenant, or raise `UnknownName`."""
        self._need(Permission.TOKENS_MANAGE)
        await revoke_token(self._verbs, token_id, self.tenant)

    async def sign_out_everywhere(self) -> int:
        """End every session of the principal; return how many there were."""
        return await self._verbs.end_sessions(self.principal.id, self.tenant)

    # The fleet

    async def workers(self, silent_for: float = SILENT) -> list[FleetWorker]:
        """Return the living workers; to a tenant without host and process, with its own jobs.

        One without a heartbeat for `silent_for` seconds is left out.
        """
        return list((await self.fleet(silent_for)).workers)

    async def ask_worker(
        self, worker: str, action: WorkerAction, pid: str | None = None
    ) -> dict[str, Any]:
        """Ask a worker in the name of the principal: see `Caller.ask_worker`."""
        self._need(_ASKS[action])
        data = {} if pid is None else {"pid": pid}
        return await self._caller.ask_worker(
            _text(worker), action, data, by=self._actor, timeout=_ASKED_FOR
        )

    async def fleet(self, silent_for: float = SILENT) -> Fleet:
        """Return the living workers, and the paused queues; see `workers`."""
        fleet = await self._verbs.fleet(silent_for)
        if self.tenant is None:
            return fleet
        running = await self._verbs.running_of(self.tenant)
        return replace(
            fleet,
            workers=tuple(self._veiled(each, running.get(each.id, 0)) for each in fleet.workers),
        )

    def _veiled(self, worker: FleetWorker, running: int) -> FleetWorker:
        return replace(worker, host="", pid=0, running=running)

    async def queues(self) -> list[QueueCounts]:
        """Return the queues; to a tenant with the counts of its own jobs."""
        return await self._verbs.queues(self.tenant)

    async def pause_queue(self, name: str, *, reason: str = "", paused: bool = True) -> bool:
        """Pause a queue or resume it; return False if it was so before."""
        self._need(Permission.QUEUES_PAUSE)
        change = self._caller.pause_queue if paused else self._caller.resume_queue
        return await change(name, by=self._actor, reason=reason)

    async def definitions(self) -> list[PublishedDefinitions]:
        """Return what workers know: the code of the installation, the same for all tenants."""
        return await self._verbs.definitions()

    # For pages

    @property
    def kind(self) -> str:
        """The kind of database: "sqlite" or "postgres"."""
        return "sqlite" if self._caller.url.startswith("sqlite") else "postgres"

    async def stale_workers(self) -> int:
        """Return how many registered workers have been silent for too long."""
        found = await self._verbs.workers()
        return sum(each.silent_for > SILENT for each in found)

    async def unserved(self) -> list[str]:
        """Return which of the tenant's jobs no worker can claim, and why, in words."""
        fleet, found = await self.fleet(), list[str]()
        for _, _, count, job_id in await self._verbs.unclaimed(self.tenant):
            job = await self._verbs.job(job_id, self.tenant)
            if job is not None and (why := fleet.why_waiting(job)) is not None:
                found.append(f"{count} of {job.name}: {why}")
        return found

    async def run_schedule(self, name: str) -> str:
        """Submit the job of a schedule of the tenant now; return its id."""
        self._need(Permission.SCHEDULES_WRITE)
        self._need(Permission.JOBS_SUBMIT)
        template = (await self.schedule(name)).job
        asked = (template.user, *template.requesters)
        made = replace(template, id=new_id(), key=None, user=self._actor, requesters=asked)
        return (await self._caller.submit_new(made)).id

    async def undo_preview(self, job_id: str) -> UndoPreview:
        """Return what would be undone of a job of the tenant, or raise `JobNotFound`."""
        await self.job(job_id)
        return await self._caller.insight.undo(job_id)

    async def fork_preview(self, job_id: str, before: str) -> ForkPreview:
        """Return what a fork of a job of the tenant would do, or raise `JobNotFound`."""
        await self.job(job_id)
        return await self._caller.insight.fork(job_id, before)

    async def attempts(self, job_id: str, step: str | None = None) -> list[StepAttempt]:
        """Return the attempts at the steps of a job of the tenant, or raise `JobNotFound`."""
        await self.job(job_id)
        return await self._caller.insight.attempts(job_id, step)

    async def timeline(self, job_id: str) -> Timeline:
        """Return what a job of the tenant did at which time, or raise `JobNotFound`."""
        await self.job(job_id)
        return await self._caller.insight.timeline(job_id)

    async def export_job(self, job_id: str) -> bytes:
        """Return a job of the tenant as a bundle, or raise `JobNotFound`."""
        self._need(Permission.JOBS_EXPORT)
        await self.job(job_id)
        return await self._caller.export_job(job_id)

    async def errors(self, since: float = 0.0, limit: int = 1000) -> list[ErrorGroup]:
        """Return the tenant's newest failures in groups of the same cause."""
        return await self._caller.insight.errors(self.tenant, since=since, limit=limit)

    async def mark_error(self, fingerprint: str, state: ErrorState) -> None:
        """Record what the principal says about a group of errors of the tenant."""
        self._need(Permission.JOBS_RETRY)
        whose = ALL_TENANTS if self.tenant is None else self.tenant
        await self._verbs.mark_error(whose, _text(fingerprint), state, self._actor)

    async def metrics(self, minutes: int) -> MetricsPage:
        """Return the tenant's numbers over the last minutes, and the figures to watch."""
        return await self._caller.insight.metrics(self.tenant, minutes)

    async def saved_views(self) -> list[SavedView]:
        """Return the saved queries of the tenant by name."""
        return await self._verbs.saved_views(self._own)

    async def save_view(self, name: str, query: str) -> None:
        """Keep a query for all of the tenant, in the name of the principal."""
        self._need(Permission.VIEWS_WRITE)
        view = SavedView(name=name, query=query, saved_by=self._actor)
        await self._verbs.save_view(self._own, view)

    async def delete_view(self, name: str) -> None:
        """Delete a saved query of the tenant, or raise `UnknownName`."""
        self._need(Permission.VIEWS_WRITE)
        if not await self._verbs.delete_view(self._own, _text(name)):
            raise UnknownName(f"there is no saved query {name!r}")

    async def journal_page(
        self, job_id: str, after: int, limit: int, *, slim: bool = False
    ) -> list[JournalEntry]:
        """Return a part of the journal of a job; `slim`: without payloads."""
        await self.job(job_id)
        return await self._verbs.journal_page(job_id, after, limit, slim=slim)

    async def whole(self, job_id: str) -> WholeJob:
        """Return all of a job of the tenant that is not a list of its own.

        Raises:
            JobNotFound: There is none, or it belongs to another tenant.
        """
        found = await self._verbs.whole_job(_text(job_id), self.tenant, SILENT)
        if found is None:
            raise JobNotFound(job_id)
        return found

    # Inside

    async def _handle(self, job_id: str) -> Handle[Any]:
        job = await self.job(job_id)
        return await self._caller.handle(job.id)

    def _bound(self, query: JobQuery | None) -> JobQuery:
        query = query or JobQuery()
        if self.tenant is None:
            return query
        if query.tenant not in (None, self.tenant):  # nor one's own jobs, which nobody asked for
            why = f"you see the jobs of one tenant, {self.tenant}: leave `tenant:` out"
            raise QueryError(f"tenant:{query.tenant}", 0, why)
        return replace(query, tenant=self.tenant)

    def sees(self, tenant: str) -> bool:
        """Whether things of this tenant exist here."""
        return self._is_mine(tenant)

    def _is_mine(self, tenant: str) -> bool:
        return self.tenant is None or tenant == self.tenant

    @property
    def _own(self) -> str:
        return DEFAULT_TENANT if self.tenant is None else self.tenant

    @property
    def _actor(self) -> str:
        return self.principal.id

    def _may(self, permission: Permission) -> bool:
        return self.principal.may(permission)

    def _need(self, permission: Permission) -> None:
        self._needed.add(permission)
        if not self._may(permission):
            raise AccessDenied("forbidden", f"this needs the permission {permission}")


def _text(id: str) -> str:
    """Return an id as databases take it: nothing has one with a NUL, which PostgreSQL refuses."""
    return id.replace("\0", "\ufffd")


def _given(step: str | None) -> str:
    if not step:
        raise LookupError("name the step")
    return step
