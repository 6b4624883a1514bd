"""Approvals: asked once, decided once; the people who were asked are told the outcome.

An approval is one JSON document with a few columns to find it by. It changes only under a lock,
by the pure functions of `jobs.approval`, and every change is audited in the log of its job.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.base.codec import digest, read_plain, write_plain
from perdure.jobs.approval import (
    Approval,
    ApprovalLink,
    ApprovalState,
    Delegation,
    LinkUse,
    Refusal,
    Vote,
    check_code,
    decide,
    next_tick,
    tick,
    used_link,
    withdraw,
)
from perdure.jobs.approval import (
    delegate as delegated,
)
from perdure.jobs.effect import is_of_step
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.redaction import Fingerprints, for_people
from perdure.store.statements import Session
from perdure.store.verbs.outbox import channels_asked, put_notices
from perdure.store.verbs.requester import makers_of
from perdure.store.verbs.schedule import fingerprint_key

read_approval = msgspec.json.Decoder(Approval).decode
_read_names = msgspec.json.Decoder(frozenset[str]).decode
_read_link = msgspec.json.Decoder(ApprovalLink).decode
_LATER = 0.001  # seconds
_NOT_FOUND = Refusal("not found", "there is no such approval")


def ask(session: Session, approvals: Iterable[Approval]) -> None:
    """Insert approvals; one that exists already is not asked for again."""
    asked = [_as_shown(session, _with_makers(session, each)) for each in approvals]
    session.many("insert_approval", [_row(_as_latest(session, each)) for each in asked])


def _as_latest(session: Session, approval: Approval) -> Approval:
    """Return an approval that is later than all others of its step, also if a clock was set back.

    Otherwise an older answer would be taken for the answer to this question, which would be asked
    again and again.
    """
    before = approval_of_step(session, approval.job_id, approval.step)
    if before is None or before.created_at < approval.created_at:
        return approval
    return replace(approval, created_at=before.created_at + _LATER)


def _with_makers(session: Session, approval: Approval) -> Approval:
    found = makers_of(session, approval.requester, approval.tenant)
    return replace(approval, makers=frozenset(found))


def _as_shown(session: Session, approval: Approval) -> Approval:
    """Return an approval whose `shown` is what people see: no secrets, accounts as fingerprints.

    The fingerprints are made here, once for all channels, because the store has their key.
    """
    marks = Fingerprints(fingerprint_key(session), approval.tenant)
    plain, seen = read_plain(approval.shown), for_people(approval.shown, marks)
    return approval if seen == plain else replace(approval, shown=write_plain(seen))


def _read(data: str, requesters: str | None) -> Approval:
    """Return a stored approval, with everybody who has asked for its job up to now."""
    found = read_approval(data)
    if requesters is None or requesters == "[]":
        return found
    return replace(found, requesters=found.requesters | _read_names(requesters))


def approval(session: Session, approval_id: str) -> Approval | None:
    """Return an approval; None if there is none."""
    found = session.one("approval", id=approval_id)
    return None if found is None else _read(*found)


def approval_of_step(
    session: Session, job_id: str, step: str, state: ApprovalState | None = None
) -> Approval | None:
    """Return the latest approval of a step, optionally in a given state."""
    wanted = {} if state is None else {"state": state.value}
    found = session.find("approval_of_step", set(wanted), id=job_id, step=step, **wanted)
    return _read(*found[0][:2]) if found else None


def approvals(
    session: Session,
    state: ApprovalState | None = None,
    tenant: str | None = None,
    job: str | None = None,
    limit: int = 100,
    before: tuple[float, str] | None = None,
) -> list[Approval]:
    """Find approvals, the newest first; `before`: behind this time and id."""
    until, last = before or (sys.float_info.max, None)
    wanted = {"state": None if state is None else state.value, "tenant": tenant, "job": job}
    given = {name: value for name, value in {**wanted, "last": last}.items() if value is not None}
    rows = session.find("approvals", set(given), **given, until=until, limit=limit)
    return [_read(*each[:2]) for each in rows]


# Deciding


def vote(
    session: Session, approval_id: str, vote: Vote, use: LinkUse | None = None
) -> Approval | Refusal:
    """Judge a vote, and write it if it counts; either way it is audited.

    The first decision wins. For a link, the code is checked first, and a wrong one is counted;
    a link that has decided is used up in the same transaction.
    """
    old, now = _locked(session, approval_id), session.now()
    if old is None:
        return _NOT_FOUND
    link = None if use is None else _open(session, old, use, now)
    if isinstance(link, Refusal):  # nobody knows who it was
        audit_attempt(session, old.id, vote.channel, link.text)
        return link
    result = decide(old, vote, now)
    if isinstance(result, Refusal):
        why = {"approval": old.id, "channel": vote.channel, "why": result.text}
        _audit(session, old, "approval.refused", vote.person.id, why)
        return result
    if result.action != old.action:
        result = _as_shown(session, result)
    _audit_vote(session, old, result, vote)
    _change(session, old, result)
    if link is not None:
        _change_link(session, used_link(link, now))
    if result.state is not ApprovalState.PENDING:
        _tell(session, result, NoticeKind.DECIDED)
        session.run("wake", id=old.job_id, now=now)
    elif result.action != old.action:
        _tell(session, result, NoticeKind.EDITED, by=vote.person.id)
    return result


def _audit_vote(session: Session, old: Approval, new: Approval, vote: Vote) -> None:
    said = {"approval": old.id, "channel": vote.channel, "reason": vote.reason}
    said["hash"] = new.action.hash
    if len(new.edits) > len(old.edits):
        _audit(session, old, "approval.edited", vote.person.id, said)
    if len(new.decisions) > len(old.decisions):
        _audit(session, old, f"approval.{vote.verdict}", vote.person.id, said)


def delegate(session: Session, approval_id: str, delegation: Delegation) -> Approval | Refusal:
    """Delegate an approver's decision to another person, who is notified; audited."""
    found = session.one("lock_approval", id=approval_id)
    if found is None:
        return _NOT_FOUND
    old, now = _read(*found), session.now()
    by, to = delegation.by, delegation.to.id
    result = delegated(old, delegation, now)
    told = {"approval": old.id, "to": to}
    if isinstance(result, Refusal):
        _audit(session, old, "approval.refused", by.id, {**told, "why": result.text})
        return result
    _audit(session, old, "approval.delegated", by.id, {**told, "reason": delegation.reason})
    _change(session, old, result)
    _tell(session, result, NoticeKind.DELEGATED, to=to)
    return result


