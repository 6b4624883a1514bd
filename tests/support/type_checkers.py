"""Run the type checkers on files, and read what a file of wrong programs expects of them.

A wrong line says which rule of which checker must complain about it:

    Table(kind="heap")  # E: pyright=reportArgumentType mypy=arg-type

Several rules of one checker are separated by commas; a checker that is not named accepts the line.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
EXPECTED = re.compile(r"# E:(?P<rules>( \w+=[\w,-]+)+)")


class Complaint(NamedTuple):
    """What a checker says about a line."""

    file: str  # its name, without a folder
    line: int
    rule: str


Checker = Callable[[Iterable[str]], Counter[Complaint]]


def pyright(files: Iterable[str]) -> Counter[Complaint]:
    """Return what pyright finds in files, in its strict mode, which pyproject.toml sets."""
    said = _run("basedpyright", "--pythonpath", sys.executable, "--outputjson", *files)
    report = json.loads(said.stdout)
    assert report["summary"]["filesAnalyzed"] > 0, said
    return Counter(
        Complaint(
            Path(each["file"]).name, each["range"]["start"]["line"] + 1, each.get("rule", "?")
        )
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    )


def mypy(files: Iterable[str]) -> Counter[Complaint]:
    """Return what mypy finds in files, in its strict mode, which pyproject.toml sets."""
    # Without a cache: tests that run at the same time would share it.
    said = _run("mypy", "--output=json", f"--cache-dir={os.devnull}", *files)
    assert said.returncode in (0, 1), said  # 2: it could not work
    found = [json.loads(line) for line in said.stdout.splitlines() if line]
    return Counter(
        Complaint(Path(each["file"]).name, each["line"], each["code"])
        for each in found
        if each["severity"] == "error"
    )


def expected(file: Path, checker: str) -> Counter[Complaint]:
    """Return what the comments of a file expect of a checker."""
    lines = file.read_text("utf-8").splitlines()
    return Counter(
        Complaint(file.name, number, rule)
        for number, line in enumerate(lines, 1)
        if (comment := EXPECTED.search(line))
        for named in comment["rules"].split()
        if named.startswith(f"{checker}=")
        for rule in named.removeprefix(f"{checker}=").split(",")
    )


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
