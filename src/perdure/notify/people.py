"""Who is who: the people behind accounts, and the protocols of channels and of the approval store.

A person may act by mail today and in Slack tomorrow. The four-eyes rule holds only if both are
known to be the same person, so every account is listed with its person, once.
"""

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from perdure.base.checked import Checked
from perdure.base.errors import DefinitionError
from perdure.jobs.approval import (
    Approval,
    ApprovalLink,
    LinkUse,
    Person,
    Refusal,
    Vote,
    may_vote,
    spelled,
)
from perdure.jobs.outbox import Notice


class Contact(Checked, frozen=True, kw_only=True):
    """A person, and how to reach them."""

    person: Person
    email: str | None = None
    slack: tuple[str, str] | None = None  # the team and the member: ("T012", "U034")

    @property
    def with_accounts(self) -> Person:
        """The person, with the accounts among their names."""
        names = set(self.person.names)
        if self.email is not None:
            names.add(self.email)
        if self.slack is not None:
            names |= {self.slack[1], "/".join(self.slack)}
        return replace(self.person, names=frozenset(names))


class People:
    """The people of an app; looked up for every vote, so that a revoked role is gone at once."""

    def __init__(self, contacts: Iterable[Contact] = ()) -> None:
        """Take the people.

        Raises:
            DefinitionError: Two of a tenant have the same id, e-mail address or account.
        """
        self.contacts = list(contacts)
        known: dict[tuple[str, str], Contact] = {}
        for each in self.contacts:
            for name in _spellings(each.with_accounts):
                other = known.setdefault((each.person.tenant, name), each)
                if other is not each:
                    text = f"{other.person.id!r} and {each.person.id!r} are both called {name!r}"
                    raise DefinitionError(f"{text}: list a person once, with all their accounts")

    def by_slack(self, team: str, member: str) -> Person | None:
        """Return the person behind a Slack account; None if it is nobody's."""
        found = (each for each in self.contacts if each.slack == (team, member))
        return next((each.with_accounts for each in found), None)

    def by_id(self, tenant: str, name: str) -> Person | None:
        """Return the person of a tenant who has this name, in any spelling; None if it is nobody's.

        None also if several people have it, which can happen if contacts were added by hand.
        """
        wanted = spelled(name)
        found = [each for each in self.of(tenant) if wanted in _spellings(each)]
        return found[0] if len(found) == 1 else None

    def of(self, tenant: str) -> list[Person]:
        """Return the people of a tenant."""
        return [each.with_accounts for each in self.contacts if each.person.tenant == tenant]

    def asked(self, approval: Approval) -> list[Contact]:
        """Return the people who may decide about an approval."""
        return [each for each in self.contacts if may_vote(approval, each.with_accounts)]


def _spellings(person: Person) -> set[str]:
    return {spelled(name) for name in (person.id, *person.names)}


class ApprovalStore(Protocol):
    """Where channels find approvals and submit votes."""

    def now(self) -> Coroutine[Any, Any, float]:
        """Return the time of the clock by which everything expires."""
        ...

    def approval(self, approval_id: str) -> Coroutine[Any, Any, Approval | None]: ...

    def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Coroutine[Any, Any, Approval | Refusal]:
        """Judge a vote, and write it if it counts; it is audited in either case.

        The first decision wins: it is written only over the version that it was judged by. A vote
        by a link is judged by its code first, and a wrong code is counted under a lock; a link that
        has decided is used up in the same transaction.
        """
        ...

    def keep_link(self, link: ApprovalLink) -> Coroutine[Any, Any, None]: ...

    def link(self, link_id: str) -> Coroutine[Any, Any, tuple[ApprovalLink, Approval] | None]:
        """Return a link with its approval, in one query."""
        ...

    def audit_attempt(
        self, approval_id: str | None, channel: str, why: str
    ) -> Coroutine[Any, Any, None]:
        """Audit an attempt that led to no vote: forged, replayed, or by an unknown person."""
        ...


class ApprovalChannel(Protocol):
    """A way to send people something."""

    @property
    def name(self) -> str: ...

    async def recipients(self, notice: Notice, approval: Approval | None) -> Sequence[str]:
        """Return the recipients of a notice, as strings that only the channel interprets.

        This is called once for a notice. Each recipient then has a delivery of its own, which is
        retried independently of the others.

        Raises:
            Exception: Anything; it is called again later. No recipients at all count as an error.
        """
        ...

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        """Deliver to one recipient, at least once.

        Returns:
            A receipt, such as the place of a message that is to be changed later: `notice.asked` is
            the receipt of the question when its decision is delivered.

        Raises:
            Exception: Anything; the delivery is retried.
        """
        ...
