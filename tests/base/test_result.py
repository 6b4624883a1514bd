import pickle
from typing import Any

import pytest

from perdure.base.result import Err, Exited, Ok

RESULTS: list[Ok[Any] | Err[Any] | Exited[Any]] = [Ok(1), Err("timeout"), Exited(None)]


@pytest.mark.parametrize("empty", [None, 0, "", (), False])
def test_a_result_is_true_whatever_it_holds(empty: object) -> None:
    assert Ok(empty)
    assert Err(empty)
    assert Exited(empty)


def test_a_result_is_matched_by_its_content() -> None:
    def describe(result: Ok[int] | Err[str] | Exited[None] | None) -> str:
        match result:
            case Ok(value):
                return f"value {value}"
            case Err(error=error):
                return f"error {error}"
            case Exited(reason):
                return f"reason {reason}"
            case None:
                return "not yet"

    given = [Ok(1), Err("timeout"), Exited(None), None]
    assert [describe(each) for each in given] == [
        "value 1",
        "error timeout",
        "reason None",
        "not yet",
    ]


def test_a_result_prints_as_it_is_written() -> None:
    assert [repr(each) for each in RESULTS] == ["Ok(1)", "Err('timeout')", "Exited(None)"]


def test_results_are_equal_by_kind_and_content() -> None:
    assert Ok(1) == Ok(1)
    assert Ok(1) != Ok(2)
    assert Ok(1) != Err(1)
    assert {Ok(1), Ok(1), Err(1), Exited(1)} == {Ok(1), Err(1), Exited(1)}


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_cannot_be_changed(result: Any) -> None:
    (field,) = result.__struct_fields__
    with pytest.raises(AttributeError):
        setattr(result, field, 2)
    assert not hasattr(result, "__dict__")


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_can_travel_to_another_os_process(result: object) -> None:
    assert pickle.loads(pickle.dumps(result)) == result
