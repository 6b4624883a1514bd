"""People and time intervene: a short version of the long programme, and what it would find."""

import asyncio
import json
from typing import Any

import pytest

from perdure.jobs.model import EntryKind, Job, JobEvent, JournalEntry
from perdure.jobs.output import OutputPiece
from perdure.jobs.state import JobState, StepState
from tests.programmes.intervene import SUBJECTS, Options, Tally, run, sleeps
from tests.programmes.intervene_audit import Audit, Facts, Recorder
from tests.programmes.intervene_oracles import (
    Inspector,
    Message,
    Seen,
    booked,
    called_late,
    earned,
    findings,
)
from tests.programmes.intervene_primitives import BUG

# Seconds at most, and seldom so many. Until receivers forget keys takes too long here.
SHORT = Options(
    *(24, 8.0, 30.0),
    subjects=SUBJECTS - {"key_ttl"},
    pace=0.3,
    longest_outage=1.0,
)


# Real processes take their time to start, the more so where others run.
@pytest.mark.timeout(300)
@pytest.mark.once
def test_whatever_people_and_time_do_to_jobs_the_ledger_tells_what_happened(url: str) -> None:
    async def campaign() -> Tally:
        return await run(url, Tally(url.partition(":")[0], seed=5), SHORT)

    tally = asyncio.run(campaign())
    assert tally.wrong == [], str(tally)
    assert tally.jobs >= 10, f"too few jobs to show anything: {tally}"


Line = dict[str, Any]
CHARGE: Line = {"what": "charge", "key": "k", "ref": "j/pay", "job": "j", "usd": 1, "charge": "c"}
REFUND: Line = {"what": "refund", "key": "r", "ref": "j/pay", "job": "j", "charges": ["c"]}
SPEND: Line = {"what": "spend", "job": "j", "usd": 0.5}


def job(id: str = "j", state: JobState = JobState.COMPLETED, **values: Any) -> Job:
    given: dict[str, Any] = {"tenant": "t", "user": "kim", "name": "pay", "version": "1"}
    given |= {"queue": "default", "priority": 0, "input": b"{}"}
    return Job(id=id, state=state, **(given | values))


def audited(*jobs: Job, log: tuple[Line, ...], **lines: str) -> list[str]:
    """Give what is found: `lines` are the states in the ledger, by their keys."""
    kinds = {"k": "charge", "r": "refund"}
    effects = {key: ("j", 1, kinds[key], state) for key, state in lines.items()}
    facts = Facts({each.id: each for each in jobs}, effects, {}, {})
    return list(Audit(list(log), facts).findings())


def test_what_fits_is_no_finding() -> None:
    undone = job(state=JobState.COMPENSATED)
    assert audited(job(), log=(CHARGE,), k="DONE") == []
    assert audited(undone, log=(CHARGE, REFUND), k="UNDONE", r="DONE") == []


@pytest.mark.parametrize(
    ("jobs", "log", "lines", "found"),
    [
        ([job()], (CHARGE,), {}, "a call that the ledger does not know happened"),
        ([job()], (CHARGE, CHARGE), {"k": "DONE"}, "happened 2 times with one key"),
        ([job()], (CHARGE, CHARGE), {"k": "DONE"}, "j/pay is charged 2 times"),
        ([job()], (CHARGE,), {"k": "FAILED"}, "happened and is FAILED"),
        ([job()], (), {"k": "DONE"}, "is DONE and never happened"),
        ([job()], (), {"k": "IN_DOUBT"}, "is IN_DOUBT in the end"),
        ([job()], (CHARGE,), {"k": "UNDONE"}, "is UNDONE and stands"),
        ([job()], (CHARGE, REFUND), {"k": "DONE", "r": "DONE"}, "is DONE and refunded"),
        ([job()], (CHARGE, REFUND), {"k": "UNDONE", "r": "DONE"}, "and the job is COMPLETED"),
        ([job(state=JobState.CANCELLED)], (CHARGE,), {"k": "DONE"}, "stands and the job is"),
        (
            [job(parent="p"), job("p", JobState.COMPENSATED)],
            *((CHARGE,), {"k": "DONE"}, "stands, and above it p (pay) is COMPENSATED"),
        ),
        ([job()], (SPEND,), {}, "0.5 USD are spent, 0.0 are in the books"),
        ([job(name="asks")], (CHARGE,), {"k": "DONE"}, "nobody said yes to that"),
        ([job(name="inquires", result=b"3")], (), {}, "3 questions, 0 yeses"),
    ],
)
def test_what_does_not_fit_is_found(
    jobs: list[Job], log: tuple[Line, ...], lines: dict[str, str], found: str
) -> None:
    assert any(found in each for each in audited(*jobs, log=log, **lines))


