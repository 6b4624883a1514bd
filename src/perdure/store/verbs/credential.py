"""Tokens, sessions of browsers, and links that sign in once."""

import msgspec
from msgspec.structs import replace

from perdure.jobs.credential import EXACT_TO, SessionRow, TokenRow
from perdure.store.statements import Row, Session

# Tokens


def add_token(session: Session, token: TokenRow, lifetime: float | None) -> TokenRow:
    """Insert a token that expires after some seconds, or never; return it as it is stored."""
    now = session.now()
    made = replace(token, created_at=now, expires_at=None if lifetime is None else now + lifetime)
    session.run(
        "insert_token",
        id=made.id,
        hash=made.hash,
        tenant=made.tenant,
        principal=made.principal,
        created_by=made.created_by,
        makers=msgspec.json.encode(made.makers).decode(),
        created_at=made.created_at,
        expires_at=made.expires_at,
        data=made.data,
    )
    return made


def token_by_hash(session: Session, hash: str) -> tuple[TokenRow, float] | None:  # noqa: A002  its name
    """Return the token of a hash, and the current time; None if there is none."""
    (found,) = session.together(("token_by_hash", {"hash": hash}))
    return (_token(found[0]), session.now()) if found else None


def tokens(session: Session, tenant: str | None = None) -> list[TokenRow]:
    """Return tokens, newest first: of one tenant, or all."""
    given = {} if tenant is None else {"tenant": tenant}
    return [_token(each) for each in session.find("api_tokens", set(given), **given)]


def revoke_token(session: Session, token_id: str, tenant: str | None = None) -> bool:
    """Revoke a token, and end the sessions that began with it; False if there is none to revoke."""
    found = session.one("token", id=token_id)
    if found is None or (tenant is not None and _token(found).tenant != tenant):
        return False
    session.run("delete_sessions_of_token", id=token_id)
    return bool(session.run("revoke_token", id=token_id, now=session.now()))


def use_token(session: Session, token_id: str) -> None:
    """Note that a token was used."""
    now = session.now()
    session.run("use_token", id=token_id, now=now, before=now - EXACT_TO)


def _token(row: Row) -> TokenRow:
    return TokenRow(
        id=row[0],
        hash=row[1],
        tenant=row[2],
        principal=row[3],
        created_by=row[4],
        created_at=row[5],
        expires_at=row[6],
        revoked_at=row[7],
        last_used_at=row[8],
        data=row[9],
        makers=msgspec.json.decode(row[10], type=tuple[str, ...]),
    )


# Sessions


def open_session(
    session: Session, row: SessionRow, lifetime: float, replaces: str | None = None
) -> None:
    """Insert a session; the one that it replaces, and those that have expired, are deleted."""
    now = session.now()
    session.run("delete_old_sessions", now=now)
    if replaces is not None:
        session.run("delete_session", hash=replaces)
    session.run(
        "insert_session",
        hash=row.hash,
        tenant=row.tenant,
        person=row.person,
        token_id=row.token_id,
        now=now,
        expires_at=now + lifetime,
        data=row.data,
    )


def session_by_hash(session: Session, hash: str) -> tuple[SessionRow, float] | None:  # noqa: A002
    """Return the session of a hash, and the current time.

    None if there is none, or if the token that it began with is revoked or has expired.
    """
    (rows,) = session.together(("session_by_hash", {"hash": hash}))
    if not rows:
        return None
    found, now = rows[0], session.now()
    row = SessionRow(
        hash=found[0],
        tenant=found[1],
        person=found[2],
        token_id=found[3],
        created_at=found[4],
        seen_at=found[5],
        expires_at=found[6],
        data=found[7],
    )
    if row.token_id is not None:
        token = session.one("token", id=row.token_id)
        if token is None or not _token(token).is_valid(now):
            return None
    return row, now


def see_session(session: Session, hash: str) -> None:  # noqa: A002
    """Note that somebody who is signed in has done something."""
    now = session.now()
    session.run("see_session", hash=hash, now=now, before=now - EXACT_TO)


def end_session(session: Session, hash: str) -> bool:  # noqa: A002
    """Sign somebody out; False if they were not signed in."""
    return bool(session.run("delete_session", hash=hash))


def end_sessions(session: Session, person: str, tenant: str | None) -> int:
    """Sign a person of a tenant out everywhere; return how many sessions they had.

    The same id in another tenant, or in none, is another person.
    """
    return session.run("delete_sessions_of_person", person=person, tenant=tenant)


# Links


def add_sign_in_link(session: Session, hash: str, data: str, lifetime: float) -> None:  # noqa: A002
    """Insert a link that signs somebody in once; those that have expired are deleted."""
    now = session.now()
    session.run("delete_old_sign_in_links", now=now)
    session.run("insert_sign_in_link", hash=hash, expires_at=now + lifetime, data=data)


def take_sign_in_link(session: Session, hash: str) -> str | None:  # noqa: A002
    """Use up a link, and return whom it signs in; None if it is unknown, used or expired."""
    found = session.one("take_sign_in_link", hash=hash)
    if found is None or found[0] <= session.now():
        return None
    return found[1]
