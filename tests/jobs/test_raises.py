"""Exceptions that are outcomes: stored with what they hold, and given back as they were."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import attrs
import pytest

from perdure.base.errors import DefinitionError, Drift
from perdure.jobs.definition import check_raises
from perdure.jobs.failure import Failure, failure_of


class Plain(Exception):
    pass


class Special(Plain):
    pass


class Declined(Exception):
    def __init__(self, code: str, due: date, *, tries: int = 1) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.due = due
        self.tries = tries


@dataclass
class TooExpensive(Exception):
    price: Decimal
    parts: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"costs {self.price}"


@dataclass(frozen=True, slots=True)
class Frozen(Exception):
    code: int


@attrs.define(auto_exc=True)
class OfAttrs(Exception):
    code: int
    when: date


def back(error: Exception, *raises: type[Exception]) -> Any:
    packed = failure_of(error, raises=raises or (type(error),)).pack()
    return Failure.unpack(packed).raised(raises or (type(error),))


@pytest.mark.parametrize(
    "error",
    [
        Plain(),
        Plain("why", 3, None, ["list"]),
        Declined("51", date(2026, 5, 1), tries=3),
        TooExpensive(Decimal("3.10"), (1, 2)),
        Frozen(7),
        OfAttrs(3, date(2026, 5, 1)),
    ],
)
def test_an_exception_comes_back_with_its_type_its_data_and_its_text(error: Exception) -> None:
    found = back(error)
    assert type(found) is type(error)
    assert found.args == error.args
    assert (str(found), repr(found)) == (str(error), repr(error))
    for name in ("code", "due", "tries", "price", "parts", "when"):
        if hasattr(error, name):
            assert getattr(found, name) == getattr(error, name)
            assert type(getattr(found, name)) is type(getattr(error, name))


def test_a_subclass_of_what_is_declared_comes_back_as_itself() -> None:
    assert type(back(Special("x"), Plain)) is Special


def test_a_class_is_found_though_its_module_was_run_as_a_script() -> None:
    failure = failure_of(Plain("x"), raises=(Plain,))
    found = Failure.unpack(failure.pack().replace(b"tests.jobs.test_raises.", b"__main__."))
    assert type(found.raised((Plain,))) is Plain


def test_what_is_not_declared_does_not_come_back() -> None:
    assert failure_of(Plain("x")).raised((Plain,)) is None
    assert failure_of(Plain("x"), raises=(Plain,)).raised((Declined,)) is None
    assert not failure_of(Plain("x")).is_outcome


def test_what_cannot_be_stored_says_so() -> None:
    failure = failure_of(Plain(object()), raises=(Plain,))
    assert not failure.is_outcome
    assert "cannot be stored as it is: Plain.args" in failure.message


def test_what_does_not_fit_its_class_any_more_is_drift() -> None:
    failure = failure_of(Declined("51", date(2026, 5, 1)), raises=(Declined,))
    changed = Failure.unpack(failure.pack().replace(b'"2026-05-01"', b'"May"'))
    with pytest.raises(Drift, match="due"):
        changed.raised((Declined,))


def test_an_outcome_is_neither_retried_nor_an_outage() -> None:
    class Away(ConnectionError):
        pass

    failure = failure_of(Away("x"), outage=True, raises=(Away,))
    assert (failure.permanent, failure.outage) == (True, False)


@pytest.mark.parametrize("wrong", [Exception, BaseException, KeyboardInterrupt, int, "Plain", 3])
def test_only_exceptions_of_one_s_own_are_outcomes(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="raises of step 'a'"):
        check_raises((wrong,), "step 'a'")
    assert check_raises(Plain, "step 'a'") == (Plain,)


def test_two_outcomes_of_one_name_cannot_be_told_apart() -> None:
    other = type("Plain", (Exception,), {})
    with pytest.raises(DefinitionError, match="the same name"):
        check_raises((Plain, other), "step 'a'")


@pytest.mark.parametrize("held", ["x", "\ud800", '{"n":1}', "7", 8, None], ids=repr)
def test_what_an_exception_holds_is_never_read_as_our_quotation(held: object) -> None:
    assert back(Plain({"quoted_json": held})).args == ({"quoted_json": held},)
