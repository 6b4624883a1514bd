"""`perdure jobs export` and `replay`: journals of production as fixtures of tests."""

from pathlib import Path

from tests.support.cli import APP, CommandLine


def test_a_journal_is_exported_and_replayed_against_the_code(
    cli: CommandLine, tmp_path: Path
) -> None:
    with cli.worker():
        job = cli.submit("welcome", name="Kim")
        cli.wait_for(job)
    exported = cli.run("jobs", "export", job[-8:])
    file = tmp_path / "welcome.json"
    file.write_text(exported.stdout)

    stored = cli.run("jobs", "replay", job[-8:], "--app", APP)
    assert stored.exit_code == 0
    assert "the code fits its journal of 1 entry" in stored.stdout
    assert cli.json("jobs", "replay", file, "--app", APP)["drift"] is None

    file.write_text(exported.stdout.replace("Kim", "Lee", 1))  # as if the code passed another name
    drifted = cli.run("jobs", "replay", file, "--app", APP)
    assert drifted.exit_code == 1
    assert "has drifted" in drifted.stdout
    assert "greet#1 was called with other arguments before" in drifted.stdout


def test_a_file_that_is_no_journal_is_refused_in_words(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    refused = cli.run("jobs", "replay", file, "--app", APP)
    assert refused.exit_code == 2
    assert "is not a journal that `perdure jobs export` has written" in refused.stderr


def test_an_unknown_job_is_not_exported(cli: CommandLine) -> None:
    cli.submit("welcome", name="Kim")
    missing = cli.run("jobs", "export", "ffffffff")
    assert missing.exit_code == 4
    assert missing.stdout == ""
