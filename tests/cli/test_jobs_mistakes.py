"""What `perdure worker`, `submit` and `jobs` say when they cannot do what is asked."""

from pathlib import Path

import pytest

from perdure.cli.target import spelled
from tests.support.cli import APP, CommandLine

MISTAKES: list[tuple[list[str], int, str]] = [
    (
        ["submit", APP, "welcom"],
        2,
        "the app has: ask, confirm, fetch, order, pay, payout, reach, ship, tell, transfer, welc",
    ),
    (["submit", APP], 2, "or pass a plan with --plan file.json"),
    (["submit", APP, "welcome"], 2, "`name` is missing"),
    (["submit", APP, "welcome", "-a", '{"name": 1}'], 2, "`name` has the wrong type"),
    (["submit", APP, "welcome", "-a", "{"], 2, "JSON"),
    (["submit", APP, "welcome", "-a", "@no.json"], 2, "no.json cannot be read"),
    (["submit", APP, "welcome", "-a", '{"name": "[removed: …2051]"}'], 2, "only stands for"),
    (["submit", APP, "welcome", "--delay", "soon"], 2, "soon"),
    (["submit", "tests.cli.nothing:app", "x"], 2, "there is no module 'tests.cli.nothing'"),
    (
        ["submit", "tests/support/jobs_app.py", "x"],
        2,
        "pass its module, tests.support.jobs_app:app",
    ),
    (["submit", "tests.support.jobs_app", "x"], 2, "tests.support.jobs_app:notes"),
    (["worker", "tests.support.jobs_app:greet"], 2, "is not an App"),
    (["worker", APP, "--concurrency", "0"], 2, "concurrency"),
    (["worker", APP, "--url", "mysql://x"], 1, "unsupported store 'mysql'"),
    (
        ["jobs", "list", "--url", "sqlite:///nowhere.db"],
        4,
        f"there is no file {Path('nowhere.db').absolute()}",
    ),
    (["jobs", "list", "--url", "oracle://x"], 2, "unsupported store 'oracle'"),
    (["jobs", "list", "--url", "jobs.db"], 2, "perdure: this is not a store URL"),
    (["jobs", "list", "--state", "tired"], 2, "tired"),
    (["jobs", "show", "0" * 32], 4, f"there is no job '{'0' * 32}'"),
    (["jobs", "watch", "ffff"], 4, "there is no job 'ffff'"),
    (["jobs", "cancel"], 2, "JOB"),
    (["jobs"], 2, ""),
]


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.submit("welcome", name="Kim")
    return made


@pytest.mark.parametrize(("words", "code", "text"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_told_in_a_sentence_with_its_exit_code(
    words: list[str], code: int, text: str, cli: CommandLine
) -> None:
    refused = cli.run(*words)

    assert refused.exit_code == code, refused.stderr
    assert text in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_same_key_for_other_arguments_is_a_conflict(cli: CommandLine) -> None:
    assert cli.run("submit", APP, "welcome", "-a", '{"name": "a"}', "--key", "k").exit_code == 0

    refused = cli.run("submit", APP, "welcome", "-a", '{"name": "b"}', "--key", "k")

    assert refused.exit_code == 5
    assert "Traceback" not in refused.stderr


def test_a_job_that_nobody_runs_is_waited_for_only_so_long(cli: CommandLine) -> None:
    late = cli.run("submit", APP, "welcome", "-a", '{"name": "a"}', "-w", "--timeout", "100ms")

    assert late.exit_code == 6
    assert "has not ended within 100ms; it continues" in late.stderr


def test_a_module_that_cannot_be_imported_shows_where(cli: CommandLine, tmp_path: Path) -> None:
    refused = cli.run("worker", "tests.support.broken_app:app")

    assert refused.exit_code == 2
    assert "RuntimeError: this app cannot be imported" in refused.stderr
    assert refused.stderr.endswith("cannot be imported, see above\n")


def test_a_cancelled_job_that_never_began_is_over_at_once_and_only_once(cli: CommandLine) -> None:
    [job] = cli.json("jobs", "list")

    first = cli.run("jobs", "cancel", job["id"][-8:])
    second = cli.run("jobs", "cancel", job["id"])

    assert first.stdout == f"job {job['id']} is CANCELLED\n"
    assert second.exit_code == 5
    assert "there is nothing to cancel" in second.stderr


def test_without_a_store_the_ways_to_name_one_are_told(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    cli.forget_url()

    refused = cli.run("jobs", "list")

    assert refused.exit_code == 2
    assert "--url sqlite:///jobs.db" in refused.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://kim:s3cret@db/jobs?schema=b", "postgresql://kim:[removed]@db/jobs?schema=b"),
        ("postgresql://db/jobs?password=s3cret", "postgresql://db/jobs?password=[removed]"),
        ("postgresql://kim@db/jobs", "postgresql://kim@db/jobs"),
        ("sqlite:////folder/jobs.db", "sqlite:////folder/jobs.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert spelled(url) == shown


@pytest.mark.parametrize(
    "words", [(), (APP,), ("welcome",), (APP, "welcome", "fetch"), (APP, "welcome", "--plan", "x")]
)
def test_what_is_submitted_must_be_said(cli: CommandLine, words: tuple[str, ...]) -> None:
    done = cli.run("submit", *words)
    assert done.exit_code == 2
    assert "name an app and a job, as in `perdure submit shop.jobs:app order`" in done.stderr


def test_the_app_of_the_settings_is_enough_to_submit(cli: CommandLine) -> None:
    for words in (("welcome", "--app", APP), ("--app", "tests.nowhere:app", APP, "welcome")):
        told = cli.json("submit", *words, "-a", '{"name": "Kim"}')
        assert cli.json("jobs", "show", told["id"])["name"] == "welcome"
