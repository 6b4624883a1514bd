"""The agent without a framework: its worker dies at every write, and its program by `kill -9`."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.agent import world
from examples.agent.__main__ import ANN
from examples.agent.loop import agent
from examples.agent.tools import app
from perdure import JobState
from perdure.testing import CrashReport, Environment, crash_everywhere

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-u", "-m", "examples.agent"]
BUY, CLOSED = "Buy Kim a lamp.", "Buy Kim a lamp from the closed shop."
TURNS = 5
PAID, REFUNDED = "pay lamps.example 39 USD", "refund lamps.example 39 USD"
MAILED, APOLOGISED = "mail kim: A lamp comes.", "mail kim: Sorry, forget what I wrote."


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_FOLDER", str(tmp_path / "files"))
    monkeypatch.setenv("PACE", "0")
    return tmp_path / "files"


def deeds() -> Counter[str]:
    """Return how often each thing was done that may be done once, and what is in the folder."""
    done = [line.partition(" [")[0] for line in world.done() if line.endswith("]")]
    files = [path.name for path in world.folder().glob("*.txt")]
    return Counter([*done, *files])


def turns(lines: list[str]) -> list[int]:
    begin = "the model answers turn "
    return [int(line.removeprefix(begin)) for line in lines if line.startswith(begin)]


async def killed_everywhere(folder: Path, task: str, url: str | None = None) -> CrashReport:
    def arrange(env: Environment) -> None:
        for path in folder.glob("*"):
            path.unlink()
        env.answer_approvals("approve", by=ANN)

    return await crash_everywhere(
        app, agent(task), arrange=arrange, observe=deeds, url=url, user="kim"
    )


@pytest.mark.timeout(180)  # it runs once for each of its writes, twice
async def test_the_agent_undoes_everything_wherever_its_worker_dies(folder: Path) -> None:
    report = await killed_everywhere(folder, CLOSED)
    assert report.state is JobState.COMPENSATED
    assert report.crashes >= 2 * (TURNS + 8)  # the tools, and what undoes three of them
    assert deeds() == Counter([PAID, MAILED, APOLOGISED, REFUNDED])


@pytest.mark.timeout(180)
async def test_the_agent_ends_the_same_on_postgres_wherever_its_worker_dies(
    folder: Path, postgres_url: str
) -> None:
    report = await killed_everywhere(folder, BUY, postgres_url)
    assert report.result == "Lamp 7 is bought, and Kim knows."
    assert deeds() == Counter([PAID, MAILED, "notes.txt"])


def killed_at_something_new(folder: Path, seen: set[str]) -> list[str]:
    """Run the program until it has printed a line that no run before has printed, and kill it."""
    said: list[str] = []
    with subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        env={**os.environ, "PERDURE_URL": f"sqlite:///{folder}.db"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdout is not None
        for printed in program.stdout:
            said.append(printed.rstrip("\n"))
            if said[-1] not in seen:
                program.kill()
    return said


@pytest.mark.timeout(180)  # a dozen programs
def test_a_program_that_is_killed_at_everything_it_does_pays_and_writes_once(folder: Path) -> None:
    seen: set[str] = set()
    runs: list[list[str]] = []
    while not runs or not runs[-1][-1].endswith(" of 50") or len(runs[-1]) != 2:
        runs.append(killed_at_something_new(folder, seen))
        seen |= set(runs[-1])
    asked = Counter(turns(world.done()))
    assert sorted(asked) == list(range(TURNS))
    assert max(asked.values()) <= 2  # an answer that was on its way is asked for again
    assert deeds() == Counter([PAID, MAILED, "notes.txt"])
    assert runs[-1] == ["Lamp 7 is bought, and Kim knows.", runs[-1][1]]


def test_the_agent_with_mcp_that_is_killed_in_the_middle_of_a_mail_sends_it_once(
    folder: Path,
) -> None:
    pytest.importorskip("mcp")
    command = [sys.executable, "-m", "examples.agent.with_mcp"]
    environment = {**os.environ, "PERDURE_URL": f"sqlite:///{folder}.db"}
    killed = environment | {"PERDURE_CRASH_AT": "after_call"}
    assert subprocess.run(command, cwd=ROOT, env=killed, check=False).returncode == -9
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == "Ann looks whether the mail.send was done: it was"
    assert world.done() == [
        "search a lamp",
        "search a lamp under 50 USD",
        "send lamp 7 is the best",
    ]


def test_the_agent_of_pydantic_ai_that_is_killed_in_the_middle_of_a_payment_pays_once(
    folder: Path,
) -> None:
    pytest.importorskip("pydantic_ai")
    command = [sys.executable, "-m", "examples.agent.with_pydantic_ai"]
    environment = {**os.environ, "PERDURE_URL": f"sqlite:///{folder}.db"}
    killed = environment | {"PERDURE_CRASH_AT": "after_call"}
    assert subprocess.run(command, cwd=ROOT, env=killed, check=False).returncode == -9


def test_the_agent_with_langgraph_that_is_killed_after_its_payment_pays_once(folder: Path) -> None:
    pytest.importorskip("langchain")
    command = [sys.executable, "-m", "examples.agent.with_langgraph"]
    environment = {**os.environ, "PERDURE_URL": f"sqlite:///{folder}.db"}
    killed = environment | {"PERDURE_CRASH_AT": "after_call"}
    assert subprocess.run(command, cwd=ROOT, env=killed, check=False).returncode == -9
    assert PAID in [line.partition(" [")[0] for line in world.done()]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "Lamp 7 is bought, and Kim knows."
    assert deeds() == Counter([PAID, MAILED])
    assert turns(world.done()) == [0, 1, 2, 3]
