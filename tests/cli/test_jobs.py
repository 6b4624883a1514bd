"""`perdure worker`, `submit` and `jobs`, as programs on a real store."""

import json
import signal
from pathlib import Path

from tests.support.cli import APP, LONGEST_WAIT, CommandLine


def test_a_submitted_job_is_run_by_a_worker_and_its_result_waited_for(cli: CommandLine) -> None:
    alone = cli.run("submit", APP, "welcome", "-a", '{"name": "Kim"}', "--key", "k")
    with cli.worker("--concurrency", 2):
        again = cli.run("submit", APP, "welcome", "-a", '{"name": "Kim"}', "--key", "k", "--wait")

    assert alone.exit_code == again.exit_code == 0
    assert "no worker is running" in alone.stderr
    assert again.stdout == '"hello Kim"\n'
    assert "was already submitted" in again.stderr


def test_a_job_whose_queue_nobody_serves_says_so(cli: CommandLine) -> None:
    with cli.worker():
        lost = cli.run("submit", APP, "welcome", "-a", '{"name": "Kim"}', "--queue", "nowhere")
        fine = cli.run("submit", APP, "welcome", "-a", '{"name": "Kim"}')

    assert lost.exit_code == fine.exit_code == 0
    assert "no worker serves queue nowhere" in lost.stderr
    assert "queue" not in fine.stderr


def test_a_job_that_an_outage_parks_says_what_to_do_and_goes_on_when_resumed(
    cli: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    with cli.worker():
        parked = cli.run("submit", APP, "reach", "-a", json.dumps({"path": str(path)}), "-w")
        [job] = cli.json("jobs", "list", "--state", "needs_attention")
        path.write_text("here")
        resumed = cli.run("jobs", "resume", job["id"], "--reason", "it is back")
        done = cli.wait_for(job["id"])

    assert parked.exit_code == 7
    assert "is NEEDS_ATTENTION: perdure.errors.StepFailed: step call#1" in parked.stderr
    assert f"perdure jobs show {job['id'][-8:]}" in parked.stderr
    assert resumed.exit_code == 0
    assert (done["state"], done["result"]) == ("COMPLETED", "here")


def test_a_worker_stops_in_order_when_it_is_asked_to(cli: CommandLine) -> None:
    with cli.worker() as worker:
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=LONGEST_WAIT)

    assert worker.returncode == 0
    assert "down" in errors
    assert "Traceback" not in errors


def test_a_worker_says_which_jobs_have_failed_or_wait_for_a_person(cli: CommandLine) -> None:
    with cli.worker() as worker:
        failed = cli.submit("fetch", path="/nowhere/at/all")
        parked = cli.submit("reach", path="/nowhere/at/all")
        cli.submit("welcome", name="Kim")
        for job in (failed, parked):
            cli.wait_for(job)
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=LONGEST_WAIT)

    said = [line.split("  ", 2)[2] for line in errors.splitlines() if "WARNING" in line]
    assert len(said) == 2
    assert any(
        line.startswith(f"job {failed} (fetch) is FAILED: ") and "is missing" in line
        for line in said
    )
    assert any(line.startswith(f"job {parked} (reach) is NEEDS_ATTENTION: ") for line in said)


def test_arguments_come_from_a_file_or_from_standard_input(
    cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "kim.json").write_text('{"name": "Kim"}')
    first = cli.json("submit", APP, "welcome", "-a", f"@{tmp_path / 'kim.json'}")
    second = cli.run("submit", APP, "welcome", "-a", "-", input='{"name": "Lee"}')

    assert cli.json("jobs", "show", first["id"])["input"] == {"name": "Kim"}
    assert second.exit_code == 0
    assert cli.json("jobs", "list")[0]["input"] == {"name": "Lee"}


