"""`perdure doctor`, on stores that are well and on others."""

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.app import App
from perdure.cli.doctor import (
    clock_found,
    file_found,
    page_found,
    settings_found,
    transport_found,
)
from perdure.jobs.anti_pattern import SIGNS, SIGNS_OF_CODE
from perdure.jobs.invariant import INVARIANTS
from perdure.store.open import open_store
from tests.support.cli import ROOT, CommandLine
from tests.support.store import claim_one, new_job, sql


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    cli = CommandLine(tmp_path)
    cli.forget_url()
    return cli


async def _two_jobs(url: str) -> None:
    store = open_store(url)
    await store.open()
    try:
        await store.submit([new_job("first"), new_job("second")])
        await claim_one(store)
    finally:
        await store.close()


@pytest.fixture
async def filled(url: str) -> str:
    await _two_jobs(url)
    return url


def test_a_healthy_store_has_no_finding_of_any_rule(filled: str, cli: CommandLine) -> None:
    done = cli.run("doctor", "--store", filled, "--json")

    report = json.loads(done.stdout)
    of_server = {"durability", "permissions"}
    assert [each for each in report["findings"] if each["check"] not in of_server] == []
    assert report["jobs"] == {"PENDING": 1, "RUNNING": 1}
    if filled.startswith("sqlite"):
        assert (done.exit_code, report["ok"]) == (0, True)
        assert report["settings"] == {"journal_mode": "wal", "synchronous": "2"}
    else:  # the server of the tests does not wait for its disk, and that is found
        assert done.exit_code == 1
        assert {each["what"] for each in report["findings"]} == {
            "PostgreSQL has fsync = off",
            "PostgreSQL has full_page_writes = off",
            "the role in this URL is a superuser of PostgreSQL",
        }


def test_a_broken_rule_is_told_with_the_job_and_what_to_do(filled: str, cli: CommandLine) -> None:
    sql(filled, "DELETE FROM lease WHERE job_id = 'second'")

    done = cli.run("doctor", "--store", filled)

    assert done.exit_code == 1
    assert "live_without_lease: A job that has not ended has a lease row." in done.stdout
    assert "second  the job is PENDING and has no lease" in done.stdout
    assert "→ `perdure jobs cancel JOB`" in done.stdout


def test_a_store_that_others_can_read_is_found(tmp_path: Path, cli: CommandLine) -> None:
    cli.run(
        "submit",
        "tests.support.jobs_app:app",
        "welcome",
        "-a",
        '{"name": "Kim"}',
        "--url",
        cli.url,
    )
    for name in ("jobs.db", "jobs.db-wal"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)

    done = cli.run("doctor", "--store", cli.url)

    assert done.exit_code == 1
    for name in ("jobs.db", "jobs.db-wal"):
        assert f"{name} has mode 644" in done.stdout
        assert f"→ chmod 600 {tmp_path / name}\n" in done.stdout


@pytest.mark.parametrize(
    "address", ["sqlite:////nowhere/at/all.db", "redis://here", "postgresql://127.0.0.1:1/x"]
)
def test_a_store_that_cannot_be_looked_at_is_no_finding(address: str, cli: CommandLine) -> None:
    done = cli.run("doctor", "--store", address)

    assert done.exit_code == 2
    assert done.stderr.startswith("perdure: ")


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, cli: CommandLine) -> None:
    done = cli.run("doctor", "--store", f"sqlite:///{tmp_path}/none.db")

    assert done.exit_code == 2
    assert not (tmp_path / "none.db").exists()


def test_without_a_store_the_machine_is_told(cli: CommandLine) -> None:
    done = cli.run("doctor")

    assert done.exit_code == 0
    assert "pass --store" in done.stdout


@pytest.mark.parametrize(
    "setting",
    [
        {"journal_mode": "delete"},
        {"synchronous": "1"},
        {"fsync": "off"},
        {"full_page_writes": "off"},
        {"synchronous_commit": "off"},
        {"transaction_read_only": "on"},
        {"is_superuser": "on"},
    ],
)
def test_a_setting_that_breaks_a_promise_is_found(setting: dict[str, str]) -> None:
    assert len(list(settings_found(setting))) == 1


def test_a_clock_that_differs_by_more_than_the_question_took_is_found() -> None:
    assert list(clock_found(1.9, 0.0)) == list(clock_found(-3.0, 1.5)) == []
    (ahead,) = clock_found(3.0, 0.5)
    (behind,) = clock_found(-90.0, 0.5)
    assert (ahead.what, behind.what) == (
        "this machine is 3.0 s ahead of it",
        "this machine is 90.0 s behind it",
    )


def test_an_installation_without_its_page_is_found(tmp_path: Path) -> None:
    assert [each.check for each in page_found(tmp_path)] == ["page"]
    (tmp_path / "index.html").touch()
    assert list(page_found(tmp_path)) == []


def test_a_job_that_has_needed_a_person_for_days_is_found(filled: str, cli: CommandLine) -> None:
    sql(filled, "UPDATE job SET state = 'NEEDS_ATTENTION', created_at = 1 WHERE id = 'second'")
    done = cli.run("doctor", "--store", filled, "-o", "json")
    found = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "attention"]
    assert done.exit_code == 1
    assert [each["job"] for each in found] == ["second"]
    assert "attention" in cli.run("doctor", "--store", filled, "-o", "ids").stdout.split()


def _row(listed: str) -> str:
    return next(line for line in listed.splitlines() if line.split()[:1] == ["first"])


