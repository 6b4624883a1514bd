from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.base.codec import Codec, PayloadLimits
from perdure.base.errors import Drift, IllegalTransition, Unstorable
from perdure.jobs.effect import (
    KEY_TTL,
    LONGEST_MARGIN,
    REFUSED_LATER,
    TRANSITIONS,
    AskPerson,
    AskReceiver,
    CallAgain,
    CallAnew,
    DidNotHappen,
    Effect,
    EffectState,
    Happened,
    Place,
    Unknown,
    UseResult,
    after_query,
    business_key,
    business_of,
    effect_key,
    pack_result,
    resolve,
    settled_by_person,
    settles_at,
    unpack_result,
)

PLACE = Place("send_mail#1", 1)
FOUND = Effect(
    job_id="j",
    tenant="acme",
    no=1,
    place=PLACE,
    key=effect_key("acme", "j", PLACE),
    kind="email",
    target="gateway",
    called_at=1000.0,
)
TEXT = Codec[Any](str, "the message id")
PLAIN = Codec[Any](Any, "the result")


# Keys


def test_the_key_is_the_same_at_every_attempt() -> None:
    again = Place("send_mail#1", 1)
    assert effect_key("acme", "j", PLACE) == effect_key("acme", "j", again)
    assert len(effect_key("acme", "j", PLACE)) == 64


@pytest.mark.parametrize(
    "other",
    [
        effect_key("other", "j", PLACE),
        effect_key("acme", "k", PLACE),
        effect_key("acme", "j", Place("send_mail#2", 1)),
        effect_key("acme", "j", Place("send_mail#1", 2)),
        effect_key("acme", "j", Place("send_mail#1", 1, "item-7")),
        effect_key("acme", "j", PLACE, generation=2),
    ],
)
def test_the_key_differs_with_every_part_of_the_identity(other: str) -> None:
    assert other != effect_key("acme", "j", PLACE)


identity = st.tuples(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))


