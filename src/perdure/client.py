"""Client: submits jobs by name, and follows them, without having their code.

client = Client("postgresql://…")
handle = await client.submit("migrate", 8, key="june")
print(await handle.result())
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

from perdure.base.clock import SystemClock
from perdure.base.codec import LIMITS, PayloadLimits
from perdure.base.encryption import Encryption
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle
from perdure.engine.policy import Policy
from perdure.engine.submission import OPTIONS, SubmitOptions, stored_job
from perdure.engine.sync import (
    LoopThread,
    SyncCaller,
    blocking,
    returning_handle,
    returning_handles,
)
from perdure.jobs.definition import check_options
from perdure.jobs.fleet import PublishedJob
from perdure.jobs.model import NewJob
from perdure.jobs.plan import Plan
from perdure.jobs.remote_call import pack_arguments, published_jobs, unknown_job
from perdure.web.entry import web_app

if TYPE_CHECKING:
    from perdure.web.app import AsgiOptions, WebApp

_CLOCK: Final = SystemClock()
_FRESH: Final = 10.0  # seconds for which what workers know is not read again


class Client(Caller):
    """The jobs of a store, for a program that has no code of jobs: a web site, another service.

    Arguments are checked by the schema that the workers publish when they start. Arguments and
    results are plain JSON values. It may be used from any loop and any thread, as an `App`.
    """

    def __init__(
        self,
        url: str,
        *,
        policy: Policy | None = None,
        limits: PayloadLimits = LIMITS,
        encryption: Encryption | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            url: The store: `sqlite:///file.db` or `postgresql://…`.
            policy: Who the people are that decide, if they are named here.
            limits: The largest payloads.
            encryption: The keys that encrypt payloads, as for `App`.
        """
        super().__init__(url, policy)
        self.encryption = encryption
        self.limits = limits
        self._known: dict[str, PublishedJob] = {}
        self._known_at = float("-inf")
        self.sync = SyncClient(self, LoopThread(lambda _: False))

    async def submit(
        self,
        job: str,
        /,
        *args: Any,
        check: bool = True,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Handle[Any]:
        """Store a job, which a worker that knows it will run; it is durable on return.

        Args:
            job: The name of the job.
            *args: Its arguments by position, as far as its parameters can be given so.
            check: False: store it even if no worker knows it, without a check of its arguments.
            arguments: Its arguments by name; needed for those that are named like an option.
            **options: The options of `App.submit`; all others are arguments of the job by name.

        Raises:
            UnknownName: No worker knows the job; similar names are in the message.
            ArgumentError: The arguments do not fit; every reason is named.
            KeyConflict: The key belongs to another job, or to other arguments.
        """
        given = {name: options.pop(name) for name in OPTIONS if name in options}
        known = await self._find(job, check=check)
        named = {**options, **(arguments or {})}
        made = self._new_job(job, known, (args, named), given, check=check)
        handles: list[Handle[Any]] = await self._submit([made], [None])
        return handles[0]

    async def submit_many(
        self, job: str, /, calls: Iterable[Mapping[str, Any]], *, check: bool = True, **options: Any
    ) -> list[Handle[Any]]:
        """Store many jobs of one name at once, all of them or none; return their handles.

        Args:
            job: The name of the job.
            calls: The arguments of each by name.
            check: As in `submit`.
            **options: Those of `submit`, for all of the jobs; `key` is not allowed.
        """
        if options.get("key") is not None:
            raise ValueError("submit_many takes no key: the same key would make them one job")
        check_options(options, SubmitOptions, "client.submit_many")
        known = await self._find(job, check=check)
        made = [self._new_job(job, known, ((), each), options, check=check) for each in calls]
        return await self._submit(made, [None] * len(made))

    async def definitions(self) -> dict[str, PublishedJob]:
        """Return the jobs that workers know, by name, each with the schema of its arguments."""
        self._known = published_jobs(await self.verbs.definitions())
        self._known_at = _CLOCK.monotonic()
        return self._known

    def asgi(self, **options: "Unpack[AsgiOptions]") -> "WebApp":
        """Return an ASGI app with the HTTP API: see `App.asgi`.

        Jobs are submitted by the schemas that workers publish, and plans by the names of steps.
        """
        return web_app(self, self._new_named, options)

    async def _new_named(
        self, job: str | Plan, arguments: Mapping[str, Any] | Sequence[Any], options: SubmitOptions
    ) -> NewJob:
        if isinstance(job, Plan):
            found = await self.verbs.definitions()
            job.check_by_names({name for each in found for name in each.definitions.steps})
            return stored_job(job.name, job, b"{}", options, job.to_json())
        known = await self._find(job, check=True)
        by_name = isinstance(arguments, Mapping)
        split = ((), arguments) if by_name else (tuple(arguments), dict[str, Any]())
        return self._new_job(job, known, split, options, check=True)

    async def _find(self, name: str, *, check: bool) -> PublishedJob | None:
        if name not in self._known or _CLOCK.monotonic() - self._known_at > _FRESH:
            await self.definitions()
        if name not in self._known and check:
            raise unknown_job(name, self._known)
        return self._known.get(name)

    def _new_job(
        self,
        name: str,
        known: PublishedJob | None,
        arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
        options: Mapping[str, Any],
        *,
        check: bool,
    ) -> NewJob:
        packed = pack_arguments(name, known, *arguments, self.limits, check=check)
        return stored_job(name, known, packed, options)


class SyncClient(SyncCaller[Client]):
    """A client for plain code: as `Client`, but its methods wait for what they return."""

    submit = returning_handle(Client.submit)
    submit_many = returning_handles(Client.submit_many)
    definitions = blocking(Client.definitions)
