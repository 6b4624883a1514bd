"""`load_yaml` and `load_entries`: from files or mappings to entries that can be run.

Loading only reads: nothing is started, and no code of the entries is run. `async with` on what was
loaded imports the sources, starts hosts and services in dependency order under one
supervisor, and stops all of it in reverse order.
"""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType, TracebackType
from typing import Any, Self

from msgspec.structs import asdict

from perdure.base.errors import EntriesError, Mistake, ProcError, Shutdown, StartError, describe
from perdure.entries.model import INDEX
from perdure.entries.resolve import (
    EntriesPlan,
    Function,
    HostPlan,
    load_functions,
    make_plan,
    start_order,
)
from perdure.entries.service import ENDED, Service, ServiceState, run_host, run_service
from perdure.entries.yaml import Document, read_file
from perdure.otp.start import start
from perdure.otp.supervision.spec import ChildSpec
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process.channel import Channel, select
from perdure.process.hosts import ProcessHost
from perdure.process.process import ProcessRuntime, SpawnTarget, current

MAX_FILES = 1_000  # in one folder: more means a wrong folder, such as the root of a disk
MAX_FOLDERS = 50_000


def load_yaml(path: str | os.PathLike[str]) -> "Loaded":
    """Load a file, or every `_index.yaml` in a folder and below it.

    Nothing is started, and no code of the entries is run yet.

    Raises:
        EntriesError: There are mistakes: all of them, each with its file and line.
    """
    given = Path(path)
    files = list(_index_files(given)) if given.is_dir() else [given]
    if not files:
        text = f"there is no {INDEX} in this folder or below it: write one"
        raise EntriesError([Mistake(str(given), 0, "", text)])
    read = [read_file(file) for file in files]
    documents = [each for each in read if isinstance(each, Document)]
    mistakes = [each for each in read if isinstance(each, Mistake)]
    return Loaded(make_plan(documents, mistakes))


def load_entries(
    *mappings: Mapping[str, Any], folder: str | os.PathLike[str] = ".", name: str = "<mapping>"
) -> "Loaded":
    """Load entries from mappings, each with the content of a file.

    Args:
        *mappings: With version, namespace and entries.
            A `source` may also be an `async def` function itself.
        folder: The folder that `file://` paths are relative to.
        name: Names the mapping in messages.

    Raises:
        EntriesError: There are mistakes: all of them.
    """
    return Loaded(make_plan(Document(name, Path(folder), dict(each), {}) for each in mappings))


def _index_files(folder: Path) -> Iterator[Path]:
    """Return the files, upper folders first; hidden folders are left out."""
    files = 0
    for seen, (here, below, names) in enumerate(os.walk(folder)):
        below[:] = sorted(name for name in below if not name.startswith((".", "__")))
        if INDEX in names:
            files += 1
            yield Path(here) / INDEX
        if seen > MAX_FOLDERS or files > MAX_FILES:
            text = f"more than {MAX_FILES:,} files or {MAX_FOLDERS:,} folders: name a smaller one"
            raise EntriesError([Mistake(str(folder), 0, "", text)])