def test_a_stuck_job_is_found_listed_and_shown_as_such(filled: str, cli: CommandLine) -> None:
    sql(filled, "UPDATE lease SET stalled = 1 WHERE owner IS NOT NULL")
    done = cli.run("doctor", "--store", filled, "-o", "json")
    found = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "stuck"]
    assert [each["job"] for each in found] == ["first"]
    assert cli.run("jobs", "list", "state:stuck", "--url", filled, "-o", "ids").stdout == "first\n"
    assert "STUCK" in _row(cli.run("jobs", "list", "--url", filled).stdout)
    assert "STUCK" in cli.run("jobs", "show", "first", "--url", filled).stdout
    assert json.loads(cli.run("jobs", "show", "first", "--url", filled, "-o", "json").stdout)[
        "stuck"
    ]


def test_a_job_whose_worker_is_gone_is_not_shown_as_running(filled: str, cli: CommandLine) -> None:
    sql(filled, "UPDATE lease SET owner = NULL, ready = 1, due_at = 1 WHERE owner IS NOT NULL")
    assert "WAITING" in _row(cli.run("jobs", "list", "--url", filled).stdout)
    shown = cli.run("jobs", "show", "first", "--url", filled).stdout
    assert "WAITING" in shown
    assert "RUNNING" not in shown


def test_a_sign_of_an_anti_pattern_is_shown_with_its_remedy(filled: str, cli: CommandLine) -> None:
    sql(filled, "UPDATE lease SET claims = 9 WHERE job_id = 'second'")

    done = cli.run("doctor", "--store", filled)

    assert done.exit_code == 1
    assert "crashing_jobs: A job makes progress each time that a worker claims it." in done.stdout
    assert "second  it was claimed 9 times in a row without progress" in done.stdout
    assert '→ find what kills the worker in its log; isolation="process"' in done.stdout


WASTEFUL = """
from perdure import App

app = App("sqlite:///jobs.db")

@app.step(cost=0.1)
async def ask_model() -> None: ...
"""


def test_the_code_of_an_app_is_checked_and_its_store(
    tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wasteful_jobs.py").write_text(WASTEFUL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    missing = cli.run("doctor", "--app", "wasteful_jobs:app")
    cli.run("migrate", "--url", "sqlite:///jobs.db")
    done = cli.run("doctor", "--app", "wasteful_jobs:app", "-o", "json")

    assert missing.exit_code == 2
    assert "yet: nothing to check" in missing.stderr
    report = json.loads(done.stdout)
    assert done.exit_code == 1
    assert report["store"] == "sqlite:///jobs.db"
    assert [each["check"] for each in report["findings"]] == ["costly_without_timeout"]
    assert "costly_without_timeout" in report["signs"]


PAYING = """
from perdure import App, JobContext, StepContext

app = App("sqlite:///jobs.db")


async def done(key: str) -> None: ...


@app.step
async def pay(ctx: StepContext) -> None:
    await ctx.effect("payment", done, target="bank")
    await ctx.effect("notice", done, target="log", undo=None)


@app.step
async def book(ctx: StepContext) -> None:
    await ctx.effect("booking", done, target="hotel")


@book.compensate
async def cancel(ctx: StepContext, output: None) -> None: ...


@app.step(irreversible=True, approval="by_risk")
async def mail(ctx: StepContext) -> None:
    await ctx.effect("mail", done, target="kim")


@app.job
async def travel(ctx: JobContext) -> None:
    for _ in range(2):
        await pay()
    await book()
    await mail()
"""


def test_effects_whose_steps_have_no_undo_are_named(
    url: str, tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paying_jobs.py").write_text(PAYING.replace("sqlite:///jobs.db", url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "paying_jobs", raising=False)
    code = importlib.import_module("paying_jobs")
    asyncio.run(_run_once(code.app, code.travel()))

    without_code = cli.run("doctor", "--store", url, "--json")
    report = cli.run("doctor", "--store", url, "--app", "paying_jobs:app", "--json")

    found = json.loads(report.stdout)["findings"]
    told = [each["what"] for each in found if each["check"] == "effects_without_undo"]
    assert told == ["2 effects of kind payment by step pay, which has no undo"]
    assert "effects_without_undo" not in without_code.stdout  # no worker runs, so nobody knows


async def _run_once(app: App, call: Any) -> None:
    async with app:
        await app.run(call)


def test_a_store_of_another_user_is_found(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch(mode=0o600)
    owner = path.stat().st_uid
    assert list(file_found(path, owner)) == []
    (found,) = file_found(path, owner + 1)
    assert (
        found.what == f"{path} belongs to user {owner}, and this command runs as user {owner + 1}"
    )


@pytest.mark.parametrize(
    ("url", "default", "is_found"),
    [
        ("sqlite:///jobs.db", "", False),
        ("postgresql://kim:secret@localhost/x", "", False),
        ("postgresql:///x?host=/run/postgresql", "", False),
        ("postgresql://db.example:5432/x", "", True),
        ("postgresql://localhost,kim@db.example:5432/x?sslmode=prefer", "", True),
        ("postgresql://db.example/x?sslmode=verify-full", "disable", False),
        ("postgresql://db.example/x", "require", False),
    ],
)
def test_a_connection_without_encryption_is_found(url: str, default: str, is_found: bool) -> None:
    found = [each.what for each in transport_found(url, default)]
    what = "the connection to db.example may be unencrypted"
    assert found == ([what] if is_found else [])


def test_the_page_of_operations_lists_every_rule_and_every_sign() -> None:
    page = (ROOT / "docs/jobs/operations.md").read_text("utf-8")
    for each in (*INVARIANTS, *SIGNS, *SIGNS_OF_CODE):
        assert f"`{each.name}`" in page
