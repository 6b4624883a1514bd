"""Jobs: lists, one job in full, and the parts of it that are lists of their own."""

import re
from itertools import dropwhile
from typing import Any, Final, Literal, cast

import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from perdure.base.codec import write_plain
from perdure.base.duration import job_seconds
from perdure.base.errors import RequestRefused
from perdure.engine.submission import SubmitOptions
from perdure.jobs.definition import CHAT
from perdure.jobs.listing import JobRow, job_row
from perdure.jobs.model import JobQuery, JournalEntry
from perdure.jobs.payload import stand_in_of
from perdure.jobs.plan import Plan
from perdure.jobs.query_text import LONGEST, QueryWords, Suggestion, complete, parse
from perdure.jobs.redaction import for_people
from perdure.jobs.state import StepState
from perdure.jobs.text_limits import check_given
from perdure.jobs.transcript import ModelTurn, TranscriptTurn, TurnKind, turns
from perdure.web.access.principal import Permission
from perdure.web.paging import checked_limit, cursor_of, newest_place, number, number_place
from perdure.web.request import Answer, ApiRequest, Page, Paged, Priority, Query, Route
from perdure.web.views import (
    EffectView,
    EntryView,
    EventView,
    FailureView,
    JobDetail,
    LargePayload,
    MessageView,
    PieceView,
    allowed,
    budget_view,
    effect_view,
    entry_view,
    event_view,
    failure_view,
    message_view,
    payload_fields,
    payload_text,
    piece_view,
    plain,
    plan_calls,
    topic_view,
)

_READ: Final = Permission.JOBS_READ
_MOST_ENTRIES: Final = 10_000  # of a page of a slim journal
_MOST_WHOLE: Final = 1_000  # of one with payloads
_LONGEST_SLICE: Final = 4 * 1024 * 1024  # characters
_RECENT: Final = 200  # jobs whose names and labels are suggested
_MOST_EVENTS: Final = 10_000  # lines of a log in which model calls are looked for
_MOST_BELOW: Final = 1_000  # jobs of a tree
_PAYLOADS: Final = ("input", "output", "checkpoint")


class JobPage(Page, frozen=True, kw_only=True):
    """A page of jobs."""

    items: list[JobRow]


class JobCounts(Struct, frozen=True, kw_only=True):
    """How many jobs there are, by state."""

    counts: dict[str, int]


# Lists


class JobFilter(Query, frozen=True, kw_only=True):
    """Which jobs: `state:failed name:migrate label.team:data`; empty: all of them."""

    q: str = ""


class JobList(JobFilter, frozen=True, kw_only=True):
    """Which jobs, and which page of them."""

    limit: int = 50
    cursor: str | None = None


def job_query(given: JobFilter) -> JobQuery:
    """Return the query of a request.

    Raises:
        QueryError: The text is no query.
        RequestRefused: The page cannot be asked for.
    """
    query = parse(given.q)
    if not isinstance(given, JobList):
        return query
    return replace(query, limit=checked_limit(given.limit), before=newest_place(given.cursor))


async def list_jobs(request: ApiRequest) -> Answer:
    """List jobs, newest first."""
    return Answer(await _job_page(request, job_query(request.query)))


async def _job_page(request: ApiRequest, query: JobQuery) -> JobPage:
    rows, now = await request.store.rows(query)
    is_full = len(rows) == query.limit
    behind = cursor_of((rows[-1].created_at, rows[-1].id)) if is_full else None
    return JobPage(items=rows, next=behind, now=now)


async def count_jobs(request: ApiRequest) -> Answer:
    """Count jobs by state."""
    return Answer(JobCounts(counts=await request.store.counts(job_query(request.query))))


class CompletionQuery(JobFilter, frozen=True, kw_only=True):
    """A query that somebody writes, and where the cursor is: at its end, unless `at` says where."""

    at: int | None = None


class Completions(Struct, frozen=True, kw_only=True):
    """How the query may continue."""

    items: list[Suggestion]


