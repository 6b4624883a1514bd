"""`perdure jobs output`: what a job has emitted, for people and for programs."""

import json

from tests.support.cli import CommandLine


def test_what_a_job_emitted_is_printed_and_can_be_read_on(cli: CommandLine) -> None:
    with cli.worker():
        job = cli.submit("tell", words=["to", " be", "\x1b[31m"])
        followed = cli.run("jobs", "output", job, "--topic", "tokens", "--follow")
        assert followed.stdout.splitlines()[:2] == ["to", " be"]
        assert "\x1b" not in followed.stdout
    joined = cli.run("jobs", "output", job, "--join")
    assert joined.stdout.startswith("to be⟨U+001B⟩")
    lines = cli.run("jobs", "output", job, "--after", 1, "-o", "json").stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert [(each["position"], each["value"]) for each in told] == [(2, " be"), (3, "\x1b[31m")]
    assert {(each["step"], each["attempt"], each["kind"]) for each in told} == {
        ("write_story#1", 1, "value")
    }


def test_the_topics_of_a_job_are_shown_and_one_must_be_chosen(cli: CommandLine) -> None:
    with cli.worker():
        job = cli.submit("tell", words=["a"], also="b")
        silent = cli.submit("welcome", name="Kim")
        assert cli.wait_for(job)["result"] == 1
        cli.wait_for(silent)
    which = cli.run("jobs", "output", job)
    assert (which.exit_code, "log, tokens" in which.stderr) == (2, True)
    assert cli.run("jobs", "output", job, "--topic", "log").stdout == '{"also": "b"}\n'
    assert "tokens: 1 pieces" in cli.run("jobs", "show", job).stdout
    shown = {each["topic"]: each["pieces"] for each in cli.json("jobs", "show", job)["output"]}
    assert shown == {"log": 1, "tokens": 1}
    assert "has emitted nothing" in cli.run("jobs", "output", silent).stderr
    assert cli.run("jobs", "output", silent, "--follow").exit_code == 2
    assert cli.run("jobs", "output", silent, "--topic", "t", "--follow").stdout == ""
