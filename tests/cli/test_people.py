"""`perdure approvals` and `effects`, on a real store with a real worker."""

from typing import Any

from typer.testing import Result

from tests.support.cli import APP, CommandLine


def pending(cli: CommandLine) -> list[dict[str, Any]]:
    """Wait until something is asked."""
    while not (found := cli.json("approvals", "list")):
        pass
    return found


def decide(cli: CommandLine, verdict: str, approval: str, *words: str) -> Result:
    """Decide about what is shown now."""
    seen = cli.json("approvals", "show", approval)["action_hash"]
    given = ("approvals", verdict, approval, "--app", APP, "--action", seen[:16])
    return cli.run(*given, *words)


def test_a_question_is_seen_shown_and_answered(cli: CommandLine) -> None:
    first, second = cli.submit("ship"), cli.submit("ship")
    assert cli.run("approvals", "list").stdout == "No approval is pending.\n"
    with cli.worker():
        while len(pending(cli)) < 2:
            pass
        by_job = {each["job"]: each["id"] for each in pending(cli)}
        assert "Ship it?" in cli.run("approvals", "list").stdout
        shown = cli.run("approvals", "show", by_job[first][:20]).stdout
        assert '"order": 7' in shown
        done = decide(cli, "approve", by_job[first], "--by", "ann", "-r", "fine")
        assert done.stdout == "Approved · ann (approve) · fine\n"
        late = decide(cli, "reject", by_job[first], "--by", "bob")
        assert (late.exit_code, "already approved, by ann" in late.stderr) == (5, True)
        assert decide(cli, "reject", by_job[second], "--by", "bob").exit_code == 0
        assert cli.wait_for(first)["result"] == "ann: fine"
        assert cli.wait_for(second)["state"] == "FAILED"
    nobody = cli.run("approvals", "approve", "nope")
    assert nobody.exit_code == 4


def test_a_question_is_left_to_somebody_else(cli: CommandLine) -> None:
    job = cli.submit("ship")
    with cli.worker():
        (question,) = pending(cli)
        given = ("approvals", "delegate", question["id"], "--app", APP)
        told = cli.run(*given, "--to", "bob", "--by", "ann", "-r", "on holiday")
        assert told.stdout == "bob may decide 'Ship it?' instead of ann.\n"
        assert "Delegated: ann → bob" in cli.run("approvals", "show", question["id"]).stdout
        assert cli.json("approvals", "list")[0]["delegates"] == [{"from": "ann", "to": "bob"}]
        again = cli.run(*given, "--to", "cas", "--by", "ann")
        assert (again.exit_code, "not among the people" in again.stderr) == (5, True)
        assert decide(cli, "approve", question["id"], "--by", "ann").exit_code == 5
        assert decide(cli, "approve", question["id"], "--by", "bob").exit_code == 0
        assert cli.wait_for(job)["state"] == "COMPLETED"
        late = cli.run(*given, "--to", "cas", "--by", "bob")
        assert (late.exit_code, "already approved" in late.stderr) == (5, True)


def test_only_what_was_seen_is_decided_about(cli: CommandLine) -> None:
    cli.submit("ship")
    with cli.worker():
        (question,) = pending(cli)
        given = ("approvals", "approve", question["id"], "--app", APP, "--by", "ann")
        silent = cli.run(*given)
        assert (silent.exit_code, "pass the action that you saw" in silent.stderr) == (2, True)
        short = cli.run(*given, "--action", question["action_hash"][:15])
        assert (short.exit_code, "needs 16 characters" in short.stderr) == (2, True)
        other = cli.run(*given, "--action", "0" * 16)
        assert (other.exit_code, "changed since you saw it" in other.stderr) == (5, True)
        no = cli.run(*given, input="n\n")
        assert (no.exit_code, '"order": 7' in no.stdout) == (5, True)
        assert pending(cli)[0]["decisions"] == []
        yes = cli.run(*given, input="y\n")
        assert yes.exit_code == 0
        assert yes.stdout.endswith("Approved · ann (approve)\n")


def test_who_is_not_known_has_no_role_on_the_command_line(cli: CommandLine) -> None:
    cli.submit("ship")
    with cli.worker():
        (question,) = pending(cli)
        stranger = decide(cli, "approve", question["id"], "--by", "eve")
        assert (stranger.exit_code, "unknown person" in stranger.stderr) == (5, True)
        given = ("--action", question["action_hash"], "--by", "ann")
        without = cli.run("approvals", "approve", question["id"], *given)
        assert without.exit_code == 5
        assert "no people are listed who may decide: list them in the app" in without.stderr
        assert "not among the people who may decide" in without.stderr
        passed = cli.run("approvals", "delegate", question["id"], "--to", "bob", "--by", "eve")
        assert passed.exit_code == 5
        assert pending(cli)[0]["decisions"] == []
        # Another spelling is the same person.
        assert decide(cli, "approve", question["id"], "--by", "Ann ").exit_code == 0
        assert cli.json("approvals", "show", question["id"])["decisions"][0]["by"] == "ann"