def entry(**values: Any) -> JournalEntry:
    given: dict[str, Any] = {"seq": 1, "id": "a#1", "kind": EntryKind.STEP, "name": "a"}
    given |= {"state": StepState.SUCCEEDED, "output": b"1"}
    return JournalEntry(**(given | values))


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ([], "is gone"),
        ([entry(id="b#1")], "was a#1 and is b#1"),
        ([entry(output=b"2")], "gave b'1' and gives b'2'"),
        ([entry(state=StepState.PENDING)], "was SUCCEEDED and is PENDING"),
    ],
)
def test_a_journal_that_changes_is_found(later: list[JournalEntry], found: str) -> None:
    recorder = Recorder()
    assert list(recorder.look("j", [entry()])) == []
    assert any(found in each for each in recorder.look("j", later))


# What each job has seen


def seen(name: str, given: str, result: str | None = None, **more: Any) -> Seen:
    """Make all that is known of a job that has completed, or was undone."""
    state = JobState.COMPENSATED if result is None else JobState.COMPLETED
    packed = None if result is None else result.encode()
    error = more.pop("error", None)
    made = job(state=state, result=packed, name=name, input=given.encode(), error=error)
    rest: dict[str, Any] = {"journal": [], "events": [], "messages": []}
    return Seen(made, **(rest | more))


def note(text: str) -> JournalEntry:
    return entry(id=f"note#{text}", name="note", input=f'{{"text":"{text}"}}'.encode())


def attention(error: str) -> JobEvent:
    return JobEvent(type="job.needs_attention", data={"error": error})


def piece(position: int, value: object, step: str = "", **more: Any) -> OutputPiece:
    return OutputPiece(position=position, step=step, data=json.dumps(value).encode(), **more)


TAKEN = [Message("a", "a0", is_taken=True), Message("b", "b1", is_taken=True)]
TOPICS = '{"count":2,"how":"topics"}'
ONE, TWO = '{"count":1}', '{"count":2}'
BEGIN, MIDDLE, END = piece(1, "begin"), piece(4, "middle"), piece(6, "end")
RESET = piece(3, None, "tell#1", kind="reset", discards=2)
VOID = piece(2, 0, "tell#1")
OUTPUT = [BEGIN, VOID, RESET, piece(4, 0, "tell#1"), piece(5, "middle"), piece(6, 0, "tell#2")]


@pytest.mark.parametrize(
    "known",
    [
        seen("polls", TOPICS, '["b1","a0"]', messages=TAKEN),
        seen("polls", TOPICS, messages=TAKEN, journal=[note("a0")]),  # it ended with b1 in hand
        seen("polls", TOPICS, messages=[Message("a", "a0", is_taken=False)]),
        seen("collects", TWO, "[0,1]"),
        seen("deployed", "{}", "[false,true]"),
        seen("deployed", "{}", error=BUG.encode()),  # it had done nothing yet
        seen("deployed", "{}", "[]", events=[attention(BUG)]),
        seen("emits", ONE, "2", pieces=[*OUTPUT, piece(7, "end")]),
        seen("continues", ONE, '["a0"]', messages=TAKEN[:1], pieces=[piece(1, "round 0")]),
        seen("deployed", "{}", error=BUG.encode(), journal=[entry()]),  # of a fork
    ],
)
def test_a_job_that_has_seen_what_it_was_given_is_no_finding(known: Seen) -> None:
    assert list(findings(known)) == []


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (seen("polls", TOPICS, '["b1"]', messages=TAKEN), "took ['a0', 'b1'], and its code got"),
        (seen("polls", TOPICS, '["b1","a0","a0"]', messages=TAKEN), "and its code got"),
        (seen("polls", TOPICS, messages=TAKEN), "and its code got []"),
        (seen("continues", TWO, '["a1","a0"]'), "not the order of sending"),
        (seen("collects", TWO, "[0,0]"), "collected [0, 0] of 2 items"),
        (seen("deployed", "{}", "[true,false]", is_fresh=True), "patched was [True, False]"),
        (
            seen("deployed", "{}", error=BUG.encode(), journal=[entry(attempt=1)]),
            "has ended it as",
        ),
        (seen("pay", "{}", "1", events=[attention("Drift: …")]), "parked: Drift"),
        (seen("emits", ONE, "2", pieces=OUTPUT), "emitted"),
        (seen("emits", ONE, "2", pieces=[*OUTPUT, piece(7, "end"), piece(8, "end")]), "emitted"),
        (seen("emits", ONE, pieces=[MIDDLE, BEGIN]), "position 1 of its output comes after 4"),
        (seen("continues", ONE, '["a0"]', messages=TAKEN[:1]), "emitted {}"),
    ],
)
def test_a_job_that_has_seen_something_else_is_found(known: Seen, found: str) -> None:
    assert any(found in each for each in findings(known))


