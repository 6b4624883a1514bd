"""Undoing children: the jobs that a job has submitted, and that completed before it failed.

A child undoes itself, as if it had failed; its parent asks it to, and waits.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from perdure.base.codec import encode
from perdure.base.errors import IllegalTransition, JobError
from perdure.engine.operation import Operation
from perdure.engine.run import Run
from perdure.engine.submission import child_id
from perdure.jobs.effect import Effect
from perdure.jobs.failure import failure_of
from perdure.jobs.model import Command, Entry, EntryKind
from perdure.jobs.saga import Forward, Undo, undo_list
from perdure.jobs.state import ENDED, JobState, StepState

_S = StepState
_SUBMITTED: Final = frozenset({_S.PENDING, _S.RUNNING, _S.SUCCEEDED})
_NOTHING: Final = encode(None)


async def way_back(
    run: Run, job_id: str, journal: Sequence[Entry], ledger: Sequence[Effect]
) -> list[Undo] | Forward:
    """List what must be undone of a job, its children included."""
    children = await _children(run, job_id, journal)
    if isinstance(children, Forward):
        return children
    return undo_list(journal, ledger, run.node.registry.find_step, children)


async def _children(run: Run, job_id: str, journal: Sequence[Entry]) -> dict[str, str] | Forward:
    """Find the children to undo: the jobs by the entries that submitted them.

    One that has not ended is cancelled with its parent, and does as its `on_cancel` says.
    """
    entries = {
        child_id(job_id, entry.id): entry.id
        for entry in journal
        if entry.kind is EntryKind.CHILD and entry.state in _SUBMITTED
    }
    if not entries:
        return {}
    found: dict[str, str] = {}
    for child in await run.ask(lambda store: store.outcomes(list(entries))):
        if child.state is not JobState.COMPLETED:
            continue
        undos, entry = await _of_child(run, child.job_id), entries[child.job_id]
        if isinstance(undos, Forward):
            return Forward(f"{undos.pivot} of {entry}")
        if undos:
            found[entry] = child.job_id
    return found


async def _of_child(run: Run, job_id: str) -> list[Undo] | Forward:
    ledger = await run.ask(lambda store: store.effects(job_id))
    journal = await run.ask(lambda store: store.journal(job_id))
    return await way_back(run, job_id, journal, ledger)


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
        outcomes = await self.run.ask(lambda store: store.outcomes([job_id]))
        state = outcomes[0].state if outcomes else JobState.COMPENSATED
        if state is JobState.COMPLETED:
            await self._ask()
        elif state is JobState.COMPENSATED:
            await self._end(_S.SUCCEEDED, _NOTHING)
        elif state in ENDED:
            error = JobError(f"a part of child {job_id} could not be undone: it is {state}")
            self.entry = replace(self.entry, error=failure_of(error).pack())
            await self._end(_S.FAILED, None)
        else:
            self.run.wait(self)

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
