"""Commands to jobs: one at a time, or all that a query finds."""

from typing import Annotated, Any, Final, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.base.errors import RequestRefused
from perdure.jobs.argument_change import ArgumentChange, ArgumentEdit
from perdure.jobs.bulk import BulkAction, BulkResult
from perdure.jobs.model import JobQuery
from perdure.jobs.query_text import parse
from perdure.jobs.state import JobState
from perdure.web.access.principal import Permission
from perdure.web.access.tenant import JobAction
from perdure.web.api.jobs import created, detail
from perdure.web.request import Answer, ApiRequest, Route
from perdure.web.views import JobDetail

_MOST_RESULTS: Final = 1000
JobId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
JobIds: TypeAlias = Annotated[list[JobId], Meta(min_length=1, max_length=_MOST_RESULTS)]


class CommandBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command.

    Attributes:
        reason: For the log of the job.
        step: retry: from this step on; skip, skip_item, abandon_undo: which one ("load#2").
        output: skip: the result that the step is said to have had.
    """

    reason: str = ""
    step: str | None = None
    output: Any = None


class SendBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to a job; one with the same key is sent once."""

    topic: str
    payload: Any = None
    key: str | None = None


class ForkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A copy of a job that has done everything before a step.

    Attributes:
        before: The step ("load#2").
        arguments: Other arguments, by name; the others stay.
        changes: Other values inside of arguments, where they are not shown whole.
        reason: Why.
    """

    before: str
    arguments: dict[str, Any] | UnsetType = UNSET
    changes: list[ArgumentChange] = []
    reason: str = ""


class BulkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command to all jobs that a query finds, or to those that are named.

    Attributes:
        action: What they shall do.
        q: Which jobs, as in a list; without states, those that the command is made for.
        ids: Exactly these jobs instead, in whichever state.
        reason: For the log of each job.
        dry_run: Do nothing, and report what would be done and refused.
    """

    action: BulkAction
    q: str | None = None
    ids: JobIds | None = None
    reason: str = ""
    dry_run: bool = False


class BulkAnswer(Struct, frozen=True, kw_only=True):
    """What a command did to many jobs, or would do; `results` are at most a thousand."""

    action: BulkAction
    dry_run: bool
    affected: int
    refused: int
    results: list[BulkResult]


_PERMISSIONS: Final[dict[JobAction, Permission]] = {
    "cancel": Permission.JOBS_CANCEL,
    "pause": Permission.JOBS_PAUSE,
    "resume": Permission.JOBS_RESUME,
    "retry": Permission.JOBS_RETRY,
    "skip": Permission.JOBS_SKIP,
    "skip_item": Permission.JOBS_SKIP,
    "compensate": Permission.JOBS_COMPENSATE,
    "abandon_undo": Permission.JOBS_ABANDON,
}
_NEED_STEP: Final = ("skip", "skip_item", "abandon_undo")
_WORDS: Final[dict[JobAction, str]] = {
    "cancel": "Cancel a job",
    "pause": "Pause a job",
    "resume": "Continue a paused or parked job",
    "retry": "Run a failed job again",
    "skip": "Record a step as done by hand",
    "skip_item": "Leave out the item at which a step has failed",
    "compensate": "Undo what a job has done",
    "abandon_undo": "Continue an undo without a part that failed",
}


def _command(action: JobAction) -> Route:
    async def command(request: ApiRequest) -> Answer:
        body: CommandBody = request.body
        if action in _NEED_STEP and not (body.step and body.reason.strip()):
            raise RequestRefused(422, "invalid_body", f"{action} needs `step` and `reason`")
        job_id = request.path["id"]
        await request.store.command(
            job_id, action, reason=body.reason, step=body.step, output=body.output
        )
        return await _shown(request)

    return Route(
        method="POST",
        path=f"/api/v1/jobs/{{id}}/{action}",
        handler=command,
        permission=_PERMISSIONS[action],
        summary=_WORDS[action],
        request=CommandBody,
        response=JobDetail,
    )


async def _shown(request: ApiRequest) -> Answer:
    return Answer(await detail(request, request.path["id"]))


async def send(request: ApiRequest) -> Answer:
    """Send a job a message."""
    body: SendBody = request.body
    await request.store.send(request.path["id"], body.topic, body.payload, key=body.key)
    return await _shown(request)


async def fork(request: ApiRequest) -> Answer:
    """Submit a copy of a job."""
    body: ForkBody = request.body
    arguments = None if isinstance(body.arguments, UnsetType) else body.arguments
    edit = ArgumentEdit(arguments=arguments, changes=tuple(body.changes))
    copy = await request.store.fork(request.path["id"], body.before, edit)
    return await created(request, copy)


async def command_many(request: ApiRequest) -> Answer:
    """Command all jobs that a query finds, or those that are named."""
    body: BulkBody = request.body
    report = await request.store.command_jobs(
        body.action, _which(body), reason=body.reason, dry_run=body.dry_run
    )
    answer = BulkAnswer(
        action=report.action,
        dry_run=report.dry_run,
        affected=len(report.affected),
        refused=len(report.refused),
        results=report.results[:_MOST_RESULTS],
    )
    return Answer(answer)


def _which(body: BulkBody) -> JobQuery:
    if (body.q is None) == (body.ids is None):
        raise RequestRefused(422, "invalid_body", "give either `q` or `ids`")
    if body.ids is None:
        return parse(body.q or "")
    return JobQuery(ids=tuple(body.ids), states=tuple(JobState))


ROUTES: Final = (
    Route(
        method="POST",
        path="/api/v1/jobs/bulk",
        handler=command_many,
        permission=None,  # that of the action, which the store handle checks
        summary="Command all jobs that a query finds, or those that are named",
        request=BulkBody,
        response=BulkAnswer,
    ),
    *map(_command, _PERMISSIONS),
    Route(
        method="POST",
        path="/api/v1/jobs/{id}/send",
        handler=send,
        permission=Permission.JOBS_SEND,
        summary="Send a job a message",
        request=SendBody,
        response=JobDetail,
    ),
    Route(
        method="POST",
        path="/api/v1/jobs/{id}/fork",
        handler=fork,
        permission=Permission.JOBS_FORK,
        summary="Submit a copy of a job that begins at a step",
        request=ForkBody,
        response=JobDetail,
        status=201,
    ),
)
