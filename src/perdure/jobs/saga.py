"""What must be undone when a job fails, and in which order; pure.

The list is made of the ledger of effects and the journal, the later first:

* every effect with an `undo` of its own that has happened, or may have;
* every step with a compensation that has begun, also the one that failed or was interrupted,
  unless an effect of it is borrowed: its compensation would undo what another has done;
* every child that has something to undo, however it has ended.

It is stored before it is begun and run as ordinary steps. After a pivot nothing is undone:
the job can only go forward, with the help of a person.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from perdure.base.codec import encode
from perdure.base.errors import UnknownName
from perdure.jobs.definition import OnUndoFailure, Step
from perdure.jobs.effect import HAPPENED, UNDOABLE, Effect, EffectState
from perdure.jobs.model import EntryKind, JournalEntry
from perdure.jobs.state import StepState

FindStep: TypeAlias = Callable[[str], Step[..., Any]]  # raises UnknownName

_NONE: Final[Mapping[str, str]] = {}
# Without an attempt: not yet begun, or refused by a person before it began.
_NOT_BEGUN: Final = frozenset({StepState.PENDING, StepState.FAILED})
_UNDONE: Final = frozenset({StepState.SUCCEEDED, StepState.SKIPPED})

# What a person enters for an undo that failed, so that the rest goes on without it.
LEFT_UNDONE: Final = {"left_undone": True}
_LEFT_UNDONE: Final = encode(LEFT_UNDONE)
UNDO_LIST: Final = "undo"  # the identity of the first entry of a list


class Undo(Struct, frozen=True):
    """One thing to undo: a step by its compensation, an effect by its own undo, or a child."""

    id: str  # its identity in the journal: "undo:charge#1", "undo:charge#1/3"
    step: str  # the identity of the step whose deed it is
    seq: int  # the place of that step in the journal
    effect: int | None = None  # the number of the effect in the ledger
    child: str | None = None  # the id of the child job


class PastPivot(Struct, frozen=True):
    """There is no way back: the pivot is passed, or may be."""

    pivot: str


def undo_list(
    journal: Iterable[JournalEntry],
    ledger: Sequence[Effect],
    find: FindStep,
    children: Mapping[str, str] = _NONE,
) -> list[Undo] | PastPivot:
    """Give what must be undone, the first thing first.

    A step that the code has no more is in the list: nobody knows whether it had a compensation.

    Args:
        journal: Of the job.
        ledger: Of the job.
        find: Finds a step by its name.
        children: Those to undo: the id of the job by that of its entry.
    """
    happened = [effect for effect in ledger if effect.state in HAPPENED]
    steps = _begun(journal, happened, children)
    if (pivot := _passed_pivot(steps, happened, find)) is not None:
        return PastPivot(pivot.id)
    numbers = {entry.id: entry.seq for entry in steps}
    effects = [effect for effect in happened if effect.place.step in numbers]
    found = [
        ((effect.no, 0, 0), _undo_of_effect(effect, numbers[effect.place.step]))
        for effect in effects
        if effect.undo is not None
    ]
    last, borrowers = 0, _borrowers(ledger)
    for entry in steps:
        own = [effect.no for effect in effects if effect.place.step == entry.id]
        last = max([last, *own])
        theirs = entry.id in borrowers or _is_of_another(entry)
        if not theirs and _needs_compensation(entry, find):
            undo = Undo(f"undo:{entry.id}", entry.id, entry.seq, child=children.get(entry.id))
            # A step is over after its last effect; one without any, after those before it.
            found.append(((max(own, default=last), 1, entry.seq), undo))
    return [undo for _, undo in sorted(found, key=lambda each: each[0], reverse=True)]


def standing(
    journal: Sequence[JournalEntry], ledger: Iterable[Effect], find: FindStep
) -> list[Effect]:
    """Give the effects that have happened, or may have, and that nothing undoes or has undone.

    Not those of which the code says that they may stay: `undo=None`, an irreversible step, a pivot.
    """
    undone = {entry.id for entry in journal if entry.kind is EntryKind.UNDO}
    steps = {entry.id: entry for entry in journal if entry.kind is EntryKind.STEP}
    return [
        effect
        for effect in ledger
        if effect.state in HAPPENED
        and effect.place.step in steps
        and not effect.stays
        and undone.isdisjoint({_id_of(effect), f"undo:{effect.place.step}"})
        and not _may_stay(steps[effect.place.step], find)
    ]


def _may_stay(entry: JournalEntry, find: FindStep) -> bool:
    return is_irreversible(entry, find) or _is_pivot(entry, find)


def is_irreversible(entry: JournalEntry, find: FindStep) -> bool:
    """Whether the code says that a step cannot be undone; False if it has the step no more."""
    try:
        return find(entry.name).irreversible
    except UnknownName:
        return False


def _id_of(effect: Effect) -> str:
    return f"undo:{effect.place.step}/{effect.no}"


def _undo_of_effect(effect: Effect, seq: int) -> Undo:
    return Undo(_id_of(effect), effect.place.step, seq, effect.no)


def _begun(
    journal: Iterable[JournalEntry], effects: Iterable[Effect], children: Mapping[str, str]
) -> list[JournalEntry]:
    """List what has done something, or may have, in the order of the code."""
    acted = {effect.place.step for effect in effects}
    begun = [
        entry
        for entry in journal
        if entry.id in children
        or (
            entry.kind is EntryKind.STEP
            and (entry.attempt or entry.state not in _NOT_BEGUN or entry.id in acted)
        )
    ]
    return sorted(begun, key=lambda entry: entry.seq)


def _is_of_another(entry: JournalEntry) -> bool:
    """Tell whether a person, or the job of which this one is a fork, has done it."""
    if entry.kind is EntryKind.CHILD:  # it is there, whatever a person said of it
        return False
    return entry.state is StepState.SKIPPED or (
        not entry.attempt and entry.state is StepState.SUCCEEDED
    )


def _borrowers(ledger: Sequence[Effect]) -> set[str]:
    """Give the steps with an effect that another has done, and they have not since."""
    own = {effect.place for effect in ledger if effect.state in HAPPENED}
    borrowed = {effect.place for effect in ledger if effect.state is EffectState.BORROWED}
    return {place.step for place in borrowed - own}


def _needs_compensation(entry: JournalEntry, find: FindStep) -> bool:
    if entry.kind is EntryKind.CHILD:
        return True
    try:
        return find(entry.name).undo is not None
    except UnknownName:
        return True


def _passed_pivot(
    steps: Sequence[JournalEntry], effects: Sequence[Effect], find: FindStep
) -> JournalEntry | None:
    """Find the last pivot that was passed, or of which that cannot be ruled out."""
    acted = {effect.place.step for effect in effects}
    for entry in reversed(steps):
        # One that failed, and left no effect behind, has not been passed.
        if _is_pivot(entry, find) and (entry.state is not StepState.FAILED or entry.id in acted):
            return entry
    return None


def _is_pivot(entry: JournalEntry, find: FindStep) -> bool:
    if entry.kind is EntryKind.CHILD:
        return False
    try:
        return find(entry.name).pivot
    except UnknownName:
        return False


def undoes(undo: Undo, effect: Effect) -> bool:
    """Tell whether an effect is undone by this: by its own undo, or with its step."""
    if effect.state not in UNDOABLE or undo.child is not None:
        return False
    if undo.effect is not None:
        return effect.no == undo.effect
    return effect.place.step == undo.step and effect.undo is None and not effect.stays


# Running the list


class UndoNext(Struct, frozen=True):
    """Undo this next."""

    undo: Undo


class UndoStopped(Struct, frozen=True):
    """One could not be undone: a person must retry it, mark it as done, or let the rest go on."""

    failed: Undo


class UndoFinished(Struct, frozen=True):
    """Nothing is left to do; `failed` are those that a person must still see to."""

    failed: tuple[Undo, ...] = ()


def next_undo(
    undos: Sequence[Undo], states: Mapping[str, StepState], on_failure: OnUndoFailure = "stop"
) -> UndoNext | UndoStopped | UndoFinished:
    """Decide what to do next, by what became of each; one that is not in `states` is not begun."""
    failed: list[Undo] = []
    for undo in undos:
        state = states.get(undo.id, StepState.PENDING)
        if state is StepState.FAILED:
            if on_failure == "stop":
                return UndoStopped(undo)
            failed.append(undo)
        elif state not in _UNDONE:
            return UndoNext(undo)
    return UndoFinished(tuple(failed))


def is_listed(journal: Iterable[JournalEntry]) -> bool:
    """Tell whether the list of a job was made; one of which nothing came of is none."""
    return any(each.id == UNDO_LIST and each.state is StepState.SUCCEEDED for each in journal)


def has_failed(journal: Iterable[JournalEntry]) -> bool:
    """Tell whether a part of a list was not undone."""
    return any(
        each.kind is EntryKind.UNDO and (each.state is StepState.FAILED or is_left_undone(each))
        for each in journal
    )


def is_left_undone(entry: JournalEntry) -> bool:
    """Tell whether a person has an undo left undone."""
    return entry.state is StepState.SKIPPED and entry.output == _LEFT_UNDONE
