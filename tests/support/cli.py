"""Run `perdure` as a program or in this process, on a store of the test's own."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from perdure.cli.app import make_app

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


APP = "tests.support.jobs_app:app"


class CommandLine:
    """Runs commands on one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'jobs.db'}"
        self._environment = {**environment(folder), "PERDURE_URL": self.url}

    def forget_url(self) -> None:
        """Run what follows without a store in the environment."""
        self._environment["PERDURE_URL"] = ""

    def run(self, *words: object, input: str = "") -> Result:
        """Run a command to its end, in this process: dozens of programs would take minutes."""
        given = [str(word) for word in words]
        app = make_app(given[0])
        return CliRunner().invoke(app, given, input=input, env=self._environment)

    def program(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as a program."""
        return subprocess.run(
            [sys.executable, "-m", "perdure", *map(str, words)],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=140,  # the demonstration takes its time
            check=False,
        )

    def json(self, *words: object) -> Any:
        """Run a command that succeeds, and give what it tells programs."""
        done = self.run(*words, "-o", "json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def submit(self, job: str, **arguments: object) -> str:
        """Submit a job, and give its id."""
        return self.json("submit", APP, job, "--json-args", json.dumps(arguments), "--user", "kim")[
            "id"
        ]

    def wait_for(self, job: str) -> dict[str, Any]:
        """Wait until a job is at rest, and give everything about it."""
        watched = self.run("jobs", "watch", job)
        assert watched.exit_code in (0, 7, 8), watched.output
        return self.json("jobs", "show", job)

    @contextmanager
    def worker(self, *words: object) -> Generator[subprocess.Popen[str]]:
        """Have a worker that is up; at the end of the block it is killed if it still runs."""
        command = [sys.executable, "-m", "perdure", "worker", APP, *map(str, words)]
        with subprocess.Popen(
            command, cwd=ROOT, env=self._environment, stderr=subprocess.PIPE, text=True
        ) as program:
            try:
                assert program.stderr is not None
                assert "  up: process" in program.stderr.readline()
                yield program
            finally:
                program.kill()