def test_a_plan_is_submitted_from_a_file(cli: CommandLine, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    calls = [{"step": "greet", "arguments": {"name": "plan"}}]
    plan.write_text(json.dumps({"name": "p", "calls": calls}))
    with cli.worker():
        done = cli.run("submit", APP, "--plan", plan, "--wait", "-o", "json")
    plan.write_text(json.dumps({"name": "p", "calls": [{"step": "gret"}]}))
    wrong = cli.run("submit", APP, "--plan", plan)

    assert json.loads(done.stdout)["result"] == "hello plan"
    assert wrong.exit_code == 2
    assert "there is no step 'gret'" in wrong.stderr


def test_a_failed_job_is_shown_retried_skipped_and_forked(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with cli.worker():
        waited = cli.run("submit", APP, "fetch", "-a", json.dumps({"path": str(path)}), "-w")
        [job] = cli.json("jobs", "list", "--state", "failed")
        shown = cli.run("jobs", "show", job["id"][-8:])
        path.write_text("here")
        fork = cli.json("jobs", "fork", job["id"], "--before", "need#1")["id"]
        retried = cli.run("jobs", "retry", job["id"], "--by", "kim", "--reason", "it is there")
        done, copy = cli.wait_for(job["id"]), cli.wait_for(fork)
        path.unlink()
        other = cli.submit("fetch", path=str(path))
        cli.wait_for(other)
        skipped = cli.run(
            "jobs", "skip", other, "need#1", "--reason", "by hand", "--result", '"mine"'
        )
        by_hand = cli.wait_for(other)

    assert waited.exit_code == 7
    assert "is FAILED: perdure.errors.StepFailed: step need#1" in waited.stderr
    assert "need#1" in shown.stdout
    assert "is missing" in shown.stdout
    assert retried.exit_code == skipped.exit_code == 0
    assert (done["state"], done["result"]) == ("COMPLETED", "here")
    assert [event["actor"] for event in done["events"] if event["type"] == "retry.asked"] == ["kim"]
    assert (copy["state"], copy["result"], copy["forked_from"]) == ("COMPLETED", "here", job["id"])
    assert (by_hand["state"], by_hand["result"]) == ("COMPLETED", "mine")
    assert [entry["state"] for entry in by_hand["journal"]] == ["SUCCEEDED", "SKIPPED"]


def test_a_waiting_job_says_what_for_and_can_be_paused_resumed_and_cancelled(
    cli: CommandLine,
) -> None:
    with cli.worker():
        job, other = cli.submit("ask", who="Kim"), cli.submit("ask", who="Lee")
        while cli.json("jobs", "show", job)["state"] != "WAITING":
            pass
        shown = cli.run("jobs", "show", job)
        listed = cli.run("jobs", "list")
        paused = cli.run("jobs", "pause", job)
        early = cli.run("jobs", "retry", job)
        resumed = cli.run("jobs", "resume", job)
        sent = cli.run("jobs", "send", job, "answer", '"yes"', "--key", "k")
        answered = cli.wait_for(job)
        again = cli.run("jobs", "send", job, "answer", '"yes"', "--key", "k")
        late = cli.run("jobs", "send", job, "answer", '"no"')
        unreadable = cli.run("jobs", "send", job, "answer", "yes")
        cancelled = cli.run("jobs", "cancel", other)
        ended = cli.run("jobs", "watch", other)

    assert "waiting for  message 'answer'" in shown.stdout
    assert "waiting for message 'answer'" in listed.stdout
    assert paused.stdout == f"job {job} is PAUSED\n"
    assert early.exit_code == 5
    assert "only FAILED, CANCELLED" in early.stderr
    assert resumed.exit_code == cancelled.exit_code == 0
    assert sent.stdout == f"message sent to job {job}\n"
    assert (answered["state"], answered["result"]) == ("COMPLETED", "yes")
    assert again.stdout == f"job {job} already has a message with this key\n"
    assert (late.exit_code, unreadable.exit_code) == (5, 2)
    assert "receives no more messages" in late.stderr
    assert "the message must be JSON" in unreadable.stderr
    assert ended.exit_code == 8
    assert "job.cancelled" in ended.stdout


def test_a_job_that_is_watched_tells_each_change(cli: CommandLine) -> None:
    with cli.worker():
        job = cli.submit("welcome", name="Kim")
        people = cli.run("jobs", "watch", job)
        programs = cli.run("jobs", "watch", job, "-o", "json")

    assert "greet#1  SUCCEEDED" in people.stdout
    changes = [json.loads(line) for line in programs.stdout.splitlines()]
    assert [change["event"]["type"] for change in changes if "event" in change] == [
        "submitted",
        "claimed",
        "job.completed",
    ]


def test_a_worker_that_is_killed_costs_nothing(cli: CommandLine) -> None:
    with cli.worker() as worker:
        job = cli.submit("ask", who="Kim")
        while cli.json("jobs", "show", job)["state"] != "WAITING":
            pass
        worker.kill()
    cli.run("jobs", "send", job, "answer", '"yes"')
    with cli.worker():
        done = cli.wait_for(job)

    assert done["result"] == "yes"
    assert [entry["attempt"] for entry in done["journal"][:2]] == [1, 1]


def test_a_copy_keeps_the_arguments_that_are_not_given_and_takes_no_marker(
    cli: CommandLine,
) -> None:
    with cli.worker():
        job = cli.submit("transfer", usd=1400, iban="DE02120300000000202051")
        cli.wait_for(job)
        given = ("jobs", "fork", job, "--before", "greet#1", "--app", APP, "--json-args")
        refused = cli.run(*given, '{"iban": "[removed: …2051]"}')
        copy = cli.json(*given, '{"usd": 1399}')["id"]
        done = cli.wait_for(copy)
        to_send = cli.run("jobs", "send", job, "go", '{"token": "[removed]"}')
    assert (refused.exit_code, "only stands for a value" in refused.stderr) == (2, True)
    assert (to_send.exit_code, "only stands for a value" in to_send.stderr) == (2, True)
    assert done["result"] == "1399 to DE02120300000000202051"
    assert done["input"] == {"usd": 1399, "iban": "[removed: …2051]"}
