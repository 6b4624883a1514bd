"""Credentials as they are stored: the hashes of tokens, cookies and links, never the secrets."""

from typing import Final

from msgspec import Struct

# Not every request is written down: what is known of the last one is exact to this many seconds.
EXACT_TO: Final = 60.0


class TokenRow(Struct, frozen=True, kw_only=True):
    """A token of a program or a person; `data` says what it may do."""

    id: str
    hash: str
    data: str
    principal: str  # who is let in by it
    created_by: str
    # Who made it, who made the token of its maker, and so on: recorded when it is made, since later
    # the tokens in between may be gone.
    makers: tuple[str, ...] = ()
    tenant: str | None = None  # None: all tenants
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None

    def is_valid(self, now: float) -> bool:
        """Whether it still opens something."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class SessionRow(Struct, frozen=True, kw_only=True):
    """Somebody who is signed in with a browser; `data` says who, and what they may do."""

    hash: str
    person: str
    data: str
    tenant: str | None = None  # None: all tenants
    token_id: str | None = None  # by which they have signed in
    created_at: float = 0.0
    seen_at: float = 0.0
    expires_at: float = 0.0
