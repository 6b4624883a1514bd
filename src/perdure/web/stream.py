"""Server-sent events: what changes is sent to those who may see it, as long as they listen.

A stream holds no queue. It remembers positions, reads what is behind them, and sends that. A slow
reader gets it later, and one that was away too long is asked to read again (`stale`). The `id:` of
an event holds the positions, so that a browser that lost its connection goes on where it was.

    event: jobs        {"items": [rows of jobs that changed]}
    event: job         the row of the one job that was asked for
    event: approvals   {"jobs": [jobs whose approvals changed]}
    event: workers     {"items": [all workers]}, when one came, went, drains or took other jobs
    event: output      {"job", "topic", "items": [pieces], "ended"}
    event: stale       {"stale": true}: read again
    event: bye         the server stops; a client comes back after `retry`
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

import anyio
import msgspec
from msgspec import Struct
from starlette.responses import Content, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.base.clock import SystemClock
from perdure.base.errors import AccessDenied, JobError, RequestRefused
from perdure.base.retry import idle
from perdure.jobs.text_limits import check_given
from perdure.web.access.principal import Permission, Principal
from perdure.web.api.workers import worker_views
from perdure.web.changes import ChangeBatch, Changes
from perdure.web.intake import held_by
from perdure.web.request import ApiRequest
from perdure.web.shutdown import ServerShutdown
from perdure.web.stream_place import read_place, spell_place
from perdure.web.views import piece_view

MOST_TOPICS: Final = 20  # of a stream
MOST_OF_ONE: Final = 20  # streams of one principal
MOST_OF_TENANT: Final = 100  # so that one tenant cannot take them all
MOST_STREAMS: Final = 500
HEARTBEAT: Final = 15.0  # seconds of silence, after which a proxy might close a connection …
CHECK_EVERY: Final = HEARTBEAT  # … and until it is checked again who listens
_LOOK_EVERY: Final = 0.25  # seconds: within it, a stream notices that the server stops
_AT_MOST_EVERY: Final = 0.05  # seconds: a busy store is not read after each of its writes
_WORKERS_EVERY: Final = 2.0
_RETRY: Final = 1000  # milliseconds
_RETRY_AFTER_BYE: Final = 500
_POSITION: Final = re.compile(r"[0-9]{1,15}")  # not \d: "²" is a digit, too, and no number
_CLOCK: Final = SystemClock()

_NEEDS: Final = {
    "jobs": Permission.JOBS_READ,
    "job": Permission.JOBS_READ,
    "output": Permission.JOBS_READ,
    "approvals": Permission.APPROVALS_READ,
    "workers": Permission.WORKERS_READ,
}


class Topic(Struct, frozen=True):
    """What a stream is about: "jobs", or "output:ID:TOPIC"."""

    kind: str
    job: str = ""
    topic: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in (self.kind, self.job, self.topic) if part)


def topics_of(text: str) -> list[Topic]:
    """Return the topics that a text lists, with commas between them.

    Raises:
        RequestRefused: There is no such topic, or there are too many.
    """
    found = [Topic(*each.split(":", 2)) for each in dict.fromkeys(text.split(",")) if each]
    if not 1 <= len(found) <= MOST_TOPICS:
        raise RequestRefused(400, "bad_topics", f"`topics` has 1 to {MOST_TOPICS} topics")
    for each in found:
        parts = {"job": 1, "output": 2}.get(each.kind, 0)
        if each.kind not in _NEEDS or parts != bool(each.job) + bool(each.topic):
            raise RequestRefused(400, "bad_topics", f"there is no topic {str(each)!r}")
    return found


class EventStream(StreamingResponse):
    """Sends a stream until it ends or the client has gone, and then ends it at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_with_client, receive, group.cancel_scope)
            with suppress(OSError):  # it has gone
                # What the client changes as soon as it has an answer must reach it: the stream
                # begins before it is answered.
                frames = aiter(self.body_iterator)
                self.body_iterator = _continued(await anext(frames), frames)
                await self.stream_response(send)
            group.cancel_scope.cancel()

    async def _end_with_client(self, receive: Receive, scope: anyio.CancelScope) -> None:
        await self.listen_for_disconnect(receive)
        scope.cancel()


