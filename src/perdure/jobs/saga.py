"""What must be undone when a job fails, and in which order; pure.

The undo list is made from the ledger of effects and the journal, latest first:

* every effect with an `undo` of its own that happened, or may have;
* every step with a compensation that was started, including one that failed or was interrupted,
  unless one of its effects is borrowed: the compensation would undo what another job did;
* every child job that has something to undo, however it ended.

The list is stored before it is started, and runs as ordinary steps. After a pivot nothing is
undone: the job can only go forward, with the help of a person.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from perdure.base.codec import encode
from perdure.base.errors import UnknownName
from perdure.jobs.definition import CLOSURE, OnUndoFailure
from perdure.jobs.effect import HAPPENED, UNDOABLE, Effect, EffectState
from perdure.jobs.model import EntryKind, JournalEntry
from perdure.jobs.state import StepState


class UndoTraits(Protocol):
    """What the definition of a step says about its undo; a `Step` has it."""

    @property
    def undo(self) -> object | None:
        """Its compensation, if it has one."""
        ...

    @property
    def pivot(self) -> bool:
        """Whether nothing is undone after it."""
        ...

    @property
    def irreversible(self) -> bool:
        """Whether what it does cannot be undone."""
        ...


FindStep: TypeAlias = Callable[[str], UndoTraits]  # raises UnknownName

_NONE: Final[Mapping[str, str]] = {}
# Without an attempt, a step in these states never started, or a person rejected it before it did.
_NOT_BEGUN: Final = frozenset({StepState.PENDING, StepState.FAILED})
_UNDONE: Final = frozenset({StepState.SUCCEEDED, StepState.SKIPPED})

# The output of an undo that a person abandoned, so that the rest of the list continues.
LEFT_UNDONE: Final = {"left_undone": True}
_LEFT_UNDONE: Final = encode(LEFT_UNDONE)
UNDO_LIST: Final = "undo"  # the identity of the entry that holds the list


class Undo(Struct, frozen=True):
    """One thing to undo: a step by its compensation, an effect by its own undo, or a child."""

    id: str  # its identity in the journal: "undo:charge#1", "undo:charge#1/3"
    step: str  # the identity of the step that is undone
    seq: int  # the position of that step in the journal
    effect: int | None = None  # the number of the effect in the ledger
    child: str | None = None  # the id of the child job


class PastPivot(Struct, frozen=True):
    """Nothing can be undone: the pivot is passed, or may be."""

    pivot: str


def undo_list(
    journal: Iterable[JournalEntry],
    ledger: Sequence[Effect],
    find: FindStep,
    children: Mapping[str, str] = _NONE,
) -> list[Undo] | PastPivot:
    """Return what must be undone, in the order to undo it.

    A step that the code no longer has is in the list: nobody knows whether it had a compensation.

    Args:
        journal: The journal of the job.
        ledger: The ledger of the job.
        find: Finds a step by its name.
        children: The child jobs to undo: the id of each by the id of its entry.
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
        theirs = entry.id in borrowers or is_of_another(entry)
        if not theirs and needs_compensation(entry, find):
            undo = Undo(f"undo:{entry.id}", entry.id, entry.seq, child=children.get(entry.id))
            # A step ends after its last effect; one without effects, after those before it.
            found.append(((max(own, default=last), 1, entry.seq), undo))
    return [undo for _, undo in sorted(found, key=lambda each: each[0], reverse=True)]


def standing(
    journal: Sequence[JournalEntry], ledger: Iterable[Effect], find: FindStep
) -> list[Effect]:
    """Return the effects that happened, or may have, and that nothing undoes.

    Effects that may stay by the code are left out: `undo=None`, an irreversible step, a pivot.
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
    return is_irreversible(entry, find) or is_pivot(entry, find)


def is_irreversible(entry: JournalEntry, find: FindStep) -> bool:
    """Whether the step is declared irreversible; False if the code no longer has it."""
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
    """Return the entries that did something, or may have, in the order of the code."""
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


def is_of_another(entry: JournalEntry) -> bool:
    """Whether a person did it, or the job from which this one was forked."""
    if entry.kind is EntryKind.CHILD:  # the child job exists, whatever a person said
        return False
    return entry.state is StepState.SKIPPED or (
        not entry.attempt and entry.state is StepState.SUCCEEDED
    )


def _borrowers(ledger: Sequence[Effect]) -> set[str]:
    """Return the steps with an effect that another job did, and that they did not do since."""
    own = {effect.place for effect in ledger if effect.state in HAPPENED}
    borrowed = {effect.place for effect in ledger if effect.state is EffectState.BORROWED}
    return {place.step for place in borrowed - own}


def needs_compensation(entry: JournalEntry, find: FindStep) -> bool:
    """Whether something must be done to undo a step or a child, or may have to be."""
    if entry.kind is EntryKind.CHILD:
        return True
    if entry.name.startswith(CLOSURE):
        return False
    try:
        return find(entry.name).undo is not None
    except UnknownName:
        return True


def _passed_pivot(
    steps: Sequence[JournalEntry], effects: Sequence[Effect], find: FindStep
) -> JournalEntry | None:
    """Return the last pivot that was passed, or may have been."""
    acted = {effect.place.step for effect in effects}
    for entry in reversed(steps):
        # A pivot that failed and left no effect was not passed.
        if is_pivot(entry, find) and (entry.state is not StepState.FAILED or entry.id in acted):
            return entry
    return None


def is_pivot(entry: JournalEntry, find: FindStep) -> bool:
    """Whether nothing is undone after this step; False if the code no longer has it."""
    if entry.kind is EntryKind.CHILD:
        return False
    try:
        return find(entry.name).pivot
    except UnknownName:
        return False


def undoes(undo: Undo, effect: Effect) -> bool:
    """Whether this undoes an effect: by its own undo, or together with its step."""
    if effect.state not in UNDOABLE or undo.child is not None:
        return False
    if undo.effect is not None:
        return effect.no == undo.effect
    return effect.place.step == undo.step and effect.undo is None and not effect.stays


# Running the list.


class UndoNext(Struct, frozen=True):
    """Undo this next."""

    undo: Undo


class UndoStopped(Struct, frozen=True):
    """An undo failed: a person must retry it, mark it as done, or abandon it."""

    failed: Undo


class UndoFinished(Struct, frozen=True):
    """The list is finished; a person must still handle those in `failed`."""

    failed: tuple[Undo, ...] = ()


def next_undo(
    undos: Sequence[Undo], states: Mapping[str, StepState], on_failure: OnUndoFailure = "stop"
) -> UndoNext | UndoStopped | UndoFinished:
    """Decide what to undo next, by the state of each; one that is not in `states` is pending."""
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
    """Whether the undo list of a job was made and stored."""
    return any(each.id == UNDO_LIST and each.state is StepState.SUCCEEDED for each in journal)


def has_failed(journal: Iterable[JournalEntry]) -> bool:
    """Whether some part of the list was not undone."""
    return any(
        each.kind is EntryKind.UNDO and (each.state is StepState.FAILED or is_left_undone(each))
        for each in journal
    )


def is_left_undone(entry: JournalEntry) -> bool:
    """Whether a person abandoned this undo."""
    return entry.state is StepState.SKIPPED and entry.output == _LEFT_UNDONE
