"""Runs `perdure` as a program."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LONGEST_WAIT = 30  # seconds, after which a program counts as hanging


def environment(private: Path) -> dict[str, str]:
    """Give an environment in which the sockets are in a folder of this test's own."""
    return {**os.environ, "XDG_RUNTIME_DIR": str(private), "NO_COLOR": "1", "COLUMNS": "200"}


def perdure(private: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "perdure.cli", *map(str, words)],
        cwd=ROOT,
        env=environment(private),
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        check=False,
    )


@contextmanager
def started(
    private: Path, *words: object, errors: int = subprocess.STDOUT
) -> Generator[subprocess.Popen[str]]:
    """Run a command meanwhile; at the end of the block it is killed if it still runs."""
    command = [sys.executable, "-m", "perdure.cli", *map(str, words)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(private),
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def lines_until(program: subprocess.Popen[str], text: str) -> list[str]:
    """Read its lines up to one with this text."""
    assert program.stdout is not None
    lines: list[str] = []
    for line in program.stdout:
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    raise AssertionError(f"it ended without {text!r}:\n" + "\n".join(lines))
