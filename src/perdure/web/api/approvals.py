"""Approvals: the inbox, one question in full, and the answers to it."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.errors import RequestRefused
from perdure.jobs.approval import Approval, ApprovalState, VoteVerdict
from perdure.jobs.argument_change import ArgumentChange, ArgumentEdit
from perdure.web.access.principal import Permission
from perdure.web.api.workers import NoBody
from perdure.web.paging import checked_limit, cursor_of, newest_place
from perdure.web.request import Answer, ApiRequest, Page, Paged, Route
from perdure.web.views import ApprovalView, approval_view

_PATH: Final = "/api/v1/approvals"


class ApprovalQuery(Paged, frozen=True, kw_only=True):
    """Which approvals, newest first.

    Attributes:
        state: One state; "all": any.
        mine: 1: only those of a page that the principal may decide.
    """

    state: str = "PENDING"
    mine: int = 0
    limit: int = 100


class ApprovalPage(Page, frozen=True, kw_only=True):
    """A page of approvals."""

    items: list[ApprovalView]


class DecisionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer.

    Attributes:
        verdict: "approve" or "reject".
        action_hash: `action.hash` of the approval as it was shown; if the action was edited since,
            the answer is refused.
        reason: For the log.
        arguments: Approve with other arguments, by name; the others stay.
        changes: Approve with other values inside of arguments, where they are not shown whole.
    """

    verdict: VoteVerdict
    action_hash: str
    reason: str = ""
    arguments: dict[str, Any] | None = None
    changes: list[ArgumentChange] = []


class DelegationBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who decides instead."""

    to: str
    reason: str = ""


class Revealed(Struct, frozen=True, kw_only=True):
    """The arguments with the numbers of accounts and cards; passwords and keys stay removed."""

    arguments: Any


async def list_approvals(request: ApiRequest) -> Answer:
    """List approvals."""
    query: ApprovalQuery = request.query
    limit, before = checked_limit(query.limit), newest_place(query.cursor)
    found = await request.store.approvals(_state(query.state), limit=limit, before=before)
    behind = cursor_of((found[-1].created_at, found[-1].id)) if len(found) == limit else None
    page = await _page(request, found, behind)
    if query.mine:
        page = replace(page, items=[each for each in page.items if each.may_decide.ok])
    return Answer(page)


async def _page(
    request: ApiRequest, found: Sequence[Approval], behind: str | None = None
) -> ApprovalPage:
    now = await request.store.now()
    items = [_view(request, each, now) for each in found]
    return ApprovalPage(items=items, next=behind, now=now)


def _state(given: str) -> ApprovalState | None:
    if given.lower() == "all":
        return None
    try:
        return ApprovalState(given.upper())
    except ValueError:
        known = ", ".join(ApprovalState)
        raise RequestRefused(400, "bad_query", f"`state` is one of {known}, or all") from None


def _view(request: ApiRequest, approval: Approval, now: float) -> ApprovalView:
    return approval_view(approval, request.store.person(approval.tenant), now)


async def _answer(request: ApiRequest, approval: Approval) -> Answer:
    return Answer(_view(request, approval, await request.store.now()))


async def show_approval(request: ApiRequest) -> Answer:
    """Show an approval."""
    return await _answer(request, await request.store.approval(request.path["id"]))


async def decide(request: ApiRequest) -> Answer:
    """Approve or reject."""
    body: DecisionBody = request.body
    found = await request.store.decide(
        request.path["id"],
        body.verdict,
        action_hash=body.action_hash,
        reason=body.reason,
        edit=ArgumentEdit(arguments=body.arguments, changes=tuple(body.changes)),
    )
    return await _answer(request, found)


async def reveal(request: ApiRequest) -> Answer:
    """Show the numbers of accounts and cards in the arguments of an approval."""
    arguments = await request.store.reveal(request.path["id"])
    return Answer(Revealed(arguments=arguments))


async def delegate(request: ApiRequest) -> Answer:
    """Let somebody else decide."""
    body: DelegationBody = request.body
    found = await request.store.delegate(request.path["id"], to=body.to, reason=body.reason)
    return await _answer(request, found)


async def of_job(request: ApiRequest) -> Answer:
    """List the approvals of a job."""
    job = await request.store.job(request.path["id"])
    found = await request.store.approvals(None, job_id=job.id, limit=1000)
    return Answer(await _page(request, found))


ROUTES: Final = (
    Route(
        method="GET",
        path=_PATH,
        handler=list_approvals,
        permission=Permission.APPROVALS_READ,
        summary="List approvals, newest first",
        query=ApprovalQuery,
        response=ApprovalPage,
        tag="approvals",
    ),
    Route(
        method="GET",
        path=f"{_PATH}/{{id}}",
        handler=show_approval,
        permission=Permission.APPROVALS_READ,
        summary="Show an approval",
        response=ApprovalView,
        tag="approvals",
        cached=True,
    ),
    Route(
        method="POST",
        path=f"{_PATH}/{{id}}/decide",
        handler=decide,
        permission=Permission.APPROVALS_DECIDE,
        summary="Approve or reject an action",
        request=DecisionBody,
        response=ApprovalView,
        tag="approvals",
    ),
    Route(
        method="POST",
        path=f"{_PATH}/{{id}}/reveal",
        handler=reveal,
        permission=Permission.APPROVALS_REVEAL,
        request=NoBody,
        summary="Show the account numbers in the arguments of an approval; audited",
        response=Revealed,
        tag="approvals",
        shown_once=True,
    ),
    Route(
        method="POST",
        path=f"{_PATH}/{{id}}/delegate",
        handler=delegate,
        permission=Permission.APPROVALS_DECIDE,
        summary="Let somebody else decide",
        request=DelegationBody,
        response=ApprovalView,
        tag="approvals",
    ),
    Route(
        method="GET",
        path="/api/v1/jobs/{id}/approvals",
        handler=of_job,
        permission=Permission.JOBS_READ,
        summary="List the approvals of a job",
        response=ApprovalPage,
    ),
)
