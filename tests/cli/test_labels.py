"""Labels and worked time on the command line."""

from tests.support.cli import APP, CommandLine


def test_labels_are_given_shown_and_searched_for(cli: CommandLine) -> None:
    given = ("submit", APP, "welcome", "-a", '{"name": "Kim"}')
    assert cli.run(*given, "--label", "team=data", "-l", "note=a=b").exit_code == 0
    assert cli.run(*given).exit_code == 0
    (job,) = cli.json("jobs", "list", "--label", "team=data")
    assert job["labels"] == {"team": "data", "note": "a=b"}
    assert job["worked"] == 0
    assert "team=data, note=a=b" in cli.run("jobs", "show", job["id"]).stdout
    assert cli.json("jobs", "list", "-l", "team=data", "-l", "note=c") == []
    assert "No job matches" in cli.run("jobs", "list", "-l", "team=web").stdout


def test_a_label_that_is_no_pair_is_refused(cli: CommandLine) -> None:
    for wrong in (["team"], ["=data"], ["team=a", "team=b"]):
        options = [word for label in wrong for word in ("--label", label)]
        found = cli.run("jobs", "list", *options)
        assert (found.exit_code, "NAME=VALUE" in found.stderr) == (2, True)


def test_the_time_that_was_worked_is_shown_beside_the_age(cli: CommandLine) -> None:
    with cli.worker():
        job = cli.submit("welcome", name="Kim")
        cli.wait_for(job)
    assert cli.json("jobs", "show", job)["worked"] > 0
    assert ", worked " in cli.run("jobs", "show", job).stdout
