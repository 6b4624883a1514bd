"""Errors as answers: `application/problem+json` (RFC 9457), with a stable `code` for programs.

Only errors of Perdure tell the caller what they say: their messages are written for people, and
hold no secret. Any other exception is a fault of the server: it is logged here, and the caller
learns its number in the log and nothing else.
"""

import logging
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.responses import Response

from perdure.base import errors
from perdure.base.secret import without_secrets

_log = logging.getLogger("perdure.web")

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused.

    Attributes:
        type: A URI that names the kind of problem.
        title: The kind of problem in words.
        status: The status of the answer, once more.
        detail: What happened, and what to do.
        code: The kind of problem, for programs.
        errors: Every reason, if there are several.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: tuple[str, ...] = ()


# Each error with its status and its code. The first that fits counts, so a class stands before
# those that it inherits from.
STATUSES: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (errors.JobNotFound, 404, "job_not_found"),
    (errors.WorkerNotFound, 404, "worker_not_found"),
    (errors.WorkerSilent, 504, "worker_silent"),
    (errors.CommandRefused, 409, "command_refused"),
    (errors.AmbiguousId, 409, "ambiguous_id"),
    (errors.KeyConflict, 409, "key_conflict"),
    (errors.IllegalTransition, 409, "illegal_transition"),
    (errors.JobFailed, 409, "job_failed"),
    (errors.JobParked, 409, "job_parked"),
    (errors.StepFailed, 409, "step_failed"),
    (errors.ApprovalRejected, 409, "approval_rejected"),
    (errors.ApprovalExpired, 409, "approval_expired"),
    (errors.EffectInDoubt, 409, "effect_in_doubt"),
    (errors.BudgetExceeded, 409, "budget_exceeded"),
    (errors.LeaseLost, 409, "lease_lost"),
    (errors.JournalConflict, 409, "journal_conflict"),
    (errors.Drift, 409, "drift"),
    (errors.UnknownName, 404, "unknown_name"),
    (errors.DefinitionError, 422, "invalid_definition"),
    (errors.QueryError, 400, "bad_query"),
    (errors.ArgumentError, 422, "invalid_arguments"),
    (errors.PlanError, 422, "invalid_plan"),
    (errors.PayloadTooLarge, 413, "payload_too_large"),
    (errors.Unstorable, 422, "unstorable"),
    (errors.StoreFull, 507, "store_full"),
    (errors.StoreReadOnly, 503, "store_read_only"),
    (errors.StoreUnreachable, 503, "store_unreachable"),
    (errors.QueryTooSlow, 422, "query_too_slow"),
    (errors.SchemaError, 503, "schema"),
    (errors.EncryptionError, 503, "encrypted"),
    (errors.StoreError, 503, "store_failed"),
    (errors.NoProcess, 404, "no_process"),
    (errors.NotRegistered, 404, "not_registered"),
    (errors.CallTimeout, 504, "no_answer"),
    (errors.CallExit, 502, "no_answer"),
    (errors.StepTimeout, 504, "timeout"),
    (errors.ProcError, 409, "refused"),
    (errors.JobError, 409, "refused"),
    (LookupError, 404, "not_found"),
    (RecursionError, 400, "too_deep"),
    (TimeoutError, 503, "too_slow"),
)

# How `DecisionRefused.code` answers.
_DECISIONS: Final[dict[str, int]] = {
    "not found": 404,
    "decided": 409,
    "repeated": 409,
    "expired": 410,
    "changed": 409,
    "not allowed": 403,
    "four eyes": 403,
    "wrong code": 403,
}
_OF_STATUS: Final[dict[int, str]] = {404: "not_found", 405: "method_not_allowed"}
_TOO_SLOW: Final = "the answer took too long; it was given up"


def problem_of(error: Exception) -> Problem:
    """Return what the caller learns about an error; a fault of the server is logged."""
    return _of_request(error) or _of_table(error) or _fault(error)


def _of_request(error: Exception) -> Problem | None:
    """Return what errors say that have a status or a code of their own."""
    match error:
        case errors.RequestRefused():
            return _problem(error.status, error.code, str(error), error.errors)
        case errors.AccessDenied():
            status = 401 if error.code == "unauthenticated" else 403
            return _problem(status, error.code.replace(" ", "_"), str(error))
        case errors.DecisionRefused():
            status = _DECISIONS.get(error.code, 409)
            return _problem(status, error.code.replace(" ", "_"), str(error))
        case HTTPException():
            code = _OF_STATUS.get(error.status_code, "refused")
            return _problem(error.status_code, code, str(error.detail))
        case _:
            return None


def _of_table(error: Exception) -> Problem | None:
    for kind, status, code in STATUSES:
        if isinstance(error, kind):
            text = _TOO_SLOW if kind is TimeoutError else str(error)
            return _problem(status, code, text, getattr(error, "problems", ()))
    return None


def _fault(error: Exception) -> Problem:
    number = secrets.token_hex(4)
    _log.error("request failed (%s)", number, exc_info=error)
    return _problem(500, "fault", f"the server failed; its log says why under {number}")


def _problem(status: int, code: str, detail: str, errors: Any = ()) -> Problem:
    return Problem(
        type=f"urn:perdure:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=without_secrets(detail),
        code=code,
        errors=tuple(without_secrets(str(each)) for each in errors),
    )


def problem_response(error: Exception) -> Response:
    """Return the answer to a request that ended in an error."""
    problem = problem_of(error)
    headers: dict[str, str] = {"cache-control": "no-store"}
    if isinstance(error, HTTPException):
        headers |= _kept(error.headers)
    if isinstance(error, errors.RequestRefused) and error.retry:
        headers["retry-after"] = f"{max(1, round(error.retry))}"
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    body = msgspec.json.encode(problem)
    return Response(body, problem.status, headers, MEDIA_TYPE)


def _kept(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {name.lower(): value for name, value in (headers or {}).items()}
