"""What a principal changes is written to the audit log, in the transaction of the change.

`audited_verbs` stands in front of the verbs of the store. A verb that reads is called as it is; one
that changes something is run by `store.audited`, together with the entry that describes it. A verb
that is not named here is noted too, by its own name: a new one cannot be forgotten.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, Final, NamedTuple, cast, get_type_hints

import msgspec
from msgspec import Struct, field

from perdure.jobs.approval import Approval, Delegation, Refusal, Vote
from perdure.jobs.audit import (
    INSTALLATION,
    LOWEST,
    AuditCheck,
    AuditDraft,
    AuditHead,
    AuditReport,
    chain_of,
)
from perdure.jobs.bulk import BulkResult
from perdure.jobs.credential import SessionRow
from perdure.jobs.model import Command, NewJob, Schedule
from perdure.jobs.saved_view import SavedView
from perdure.jobs.worker_command import WorkerAction, WorkerCommand
from perdure.store.store import Store, Verb
from perdure.store.verbs.answer import RequestKey
from perdure.web.access.principal import Permission, Principal
from perdure.web.access.tokens import grant_of

# They change nothing that anybody asked for: what the store keeps for itself.
_UNNOTED: Final = frozenset(
    {
        "fingerprint_key",
        "audit",
        "audited",
        "withdraw_command",
        "use_token",
        "see_session",
        "take_sign_in_link",
    }
)
# A worker that is asked twice does the same once more.
_REPEATABLE: Final = frozenset({"ask_worker"})
_READS: Final = frozenset({WorkerAction.TREE, WorkerAction.INSPECT})


class KeyedRequest(Struct, frozen=True):
    """A request with a key.

    Attributes:
        key: Its key.
        done: What its changes returned when it was interrupted, in order.
        needed: The permissions that it took, as they are asked for.
    """

    key: RequestKey
    done: deque[str]
    needed: set[Permission] = field(default_factory=set)


def audited_verbs(principal: Principal, verbs: Store, keyed: KeyedRequest | None = None) -> Store:
    """Return the verbs of a store, such that what this principal changes is audited.

    Those of a request with a key are also noted with it: one that has happened does not happen
    again, but returns what it returned then.
    """
    return cast("Store", _AuditedVerbs(principal, verbs, keyed))


class _AuditedVerbs:
    def __init__(self, principal: Principal, verbs: Store, keyed: KeyedRequest | None) -> None:
        self._principal = principal
        self._verbs = verbs
        self._keyed = keyed

    def __getattr__(self, name: str) -> Any:
        verb = getattr(Store, name, None)
        if not isinstance(verb, Verb) or not verb.changes or name in _UNNOTED:
            return getattr(self._verbs, name)
        function = cast("Callable[..., Any]", verb.function)
        keyed = None if name in _REPEATABLE else self._keyed

        async def call(*args: Any, **kwargs: Any) -> Any:
            if keyed is not None and keyed.done:
                return msgspec.json.decode(keyed.done.popleft(), type=_returns(function))
            given = _signature(function).bind(None, *args, **kwargs).arguments
            describe = partial(drafts_of, self._principal, name, given)
            key = None if keyed is None else keyed.key
            return await self._verbs.audited(function, args, kwargs, describe, key)

        return call


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


@cache
def _returns(function: Callable[..., Any]) -> Any:
    """Return the type of what a verb returns if it has changed something."""
    found = get_type_hints(function)["return"]
    return Approval if found == Approval | Refusal else found


_PAGE: Final = 1000


async def verify_audit(
    store: Store, tenants: Iterable[str] | None = None, expect: AuditHead | None = None
) -> AuditReport:
    """Check chains of the audit log from their first entry to their last.

    Args:
        store: Where they are.
        tenants: Whose chains; None: all that there are.
        expect: The head of one of them, as it was noted elsewhere.
    """
    names = list(await store.audit_tenants() if tenants is None else tenants)
    if expect is not None and expect.tenant not in names:
        names.append(expect.tenant)
    checks: list[AuditCheck] = []
    for name in names:
        noted = (expect.no, expect.hash) if expect and expect.tenant == name else None
        checks.append(check := AuditCheck(name, noted))
        first = LOWEST
        while rows := await store.audit_rows(name, first, _PAGE):
            check.add(rows)
            if check.broken is not None:
                break
            first = check.count + 1
        check.end()
    return AuditReport(
        entries=sum(each.count for each in checks),
        heads=[AuditHead(tenant=each.tenant, no=each.count, hash=each.hash) for each in checks],
        broken=[each.broken for each in checks if each.broken is not None],
    )


class Noted(NamedTuple):
    """What an entry says; without a tenant, `target` is a job, and its tenant counts."""

    action: str
    target: str
    data: Mapping[str, Any] = {}
    tenant: str | None = None


def drafts_of(
    principal: Principal, verb: str, given: Mapping[str, Any], result: Any
) -> list[AuditDraft]:
    """Return the entries for the call of a verb.

    Args:
        principal: Who called it.
        verb: Its name.
        given: Its arguments by name.
        result: What it returned.
    """
    if verb == "command_jobs":
        found = _command_jobs(given, result)
    else:
        found = [_NOTED.get(verb, partial(_any, verb))(given, result)]
    return [drafted(principal, each) for each in found if each is not None]


def drafted(principal: Principal, noted: Noted) -> AuditDraft:
    """Return an entry in the name of a principal; one of a tenant writes to its own chain."""
    return AuditDraft(
        actor=principal.id,
        kind=principal.kind,
        action=noted.action,
        tenant=noted.tenant if principal.tenant is None else principal.tenant,
        target=noted.target,
        data={name: value for name, value in noted.data.items() if value not in (None, "")},
        address=principal.address,
        credential=principal.credential,
    )


def _command(given: Mapping[str, Any], _: Any) -> Noted:
    asked: Command = given["command"]
    action = "effects.resolve" if asked.action == "resolve" else f"jobs.{asked.action}"
    data = {"reason": asked.reason, "seq": asked.seq, "effect": asked.effect}
    return Noted(action, asked.job_id, {**data, "choice": asked.choice})


def _command_jobs(given: Mapping[str, Any], result: list[BulkResult]) -> list[Noted]:
    if given.get("dry_run"):
        return []
    asked: list[tuple[BulkResult, Command]] = given["asked"]
    return [
        _command({"command": command}, None)
        for (_, command), each in zip(asked, result, strict=True)
        if not each.refused
    ]


def _submit(given: Mapping[str, Any], result: Any) -> Noted:
    jobs: list[NewJob] = given["jobs"]
    first = jobs[0]
    more = {"jobs": len(jobs)} if len(jobs) > 1 else {}
    data = {"name": first.name, "key": first.key, "new": result[0].created, **more}
    return Noted("jobs.submit", result[0].id, data, first.tenant)


def _fork(given: Mapping[str, Any], _: Any) -> Noted:
    return Noted("jobs.fork", given["source"], {"fork": given["job"].id, "before": given["before"]})


def _send(given: Mapping[str, Any], result: Any) -> Noted:
    data = {"topic": given["topic"], "key": given.get("key"), "new": result}
    return Noted("jobs.send", given["job_id"], data)


def _vote(given: Mapping[str, Any], result: Any) -> Noted:
    vote: Vote = given["vote"]
    data = {"hash": vote.action_hash, "reason": vote.reason, "edited": vote.edited is not None}
    refused = result.code if isinstance(result, Refusal) else None
    data |= {"refused": refused}
    return Noted(f"approvals.{vote.verdict}", given["approval_id"], data, vote.person.tenant)


def _delegate(given: Mapping[str, Any], result: Any) -> Noted:
    asked: Delegation = given["delegation"]
    data = {"to": asked.to.id, "reason": asked.reason}
    data |= {"refused": result.code} if isinstance(result, Refusal) else {}
    return Noted("approvals.delegate", given["approval_id"], data, asked.by.tenant)


def _reveal(given: Mapping[str, Any], found: bool) -> Noted | None:  # noqa: FBT001  the result
    return Noted("approvals.reveal", given["approval_id"], {}, given["tenant"]) if found else None


def _put_schedule(given: Mapping[str, Any], _: Any) -> Noted:
    schedule: Schedule = given["schedule"]
    data = {"cron": schedule.cron, "timezone": schedule.timezone, "job": schedule.job.name}
    return Noted("schedules.put", schedule.name, data, schedule.tenant)


def _delete_schedule(given: Mapping[str, Any], _: Any) -> Noted:
    return Noted("schedules.delete", given["name"], {}, given["tenant"])


def _pause_schedule(given: Mapping[str, Any], _: Any) -> Noted:
    action = "schedules.pause" if given["paused"] else "schedules.resume"
    return Noted(action, given["name"], {}, given["tenant"])


def _pause_queue(given: Mapping[str, Any], _: Any) -> Noted:
    action = "queues.pause" if given["paused"] else "queues.resume"
    return Noted(action, given["name"], {"reason": given["reason"]}, INSTALLATION)


def _ask_worker(given: Mapping[str, Any], _: Any) -> Noted | None:
    asked: WorkerCommand = given["command"]
    if asked.action in _READS:
        return None
    return Noted(f"workers.{asked.action}", asked.owner, {"asked": asked.data}, INSTALLATION)


def _add_token(_: Mapping[str, Any], result: Any) -> Noted:
    grant = grant_of(result)
    data = {"name": grant.name, "principal": result.principal, "roles": sorted(grant.roles)}
    data |= {"scopes": None if grant.scopes is None else sorted(grant.scopes)}
    return Noted("tokens.create", result.id, data, chain_of(result.tenant))


def _revoke_token(given: Mapping[str, Any], result: Any) -> Noted | None:
    tenant = chain_of(given.get("tenant"))
    return Noted("tokens.revoke", given["token_id"], {}, tenant) if result else None


def _open_session(given: Mapping[str, Any], _: Any) -> Noted:
    row: SessionRow = given["row"]
    return Noted("sign_in", row.person, {"token": row.token_id}, chain_of(row.tenant))


def _end_session(_: Mapping[str, Any], result: Any) -> Noted | None:
    return Noted("sign_out", "", {}, INSTALLATION) if result else None


def _end_sessions(given: Mapping[str, Any], ended: int) -> Noted | None:
    tenant = given["tenant"] or INSTALLATION
    data = {"sessions": ended}
    return Noted("sign_out_everywhere", given["person"], data, tenant) if ended else None


def _save_view(given: Mapping[str, Any], _: Any) -> Noted:
    view: SavedView = given["view"]
    return Noted("views.save", view.name, {"query": view.query}, given["tenant"])


def _delete_view(given: Mapping[str, Any], result: Any) -> Noted | None:
    return Noted("views.delete", given["name"], {}, given["tenant"]) if result else None


def _mark_error(given: Mapping[str, Any], _: Any) -> Noted:
    return Noted("errors.mark", given["fingerprint"], {"state": given["state"]}, given["tenant"])


def _any(verb: str, given: Mapping[str, Any], _: Any) -> Noted:
    target = next((each for each in given.values() if isinstance(each, str)), "")
    return Noted(verb, target)


_NOTED: Final[Mapping[str, Callable[[Mapping[str, Any], Any], Noted | None]]] = {
    "command": _command,
    "submit": _submit,
    "fork": _fork,
    "send": _send,
    "vote": _vote,
    "delegate": _delegate,
    "reveal": _reveal,
    "put_schedule": _put_schedule,
    "delete_schedule": _delete_schedule,
    "pause_schedule": _pause_schedule,
    "pause_queue": _pause_queue,
    "ask_worker": _ask_worker,
    "add_token": _add_token,
    "revoke_token": _revoke_token,
    "open_session": _open_session,
    "end_session": _end_session,
    "end_sessions": _end_sessions,
    "save_view": _save_view,
    "delete_view": _delete_view,
    "mark_error": _mark_error,
}
