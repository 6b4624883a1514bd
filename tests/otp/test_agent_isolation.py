"""Agent: what it gives away is a copy, unless nobody can change it."""

import datetime as dt
import decimal
import threading
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from perdure import process
from perdure.errors import CallExit
from perdure.otp.agent import Agent, is_immutable, isolated
from perdure.testing import simulated
from tests.support.otp_servers import start_any


class Colour(Enum):
    RED = 1


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Frozen:
    value: Any


@dataclass
class Thawed:
    value: Any


class FrozenStruct(Struct, frozen=True):
    value: Any


class ThawedStruct(Struct):
    value: Any


class Loaded(tuple[Any, ...]):  # noqa: SLOT001 - that is the point
    """A tuple with a pocket."""


IMMUTABLE: list[Any] = [
    *(None, True, 1, 1.5, 2j, "text", b"bytes", (), (1, ("a", None)), frozenset({1, (2, 3)})),
    *(Colour.RED, Point(1, 2), Frozen(1), FrozenStruct("x"), Frozen((1, Frozen(2))), range(3), int),
    *(
        dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        dt.timedelta(1),
        decimal.Decimal(1),
        uuid.UUID(int=1),
    ),
    *(len, print),
]
MUTABLE: list[Any] = [
    *([], {}, set[int](), bytearray(b"x"), [1], {"a": 1}, (1, [2]), ((), ({},)), Point(1, [])),
    *(Thawed(1), ThawedStruct(1), Frozen([]), FrozenStruct({}), Loaded([1])),
]


@pytest.mark.parametrize("value", IMMUTABLE, ids=repr)
def test_what_nobody_can_change_is_given_as_it_is(value: Any) -> None:
    assert is_immutable(value)
    assert isolated(value) is value


@pytest.mark.parametrize("value", MUTABLE, ids=repr)
def test_what_somebody_could_change_is_copied(value: Any) -> None:
    assert not is_immutable(value)
    copy = isolated(value)
    assert copy is not value
    assert copy == value


json_like = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=10,
)


def containers(value: Any) -> set[int]:
    """Give the identities of everything in a value that can be changed."""
    if isinstance(value, dict):
        inner: list[Any] = list(value.values())  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list | tuple):
        inner = list(value)  # pyright: ignore[reportUnknownArgumentType]
    else:
        return set()
    own: set[int] = {id(value)} if isinstance(value, dict | list) else set()  # pyright: ignore[reportUnknownArgumentType]
    return own.union(*map(containers, inner))


@given(json_like)
def test_a_value_and_its_isolated_form_share_nothing_that_can_be_changed(value: Any) -> None:
    copy = isolated(value)
    assert copy == value
    assert containers(copy) & containers(value) == set()


@simulated
async def test_a_change_to_what_get_gave_does_not_reach_the_agent() -> None:
    agent = await Agent.start_link(lambda: {"a": [1]})
    mine = await agent.get(lambda state: state)
    mine["a"].append(2)
    inner = await agent.get_and_update(lambda state: (state["a"], state))
    inner.append(3)
    assert await agent.get(lambda state: state) == {"a": [1]}


@simulated
async def test_isolation_can_be_switched_off_for_a_call_and_for_an_agent() -> None:
    state: dict[str, int] = {"a": 1}
    one = await Agent.start_link(lambda: state)
    assert await one.get(lambda held: held, isolate=False) is state
    assert await one.get_and_update(lambda held: (held, held), isolate=False) is state
    two = await Agent.start_link(lambda: state, isolate=False)
    assert await two.get(lambda held: held) is state
    assert await two.get(lambda held: held, isolate=True) is not state


@simulated
async def test_what_cannot_be_copied_fails_the_call_and_spares_the_agent() -> None:
    agent = await start_any(lambda: [threading.Lock()])
    with pytest.raises(CallExit, match="isolate=False") as caught:
        await agent.get(lambda state: state)
    assert isinstance(caught.value.reason, TypeError)
    with pytest.raises(CallExit):
        await agent.get_and_update(lambda state: (state, "not taken"))
    assert process.alive(agent.pid)
    [lock] = await agent.get(lambda state: state, isolate=False)
    assert not lock.locked()
