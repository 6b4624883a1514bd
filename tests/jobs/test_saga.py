from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.base.errors import UnknownName
from perdure.engine.registry import JobRegistry
from perdure.jobs.effect import Effect, EffectState, Place, UndoCall
from perdure.jobs.model import EntryKind, JournalEntry
from perdure.jobs.saga import (
    PastPivot,
    Undo,
    UndoFinished,
    UndoNext,
    UndoStopped,
    next_undo,
    undo_list,
    undoes,
)
from perdure.jobs.state import StepState

registry = JobRegistry()


@registry.step
async def charge(ctx: Any) -> str:
    return "c-1"


@charge.compensate
async def refund(ctx: Any, output: str | None) -> None: ...


@registry.step
async def reserve(ctx: Any) -> str:
    return "r-1"


@reserve.compensate
async def free(ctx: Any, output: str | None) -> None: ...


@registry.step
async def mail(ctx: Any) -> str:
    return "m-1"


@registry.step(pivot=True)
async def ship(ctx: Any) -> str:
    return "s-1"


def entry(
    seq: int, name: str, state: StepState = StepState.SUCCEEDED, attempt: int = 1
) -> JournalEntry:
    return JournalEntry(
        seq=seq, id=f"{name}#1", kind=EntryKind.STEP, name=name, state=state, attempt=attempt
    )


def effect(
    no: int, step: str, state: EffectState = EffectState.DONE, *, undo: bool = True
) -> Effect:
    return Effect(
        job_id="j",
        tenant="acme",
        no=no,
        place=Place(f"{step}#1", no),
        key=f"key {no}",
        kind="payment",
        target="bank",
        called_at=1.0,
        state=state,
        undo=UndoCall("refund") if undo else None,
    )


def ids(found: list[Undo] | PastPivot) -> list[str]:
    assert isinstance(found, list)
    return [undo.id for undo in found]


def test_steps_are_undone_in_the_reverse_order() -> None:
    journal = [entry(1, "reserve"), entry(2, "charge"), entry(3, "mail", StepState.FAILED)]
    assert ids(undo_list(journal, [], registry.find_step)) == ["undo:charge#1", "undo:reserve#1"]


@pytest.mark.parametrize("state", [StepState.FAILED, StepState.RUNNING, StepState.PENDING])
def test_the_step_that_failed_or_was_interrupted_is_undone_too(state: StepState) -> None:
    journal = [entry(1, "reserve"), entry(2, "charge", state, attempt=1)]
    assert ids(undo_list(journal, [], registry.find_step)) == ["undo:charge#1", "undo:reserve#1"]


def test_a_step_that_never_began_is_not_undone() -> None:
    journal = [entry(1, "reserve"), entry(2, "charge", StepState.PENDING, attempt=0)]
    assert ids(undo_list(journal, [], registry.find_step)) == ["undo:reserve#1"]


def test_a_step_that_a_person_skipped_is_not_undone_but_its_effects_are() -> None:
    journal = [entry(1, "charge", StepState.SKIPPED)]
    assert ids(undo_list(journal, [], registry.find_step)) == []
    assert ids(undo_list(journal, [effect(1, "charge")], registry.find_step)) == ["undo:charge#1/1"]


@pytest.mark.parametrize("state", [EffectState.DONE, EffectState.IN_DOUBT, EffectState.INTENT])
def test_an_effect_that_may_have_happened_is_undone(state: EffectState) -> None:
    journal = [entry(1, "mail", StepState.FAILED)]
    assert ids(undo_list(journal, [effect(1, "mail", state)], registry.find_step)) == [
        "undo:mail#1/1"
    ]


def test_an_effect_that_certainly_did_not_happen_is_not_undone() -> None:
    journal = [entry(1, "mail", StepState.FAILED)]
    ledger = [effect(1, "mail", EffectState.FAILED)]
    assert ids(undo_list(journal, ledger, registry.find_step)) == []


def test_an_effect_without_an_undo_is_left_to_the_compensation_of_its_step() -> None:
    journal = [entry(1, "charge")]
    ledger = [effect(1, "charge", undo=False)]
    assert ids(undo_list(journal, ledger, registry.find_step)) == ["undo:charge#1"]


def test_effects_of_parallel_steps_are_undone_in_the_order_in_which_they_happened() -> None:
    journal = [entry(1, "mail"), entry(2, "ghost")]
    ledger = [effect(1, "mail"), effect(2, "ghost"), effect(3, "mail"), effect(4, "ghost")]
    found = ids(undo_list(journal, ledger, lambda name: registry.find_step("mail")))
    assert found == ["undo:ghost#1/4", "undo:mail#1/3", "undo:ghost#1/2", "undo:mail#1/1"]


def test_a_step_is_compensated_before_its_effects_which_came_before_its_end() -> None:
    journal = [entry(1, "reserve"), entry(2, "charge"), entry(3, "mail")]
    ledger = [effect(1, "charge"), effect(2, "charge"), effect(3, "mail")]
    assert ids(undo_list(journal, ledger, registry.find_step)) == [
        "undo:mail#1/3",
        "undo:charge#1",
        "undo:charge#1/2",
        "undo:charge#1/1",
        "undo:reserve#1",
    ]


