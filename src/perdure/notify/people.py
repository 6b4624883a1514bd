"""Who can be told, and who is who: the persons behind accounts of channels."""

from collections.abc import Iterable

from msgspec import Struct

from perdure.jobs.approval import Approval, Person, may_decide


class Contact(Struct, frozen=True, kw_only=True):
    """A person, and where they can be reached."""

    person: Person
    email: str | None = None
    slack: tuple[str, str] | None = None  # the team and the member: ("T012", "U034")


class People:
    """The people who are known. It is asked anew for every vote, so what is revoked is gone."""

    def __init__(self, contacts: Iterable[Contact] = ()) -> None:
        self.contacts = list(contacts)

    def by_slack(self, team: str, member: str) -> Person | None:
        """Find the person behind an account of Slack."""
        return next((each.person for each in self.contacts if each.slack == (team, member)), None)

    def by_id(self, tenant: str, id: str) -> Person | None:
        """Find a person of a tenant."""
        found = (each.person for each in self.contacts)
        return next((each for each in found if (each.tenant, each.id) == (tenant, id)), None)

    def asked(self, approval: Approval) -> list[Contact]:
        """List those who may decide about an approval."""
        return [each for each in self.contacts if _is_asked(approval, each.person)]


def _is_asked(approval: Approval, person: Person) -> bool:
    if person.tenant != approval.tenant or person.is_program:
        return False
    own = approval.terms.four_eyes and person.id == approval.requester
    return not own and may_decide(approval, person)