def reveal(session: Session, approval_id: str, tenant: str, person: str) -> bool:
    """Record that a person sees the account numbers of an approval; False: there is none."""
    found = approval(session, approval_id)
    if found is None or found.tenant != tenant:
        return False
    told = {"approval": approval_id, "hash": found.action.hash}
    _audit(session, found, "approval.revealed", person, told)
    return True


def audit_attempt(session: Session, approval_id: str, channel: str, why: str) -> None:
    """Audit an attempt that led to no vote."""
    found = approval(session, approval_id)
    if found is not None:
        told = {"approval": approval_id, "channel": channel, "why": why}
        _audit(session, found, "approval.turned_away", "", told)


def withdraw_open(
    session: Session, job_ids: Sequence[str], now: float, step: str | None = None
) -> None:
    """Withdraw the open approvals of jobs, or of one step; the people asked are notified."""
    for found in session.all("open_approvals", ids=session.array(job_ids)):
        old = _read(*found[:2])
        if step is None or is_of_step(old.step, step):
            new = withdraw(old, now)
            _audit(session, old, "approval.withdrawn", "", {"approval": old.id})
            _change(session, old, new)
            _tell(session, new, NoticeKind.DECIDED)


# Time


def due_approvals(session: Session, limit: int) -> list[str]:
    """Return the approvals that are due for a reminder, an escalation, a warning or expiry."""
    rows = session.all("due_approvals", now=session.now(), limit=limit)
    return [each[0] for each in rows]