async def complete_query(request: ApiRequest) -> Answer:
    """Suggest how a query may continue, by what occurs in recent jobs."""
    query: CompletionQuery = request.query
    at = len(query.q) if query.at is None else number(query.at, "at")
    recent = await request.store.jobs(JobQuery(limit=_RECENT))
    labels: dict[str, tuple[str, ...]] = {}
    for name, value in sorted({pair for job in recent for pair in job.labels.items()}):
        labels[name] = (*labels.get(name, ()), value)
    known = QueryWords(
        names=tuple(sorted({job.name for job in recent})),
        queues=tuple(each.name for each in await request.store.queues()),
        users=tuple(sorted({job.user for job in recent if job.user})),
        tenants=tuple(sorted({job.tenant for job in recent})),
        labels=labels,
    )
    return Answer(Completions(items=complete(query.q[:LONGEST], min(at, LONGEST), known)))


# One job


async def show_job(request: ApiRequest) -> Answer:
    """Show a job."""
    return Answer(await detail(request, request.path["id"]))


async def detail(request: ApiRequest, job_id: str) -> JobDetail:
    """Return a job in full, as the principal sees it."""
    whole = await request.store.whole(job_id)
    job, href = whole.facts.job, request.href(f"/api/v1/jobs/{job_id}/payload")
    return JobDetail(
        **msgspec.structs.asdict(job_row(whole.facts, whole.now)),
        **payload_fields(
            input=(job.input, f"{href}/job/input"), result=(job.result, f"{href}/job/result")
        ),
        failure=failure_view(job.error),
        wait=plain(job.wait),
        request=job.request,
        deadline_at=job.deadline_at,
        due_at=job.due_at,
        forked_from=job.forked_from,
        is_plan=job.plan is not None,
        calls=plan_calls(job.plan),
        children=whole.size.children,
        entries=whole.size.entries,
        topics=[topic_view(each) for each in whole.topics],
        budget=budget_view(whole.facts.budget),
        unserved=whole.unserved,
        allowed=allowed(whole.facts, request.principal),
    )


# Journal and payloads


class JournalQuery(Query, frozen=True, kw_only=True):
    """Which part of a journal.

    Attributes:
        after: Only entries behind this position.
        limit: How many, at most.
        slim: 1: without payloads.
    """

    after: int = 0
    limit: int = 1000
    slim: Literal[0, 1] = 0


class JournalPage(Page, frozen=True, kw_only=True):
    """A part of a journal; `next` is the `after` of the part behind it."""

    items: list[EntryView]


async def show_journal(request: ApiRequest) -> Answer:
    """Show the journal of a job."""
    query, job_id = request.query, request.path["id"]
    slim, after = bool(query.slim), number(query.after, "after")
    limit = checked_limit(query.limit, _MOST_ENTRIES if slim else _MOST_WHOLE)
    found = await request.store.journal_page(job_id, after, limit, slim=slim)
    href = request.href(f"/api/v1/jobs/{job_id}/payload")
    items = [entry_view(each, href) for each in found]
    behind = str(found[-1].seq) if len(found) == limit else None
    return Answer(JournalPage(items=items, next=behind, now=await request.store.now()))


class SliceQuery(Query, frozen=True, kw_only=True):
    """Which part of a payload, in characters; without both, all of it."""

    offset: int = 0
    length: int | None = None


async def show_payload(request: ApiRequest) -> Response:
    """Show a payload of a journal entry as JSON, or a part of its text."""
    job_id, seq, what = (request.path[name] for name in ("id", "seq", "what"))
    if not re.fullmatch(r"\d{1,9}", seq, re.ASCII) or what not in _PAYLOADS:
        raise _no_payload()
    found = await request.store.journal_page(job_id, int(seq) - 1, 1)
    if not found or found[0].seq != int(seq):
        raise _no_payload()
    return await _sliced(request, await _whole(request, getattr(found[0], what)))


async def show_job_payload(request: ApiRequest) -> Response:
    """Show the input or the result of a job as JSON, or a part of its text."""
    job = await request.store.job(request.path["id"])
    if request.path["what"] not in ("input", "result"):
        raise _no_payload()
    return await _sliced(request, await _whole(request, getattr(job, request.path["what"])))


