"""Long work shows on a terminal how far it is, and nothing elsewhere."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

from perdure.cli.output import WorkDone
from perdure.cli.progress_bar import ShownProgress
from tests.support.cli import APP, ROOT, CommandLine, environment


def drawn(work: WorkDone) -> str:
    screen = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    screen.print(ShownProgress("cancel jobs", work).line())
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().rstrip()


def test_work_that_can_be_counted_has_a_bar_with_counts() -> None:
    work = WorkDone()
    work.set(1200, 2400)
    assert re.fullmatch(r"cancel jobs (━|╸|╺| )+ 1,200 of 2,400 \d+s", drawn(work))


def test_work_that_cannot_be_counted_has_a_spinner() -> None:
    assert re.fullmatch(r". cancel jobs … \d+s", drawn(WorkDone()))


def on_terminal(cli: CommandLine, *words: str) -> tuple[str, str]:
    """Run a command whose standard error is a terminal; return its output, and what that showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "perdure", *words]
    given = environment(cli.folder) | {"PERDURE_URL": cli.url, "TERM": "xterm"}
    with (
        os.fdopen(ours, "rb", buffering=0) as screen,
        subprocess.Popen(
            command, cwd=ROOT, env=given, stdout=subprocess.PIPE, stderr=theirs, text=True
        ) as program,
    ):
        os.close(theirs)
        told, _ = program.communicate()
        assert program.returncode == 0
        try:
            return told, screen.read(100_000).decode()
        except OSError:  # nothing was written, and nobody is left who could
            return told, ""


@pytest.mark.once
def test_a_bulk_command_counts_its_jobs_on_a_terminal_and_is_silent_on_a_pipe(
    cli: CommandLine,
) -> None:
    for _ in range(3):
        cli.run("submit", APP, "welcome", "-a", '{"name": "Kim"}')
    asked = ("jobs", "cancel", "--all", "--dry-run")
    told, shown = on_terminal(cli, *asked)
    assert "3 jobs would get the command to cancel" in told
    assert "of 3" in shown
    piped = cli.program(*asked)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert on_terminal(cli, "--quiet", *asked)[1] == ""