class Loaded:
    """Entries without mistakes; `async with` runs them.

    On entry, hosts and services start in dependency order, and from then on every process entry can
    be spawned by its id. On exit, all of it stops in reverse order.

    Attributes:
        plan: What the entries say.
        hosts: All hosts, by their ids.
        services: All services, by their ids.
    """

    def __init__(self, plan: EntriesPlan, random: Random | None = None) -> None:
        """Use `load_yaml` or `load_entries` instead.

        Args:
            plan: What to run.
            random: The source of the jitter of restarts; the system's by default.
        """
        self.plan = plan
        self.hosts: Mapping[str, ProcessHost] = MappingProxyType(
            {id: _make_host(host) for id, host in plan.hosts.items()}
        )
        self.services: Mapping[str, Service] = MappingProxyType(
            {id: Service(service) for id, service in plan.services.items()}
        )
        self._random = random
        self._supervisor: Supervisor | None = None
        self._runtime: ProcessRuntime
        self._over: Channel[None] = Channel()

    def __repr__(self) -> str:
        return f"<loaded {len(self.hosts)} hosts, {len(self.services)} services>"

    async def __aenter__(self) -> Self:
        """Start the hosts and services that are started automatically.

        Raises:
            EntriesError: A source cannot be loaded, or something did not start.
                Nothing is left running then.
        """
        if self._supervisor is not None:
            raise ProcError("these entries are already running")
        functions = load_functions(self.plan)
        self._runtime = current("load entries").runtime
        self._publish(functions)
        try:
            self._supervisor = await Supervisor.start_link(map(self._spec, self.plan.order))
        except BaseException as error:
            self._withdraw()
            if isinstance(error, StartError):
                raise self._explained(error)  # noqa: B904 - with its first cause
            raise
        self._over = Channel()
        self._changed()  # some may have ended while others started
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        supervisor, self._supervisor = self._supervisor, None
        assert supervisor is not None
        try:
            if supervisor.pid.target is not None:
                await supervisor.stop()
        finally:
            self._withdraw()

    # Starting and stopping by hand

    async def start(self, id: str) -> None:
        """Start a host or a service that is not started automatically, after its dependencies.

        Raises:
            LookupError: There is no such entry.
            ProcError: It is called outside of the `async with`.
            StartError: It did not start.
        """
        if id not in self.plan.needs:
            raise LookupError(f"there is no host or service {id!r}")
        supervisor = self._running()
        running = {each.id for each in await supervisor.which_children() if each.pid is not None}
        for each in start_order(self.plan.needs, [id]):
            if each not in running:
                await self._start_one(supervisor, each)

    async def _start_one(self, supervisor: Supervisor, id: str) -> None:
        known = {each.id for each in await supervisor.which_children()}
        try:
            if id in known:
                await supervisor.restart_child(id)
            else:
                await supervisor.start_child(self._spec(id))
        except StartError as error:
            raise StartError(id, _cause_of(error)) from None

    async def stop(self, id: str) -> None:
        """Stop a host or a service; it is not restarted automatically.

        Raises:
            ChildError: It was never started.
        """
        await self._running().terminate_child(id)

    @property
    def over(self) -> Channel[None]:
        """A channel that is closed when every automatic service has ended for good."""
        return self._over

    async def wait(self) -> None:
        """Wait until every service that is started automatically has ended for good."""
        await select(self._over)

    def failed(self) -> list[Service]:
        """Return the services that failed too often."""
        return [each for each in self.services.values() if each.state is ServiceState.FAILED]

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise ProcError("these entries do not run: use `async with`")
        return self._supervisor

    def _changed(self) -> None:
        automatic = (self.services[id] for id in self.plan.order if id in self.services)
        if self._supervisor is not None and all(each.state in ENDED for each in automatic):
            self._over.close()

    # Helpers

    def _spec(self, id: str) -> ChildSpec:
        """Return the spec of a host or a service as a child.

        Its stop has no limit here: its own process holds the limit of the entry.
        """
        if id in self.services:
            service = self.services[id]
            begin = partial(start, id, run_service, service, self._changed, self._random)
        else:
            plan = self.plan.hosts[id]
            timeout = plan.lifecycle.start_timeout
            begin = partial(start, id, run_host, plan, self.hosts[id], timeout=timeout)
        return ChildSpec(id, partial(_pid_of, begin), "transient", type="supervisor")

    def _publish(self, functions: Mapping[str, Function]) -> None:
        """Make these entries available to `spawn` by their ids."""
        entries = self._runtime.spawn_ids
        if taken := [id for id in functions if id in entries]:
            raise ProcError(f"an entry {taken[0]!r} is loaded already")
        for id, function in functions.items():
            definition = self.plan.definitions[id]
            entries[id] = SpawnTarget(function, definition.host, definition.input or ())

    def _withdraw(self) -> None:
        for id in self.plan.definitions:
            self._runtime.spawn_ids.pop(id, None)

    def _explained(self, error: StartError) -> EntriesError:
        plan = self.plan.hosts.get(str(error.child)) or self.plan.services[str(error.child)]
        cause = _cause_of(error)
        explained = EntriesError([plan.at.mistake(f"it did not start: {describe(cause)}")])
        explained.__cause__ = cause
        return explained


def _cause_of(error: StartError) -> BaseException:
    """Return the root cause behind the planned end of a service's supervisor."""
    reason = error.reason
    if isinstance(reason, Shutdown) and isinstance(reason.detail, BaseException):
        return reason.detail
    return reason


async def _pid_of(start: Any) -> Any:
    process, _ = await start()
    return process.pid


def _make_host(plan: HostPlan) -> ProcessHost:
    given = {name: value for name, value in asdict(plan.size).items() if value is not None}
    given.pop("local_queue_size", None)
    return ProcessHost(plan.id, **given)