async def _whole(request: ApiRequest, data: bytes | None) -> bytes:
    """Return a payload, also a large one that the journal keeps elsewhere."""
    stand_in = stand_in_of(data)
    if stand_in is not None and stand_in.chunks:
        return await request.store.payload(request.path["id"], stand_in)
    if data is None or stand_in is not None:
        raise _no_payload()
    return data


def _no_payload() -> RequestRefused:
    text = "there is no such payload, or only its digest was kept"
    return RequestRefused(404, "no_payload", text)


async def _sliced(request: ApiRequest, data: bytes) -> Response:
    query: SliceQuery = request.query
    offset = number(query.offset, "offset")
    length = _LONGEST_SLICE if query.length is None else number(query.length, "length")
    text = await anyio.to_thread.run_sync(payload_text, data)  # may take a while
    headers = {"x-total-chars": str(len(text)), "cache-control": "no-store"}
    if query.length is None and not offset:
        return Response(text.encode(), 200, headers, "application/json")
    part = text[offset : offset + min(length, _LONGEST_SLICE)]
    return Response(part.encode(), 200, headers, "text/plain; charset=utf-8")


# The transcript of an agent


class TranscriptQuery(Query, frozen=True, kw_only=True):
    """Which part of a transcript: that of so many journal entries behind a position."""

    after: int = 0
    limit: int = 200


