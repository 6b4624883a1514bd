"""`perdure init`, `dev`, `migrate` and `bench`: a project from its first minute."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.cli import LONGEST_WAIT, CommandLine, environment, lines_until
from tests.support.sign_in import signed_in


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        # Without the plugins of our own tests, which a project does not have and which load slowly.
        env=environment(folder) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    made = run(tmp_path, "perdure", "init", "shop")
    assert made.returncode == 0, made.stderr
    return folder


def test_a_new_project_passes_its_own_tests_and_its_job_is_found_by_its_settings(
    project: Path,
) -> None:
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in tested.stdout
    readme = (project / "README.md").read_text("utf-8")
    assert readme.index("pip install pytest") < readme.index("python -m pytest")
    submitted = run(project, "perdure", "submit", "monthly_billing", "-a", '{"month": "June"}')
    assert submitted.returncode == 0, submitted.stderr
    assert run(project, "perdure", "jobs", "list", "-o", "ids").stdout.count("\n") == 1


def test_init_overwrites_nothing(project: Path) -> None:
    (project / "app.py").write_text("mine")
    again = run(project, "perdure", "init")
    assert again.returncode == 5
    assert "already has app.py" in again.stderr
    assert (project / "app.py").read_text() == "mine"


@contextmanager
def developing(folder: Path) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "perdure", "dev", "--port", "0"],
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


def test_dev_runs_jobs_serves_the_page_and_reloads_changed_code(project: Path) -> None:
    with developing(project) as program:
        told = lines_until(program, "up: process")
        link = re.search(r"http://\S+", "\n".join(told))
        assert link is not None
        with closing(signed_in(link[0])) as browser:
            assert first_result(browser) == 3

            code = (project / "app.py").read_text()
            (project / "app.py").write_text(code.replace("len(charged)", "100 + len(charged)"))
            lines_until(program, "app.py changed")
            lines_until(program, "up: process")
            assert first_result(browser) == 103  # with the same session
    assert program.returncode == 0


def test_dev_starts_a_worker_that_was_killed_again(project: Path) -> None:
    with developing(project) as program:
        [*_, up] = lines_until(program, "up: process")
        found = re.search(r"process (\d+)", up)
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        lines_until(program, "the worker was killed")
        lines_until(program, "up: process")
    assert program.returncode == 0


def test_dev_says_in_a_sentence_that_a_store_cannot_be_used(project: Path) -> None:
    (project / "jobs.db").write_bytes(b"no database" * 1000)
    program = run(project, "perdure", "dev", "--port", "0")
    assert program.returncode != 0
    assert "jobs.db is damaged, or not a SQLite database" in program.stderr
    assert "Traceback" not in program.stderr


def first_result(browser: httpx.Client) -> int:
    """Submit a job over HTTP, wait for its end on the event stream of its list, give its result."""
    body = {"name": "monthly_billing", "arguments": {"month": "June"}}
    job = browser.post("/api/v1/jobs", json=body)
    assert job.status_code == 201, job.text
    path = f"/api/v1/jobs/{job.json()['id']}"
    while (found := browser.get(path).json())["state"] != "COMPLETED":
        assert found["state"] in ("PENDING", "RUNNING", "WAITING")
    return found["result"]


def test_migrate_says_what_is_missing_and_brings_it_up_to_date(cli: CommandLine) -> None:
    missing = cli.run("migrate", "--check")
    assert (missing.exit_code, missing.stdout) == (10, "0001_baseline  missing\n")
    assert not (cli.folder / "jobs.db").exists()
    assert "CREATE TABLE job (" in cli.run("migrate", "--sql").stdout
    assert cli.json("migrate") == [{"number": 1, "name": "baseline", "state": "applied"}]
    done = cli.run("migrate", "--check")
    assert done.exit_code == 0
    assert "is up to date" in done.stdout


def test_migrate_and_bench_work_on_postgres(cli: CommandLine, postgres_url: str) -> None:
    assert cli.run("migrate", "--check", "--url", postgres_url).exit_code == 10
    assert cli.run("migrate", "--url", postgres_url).exit_code == 0
    assert cli.run("migrate", "--check", "--url", postgres_url).exit_code == 0
    found = cli.json("bench", "--jobs", 2, "--url", postgres_url)
    assert found["steps_per_second"] > 0
    assert cli.run("jobs", "list", "--url", postgres_url, "-o", "ids").stdout == ""


def test_bench_measures_beside_the_store_and_leaves_nothing(cli: CommandLine) -> None:
    found = cli.json("bench", "--jobs", 2)
    assert found["step_ms_p50"] > 0
    assert list(cli.folder.glob("perdure-bench-*")) == []
    assert not (cli.folder / "jobs.db").exists()
