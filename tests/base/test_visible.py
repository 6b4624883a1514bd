"""The one function that makes the words of others safe to show, and the logs that use it."""

import io
import json
import logging
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.base.visible import NAMES, visible, visible_json

HOSTILE = [
    "\x1b[2J\x1b[31mred",
    "\x9b31m",  # the same in one character
    "\r overwritten",
    "a\nRisk: LOW",
    "\u202egnp.exe",
    "\u2066a\u2069",
    "pay\u200bpal",
    "\ufeff",
    "\u3164",  # a letter that is blank
    "\u2800",  # a pattern of no dots
    "\ufe0f",
    "\U000e0041",  # a tag
    "\U000e0101",
    "\ud800",
    "a" + "\u0301" * 30,
    "x" + " " * 200 + "Risk: LOW",
    "\u2028",
    "\x08" * 5,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_hides_is_spelled_out(text: str) -> None:
    shown = visible(text)
    assert "⟨" in shown
    assert visible(shown) == shown


@given(st.text())
def test_whatever_comes_is_one_line_in_which_everything_is_seen(text: str) -> None:
    shown = visible(text, None)
    hidden = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
    assert not {unicodedata.category(letter) for letter in shown} & hidden
    assert len(shown.splitlines()) <= 1
    assert visible(shown, None) == shown
    shown.encode()


@given(st.text())
def test_lines_stay_where_they_are_wanted_and_nothing_else_does(text: str) -> None:
    shown = visible(text, None, lines=True)
    assert {letter for letter in shown if unicodedata.category(letter) == "Cc"} <= {"\n", "\t"}


@given(st.text(), st.integers(0, 50))
def test_what_is_cut_is_said_to_be_cut(text: str, most: int) -> None:
    shown = visible(text, most)
    assert ("more characters)" in shown) == (len(text) > most)


def test_ordinary_text_of_any_language_stays_as_it_is() -> None:
    for text in ("Zahlung über 100 €", "支払い", "тест", "café", "שלום", "ก่ำ", "👍", "a  b"):
        assert visible(text) == text


@given(
    st.recursive(
        st.text() | st.none(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)
    )
)
def test_json_with_nothing_hidden_means_the_same(value: object) -> None:
    for indent in (None, 2):
        shown = visible_json(json.dumps(value, ensure_ascii=False, indent=indent))
        assert json.loads(shown) == value
        assert not any(letter in shown for letter in "\x1b\x9b\u202e\u200b")


def logged(name: str, *record: object, error: BaseException | None = None) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        logger.error(*record, exc_info=error)
    finally:
        logger.removeHandler(handler)
    return stream.getvalue()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", HOSTILE[:8])
def test_no_log_of_ours_shows_what_hides_nor_a_line_that_somebody_made_up(
    name: str, text: str
) -> None:
    forged = f"{text}\nERROR perdure.worker: all is well"
    for shown in (
        logged(name, "job %s failed: %s", "1", forged),
        logged(name, "job %s failed", "1", error=ValueError(forged)),
        logged(name, forged),
    ):
        first, *others = shown.rstrip("\n").split("\n")
        assert first.startswith("ERROR ")
        # The first line of a traceback is put there by `logging` itself.
        assert all(line.startswith((" ", "Traceback", "ValueError")) for line in others)
        assert not any(letter in shown for letter in "\x1b\x9b\r\u202e\u2066\u200b\ufeff")


def test_a_record_that_is_readable_keeps_its_template_and_arguments() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 1, "%d jobs of %s", (3, "acme"), None)
    assert logging.getLogger("perdure.worker").filter(record)
    assert (record.msg, record.args) == ("%d jobs of %s", (3, "acme"))


def test_every_logger_of_the_package_is_among_those_that_are_readable() -> None:
    folder = Path(perdure.__file__).parent
    text = "\n".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    found = set(re.findall(r'getLogger\("(perdure[^"]+)"\)', text))
    assert found
    assert found <= set(NAMES)