class TurnView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn of a transcript: a model call, a tool call, a question, or another step."""

    kind: TurnKind
    seq: int
    step: str
    name: str
    state: StepState
    call_id: str = ""
    attempt: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    model: ModelTurn | None = None
    arguments: Any = None
    answer: Any = None
    large: dict[str, LargePayload] = {}
    error: FailureView | None = None


class TranscriptPage(Page, frozen=True, kw_only=True):
    """Turns of a transcript, from the first model call on; none: there was no such call."""

    items: list[TurnView]


async def show_transcript(request: ApiRequest) -> Answer:
    """Show the model calls of a job and what happened between them."""
    job_id, after = request.path["id"], number(request.query.after, "after")
    limit = checked_limit(request.query.limit, _MOST_WHOLE)
    entries = await request.store.journal_page(job_id, after, limit)
    outputs = {each.seq: await _answered(request, each) for each in entries if each.output}
    log = await request.store.events(job_id, 0, _MOST_EVENTS)
    found = turns(entries, outputs, log)
    if after == 0:
        found = list(dropwhile(lambda turn: turn.model is None, found))
    href = request.href(f"/api/v1/jobs/{job_id}/payload")
    behind = str(entries[-1].seq) if len(entries) == limit else None
    items = [_turn_view(each, href) for each in found]
    return Answer(TranscriptPage(items=items, next=behind, now=await request.store.now()))


async def _answered(request: ApiRequest, entry: JournalEntry) -> Any:
    """Return the output of an entry for people; a large one only of what is called as a model."""
    stand_in = stand_in_of(entry.output)
    if stand_in is None and entry.output is not None:
        return for_people(entry.output)
    if stand_in is None or not stand_in.chunks or not entry.name.startswith(CHAT):
        return None
    return for_people(await request.store.payload(request.path["id"], stand_in))


def _turn_view(turn: TranscriptTurn, href: str) -> TurnView:
    entry = turn.entry
    stored = (entry.input, entry.output) if turn.model is None else (None, None)
    shown = payload_fields(
        arguments=(stored[0], f"{href}/{entry.seq}/input"),
        answer=(stored[1], f"{href}/{entry.seq}/output"),
    )
    match shown["arguments"]:
        case {"input": inner, **rest} if not rest:  # that of a closure
            shown["arguments"] = inner
        case _:
            pass
    return TurnView(
        kind=turn.kind,
        seq=entry.seq,
        step=entry.id,
        name=turn.name,
        state=entry.state,
        call_id=turn.call_id,
        attempt=entry.attempt,
        started_at=entry.started_at,
        ended_at=entry.ended_at,
        model=turn.model,
        **shown,
        error=failure_view(entry.error),
    )


# Other parts of a job


class EffectPage(Page, frozen=True, kw_only=True):
    """Lines of the ledger."""

    items: list[EffectView]


async def show_effects(request: ApiRequest) -> Answer:
    """Show the ledger of a job."""
    reader = await request.store.read(request.path["id"])
    items = [effect_view(each) for each in await reader.effects()]
    return Answer(EffectPage(items=items, now=await request.store.now()))


class EventPage(Page, frozen=True, kw_only=True):
    """Lines of a log."""

    items: list[EventView]


async def show_events(request: ApiRequest) -> Answer:
    """Show the log of a job, the oldest line first."""
    query: Paged = request.query
    limit = checked_limit(query.limit)
    after = 0 if query.cursor is None else number_place(query.cursor)
    found = await request.store.events(request.path["id"], after, limit)
    behind = cursor_of(found[-1].no) if len(found) == limit else None
    items = [event_view(each) for each in found]
    return Answer(EventPage(items=items, next=behind, now=await request.store.now()))


class MessagePage(Page, frozen=True, kw_only=True):
    """Messages that a job has not received yet."""

    items: list[MessageView]


async def show_messages(request: ApiRequest) -> Answer:
    """Show the messages that a job has not received yet."""
    found = await request.store.messages(request.path["id"])
    items = [message_view(each) for each in found]
    return Answer(MessagePage(items=items, now=await request.store.now()))


async def show_children(request: ApiRequest) -> Answer:
    """List the jobs that a job has submitted, newest first."""
    job, given = await request.store.job(request.path["id"]), request.query
    query = job_query(JobList(limit=given.limit, cursor=given.cursor))
    return Answer(await _job_page(request, replace(query, parent=job.id)))


class JobTree(Page, frozen=True, kw_only=True):
    """The jobs below a job; `cut`: there are more of them."""

    items: list[JobRow]
    cut: bool


async def show_tree(request: ApiRequest) -> Answer:
    """List the jobs below a job: its children, their children, and so on, level by level."""
    found: list[JobRow] = []
    above, cut = ((await request.store.job(request.path["id"])).id,), False
    while above and not cut:
        room = _MOST_BELOW - len(found)
        level, _ = await request.store.rows(JobQuery(parents=above, limit=room + 1))
        cut = len(level) > room
        found += sorted(level[:room], key=lambda row: (row.created_at, row.id))
        above = tuple(row.id for row in level)
    return Answer(JobTree(items=found, cut=cut, now=await request.store.now()))


class OutputQuery(Query, frozen=True, kw_only=True):
    """Which part of a topic: the pieces behind this position."""

    after: int = 0


class OutputPieces(Page, frozen=True, kw_only=True):
    """Pieces of output; `next` is the `after` of those behind them, `ended`: there will be none."""

    items: list[PieceView]
    ended: bool


async def show_output(request: ApiRequest) -> Answer:
    """Show what a job has emitted on a topic."""
    topic, after = request.path["topic"], number(request.query.after, "after")
    check_given(topic=topic)
    page = await request.store.output(request.path["id"], topic, after)
    items = [piece_view(each) for each in page.pieces]
    behind = None if page.has_ended else str(items[-1].position if items else after)
    now = await request.store.now()
    return Answer(OutputPieces(items=items, next=behind, ended=page.has_ended, now=now))


# Submitting


class NewJobBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to submit: by name, or as a plan.

    Attributes:
        name: The name of the job.
        arguments: By name, or by position.
        plan: A plan instead of a name.
        key: Submitting the same key again returns the same job.
        queue: Overrides the job's own, as does `priority`.
        priority: Higher is earlier.
        labels: Texts by name, to find it by.
        delay: Seconds, or a text such as "10m", before which it does not start.
        deadline: Seconds, or a text, within which it must end.
    """

    name: str = ""
    arguments: dict[str, Any] | list[Any] = {}
    plan: dict[str, Any] | None = None
    key: str | None = None
    queue: str | None = None
    priority: Priority | None = None
    labels: dict[str, str] = {}
    delay: float | str | None = None
    deadline: float | str | None = None


