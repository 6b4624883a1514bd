"""`/metrics`, `/healthz` and `/readyz`: a small ASGI app, to be mounted or served by a worker.

* `/healthz` says whether this process works at all: 200, or 503 if the event loop of a worker shows
  no pulse. A process manager restarts what is not healthy.
* `/readyz` says whether it should get work: the store answers and has the schema that this code
  knows, each worker here has registered and still says so, and none drains or lacks a key.
* `/metrics` has the metrics of this process and of the store.

It may run on another event loop than the workers, so that it answers while a step blocks theirs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from perdure.base.errors import StoreError
from perdure.base.secret import without_secrets
from perdure.engine.settings import WorkerSettings
from perdure.observe.prometheus import CONTENT_TYPE, Metrics, StoreGetter
from perdure.store.migrations import migrations

_PATIENCE: Final = 3.0  # seconds that the store has to answer
_TEXT: Final = "text/plain; charset=utf-8"

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]


class Clocked(Protocol):
    """What has a time: the event loop of a worker."""

    def time(self) -> float: ...


class ObservedWorker(Protocol):
    """What is asked of a worker; all of it may be read from another thread."""

    @property
    def settings(self) -> WorkerSettings: ...
    @property
    def loop(self) -> Clocked: ...
    @property
    def draining(self) -> bool: ...
    @property
    def registered_at(self) -> float | None: ...
    @property
    def pulse_at(self) -> float | None: ...
    @property
    def lacks_keys(self) -> Sequence[str]: ...


def why_unhealthy(workers: Iterable[ObservedWorker]) -> str | None:
    """Return why this process does not work; None if it does."""
    for worker in workers:
        silent = 0.0 if worker.pulse_at is None else worker.loop.time() - worker.pulse_at
        if silent > worker.settings.stuck_after:
            return f"the event loop of a worker shows no pulse for {silent:.0f} s"
    return None


def why_workers_unready(workers: Iterable[ObservedWorker]) -> str | None:
    """Return why the workers of this process should get no work; None if they should."""
    for worker in workers:
        if worker.draining:
            return "the worker drains"
        if worker.registered_at is None:
            return "the worker has not registered yet"
        silent = worker.loop.time() - worker.registered_at
        if silent > worker.settings.lease:
            return f"the worker could not renew its registration for {silent:.0f} s"
        if worker.lacks_keys:
            return f"the worker lacks keys of the store: {', '.join(worker.lacks_keys)}"
    return None


async def why_store_unready(store: StoreGetter) -> str | None:
    """Return why the store cannot be used; None if it can."""
    known = migrations("sqlite")[-1].number  # both databases have the same numbers
    try:
        async with asyncio.timeout(_PATIENCE):
            found = await (await store()).schema_number()
    except (StoreError, TimeoutError) as error:
        return without_secrets(f"the store does not answer: {error}".rstrip(": "))
    if found != known:
        return f"the store has schema {found}, and this code knows {known}"
    return None


class Endpoint(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    content_type: str = _TEXT


class Endpoints:
    """The ASGI app; each of its answers can also be had on its own."""

    def __init__(
        self,
        store: StoreGetter,
        metrics: Metrics | None = None,
        workers: Callable[[], Iterable[ObservedWorker]] = tuple,
        *,
        needs_worker: bool = False,
    ) -> None:
        """Take what is observed.

        Args:
            store: Returns the store: `app.store`.
            metrics: What is counted; without it there is no `/metrics`.
            workers: Returns the workers of this process.
            needs_worker: Whether a process without a worker is not ready.
        """
        self._store = store
        self._metrics = metrics
        self._workers = workers
        self._needs_worker = needs_worker

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        if scope["method"] in ("GET", "HEAD"):
            answer = await self.answer(path)
        else:
            answer = Endpoint(405, b"only GET\n")
        await _send(send, answer, with_body=scope["method"] != "HEAD")

    async def answer(self, path: str) -> Endpoint:
        """Return the answer to a GET of a path."""
        match path:
            case "/healthz":
                return _verdict(why_unhealthy(self._workers()))
            case "/readyz":
                return _verdict(await self.why_unready())
            case "/metrics" if self._metrics is not None:
                return Endpoint(200, await self._metrics.text(self._store), CONTENT_TYPE)
            case _:
                return Endpoint(404, b"there are /metrics, /healthz and /readyz\n")

    async def why_unready(self) -> str | None:
        """Return why this process should get no work; None if it should."""
        workers = tuple(self._workers())
        if self._needs_worker and not workers:
            return "the worker is not up"
        return why_workers_unready(workers) or await why_store_unready(self._store)


def _verdict(why: str | None) -> Endpoint:
    return Endpoint(200, b"ok\n") if why is None else Endpoint(503, f"{why}\n".encode())


async def _send(send: Send, answer: Endpoint, *, with_body: bool) -> None:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if with_body else b""})
