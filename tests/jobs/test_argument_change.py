"""Changes inside of arguments: what they are not about stays as it is stored."""

from typing import Any

import pytest
from msgspec import UNSET

from perdure.base.codec import write_plain
from perdure.base.errors import ArgumentError
from perdure.jobs.argument_change import ArgumentChange, ArgumentEdit

STORED = {"usd": 5, "to": {"iban": "DE02", "name": "kim"}, "rows": [{"pin": "1", "n": 1}, {"n": 2}]}


def edited(*changes: tuple[list[str | int], Any]) -> dict[str, Any]:
    found = tuple(ArgumentChange(path=path, value=value) for path, value in changes)
    return ArgumentEdit(changes=found).of(write_plain(STORED))


@pytest.mark.parametrize(
    ("path", "value", "changed"),
    [
        (["usd"], 4, {"usd": 4}),
        (["note"], "new", {"note": "new"}),
        (["to", "name"], "lee", {"to": {"iban": "DE02", "name": "lee"}}),
        (["to", "city"], "Bonn", {"to": {"iban": "DE02", "name": "kim", "city": "Bonn"}}),
        (["to", "name"], UNSET, {"to": {"iban": "DE02"}}),
        (["rows", 0, "n"], 7, {"rows": [{"pin": "1", "n": 7}, {"n": 2}]}),
        (["rows", 1], UNSET, {"rows": [{"pin": "1", "n": 1}]}),
    ],
)
def test_only_the_argument_that_a_change_is_about_differs(
    path: list[str | int], value: Any, changed: dict[str, Any]
) -> None:
    assert edited((path, value)) == changed


def test_several_changes_add_up() -> None:
    found = edited((["to", "name"], "lee"), (["to", "city"], "Bonn"), (["usd"], 4))
    assert found == {"to": {"iban": "DE02", "name": "lee", "city": "Bonn"}, "usd": 4}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ([], 1),
        ([0], 1),
        (["usd"], UNSET),
        (["usd", "x"], 1),
        (["nobody", "x"], 1),
        (["to", "x", "y"], 1),
        (["to", 0], 1),
        (["to", "x"], UNSET),
        (["rows", 2], 1),
        (["rows", -1], 1),
        (["rows", "0"], 1),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(path: list[str | int], value: Any) -> None:
    with pytest.raises(ArgumentError, match="there is no"):
        edited((path, value))
