"""Undoing what a job did: the undo list is written first, then runs as durable steps.

A job that fails, or is cancelled with `on_cancel="compensate"`, does not end at once. When nothing
is working for it any more (`decide_end`), the journal and the ledger say what it did. If any of
that can be undone, the job becomes COMPENSATING with the first entry of an undo list, and is
claimed again like any other job. It then runs a `Saga` instead of the job's code:

1. wait until no child is working any more, since only then is it known what the children did;
2. write the list: each undo an entry of the journal, in the reverse order of what is undone;
3. do one after the other, each as a step with retries, gates and effects of its own.

A crash at any point repeats nothing that is recorded: the list is in the journal, and the end of an
undo is written together with the change of the step that it undoes. An undo that fails for good
stops the saga, and a person decides; with `on_undo_failure="continue"` the rest is still undone.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import Codec, decode, encode
from perdure.base.errors import Drift, IllegalTransition, JobError, JobNotFound, StepFailed
from perdure.base.retry import Retry
from perdure.engine import crashpoint
from perdure.engine.journal.run import Code, Operation, Run
from perdure.engine.journal.verdict import (
    Cancelled,
    Completed,
    NeedsAttention,
    RunFailed,
    RunVerdict,
    UndoEnded,
    UndoNeeded,
)
from perdure.engine.people.ask import asking, undo_question
from perdure.engine.people.attention import alerts, undo_alerts
from perdure.engine.steps.step import StepOperation
from perdure.engine.steps.undo_plan import UndoPlanner, children_of
from perdure.jobs.approval import ApprovalState
from perdure.jobs.definition import Compensation, OnCancel, Step
from perdure.jobs.effect import Effect, EffectState
from perdure.jobs.failure import Failure, failure_of, type_name
from perdure.jobs.model import Command, EntryKind, JobOutcome, JournalEntry, WriteFields
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.saga import (
    UNDO_LIST,
    OnUndoFailure,
    PastPivot,
    Undo,
    UndoNext,
    UndoStopped,
    has_failed,
    is_irreversible,
    is_left_undone,
    is_listed,
    next_undo,
    undoes,
)
from perdure.jobs.state import ENDED, JobState, StepState

_S = StepState
_NOTHING: Final = encode(None)

# An undo is retried more patiently than a step.
RETRY: Final = Retry(attempts=20, initial_delay="1s", factor=2, max_delay="5m", jitter=0.2)

_ANYTHING: Final = Codec[Any](Any, "the result of an undo")
_INTERRUPTED: Final = failure_of(JobError("it was interrupted: the job has ended")).pack()

_YES = ApprovalState.APPROVED
_UNDOABLE: Final = frozenset({EntryKind.STEP, EntryKind.CHILD})
_BEGUN: Final = frozenset({_S.RUNNING, _S.PENDING})


class UndoReason(Struct, frozen=True):
    """Why a job is undone, and so what it becomes; kept in the first entry of the list."""

    ends: Literal["COMPENSATED", "CANCELLED"]
    error: str | None = None  # a packed `Failure`
    asked: bool = False  # by a person, or by its parent: it did not just fail


def on_cancel(run: Run) -> OnCancel:
    """Return the job's `on_cancel`: what a cancel does about completed work."""
    definition = None if run.job.plan else run.node.registry.jobs.get(run.job.name)
    return "abandon" if definition is None else definition.on_cancel


def _planner(run: Run) -> UndoPlanner:
    return UndoPlanner(run.ask, run.node.registry.find_step)


# The end of a run


async def decide_end(run: Run, verdict: RunVerdict) -> tuple[RunVerdict, WriteFields]:
    """Return the final verdict (the job may have to be undone first), and what else to write."""
    if isinstance(verdict, Completed):
        return verdict, await _doubts_of_completed(run)
    if isinstance(verdict, UndoEnded):
        return await _decide_undo_end(run, verdict)
    if isinstance(verdict, RunFailed | Cancelled):
        return await _decide_failed_end(run, verdict)
    if isinstance(verdict, NeedsAttention) and verdict.asks:
        return await _ask_whether_to_undo(run, verdict)
    return verdict, {}


