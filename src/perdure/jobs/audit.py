"""The audit log: who changed what over HTTP, in one chain of hashes for each tenant; pure.

An entry is a line of canonical JSON that holds the hash of the entry before it, and its own hash is
that of this line. Whoever changes, removes, adds or exchanges an entry, and does not write every
later one again, breaks the chain, and `AuditCheck` names the first entry that does not fit. Against
somebody who writes the whole rest of a chain again, or cuts off its end, only a head that was noted
elsewhere helps: see `expect`.

The tenant "" is the installation: what its operators do that belongs to no tenant.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct

INSTALLATION: Final = ""  # no tenant is called so: tokens, principals and jobs refuse it
FIRST: Final = "0" * 64  # what the first entry of a chain has before it
LOWEST: Final = -(2**63)  # that a database can store: a check leaves no row out
LONGEST_TEXT: Final = 2000


def chain_of(tenant: str | None) -> str:
    """Return whose chain it is: that of a tenant, or of the installation if there is none."""
    return INSTALLATION if tenant is None else tenant


class AuditDraft(Struct, frozen=True, kw_only=True):
    """What happened, before it has its place in a chain.

    Attributes:
        actor: The id of the principal.
        kind: "person" or "service"; "" if nobody is known.
        action: What was done: "jobs.cancel", "sign_in", "tokens.create", …
        tenant: Whose chain it belongs to; None: the chain of the tenant of the job `target`.
        target: What it was done to, by id or name.
        data: More about it; never a secret, and never a payload.
        address: Where the request came from.
        credential: The id of the token or session by which they were known.
    """

    actor: str
    action: str
    tenant: str | None = None
    kind: str = ""
    target: str = ""
    data: dict[str, Any] = {}
    address: str = ""
    credential: str = ""


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One entry of a chain; `before` is the hash of the entry before it."""

    tenant: str
    no: int
    at: float
    actor: str
    action: str
    kind: str = ""
    target: str = ""
    data: dict[str, Any] = {}
    address: str = ""
    credential: str = ""
    before: str = FIRST

    def line(self) -> str:
        """Return the entry as canonical JSON: the same text for the same entry."""
        return msgspec.json.encode(self, order="sorted").decode()


class AuditRow(Struct, frozen=True):
    """An entry as it is stored: its place, its line, and the hash of the line."""

    tenant: str
    no: int
    line: str
    hash: str

    @property
    def entry(self) -> AuditEntry:
        """The entry that the line holds."""
        return msgspec.json.decode(self.line, type=AuditEntry)


def hash_of(line: str) -> str:
    """Return the hash of the line of an entry."""
    return sha256(line.encode()).hexdigest()


def chained(draft: AuditDraft, tenant: str, head: tuple[int, str] | None, at: float) -> AuditRow:
    """Return the next row of a chain.

    Args:
        draft: What happened.
        tenant: Whose chain it is.
        head: Number and hash of its last entry; None: it has none.
        at: The current time.
    """
    no, before = head or (0, FIRST)
    entry = AuditEntry(
        tenant=tenant,
        no=no + 1,
        at=at,
        actor=_short(draft.actor),
        action=draft.action,
        kind=draft.kind,
        target=_short(draft.target),
        data={name: _short(each) for name, each in draft.data.items()},
        address=_short(draft.address),
        credential=draft.credential,
        before=before,
    )
    line = entry.line()
    return AuditRow(tenant, entry.no, line, hash_of(line))


def _short(value: Any) -> Any:
    """Return a text without what no database takes, and cut to a length that fits a log."""
    if not isinstance(value, str):
        return value
    clean = value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return clean if len(clean) <= LONGEST_TEXT else f"{clean[:LONGEST_TEXT]}…"


class Broken(Struct, frozen=True, kw_only=True):
    """The first entry of a chain that does not fit, and why."""

    tenant: str
    no: int
    why: str


class AuditHead(Struct, frozen=True, kw_only=True):
    """The last entry of a chain. Noted elsewhere, it proves later that nothing before changed."""

    tenant: str
    no: int
    hash: str


class AuditReport(Struct, frozen=True, kw_only=True):
    """What a check of chains has found: `broken` is the first entry of each that does not fit."""

    entries: int
    heads: list[AuditHead]
    broken: list[Broken]

    @property
    def ok(self) -> bool:
        """Whether every chain is whole."""
        return not self.broken


class AuditCheck:
    """Checks one chain, row by row in order, without keeping it."""

    def __init__(self, tenant: str, expect: tuple[int, str] | None = None) -> None:
        """Begin at the first entry.

        Args:
            tenant: Whose chain it is.
            expect: Number and hash of an entry that was noted elsewhere.
        """
        self.tenant = tenant
        self.count = 0
        self.hash = FIRST
        self.broken: Broken | None = None
        self._expect = expect

    def add(self, rows: Iterable[AuditRow]) -> None:
        """Check the next rows; after the first that does not fit, nothing is checked any more."""
        for row in rows:
            if self.broken is not None:
                return
            why = self._why_broken(row)
            if why is not None:
                self._break(self.count + 1, why)
                return
            self.count, self.hash = row.no, row.hash

    def end(self) -> None:
        """Note that there are no more rows."""
        if self.broken is None and self._expect is not None and self._expect[0] > self.count:
            self._break(self.count + 1, f"the chain ends before entry {self._expect[0]}")

    def _break(self, no: int, why: str) -> None:
        self.broken = Broken(tenant=self.tenant, no=no, why=why)

    def _why_broken(self, row: AuditRow) -> str | None:
        if row.no < 1:
            return f"entry {row.no} is there: a chain begins with entry 1"
        if row.no != self.count + 1:
            return f"entry {self.count + 1} is missing: entry {row.no} follows"
        if hash_of(row.line) != row.hash:
            return "its text was changed: the hash is of another one"
        if self._expect is not None and self._expect[0] == row.no and self._expect[1] != row.hash:
            return "it is not the entry that was noted elsewhere"
        return self._why_out_of_place(row)

    def _why_out_of_place(self, row: AuditRow) -> str | None:
        try:
            entry = row.entry
        except msgspec.MsgspecError:
            return "it cannot be read"
        if (entry.tenant, entry.no) != (row.tenant, row.no):
            return f"it was moved here: it is entry {entry.no} of tenant {entry.tenant!r}"
        if entry.before != self.hash:
            return "it does not continue the entry before it"
        return None
