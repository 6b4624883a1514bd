"""What jobs and people wrote, on a terminal: no markup, no escape sequence, nothing hidden."""

import asyncio
import re
import unicodedata
from pathlib import Path

import msgspec
import pytest

import perdure.cli
from perdure.jobs.audit import AuditDraft
from perdure.jobs.credential import TokenRow
from perdure.jobs.effect import Effect, Place
from perdure.jobs.failure import Failure
from perdure.jobs.model import JobEvent, Schedule
from perdure.jobs.state import JobState, StepState
from perdure.store.open import open_store
from perdure.web.access.tokens import TokenGrant
from tests.support.cli import CommandLine
from tests.support.store import claim_one, ends, entry, new_job, write_of

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


# The words with which the commands of people are asked about what is in the store below.
READ = (
    "jobs list", "jobs list -o ids", "jobs show {id}", "jobs show {id} --full", "jobs output {id}",
    "jobs watch {id}", "jobs bundle {id}", "jobs export {id}", "jobs cancel {id}",
    "effects list", "approvals list", "schedules list", "queues list", "workers list",
    "tokens list", "audit list", "audit verify", "doctor",
)  # fmt: skip
FORGING = (
    "x\nFORGED by a line\rFORGED by a return\x1b[2J\x1b[1;1HFORGED\u202e\u2028FORGED "
    "[bold]y[/bold] [/z]"
)


async def forged_store(url: str) -> str:
    """Fill a store with a text that forges lines, wherever somebody may have written one."""
    store = open_store(url)
    await store.open()
    failure = Failure(type=FORGING, message=FORGING, trace=f"Traceback\n{FORGING}", step=FORGING)
    job = new_job(
        "f" * 32, user=FORGING, tenant=FORGING, name=FORGING, version=FORGING, key=FORGING,
        labels={"team": FORGING},
    )  # fmt: skip
    await store.submit([job])
    claim = await claim_one(store, FORGING)
    failed = entry(0, StepState.FAILED, name=FORGING, id=FORGING, error=failure.pack())
    event = JobEvent(type=FORGING, data={FORGING: FORGING}, actor=FORGING)
    effect = Effect(
        job_id=job.id, no=0, tenant=FORGING, key=FORGING, place=Place(FORGING, 1), kind=FORGING,
        target=FORGING, called_at=1000.0, problem=FORGING, details=msgspec.json.encode(FORGING),
    )  # fmt: skip
    await store.write(write_of(claim, failed, events=(event,), effects=(effect,)))
    await store.send(job.id, FORGING, msgspec.json.encode(FORGING))
    await store.write(write_of(claim, job=ends(JobState.FAILED, error=failure.pack())))
    await store.put_schedule(Schedule(name=FORGING, cron="0 3 * * *", job=job))
    grant = TokenGrant(name=FORGING)
    token = TokenRow(
        id="t1", hash="h", data=msgspec.json.encode(grant).decode(), principal=FORGING,
        created_by=FORGING, tenant=FORGING,
    )  # fmt: skip
    await store.add_token(token, 1000.0)
    await store.audit(AuditDraft(actor=FORGING, action=FORGING, tenant="", target=FORGING))
    await store.audit(AuditDraft(actor=FORGING, action=FORGING, tenant=FORGING, target=FORGING))
    await store.pause_queue(FORGING, FORGING, FORGING, paused=True)
    await store.close()
    return job.id


@pytest.mark.parametrize("words", READ)
def test_no_text_of_others_forges_a_line_of_any_command(cli: CommandLine, words: str) -> None:
    id = asyncio.run(forged_store(cli.url))
    told = cli.run(*words.format(id=id).split(" "))
    assert told.exit_code in (0, 1, 5, 7, 8), told.output
    assert told.exception is None or isinstance(told.exception, SystemExit), told.output
    forged = [each for each in told.output.splitlines() if each.startswith("FORGED")]
    assert forged == []
    hidden = {
        each for each in told.output if each != "\n" and unicodedata.category(each)[0] in "CZ"
    }
    assert hidden <= {" "}


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