def test_a_step_that_the_code_has_no_more_is_not_passed_over_in_silence() -> None:
    journal = [entry(1, "gone")]
    with pytest.raises(UnknownName):
        registry.find_step("gone")
    assert ids(undo_list(journal, [], registry.find_step)) == ["undo:gone#1"]


def test_sleeps_messages_and_earlier_undos_are_not_undone() -> None:
    journal = [replace(entry(1, "charge"), kind=kind) for kind in EntryKind if kind != "step"]
    assert ids(undo_list(journal, [], registry.find_step)) == []


# Pivots


@pytest.mark.parametrize("state", [StepState.SUCCEEDED, StepState.RUNNING, StepState.PENDING])
def test_after_a_pivot_there_is_no_way_back(state: StepState) -> None:
    journal = [entry(1, "charge"), entry(2, "ship", state), entry(3, "mail", StepState.FAILED)]
    assert undo_list(journal, [], registry.find_step) == PastPivot("ship#1")


def test_a_pivot_that_failed_without_a_trace_was_not_passed() -> None:
    journal = [entry(1, "charge"), entry(2, "ship", StepState.FAILED)]
    refused = effect(1, "ship", EffectState.FAILED)
    assert ids(undo_list(journal, [refused], registry.find_step)) == ["undo:charge#1"]


def test_a_pivot_that_failed_but_may_have_acted_counts_as_passed() -> None:
    journal = [entry(1, "charge"), entry(2, "ship", StepState.FAILED)]
    doubt = effect(1, "ship", EffectState.IN_DOUBT)
    assert undo_list(journal, [doubt], registry.find_step) == PastPivot("ship#1")


def test_a_child_is_undone_in_its_place_and_never_taken_for_a_step_of_its_name() -> None:
    child = replace(entry(2, "ship"), kind=EntryKind.CHILD)
    journal = [entry(1, "reserve"), child, entry(3, "charge")]
    assert ids(undo_list(journal, [], registry.find_step)) == ["undo:charge#1", "undo:reserve#1"]
    found = undo_list(journal, [], registry.find_step, {"ship#1": "job 7"})
    assert ids(found) == ["undo:charge#1", "undo:ship#1", "undo:reserve#1"]
    assert not isinstance(found, PastPivot)
    assert [undo.child for undo in found] == [None, "job 7", None]


# Running the list

UNDOS = [Undo(f"undo:s#{n}", f"s#{n}", n) for n in range(5, 0, -1)]


def test_a_failed_undo_stops_the_rest() -> None:
    states = {UNDOS[0].id: StepState.SUCCEEDED, UNDOS[1].id: StepState.FAILED}
    assert next_undo(UNDOS, states) == UndoStopped(UNDOS[1])


def test_the_rest_goes_on_if_the_policy_says_so_and_the_failure_is_not_forgotten() -> None:
    states = {UNDOS[1].id: StepState.FAILED, UNDOS[0].id: StepState.SUCCEEDED}
    assert next_undo(UNDOS, states, "continue") == UndoNext(UNDOS[2])
    rest = {undo.id: StepState.SUCCEEDED for undo in UNDOS} | {UNDOS[1].id: StepState.FAILED}
    assert next_undo(UNDOS, rest, "continue") == UndoFinished((UNDOS[1],))


def test_an_undo_that_a_person_did_by_hand_counts_as_done() -> None:
    states = {undo.id: StepState.SKIPPED for undo in UNDOS}
    assert next_undo(UNDOS, states) == UndoFinished()


@given(st.lists(st.sampled_from(["crash", "done"])))
def test_crashes_neither_repeat_nor_skip_an_undo_and_keep_the_order(fates: list[str]) -> None:
    states: dict[str, StepState] = {}
    done: list[Undo] = []
    for fate in [*fates, *["done"] * len(UNDOS)]:
        step = next_undo(UNDOS, states)
        if isinstance(step, UndoFinished):
            break
        assert isinstance(step, UndoNext)
        states[step.undo.id] = StepState.RUNNING
        if fate == "done":
            states[step.undo.id] = StepState.SUCCEEDED
            done.append(step.undo)
    assert done == UNDOS
    assert next_undo(UNDOS, states) == UndoFinished()


def test_what_was_borrowed_first_and_then_done_by_the_step_itself_is_undone() -> None:
    borrowed = effect(1, "charge", EffectState.BORROWED, undo=False)
    own = replace(effect(2, "charge", undo=False), place=borrowed.place)
    journal = [entry(1, "charge")]
    assert ids(undo_list(journal, [borrowed], registry.find_step)) == []
    assert ids(undo_list(journal, [borrowed, own], registry.find_step)) == ["undo:charge#1"]


def test_what_the_code_says_may_stay_is_not_undone_with_its_step() -> None:
    undo = Undo("undo:charge#1", "charge#1", 1)
    one = effect(1, "charge", undo=False)
    assert undoes(undo, one)
    assert not undoes(undo, replace(one, stays=True))
