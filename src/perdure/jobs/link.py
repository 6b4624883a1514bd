"""A link by which one person may decide about one approval, once; pure.

Only a hash of the link's token is stored. The token alone decides nothing: programs follow links,
and some press buttons. A person also types the code that stands in the message beside the link.
"""

import hmac
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import digest
from perdure.jobs.approval import Approval, Refusal

MOST_WRONG: Final = 5  # codes; then the link is dead
CODE_DIGITS: Final = 8


class Link(Struct, frozen=True, kw_only=True):
    """What is stored of a link.

    Attributes:
        id: The hash of its token.
        tenant: The tenant of the approval.
        approval_id: The approval that it is about.
        person: Who may use it.
        action_hash: The action that its holder was told of.
        code_hash: The hash of the code, which cannot be found out without the token.
        expires_at: When it is over.
        wrong: How often a wrong code was typed.
        used_at: When it was used.
    """

    id: str
    tenant: str
    approval_id: str
    person: str
    action_hash: str
    code_hash: str
    expires_at: float
    wrong: int = 0
    used_at: float | None = None


def link_id(token: str) -> str:
    """Give the name under which the link of a token is stored."""
    return digest("link", token)


def code_hash(token: str, code: str) -> str:
    """Give what is stored of a code."""
    return digest("code", token, "".join(code.split()))


def new_link(approval: Approval, person: str, token: str, code: str, expires_at: float) -> Link:
    """Make a link for a person, not longer alive than the approval."""
    last = expires_at if approval.expires_at is None else min(expires_at, approval.expires_at)
    return Link(
        id=link_id(token),
        tenant=approval.tenant,
        approval_id=approval.id,
        person=person,
        action_hash=approval.action.hash,
        code_hash=code_hash(token, code),
        expires_at=last,
    )


def dead(link: Link, now: float) -> Refusal | None:
    """Tell why a link is of no use any more; None: it is."""
    if link.used_at is not None:
        return Refusal("decided", "this link was used already")
    if now >= link.expires_at:
        return Refusal("expired", "the time of this link is over")
    if link.wrong >= MOST_WRONG:
        return Refusal("not allowed", "too many wrong codes were typed: this link is dead")
    return None


class LinkUse(Struct, frozen=True, kw_only=True):
    """What somebody shows to decide by a link: the hashes of its token and of the code."""

    link_id: str
    code_hash: str


def use_of(token: str, code: str) -> LinkUse:
    """Make what a token and a typed code come to."""
    return LinkUse(link_id=link_id(token), code_hash=code_hash(token, code))


class Judged(Struct, frozen=True):
    """A link after a code was typed, and why that is refused; None: the code is right."""

    link: Link
    refusal: Refusal | None = None


def judge(link: Link, use: LinkUse, now: float) -> Judged:
    """Judge a code; a right one changes nothing, a wrong one is counted.

    The link must be locked until it is written: of many codes at once, each counts.
    A dead link answers every code alike, and so does the wrong code that kills it.
    """
    if (refusal := dead(link, now)) is not None:
        return Judged(link, refusal)
    if hmac.compare_digest(link.code_hash, use.code_hash):
        return Judged(link)
    counted = replace(link, wrong=link.wrong + 1)
    wrong = Refusal("wrong code", "this is not the code of the message")
    return Judged(counted, dead(counted, now) or wrong)


def used(link: Link, now: float) -> Link:
    """Give the link as one that has done its work."""
    return replace(link, used_at=now)
