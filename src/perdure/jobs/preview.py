"""What a command would do, told before it is given: an undo, and a fork; pure.

The decisions are those of `saga` and of the store's fork; here they are put into words.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from perdure.base.errors import UnknownName
from perdure.jobs.effect import HAPPENED, OPEN, Effect, EffectState
from perdure.jobs.model import EntryKind, JournalEntry
from perdure.jobs.saga import (
    UNDO_LIST,
    FindStep,
    PastPivot,
    Undo,
    is_irreversible,
    is_left_undone,
    is_listed,
    is_of_another,
    is_pivot,
    needs_compensation,
    undoes,
)
from perdure.jobs.state import StepState

# Undo

_FEW: Final = 3  # effects that an undo names

UndoKind: TypeAlias = Literal["compensation", "effect", "child"]


class UndoItem(Struct, frozen=True, kw_only=True):
    """One thing that would be undone, or was."""

    id: str  # "undo:charge#1"
    step: str
    seq: int
    kind: UndoKind  # by the compensation of its step, by its own undo, or as a whole child job
    what: str
    by: str | None  # the step that undoes an effect
    effect: int | None
    child: str | None
    state: StepState  # PENDING until the undo has begun
    left_undone: bool  # a person has abandoned it
    doubtful: bool  # nobody knows whether it happened
    known: bool  # False: the step is not known here; only a worker knows whether it is undone


class UndoRemains(Struct, frozen=True, kw_only=True):
    """One thing that would not be undone."""

    step: str
    effect: int | None
    what: str
    why: str


class UndoPreview(Struct, frozen=True, kw_only=True):
    """What would be undone now, in order, and what would not.

    `plain` counts the steps that have done nothing that could be undone.
    """

    begun: bool  # the list is stored, and this is how far it is …
    ended: bool  # … or was, when the job ended
    pivot: str | None  # the pivot that was passed: nothing is undone any more
    items: tuple[UndoItem, ...]
    remains: tuple[UndoRemains, ...]
    plain: int


def undo_preview(
    planned: Sequence[Undo] | PastPivot,
    journal: Sequence[JournalEntry],
    ledger: Sequence[Effect],
    find: FindStep,
    *,
    ended: bool,
) -> UndoPreview:
    """Return what would be undone, or the list that is stored, and what would not be undone."""
    begun = is_listed(journal)
    pivot = planned.pivot if isinstance(planned, PastPivot) and not begun else None
    undos = stored_undos(journal) if begun else () if isinstance(planned, PastPivot) else planned
    facts = _Facts(undos, journal, ledger, find)
    items = tuple(facts.item(undo) for undo in undos)
    remains = (*facts.effects_left(pivot), *_steps_left(journal, find))
    touched = {each.step for each in (*items, *remains)}
    plain = [each for each in journal if each.kind is EntryKind.STEP and each.id not in touched]
    return UndoPreview(
        begun=begun,
        ended=begun and ended,
        pivot=pivot,
        items=items,
        remains=remains,
        plain=len(plain),
    )


def stored_undos(journal: Iterable[JournalEntry]) -> tuple[Undo, ...]:
    """Return the undo list that is stored in a journal, in order."""
    entries = sorted(
        (each for each in journal if each.kind is EntryKind.UNDO and each.id != UNDO_LIST),
        key=lambda each: each.seq,
    )
    return tuple(msgspec.json.decode(each.input, type=Undo) for each in entries if each.input)


class _Facts:
    """The journal and the ledger of a job by what undoes what; a job may have thousands of each."""

    def __init__(
        self,
        undos: Sequence[Undo],
        journal: Sequence[JournalEntry],
        ledger: Sequence[Effect],
        find: FindStep,
    ) -> None:
        self._find = find
        self._ledger = ledger
        self._entries = {entry.id: entry for entry in journal}
        self._undo_ids = {undo.id for undo in undos}
        self._by_no = {effect.no: effect for effect in ledger}
        self._of_effect = {undo.effect: undo for undo in undos if undo.effect is not None}
        self._of_step = {undo.step: undo for undo in undos if undo.effect is None}
        self._undone: dict[str, list[Effect]] = {}
        for effect in ledger:
            if (undo := self._undo_of(effect)) is not None:
                self._undone.setdefault(undo.id, []).append(effect)

    def _undo_of(self, effect: Effect) -> Undo | None:
        """Return what undoes an effect."""
        for undo in (self._of_effect.get(effect.no), self._of_step.get(effect.place.step)):
            if undo is not None and undoes(undo, effect):
                return undo
        return None

    def item(self, undo: Undo) -> UndoItem:
        """Return an undo for people."""
        lines = self._undone.get(undo.id, [])
        stored, step = self._entries.get(undo.id), self._entries.get(undo.step)
        effect = None if undo.effect is None else self._by_no.get(undo.effect)
        told = [_told(each) for each in lines[:_FEW]]
        more = [f"{len(lines) - _FEW} more"] if len(lines) > _FEW else []
        return UndoItem(
            id=undo.id,
            step=undo.step,
            seq=undo.seq,
            kind="child" if undo.child else "compensation" if effect is None else "effect",
            what=", ".join([*told, *more]) or undo.child or undo.step,
            by=None if effect is None or effect.undo is None else effect.undo.step,
            effect=undo.effect,
            child=undo.child,
            state=StepState.PENDING if stored is None else stored.state,
            left_undone=stored is not None and is_left_undone(stored),
            doubtful=any(each.state in OPEN for each in lines),
            known=undo.child is not None or step is None or _is_known(step, self._find),
        )

    def effects_left(self, pivot: str | None) -> Iterable[UndoRemains]:
        """Yield the effects that happened, or may have, and that nothing undoes."""
        for effect in self._ledger:
            happened = effect.state in HAPPENED or effect.state is EffectState.BORROWED
            by_undo = effect.place.step in self._undo_ids  # a refund, for example
            if happened and not by_undo and self._undo_of(effect) is None:
                why = self._why_left(effect, pivot)
                step, what = effect.place.step, _told(effect)
                yield UndoRemains(step=step, effect=effect.no, what=what, why=why)

    def _why_left(self, effect: Effect, pivot: str | None) -> str:
        entry = self._entries.get(effect.place.step)
        if effect.state is EffectState.BORROWED:
            return f"job {effect.proof} did it" if effect.proof else "another job did it"
        if pivot is not None:
            return f"the pivot {pivot} is passed"
        if effect.stays:
            return "the code says that it may stay"
        if entry is not None and (
            is_irreversible(entry, self._find) or is_pivot(entry, self._find)
        ):
            return "its step is irreversible, or a pivot"
        if effect.state is EffectState.INTENT:
            return "it is under way; it is undone once its outcome is known"
        return "nothing undoes it: neither it nor its step has an undo"

    def _is_final(self, entry: JournalEntry) -> bool:
        return is_irreversible(entry, self._find) or is_pivot(entry, self._find)


def _is_known(entry: JournalEntry, find: FindStep) -> bool:
    try:
        find(entry.name)
    except UnknownName:
        return False
    return True


def _told(effect: Effect) -> str:
    return f"{effect.kind} to {effect.target}"


def _steps_left(journal: Iterable[JournalEntry], find: FindStep) -> Iterable[UndoRemains]:
    """Yield the steps whose compensation does not run, since somebody else did their work."""
    for entry in journal:
        if entry.kind is EntryKind.STEP and is_of_another(entry) and _has_undo(entry, find):
            by_hand = entry.state is StepState.SKIPPED
            why = (
                "a person said that it is done" if by_hand else "the job it was forked from did it"
            )
            yield UndoRemains(step=entry.id, effect=None, what=entry.id, why=why)


def _has_undo(entry: JournalEntry, find: FindStep) -> bool:
    return _is_known(entry, find) and needs_compensation(entry, find)


# Fork

ForkOutcome: TypeAlias = Literal["skipped", "repeats", "cancelled"]


class ForkEntry(Struct, frozen=True, kw_only=True):
    """An entry of the journal, and what a fork makes of it."""

    id: str
    seq: int
    kind: EntryKind
    outcome: Literal["reused", "anew"]
    why: str


class ForkEffect(Struct, frozen=True, kw_only=True):
    """An effect of the job, and what a fork makes of it."""

    no: int
    step: str
    what: str
    outcome: ForkOutcome
    why: str


class ForkPreview(Struct, frozen=True, kw_only=True):
    """What a fork before a step would reuse, do anew, and leave."""

    before: str
    refused: str | None  # why it cannot be forked there
    entries: tuple[ForkEntry, ...]
    effects: tuple[ForkEffect, ...]


_DONE = frozenset({StepState.SUCCEEDED, StepState.SKIPPED, StepState.FAILED})


def fork_preview(
    before: JournalEntry,
    journal: Sequence[JournalEntry],
    ledger: Sequence[Effect],
    refused: str | None,
) -> ForkPreview:
    """Return what a fork before an entry would do, if the code takes the same way again."""
    entries = tuple(
        _forked(entry, before.seq) for entry in journal if entry.kind is not EntryKind.UNDO
    )
    reused = {entry.id for entry in entries if entry.outcome == "reused"}
    effects = tuple(_forked_effect(effect, reused) for effect in ledger)
    return ForkPreview(before=before.id, refused=refused, entries=entries, effects=effects)


def _forked(entry: JournalEntry, before: int) -> ForkEntry:
    reused = False
    if entry.seq >= before:
        why = "it comes after the place of the fork"
    elif entry.kind is EntryKind.APPROVE and entry.state is not StepState.FAILED:
        why = "people are asked again"
    elif entry.state not in _DONE:
        why = f"it is {entry.state}"
    else:
        reused, why = True, "its result is copied"
    outcome: Literal["reused", "anew"] = "reused" if reused else "anew"
    return ForkEntry(id=entry.id, seq=entry.seq, kind=entry.kind, outcome=outcome, why=why)


def _forked_effect(effect: Effect, reused: set[str]) -> ForkEffect:
    outcome, why = _fork_outcome(effect, reused)
    return ForkEffect(
        no=effect.no, step=effect.place.step, what=_told(effect), outcome=outcome, why=why
    )


def _fork_outcome(effect: Effect, reused: set[str]) -> tuple[ForkOutcome, str]:
    if effect.place.step in reused:
        return "skipped", "its step is not run again"
    if effect.business is not None and effect.state in (EffectState.DONE, EffectState.BORROWED):
        return "skipped", "its key is known across all jobs: the result is taken over"
    if effect.state is EffectState.UNDONE:
        return "cancelled", "it was undone; the fork does it again if its code asks for it"
    if effect.state is EffectState.FAILED:
        return "repeats", "it did not happen; the fork calls it with a key of its own"
    return "repeats", "the fork calls it with a key of its own: it happens a second time"
