"""App: definitions, a store, and workers in one object.

app = App("sqlite:///perdure.db")

@app.step
async def greet(name: str) -> str:
    return f"hello {name}"

@app.job
async def welcome(name: str) -> str:
    return await greet(name)

print(app.run_sync(welcome("Kim")))
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from perdure.base.codec import LIMITS, PayloadLimits, digest
from perdure.base.duration import Duration, job_seconds
from perdure.base.encryption import Encryption
from perdure.base.errors import NotInProcess
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.registry import JobRegistry
from perdure.engine.schedules import Schedules
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.transaction import prune
from perdure.engine.submission import SubmitOptions, job_of_call, new_job
from perdure.engine.sync import (
    LoopThread,
    SyncCaller,
    SyncHandle,
    SyncSchedules,
)
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.redis_hint import RedisHint
from perdure.engine.worker.worker import (
    runtime_settings,
    tune_interpreter,
    until_told_to_stop,
    working,
)
from perdure.jobs.definition import (
    Call,
    GuardMode,
    JobCall,
    JobDefinition,
    OnFailure,
    check_guard,
    check_on_failure,
)
from perdure.jobs.model import NewJob, QueueLimit
from perdure.jobs.plan import Plan
from perdure.jobs.text_limits import check_defined
from perdure.process.process import current
from perdure.process.runtime import Runtime, check_no_loop, run
from perdure.store.open import check_url
from perdure.web.entry import web_app

if TYPE_CHECKING:
    from perdure.web.app import AsgiOptions, WebApp

R = TypeVar("R")


class App(JobRegistry, Caller):
    """A registry of steps and jobs, the store that keeps the jobs, and workers that run them."""

    def __init__(  # noqa: PLR0913  an app is described once
        self,
        url: str,
        *,
        worker: WorkerSettings | None = None,
        queues: Mapping[str, QueueLimit] | Iterable[str] = ("default",),
        limits: PayloadLimits = LIMITS,
        policy: Policy | None = None,
        hint: str | None = None,
        encryption: Encryption | None = None,
        on_failure: OnFailure = "undo",
        guard: GuardMode = "refuse",
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
            encryption: The keys that encrypt payloads; without it, those of the environment
                variable `PERDURE_ENCRYPTION_KEYS`, if it is set.
            on_failure: What happens when a job or plan fails that does not say it itself: "undo",
                "park" or "ask"; see `JobDefinition`.
            guard: What happens to a connection or subprocess that the code of a job begins outside
                of a step: "refuse", "warn" or "off"; a job may say otherwise.

        Raises:
            DefinitionError: A queue has no valid name, or an option is none of its choices.
            StoreError: The URL is not one of a store.
        """
        check_url(url)
        JobRegistry.__init__(self)
        self.guard = check_guard(guard, "guard of the app") or self.guard
        Caller.__init__(self, url, policy)
        self.on_failure = check_on_failure(on_failure, "an app") or "undo"
        self.encryption = encryption
        self.limits = limits
        self.hint = hint
        self.worker_settings = worker or WorkerSettings()
        self.queues = _limited(queues)
        self._nodes: list[WorkerNode] = []  # its workers in this process
        self.sync = SyncApp(self, LoopThread(self._is_worker))

    # Submit and find

    async def prune_transactions(self, database: Any, older_than: Duration = "30d") -> int:
        """Delete what transactions have recorded for jobs that are over; return how much.

        A job is over when nothing of its tree can run again: each job of it is COMPLETED or
        COMPENSATED, or the store no longer has it. What is FAILED or CANCELLED may be retried.

        Args:
            database: As for `transaction`.
            older_than: Only what is older. An attempt that was cut off for longer, and comes back
                after its job has ended, would no longer find that its work is done.
        """
        store = await self.store()

        async def over(job_ids: Sequence[str]) -> set[str]:
            return set(job_ids) - await store.may_run_again(list(job_ids))

        return await prune(database, over, await store.now() - (job_seconds(older_than) or 0.0))

    @overload
    async def submit(self, call: JobCall[R], /, **options: Unpack[SubmitOptions]) -> Handle[R]: ...
    @overload
    async def submit(self, call: Plan, /, **options: Unpack[SubmitOptions]) -> Handle[Any]: ...
    async def submit(self, call: Any, /, **options: Unpack[SubmitOptions]) -> Handle[Any]:
        """Store a job, which any worker of this store will run; it is durable on return.

        Args:
            call: The call of a job of this app, `migrate(8)`, or a plan of its steps.
            **options: `tenant`, `user`: whose job it is. `key`: submitting the same key of a tenant
                again returns the same job. `queue`, `priority`: override the job's own. `delay`: do
                not start before this delay. `deadline`: fail the job if it has not ended by then.
                `labels`: texts by name, to find it by; its children have them, too.

        Raises:
            ArgumentError: The arguments do not fit; every reason is named.
            PlanError: The plan cannot be run; every reason is named.
            KeyConflict: The key belongs to another job, or to other arguments.
        """
        made = self._new_job(call, options)
        (handle,) = await self._submit([made], [_definition(call)])
        return handle

    async def submit_many(
        self, calls: Iterable[JobCall[R]], /, **options: Unpack[SubmitOptions]
    ) -> list[Handle[R]]:
        """Store many jobs at once, all of them or none; return their handles.

        Args:
            calls: The calls of jobs of this app.
            **options: Those of `submit`, for all of the jobs; `key` is not allowed.
        """
        if options.get("key") is not None:
            raise ValueError("submit_many takes no key: the same key would make them one job")
        listed = list(calls)
        made = [self._new_job(call, options) for call in listed]
        return await self._submit(made, [_definition(call) for call in listed])

    @property
    def schedules(self) -> Schedules:
        """The cron schedules of this app."""
        return Schedules(self.store, self._new_job)

    # Serve over HTTP

    def asgi(self, **options: "Unpack[AsgiOptions]") -> "WebApp":
        """Return an ASGI app with the HTTP API, to be served by itself or mounted in another app.

        Args:
            **options: `access`: who may use it; without it, only those who have a token. `limits`:
                the limits of one request. `links`: the tokens of the links in mails, for the pages
                behind them; `slack`: whose presses of buttons count; `people`: who is who, if not
                those of the policy; `origin`: where it is, as browsers name it, behind a proxy that
                does not pass scheme and host on.
        """
        return web_app(self, self._new_named, options)

    async def _new_named(
        self, job: str | Plan, arguments: Mapping[str, Any] | Sequence[Any], options: SubmitOptions
    ) -> NewJob:
        return self._new_job(self._call_of(job, arguments), options)

    def _call_of(self, job: str | Plan, arguments: Mapping[str, Any] | Sequence[Any]) -> Any:
        """Return the call of a job that is given by its name, with plain values."""
        if isinstance(job, Plan):
            return job
        definition = self.find_job(job)
        parameters = definition.parameters
        args, kwargs = parameters.unpack(parameters.pack_plain(arguments, self.limits))
        return definition(*args, **kwargs)

    # Work

    @property
    def running_workers(self) -> tuple[WorkerNode, ...]:
        """The workers of this app in this OS process, for those who observe them."""
        return tuple(self._nodes)

    @contextlib.asynccontextmanager
    async def running(self, settings: WorkerSettings | None = None) -> AsyncGenerator["App", None]:
        """Run a worker inside the `async with` block; it drains at the end."""
        async with contextlib.AsyncExitStack() as stack:
            bounds = settings or self.worker_settings
            try:
                current()
            except NotInProcess:
                await stack.enter_async_context(Runtime(runtime_settings(bounds)))
            store = await stack.enter_async_context(self._shared.use())
            node = WorkerNode(store, self, bounds, self.queues, self.limits, self.policy)
            if self.hint is not None:
                node.hint = RedisHint(self.hint, f"perdure:claims:{digest(self.url)[:16]}")
            self._nodes.append(node)
            try:
                async with working(node):
                    yield self
            finally:
                self._nodes.remove(node)

    @overload
    async def run(self, call: JobCall[R], /, **options: Unpack[SubmitOptions]) -> R: ...
    @overload
    async def run(self, call: Plan, /, **options: Unpack[SubmitOptions]) -> Any: ...
    async def run(self, call: Any, /, **options: Unpack[SubmitOptions]) -> Any:
        """Run a job here, beside a worker, and return its result.

        Meanwhile the worker also runs other jobs that it finds in the store.

        Args:
            call: The call of a job of this app, `migrate(8)`, or a plan of its steps.
            **options: Those of `submit`.

        Raises:
            JobFailed: The job ended without a result.
            JobParked: It needs the attention of a person.
        """
        async with self.running():
            handle = await self.submit(call, **options)
            return await handle.result(if_parked="raise")

    @overload
    def run_sync(self, call: JobCall[R], /, **options: Unpack[SubmitOptions]) -> R: ...
    @overload
    def run_sync(self, call: Plan, /, **options: Unpack[SubmitOptions]) -> Any: ...
    @overload
    def run_sync(self, call: Callable[[], Awaitable[R]], /) -> R: ...
    def run_sync(self, call: Any, /, **options: Any) -> Any:
        """Run a job, or an async function beside a worker, in a script; return its result.

        See `run` for the arguments and errors.
        """
        is_call = isinstance(call, Call | Plan)
        instead = "`await app.run(…)`" if is_call else "`async with app.running():`"
        fn = cast("Call[Any]", call).definition.fn if isinstance(call, Call) else call
        check_no_loop("app.run_sync()", f"write {instead} there", getattr(fn, "__module__", ""))

        async def main() -> Any:
            try:
                if is_call:
                    return await self.run(cast("JobCall[Any]", call), **options)
                if isinstance(call, JobDefinition):
                    job_of_call(call, "app.run_sync")
                async with self.running():
                    return await cast("Callable[[], Awaitable[Any]]", call)()
            finally:
                await self.close()

        return run(main, settings=runtime_settings(self.worker_settings))

    async def serve(self, settings: WorkerSettings | None = None) -> None:
        """Run a worker until told to stop, by SIGTERM or Ctrl-C in the main process."""
        async with self.running(settings):
            await until_told_to_stop()

    def serve_sync(self, settings: WorkerSettings | None = None) -> None:
        """Run a worker as the main function of a process, until SIGTERM; a second cancels steps."""
        check_no_loop("app.serve_sync()", "write `await app.serve()` there")

        async def main() -> None:
            try:
                await self.serve(settings)
            finally:
                await self.close()

        tune_interpreter()
        run(main, settings=runtime_settings(settings or self.worker_settings))

    def _new_job(self, call: Any, options: Mapping[str, Any]) -> NewJob:
        return new_job(self, self.limits, call, options)

    def _is_worker(self, loop: asyncio.AbstractEventLoop) -> bool:
        return any(node.loop is loop for node in tuple(self._nodes))

    def _serves(self, job: NewJob) -> bool:
        return any(job.queue in node.queues for node in tuple(self._nodes))

    def _poke(self) -> None:
        """Make the workers on this loop look for work at once; the store tells all others."""
        loop = asyncio.get_running_loop()
        for node in tuple(self._nodes):
            if node.loop is loop:
                node.poke()


