"""The example of an agent, as a program that is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-u", "-m", "examples.research_agent"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PERDURE_URL": f"sqlite:///{tmp_path / 'jobs.db'}", "PACE": "0"}


def run_until(line: str, environment: dict[str, str]) -> list[str]:
    """Run it, kill it when it has printed a line that begins so, and return what it printed."""
    said: list[str] = []
    with subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdout is not None
        for printed in program.stdout:
            said.append(printed.rstrip("\n"))
            if printed.startswith(line):
                break
        program.kill()
    return said


def turns(lines: list[str]) -> list[int]:
    begin = "the model answers turn "
    return [int(line.removeprefix(begin).split(",")[0]) for line in lines if line.startswith(begin)]


def test_an_agent_that_is_killed_asks_for_no_recorded_answer_again_and_sends_one_mail(
    environment: dict[str, str],
) -> None:
    first = run_until("the model answers turn 2", environment)
    second = run_until("a mail to Kim", environment)
    rest = run_until("6 calls", environment | {"PACE": "0"})

    assert turns(first) == [0, 1, 2]
    assert turns(second)[0] in (2, 3)  # the answer to turn 2 was recorded in time, or was not
    assert not {*turns(rest)} & {0, 1, 2, 3}
    assert rest[-2] == "I have written to Kim about lamp 7."
    # The gateway honours the key: it sees the mail again only if the first record was lost.
    assert sum(line.startswith("a mail to Kim") for line in rest) <= 1


def test_an_agent_that_has_ended_returns_its_answer_at_once(environment: dict[str, str]) -> None:
    run_until("6 calls", environment)
    again = run_until("6 calls", environment)
    assert again == ["I have written to Kim about lamp 7.", "6 calls of 50"]
