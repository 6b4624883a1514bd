"""The examples of durable jobs, as programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PERDURE_URL": f"sqlite:///{tmp_path / 'jobs.db'}", "PACE": "0"}


def run(name: str, environment: dict[str, str]) -> list[str]:
    command = [sys.executable, "-m", f"examples.{name}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    return done.stdout.splitlines()


def test_a_migration_that_is_killed_goes_on_when_it_is_started_again(
    environment: dict[str, str],
) -> None:
    command = [sys.executable, "-u", "-m", "examples.long_migration"]
    slow = environment | {"PACE": "0.3"}
    with subprocess.Popen(
        command, cwd=ROOT, env=slow, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("converting customer 400"):
                break
        program.kill()

    second = run("long_migration", environment)
    third = run("long_migration", environment)

    assert second[0] == "continuing from the last checkpoint"
    assert second[1].startswith(("converting customer 400", "converting customer 500"))
    assert not any(line.startswith("extracted") for line in second)
    assert second[-1].startswith("1000 customers loaded, key ")
    assert third == second[-1:]


def test_files_that_cannot_be_read_are_reported_and_the_others_done(
    environment: dict[str, str],
) -> None:
    lines = run("bulk_files", environment)

    assert lines[0] == "996 files done, 4 skipped:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "0249.txt",
        "0499.txt",
        "0749.txt",
        "0999.txt",
    ]


def test_a_plan_that_is_written_as_json_runs_and_a_wrong_one_is_refused(
    environment: dict[str, str],
) -> None:
    lines = run("json_plan", environment)

    assert lines[0] == "In Basel it is cheapest at Market: 2.50"
    assert lines[-3:] == [
        "- call prices: `city` has the wrong type: Expected `str`, got `int`",
        "- call cheapest: the reference 'price.offers' names no call of the plan",
        "- call send_it: there is no step 'send_it'",
    ]


def test_steps_as_classes_go_on_at_their_checkpoint_and_are_done_once(
    environment: dict[str, str],
) -> None:
    assert run("step_classes", environment) == [
        "Resuming from file 0 of 250",
        "Checkpoint at file 100/250",
        "The job is FAILED",
        "Resuming from file 141 of 250",
        "Checkpoint at file 200/250",
        "Mail to kim@example.com: 250 files are done",
        "Sent as message 1",
        "Submitted again: message 1",
    ]
