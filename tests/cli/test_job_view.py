"""How one job is drawn, without a store."""

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from perdure.base.codec import encode
from perdure.cli.jobs.show import JobView, draw_job
from perdure.jobs.failure import Failure
from perdure.jobs.model import EntryKind, Job, JournalEntry
from perdure.jobs.saga import LEFT_UNDONE, UNDO_LIST
from perdure.jobs.state import JobState, StepState

JOB = Job(
    id="0" * 32,
    tenant="default",
    user="",
    name="order",
    version="1",
    state=JobState.COMPENSATING,
    queue="default",
    priority=0,
    input=b"{}",
)


def drawn(*entries: JournalEntry, width: int = 200) -> str:
    page = io.StringIO()
    view = JobView(job=JOB, journal=entries, events=(), messages=(), now=0.0, narrow=width)
    Console(file=page, width=width).print(draw_job(view, 10))
    return page.getvalue()


def undo_list(**reason: Any) -> JournalEntry:
    return JournalEntry(
        seq=3,
        id=UNDO_LIST,
        kind=EntryKind.UNDO,
        name=UNDO_LIST,
        state=StepState.SUCCEEDED,
        output=msgspec.json.encode(reason),
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            {"ends": "COMPENSATED", "error": Failure(type="Odd", message="no").pack().decode()},
            "the job becomes COMPENSATED: Odd: no",
        ),
        (
            {"ends": "COMPENSATED", "error": None, "asked": True},
            "the job becomes COMPENSATED: somebody asked for it",
        ),
        ({"ends": "CANCELLED", "error": None}, "the job becomes CANCELLED: it was cancelled"),
    ],
    ids=["failed", "asked", "cancelled"],
)
def test_an_undo_list_says_in_words_why_the_job_is_undone(
    reason: dict[str, Any], words: str
) -> None:
    text = drawn(undo_list(**reason))
    assert words in text
    assert '{"ends"' not in text


def test_an_undo_that_was_abandoned_is_called_so() -> None:
    entry = JournalEntry(
        seq=4,
        id="undo:charge#1",
        kind=EntryKind.UNDO,
        name="undo:charge",
        state=StepState.SKIPPED,
        output=encode(LEFT_UNDONE),
    )
    assert "abandoned" in drawn(entry)


def test_long_names_of_steps_are_folded_so_that_they_can_be_told_apart() -> None:
    names = [f"researcher/tools/search_the_web_{word}#1" for word in ("slowly", "quickly")]
    entries = [
        JournalEntry(
            seq=1_000_000,
            id=name,
            kind=EntryKind.STEP,
            name=name,
            state=StepState.COMPENSATED,
            attempt=100,
            started_at=1.0,
            ended_at=50_000.0,
            output=encode("x" * 500),
        )
        for name in names
    ]
    lines = [line.split() for line in drawn(*entries, width=80).splitlines()]
    folded = "".join(word for line in lines for word in line)
    column = "".join(line[1] if line[0] == "1000000" else line[0] for line in lines if line)
    assert [name in column for name in names] == [True, True], folded