def test_the_job_of_a_row_is_named_as_commands_take_it(cli: CommandLine) -> None:
    asking, paying = cli.submit("ship"), cli.submit("pay", usd=5)
    with cli.worker():
        pending(cli)
        assert cli.wait_for(paying)["state"] == "NEEDS_ATTENTION"
    assert asking[-8:] in cli.run("approvals", "list").stdout
    assert paying[-8:] in cli.run("effects", "list").stdout
    assert cli.run("effects", "resolve", paying[-8:], 1, "--did-not").exit_code == 0


def test_what_is_no_json_is_told_in_a_sentence(cli: CommandLine) -> None:
    cli.submit("ship")
    paying = cli.submit("pay", usd=5)
    with cli.worker():
        (question,) = pending(cli)
        assert cli.wait_for(paying)["state"] == "NEEDS_ATTENTION"
    result = cli.run("effects", "resolve", paying, 1, "--happened", "--result", "ref 9")
    assert (result.exit_code, "the result must be JSON" in result.stderr) == (2, True)
    asked = ("approvals", "approve", question["id"], "--app", APP, "--by", "ann")
    shown = cli.run(*asked, "--arguments", '{"order": 8}', input="n\n")
    assert 'Changed arguments: {"order": 8}' in shown.stdout
    assert "Approve it with this change?" in shown.stderr
    for given in ("usd=5", "[5]"):
        edit = decide(cli, "approve", question["id"], "--by", "ann", "--arguments", given)
        assert (edit.exit_code, "the arguments must be" in edit.stderr) == (2, True)


def test_an_undo_that_fails_is_left_from_the_command_line(cli: CommandLine) -> None:
    job = cli.submit("order", item="lamp")
    with cli.worker():
        while cli.json("jobs", "show", job)["state"] != "WAITING":
            pass
        cli.run("jobs", "cancel", job)
        assert cli.wait_for(job)["state"] == "CANCELLED"
        assert "interrupted: the job has ended" in cli.run("jobs", "show", job).stdout
        assert cli.run("jobs", "compensate", job, "-r", "wrong customer").exit_code == 0
        assert cli.wait_for(job)["state"] == "NEEDS_ATTENTION"
        left = cli.run("jobs", "abandon-undo", job, "undo:reserve#1", "-r", "impossible")
        assert left.exit_code == 0, left.stderr
        assert cli.wait_for(job)["state"] == "FAILED"


def test_a_doubt_is_listed_shown_with_its_job_and_resolved(cli: CommandLine) -> None:
    job = cli.submit("pay", usd=5)
    with cli.worker():
        assert cli.wait_for(job)["state"] == "NEEDS_ATTENTION"
        (line,) = cli.json("effects", "list")
        assert (line["state"], line["target"], line["details"]) == (
            "IN_DOUBT",
            "card 1",
            {"usd": 5},
        )
        assert "1 in doubt" in cli.run("jobs", "show", job).stdout
        assert cli.run("effects", "resolve", job, 1).exit_code == 2
        told = ("--happened", "--result", '"ref 9"', "--by", "kim", "-r", "the bank says so")
        assert cli.run("effects", "resolve", job, 1, *told).exit_code == 0
        assert cli.wait_for(job)["result"] == "ref 9"
        assert cli.run("effects", "resolve", job, 1, "--did-not").exit_code == 5
    assert cli.run("effects", "list").stdout == "No effect is in doubt.\n"
    assert cli.json("effects", "list", "--job", job)[0]["proof"] == "kim"


def test_an_account_is_revealed_on_the_command_line_and_its_job_says_to_whom(
    cli: CommandLine,
) -> None:
    job = cli.submit("payout", iban="DE02120300000000202051")
    with cli.worker():
        (question,) = pending(cli)
        assert question["arguments"]["iban"].startswith("[removed: …2051, fp ")
        shown = cli.run("approvals", "reveal", question["id"], "--by", "ann")
        assert shown.stdout == '{"iban":"DE02120300000000202051","pin":"[removed]"}\n'
        log = cli.json("jobs", "show", job)["events"]
    assert [each["actor"] for each in log if each["type"] == "approval.revealed"] == ["ann"]
