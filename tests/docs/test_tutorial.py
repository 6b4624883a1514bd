"""The tutorial that ends in the browser: what it tells people to do works as it is written."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli import LONGEST_WAIT, environment, lines_until
from tests.support.doc_examples import blocks
from tests.support.sign_in import signed_in

PAGE = Path(__file__).parent.parent.parent / "docs" / "jobs" / "tutorial.md"
BLOCKS = list(blocks(PAGE.read_text("utf-8")))
COMMANDS = [line for block in BLOCKS if block.kind == "sh" for line in block.code.splitlines()]
PAGES = 4  # the tutorial loads ten
SLEEP = 'await process.sleep("2s")'
# The second page takes as long as the first worker lives.
UNTIL_RESUMED = """\
from pathlib import Path

    await process.sleep("1ms" if page != 2 or Path("resumed").exists() else "1h")"""


def command(start: str) -> list[str]:
    """Return the words of a command of the page, without its comment."""
    (found,) = [line for line in COMMANDS if line.startswith(start)]
    words = shlex.split(found, comments=True)
    assert words[0] == "perdure"
    return [sys.executable, "-m", *words]


def run(folder: Path, words: list[str]) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def started(folder: Path, *words: str) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "perdure", *words],
        cwd=folder,
        env={**environment(folder), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.send_signal(signal.SIGINT)
            program.communicate(timeout=LONGEST_WAIT)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    run(tmp_path, command("perdure init"))
    folder = tmp_path / "hello"
    (code,) = [block.code for block in BLOCKS if block.kind == "python"]
    assert SLEEP in code
    with (folder / "app.py").open("a") as app:
        app.write(f"\n\n{code.replace(SLEEP, UNTIL_RESUMED)}")
    return folder


def seen(browser: httpx.Client, job: str) -> Generator[dict[str, Any]]:
    """Yield the job as it is now, and again whenever the stream of the page says so."""
    path = f"/api/v1/events?topics=job:{job},approvals"
    with browser.stream("GET", path, timeout=LONGEST_WAIT) as stream:
        yield browser.get(f"/api/v1/jobs/{job}").json()
        for line in stream.iter_lines():
            if line.startswith("data:"):
                yield browser.get(f"/api/v1/jobs/{job}").json()


def until(browser: httpx.Client, job: str, shown: str, step: str = "") -> dict[str, Any]:
    for now in seen(browser, job):
        assert now["shown_state"] not in ("needs_attention", "failed"), now["error"]
        if now["shown_state"] == shown and step in str(now["current"]):
            return now
    raise AssertionError(f"the job never was {shown}")


def test_the_job_of_the_tutorial_is_killed_resumed_and_approved(project: Path) -> None:
    submit = [word.replace("10", str(PAGES)) for word in command("perdure submit")]
    with started(project, "dev", "--port", "0") as dev:
        told = "\n".join(lines_until(dev, "up: process"))
        link, worker = re.search(r"http://\S+", told), re.search(r"process (\d+) works", told)
        assert link is not None
        assert worker is not None
        with closing(signed_in(link[0])) as browser:
            job = re.findall(r"[0-9a-f]{32}", run(project, submit))[0]
            until(browser, job, "running", "load#2")
            os.kill(int(worker[1]), signal.SIGKILL)
            (project / "resumed").touch()
            lines_until(dev, "the worker was killed")
            lines_until(dev, "took 1 job from workers that are gone")
            until(browser, job, "waiting_for_approval")
            check_journal(browser, job)
            approve(browser, job)
            done = until(browser, job, "completed")
    rows = sum(100 * page for page in range(1, PAGES + 1))
    assert done["result"].startswith(f"{rows} rows published: ")
    assert run(project, submit).count(job) == 1  # the key says that it is the same job


def check_journal(browser: httpx.Client, job: str) -> None:
    """Every page was loaded, and only the one that the kill interrupted was begun twice."""
    journal = browser.get(f"/api/v1/jobs/{job}/journal").json()["items"]
    loads = {entry["id"]: entry["attempt"] for entry in journal if entry["name"] == "load"}
    assert loads == {"load#1": 1, "load#2": 2, "load#3": 1, "load#4": 1}


def approve(browser: httpx.Client, job: str) -> None:
    (asked,) = browser.get("/api/v1/approvals?state=PENDING").json()["items"]
    assert asked["job"] == job
    assert asked["may_decide"]["ok"]
    verdict = {"verdict": "approve", "action_hash": asked["action"]["hash"]}
    answer = browser.post(f"/api/v1/approvals/{asked['id']}/decide", json=verdict)
    assert answer.status_code == 200, answer.text


def without_keys(lines: list[str]) -> list[str]:
    return [re.sub(r" \[[0-9a-f]{8}\]$", "", line) for line in lines]


def test_the_agent_of_the_tutorial_prints_what_the_page_says(tmp_path: Path) -> None:
    (shown,) = [block.code for block in BLOCKS if "$ python -m examples.agent\n" in block.code]
    store = f"sqlite:///{tmp_path / 'agent.db'}"
    # The first of the searches at the same time answers last.
    own = {"PERDURE_URL": store, "AGENT_FOLDER": str(tmp_path / "files"), "PACE": "0.2"}
    done = subprocess.run(
        [sys.executable, "-m", "examples.agent"],
        cwd=PAGE.parent.parent.parent,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        check=True,
    )
    assert sorted(without_keys(done.stdout.splitlines())) == sorted(
        without_keys(shown.splitlines()[1:])
    )