async def _ask_whether_to_undo(
    run: Run, verdict: NeedsAttention
) -> tuple[NeedsAttention, WriteFields]:
    """Park the job with a question to people, in one write, unless it can only continue."""
    undos = await _planner(run).undos(run.job, *await journal_and_ledger(run))
    if isinstance(undos, PastPivot):
        return _past_pivot(RunFailed(verdict.failure), undos), {}
    approval = undo_question(run, verdict.failure, [undo.id for undo in undos])
    waits = {"kind": "approval", "id": approval.step, "approval": approval.id}
    wait = encode([{**waits, "title": approval.title}])
    return replace(verdict, wait=wait), asking(run, approval)


async def _decide_failed_end(
    run: Run, verdict: RunFailed | Cancelled
) -> tuple[RunVerdict, WriteFields]:
    journal, ledger = await journal_and_ledger(run)
    fields = _put_in_doubt(run, ledger)
    # Before the job itself ends, so that a crash in between only makes this happen twice.
    running = await stop_children(run, journal)
    if isinstance(verdict, Cancelled) and on_cancel(run) != "compensate":
        return verdict, fields
    if not running:
        undos = await _planner(run).undos(run.job, journal, ledger)
        if isinstance(undos, PastPivot):
            return _past_pivot(verdict, undos), fields
        if not undos:
            return await _name_effects_left(run, verdict, journal, ledger, fields)
    error = verdict.failure.pack().decode() if isinstance(verdict, RunFailed) else None
    reason = UndoReason("CANCELLED" if error is None else "COMPENSATED", error)
    return UndoNeeded((_first_entry(run, journal, reason),), _packed(error)), fields


async def _decide_undo_end(run: Run, verdict: UndoEnded) -> tuple[RunVerdict, WriteFields]:
    """Return the verdict after an undo: COMPENSATED only if no effect is left standing."""
    journal, ledger = await journal_and_ledger(run)
    fields = _put_in_doubt(run, ledger)
    failure = _failure(verdict.error)
    why = Cancelled() if failure is None else RunFailed(failure)
    found, fields = await _name_effects_left(run, why, journal, ledger, fields)
    if isinstance(found, RunFailed) and found is not why:
        return UndoEnded(JobState.FAILED, found.failure.pack(), verdict.entries), fields
    return verdict, fields


async def _name_effects_left(
    run: Run,
    verdict: RunFailed | Cancelled,
    journal: Sequence[JournalEntry],
    ledger: Sequence[Effect],
    fields: WriteFields,
) -> tuple[RunFailed | Cancelled, WriteFields]:
    """Add the effects that nothing undoes to the error of the job, and alert people."""
    named = await _planner(run).effects_left(run.job, journal, ledger)
    if not named:
        return verdict, fields
    cancelled = failure_of(JobError("it was cancelled, and is to be undone"))
    failure = verdict.failure if isinstance(verdict, RunFailed) else cancelled
    failure = replace(failure, standing=tuple(named))
    notices = alerts(run, NoticeKind.NOT_UNDONE, str(run.epoch), failure.summary())
    fields["notices"] = (*fields.get("notices", ()), *notices)
    return RunFailed(failure), fields


async def journal_and_ledger(run: Run) -> tuple[list[JournalEntry], list[Effect]]:
    """Return the journal and the ledger, up to the last write of this run."""
    job_id, owner, epoch = run.job.id, run.node.owner, run.epoch
    return await run.ask(lambda store: store.journal_and_ledger(job_id, owner, epoch))


async def _doubts_of_completed(run: Run) -> WriteFields:
    """Return calls that a completed job has left open, as in doubt, to be written."""
    if run.ledger is None or not (run.interrupted_step or run.ledger.has_intents()):
        return {}
    _, ledger = await journal_and_ledger(run)
    fields = _put_in_doubt(run, ledger)
    fields["withdraws"] = False
    return fields if fields.get("effects") else {}


