"""`perdure jobs cancel --label …`: commands to many jobs, with a dry run."""

from tests.support.cli import APP, CommandLine


def test_jobs_are_cancelled_by_a_query_after_a_dry_run(cli: CommandLine) -> None:
    given = ("submit", APP, "welcome", "-a", '{"name": "Kim"}')
    for label in ("team=data", "team=data", "team=web"):
        cli.run(*given, "--label", label)
    asked = ("jobs", "cancel", "--label", "team=data", "--by", "ann", "-r", "enough")
    tried = cli.run(*asked, "--dry-run")
    assert "2 jobs would get the command to cancel, 0 would refuse it" in tried.stdout
    assert len(cli.json("jobs", "list", "--state", "pending")) == 3
    assert "2 jobs get the command to cancel, 0 refuse it" in cli.run(*asked).stdout
    (left,) = cli.json("jobs", "list", "--state", "pending")
    assert left["labels"] == {"team": "web"}
    told = cli.json("jobs", "cancel", "--name", "welcome", "-s", "cancelled", "-s", "pending")
    assert (told["action"], told["dry_run"]) == ("cancel", False)
    assert [each["id"] for each in told["affected"]] == [left["id"]]
    assert all("nothing to cancel" in each["why"] for each in told["refused"])
    assert len(told["refused"]) == 2


def test_which_jobs_are_meant_must_be_said(cli: CommandLine) -> None:
    job = cli.submit("welcome", name="Kim")
    for words in ((), (job, "--all"), (job, "--dry-run"), ("--all", "--name", "welcome")):
        assert cli.run("jobs", "pause", *words).exit_code == 2
    assert cli.run("jobs", "retry", "--all", "--from", "greet#1").exit_code == 2
    assert "1 job gets the command to pause" in cli.run("jobs", "pause", "--all").stdout
    assert cli.run("jobs", "resume", job).exit_code == 0
    assert "0 jobs would get" in cli.run("jobs", "retry", "--all", "--dry-run").stdout
