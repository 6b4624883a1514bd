"""Who asks over HTTP, and what they may do: roles, permissions, and the table between them.

Deny by default: a principal may do what one of its roles names in `GRANTED`, and nothing else. No
role implies another. An operator runs jobs and never decides approvals; an approver decides and
never touches jobs; an admin looks after the fleet, tokens and the audit log, and decides no more
than an operator does. A service account is a program: whatever its roles, it decides nothing.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

from perdure.base.errors import AccessDenied
from perdure.jobs.approval import spelled


class Role(StrEnum):
    """A set of permissions that a principal is given as a whole."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"
    SERVICE = "service"


class Permission(StrEnum):
    """What a route asks for."""

    JOBS_READ = "jobs.read"
    JOBS_SUBMIT = "jobs.submit"
    JOBS_CANCEL = "jobs.cancel"
    JOBS_PAUSE = "jobs.pause"
    JOBS_RESUME = "jobs.resume"
    JOBS_RETRY = "jobs.retry"
    JOBS_SKIP = "jobs.skip"
    JOBS_COMPENSATE = "jobs.compensate"
    JOBS_ABANDON = "jobs.abandon"
    JOBS_SEND = "jobs.send"
    JOBS_FORK = "jobs.fork"
    JOBS_EDIT = "jobs.edit"  # other arguments for a fork; needed beside JOBS_FORK
    JOBS_EXPORT = "jobs.export"
    APPROVALS_READ = "approvals.read"
    APPROVALS_DECIDE = "approvals.decide"
    APPROVALS_EDIT = (
        "approvals.edit"  # approve with other arguments; needed beside APPROVALS_DECIDE
    )
    APPROVALS_REVEAL = "approvals.reveal"  # see account numbers whole; each time is audited
    EFFECTS_READ = "effects.read"
    EFFECTS_RESOLVE = "effects.resolve"
    WORKERS_READ = "workers.read"
    WORKERS_DRAIN = "workers.drain"
    PROCESSES_READ = "processes.read"
    PROCESSES_KILL = "processes.kill"
    QUEUES_READ = "queues.read"
    QUEUES_PAUSE = "queues.pause"
    SCHEDULES_READ = "schedules.read"
    SCHEDULES_WRITE = "schedules.write"
    METRICS_READ = "metrics.read"
    VIEWS_WRITE = "views.write"
    AUDIT_READ = "audit.read"
    TOKENS_MANAGE = "tokens.manage"


_READ: Final = frozenset(
    {
        Permission.JOBS_READ,
        Permission.APPROVALS_READ,
        Permission.EFFECTS_READ,
        Permission.WORKERS_READ,
        Permission.PROCESSES_READ,
        Permission.QUEUES_READ,
        Permission.SCHEDULES_READ,
        Permission.METRICS_READ,
    }
)
_OPERATE: Final = _READ | {
    Permission.JOBS_SUBMIT,
    Permission.JOBS_CANCEL,
    Permission.JOBS_PAUSE,
    Permission.JOBS_RESUME,
    Permission.JOBS_RETRY,
    Permission.JOBS_SKIP,
    Permission.JOBS_COMPENSATE,
    Permission.JOBS_ABANDON,
    Permission.JOBS_SEND,
    Permission.JOBS_FORK,
    Permission.JOBS_EDIT,
    Permission.JOBS_EXPORT,
    Permission.EFFECTS_RESOLVE,
    Permission.SCHEDULES_WRITE,
    Permission.VIEWS_WRITE,
}

GRANTED: Final[Mapping[Role, frozenset[Permission]]] = MappingProxyType(
    {
        Role.VIEWER: _READ,
        Role.OPERATOR: _OPERATE,
        Role.APPROVER: frozenset(
            {
                Permission.JOBS_READ,
                Permission.EFFECTS_READ,
                Permission.APPROVALS_READ,
                Permission.APPROVALS_DECIDE,
                Permission.APPROVALS_EDIT,
                Permission.APPROVALS_REVEAL,
            }
        ),
        Role.ADMIN: _OPERATE
        | {
            Permission.WORKERS_DRAIN,
            Permission.PROCESSES_KILL,
            Permission.QUEUES_PAUSE,
            Permission.AUDIT_READ,
            Permission.TOKENS_MANAGE,
        },
        Role.SERVICE: frozenset(
            {
                Permission.JOBS_READ,
                Permission.JOBS_SUBMIT,
                Permission.JOBS_CANCEL,
                Permission.JOBS_SEND,
                Permission.METRICS_READ,
            }
        ),
    }
)

# Who has the store itself, at its machine. What they make is not theirs alone to use: otherwise all
# whose tokens come from there would be one pair of eyes.
LOCAL: Final = "local"
COMMAND_LINE: Final = " (command line)"


def has_the_store(id: str) -> bool:
    """Whether this is who uses the command line, or the link that it prints."""
    return id == LOCAL or id.endswith(COMMAND_LINE)


# Only people decide, and see what they decide about, whatever a service account's roles say.
PEOPLE_ONLY: Final = frozenset(
    {Permission.APPROVALS_DECIDE, Permission.APPROVALS_EDIT, Permission.APPROVALS_REVEAL}
)

# Workers, their processes and queues serve all tenants: a principal of one never commands them.
FLEET_ONLY: Final = frozenset(
    {
        Permission.WORKERS_DRAIN,
        Permission.PROCESSES_READ,
        Permission.PROCESSES_KILL,
        Permission.QUEUES_PAUSE,
    }
)


class Principal(Struct, frozen=True, kw_only=True):
    """Who asks, as their credential says.

    Attributes:
        id: Their id; of a person, the id in the app's policy, so that they can decide approvals.
        name: How to show them; the id where it is empty.
        kind: "person", or "service" for a program.
        tenant: The one tenant that they see. None is all tenants: whoever runs it all.
        roles: What they may do; see `GRANTED`.
        scopes: The permissions that their token is limited to; None is no limit.
        signed_in_at: When a person last proved who they are, in seconds; None with a token.
        makers: Who made their token, who made the token of that maker, and so on.
        credential: The id of their token or session, for the audit log.
        address: Where their request came from, for the audit log.
    """

    id: str
    name: str = ""
    kind: Literal["person", "service"] = "person"
    tenant: str | None
    roles: frozenset[Role]
    scopes: frozenset[Permission] | None = None
    signed_in_at: float | None = None
    makers: frozenset[str] = frozenset()
    credential: str = ""
    address: str = ""

    @property
    def is_somebody(self) -> bool:
        """Whether they have an id, and a tenant with a name, or none at all (None).

        A claim or a setting that is missing often becomes "", which names nobody and no tenant.
        """
        return bool(spelled(self.id)) and (self.tenant is None or bool(spelled(self.tenant)))

    def may(self, permission: Permission) -> bool:
        """Whether a role grants this, and neither scope, kind nor tenant takes it away."""
        if not self.is_somebody or (self.scopes is not None and permission not in self.scopes):
            return False
        if self.kind == "service" and permission in PEOPLE_ONLY:
            return False
        if self.tenant is not None and permission in FLEET_ONLY:
            return False
        return any(permission in GRANTED[role] for role in self.roles)

    @property
    def permissions(self) -> frozenset[Permission]:
        """All that they may do."""
        return frozenset(each for each in Permission if self.may(each))


def check_somebody(principal: Principal) -> None:
    """Refuse a principal without an id, or of a tenant without a name.

    Raises:
        AccessDenied: It is one.
    """
    if not principal.is_somebody:
        text = "a principal needs an id, and a tenant with a name, or none at all"
        raise AccessDenied("forbidden", text)