def _definition(call: Call[Any] | Plan) -> JobDefinition[..., Any] | None:
    definition = None if isinstance(call, Plan) else call.definition
    return definition if isinstance(definition, JobDefinition) else None


def _limited(queues: Mapping[str, QueueLimit] | Iterable[str]) -> dict[str, QueueLimit]:
    if isinstance(queues, Mapping):
        limited = dict(cast("Mapping[str, QueueLimit]", queues))
    else:
        limited = {name: QueueLimit() for name in queues}
    for name in limited:
        check_defined("the app", queue=name)
    return limited


class SyncApp(SyncCaller[App]):
    """An app for plain code: as `App`, but its methods wait for what they return."""

    @overload
    def submit(self, call: JobCall[R], /, **options: Unpack[SubmitOptions]) -> SyncHandle[R]: ...
    @overload
    def submit(self, call: Plan, /, **options: Unpack[SubmitOptions]) -> SyncHandle[Any]: ...
    def submit(self, call: Any, /, **options: Any) -> SyncHandle[Any]:
        """Store a job, which any worker of this store will run: see `App.submit`."""
        return SyncHandle(self._wait(App.submit, (call,), **options), self._thread)

    def submit_many(
        self, calls: Iterable[JobCall[R]], /, **options: Unpack[SubmitOptions]
    ) -> list[SyncHandle[R]]:
        """Store many jobs at once, all of them or none: see `App.submit_many`."""
        handles = self._wait(App.submit_many, (calls,), **options)
        return [SyncHandle(handle, self._thread) for handle in handles]

    @property
    def schedules(self) -> SyncSchedules:
        """The cron schedules of this app."""
        return SyncSchedules(self._wrapped.schedules, self._thread)
