"""`perdure tokens` and `perdure audit`."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure import App
from tests.support.browser_like import signed_in, web_of
from tests.support.cli import CommandLine


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    line = CommandLine(tmp_path)

    async def create() -> None:
        async with App(line.url) as app:
            await app.store()

    asyncio.run(create())
    return line


def make(cli: CommandLine, *more: str) -> dict[str, object]:
    told = cli.run("tokens", "create", "ci", "--role", "service", *more, "-o", "json")
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def test_a_token_is_shown_once_listed_without_its_secret_and_revoked(cli: CommandLine) -> None:
    made = make(cli, "--tenant", "acme", "--scope", "jobs.submit")
    assert str(made["secret"]).startswith("pdr_")
    told = cli.run("tokens", "list")
    assert "valid" in told.stdout
    assert str(made["secret"]) not in told.output
    assert cli.run("tokens", "revoke", str(made["id"])).exit_code == 0
    assert "revoked" in cli.run("tokens", "list").stdout
    assert cli.run("tokens", "revoke", str(made["id"])).exit_code != 0


def test_a_new_token_is_alone_on_standard_output(cli: CommandLine) -> None:
    told = cli.run("tokens", "create", "me", "--role", "admin", "--person", "ann")
    assert told.stdout.strip().startswith("pdr_")
    assert len(told.stdout.split()) == 1


@pytest.mark.parametrize("role", ["approver", "viewer"])
def test_who_makes_a_token_for_a_program_is_told_that_nobody_signs_in_with_it(
    cli: CommandLine, role: str
) -> None:
    of_a_program = cli.run("tokens", "create", "me", "--role", role)
    assert "nobody signs in or decides with it" in of_a_program.stderr
    assert "--person ID" in of_a_program.stderr
    of_a_person = cli.run("tokens", "create", "me", "--role", role, "--person", "ann")
    assert "--person" not in of_a_person.stderr


def test_a_link_that_signs_in_is_alone_on_standard_output_and_works_once(cli: CommandLine) -> None:
    told = cli.run("tokens", "sign-in", "--page", "https://jobs.test/")
    (link,) = told.stdout.split()
    assert link.startswith("https://jobs.test/login#link=")

    async def used() -> list[int]:
        async with web_of(App(cli.url)) as web:
            return [(await signed_in(web, token=link)).status_code for _ in range(2)]

    assert asyncio.run(used()) == [303, 403]


def test_what_a_token_cannot_be_is_refused_in_a_sentence(cli: CommandLine) -> None:
    told = cli.run("tokens", "create", "x", "--role", "viewer", "--expires", "9000d")
    assert told.exit_code != 0
    assert "366 days" in told.stderr


def test_a_log_is_whole_until_somebody_changes_it_by_hand(cli: CommandLine) -> None:
    for _ in range(3):
        make(cli, "--tenant", "acme")
    told = cli.run("audit", "verify")
    assert told.exit_code == 0
    assert "3 entries" in told.stdout
    head = json.loads(cli.run("audit", "verify", "-o", "json").stdout)["heads"][0]
    noted = f"{head['no']}:{head['hash']}"
    expect = ("audit", "verify", "--tenant", "acme", "--expect", noted)
    assert cli.run(*expect).exit_code == 0
    assert "tokens.create" in cli.run("audit", "list", "--tenant", "acme").stdout
    with closing(sqlite3.connect(cli.url.removeprefix("sqlite:///"))) as database, database:
        database.executescript(
            "DROP TRIGGER audit_unchanged; DROP TRIGGER audit_kept;DELETE FROM audit WHERE no = 3;"
        )
    assert cli.run("audit", "verify").exit_code == 0
    assert cli.run(*expect).exit_code == 1
    with closing(sqlite3.connect(cli.url.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE audit SET line = replace(line, 'ci', 'xx') WHERE no = 2")
    told = cli.run("audit", "verify")
    assert told.exit_code == 1
    assert "BROKEN at entry 2" in told.stdout