_OPTIONS: Final = ("key", "queue", "priority", "labels", "delay", "deadline")


async def submit_job(request: ApiRequest) -> Answer:
    """Submit a job; it is durable when the answer comes."""
    body: NewJobBody = request.body
    if bool(body.name) == (body.plan is not None):
        raise RequestRefused(422, "invalid_body", "give either `name` or `plan`")
    _check_durations(delay=body.delay, deadline=body.deadline)
    given = {name: getattr(body, name) for name in _OPTIONS}
    options = {name: value for name, value in given.items() if value not in (None, {})}
    what = body.name if body.plan is None else Plan.from_json(write_plain(body.plan).decode())
    id = await request.store.submit(what, body.arguments, cast("SubmitOptions", options))
    return await created(request, id)


async def created(request: ApiRequest, job_id: str) -> Answer:
    """Return the answer to a request that has submitted a job."""
    where = request.href(f"/api/v1/jobs/{job_id}")
    return Answer(await detail(request, job_id), 201, {"location": where})


def _check_durations(**given: float | str | None) -> None:
    for name, duration in given.items():
        try:
            job_seconds(duration)
        except ValueError as error:
            raise RequestRefused(422, "invalid_body", f"`{name}`: {error}") from None


def _route(method: Any, path: str, handler: Any, summary: str, **more: Any) -> Route:
    given: dict[str, Any] = {"permission": _READ, **more}
    return Route(method=method, path=path, handler=handler, summary=summary, **given)


_JOB: Final = "/api/v1/jobs/{id}"

ROUTES: Final = (
    _route(
        "GET", "/api/v1/jobs", list_jobs, "List jobs, newest first", query=JobList, response=JobPage
    ),
    _route(
        "POST",
        "/api/v1/jobs",
        submit_job,
        "Submit a job",
        permission=Permission.JOBS_SUBMIT,
        request=NewJobBody,
        response=JobDetail,
        status=201,
    ),
    _route(
        "GET",
        "/api/v1/jobs/counts",
        count_jobs,
        "Count jobs by state",
        query=JobFilter,
        response=JobCounts,
    ),
    _route(
        "GET",
        "/api/v1/jobs/complete",
        complete_query,
        "Suggest how a query may continue",
        query=CompletionQuery,
        response=Completions,
    ),
    _route("GET", _JOB, show_job, "Show a job", response=JobDetail, cached=True),
    _route(
        "GET",
        f"{_JOB}/journal",
        show_journal,
        "Show the journal of a job",
        query=JournalQuery,
        response=JournalPage,
    ),
    _route(
        "GET",
        f"{_JOB}/payload/job/{{what}}",
        show_job_payload,
        "Show the input or result of a job",
        query=SliceQuery,
        response=Any,
    ),
    _route(
        "GET",
        f"{_JOB}/payload/{{seq}}/{{what}}",
        show_payload,
        "Show input, output or checkpoint of a journal entry",
        query=SliceQuery,
        response=Any,
    ),
    _route(
        "GET",
        f"{_JOB}/transcript",
        show_transcript,
        "Show the model calls of a job and what happened between them",
        query=TranscriptQuery,
        response=TranscriptPage,
    ),
    _route("GET", f"{_JOB}/effects", show_effects, "Show the ledger of a job", response=EffectPage),
    _route(
        "GET",
        f"{_JOB}/events",
        show_events,
        "Show the log of a job",
        query=Paged,
        response=EventPage,
    ),
    _route(
        "GET",
        f"{_JOB}/messages",
        show_messages,
        "Show messages that a job has not received",
        response=MessagePage,
    ),
    _route(
        "GET",
        f"{_JOB}/children",
        show_children,
        "List the children of a job",
        query=Paged,
        response=JobPage,
    ),
    _route(
        "GET",
        f"{_JOB}/tree",
        show_tree,
        "List all jobs below a job, level by level",
        response=JobTree,
    ),
    _route(
        "GET",
        f"{_JOB}/output/{{topic}}",
        show_output,
        "Show what a job has emitted on a topic",
        query=OutputQuery,
        response=OutputPieces,
    ),
)
