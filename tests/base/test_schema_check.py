"""Plain JSON is checked by the schema of a type, as the type itself would check it."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct
from pydantic import BaseModel

from perdure.base.schema import json_schema
from perdure.base.schema_check import misfits


class Point(Struct, forbid_unknown_fields=True):
    x: int
    label: str = ""


@dataclass
class Line:
    points: list[Point]
    width: float = 1.0


class Order(BaseModel):
    amount: int
    note: str | None = None


@pytest.mark.parametrize(
    ("declared", "value", "problems"),
    [
        (int, 3, []),
        (int, True, ["it must be an integer, not a boolean"]),
        (float, 3, []),
        (str, None, ["it must be a string, not null"]),
        (list[int], [1, "2"], ["it[1] must be an integer, not a string"]),
        (dict[str, int], {"a": 1, "b": "2"}, ["it.b must be an integer, not a string"]),
        (tuple[int, str], [1, 2], ["it[1] must be a string, not an integer"]),
        (Literal["a", "b"], "c", ["it must be one of 'a', 'b'"]),
        (Point, {"x": 1}, []),
        (
            Point,
            {"label": 1, "z": 2},
            [
                "it.x is missing",
                "it.label must be a string, not an integer",
                "there is no it.z",
            ],
        ),
        (Line, {"points": [{"x": "1"}]}, ["it.points[0].x must be an integer, not a string"]),
        (int | None, None, []),
        (int | None, "1", ["it fits none of its alternatives"]),
        (Order, {"amount": 1, "note": "x"}, []),
        (Order, {"amount": "x"}, ["it.amount must be an integer, not a string"]),
        (Annotated[int, Meta(ge=1, lt=5)], 5, ["it must be less than 5"]),
        (
            Annotated[str, Meta(min_length=2, pattern="^a")],
            "b",
            [
                "it must have at least 2 characters",
                "it does not match '^a'",
            ],
        ),
        (Annotated[list[int], Meta(max_length=1)], [1, 2], ["it must have at most 1 items"]),
        (Any, {"what": ["ever"]}, []),
        (dict[str, object], {"what": ["ever"]}, []),
    ],
)
def test_a_value_is_checked(declared: Any, value: Any, problems: list[str]) -> None:
    assert misfits(json_schema(declared), value, "it") == problems


def test_a_recursive_type_is_checked_to_its_end() -> None:
    schema = {
        "$ref": "#/$defs/Tree",
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
            }
        },
    }
    assert misfits(schema, {"children": [{"children": []}]}, "it") == []
    assert misfits(schema, {"children": [{"children": 1}]}, "it") == [
        "it.children[0].children must be an array, not an integer"
    ]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "label", "points", "width"]), inner)
    ),
    max_leaves=6,
)


@given(PLAIN)
def test_it_agrees_with_the_type(value: Any) -> None:
    for declared in (int, str, Point, Line, list[Point], dict[str, int], int | None):
        try:
            msgspec.convert(value, declared)
            fits = True
        except msgspec.ValidationError:
            fits = False
        assert (misfits(json_schema(declared), value, "it") == []) == fits, declared
