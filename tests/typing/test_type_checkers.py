"""Strict pyright and mypy understand the public API: right programs pass, wrong ones do not."""

import shutil
from pathlib import Path

import pytest

from tests.support.type_checkers import ROOT, Checker, expected, mypy, pyright

# Without a cache, the checkers read every framework that the examples import.
pytestmark = [pytest.mark.once, pytest.mark.timeout(600)]

WRONG = ROOT / "tests/typing/wrong_programs.py"
RIGHT = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests/typing").glob("*.py")
    if path.name not in {WRONG.name, Path(__file__).name}
)
CHECKERS = [pytest.param(pyright, id="pyright"), pytest.param(mypy, id="mypy")]


@pytest.mark.parametrize("check", CHECKERS)
def test_the_examples_and_the_right_programs_pass(check: Checker) -> None:
    assert not check(["examples", *RIGHT])


@pytest.mark.parametrize("check", CHECKERS)
def test_every_wrong_line_is_refused_by_its_rule_and_no_other_line(
    check: Checker, tmp_path: Path
) -> None:
    wanted = expected(WRONG, check.__name__)
    assert wanted, f"{WRONG} expects nothing of {check.__name__}"
    copy = str(shutil.copy(WRONG, tmp_path))  # pyproject.toml excludes the file where it is
    assert check([copy]) == wanted
