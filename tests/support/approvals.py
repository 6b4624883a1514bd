"""The approval that tests ask about, and a store in memory: the pure rules over a dict."""

import asyncio

from msgspec.structs import replace

from perdure.jobs.approval import (
    Action,
    Approval,
    ApprovalLink,
    Edit,
    LinkUse,
    Person,
    Refusal,
    Vote,
    check_code,
    decide,
    used_link,
)
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import RiskLevel
from perdure.notify.people import Contact, People

ACTION = Action(tenant="acme", job_id="job-1", step="pay#1", input=b'{"amount":120}')
ASKED = Approval(
    id="approval-1",
    tenant="acme",
    job_id="job-1",
    step="pay#1",
    action=ACTION,
    title="pay the invoice",
    shown=b'{"amount":120,"to":["kim","lee"]}',
    risk=RiskLevel.MEDIUM,
    reasons=("it is financial",),
    requester="rob",
    created_at=1_800_000_000.0,
)
NOTICE = Notice(
    id="notice-1",
    tenant="acme",
    kind=NoticeKind.ASKED,
    job_id="job-1",
    approval_id="approval-1",
    channel="any",
    due_at=ASKED.created_at,
)
EDITED = replace(
    ASKED,
    action=replace(ACTION, input=b'{"amount":900,"note":"x"}', revision=1),
    shown=b'{"amount":900,"note":"x"}',
    edits=(Edit(person="bob", at=ASKED.created_at, before=b'{"amount":120,"to":["kim"]}'),),
)


class MemoryStore:
    """Keeps everything for one test; `time` is set by the test."""

    def __init__(self, *approvals: Approval) -> None:
        self.approvals = {each.id: each for each in approvals or (ASKED,)}
        self.links: dict[str, ApprovalLink] = {}
        self.refused: list[tuple[str | None, str, str]] = []
        self.time = ASKED.created_at + 1

    async def now(self) -> float:
        return self.time

    async def approval(self, approval_id: str) -> Approval | None:
        return self.approvals.get(approval_id)

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        await asyncio.sleep(0)  # others get their turn, as with a real store
        found = self.approvals.get(approval_id)
        if found is None:
            return Refusal("not found", "there is no such approval")
        if use is not None:
            judged = check_code(self.links[use.link_id], use, self.time)
            self.links[use.link_id] = judged.link
            if judged.refusal is not None:
                self.refused.append((approval_id, vote.channel, judged.refusal.text))
                return judged.refusal
        result = decide(found, vote, self.time)
        if isinstance(result, Refusal):
            self.refused.append((approval_id, vote.channel, result.text))
            return result
        self.approvals[approval_id] = result
        if use is not None:
            self.links[use.link_id] = used_link(self.links[use.link_id], self.time)
        return result

    async def keep_link(self, link: ApprovalLink) -> None:
        self.links[link.id] = link

    async def link(self, link_id: str) -> tuple[ApprovalLink, Approval] | None:
        link = self.links.get(link_id)
        approval = None if link is None else self.approvals.get(link.approval_id)
        return None if link is None or approval is None else (link, approval)

    async def audit_attempt(self, approval_id: str | None, channel: str, why: str) -> None:
        self.refused.append((approval_id, channel, why))

    @property
    def only(self) -> Approval:
        (approval,) = self.approvals.values()
        return approval


def person(id: str, *roles: str, tenant: str = "acme") -> Person:
    return Person(id=id, tenant=tenant, roles=frozenset(roles or {"approver"}))


def staff() -> People:
    """Give the people of these tests: two approvers, the requester, one of another tenant."""
    return People(
        [
            Contact(person=person("ann"), email="ann@example.com", slack=("T1", "U1")),
            Contact(person=person("bob"), email="bob@example.com", slack=("T1", "U2")),
            Contact(person=person("rob"), email="rob@example.com", slack=("T1", "U3")),
            Contact(person=person("eve", tenant="other"), email="eve@example.com"),
            Contact(person=person("vic", "viewer"), email="vic@example.com", slack=("T1", "U5")),
        ]
    )