async def _continued(begun: Content, rest: AsyncIterator[Content]) -> AsyncGenerator[Content, None]:
    yield begun
    async for each in rest:
        yield each


class Streams:
    """The open streams of one ASGI app."""

    def __init__(self, changes: Changes, shutdown: ServerShutdown) -> None:
        self.changes = changes
        self.shutdown = shutdown
        self.revocations = 0  # how many credentials of this program have ended
        self._open: dict[tuple[str | None, str], int] = {}

    def recheck(self) -> None:
        """Check soon who listens to each stream: a credential was revoked here."""
        self.revocations += 1

    async def respond(self, request: ApiRequest) -> Response:
        """Answer with a stream of the topics that a request names.

        Raises:
            RequestRefused: There is no such topic, or too many streams are open.
            AccessDenied, JobNotFound: The principal may not see one of them.
        """
        topics = topics_of(request.query.topics)
        for each in topics:
            await _check(request, each)
        held_by(request.http).let_go()
        stream = _Stream(self, request, topics)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        body = stream.frames()
        return EventStream(body, 200, headers, "text/event-stream")

    @asynccontextmanager
    async def counted(self, principal: Principal) -> AsyncGenerator[bool, None]:
        """Count a stream while it is open; False: there are too many."""
        key = (principal.tenant, principal.id)
        if self._is_full(*key):
            yield False
            return
        self._open[key] = self._open.get(key, 0) + 1
        try:
            yield True
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def _is_full(self, tenant: str | None, id: str) -> bool:
        of_tenant = sum(number for (whose, _), number in self._open.items() if whose == tenant)
        return (
            self._open.get((tenant, id), 0) >= MOST_OF_ONE
            or (tenant is not None and of_tenant >= MOST_OF_TENANT)
            or sum(self._open.values()) >= MOST_STREAMS
        )


async def _check(request: ApiRequest, topic: Topic) -> None:
    """Refuse a topic that the principal may not see."""
    needed = _NEEDS[topic.kind]
    if not request.principal.may(needed):
        raise AccessDenied("forbidden", f"topic {topic} needs the permission {needed}")
    if topic.job:
        await request.store.job(topic.job)
    if topic.topic:
        check_given(topic=topic.topic)


