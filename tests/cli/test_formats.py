"""Formats, queries and ids of standard input: what programs read, and give to the next one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.app import COMMANDS, make_app
from perdure.cli.jobs import commands as jobs_commands
from tests.support.cli import APP, ROOT, CommandLine


@pytest.fixture
def three(cli: CommandLine) -> list[str]:
    """Three jobs, the newest first."""
    return [cli.submit("welcome", name=name) for name in ("Ann", "Kim", "Lea")][::-1]


def test_a_list_is_given_as_one_document_as_lines_or_as_ids(
    cli: CommandLine, three: list[str]
) -> None:
    assert [job["id"] for job in cli.json("jobs", "list")] == three
    lines = cli.run("jobs", "list", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == three
    assert cli.run("jobs", "list", "-o", "ids").stdout.split() == three
    assert cli.run("jobs", "show", three[0], "-o", "ids").stdout == f"{three[0]}\n"
    assert cli.run("queues", "list", "-o", "ids").stdout == "default\n"


def test_jobs_are_listed_by_a_query(cli: CommandLine, three: list[str]) -> None:
    assert cli.run("jobs", "list", "user:kim state:active", "-o", "ids").stdout.split() == three
    assert cli.run("jobs", "list", three[1], "-o", "ids").stdout.split() == [three[1]]
    assert cli.run("jobs", "list", "state:done", "-o", "ids").stdout == ""
    assert cli.run("jobs", "list", "created:>1h", "--name", "welcome", "-o", "ids").stdout == ""


def test_a_wrong_query_is_shown_with_its_place(cli: CommandLine, three: list[str]) -> None:
    assert three
    wrong = cli.run("jobs", "list", "name:welcome", "stat:failed")
    assert wrong.exit_code == 2
    assert "did you mean state?" in wrong.stderr
    assert "\n  name:welcome stat:failed\n               ^" in wrong.stderr


def test_ids_of_one_command_are_the_input_of_the_next(cli: CommandLine, three: list[str]) -> None:
    ids = cli.run("jobs", "list", "-o", "ids").stdout
    paused = cli.run("jobs", "pause", "-", input=ids)
    assert paused.exit_code == 0
    assert paused.stdout.count("is PAUSED") == 3
    cancelled = cli.run("jobs", "cancel", three[0], three[1], "-o", "jsonl")
    assert [json.loads(line)["id"] for line in cancelled.stdout.splitlines()] == three[:2]
    assert {job["state"] for job in cli.json("jobs", "list", "state:done")} == {"CANCELLED"}


def test_one_job_that_refuses_does_not_keep_a_command_from_the_others(
    cli: CommandLine, three: list[str]
) -> None:
    some = cli.run("jobs", "cancel", "-", input=f"{three[0]}\nnowhere\n\n{three[1]}\n")
    assert some.exit_code == 4
    assert some.stdout.count("is CANCELLED") == 2
    assert "nowhere" in some.stderr
    assert cli.run("jobs", "cancel", "-", input="\n").exit_code == 2


def test_many_jobs_are_commanded_by_a_query(cli: CommandLine, three: list[str]) -> None:
    dry = cli.run("jobs", "cancel", "-q", "name:wel*", "--dry-run", "-o", "ids")
    assert sorted(dry.stdout.split()) == sorted(three)
    done = cli.json("jobs", "cancel", "-q", "name:wel*")
    assert len(done["affected"]) == 3


def test_quiet_prints_only_what_was_asked_for(cli: CommandLine, three: list[str]) -> None:
    said = cli.program("--quiet", "jobs", "cancel", three[0])
    listed = cli.program("-q", "jobs", "list", "-o", "ids")
    assert (said.stdout, said.stderr, said.returncode) == ("", "", 0)
    assert listed.stdout.split() == three


def test_quiet_prints_the_id_of_a_new_job(cli: CommandLine) -> None:
    asked = cli.program("-q", "submit", APP, "welcome", "-a", '{"name": "Kim"}')
    (id,) = asked.stdout.split()
    assert cli.json("jobs", "show", id)["id"] == id


_LOADED = """
import sys
from perdure.cli.app import main
sys.argv = ["perdure", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print("LOADED", *sorted(sys.modules))
"""
HEAVY = {"starlette", "uvicorn", "prometheus_client", "pydantic", "perdure.app", "perdure.process"}


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["jobs", "--help"], ["jobs", "list"], ["jobs", "cancel", "--all"]),
        *(["approvals", "list"], ["effects", "list"], ["workers"], ["queues", "list"]),
    ],
)
def test_a_question_loads_neither_engine_nor_server(
    cli: CommandLine, three: list[str], words: list[str]
) -> None:
    assert three
    told = subprocess.run(
        [sys.executable, "-c", _LOADED, *words],
        cwd=ROOT,
        # As in a project whose file names both, and which need not be imported for a question.
        env={"PERDURE_URL": cli.url, "PERDURE_APP": "nowhere:app", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = told.stdout.rpartition("LOADED ")[2].split()
    assert "perdure.cli.output" in loaded
    assert HEAVY.isdisjoint(loaded)


def test_help_names_every_command_without_loading_it(tmp_path: Path) -> None:
    shown = CommandLine(tmp_path).program("--help").stdout
    jobs = CommandLine(tmp_path).program("jobs", "--help").stdout
    assert all(f" {name} " in shown for name in COMMANDS)
    assert all(f" {name} " in jobs for name in jobs_commands.COMMANDS)


def test_every_command_can_be_loaded() -> None:
    app = make_app(*COMMANDS)
    names = [each.name for each in (*app.registered_commands, *app.registered_groups)]
    assert sorted(map(str, names)) == sorted(COMMANDS)


def test_the_shell_completes_queries_queues_and_names(cli: CommandLine, three: list[str]) -> None:
    assert three
    assert "state:failing" in completed(cli, "jobs", "list", "state:fail")
    assert "name:welcome" in completed(cli, "jobs", "list", "name:we")
    assert "default" in completed(cli, "queues", "pause", "")
    assert "approvals" in completed(cli, "app")


def completed(cli: CommandLine, *words: str) -> str:
    """What fish would suggest for the last of these words."""
    told = subprocess.run(
        [Path(sys.executable).with_name("perdure")],
        cwd=ROOT,
        env={
            "PERDURE_URL": cli.url,
            "_PERDURE_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_ARGS": " ".join(["perdure", *words]),
            "PATH": "",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout


def test_dev_loads_the_code_of_jobs_only_in_its_worker() -> None:
    told = "import sys, perdure.cli.dev; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "perdure.client" in loaded.stdout.split()
    assert "perdure.app" not in loaded.stdout.split()


def test_an_app_that_is_named_by_its_flag_is_loaded(cli: CommandLine, three: list[str]) -> None:
    """For its keys, for example; that of a file of settings is not."""
    assert three
    assert cli.run("jobs", "list", "--app", APP).exit_code == 0
    assert cli.run("jobs", "list", "--app", "nowhere:app").exit_code == 2