@pytest.mark.parametrize(
    ("state", "changes", "found"),
    [
        (JobState.COMPLETED, {0: [1], 1: [1]}, ""),
        (JobState.COMPENSATED, {0: [1, -1]}, ""),
        (JobState.COMPLETED, {0: [1], 1: [1, 1]}, "booking 1 was changed by [1, 1]"),
        (JobState.COMPENSATED, {0: [1, -1, -1]}, "booking 0 was changed"),
        (JobState.COMPLETED, {0: [1]}, "2 bookings, and [0] stand"),
        (JobState.CANCELLED, {0: [1]}, "[0] stand, and the job is CANCELLED"),
    ],
)
def test_a_transaction_that_did_not_happen_once_is_found(
    state: JobState, changes: dict[int, list[int]], found: str
) -> None:
    wrong = list(booked(job(state=state, name="books", input=TWO.encode()), changes))
    assert (not wrong) if not found else any(found in each for each in wrong)


def test_a_child_whose_parent_got_something_else_is_found() -> None:
    parent = job(name="hurries", result=b'"ch_1"')
    child = job("c", name="earns", parent="j", result=b'"ch_1"')
    other = job("c", name="earns", parent="j", result=b'"ch_2"')
    late = job(name="hurries", result=b'""')
    assert list(earned({"j": parent, "c": child})) == []
    assert list(earned({"j": late, "c": child})) == []
    assert len(list(earned({"j": parent, "c": other}))) == 1


def test_a_key_that_is_used_too_late_is_found() -> None:
    came = {"what": "came", "op": "charge", "key": "k", "job": "j"}
    jobs = {"j": job(name="forgets")}
    assert list(called_late([{**came, "at": 1.0}, {**came, "at": 2.0}], jobs, 3.0)) == []
    assert len(list(called_late([{**came, "at": 1.0}, {**came, "at": 9.0}], jobs, 3.0))) == 1


def test_a_bulk_report_that_does_not_fit_the_logs_is_found() -> None:
    inspector = Inspector()
    inspector.seen = {"j"}
    inspector.asked["j", "bulk 1"] = 1
    assert list(inspector.bulk({("j", "bulk 1"): True, ("gone", "bulk 1"): True})) == []
    assert len(list(inspector.bulk({("j", "bulk 1"): False, ("j", "bulk 2"): True}))) == 2


def test_claims_beyond_a_rate_are_found() -> None:
    inspector = Inspector()
    inspector.claims = {"j": [number / 20 for number in range(100)]}
    assert list(inspector.too_fast()) == []
    inspector.claims = {"j": [number / 100 for number in range(100)]}
    assert len(list(inspector.too_fast())) == 1


def test_after_a_clock_was_set_back_only_timers_rest() -> None:
    timer = b'[{"kind":"timer","id":"sleep#1","until":9000.0}]'
    assert sleeps(job(state=JobState.WAITING, wait=timer), now=5000.0)
    assert not sleeps(job(state=JobState.WAITING, wait=timer), now=8990.0)
    assert not sleeps(job(state=JobState.WAITING), now=5000.0)