@given(identity, identity)
def test_no_two_identities_have_one_key(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    def key(parts: tuple[str, str, str]) -> str:
        return effect_key(parts[0], parts[1], Place(parts[2], 1))

    assert (key(one) == key(other)) == (one == other)


def test_a_business_key_is_one_for_all_jobs_of_a_tenant_and_none_for_another() -> None:
    key = business_of("acme", "payment", "order-42")
    assert key == business_of("acme", "payment", "order-42")
    assert key != business_of("other", "payment", "order-42")
    assert key != business_of("acme", "email", "order-42")
    assert business_key(key) == business_key(key, generation=1)
    assert business_key(key) != business_key(key, generation=2)


# Transitions


@pytest.mark.parametrize(("old", "new"), [*product(EffectState, repeat=2)])
def test_only_the_transitions_of_the_table_are_made(old: EffectState, new: EffectState) -> None:
    effect = replace(FOUND, state=old)
    if new in TRANSITIONS[old]:
        changed = effect.to(new, 1001.0)
        assert (changed.state, changed.ended_at) == (new, 1001.0)
    else:
        with pytest.raises(IllegalTransition, match="effect 1 of job j"):
            effect.to(new, 1001.0)


def test_what_is_done_or_failed_stays_so() -> None:
    assert TRANSITIONS[EffectState.DONE] == {EffectState.UNDONE}
    assert not TRANSITIONS[EffectState.FAILED]
    assert not TRANSITIONS[EffectState.UNDONE]


# Resolution


def test_only_done_answers_for_a_call() -> None:
    states = [
        state
        for state in EffectState
        if resolve(replace(FOUND, state=state), 1001.0, can_query=False) == UseResult()
    ]
    assert states == [EffectState.DONE]


def test_what_certainly_did_not_happen_is_called_with_the_key_of_the_next_generation() -> None:
    failed = replace(FOUND, state=EffectState.FAILED, generation=3)
    assert resolve(failed, 1001.0, can_query=True) == CallAnew(4)


@pytest.mark.parametrize("state", [EffectState.INTENT, EffectState.IN_DOUBT])
def test_an_open_effect_is_replayed_only_if_the_receiver_knows_keys(state: EffectState) -> None:
    found = replace(FOUND, state=state)
    assert resolve(replace(found, in_doubt="replay"), 1001.0, can_query=False) == CallAgain()
    asked = resolve(found, 1001.0, can_query=False)
    assert isinstance(asked, AskPerson)


@pytest.mark.parametrize("state", [EffectState.INTENT, EffectState.IN_DOUBT])
def test_a_receiver_that_can_be_asked_is_asked_first(state: EffectState) -> None:
    found = replace(FOUND, state=state, in_doubt="replay")
    assert resolve(found, 1001.0, can_query=True) == AskReceiver()


def test_a_key_is_not_used_near_the_end_of_its_life_or_later() -> None:
    found = replace(FOUND, in_doubt="replay", key_ttl=3600.0)
    last = 1000.0 + 3600.0 - LONGEST_MARGIN
    assert resolve(found, last - 1, can_query=False) == CallAgain()
    late = resolve(found, last, can_query=False)
    assert isinstance(late, AskPerson)
    assert "forgotten" in late.why


def test_a_short_life_has_a_short_margin() -> None:
    found = replace(FOUND, in_doubt="replay", key_ttl=10.0)
    assert resolve(found, 1008.9, can_query=False) == CallAgain()
    assert isinstance(resolve(found, 1009.0, can_query=False), AskPerson)


def test_a_receiver_that_does_not_say_how_long_it_knows_keys_is_trusted_for_a_day() -> None:
    found = replace(FOUND, in_doubt="replay")
    assert found.key_ttl == KEY_TTL == 86_400
    assert isinstance(resolve(found, 1000.0 + KEY_TTL, can_query=False), AskPerson)


def test_what_the_receiver_says_is_believed() -> None:
    found = replace(FOUND, in_doubt="ask")
    assert after_query(found, Happened("m-1"), 1001.0) == UseResult()
    assert after_query(found, DidNotHappen(), 1001.0) == CallAgain()


def test_a_receiver_that_cannot_tell_leaves_it_to_the_key_or_to_a_person() -> None:
    assert isinstance(after_query(FOUND, Unknown(), 1001.0), AskPerson)
    keyed = replace(FOUND, in_doubt="replay")
    assert after_query(keyed, Unknown(), 1001.0) == CallAgain()
    assert isinstance(after_query(keyed, Unknown(), 1000.0 + KEY_TTL), AskPerson)


def test_after_a_refused_repetition_nobody_calls_with_that_key_again() -> None:
    found = replace(
        FOUND, state=EffectState.IN_DOUBT, in_doubt="replay", proof=REFUSED_LATER, generation=2
    )
    assert resolve(found, 1001.0, can_query=True) == AskReceiver()
    assert isinstance(resolve(found, 1001.0, can_query=False), AskPerson)
    assert after_query(found, DidNotHappen(), 1001.0) == CallAnew(3)
    assert isinstance(after_query(found, Unknown(), 1001.0), AskPerson)


def test_the_receiver_can_be_asked_when_the_last_call_has_settled() -> None:
    assert settles_at(FOUND, 60.0) == 1060.0
    assert settles_at(replace(FOUND, last_called_at=1500.0), 60.0) == 1560.0


# What a person says


def test_a_person_says_that_it_happened_and_gives_the_reference() -> None:
    settled = settled_by_person(FOUND, "happened", "kim", 1002.0, b'"m-1"')
    assert (settled.state, settled.result, settled.proof) == (EffectState.DONE, b'"m-1"', "kim")
    assert unpack_result(settled, TEXT) == "m-1"


def test_a_person_says_that_it_did_not_happen_and_it_gets_a_new_key() -> None:
    settled = settled_by_person(FOUND, "did not happen", "kim", 1002.0)
    assert settled.state is EffectState.FAILED
    assert resolve(settled, 1003.0, can_query=False) == CallAnew(2)


def test_an_effect_that_is_to_be_compensated_stays_in_doubt() -> None:
    settled = settled_by_person(FOUND, "compensate", "kim", 1002.0)
    assert settled.state is EffectState.IN_DOUBT
    assert settled_by_person(settled, "compensate", "kim", 1003.0) == settled


@pytest.mark.parametrize("state", [EffectState.DONE, EffectState.FAILED])
def test_nobody_settles_what_is_settled(state: EffectState) -> None:
    with pytest.raises(IllegalTransition, match="not in doubt"):
        settled_by_person(replace(FOUND, state=state), "did not happen", "kim", 1002.0)


# Results


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text("abc"), st.lists))
def test_a_recorded_result_is_given_exactly(value: Any) -> None:
    packed = pack_result(value, PLAIN)
    assert packed.problem is None
    done = FOUND.to(EffectState.DONE, 1001.0, result=packed.data)
    assert unpack_result(done, PLAIN) == value


@pytest.mark.parametrize("value", ["\ud83d\ude00", float("nan"), object(), {1: {2, 3}}, "x" * 100])
def test_a_result_that_cannot_be_stored_is_described_and_never_called_for_again(value: Any) -> None:
    packed = pack_result(value, PLAIN, PayloadLimits(result=50))
    assert packed.problem is not None
    done = FOUND.to(EffectState.DONE, 1001.0, result=packed.data, problem=packed.problem)
    assert resolve(done, 1002.0, can_query=True) == UseResult()
    with pytest.raises(Unstorable, match="happened and is not repeated"):
        unpack_result(done, PLAIN)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_a_result_without_any_text_is_described_too() -> None:
    packed = pack_result(Unprintable(), PLAIN)
    assert b"Unprintable" in packed.data


def test_a_result_of_another_type_than_the_code_takes_now_is_a_drift() -> None:
    done = FOUND.to(EffectState.DONE, 1001.0, result=b"7")
    with pytest.raises(Drift):
        unpack_result(done, TEXT)
