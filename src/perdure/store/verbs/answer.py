"""Answers to requests that carry a key: the same request again gets the same answer.

Whoever serves a request takes its key. Each change that the request makes is noted with the key, in
the transaction of the change, so a request that was interrupted goes on behind what it has done. A
key that was given up may be taken by another: the first taker can then change nothing more.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from perdure.base.errors import IllegalTransition
from perdure.store.statements import Session

KEPT: Final = 24 * 3600.0  # seconds
_GIVEN_UP: Final = 60.0  # seconds without a change, after which another may take a request


class RequestKey(NamedTuple):
    """Whose key it is, and who serves the request."""

    tenant: str
    principal: str
    key: str
    taker: str


class KeyedAnswer(NamedTuple):
    """What is known of a request; without a status, `taker` is at it, and `done` is its work."""

    digest: str  # of the request
    taker: str
    done: list[str]
    status: int | None
    body: str | None
    needs: tuple[str, ...] = ()  # the permissions without which nobody gets it again


def begin_answer(session: Session, key: RequestKey, digest: str) -> KeyedAnswer:
    """Take a key for a request if it is free; return what is known of the request."""
    now, whose = session.now(), key._asdict()
    session.run("forget_answers", before=now - KEPT)
    if not session.run("take_answer", **whose, digest=digest, now=now):
        known = session.one("answer", **_place(key))
        if known is not None and known[0] == digest:  # not compared in SQL: it may be encrypted
            session.run("retake_answer", **whose, now=now, before=now - _GIVEN_UP)
    found = session.one("answer", **_place(key))
    assert found is not None
    digest, taker, done, status, body, needs = found
    return KeyedAnswer(digest, taker, done.split("\n")[:-1], status, body, tuple(needs.split()))


def note_done(session: Session, key: RequestKey, line: str) -> None:
    """Note what a request has changed, in the transaction of the change.

    Raises:
        IllegalTransition: Another has taken the key: the change must not happen.
    """
    if not session.run("note_done", **key._asdict(), line=f"{line}\n", now=session.now()):
        raise IllegalTransition("another request with the same key has taken over: ask again")


def keep_answer(
    session: Session, key: RequestKey, status: int, body: str, needs: Iterable[str] = ()
) -> None:
    """Keep the answer to a request, unless another has taken its key.

    `needs` are the permissions that it took: who lacks one of them does not get it again.
    """
    given = {"status": status, "body": body, "needs": " ".join(sorted(needs))}
    session.run("keep_answer", **key._asdict(), **given)


def give_back_answer(session: Session, key: RequestKey) -> None:
    """Let others take a key without an answer; forget it if nothing was changed."""
    session.run("give_back_answer", **key._asdict())
    session.run("drop_answer", **_place(key))


def _place(key: RequestKey) -> dict[str, str]:
    return {"tenant": key.tenant, "principal": key.principal, "key": key.key}
