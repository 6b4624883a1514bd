"""The start order, against a plain model of what it must be."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.entries.resolve import Cycle, find_cycles, start_order

THINGS = "abcdefgh"


@st.composite
def needs_without_cycles(draw: st.DrawFn) -> dict[str, list[str]]:
    """Draw needs of which each points backwards in some order of all things."""
    order = draw(st.permutations(THINGS))
    return {
        each: draw(st.lists(st.sampled_from(order[:place]), max_size=3)) if place else []
        for place, each in enumerate(order)
    }


any_needs = st.dictionaries(
    st.sampled_from(THINGS), st.lists(st.sampled_from(THINGS), max_size=3), max_size=8
)


def all_below(needs: dict[str, list[str]], start: str) -> set[str]:
    """Give everything that something needs, directly or not; the model."""
    found: set[str] = set()
    new = set(needs.get(start, ()))
    while new:
        found |= new
        new = {each for one in new for each in needs.get(one, ())} - found
    return found


@given(needs_without_cycles(), st.lists(st.sampled_from(THINGS), unique=True))
def test_everything_comes_once_behind_what_it_needs_and_nothing_else_comes(
    needs: dict[str, list[str]], wanted: list[str]
) -> None:
    order = start_order(needs, wanted)

    assert len(order) == len(set(order))
    assert set(order) == set(wanted).union(*(all_below(needs, each) for each in wanted))
    for each in order:
        assert all(order.index(need) < order.index(each) for need in needs[each])


@given(st.lists(st.sampled_from(THINGS), unique=True))
def test_without_needs_the_order_is_the_given_one(wanted: list[str]) -> None:
    assert start_order(dict.fromkeys(THINGS, ()), wanted) == wanted


@given(any_needs)
def test_there_is_an_order_unless_something_needs_itself(needs: dict[str, list[str]]) -> None:
    in_a_ring = {each for each in needs if each in all_below(needs, each)}
    # What is not known is left out, and a ring through it is none.
    known = {each: [need for need in of if need in needs] for each, of in needs.items()}
    in_a_ring &= {each for each in known if each in all_below(known, each)}

    cycles = find_cycles(needs)

    members = [member for cycle in cycles for member in cycle.members]
    assert set(members) <= in_a_ring
    assert bool(cycles) == bool(in_a_ring)
    for cycle in cycles:
        ring = [*cycle.members, cycle.members[0]]
        assert all(after in needs[before] for before, after in pairwise(ring))
    if in_a_ring:
        with pytest.raises(Cycle):
            start_order(needs, needs)


def test_a_chain_of_any_length_has_an_order() -> None:
    chain = {str(n): [str(n + 1)] for n in range(50_000)}

    assert start_order({**chain, "50000": []}, ["0"])[0] == "50000"
