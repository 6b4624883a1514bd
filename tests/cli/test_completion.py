"""Completion, typed into real shells on a terminal: bash takes a colon for the end of a word."""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.cli import APP, ROOT, CommandLine, environment

pytestmark = pytest.mark.once

TAB = "\t"


class Shell:
    """An interactive shell on a terminal of its own, with our completion."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._program = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs, process_group=0
        )
        os.close(theirs)
        self._seen = ""

    def type(self, text: str) -> None:
        """Type, and press the keys that are in it."""
        os.write(self._ours, text.encode())

    def see(self, text: str) -> str:
        """Wait until the terminal shows a text; return what it has shown before, and that."""
        while text not in self._seen:
            self._seen += os.read(self._ours, 10_000).decode()
        shown, _, self._seen = self._seen.partition(text)
        return shown + text

    def close(self) -> None:
        self._program.kill()
        self._program.wait()
        os.close(self._ours)


BEFORE = {
    "bash": "PS1='ready '\n",
    "zsh": "PS1='ready '\nautoload -Uz compinit\ncompinit -u\n",
}


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, cli: CommandLine) -> Generator[Shell]:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    cli.run("submit", APP, "welcome", "-a", '{"name": "Kim"}')
    env = environment(cli.folder) | {
        "PERDURE_URL": cli.url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(cli.folder),
        "TERM": "xterm",
    }
    # In that shell, since it prints the script for the shell that it was started from.
    ask = [name, "-c", "perdure --show-completion; true"]
    script = subprocess.run(ask, env=env, capture_output=True, text=True, check=True).stdout
    (cli.folder / f".{name}rc").write_text(f"{BEFORE[name]}{script}\n")
    started = Shell([name, "-i"], env)
    try:
        started.see("ready ")
        yield started
    finally:
        started.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("state:wai", "state:waiting"),
        ("name:", "name:welcome"),
        ("state:waiting name:wel", "name:welcome"),
        ("sta", "state:"),
    ],
)
def test_a_term_of_a_query_is_completed(shell: Shell, typed: str, completed: str) -> None:
    shell.type(f"perdure jobs list {typed}{TAB}")
    shell.see(completed)
