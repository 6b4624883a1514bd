"""Answers to requests that carry a key: the same request again gets the same answer."""

from typing import Final, NamedTuple

from perdure.store.statements import Session

KEPT: Final = 24 * 3600.0  # seconds
_GIVEN_UP: Final = 60.0  # seconds after which a request without an answer may begin again


class RequestKey(NamedTuple):
    """Whose key it is."""

    tenant: str
    principal: str
    key: str


class KnownAnswer(NamedTuple):
    """What was answered before; without a status, the request is still under way."""

    digest: str  # of the request
    status: int | None
    body: str | None


def begin_answer(session: Session, key: RequestKey, digest: str) -> KnownAnswer | None:
    """Take a key for a request; return what is known of it if it was taken before."""
    now, whose = session.now(), key._asdict()
    session.run("forget_answers", before=now - KEPT)
    if session.run("take_answer", **whose, digest=digest, now=now):
        return None
    if session.run("retake_answer", **whose, digest=digest, now=now, before=now - _GIVEN_UP):
        return None
    found = session.one("answer", **whose)
    return None if found is None else KnownAnswer(*found)


def keep_answer(session: Session, key: RequestKey, status: int, body: str) -> None:
    """Keep the answer to a request, for those who send it again."""
    session.run("keep_answer", **key._asdict(), status=status, body=body)


def drop_answer(session: Session, key: RequestKey) -> None:
    """Forget a request that has no answer, so that it may be sent again."""
    session.run("drop_answer", **key._asdict())