def _put_in_doubt(run: Run, ledger: Sequence[Effect]) -> WriteFields:
    """Return open calls as in doubt, to be written: this job cannot resolve them any more."""
    lines = tuple(
        line.to(EffectState.IN_DOUBT, run.now())
        for line in ledger
        if line.state is EffectState.INTENT
    )
    notices = tuple(
        notice
        for line in lines
        for notice in alerts(run, NoticeKind.IN_DOUBT, line.key, f"{line.kind} to {line.target}")
    )
    return {"effects": lines, "notices": notices, "withdraws": True}


def _past_pivot(verdict: RunFailed | Cancelled, forward: PastPivot) -> NeedsAttention:
    failed = verdict.failure if isinstance(verdict, RunFailed) else None
    what = failed.summary() if failed else "it was cancelled"
    text = f"{forward.pivot} is passed, so nothing is undone and the job can only continue: {what}"
    return NeedsAttention(replace(failure_of(JobError(text)), step=failed.step if failed else ""))


def _first_entry(run: Run, journal: Sequence[JournalEntry], reason: UndoReason) -> JournalEntry:
    """Return the first entry of the list; the others follow when every child has ended."""
    old = next((entry for entry in journal if entry.id == UNDO_LIST), None)
    return JournalEntry(
        seq=run.journal.next_seq() if old is None else old.seq,
        id=UNDO_LIST,
        kind=EntryKind.UNDO,
        name=UNDO_LIST,
        state=_S.PENDING,
        output=msgspec.json.encode(reason),
        started_at=run.now(),
    )


def _entries(
    run: Run, journal: Sequence[JournalEntry], undos: Sequence[Undo]
) -> tuple[JournalEntry, ...]:
    """Return the rest of the list, and the ends of steps that were interrupted."""
    listed = [
        JournalEntry(
            seq=run.journal.next_seq(),
            id=undo.id,
            kind=EntryKind.UNDO,
            name=undo.id.partition("#")[0],
            state=_S.PENDING,
            input=msgspec.json.encode(undo),
        )
        for undo in undos
    ]
    wanted = {undo.step for undo in undos}
    interrupted = [
        replace(entry, state=_S.FAILED, error=entry.error or _INTERRUPTED, ended_at=run.now())
        for entry in journal
        if entry.id in wanted and entry.state in _BEGUN
    ]
    return (*interrupted, *listed)


# The saga


async def undo(run: Run, run_code: Callable[[Run, Code], Awaitable[RunVerdict]]) -> RunVerdict:
    """Continue the undo of a job; if anything prevents it, the job is parked for a person."""
    # The code is not replayed, and no deadline ends an undo.
    run.journal.unvisited.clear()
    run.job = replace(run.job, deadline_at=None)
    saga = Saga(run)
    verdict = await run_code(run, saga.run_list)
    if isinstance(verdict, Completed):
        return saga.outcome()
    if not isinstance(verdict, RunFailed | NeedsAttention) or _says_what_to_do(verdict):
        return verdict
    why = verdict.failure.summary()
    text = f"the undo of this job cannot continue: {why}. Fix that, then resume the job"
    return NeedsAttention(replace(verdict.failure, type=type_name(JobError), message=text))


def _says_what_to_do(verdict: RunFailed | NeedsAttention) -> bool:
    return isinstance(verdict, NeedsAttention) and (verdict.alerted or bool(verdict.entries))


