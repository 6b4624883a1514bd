"""Undoing children: the jobs that a job has submitted.

One that is at work is cancelled first, and its end is waited for: only then it is known what it
has done. A child undoes itself, as if it had failed; its parent asks it to, and waits.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from perdure.base.codec import encode
from perdure.base.errors import IllegalTransition, JobError, JobNotFound
from perdure.engine.operation import Operation
from perdure.engine.run import Run
from perdure.engine.submission import child_id
from perdure.jobs.effect import OPEN, Effect
from perdure.jobs.failure import failure_of
from perdure.jobs.model import Command, Entry, EntryKind, Job, Outcome
from perdure.jobs.saga import Forward, Undo, has_failed, is_listed, standing, undo_list
from perdure.jobs.state import ENDED, JobState, StepState
from perdure.store.port import Store

_S = StepState
_NOTHING: Final = encode(None)


# Children at work


def children_of(job_id: str, journal: Sequence[Entry]) -> dict[str, Entry]:
    """Give the entries that have submitted children, by the ids of these."""
    return {child_id(job_id, each.id): each for each in journal if each.kind is EntryKind.CHILD}


async def stop_children(run: Run, journal: Sequence[Entry]) -> list[Outcome]:
    """Cancel the children that are at work; gives those that have not ended yet.

    Each does as its own `on_cancel` says.
    """
    ids = list(children_of(run.job.id, journal))
    at_work = await _at_work(run, ids)
    for each in at_work:
        await _cancel(run, each.job_id)
    return await _at_work(run, [each.job_id for each in at_work])


async def _at_work(run: Run, ids: Sequence[str]) -> list[Outcome]:
    if not ids:
        return []
    found = await run.ask(lambda store: store.outcomes(ids))
    return [each for each in found if each.state not in ENDED]


async def _cancel(run: Run, job_id: str) -> None:
    job = await run.ask(lambda store: store.job(job_id))
    if job is None or job.request == "cancel":  # once: a person may have let it go on
        return
    reason = f"its parent {run.job.id} has ended"
    asked = Command(job_id=job_id, action="cancel", actor=run.node.owner, reason=reason)
    with contextlib.suppress(JobNotFound, IllegalTransition):  # it has ended, or is being undone
        await run.ask(lambda store: store.command(asked))
    run.node.poke()


class ChildrenEnd(Operation[None]):
    """A wait until no child is at work any more."""

    __slots__ = ("_at_work", "_journal")
    waits_for = "child"

    def __init__(self, run: Run, head: Entry, journal: Sequence[Entry]) -> None:
        super().__init__(run, head, recorded=True)
        self._journal = journal
        self._at_work: list[Outcome] = []

    def start(self) -> None:
        self.run.work(self, self._look)

    def heard(self) -> None:
        if self in self.run.working:  # whatever it has just read may be old
            self.again = True
        else:
            self.run.work(self, self._look)

    async def _look(self) -> None:
        self._at_work = await stop_children(self.run, self._journal)
        if self._at_work:
            self.run.wait(self)
        else:
            self.settle(None)

    def describe_all(self) -> list[dict[str, Any]]:
        entries = children_of(self.run.job.id, self._journal)
        return [
            {"kind": "child", "id": entries[each.job_id].id, "job": each.job_id}
            | {"state": each.state.value}
            for each in self._at_work
        ]


# What they did


async def way_back(
    run: Run, job: Job, journal: Sequence[Entry], ledger: Sequence[Effect]
) -> list[Undo] | Forward:
    """List what must be undone of a job, its children included."""
    children = await _to_undo(run, job, journal)
    if isinstance(children, Forward):
        return children
    return undo_list(journal, ledger, run.node.registry.find_step, children)


async def _to_undo(run: Run, job: Job, journal: Sequence[Entry]) -> dict[str, str] | Forward:
    """Find the children to undo: the jobs by the entries that submitted them."""
    entries = children_of(job.id, journal)
    if not entries:
        return {}
    states = {each.job_id: each.state for each in await _outcomes(run, list(entries))}
    found: dict[str, str] = {}
    for child, entry in entries.items():
        if child not in states:
            stands: bool | Forward = not _is_copied(job, entry)
        else:
            stands = await _stands(run, child, states[child])
        if isinstance(stands, Forward):
            return Forward(f"{stands.pivot} of {entry.id}")
        if stands:
            found[entry.id] = child
    return found


async def left_standing(
    run: Run, job: Job, journal: Sequence[Entry], ledger: Sequence[Effect]
) -> list[str]:
    """Name what a job and its children leave in the world, and what nothing undoes."""
    found = standing(journal, ledger, run.node.registry.find_step)
    named = [_named(effect, job.id == run.job.id) for effect in found]
    ids = list(children_of(job.id, journal))
    for each in await _outcomes(run, ids) if ids else ():
        child = await run.ask(partial(_job, each.job_id))
        if child is not None and each.state is not JobState.COMPENSATED:
            entries = await run.ask(partial(_journal, child.id))
            lines = await run.ask(partial(_effects, child.id))
            named += await left_standing(run, child, entries, lines)
    return named


def _named(effect: Effect, own: bool) -> str:  # noqa: FBT001
    where = effect.place.step if own else f"{effect.place.step} of job {effect.job_id}"
    perhaps = "perhaps " if effect.state in OPEN else ""
    return f"{perhaps}{effect.kind} to {effect.target} ({where})"


async def _job(job_id: str, store: Store) -> Job | None:
    return await store.job(job_id)


async def _journal(job_id: str, store: Store) -> list[Entry]:
    return await store.journal(job_id)


async def _effects(job_id: str, store: Store) -> list[Effect]:
    return await store.effects(job_id)


async def _outcomes(run: Run, ids: Sequence[str]) -> list[Outcome]:
    return await run.ask(lambda store: store.outcomes(ids))


def _is_copied(job: Job, entry: Entry) -> bool:
    """Tell whether a child is that of the job of which this one is a fork."""
    return job.forked_from is not None and (entry.started_at or 0.0) < job.created_at


async def _stands(run: Run, job_id: str, state: JobState) -> bool | Forward:
    """Tell whether a child has something to undo, or may have."""
    if state is JobState.COMPENSATED:
        return False
    if state not in ENDED:  # a child of a child: it is waited for when that one undoes itself
        return True
    journal = await run.ask(lambda store: store.journal(job_id))
    if is_listed(journal):
        return has_failed(journal)
    job = await run.ask(lambda store: store.job(job_id))
    ledger = await run.ask(lambda store: store.effects(job_id))
    undos = [] if job is None else await way_back(run, job, journal, ledger)
    return undos if isinstance(undos, Forward) else bool(undos)


class UndoChild(Operation[None]):
    """A wait for a child that undoes itself.

    It is asked again after every crash: one that has begun does not mind.
    """

    __slots__ = ("_job_id", "ended")
    waits_for = "child"

    def __init__(
        self, run: Run, entry: Entry, job_id: str, ended: Callable[[StepState], None]
    ) -> None:
        super().__init__(run, entry, recorded=True)
        self._job_id = job_id
        self.ended = ended  # called with the state of the undo, before that is written

    def start(self) -> None:
        self.run.work(self, self._look)

    def heard(self) -> None:
        if self in self.run.working:  # whatever it has just read may be old
            self.again = True
        else:
            self.run.work(self, self._look)

    async def _look(self) -> None:
        job_id = self._job_id
        outcomes = await _outcomes(self.run, [job_id])
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
            self.run.wait(self)
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
        self.entry = replace(self.entry, error=failure_of(JobError(text)).pack())
        await self._end(_S.FAILED, None)

    async def _ask(self) -> None:
        run, reason = self.run, f"its parent {self.run.job.id} is undone"
        asked = Command(
            job_id=self._job_id, action="compensate_child", actor=run.node.owner, reason=reason
        )
        with contextlib.suppress(IllegalTransition):  # it has begun already
            await run.ask(lambda store: store.command(asked))
        run.node.poke()
        run.wait(self)

    async def _end(self, state: StepState, output: bytes | None) -> None:
        self.ended(state)
        self.entry = replace(self.entry, state=state, output=output, ended_at=self.run.now())
        await self.run.write(self.entry)
        self.settle(None)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "job": self._job_id}
