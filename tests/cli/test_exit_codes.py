"""Each exit code: a command that ends with it, and its line in the documentation."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from perdure.cli.output import Code
from tests.support.cli import APP, ROOT, CommandLine, lines_until, started
from tests.support.store import sql

NOBODY = "00000000000000000000000000000000"

# What is submitted with --wait.
AWAITED = {
    Code.OK: ("welcome", '{"name": "Kim"}'),
    Code.JOB_FAILED: ("fetch", '{"path": "/nowhere/at/all"}'),
}

# Commands that need no worker.
GIVEN: dict[Code, tuple[str, ...]] = {
    Code.FAILED: ("doctor", "--store", "URL"),
    Code.USAGE: ("jobs", "list", "state:no_such_state"),
    Code.NOT_RUNNING: ("tree",),
    Code.NOT_FOUND: ("jobs", "show", NOBODY),
    Code.CONFLICT: ("jobs", "resume", "JOB"),
    Code.TIMED_OUT: ("submit", APP, "welcome", "-a", '{"name": "Kim"}', "-w", "--timeout", "10ms"),
    Code.JOB_UNDONE: ("jobs", "watch", "CANCELLED"),
    Code.SCHEMA: ("migrate", "--check", "--url", "NEW"),
}


@pytest.mark.parametrize("code", GIVEN, ids=lambda code: code.name)
def test_a_command_ends_with_its_code(code: Code, cli: CommandLine) -> None:
    job, cancelled = cli.submit("welcome", name="Kim"), cli.submit("welcome", name="Ann")
    cli.run("jobs", "cancel", cancelled)
    if code is Code.FAILED:
        sql(cli.url, f"DELETE FROM lease WHERE job_id = '{job}'")
    new = f"sqlite:///{cli.folder}/new.db"
    given = {"URL": cli.url, "JOB": job, "CANCELLED": cancelled, "NEW": new}

    done = cli.run(*(given.get(word, word) for word in GIVEN[code]))

    assert done.exit_code == code, done.output
    if code not in (Code.FAILED, Code.SCHEMA, Code.JOB_UNDONE):
        assert done.stderr.startswith(("perdure: ", "job "))


@pytest.mark.parametrize("code", AWAITED, ids=lambda code: code.name)
def test_the_end_of_an_awaited_job_is_the_code(code: Code, cli: CommandLine) -> None:
    name, arguments = AWAITED[code]
    with cli.worker():
        assert cli.run("submit", APP, name, "-a", arguments, "--wait").exit_code == code


def test_an_interrupted_command_says_so(cli: CommandLine, tmp_path: Path) -> None:
    job = cli.submit("welcome", name="Kim")
    watch = ("jobs", "watch", job, "--url", cli.url, "-o", "jsonl")
    with started(tmp_path, *watch, errors=subprocess.DEVNULL) as program:
        lines_until(program, '"event"')  # from now on it waits
        program.send_signal(signal.SIGINT)
        assert program.wait() == Code.INTERRUPTED


def test_the_documentation_lists_every_code_and_no_other() -> None:
    page = (ROOT / "docs/jobs/cli.md").read_text("utf-8")
    table = page[page.index("| exit code |") :]
    listed = {int(each) for each in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert listed == {each.value for each in Code}
    assert {*GIVEN, *AWAITED, Code.INTERRUPTED} == set(Code)
