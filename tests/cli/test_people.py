"""`perdure approvals` and `effects`, on a real store with a real worker."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.support.cli import APP, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def pending(desk: Desk) -> list[dict[str, Any]]:
    """Wait until something is asked."""
    while not (found := desk.json("approvals", "list")):
        pass
    return found


def decide(desk: Desk, verdict: str, approval: str, *words: str) -> Result:
    """Decide about what is shown now."""
    seen = desk.json("approvals", "show", approval)["action_hash"]
    given = ("approvals", verdict, approval, "--app", APP, "--action", seen[:16])
    return desk.run(*given, *words)


def test_a_question_is_seen_shown_and_answered(desk: Desk) -> None:
    first, second = desk.submit("ship"), desk.submit("ship")
    assert desk.run("approvals", "list").stdout == "No approval is pending.\n"
    with desk.worker():
        while len(pending(desk)) < 2:
            pass
        by_job = {each["job"]: each["id"] for each in pending(desk)}
        assert "Ship it?" in desk.run("approvals", "list").stdout
        shown = desk.run("approvals", "show", by_job[first][:20]).stdout
        assert '"order": 7' in shown
        done = decide(desk, "approve", by_job[first], "--by", "ann", "-r", "fine")
        assert done.stdout == "Approved · ann (approve) · fine\n"
        late = decide(desk, "reject", by_job[first], "--by", "bob")
        assert (late.exit_code, "already approved, by ann" in late.stderr) == (5, True)
        assert decide(desk, "reject", by_job[second], "--by", "bob").exit_code == 0
        assert desk.wait_for(first)["result"] == "ann: fine"
        assert desk.wait_for(second)["state"] == "FAILED"
    nobody = desk.run("approvals", "approve", "nope")
    assert nobody.exit_code == 4


def test_a_question_is_left_to_somebody_else(desk: Desk) -> None:
    job = desk.submit("ship")
    with desk.worker():
        (question,) = pending(desk)
        given = ("approvals", "delegate", question["id"], "--app", APP)
        told = desk.run(*given, "--to", "bob", "--by", "ann", "-r", "on holiday")
        assert told.stdout == "bob may decide 'Ship it?' instead of ann.\n"
        assert "Delegated: ann → bob" in desk.run("approvals", "show", question["id"]).stdout
        assert desk.json("approvals", "list")[0]["delegates"] == [{"from": "ann", "to": "bob"}]
        again = desk.run(*given, "--to", "cas", "--by", "ann")
        assert (again.exit_code, "not among the people" in again.stderr) == (5, True)
        assert decide(desk, "approve", question["id"], "--by", "ann").exit_code == 5
        assert decide(desk, "approve", question["id"], "--by", "bob").exit_code == 0
        assert desk.wait_for(job)["state"] == "COMPLETED"
        late = desk.run(*given, "--to", "cas", "--by", "bob")
        assert (late.exit_code, "already approved" in late.stderr) == (5, True)


def test_only_what_was_seen_is_decided_about(desk: Desk) -> None:
    desk.submit("ship")
    with desk.worker():
        (question,) = pending(desk)
        given = ("approvals", "approve", question["id"], "--app", APP, "--by", "ann")
        silent = desk.run(*given)
        assert (silent.exit_code, "pass the action that you saw" in silent.stderr) == (2, True)
        short = desk.run(*given, "--action", question["action_hash"][:15])
        assert (short.exit_code, "needs 16 characters" in short.stderr) == (2, True)
        other = desk.run(*given, "--action", "0" * 16)
        assert (other.exit_code, "changed since you saw it" in other.stderr) == (5, True)
        no = desk.run(*given, input="n\n")
        assert (no.exit_code, '"order": 7' in no.stdout) == (5, True)
        assert pending(desk)[0]["decisions"] == []
        yes = desk.run(*given, input="y\n")
        assert yes.exit_code == 0
        assert yes.stdout.endswith("Approved · ann (approve)\n")


def test_who_is_not_known_has_no_role_on_the_command_line(desk: Desk) -> None:
    desk.submit("ship")
    with desk.worker():
        (question,) = pending(desk)
        stranger = decide(desk, "approve", question["id"], "--by", "eve")
        assert (stranger.exit_code, "unknown person" in stranger.stderr) == (5, True)
        given = ("--action", question["action_hash"], "--by", "ann")
        without = desk.run("approvals", "approve", question["id"], *given)
        assert without.exit_code == 5
        assert "this app lists no people: name it with --app" in without.stderr
        assert "not among the people who may decide" in without.stderr
        passed = desk.run("approvals", "delegate", question["id"], "--to", "bob", "--by", "eve")
        assert passed.exit_code == 5
        assert pending(desk)[0]["decisions"] == []
        # Another spelling is the same person.
        assert decide(desk, "approve", question["id"], "--by", "Ann ").exit_code == 0
        assert desk.json("approvals", "show", question["id"])["decisions"][0]["by"] == "ann"


def test_the_job_of_a_row_is_named_as_commands_take_it(desk: Desk) -> None:
    asking, paying = desk.submit("ship"), desk.submit("pay", usd=5)
    with desk.worker():
        pending(desk)
        assert desk.wait_for(paying)["state"] == "NEEDS_ATTENTION"
    assert asking[-8:] in desk.run("approvals", "list").stdout
    assert paying[-8:] in desk.run("effects", "list").stdout
    assert desk.run("effects", "resolve", paying[-8:], 1, "--did-not").exit_code == 0


def test_what_is_no_json_is_told_in_a_sentence(desk: Desk) -> None:
    desk.submit("ship")
    paying = desk.submit("pay", usd=5)
    with desk.worker():
        (question,) = pending(desk)
        assert desk.wait_for(paying)["state"] == "NEEDS_ATTENTION"
    result = desk.run("effects", "resolve", paying, 1, "--happened", "--result", "ref 9")
    assert (result.exit_code, "the result must be JSON" in result.stderr) == (2, True)
    for given in ("usd=5", "[5]"):
        edit = decide(desk, "approve", question["id"], "--by", "ann", "--arguments", given)
        assert (edit.exit_code, "the arguments must be" in edit.stderr) == (2, True)


def test_an_undo_that_fails_is_left_from_the_command_line(desk: Desk) -> None:
    job = desk.submit("order", item="lamp")
    with desk.worker():
        while desk.json("jobs", "show", job)["state"] != "WAITING":
            pass
        desk.run("jobs", "cancel", job)
        assert desk.wait_for(job)["state"] == "CANCELLED"
        assert "interrupted: the job has ended" in desk.run("jobs", "show", job).stdout
        assert desk.run("jobs", "compensate", job, "-r", "wrong customer").exit_code == 0
        assert desk.wait_for(job)["state"] == "NEEDS_ATTENTION"
        left = desk.run("jobs", "abandon-undo", job, "undo:reserve#1", "-r", "impossible")
        assert left.exit_code == 0, left.stderr
        assert desk.wait_for(job)["state"] == "FAILED"


def test_a_doubt_is_listed_shown_with_its_job_and_resolved(desk: Desk) -> None:
    job = desk.submit("pay", usd=5)
    with desk.worker():
        assert desk.wait_for(job)["state"] == "NEEDS_ATTENTION"
        (line,) = desk.json("effects", "list")
        assert (line["state"], line["target"], line["details"]) == (
            "IN_DOUBT",
            "card 1",
            {"usd": 5},
        )
        assert "1 in doubt" in desk.run("jobs", "show", job).stdout
        assert desk.run("effects", "resolve", job, 1).exit_code == 2
        told = ("--happened", "--result", '"ref 9"', "--by", "kim", "-r", "the bank says so")
        assert desk.run("effects", "resolve", job, 1, *told).exit_code == 0
        assert desk.wait_for(job)["result"] == "ref 9"
        assert desk.run("effects", "resolve", job, 1, "--did-not").exit_code == 5
    assert desk.run("effects", "list").stdout == "Nothing is in doubt.\n"
    assert desk.json("effects", "list", "--job", job)[0]["proof"] == "kim"