def tick_approval(session: Session, approval_id: str) -> Approval | None:
    """Do what is due: remind, escalate, warn or expire."""
    old, now = _locked(session, approval_id), session.now()
    if old is None:
        return None
    ticked = tick(old, now)
    if ticked.approval.no == old.no:
        return old
    _change(session, old, ticked.approval)
    for kind in ticked.notices:
        _audit(session, old, kind.value, "", {"approval": old.id})
        _tell(session, ticked.approval, kind)
    if ticked.approval.state is not ApprovalState.PENDING:
        session.run("wake", id=old.job_id, now=now)
    return ticked.approval


# Links


def keep_link(session: Session, link: ApprovalLink) -> None:
    """Insert a link."""
    session.run("put_link", id=link.id, approval_id=link.approval_id, data=_json(link))


def link(session: Session, link_id: str) -> tuple[ApprovalLink, Approval] | None:
    """Return a link with its approval; None if there is none."""
    found = session.one("link", id=link_id)
    return None if found is None else (_read_link(found[0]), _read(*found[1:3]))


def _open(session: Session, approval: Approval, use: LinkUse, now: float) -> ApprovalLink | Refusal:
    """Return the link that a code opens, locked; a wrong code is counted."""
    found = session.one("lock_link", id=use.link_id)
    link = None if found is None else _read_link(found[0])
    if link is None or link.approval_id != approval.id:
        return _NOT_FOUND
    judged = check_code(link, use, now)
    if judged.link != link:
        _change_link(session, judged.link)
    return judged.refusal or link


def _change_link(session: Session, link: ApprovalLink) -> None:
    session.run("change_link", id=link.id, data=_json(link))


def _locked(session: Session, approval_id: str) -> Approval | None:
    """Lock an approval whose change may wake its job, and return it.

    The lease is locked first, as when a job ends: in another order, two transactions would
    deadlock.
    """
    found = approval(session, approval_id)
    if found is None:
        return None
    session.one("lock_lease", id=found.job_id)
    locked = session.one("lock_approval", id=approval_id)
    return None if locked is None else _read(*locked)


def _change(session: Session, old: Approval, new: Approval) -> None:
    given = _row(new)
    names = ("id", "state", "action_hash", "no", "tick_at", "created_at", "data")
    session.run("change_approval", **{name: given[name] for name in names}, seen=old.no)


def _tell(session: Session, approval: Approval, kind: NoticeKind, **data: str) -> None:
    """Insert a notice for every channel by which the approval was asked for."""
    asked = channels_asked(session, approval.id)
    put_notices(session, [_notice(each, approval, kind, data) for each in asked])


def _notice(channel: str, approval: Approval, kind: NoticeKind, data: dict[str, str]) -> Notice:
    return Notice(
        id=digest("notice", approval.id, channel, kind.value, str(approval.no))[:32],
        tenant=approval.tenant,
        kind=kind,
        job_id=approval.job_id,
        channel=channel,
        approval_id=approval.id,
        data=msgspec.json.encode(data),
    )


def _audit(
    session: Session, approval: Approval, kind: str, actor: str, data: dict[str, Any]
) -> None:
    event = {"type": kind, "data": _json(data), "actor": actor}
    session.run("insert_event", id=approval.job_id, at=session.now(), **event)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _row(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "tenant": approval.tenant,
        "job_id": approval.job_id,
        "step": approval.step,
        "state": approval.state.value,
        "action_hash": approval.action.hash,
        "no": approval.no,
        "tick_at": next_tick(approval),
        "created_at": approval.created_at,
        "data": _json(approval),
    }
