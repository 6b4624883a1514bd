"""Commands of people to jobs: checked against the table of transitions, and always audited."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast, get_args

from msgspec.structs import replace

from perdure.base.errors import IllegalTransition, JobNotFound
from perdure.jobs.approval import Approval, LinkUse, Refusal, Vote
from perdure.jobs.bulk import BulkResult
from perdure.jobs.effect import Choice
from perdure.jobs.failure import Failure
from perdure.jobs.fleet import kind_of
from perdure.jobs.items import leave_next_out
from perdure.jobs.model import Command, EntryKind, JobEvent
from perdure.jobs.on_failure import UNDO_QUESTION, begins_undo
from perdure.jobs.outbox import NoticeKind, alert_key
from perdure.jobs.state import ENDED, LIVE, STEP_TRANSITIONS, JobState, StepState, check_job
from perdure.store import rows
from perdure.store.statements import Session
from perdure.store.verbs.approval import vote as count_vote
from perdure.store.verbs.approval import withdraw_open
from perdure.store.verbs.effect import effects, settle
from perdure.store.verbs.outbox import close_alerts
from perdure.store.verbs.requester import add_requesters
from perdure.store.verbs.submit import take_turns
from perdure.store.verbs.write import end_jobs

_S = JobState
_CHOICES = get_args(Choice)
# If the undo of such a job has begun, its code is over: it can only continue to undo.
_STOPPED = (_S.NEEDS_ATTENTION, _S.FAILED, _S.CANCELLED)
_AGAIN = ("retry", "resume")
_UNDONE = (_S.COMPENSATING, _S.COMPENSATED)


class _JobNow(NamedTuple):
    """A job at the moment of a command."""

    id: str
    state: JobState
    request: str | None
    paused_from: str | None
    queue: str
    tenant: str
    priority: int
    epoch: int
    owner: str | None
    worked: float  # seconds, if it has ended
    error: str | None = None  # why it stopped
    undoing: bool = False  # what it did is being undone, whatever its state
    root: str = ""  # the first job of its tree


class _Decision(NamedTuple):
    """What becomes of the job."""

    state: JobState
    request: str | None = None
    due: bool = False  # a worker may claim it at once


def command(session: Session, command: Command) -> None:
    """Execute a command, or leave it to the job's owner.

    Raises:
        JobNotFound, IllegalTransition: Nothing was changed.
    """
    job, decision = _decide(session, command)
    if command.action == "resolve":
        _resolve(session, command)
    elif _begins_again(job, command):
        _begin_again(session, job, command)
    elif command.action == "skip":
        _skip(session, job, command)
    elif command.action == "skip_item":
        _skip_item(session, job, command)
    _apply(session, job, decision)
    if job.state == _S.NEEDS_ATTENTION and decision.state != job.state:
        withdraw_open(session, [job.id], session.now(), UNDO_QUESTION)
    if command.action != "pause" and not command.by_worker:  # a cancel may begin an undo
        add_requesters(session, job.root, job.tenant, [command.actor])
    _close_alerts(session, job, decision, command)
    given = {"reason": command.reason, "seq": command.seq, "effect": command.effect}
    given["choice"] = command.choice
    data = {name: value for name, value in given.items() if value not in (None, "")}
    note = JobEvent(type=f"{command.action}.asked", data=data, actor=command.actor)
    session.run("insert_event", **rows.event_row(job.id, note, _latest(session, job.id)))


def vote(
    session: Session, approval_id: str, vote: Vote, use: LinkUse | None = None
) -> Approval | Refusal:
    """Judge a vote, and write it if it counts: see `approval.vote`.

    A yes to the question whether a failed job is to be undone begins that in the same transaction.
    """
    result = count_vote(session, approval_id, vote, use)
    if isinstance(result, Approval) and begins_undo(result):
        why, by = f"approved: {result.title}", vote.person.id
        asked = Command(job_id=result.job_id, action="compensate", actor=by, reason=why)
        with suppress(IllegalTransition):  # a cancel came when the job was about to be parked
            command(session, asked)
    return result


def _latest(session: Session, job_id: str) -> float:
    """Return the time, or that of the job's last event if a clock was set back since.

    A job is told to continue *after* a decision: see `has_event`.
    """
    found = session.one("last_event_at", id=job_id)
    return max(session.now(), 0.0 if found is None else found[0] or 0.0)


def _close_alerts(session: Session, job: _JobNow, decision: _Decision, command: Command) -> None:
    """Tell the channels for alerts that somebody takes care of the job, or has done so."""
    text = f"{command.action} by {command.actor or 'a program'}"
    if job.state == _S.NEEDS_ATTENTION and decision.state != job.state:
        close_alerts(session, job.id, NoticeKind.RESOLVED, text)
    elif job.owner is not None:
        close_alerts(session, job.id, NoticeKind.ACKNOWLEDGED, text)
    if command.action == "resolve":
        found = [each for each in effects(session, job.id) if each.no == command.effect]
        for each in found:
            key = alert_key(job.id, NoticeKind.IN_DOUBT, each.key)
            close_alerts(session, job.id, NoticeKind.RESOLVED, text, only=key)


def command_jobs(
    session: Session,
    asked: Sequence[tuple[BulkResult, Command]],
    *,
    dry_run: bool = False,
) -> list[BulkResult]:
    """Execute a cancel, pause, resume or retry of some jobs; return what each does, or would."""
    ids = [each.job_id for each, _ in asked]
    session.all("fences", ids=session.array(ids))  # locks them in the order of every write
    ask = _decide if dry_run else command
    return [replace(job, refused=_refusal(session, ask, each)) for job, each in asked]


def _refusal(session: Session, ask: Callable[[Session, Command], object], asked: Command) -> str:
    try:
        ask(session, asked)  # whatever raises has changed nothing
    except (JobNotFound, IllegalTransition) as error:
        return str(error)
    return ""


def _decide(session: Session, command: Command) -> tuple[_JobNow, _Decision]:
    """Return the job, and what becomes of it; nothing is changed yet.

    Raises:
        JobNotFound, IllegalTransition: The command is refused.
    """
    job = _locked_job(session, command.job_id)
    if command.action == "resolve":
        decision = _resolved(job, command)
    else:
        decision = _DECISIONS[command.action](job)
    if decision.state != job.state:
        check_job(job.id, job.state, decision.state)
        _refuse_if_undone(session, job, decision)
    if job.undoing and job.state in ENDED and _begins_again(job, command):
        _refuse_if_nothing_is_left(session, job)
    return job, decision


def _begins_again(job: _JobNow, asked: Command) -> bool:
    return job.state in _STOPPED and (asked.action in _AGAIN or _undoes_again(job, asked))


def _refuse_if_nothing_is_left(session: Session, job: _JobNow) -> None:
    """Raise if an undo has ended without a failure that could be retried."""
    if session.one("failed_undo", id=job.id) is None:
        raise IllegalTransition(
            f"job {job.id} was undone as far as possible: submit it again instead"
        )


def _refuse_if_undone(session: Session, job: _JobNow, decision: _Decision) -> None:
    """Raise if the job is part of a tree that is undone as a whole: nothing would undo it."""
    if job.state in ENDED and decision.state == _S.PENDING:
        above = _undone_above(session, job.id)
        if above is not None:
            raise IllegalTransition(
                f"job {job.id} is a part of job {above}, which is or was undone: it is not run "
                "again. Submit a new one"
            )


def _undone_above(session: Session, job_id: str) -> str | None:
    """Return the job that is or was undone and that this one is a part of."""
    found = session.one("above", id=job_id)
    if found is None or found[1] is None:  # there is no parent, or it is not there any more
        return None
    above: str = found[0]
    if found[1] in _UNDONE or session.one("has_undo", id=above) is not None:
        return above
    return _undone_above(session, above)


def _undoes_again(job: _JobNow, asked: Command) -> bool:
    return asked.action == "compensate" and job.undoing


def _locked_job(session: Session, job_id: str) -> _JobNow:
    # The lease is locked first, as in every write: in another order, two would deadlock.
    owner, epoch = session.one("lock_lease", id=job_id) or (None, None)
    found = session.one("job_state", id=job_id)
    if found is None:
        raise JobNotFound(job_id)
    state, request, paused_from, queue, tenant, priority, last_epoch, error, worked, root = found
    epoch = last_epoch if epoch is None else epoch
    undoing = _S.COMPENSATING in (state, paused_from) or (
        state in _STOPPED and session.one("has_undo", id=job_id) is not None
    )
    return _JobNow(
        job_id,
        JobState(state),
        request,
        paused_from,
        queue,
        tenant,
        priority,
        epoch,
        owner,
        worked,
        error,
        undoing,
        root,
    )


def _apply(session: Session, job: _JobNow, decision: _Decision) -> None:
    now = session.now()
    if job.state in ENDED and decision.state == job.state:
        return  # only its ledger has changed
    if decision.state in ENDED and job.state not in ENDED:
        ended = {"id": job.id, "state": decision.state.value, "epoch": job.epoch}
        end_jobs(session, [{**ended, "result": None, "error": None}], now)
        return
    again = job.state in ENDED | {_S.NEEDS_ATTENTION} and decision.state != job.state
    session.run(
        "command_job", id=job.id, state=decision.state.value, request=decision.request,
        forget=int(again), now=now,
    )  # fmt: skip
    if job.state in ENDED and again:
        _new_lease(session, job, now)
    elif decision.state == _S.PAUSED and job.owner is None:
        session.run("park", id=job.id)
    else:
        session.run("make_due", id=job.id, due=int(decision.due), now=now)


def _new_lease(session: Session, job: _JobNow, now: float) -> None:
    """Let an ended job be claimed again; its epoch continues, so that old owners stay fenced."""
    (tag,) = take_turns(session, job.queue, job.tenant, 1)
    name, version, plan = session.one("what_runs", id=job.id) or ("", "", None)
    session.run(
        "insert_lease", id=job.id, tenant=job.tenant, queue=job.queue, priority=job.priority,
        kind=kind_of(name, version, rows.payload(plan)), tag=tag, ready=1, due_at=now,
        epoch=job.epoch, worked=job.worked,
    )  # fmt: skip


def _cancel(job: _JobNow) -> _Decision:
    if job.state in ENDED:
        raise IllegalTransition(f"job {job.id} is {job.state}: there is nothing to cancel")
    if job.undoing:
        raise IllegalTransition(f"job {job.id} is being undone: there is nothing to cancel")
    if job.owner is None and not job.epoch:  # never begun: nothing to undo
        return _Decision(_S.CANCELLED)
    if job.owner is None:
        # A worker ends it: what it did may have to be undone.
        state = {_S.PAUSED: _back(job), _S.NEEDS_ATTENTION: _S.PENDING}.get(job.state, job.state)
        return _Decision(state, "cancel", due=True)
    return _Decision(job.state, "cancel")


def _pause(job: _JobNow) -> _Decision:
    if job.state not in LIVE:
        raise IllegalTransition(f"job {job.id} is {job.state}: it cannot be paused")
    if job.owner is None:
        return _Decision(_S.PAUSED, job.request)
    return _Decision(job.state, job.request or "pause")


def _resume(job: _JobNow) -> _Decision:
    if job.state == _S.PAUSED:
        return _Decision(_back(job), job.request, due=True)
    if job.state == _S.NEEDS_ATTENTION:
        return _Decision(_onward(job), job.request, due=True)
    if job.request == "pause":  # not yet obeyed
        return _Decision(job.state)
    hint = "; retry runs it again" if job.state in _STOPPED and not job.undoing else ""
    raise IllegalTransition(
        f"job {job.id} is {job.state}: only PAUSED and NEEDS_ATTENTION can be resumed{hint}"
    )


def _retry(job: _JobNow) -> _Decision:
    if job.state not in (_S.FAILED, _S.CANCELLED, _S.NEEDS_ATTENTION):
        raise IllegalTransition(
            f"job {job.id} is {job.state}: only FAILED, CANCELLED and NEEDS_ATTENTION "
            "can be retried"
        )
    return _Decision(_onward(job), due=True)


def _skip_step(job: _JobNow) -> _Decision:
    if job.owner is not None:
        raise IllegalTransition(f"job {job.id} is at work: pause it before a step is skipped")
    if job.state in (_S.FAILED, _S.CANCELLED, _S.NEEDS_ATTENTION):
        return _Decision(_onward(job), due=True)
    if job.state in ENDED:
        raise IllegalTransition(f"job {job.id} is {job.state}: there is nothing to skip")
    return _Decision(job.state, job.request, due=job.state != _S.PAUSED)


def _compensate(job: _JobNow) -> _Decision:
    if job.state not in (_S.FAILED, _S.CANCELLED, _S.NEEDS_ATTENTION):
        raise IllegalTransition(
            f"job {job.id} is {job.state}: only FAILED, CANCELLED and NEEDS_ATTENTION can be undone"
        )
    return _Decision(_S.COMPENSATING, due=True)


def _compensate_child(job: _JobNow) -> _Decision:
    if job.state not in ENDED:
        raise IllegalTransition(f"job {job.id} is {job.state}: it has not ended")
    return _Decision(_S.COMPENSATING, due=True)


def _resolved(job: _JobNow, asked: Command) -> _Decision:
    """Decide what happens to a job when a person resolves its effect."""
    if job.owner is not None:
        raise IllegalTransition(f"job {job.id} is at work: it asks if it needs to know")
    if asked.choice == "compensate":
        return _compensate(job)
    if job.state == _S.NEEDS_ATTENTION:
        return _Decision(_onward(job), job.request, due=True)
    return _Decision(job.state, job.request)


def _onward(job: _JobNow) -> JobState:
    """Return the state of a job that continues; one that was being undone continues to be."""
    return _S.COMPENSATING if job.undoing else _S.PENDING


_DECISIONS = {
    "compensate": _compensate,
    "compensate_child": _compensate_child,
    "cancel": _cancel,
    "pause": _pause,
    "resume": _resume,
    "retry": _retry,
    "skip": _skip_step,
    "skip_item": _retry,
}


def _resolve(session: Session, asked: Command) -> None:
    if asked.choice not in _CHOICES or asked.effect is None:
        raise IllegalTransition(f"say one of: {', '.join(_CHOICES)}; not {asked.choice!r}")
    choice = cast("Choice", asked.choice)
    settle(session, asked.job_id, asked.effect, choice, asked.actor, asked.output)


def _back(job: _JobNow) -> JobState:
    """Return the state that a paused job goes back to."""
    if job.paused_from == _S.COMPENSATING:
        return _S.COMPENSATING
    return _S.WAITING if job.epoch else _S.PENDING


def _begin_again(session: Session, job: _JobNow, asked: Command) -> None:
    """Give what the job stopped at, and what came after it, a fresh set of attempts."""
    if job.undoing:
        session.run("retry_undo", id=job.id)
        session.run("count_failed_undos", id=job.id)
        return
    seq = _stopped_at(session, job) if asked.seq is None else asked.seq
    if seq is None and asked.action == "resume":  # no entry stopped it
        return
    # What a person skipped stays skipped, unless the retry starts exactly there.
    skipped = -1 if asked.seq is None else asked.seq
    session.run("retry_entries", id=job.id, seq=seq or 0, skipped=skipped)


def _stopped_at(session: Session, job: _JobNow) -> int | None:
    """Return the entry that the job's error came from; its code has passed earlier failures."""
    step = "" if job.error is None else Failure.unpack(job.error.encode()).step
    found = session.one("entry_seq", id=job.id, entry=step) if step else None
    return None if found is None else found[0]