class Saga:
    """The undo list of one job, and its progress."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._head: JournalEntry
        self._reason: UndoReason
        self._steps: dict[str, JournalEntry] = {}
        self._ledger: dict[int, Effect] = {}
        self._entries: dict[str, JournalEntry] = {}
        self._undos: list[Undo] = []

    def outcome(self) -> UndoEnded:
        """Return what the job becomes when nothing is left to do."""
        error = _packed(self._reason.error)
        states = self.states().items()
        left = [id for id, state in states if state is _S.FAILED or self._is_left(id)]
        if left:
            text = f"{', '.join(left)} could not be undone"
            return UndoEnded(JobState.FAILED, error or failure_of(JobError(text)).pack())
        if self._undos or self._reason.asked or self._head.state is _S.SUCCEEDED:
            return UndoEnded(JobState(self._reason.ends), error)
        # The children that it waited for have left nothing to undo: it has only failed.
        ends = JobState.FAILED if self._reason.ends == "COMPENSATED" else JobState.CANCELLED
        return UndoEnded(ends, error, (self._nothing_listed(),))

    def _nothing_listed(self) -> JournalEntry:
        return replace(self._head, state=_S.SKIPPED, ended_at=self._run.now())

    def states(self) -> dict[str, StepState]:
        """Return the state of each undo."""
        return {id: entry.state for id, entry in self._entries.items()}

    async def run_list(self, run: Run) -> bytes:
        """Write the list, unless it is there already; then undo one thing after the other."""
        journal, ledger = await journal_and_ledger(run)
        head = next((entry for entry in journal if entry.kind is EntryKind.UNDO), None)
        if head is None or head.state is _S.SKIPPED:  # requested by a person, or by its parent
            error = None if run.job.error is None else run.job.error.decode()
            head = _first_entry(run, journal, UndoReason("COMPENSATED", error, asked=True))
            await run.write(head, **_put_in_doubt(run, ledger))
        reason = await run.whole(head.output or b"")
        self._head, self._reason = head, decode(reason, UndoReason)
        if head.state is _S.PENDING:
            await self._list(journal)
        journal, ledger = await journal_and_ledger(run)
        self._read(journal, ledger)
        await self._mark_by_hand()
        while True:
            match next_undo(self._undos, self.states(), self._on_failure()):
                case UndoNext(wanted):
                    await self._do(run, wanted)
                case UndoStopped(failed):
                    await self._stop(run, failed)
                case _:
                    return b"null"

    async def _list(self, journal: Sequence[JournalEntry]) -> None:
        """Wait until every child has ended, then write what must be undone."""
        run = self._run
        await ChildrenEnd(run, self._head, journal)
        journal, ledger = await journal_and_ledger(run)
        undos = await _planner(run).undos(run.job, journal, ledger)
        if isinstance(undos, PastPivot):
            why = _failure(_packed(self._reason.error))
            parked = _past_pivot(Cancelled() if why is None else RunFailed(why), undos)
            run.stop(replace(parked, entries=(self._nothing_listed(),)))
            raise JobError(parked.failure.message)
        if undos or self._reason.asked:
            head = replace(self._head, state=_S.SUCCEEDED, ended_at=run.now())
            await run.write(head, *_entries(run, journal, undos))

    def _read(self, journal: Sequence[JournalEntry], ledger: Sequence[Effect]) -> None:
        listed = [
            entry for entry in journal if entry.kind is EntryKind.UNDO and entry.id != UNDO_LIST
        ]
        self._steps = {entry.id: entry for entry in journal if entry.kind in _UNDOABLE}
        self._ledger = {line.no: line for line in ledger}
        self._entries = {entry.id: entry for entry in listed}
        self._undos = [decode(entry.input or b"", Undo) for entry in listed]

    async def _do(self, run: Run, wanted: Undo) -> None:
        run.visit(wanted.id, EntryKind.UNDO, None)
        if crashpoint.wanted:
            crashpoint.reach("before_undo")
        operation = await self._operation(run, wanted)
        await self._mark(self._steps[wanted.step], _S.COMPENSATING)
        with contextlib.suppress(StepFailed):  # the list says what comes next
            await operation
        self._entries[wanted.id] = operation.entry
        if crashpoint.wanted:
            crashpoint.reach("after_undo")

    async def _operation(self, run: Run, wanted: Undo) -> Operation[Any]:
        entry = self._entries[wanted.id]
        if wanted.child is not None:
            return UndoChild(run, entry, wanted.child, partial(self._ended, wanted))
        step, undone = await self._step(wanted)
        operation = StepOperation(run, entry, step, ((), {}), recorded=True)
        operation.on_end = partial(self._ended, wanted)
        operation.undone = undone
        operation.undoes = "" if undone is not None else wanted.step
        operation.undone_checkpoint = self._steps[wanted.step].checkpoint
        if run.node.gatekeeper.watches(step):  # a refund moves money, too
            given = await self._input(self._steps[wanted.step], step)
            operation.gate, run.gate_passes = run.node.gatekeeper.decide(
                step, step.name, given, run.job.tenant, run.gate_passes
            )
        return operation

    async def _stop(self, run: Run, failed: Undo) -> None:
        error = self._entries[failed.id].error
        failure = _failure(error) or failure_of(JobError("nobody knows why"))
        text = f"{failed.id} could not be undone: {failure.summary()}"
        choices = ["retry", "skip", "abandon_undo"]
        wait = encode([{"kind": "undo", "id": failed.id, "choices": choices}])
        run.stop(NeedsAttention(failure_of(JobError(text)), wait, alerted=True))
        raise JobError(text)

    async def _step(self, wanted: Undo) -> tuple[Step[..., Any], Effect | None]:
        """Return the step that does an undo, and the effect that it undoes."""
        find = self._run.node.registry.find_step
        entry = self._steps[wanted.step]
        if wanted.effect is not None:
            line = self._ledger[wanted.effect]
            assert line.undo is not None
            step = find(line.undo.step)
            result = None if line.result is None else decode(line.result, Any)
            given = decode(line.undo.given, dict[str, Any])
            return _step_for(wanted, step, partial(_with_result, step, result, given)), line
        step = find(entry.name)
        if step.undo is None:
            raise Drift(f"{entry.name} has no compensation any more, and {wanted.id} needs it")
        args, kwargs = step.unpack(await self._input(entry, step))
        output = entry.output
        if output is not None:
            output = step.unpack_result(await self._run.whole(output))
        undo = step.undo
        made = replace(
            step,
            is_async=undo.is_async,
            retry=undo.retry,
            timeout=undo.timeout,
        )
        return _step_for(wanted, made, partial(_compensate, undo, args, kwargs, output)), None

    async def _input(self, entry: JournalEntry, step: Step[..., Any]) -> bytes:
        """Return the arguments that the step ran with, which a person may have edited."""
        given = await self._run.whole(entry.input or b"{}")
        if not self._run.node.gatekeeper.watches(step):
            return given
        # The last approval: later questions were not answered, or were rejected.
        job_id = self._run.job.id
        yes = await self._run.ask(lambda store: store.approval_of_step(job_id, entry.id, _YES))
        return given if yes is None else yes.action.input

    # The steps that are undone

    def _ended(self, wanted: Undo, state: StepState) -> None:
        """Change the step in the same write as its undo."""
        self._entries[wanted.id] = replace(self._entries[wanted.id], state=state)
        if state is _S.SUCCEEDED:
            self._note_undone(wanted)
        entry = self._steps[wanted.step]
        if state is _S.FAILED:
            self._note(entry, _S.COMPENSATION_FAILED)
        elif self._is_undone(entry):
            self._note(entry, _S.COMPENSATED)

    def _is_undone(self, entry: JournalEntry) -> bool:
        mine = [undo.id for undo in self._undos if undo.step == entry.id]
        states = self.states()
        return all(
            states[id] in (_S.SUCCEEDED, _S.SKIPPED) and not self._is_left(id) for id in mine
        )

    def _is_left(self, id: str) -> bool:
        return is_left_undone(self._entries[id])

    def _note(self, entry: JournalEntry, state: StepState) -> None:
        if entry.state is _S.SKIPPED:  # what a person decided about it stands
            return
        self._steps[entry.id] = changed = replace(entry, state=state)
        self._run.buffered_entries[entry.seq] = changed

    def _note_undone(self, undo: Undo) -> None:
        """Mark the effects as undone in the same write, so that nobody uses their results again.

        The compensation of an irreversible step only mitigates what it did, and undoes none of it.
        """
        find = self._run.node.registry.find_step
        by_step = undo.effect is None and undo.child is None
        if by_step and is_irreversible(self._steps[undo.step], find):
            return
        for line in tuple(self._ledger.values()):
            if undoes(undo, line):
                changed = line.to(EffectState.UNDONE, self._run.now(), proof=undo.id)
                self._ledger[line.no] = changed
                self._run.buffer_effect(changed)

    async def _mark(self, entry: JournalEntry, state: StepState) -> None:
        if entry.state is not state:
            self._note(entry, state)
            await self._run.flush()

    async def _mark_by_hand(self) -> None:
        """Apply the decisions of people since then: undos that they marked as done."""
        for undo in self._undos:
            if self._entries[undo.id].state is _S.SKIPPED and not self._is_left(undo.id):
                self._note_undone(undo)
        for entry in tuple(self._steps.values()):
            if entry.state is _S.COMPENSATION_FAILED and self._is_undone(entry):
                self._note(entry, _S.COMPENSATED)
        await self._run.flush()

    def _on_failure(self) -> OnUndoFailure:
        job = self._run.job
        definition = None if job.plan else self._run.node.registry.jobs.get(job.name)
        return "stop" if definition is None else definition.on_undo_failure


def _step_for(wanted: Undo, step: Step[..., Any], call: Any) -> Step[..., Any]:
    """Return the step that runs an undo; it waits for approval as the original does."""

    async def awaited(ctx: Any) -> Any:
        return await call(ctx)

    def called(ctx: Any) -> Any:
        return call(ctx)

    return replace(
        step,
        name=wanted.id,
        fn=awaited if step.is_async else called,
        takes_context=True,
        result=_ANYTHING,
        retry=step.retry or RETRY,
        isolation="inline" if step.is_async else "thread",
        irreversible=False,
        approval="never" if step.approval == "never" else "by_risk",
        idempotency_key=None,
        raises=(),  # the list says what comes next, whatever it raises
        undo=None,
    )


def _compensate(
    undo: Compensation, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, ctx: Any
) -> Any:
    return undo.invoke(ctx, args, kwargs, output)


def _with_result(step: Step[..., Any], result: Any, given: dict[str, Any], ctx: Any) -> Any:
    return step.invoke(ctx, (result,), given)


def _failure(error: bytes | None) -> Failure | None:
    return None if error is None else Failure.unpack(error)


def _packed(error: str | None) -> bytes | None:
    return None if error is None else error.encode()


# Children: the jobs that a job has submitted
#
# A running child is cancelled first, and its end is awaited: only then is it known what it did. A
# child undoes itself, as if it had failed; its parent requests that, and waits.


async def stop_children(run: Run, journal: Sequence[JournalEntry]) -> list[JobOutcome]:
    """Cancel the children that have not ended; return those that still have not.

    The `on_cancel` of each child applies.
    """
    ids = list(children_of(run.job.id, journal))
    running = await _running(run, ids)
    for each in running:
        await _cancel(run, each.job_id)
    return await _running(run, [each.job_id for each in running])


async def _running(run: Run, ids: Sequence[str]) -> list[JobOutcome]:
    if not ids:
        return []
    found = await run.ask(lambda store: store.outcomes(ids))
    return [each for each in found if each.state not in ENDED]


async def _cancel(run: Run, job_id: str) -> None:
    job = await run.ask(lambda store: store.job(job_id))
    if job is None or job.request == "cancel":  # only once: a person may have resumed it
        return
    reason = f"its parent {run.job.id} has ended"
    asked = Command(
        job_id=job_id, action="cancel", actor=run.node.owner, reason=reason, by_worker=True
    )
    with contextlib.suppress(JobNotFound, IllegalTransition):  # it has ended, or is being undone
        await run.ask(lambda store: store.command(asked))
    run.node.poke()


class ChildrenEnd(Operation[None]):
    """A wait until every child has ended."""

    __slots__ = ("_journal", "_running")
    waits_for = "child"

    def __init__(self, run: Run, head: JournalEntry, journal: Sequence[JournalEntry]) -> None:
        super().__init__(run, head, recorded=True)
        self._journal = journal
        self._running: list[JobOutcome] = []

    def start(self) -> None:
        self.spawn(self._look)

    def on_news(self) -> None:
        self.spawn_again(self._look)

    async def _look(self) -> None:
        self._running = await stop_children(self.run, self._journal)
        if self._running:
            self.wait()
        else:
            self.finish(None)

    def children(self) -> Sequence[str]:
        return [each.job_id for each in self._running]

    def describe_all(self) -> list[dict[str, Any]]:
        entries = children_of(self.run.job.id, self._journal)
        return [
            {"kind": "child", "id": entries[each.job_id].id, "job": each.job_id}
            | {"state": each.state.value}
            for each in self._running
        ]


class UndoChild(Operation[None]):
    """A wait for a child that undoes itself.

    The request is repeated after every crash; a child that has begun ignores it.
    """

    __slots__ = ("_job_id", "ended")
    waits_for = "child"

    def __init__(
        self, run: Run, entry: JournalEntry, job_id: str, ended: Callable[[StepState], None]
    ) -> None:
        super().__init__(run, entry, recorded=True)
        self._job_id = job_id
        self.ended = ended  # called with the state of the undo, before that is written

    def start(self) -> None:
        self.spawn(self._look)

    def on_news(self) -> None:
        self.spawn_again(self._look)

    def children(self) -> Sequence[str]:
        return (self._job_id,)

    async def _look(self) -> None:
        job_id = self._job_id
        outcomes = await self.run.ask(lambda store: store.outcomes([job_id]))
        if not outcomes:
            await self._fail(
                f"child {job_id} is not in the store any more, so nobody knows what it did. Find "
                "out and undo it by hand, then skip this; or leave it undone"
            )
            return
        state = outcomes[0].state
        if state is JobState.COMPENSATED:
            await self._end(_S.SUCCEEDED, _NOTHING)
        elif state not in ENDED:
            self.wait()
        else:
            await self._ended(state)

    async def _ended(self, state: JobState) -> None:
        job_id = self._job_id
        journal = await self.run.ask(lambda store: store.journal(job_id))
        if not is_listed(journal):
            await self._ask()
        elif has_failed(journal):
            await self._fail(f"a part of child {job_id} could not be undone: it is {state}")
        else:
            await self._end(_S.SUCCEEDED, _NOTHING)

    async def _fail(self, text: str) -> None:
        failure = failure_of(JobError(text))
        self.entry = replace(self.entry, error=failure.pack())
        await self._end(_S.FAILED, None, undo_alerts(self.run, self.entry.id, failure))

    async def _ask(self) -> None:
        run, reason = self.run, f"its parent {self.run.job.id} is undone"
        asked = Command(
            job_id=self._job_id,
            action="compensate_child",
            actor=run.node.owner,
            reason=reason,
            by_worker=True,
        )
        with contextlib.suppress(IllegalTransition):  # it has begun already
            await run.ask(lambda store: store.command(asked))
        run.node.poke()
        self.wait()

    async def _end(
        self, state: StepState, output: bytes | None, notices: tuple[Notice, ...] = ()
    ) -> None:
        self.ended(state)
        self.entry = replace(self.entry, state=state, output=output, ended_at=self.run.now())
        await self.run.write(self.entry, notices=notices)
        self.finish(None)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "job": self._job_id}
