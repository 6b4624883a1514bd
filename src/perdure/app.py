"""App: definitions, a store, and workers in one object.

app = App("sqlite:///perdure.db")

@app.step
async def greet(ctx: StepContext, name: str) -> str:
    return f"hello {name}"

@app.job
async def welcome(ctx: JobContext, name: str) -> str:
    return await ctx.run(greet, name)

print(app.run_sync(welcome, "Kim"))
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, cast, overload

from perdure.base.codec import LIMITS, PayloadLimits, digest
from perdure.base.duration import Duration
from perdure.base.errors import JobNotFound, NotInProcess, StoreError
from perdure.engine import events
from perdure.engine.handle import Handle, JobWaits
from perdure.engine.people.decide import ApprovalAnswer, decide, delegate
from perdure.engine.policy import Policy
from perdure.engine.settings import WorkerSettings
from perdure.engine.submission import new_job
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.redis_hint import RedisHint
from perdure.engine.worker.scheduler import Schedules
from perdure.engine.worker.worker import (
    runtime_settings,
    tune_garbage_collection,
    until_told_to_stop,
    working,
)
from perdure.jobs.approval import (
    Approval,
    ApprovalLink,
    ApprovalState,
    LinkUse,
    Person,
    Refusal,
    Vote,
    VoteVerdict,
)
from perdure.jobs.definition import JobDefinition
from perdure.jobs.model import Job, JobQuery, NewJob, QueueLimit
from perdure.jobs.plan import Plan
from perdure.jobs.registry import JobRegistry
from perdure.jobs.text_limits import check_defined, check_given
from perdure.process.process import current
from perdure.process.runtime import Runtime, run
from perdure.store.open import open_store
from perdure.store.store import Store

P = ParamSpec("P")
R = TypeVar("R")


class App(JobRegistry):
    """A registry of steps and jobs, the store that keeps the jobs, and workers that run them."""

    def __init__(
        self,
        url: str,
        *,
        worker: WorkerSettings | None = None,
        queues: Mapping[str, QueueLimit] | Iterable[str] = ("default",),
        limits: PayloadLimits = LIMITS,
        policy: Policy | None = None,
        hint: str | None = None,
    ) -> None:
        """Describe the app; nothing is opened yet.

        Args:
            url: The store: `sqlite:///file.db` or `postgresql://…`.
            worker: The settings of the workers of this app.
            queues: The queues that the workers serve, with their limits if there are any.
            limits: The largest payloads.
            policy: What waits for a person, who may decide, and how people are notified.
            hint: The URL of a Redis (`redis://…`) that lets the workers of a large fleet take turns
                to claim. It is optional, and its faults do no harm.
        """
        super().__init__()
        self.policy = policy or Policy()
        self.approval_store = LazyStore(self.store)  # for channels
        self.url = url
        self.limits = limits
        self.hint = hint
        self.worker_settings = worker or WorkerSettings()
        self.queues = _limited(queues)
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._waits: JobWaits | None = None
        self._nodes: list[WorkerNode] = []  # its workers in this process

    # Open and close

    async def store(self) -> Store:
        """Return the store, opening it on first use."""
        if self._store is None:
            async with self._opening:  # otherwise concurrent calls would open two
                if self._store is None:
                    store = open_store(self.url)
                    await store.open()
                    self._store = store
        return self._store

    async def close(self) -> None:
        """Close the store."""
        store, self._store = self._store, None
        waits, self._waits = self._waits, None
        if waits is not None:
            waits.close(StoreError("the app was closed"))
        if store is not None:
            await store.close()

    async def __aenter__(self) -> Self:
        await self.store()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Submit and find

    @overload
    async def submit(
        self,
        job: JobDefinition[P, R],
        *args: Any,
        tenant: str = ...,
        user: str = ...,
        key: str | None = ...,
        queue: str | None = ...,
        priority: int | None = ...,
        delay: Duration = ...,
        deadline: Duration = ...,
        **kwargs: Any,
    ) -> Handle[R]: ...

    @overload
    async def submit(
        self,
        job: Plan,
        *,
        tenant: str = ...,
        user: str = ...,
        key: str | None = ...,
        queue: str | None = ...,
        priority: int | None = ...,
        delay: Duration = ...,
        deadline: Duration = ...,
    ) -> Handle[Any]: ...

    async def submit(self, job: Any, *args: Any, **options: Any) -> Handle[Any]:
        """Store a job, which any worker of this store will run; it is durable on return.

        Args:
            job: A job of this app, or a plan of its steps.
            *args: The job's arguments.
            **options: `tenant`, `user`: whose job it is. `key`: submitting the same key of a tenant
                again returns the same job. `queue`, `priority`: override the job's own. `delay`: do
                not start before this delay. `deadline`: fail the job if it has not ended by then.
                All others are arguments of the job.

        Raises:
            ArgumentError: The arguments do not fit; every reason is named.
            PlanError: The plan cannot be run; every reason is named.
            KeyConflict: The key belongs to another job, or to other arguments.
        """
        made = self._new_job(job, args, options)
        (submitted,) = kept = await (await self.store()).submit([made], made.user)
        events.submitted([made], kept)
        self._poke()
        definition = None if isinstance(job, Plan) else job
        return await self._handle(submitted.id, definition, new=submitted.created)

    async def submit_many(
        self, job: JobDefinition[P, R], calls: Iterable[tuple[Any, ...]], **options: Any
    ) -> list[Handle[R]]:
        """Store many jobs at once, all of them or none; return their handles.

        Args:
            job: A job of this app.
            calls: The arguments of each job.
            **options: Those of `submit`, for all of the jobs; `key` is not allowed.
        """
        if options.get("key") is not None:
            raise ValueError("submit_many takes no key: the same key would make them one job")
        made = [self._new_job(job, args, dict(options)) for args in calls]
        store = await self.store()
        submitted = await store.submit(made, made[0].user if made else "")
        events.submitted(made, submitted)
        self._poke()
        return [await self._handle(one.id, job, new=one.created) for one in submitted]

    async def handle(self, job_id: str) -> Handle[Any]:
        """Return the handle of a job.

        Raises:
            JobNotFound: There is no job with this id.
        """
        job = await (await self.store()).job(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return await self._handle(job_id, self.jobs.get(job.name), new=False)

    async def _handle(
        self, job_id: str, definition: JobDefinition[Any, R] | None, *, new: bool
    ) -> Handle[R]:
        store = await self.store()
        if self._waits is None:
            self._waits = JobWaits(store)
        return Handle(store, self._waits, job_id, definition, new=new)

    async def send(
        self, job_id: str, topic: str, payload: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a message to a job; return False if this key was sent before."""
        return await (await self.handle(job_id)).send(topic, payload, key=key)

    async def find_jobs(self, query: JobQuery | None = None) -> list[Job]:
        """Return jobs, newest first."""
        return await (await self.store()).jobs(query or JobQuery())

    @property
    def schedules(self) -> Schedules:
        """The cron schedules of this app."""
        return Schedules(self.store, self._new_job)

    # People

    async def approvals(
        self,
        state: ApprovalState | None = ApprovalState.PENDING,
        *,
        tenant: str | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        """Return approvals, newest first; by default those that are pending."""
        return await (await self.store()).approvals(state, tenant, limit=limit)

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
            arguments: Approve with other arguments, by name. They are judged again; if their risk
                is higher, this does not approve them, and people are asked again.

        Raises:
            DecisionRefused: The answer does not count; `code` and the message say why.
            ArgumentError: The arguments do not fit the step.
        """
        check_given(reason=reason)
        seen = action_hash or (approval.action.hash if isinstance(approval, Approval) else None)
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
        return await decide(await self.store(), self, answer)

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
        return await delegate(await self.store(), self.policy.people, id, by, to, reason)

    # Work

    @contextlib.asynccontextmanager
    async def running(self, settings: WorkerSettings | None = None) -> AsyncGenerator["App", None]:
        """Run a worker inside the `async with` block; it drains at the end."""
        async with contextlib.AsyncExitStack() as stack:
            bounds = settings or self.worker_settings
            try:
                current()
            except NotInProcess:
                await stack.enter_async_context(Runtime(runtime_settings(bounds)))
            store = await self.store()
            node = WorkerNode(store, self, bounds, self.queues, self.limits, self.policy)
            if self.hint is not None:
                node.hint = RedisHint(self.hint, f"perdure:claims:{digest(self.url)[:16]}")
            self._nodes.append(node)
            try:
                async with working(node):
                    yield self
            finally:
                self._nodes.remove(node)

    async def run(self, settings: WorkerSettings | None = None) -> None:
        """Run a worker until told to stop, by SIGTERM or Ctrl-C in the main process."""
        async with self.running(settings):
            await until_told_to_stop()

    def run_sync(self, job: Any, *args: Any, **options: Any) -> Any:
        """Run a job, or an async function, beside a worker in a script; return its result.

        Meanwhile the worker also runs other jobs that it finds in the store.

        Raises:
            JobFailed: The job ended without a result.
            JobParked: It needs the attention of a person.
        """

        async def main() -> Any:
            try:
                async with self.running():
                    if isinstance(job, JobDefinition | Plan):
                        handle = await self.submit(cast("Any", job), *args, **options)
                        return await handle.result(if_parked="raise")
                    return await job(*args, **options)
            finally:
                await self.close()

        return run(main, settings=runtime_settings(self.worker_settings))

    def work(self, settings: WorkerSettings | None = None) -> None:
        """Run a worker as the main function of a process, until SIGTERM; a second cancels steps."""

        async def main() -> None:
            try:
                await self.run(settings)
            finally:
                await self.close()

        tune_garbage_collection()
        run(main, settings=runtime_settings(settings or self.worker_settings))

    def _new_job(self, job: Any, args: tuple[Any, ...], options: dict[str, Any]) -> NewJob:
        return new_job(self, self.limits, job, args, options)

    def _poke(self) -> None:
        """Make the workers of this process look for work at once."""
        for node in self._nodes:
            node.poke()


def _limited(queues: Mapping[str, QueueLimit] | Iterable[str]) -> dict[str, QueueLimit]:
    if isinstance(queues, Mapping):
        limited = dict(cast("Mapping[str, QueueLimit]", queues))
    else:
        limited = {name: QueueLimit() for name in queues}
    for name in limited:
        check_defined("the app", queue=name)
    return limited


class LazyStore:
    """The app's store for its channels, opened on first use: see `ApprovalStore`."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

    async def now(self) -> float:
        return await (await self._store()).now()

    async def approval(self, approval_id: str) -> Approval | None:
        return await (await self._store()).approval(approval_id)

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        result = await (await self._store()).vote(approval_id, vote, use)
        if events.listens(events.APPROVAL_DECIDE):
            events.voted(result, vote)
        return result

    async def keep_link(self, link: ApprovalLink) -> None:
        await (await self._store()).keep_link(link)

    async def link(self, link_id: str) -> tuple[ApprovalLink, Approval] | None:
        return await (await self._store()).link(link_id)

    async def audit_attempt(self, approval_id: str | None, channel: str, why: str) -> None:
        await (await self._store()).audit_attempt(approval_id, channel, why)
