"""Who can be told, and who is who: the persons behind accounts of channels."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

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


class Contact(Struct, frozen=True, kw_only=True):
    """A person, and where they can be reached."""

    person: Person
    email: str | None = None
    slack: tuple[str, str] | None = None  # the team and the member: ("T012", "U034")

    @property
    def whole(self) -> Person:
        """The person, with all the names that are known here."""
        names = set(self.person.names)
        if self.email is not None:
            names.add(self.email)
        if self.slack is not None:
            names |= {self.slack[1], "/".join(self.slack)}
        return replace(self.person, names=frozenset(names))


class People:
    """The people who are known. It is asked anew for every vote, so what is revoked is gone."""

    def __init__(self, contacts: Iterable[Contact] = ()) -> None:
        """Take the people.

        Raises:
            DefinitionError: Two of a tenant have the same id, e-mail address or account.
        """
        self.contacts = list(contacts)
        known: dict[tuple[str, str], Contact] = {}
        for each in self.contacts:
            for name in _spellings(each.whole):
                other = known.setdefault((each.person.tenant, name), each)
                if other is not each:
                    text = f"{other.person.id!r} and {each.person.id!r} are both called {name!r}"
                    raise DefinitionError(f"{text}: list a person once, with all their accounts")

    def by_slack(self, team: str, member: str) -> Person | None:
        """Find the person behind an account of Slack."""
        return next((each.whole for each in self.contacts if each.slack == (team, member)), None)

    def by_id(self, tenant: str, name: str) -> Person | None:
        """Find a person of a tenant by any of their names, in any spelling of it."""
        of_tenant = (each.whole for each in self.contacts if each.person.tenant == tenant)
        found = [each for each in of_tenant if spelled(name) in _spellings(each)]
        return found[0] if len(found) == 1 else None

    def of(self, tenant: str) -> list[Person]:
        """List the people of a tenant."""
        return [each.whole for each in self.contacts if each.person.tenant == tenant]

    def asked(self, approval: Approval) -> list[Contact]:
        """List those who may decide about an approval."""
        return [each for each in self.contacts if may_vote(approval, each.whole)]


def _spellings(person: Person) -> set[str]:
    return {spelled(name) for name in (person.id, *person.names)}


# What channels ask of whoever keeps the approvals.


class ApprovalStore(Protocol):
    """Where questions lie and answers are handed in."""

    async def now(self) -> float:
        """Tell the time by which everything expires."""
        ...

    async def approval(self, approval_id: str) -> Approval | None: ...

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        """Judge a vote, and write it if it counts; both are audited.

        The first decision wins: it is written only over the version that it was judged by.
        By a link, the code is judged first, and counted if it is wrong, under a lock;
        a link that has decided is used up in the same transaction.
        """
        ...

    async def keep_link(self, link: ApprovalLink) -> None: ...

    async def link(self, link_id: str) -> ApprovalLink | None: ...

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
        """Audit an attempt that came to no vote: forged, replayed, by nobody we know."""
        ...


class ApprovalChannel(Protocol):
    """A way to tell people something."""

    @property
    def name(self) -> str: ...

    async def recipients(self, notice: Notice, approval: Approval | None) -> Sequence[str]:
        """List whom to tell, in words of the channel's own.

        It is asked once for a notice. Each of them is then delivered to, one at a time,
        and tried again without regard to the others.

        Raises:
            Exception: Whatever happened; it is asked again later. None at all is an error, too.
        """
        ...

    async def deliver(self, notice: Notice, approval: Approval | None, recipient: str) -> str:
        """Deliver to one recipient, at least once.

        Returns:
            A receipt, such as the place of a message that is to be changed later:
            `notice.asked` is that of the question, when its decision is told.

        Raises:
            Exception: Whatever happened; it is tried again.
        """
        ...
