"""The caller's side of an app: find jobs, wait for them, command them, and answer for people.

An `App` has it beside its definitions and its workers, a `Client` has nothing else. A caller may be
used from any number of event loops and threads at once: see `store.shared` for the store, and
`WaitsByLoop` for those who wait for results.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from msgspec.structs import replace

from perdure.base.clock import Clock
from perdure.base.duration import Duration, required_seconds
from perdure.base.encryption import Encryption
from perdure.base.errors import (
    AmbiguousId,
    ArgumentError,
    JobNotFound,
    StoreError,
    WorkerNotFound,
)
from perdure.base.secret import without_secrets
from perdure.engine import events
from perdure.engine.ask_worker import ask
from perdure.engine.attendance import SILENT, Attendance
from perdure.engine.handle import Handle, WaitsByLoop
from perdure.engine.insight import Insight
from perdure.engine.people.decide import ApprovalAnswer, decide, delegate
from perdure.engine.policy import Policy
from perdure.engine.submission import ID_LENGTH, new_id
from perdure.jobs.approval import (
    Approval,
    ApprovalState,
    LinkUse,
    Person,
    Refusal,
    Vote,
    VoteVerdict,
)
from perdure.jobs.bulk import BulkAction, BulkReport, BulkResult, states_for
from perdure.jobs.bundle import read_bundle
from perdure.jobs.definition import JobDefinition, Step
from perdure.jobs.fleet import FleetWorker, QueueCounts
from perdure.jobs.model import Command, Job, JobQuery, NewJob
from perdure.jobs.redaction import refuse_markers, revealed
from perdure.jobs.text_limits import check_given
from perdure.jobs.worker_command import LONGEST_PATIENCE, WorkerAction, WorkerCommand
from perdure.store.open import open_store
from perdure.store.shared import SharedStore
from perdure.store.store import Store

R = TypeVar("R")

_SHORTEST_PART: Final = 4  # characters of an id
_CANDIDATES: Final = 5  # how many jobs are named if there are several

# A command to many jobs: how many are read, and how many get it, at a time.
_PAGE: Final = 500
_AT_ONCE: Final = 50


class Caller:
    """Asks a store about jobs and commands them, from any loop and any thread."""

    def __init__(self, url: str, policy: Policy | None = None) -> None:
        """Open nothing yet.

        Args:
            url: The store: `sqlite:///file.db` or `postgresql://…`.
            policy: Who may decide, where people are named.
        """
        self.url = url
        self.policy = policy or Policy()
        self.clock: Clock | None = None  # replaces the machine's in a test that skips time
        self.encryption: Encryption | None = None  # None: as the environment says
        self.shows_locked = False  # show a text where there is no key for a payload
        self._shared = SharedStore(self._new_store)
        self.verbs = self._shared.verbs  # each opens the store if need be
        self._waits = WaitsByLoop(self._shared, lambda: without_secrets(self.url))
        self._attendance = Attendance(self.verbs)
        self.approval_store = VotingStore(self.verbs)  # for channels
        self.insight = Insight(self.verbs, lambda: self.steps)  # what operators want to know

    def _new_store(self) -> Store:
        return open_store(
            self.url,
            clock=self.clock,
            encryption=self.encryption,
            shows_locked=self.shows_locked,
        )

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]:
        """The steps that are known here, by name."""
        return MappingProxyType({})

    @property
    def jobs(self) -> Mapping[str, JobDefinition[..., Any]]:
        """The jobs that are known here, by name."""
        return MappingProxyType({})

    def over(self, wrap: Callable[[Store], Store]) -> Self:
        """Return this caller with something in front of the verbs of its store, such as an audit.

        It shares everything else: definitions, workers, and the store itself.
        """
        other = copy(self)
        other.verbs = wrap(self.verbs)
        other.insight = Insight(other.verbs, lambda: self.steps)
        return other

    # Open and close

    async def store(self) -> Store:
        """Return the store, opening it on first use."""
        return await self._shared.get()

    async def close(self) -> None:
        """End the waits for jobs on this loop, and close the store.

        While another loop or thread still uses the store, it stays open: the last user closes it.
        A closed app opens its store again on the next use.
        """
        self._attendance.forget()
        await self._waits.close(StoreError("the app was closed"))
        await self._shared.close()

    async def __aenter__(self) -> Self:
        await self._shared.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._attendance.forget()
        await self._waits.close(StoreError("the app was closed"))
        await self._shared.leave(close=True)

    # Jobs

    async def handle(self, job_id: str) -> Handle[Any]:
        """Return the handle of a job.

        Args:
            job_id: Its id, or the first or last characters of it, at least four.

        Raises:
            JobNotFound: There is no such job.
            AmbiguousId: There are several whose ids begin or end so.
        """
        job = await self.verbs.job(job_id)
        if job is None and _SHORTEST_PART <= len(job_id) < ID_LENGTH:
            job = await self._job_like(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return self._handle(job.id, self.jobs.get(job.name), new=False)

    async def _job_like(self, part: str) -> Job | None:
        found = await self.verbs.ids_like(part, _CANDIDATES)
        if len(found) > 1:
            raise AmbiguousId(part, found)
        return await self.verbs.job(found[0]) if found else None

    def _handle(
        self, job_id: str, definition: JobDefinition[Any, R] | None, *, new: bool
    ) -> Handle[R]:
        return Handle(self.verbs, self._waits, job_id, definition, new=new)

    async def _submit(
        self, made: Sequence[NewJob], definitions: Sequence[JobDefinition[..., Any] | None]
    ) -> list[Handle[Any]]:
        """Store jobs, all of them or none; return their handles."""
        made = [events.carried(job) for job in made]
        submitted = await self.verbs.submit(made, made[0].user if made else "")
        events.submitted(made, submitted)
        handles = [
            self._handle(each.id, definition, new=each.created)
            for each, definition in zip(submitted, definitions, strict=True)
        ]
        if made and not self._serves(made[0]):  # they are all of one queue and one definition
            unserved = await self._attendance.missing(made[0], handles[0].id)
            for handle in handles:
                handle.unserved = unserved
        self._poke()
        return handles

    async def submit_new(self, made: NewJob) -> Handle[Any]:
        """Store a job that was made without being submitted; return its handle.

        Raises:
            ArgumentError: Its arguments are what is shown of those that this program cannot read.
        """
        refuse_markers(made.input, f"the arguments of job {made.name!r}")
        (handle,) = await self._submit([made], [self.jobs.get(made.name)])
        return handle

    def _poke(self) -> None:
        """Make workers beside this caller look for work at once; the store tells all others."""

    def _serves(self, job: NewJob) -> bool:
        """Whether a worker beside this caller serves the queue of its job."""
        del job
        return False

    async def send(
        self, job_id: str, topic: str, payload: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a message to a job; return False if it already has this key.

        Raises:
            IllegalTransition: The job has ended, and does not have this key.
        """
        return await (await self.handle(job_id)).send(topic, payload, key=key)

    async def find_jobs(self, query: JobQuery | None = None) -> list[Job]:
        """Return jobs, newest first."""
        return await self.verbs.jobs(query or JobQuery())

    async def command_jobs(
        self,
        action: BulkAction,
        query: JobQuery,
        *,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> BulkReport:
        """Cancel, pause, resume or retry all jobs that a query finds, the oldest first.

        Each job gets the command by itself, in its log, and may refuse it. A job that was submitted
        before its children gets it before them.

        Args:
            action: "cancel", "pause", "resume" or "retry".
            query: Which jobs, all of them: `limit` does not count. Without `states`, those that the
                command is made for; a retry is then one of FAILED jobs.
            by: Who commands it.
            reason: For the log of each job.
            dry_run: Do nothing, and report what would be done and refused.
            on_progress: Called with how many jobs have got it, and with how many there are.

        Raises:
            ArgumentError: There is no such command.
        """
        check_given(by=by, reason=reason)
        states = states_for(action) if query.states is None else query.states
        found = await self._all_jobs(replace(query, states=states, limit=_PAGE))
        results: list[BulkResult] = []
        while True:
            if on_progress is not None:
                on_progress(len(results), len(results) + len(found))
            part = await self.verbs.command_jobs(
                [
                    (job, Command(job_id=job.job_id, action=action, actor=by, reason=reason))
                    for job in found[:_AT_ONCE]
                ],
                dry_run=dry_run,
            )
            if not part and not found:
                return BulkReport(action=action, dry_run=dry_run, results=results)
            # Those that an interrupted request with the same key has commanded may come first.
            results += part
            done = {each.job_id for each in part}
            found = [each for each in found if each.job_id not in done]

    async def _all_jobs(self, query: JobQuery) -> list[BulkResult]:
        """Return all jobs that a query finds, the oldest first."""
        found: list[BulkResult] = []
        while page := await self.verbs.jobs(query):
            found += [BulkResult(job_id=job.id, name=job.name, state=job.state) for job in page]
            query = replace(query, before=(page[-1].created_at, page[-1].id))
        return found[::-1]

    async def export_job(self, job_id: str) -> bytes:
        """Return a job as JSON for other machines: all that people may see of it, no secrets.

        Raises:
            JobNotFound, AmbiguousId: As `handle`.
        """
        return (await self.insight.bundle((await self.handle(job_id)).id)).pack()

    async def import_job(self, data: bytes, *, by: str = "") -> Handle[Any]:
        """Store a job that was exported elsewhere as a copy that has ended; return its handle.

        The copy belongs to the tenant and the queue "imported": nothing runs it.

        Raises:
            ArgumentError: This is no bundle of a job.
        """
        check_given(by=by)
        bundle, copy_id = read_bundle(data), new_id()
        await self.verbs.import_job(bundle, copy_id, by)
        return self._handle(copy_id, None, new=True)

    # The fleet

    async def workers(self) -> list[FleetWorker]:
        """Return the workers that are alive: where they run, what they serve and know."""
        return list((await self.verbs.fleet(SILENT)).workers)

    async def ask_worker(
        self,
        worker: str,
        action: WorkerAction | str,
        data: Mapping[str, Any] | None = None,
        *,
        by: str = "",
        timeout: Duration = "10s",
    ) -> dict[str, Any]:
        """Ask a worker, wherever it runs, to do or to show something; return its answer.

        Args:
            worker: Its id, or the first characters of it, at least four.
            action: "drain", "resume", "tree", "inspect", "kill" or "restart".
            data: `{"pid": …}` of the process that the last three are about.
            by: Who asks.
            timeout: How long to wait; afterwards the worker ignores it.

        Raises:
            WorkerNotFound: There is no such worker, or it has stopped meanwhile.
            WorkerSilent: It did not answer in time.
            CommandRefused: It refuses; the message says why.
        """
        check_given(by=by)
        patience = min(required_seconds(timeout), LONGEST_PATIENCE)
        command = WorkerCommand(
            id=new_id(),
            owner=await self._worker_like(worker),
            action=_action(action),
            data=dict(data or {}),
            asked_by=by,
        )
        return await ask(self._shared, self.verbs, command, patience)

    async def _worker_like(self, part: str) -> str:
        """Return the id of the registered worker whose id begins so."""
        owners = [each.owner for each in await self.verbs.workers()]
        if part in owners:
            return part
        found = [each for each in owners if each.startswith(part)]
        if len(part) < _SHORTEST_PART or not found:
            raise WorkerNotFound(part)
        if len(found) > 1:
            raise AmbiguousId(part, found[:_CANDIDATES])
        return found[0]

    async def all_queues(self) -> list[QueueCounts]:
        """Return every queue of the store with the number of its jobs, by name."""
        return await self.verbs.queues()

    async def pause_queue(self, name: str, *, by: str = "", reason: str = "") -> bool:
        """Let no worker claim from a queue until it is resumed; return False if it was paused.

        Jobs that run go on. That it was paused, by whom and why, is kept in the event log.
        """
        check_given(queue=name, by=by, reason=reason)
        return await self.verbs.pause_queue(name, by, reason, paused=True)

    async def resume_queue(self, name: str, *, by: str = "", reason: str = "") -> bool:
        """Let workers claim from a paused queue again; return False if it was not paused."""
        check_given(by=by, reason=reason)  # the queue may have a name that is refused by now
        return await self.verbs.pause_queue(name, by, reason, paused=False)

    # People

    async def approvals(
        self,
        state: ApprovalState | None = ApprovalState.PENDING,
        *,
        tenant: str | None = None,
        limit: int = 100,
        before: Approval | None = None,
    ) -> list[Approval]:
        """Return approvals, newest first; by default those that are pending.

        `before` is the last of the page before, behind which the list goes on.
        """
        place = None if before is None else (before.created_at, before.id)
        return await self.verbs.approvals(state, tenant, None, limit, place)

    async def decide(
        self,
        approval: Approval | str,
        verdict: VoteVerdict,
        *,
        by: Person | str,
        action_hash: str | None = None,
        reason: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Approval:
        """Approve or reject an action as the person saw it; return the updated approval.

        Args:
            approval: The approval that they saw, or its id together with `action_hash`.
            verdict: "approve" or "reject".
            by: Who decides: a person, or any name of a person in the app's policy.
            action_hash: The `action.hash` that they saw. If the action was edited since, the answer
                is refused as "changed".
            reason: For the audit log.
            arguments: Approve with other arguments, by name; all others stay as they are stored.
                They are judged again; if their risk is higher, this does not approve them, and
                people are asked again.

        Raises:
            DecisionRefused: The answer does not count; `code` and the message say why.
            ArgumentError: The arguments do not fit the step, or one of them is what people see in
                the place of a value that is not shown.
        """
        check_given(reason=reason)
        seen = action_hash
        if seen is None and isinstance(approval, Approval):
            seen = approval.action.hash
        if seen is None:
            raise ValueError(
                "which action did they see? Pass the approval as it was read, "
                "or its id and action_hash=approval.action.hash"
            )
        answer = ApprovalAnswer(
            approval_id=approval.id if isinstance(approval, Approval) else approval,
            action_hash=seen,
            verdict=verdict,
            by=by,
            reason=reason,
            arguments=arguments,
        )
        return await decide(self.verbs, self, answer)

    async def delegate(
        self, approval: Approval | str, *, to: str, by: Person | str, reason: str = ""
    ) -> Approval:
        """Delegate an approval to another person; the approver may then no longer decide.

        Args:
            approval: The approval, or its id.
            to: The id of the person who decides instead, and is notified.
            by: The approver: a person, or any name of a person in the app's policy.
            reason: For the audit log.

        Raises:
            DecisionRefused: This person may not decide, the other one cannot, or too few people
                would be left to decide.
        """
        check_given(to=to, reason=reason)
        id = approval.id if isinstance(approval, Approval) else approval
        return await delegate(self.verbs, self.policy.people, id, by, to, reason)

    async def reveal(self, approval: Approval, *, by: str) -> Any:
        """Return the arguments of an approval with the numbers of accounts and cards.

        Passwords, tokens and keys are not in it. Who saw them is kept in the log of the job.

        Args:
            approval: The approval.
            by: Who looks.
        """
        check_given(by=by)
        await self.verbs.reveal(approval.id, approval.tenant, by)
        match revealed(approval.action.input):
            case [str(), details, *_]:  # a question of the code, and what it is about
                return details
            case found:
                return found


def _action(name: str) -> WorkerAction:
    try:
        return WorkerAction(name)
    except ValueError:
        known = ", ".join(WorkerAction)
        raise ArgumentError(f"a worker cannot {name!r}", [f"it can be asked to: {known}"]) from None


class VotingStore:
    """The store of the approvals for channels: see `ApprovalStore`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now = store.now
        self.approval = store.approval
        self.keep_link = store.keep_link
        self.link = store.link
        self.audit_attempt = store.audit_attempt

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        """Count a vote, and report what became of it."""
        result = await self._store.vote(approval_id, vote, use)
        if events.listens(events.APPROVAL_DECIDE):
            events.voted(result, vote)
        return result
