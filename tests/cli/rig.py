"""A store, and `perdure` on it."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from perdure.cli.app import make_app
from tests.cli.program import ROOT, environment

APP = "tests.cli.jobs_app:app"


class Desk:
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
