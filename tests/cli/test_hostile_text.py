"""What jobs and people wrote, on a terminal: no markup, no escape sequence, nothing hidden."""

import re
from pathlib import Path

import perdure.cli
from tests.support.cli import CommandLine

BAD = "[/foo] [bold]x[/bold] :smile: \x1b[2J\u202eevil\u200b\nperdure: all is well"


def check(shown: str) -> None:
    assert "[/foo] [bold]x[/bold] :smile:" in " ".join(shown.split())
    assert not any(letter in shown for letter in "\x1b\u202e\u200b")
    assert not any(line.startswith("perdure: all is well") for line in shown.splitlines())


def test_a_hostile_title_neither_crashes_a_table_nor_changes_it(cli: CommandLine) -> None:
    cli.submit("confirm", title=BAD)
    with cli.worker():
        while not (found := cli.json("approvals", "list")):
            pass
    (asked,) = found
    assert asked["title"] == BAD
    table = cli.run("approvals", "list")
    assert table.exit_code == 0, table.output
    assert "[/foo]" in table.stdout
    assert "\x1b" not in table.stdout
    check(cli.run("approvals", "show", asked["id"]).stdout)
    check(cli.run("approvals", "show", asked["id"], "--full").stdout)


def test_a_hostile_error_argument_and_reason_are_shown_as_they_are_spelled(
    cli: CommandLine,
) -> None:
    job = cli.submit("fetch", path=BAD)
    with cli.worker():
        assert cli.wait_for(job)["state"] == "FAILED"
        assert cli.run("jobs", "compensate", job, "--by", BAD, "--reason", BAD).exit_code == 0
        assert cli.wait_for(job)["state"] == "COMPENSATED"
    for words in (("jobs", "show", job, "--full"), ("jobs", "list"), ("jobs", "watch", job)):
        shown = cli.run(*words)
        assert shown.exit_code in (0, 7, 8), shown.output
        assert words[1] == "list" or "[/foo]" in shown.stdout
        assert not any(letter in shown.output for letter in "\x1b\u202e\u200b")
    assert "\\u202e" in cli.run("jobs", "show", job, "-o", "json").stdout


def test_a_hostile_name_is_refused_in_a_sentence_that_hides_nothing(cli: CommandLine) -> None:
    told = cli.run("jobs", "show", BAD[:20])
    assert told.exit_code == 4
    assert not any(letter in told.stderr for letter in "\x1b\u202e\u200b")
    told = cli.run("submit", "tests.support.jobs_app:app", BAD)
    assert told.exit_code == 2
    assert not any(letter in told.stderr for letter in "\x1b\u202e\u200b")


def test_commands_show_everything_by_the_one_place_that_makes_it_visible() -> None:
    folder = Path(perdure.cli.__file__).parent
    plain = re.compile(r"typer\.echo\(|(?<![\w.])Console\(|(?<![\w.])Text\([^)]|click\.echo\(")
    found = [
        f"{path.name}: {line.strip()}"
        for path in folder.rglob("*.py")
        if path.name != "output.py" and path.parent.name != "demo"
        for line in path.read_text("utf-8").splitlines()
        if plain.search(line) and "__version__" not in line
    ]
    assert found == []
