"""The ledger of effects: written by the owner of a job, settled by people where in doubt."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.base.errors import IllegalTransition
from perdure.jobs.effect import Choice, Effect, EffectState, settled_by_person
from perdure.jobs.model import Write
from perdure.jobs.outbox import NoticeKind
from perdure.store import rows
from perdure.store.statements import Session
from perdure.store.verbs.approval import ask, withdraw_open
from perdure.store.verbs.outbox import close_alerts, put_notices


def write_effects(
    session: Session, write: Write, effects: Sequence[Mapping[str, Any]], now: float
) -> None:
    """Write the effects, questions and notices of a fenced write."""
    for effect in effects:  # one by one: a line may be there twice
        session.write_effects([effect])
    if write.approvals:
        ask(session, write.approvals)
    if write.notices:
        put_notices(session, write.notices)
    if write.closes_alerts:
        close_alerts(session, write.job_id, NoticeKind.RESOLVED, "the job has ended")
    if write.withdraws:
        step = write.withdraws if isinstance(write.withdraws, str) else None
        withdraw_open(session, [write.job_id], now, step)


def effects(session: Session, job_id: str) -> list[Effect]:
    """Return the ledger of a job in order."""
    return [rows.effect(each) for each in session.all("effects", id=job_id)]


def effect_by_key(session: Session, tenant: str, key: str) -> Effect | None:
    """Return the effect of a key, whichever job of the tenant it belongs to."""
    found = session.one("effect_by_key", tenant=tenant, key=key)
    return None if found is None else rows.effect(found)


def effect_of_business(session: Session, tenant: str, business: str) -> Effect | None:
    """Return the latest effect under a business key, which all jobs of a tenant share."""
    found = session.one("effect_of_business", tenant=tenant, business=business)
    return None if found is None else rows.effect(found)


def open_effects(
    session: Session,
    tenant: str | None = None,
    limit: int = 100,
    after: tuple[float, str, int] | None = None,
    *,
    in_doubt: bool = False,
) -> list[Effect]:
    """Return effects whose outcome is not known, the oldest first.

    Args:
        session: The transaction.
        tenant: Of this tenant; None: of all.
        limit: How many, at most.
        after: Only those behind this one: when it was called, its job, and its number there.
        in_doubt: Only those in doubt, without those under way.
    """
    given: dict[str, Any] = {} if tenant is None else {"tenant": tenant}
    if after is not None:
        given |= dict(zip(("at", "job", "no"), after, strict=True))
    present = {*given, "doubt"} if in_doubt else set(given)
    found = session.find("open_effects", present, **given, limit=limit)
    return [rows.effect(each) for each in found]


def settle(
    session: Session, job_id: str, no: int, choice: Choice, person: str, result: bytes | None
) -> Effect:
    """Record how a person resolved an effect in doubt, and return the effect.

    Raises:
        IllegalTransition: There is no such effect, or it is not in doubt.
    """
    found = next((each for each in effects(session, job_id) if each.no == no), None)
    if found is None:
        raise IllegalTransition(f"job {job_id} has no effect {no}")
    settled = settled_by_person(found, choice, person, session.now(), result)
    if settled.state is not EffectState.INTENT:
        session.run(
            "settle_effect",
            id=job_id,
            tenant=settled.tenant,
            key=settled.key,
            state=settled.state.value,
            result=rows.text(settled.result),
            proof=settled.proof,
            ended_at=settled.ended_at,
        )
    return settled