class _Stream:
    """One stream: its positions, and what it sends."""

    def __init__(self, streams: Streams, request: ApiRequest, topics: list[Topic]) -> None:
        self._streams = streams
        self._request = request
        self._topics = topics
        self._kinds = {each.kind for each in topics}
        self._jobs = {each.job for each in topics if each.kind == "job"}
        self._outputs = {each: 0 for each in topics if each.kind == "output"}
        self._ended: set[Topic] = set()
        self._batch = 0
        self._position = 0
        self._workers: object = None
        self._workers_at = float("-inf")
        self._changed = asyncio.Event()
        self._key = b""

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield what to send, until the client is gone or the server stops."""
        async with self._streams.counted(self._request.principal) as is_open:
            if not is_open:
                yield _retry(_RETRY) + _frame("bye", {"code": "too_many_streams"})
                return
            unwatch = await self._request.store.watch(self._changed.set, output=bool(self._outputs))
            try:
                async for each in self._follow():
                    yield each
            except JobError as error:  # the store does not answer: the client comes back
                yield _retry(_RETRY) + _frame(
                    "bye", {"code": "store", "detail": type(error).__name__}
                )
            finally:
                unwatch()

    async def _follow(self) -> AsyncGenerator[bytes, None]:
        for frame in await self._begin():
            yield frame
        sent_at = checked_at = _CLOCK.monotonic()
        revocations = self._streams.revocations
        while not self._streams.shutdown.begun:
            self._changed.clear()  # before it looks: what comes meanwhile is noticed
            frames = await self._news()
            for frame in frames:
                yield frame
            now = _CLOCK.monotonic()
            if frames:
                sent_at = now
            elif now - sent_at >= HEARTBEAT:
                sent_at = now
                yield self._place()
            if now - checked_at >= CHECK_EVERY or revocations != self._streams.revocations:
                checked_at, revocations = now, self._streams.revocations
                if not await self._request.still_allowed():
                    yield _frame("bye", {"code": "signed_out"})
                    return
            await self._pause()
        yield _retry(_RETRY_AFTER_BYE) + _frame("bye", {"code": "shutdown"})

    async def _pause(self) -> None:
        """Wait for the next change, and not much longer than a server that stops would wait."""
        await idle(_LOOK_EVERY, self._changed)
        if not self._streams.shutdown.begun:
            await idle(_AT_MOST_EVERY)

    async def _begin(self) -> list[bytes]:
        """Find where to begin: now, or where the client was; return what it has missed."""
        self._key = await self._streams.changes.key()
        known = _fields(self._request.http.headers.get("last-event-id", ""))
        for topic in self._outputs:
            self._outputs[topic] = _position(known.get(str(topic), ""))
        at = read_place(self._key, self._request.principal.tenant, known.get("at", ""))
        if "workers" in self._kinds:
            await self._of_workers()  # what changes from now on is sent
        changes = self._streams.changes
        batch = await changes.now() if at is None else await changes.after(at)
        self._batch, self._position = batch.number, batch.position
        missed = () if at is None else self._of_batch(batch)
        return [_retry(_RETRY) + self._place(), *missed]

    async def _news(self) -> list[bytes]:
        found: list[bytes] = []
        if self._kinds - {"output"}:
            for batch in await self._streams.changes.since(self._batch):
                self._batch, self._position = batch.number, batch.position
                found += self._of_batch(batch)
        if "workers" in self._kinds:
            found += await self._of_workers()
        for topic in self._outputs.keys() - self._ended:
            found += await self._of_output(topic)
        return found

    def _of_batch(self, batch: ChangeBatch) -> Iterator[bytes]:
        """Yield the frames of a batch that this principal may see."""
        if batch.stale:
            yield self._frame("stale", {"stale": True})
            return
        rows = [each for each in batch.rows if self._request.store.sees(each.tenant)]
        if "jobs" in self._kinds and rows:
            yield self._frame("jobs", {"items": rows})
        for row in rows:
            if row.id in self._jobs:
                yield self._frame("job", row)
        sees = self._request.store.sees
        asked = sorted(job_id for tenant, job_id in batch.approvals if sees(tenant))
        if "approvals" in self._kinds and asked:
            yield self._frame("approvals", {"jobs": asked})

    async def _of_workers(self) -> list[bytes]:
        now = _CLOCK.monotonic()
        if now - self._workers_at < _WORKERS_EVERY:
            return []
        self._workers_at = now
        items = await worker_views(self._request)
        found = [(each.id, each.running, each.stale, each.draining) for each in items]
        before, self._workers = self._workers, found
        return [] if before in (None, found) else [self._frame("workers", {"items": items})]

    async def _of_output(self, topic: Topic) -> list[bytes]:
        page = await self._request.store.output(topic.job, topic.topic, self._outputs[topic])
        if page.has_ended:
            self._ended.add(topic)
        if not page.pieces and not page.has_ended:
            return []
        if page.pieces:
            self._outputs[topic] = page.pieces[-1].position
        items = [piece_view(each) for each in page.pieces]
        what = {"job": topic.job, "topic": topic.topic}
        return [self._frame("output", {**what, "items": items, "ended": page.has_ended})]

    def _frame(self, event: str, data: Any) -> bytes:
        return self._place()[:-1] + _frame(event, data)

    def _place(self) -> bytes:
        """Return a frame that only says where the stream is."""
        at = spell_place(self._key, self._request.principal.tenant, self._position)
        places = {"at": at, **{str(topic): no for topic, no in self._outputs.items()}}
        return b"id: %s\n\n" % urlencode(places).encode()


def _fields(text: str) -> dict[str, str]:
    """Return what the `id:` of an event holds; whatever else is there counts as nothing."""
    found = parse_qs(text[:4096]) if text.isascii() else {}
    return {name: values[0] for name, values in found.items()}


def _position(text: str) -> int:
    return int(text) if _POSITION.fullmatch(text) else 0


def _retry(milliseconds: int) -> bytes:
    """Return the line that says when a client comes back; it is a part of the frame behind it."""
    return b"retry: %d\n" % milliseconds


def _frame(event: str, data: Any) -> bytes:
    try:
        body = msgspec.json.encode(data)
    except UnicodeEncodeError:
        body = b'{"stale":true}'
    return b"event: %s\ndata: %s\n\n" % (event.encode(), body)
