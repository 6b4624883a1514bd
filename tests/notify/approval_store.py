"""A store in memory: the pure rules, with nothing under them but a dict."""

import asyncio

from perdure.jobs.approval import (
    Approval,
    ApprovalLink,
    LinkUse,
    Person,
    Refusal,
    Vote,
    check_code,
    decide,
    used_link,
)
from perdure.notify.people import Contact, People
from tests.notify.question import ASKED


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

    async def link(self, link_id: str) -> ApprovalLink | None:
        return self.links.get(link_id)

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
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
