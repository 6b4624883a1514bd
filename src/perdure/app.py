"""App: definitions, a store, and a worker in one object.

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
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar, cast, overload

from perdure.base.codec import LIMITS, PayloadLimits, digest, fingerprint
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import JobNotFound, NotInProcess, StoreError
from perdure.engine import events
from perdure.engine.handle import Awaiting, Handle, new_id
from perdure.engine.people.decide import ApprovalAnswer, LazyStore, decide, delegate
from perdure.engine.policy import Policy
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.redis_hint import RedisHint
from perdure.engine.worker.scheduler import Schedules
from perdure.engine.worker.worker import (
    runtime_settings,
    tune_garbage_collection,
    until_told_to_stop,
    working,
)
from perdure.jobs.approval import Approval, ApprovalState, Person, VoteVerdict
from perdure.jobs.definition import JobDefinition
from perdure.jobs.model import Job, JobQuery, NewJob, QueueLimit
from perdure.jobs.plan import Plan
from perdure.jobs.registry import JobRegistry
from perdure.jobs.text_limits import check_defined, check_given
from perdure.process.runtime import Runtime, run
from perdure.process.waiter import current
from perdure.store.open import open_store
from perdure.store.store import Store

P = ParamSpec("P")
R = TypeVar("R")


class App(JobRegistry):
    """A registry of steps and jobs with a store to keep them in."""

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
            url: Where jobs are kept: `sqlite:///file.db` or `postgresql://…`.
            worker: The bounds of a worker of this app.
            queues: The queues that its workers serve, with limits if there are any.
            limits: The largest payloads.
            policy: What waits for a person, who may decide, and how people are told.
            hint: The address of a Redis (`redis://…`) by which the workers of a large fleet take
                turns to claim. It is never needed, and nothing depends on what it says.
        """
        super().__init__()
        self.policy = policy or Policy()
        self.approval_store = LazyStore(self.store)  # where channels find approvals
        self.url = url
        self.limits = limits
        self.hint = hint
        self.worker_settings = worker or WorkerSettings()
        self.queues = _limited(queues)
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._awaiting: Awaiting | None = None
        self.nodes: list[WorkerNode] = []  # its workers in this process

    # Open and close

    async def store(self) -> Store:
        """Give the store, opened when first needed."""
        if self._store is None:
            async with self._opening:  # else two who come at once would open two
                if self._store is None:
                    store = open_store(self.url)
                    await store.open()
                    self._store = store
        return self._store

    async def close(self) -> None:
        """Let the store go."""
        store, self._store = self._store, None
        awaiting, self._awaiting = self._awaiting, None
        if awaiting is not None:
            awaiting.close(StoreError("the app was closed"))
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
        """Keep a job, to be run by whichever worker is free; durable when it returns.

        Args:
            job: A job of this app, or a plan of its steps.
            *args: The job's arguments.
            **options: `tenant`, `user`: whose it is. `key`: the same key of a tenant twice is one
                job. `queue`, `priority`: others than the job's own. `delay`: not before.
                `deadline`: fail it if it has not ended by then. All else: arguments of the job.

        Raises:
            ArgumentError: The arguments do not fit; every reason is named.
            PlanError: The plan cannot be run; every reason is named.
            KeyConflict: The key is that of another job, or of other arguments.
        """
        made = self.new_job(job, args, options)
        (submitted,) = kept = await (await self.store()).submit([made], made.user)
        events.submitted([made], kept)
        self.poke()
        definition = None if isinstance(job, Plan) else job
        return await self._handle(submitted.id, definition, new=submitted.created)

    async def submit_many(
        self, job: JobDefinition[P, R], calls: Iterable[tuple[Any, ...]], **options: Any
    ) -> list[Handle[R]]:
        """Keep many jobs at once: all of them, or none.

        Args:
            job: A job of this app.
            calls: The arguments of each.
            **options: As those of `submit`, for all of them; but no `key`.
        """
        if options.get("key") is not None:
            raise ValueError("submit_many takes no key: the same key would make them one job")
        made = [self.new_job(job, args, dict(options)) for args in calls]
        store = await self.store()
        submitted = await store.submit(made, made[0].user if made else "")
        events.submitted(made, submitted)
        self.poke()
        return [await self._handle(one.id, job, new=one.created) for one in submitted]

    def new_job(self, job: Any, args: tuple[Any, ...], options: dict[str, Any]) -> NewJob:
        """Make what is stored of a submission."""
        known = {name: options.pop(name) for name in _OPTIONS if name in options}
        check_given(**{name: known[name] for name in _TEXTS if name in known})
        plan: bytes | None = None
        if isinstance(job, Plan):
            job.check(self)
            name, plan, packed = job.name, job.to_json(), b"{}"
        else:
            name = self.job_name(job, "app.submit")
            packed = job.pack(args, options, self.limits)
        queue = known.get("queue") or getattr(job, "queue", None) or "default"
        priority = known.get("priority")
        deadline = job_seconds(known.get("deadline"))
        return NewJob(
            id=new_id(),
            tenant=known.get("tenant", "default"),
            user=known.get("user", ""),
            name=name,
            version=getattr(job, "version", "1"),
            input=packed,
            plan=plan,
            queue=queue,
            priority=getattr(job, "priority", 0) if priority is None else priority,
            key=known.get("key"),
            fingerprint=fingerprint(job.name, packed, plan or b"null"),
            delay=job_seconds(known.get("delay")) or 0.0,
            deadline=getattr(job, "timeout", None) if deadline is None else deadline,
        )

    async def handle(self, job_id: str) -> Handle[Any]:
        """Find a job by its id.

        Raises:
            JobNotFound: There is none.
        """
        job = await (await self.store()).job(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return await self._handle(job_id, self.jobs.get(job.name), new=False)

    async def _handle(
        self, job_id: str, definition: JobDefinition[Any, R] | None, *, new: bool
    ) -> Handle[R]:
        store = await self.store()
        if self._awaiting is None:
            self._awaiting = Awaiting(store)
        return Handle(store, self._awaiting, job_id, definition, new=new)

    async def send(
        self, job_id: str, topic: str, payload: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a message to a job; False: this key was sent before."""
        return await (await self.handle(job_id)).send(topic, payload, key=key)

    async def find_jobs(self, query: JobQuery | None = None) -> list[Job]:
        """Find jobs, newest first."""
        return await (await self.store()).jobs(query or JobQuery())

    @property
    def schedules(self) -> Schedules:
        """What is submitted again and again, by the rules of cron."""
        return Schedules(self.store, self.new_job)

    # People

    async def approvals(
        self,
        state: ApprovalState | None = ApprovalState.PENDING,
        *,
        tenant: str | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        """Find what people are asked, the newest first; those that are open if nothing is said."""
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
        """Answer a question of a job, as somebody has seen it.

        Args:
            approval: The approval that they saw; or its id, with `action_hash`.
            verdict: "approve" or "reject".
            by: Who decides: a person, or any name of one whom the app's policy knows.
            action_hash: The `action.hash` of what they saw. If it was edited since, the answer
                is refused as "changed".
            reason: For the audit log.
            arguments: Approve, but with other arguments: all of them, by name. They are judged
                anew; if they are more dangerous, this is no yes, and people are asked anew.

        Raises:
            DecisionRefused: The answer does not count; `code` and the text say why.
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
        """Let another person answer a question, instead of one who may; who passes it on may not.

        Args:
            approval: Which one, or its id.
            to: The id of who is to decide, and is told.
            by: Who passes it on: a person, or any name of one whom the app's policy knows.
            reason: For the audit log.

        Raises:
            DecisionRefused: This person may not, the other one cannot take it,
                or too few would be left to decide.
        """
        check_given(to=to, reason=reason)
        id = approval.id if isinstance(approval, Approval) else approval
        return await delegate(await self.store(), self.policy.people, id, by, to, reason)

    # Work

    @contextlib.asynccontextmanager
    async def running(self, settings: WorkerSettings | None = None) -> AsyncGenerator["App", None]:
        """Have a worker inside the block; it drains at its end."""
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
            self.nodes.append(node)
            try:
                async with working(node):
                    yield self
            finally:
                self.nodes.remove(node)

    async def run(self, settings: WorkerSettings | None = None) -> None:
        """Work until told to stop: by SIGTERM or Ctrl-C if this is the main process."""
        async with self.running(settings):
            await until_told_to_stop()

    def run_sync(self, job: Any, *args: Any, **options: Any) -> Any:
        """Run a job from a script, and give its result; or an async function with a worker about.

        Jobs that were left unfinished in the store are worked on meanwhile, too.

        Raises:
            JobFailed: The job ended without a result.
            JobParked: It cannot go on before a person has looked at it.
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
        """Be a worker: the main job of a process, until SIGTERM (drain) or a second one (stop)."""

        async def main() -> None:
            try:
                await self.run(settings)
            finally:
                await self.close()

        tune_garbage_collection()
        run(main, settings=runtime_settings(settings or self.worker_settings))

    def poke(self) -> None:
        """Let the workers of this process look for work at once."""
        for node in self.nodes:
            node.poke()


def _limited(queues: Mapping[str, QueueLimit] | Iterable[str]) -> dict[str, QueueLimit]:
    if isinstance(queues, Mapping):
        limited = dict(cast("Mapping[str, QueueLimit]", queues))
    else:
        limited = {name: QueueLimit() for name in queues}
    for name in limited:
        check_defined("the app", queue=name)
    return limited


_TEXTS = ("tenant", "user", "key", "queue")
_OPTIONS = (*_TEXTS, "priority", "delay", "deadline")