def _skip(session: Session, job: _JobNow, asked: Command) -> None:
    found = None
    if asked.seq is not None:
        found = session.one("entry_state", id=job.id, seq=asked.seq)
    if found is None:
        raise IllegalTransition(f"job {job.id} has no journal entry {asked.seq}")
    state, step, kind = found
    if job.undoing and (kind != EntryKind.UNDO or step == "undo"):
        raise IllegalTransition(
            f"job {job.id} is being undone: only one of its undos can be skipped, not {step}"
        )
    if kind == EntryKind.APPROVE:
        raise IllegalTransition(
            f"{step} of job {job.id} is a question to people: nobody can skip their answer. "
            "Let them decide about it, or cancel the job"
        )
    if StepState.SKIPPED not in STEP_TRANSITIONS[StepState(state)]:
        raise IllegalTransition(f"entry {asked.seq} of job {job.id} is {state}: not to be skipped")
    now = session.now()
    session.run("skip_entry", id=job.id, seq=asked.seq, output=rows.text(asked.output), now=now)
    if kind == EntryKind.UNDO:
        session.run("count_failed_undos", id=job.id)
    withdraw_open(session, [job.id], now, step)


def _skip_item(session: Session, job: _JobNow, asked: Command) -> None:
    """Leave the item out at which a step has failed, and give the step a fresh set of attempts."""
    found = session.one("entry_checkpoint", id=job.id, seq=asked.seq)
    kept = None if found is None or job.undoing else rows.payload(found[0])
    without = None if kept is None else leave_next_out(kept)
    if found is None or found[1] != StepState.FAILED or without is None:
        raise IllegalTransition(
            f"entry {asked.seq} of job {job.id} has not failed at an item of ctx.items: skip the "
            "whole step, or retry it"
        )
    session.run("skip_item", id=job.id, seq=asked.seq, checkpoint=rows.text(without))
    session.run("retry_entries", id=job.id, seq=asked.seq, skipped=-1)


def send(session: Session, job_id: str, topic: str, payload: bytes, key: str | None = None) -> bool:
    """Store a message for a job and wake it; return False if the job already has the key.

    Raises:
        JobNotFound: There is no such job.
        IllegalTransition: It has ended, and the message would be new.
    """
    found, now = session.one("has_ended", id=job_id), session.now()
    if found is None:
        raise JobNotFound(job_id)
    state, ended = found
    if key is not None and session.one("message_known", id=job_id, key=key):
        return False  # also if the job has ended: sending it again is idempotent
    if ended:
        raise IllegalTransition(f"job {job_id} is {state}: it receives no more messages")
    values = {"topic": topic, "payload": payload.decode(), "key": key, "now": now}
    sent = session.run("insert_message", id=job_id, **values)
    if sent and not session.run("wake", id=job_id, now=now):
        raise IllegalTransition(f"job {job_id} has just ended: it receives no more messages")
    return bool(sent)
