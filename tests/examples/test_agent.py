"""The agent without a framework is killed at every write."""

import os
import re
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
from perdure.testing import Environment, crash_everywhere
from tests.support.agent_kills import check, everywhere

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent.parent
CLOSED = "Buy Kim a lamp from the closed shop."
KEYED = re.compile(r" [0-9a-f]{64}$")
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
    done = [KEYED.sub("", line) for line in world.done() if KEYED.search(line)]
    files = [path.name for path in world.folder().glob("*.txt")]
    return Counter([*done, *files])


@pytest.mark.timeout(180)  # it runs once for each of its writes, twice
async def test_the_agent_undoes_everything_wherever_its_worker_dies(folder: Path) -> None:
    def arrange(env: Environment) -> None:
        for path in folder.glob("*"):
            path.unlink()
        env.answer_approvals("approve", by=ANN)

    report = await crash_everywhere(app, agent(CLOSED), arrange=arrange, observe=deeds, user="kim")
    assert report.state is JobState.COMPENSATED
    assert report.crashes >= 2 * (TURNS + 8)  # the tools, and what undoes three of them
    assert deeds() == Counter([PAID, MAILED, APOLOGISED, REFUNDED])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_an_agent_that_is_killed_at_any_write_repeats_what_was_in_flight_and_pays_once(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
) -> None:
    own = f"sqlite:///{tmp_path / 'jobs.db'}"
    url = own if store == "sqlite" else request.getfixturevalue("postgres_url")
    plain, killed = everywhere("tests.examples.agent_program", url, tmp_path, ("before_write",))
    assert plain.result == "Lamp 7 is bought, and Kim knows."
    assert {PAID, MAILED} < set(plain.calls)
    check(plain, killed, at_once=2, once=("pay ", "mail "))


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


def turns(lines: list[str]) -> list[int]:
    begin = "the model answers turn "
    return [int(line.removeprefix(begin)) for line in lines if line.startswith(begin)]


@pytest.mark.parametrize(
    ("program", "framework"),
    [
        ("with_pydantic_ai", "pydantic_ai"),
        ("with_langgraph", "langchain"),
        ("with_openai_agents", "agents"),
        ("with_adk", "google.adk"),
        ("with_agent_framework", "agent_framework"),
    ],
)
def test_an_agent_of_a_framework_that_is_killed_after_its_payment_pays_once(
    folder: Path, program: str, framework: str
) -> None:
    pytest.importorskip(framework)
    command = [sys.executable, "-m", f"examples.agent.{program}"]
    environment = {**os.environ, "PERDURE_URL": f"sqlite:///{folder}.db"}
    killed = environment | {"PERDURE_CRASH_AT": "after_call"}
    assert subprocess.run(command, cwd=ROOT, env=killed, check=False).returncode == -9
    assert deeds() == Counter([PAID])
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "Lamp 7 is bought, and Kim knows."
    assert deeds() == Counter([PAID, MAILED])
    assert turns(world.done()) == [0, 1, 2, 3]
