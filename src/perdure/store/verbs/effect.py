"""The ledger of effects: kept by the owner of a job, settled by people where it is in doubt."""

from typing import Any

import msgspec

from perdure.base.errors import IllegalTransition
from perdure.jobs.effect import Choice, Effect, EffectState, Place, UndoCall, settled_by_person
from perdure.jobs.model import Write
from perdure.store import rows
from perdure.store.statements import Row, Session
from perdure.store.verbs.approval import ask, withdraw_open
from perdure.store.verbs.outbox import put_notices

_STAYS = "null"  # an undo that is none on purpose


def keep_effects(session: Session, write: Write, now: float) -> None:
    """Write effects, questions and notices of a job's owner."""
    for effect in write.effects:
        session.keep([line_row(write, effect)])
    if write.approvals:
        ask(session, write.approvals)
    if write.notices:
        put_notices(session, write.notices)
    if write.withdraws:
        withdraw_open(session, [write.job_id], now)


def effects(session: Session, job_id: str) -> list[Effect]:
    """Read the ledger of a job in order."""
    return [_effect(each) for each in session.all("effects", id=job_id)]


def effect_by_key(session: Session, tenant: str, key: str) -> Effect | None:
    """Find the effect of a key, whichever job of the tenant it belongs to."""
    found = session.one("effect_by_key", tenant=tenant, key=key)
    return None if found is None else _effect(found)


def effect_of_business(session: Session, tenant: str, business: str) -> Effect | None:
    """Find the latest generation of what all jobs of a tenant do only once."""
    found = session.one("effect_of_business", tenant=tenant, business=business)
    return None if found is None else _effect(found)


def open_effects(session: Session, tenant: str | None, limit: int) -> list[Effect]:
    """List what is not settled, the oldest first."""
    given = {} if tenant is None else {"tenant": tenant}
    rows = session.find("open_effects", set(given), **given, limit=limit)
    return [_effect(each) for each in rows]


def settle(
    session: Session, job_id: str, no: int, choice: Choice, person: str, result: bytes | None
) -> Effect:
    """Write what a person says became of an effect.

    Raises:
        IllegalTransition: There is no such effect, or nothing about it is in doubt.
    """
    found = next((each for each in effects(session, job_id) if each.no == no), None)
    if found is None:
        raise IllegalTransition(f"job {job_id} has no effect {no}")
    settled = settled_by_person(found, choice, person, session.now(), result)
    if settled.state is not EffectState.INTENT:
        session.run(
            "settle_effect",
            tenant=settled.tenant,
            key=settled.key,
            state=settled.state.value,
            result=rows.text(settled.result),
            proof=settled.proof,
            ended_at=settled.ended_at,
        )
    return settled


def line_row(write: Write, effect: Effect) -> dict[str, Any]:
    """Give a line of the ledger by the names of its columns, with owner and epoch."""
    return {
        "id": effect.job_id,
        "tenant": effect.tenant,
        "key": effect.key,
        "step": effect.place.step,
        "part": effect.place.part,
        "ordinal": effect.place.ordinal,
        "generation": effect.generation,
        "kind": effect.kind,
        "target": effect.target,
        "state": effect.state.value,
        "in_doubt": effect.in_doubt,
        "key_ttl": effect.key_ttl,
        "details": rows.text(effect.details),
        "result": rows.text(effect.result),
        "problem": effect.problem,
        "error": rows.text(effect.error),
        "undo": _spelled_undo(effect),
        "proof": effect.proof,
        "called_at": effect.called_at,
        "ended_at": effect.ended_at,
        "business": effect.business,
        "kept_until": effect.kept_until,
        "last_called_at": effect.last_called_at,
        "owner": write.owner,
        "epoch": write.epoch,
    }


def _spelled_undo(effect: Effect) -> str | None:
    if effect.undo is None:
        return _STAYS if effect.stays else None
    return msgspec.json.encode(effect.undo).decode()


def _effect(found: Row) -> Effect:
    return Effect(
        job_id=found[0],
        no=found[1],
        tenant=found[2],
        key=found[3],
        place=Place(found[4], found[6], found[5]),
        generation=found[7],
        kind=found[8],
        target=found[9],
        state=EffectState(found[10]),
        in_doubt=found[11],
        key_ttl=found[12],
        details=rows.payload(found[13]),
        result=rows.payload(found[14]),
        problem=found[15],
        error=rows.payload(found[16]),
        undo=None if found[17] is None else msgspec.json.decode(found[17], type=UndoCall | None),
        stays=found[17] == _STAYS,
        proof=found[18],
        called_at=found[19],
        ended_at=found[20],
        business=found[21],
        kept_until=found[22],
        last_called_at=found[23],
    )
