import json
from dataclasses import dataclass

import pytest

import perdure
from perdure.base.errors import StepFailed, StepTimeout
from perdure.jobs.failure import LONGEST_MESSAGE, LONGEST_TRACE, Failure, failure_of


class Broken(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def caught(error: Exception) -> Exception:
    try:
        raise error
    except Exception as same:  # noqa: BLE001
        return same


def test_an_exception_is_kept_as_data_and_comes_back() -> None:
    failure = failure_of(caught(KeyError("x")), attempt=3, permanent=True, outage=True)
    assert (failure.type, failure.message, failure.attempt) == ("KeyError", "'x'", 3)
    assert "test_failure.py" in failure.trace
    assert Failure.unpack(failure.pack()) == failure
    assert failure.summary() == "KeyError: 'x'"


def test_the_class_is_named_with_its_module() -> None:
    assert failure_of(json.JSONDecodeError("x", "", 0)).type == "json.decoder.JSONDecodeError"


def test_a_group_of_errors_says_what_is_in_it() -> None:
    inner = ExceptionGroup("inner", [KeyError("x"), Broken()])
    failure = failure_of(caught(ExceptionGroup("two", [ValueError("no"), inner])))
    assert failure.message == (
        "two (2 sub-exceptions): ValueError: no; ExceptionGroup: inner (2 sub-exceptions): "
        "KeyError: 'x'; Broken: <Broken: its text raised ValueError>"
    )


def test_a_job_sees_the_same_error_at_every_run() -> None:
    failure = failure_of(ValueError("x"), 4)
    error = Failure.unpack(failure.pack()).as_error("pay#1")
    assert isinstance(error, StepFailed)
    assert str(error) == "step pay#1 failed after 4 attempts: ValueError: x"


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 100_000, "\udcff" * 50_000])
def test_whatever_an_error_says_can_be_stored(text: str) -> None:
    failure = failure_of(caught(ValueError(text)))
    data = failure.pack()
    assert b"\\u0000" not in data
    assert Failure.unpack(data) == failure
    assert len(failure.message) <= LONGEST_MESSAGE
    assert len(failure.trace) <= LONGEST_TRACE


def test_an_error_without_a_text_is_kept_all_the_same() -> None:
    failure = failure_of(caught(Broken()))
    assert failure.type.endswith("Broken")
    assert "its text raised ValueError" in failure.message


def test_of_a_long_traceback_the_end_is_kept() -> None:
    def down(levels: int) -> None:
        if levels == 0:
            raise ValueError("the bottom")
        up(levels - 1)  # two in turn, or the traceback would tell repeated lines as one

    def up(levels: int) -> None:
        down(levels)

    with pytest.raises(ValueError, match="the bottom") as info:
        down(200)
    assert failure_of(info.value).trace.endswith("ValueError: the bottom\n")


def test_our_own_errors_are_named_as_people_import_them() -> None:
    assert failure_of(StepTimeout("late")).type == "perdure.errors.StepTimeout"
    assert hasattr(perdure.errors, "StepTimeout")


@dataclass
class Details:
    """Of a framework, whose types only a type checker knows."""

    items: "list[OnlyForTypeCheckers]"  # noqa: F821  # pyright: ignore[reportUndefinedVariable] - as in the OpenAI Agents SDK


class Foreign(Exception):
    """Of a framework: no store knows the type of what it holds."""

    details: Details | None = None

    def __init__(self, text: str) -> None:
        self.details = None
        super().__init__(text)


def test_an_exception_comes_back_though_no_store_knows_the_types_that_it_declares() -> None:
    back = failure_of(Foreign("odd"), raises=(Foreign,)).raised((Foreign,))
    assert isinstance(back, Foreign)
    assert (str(back), back.details) == ("odd", None)
