"""People and time intervene: a short version of the long programme, and what it would find."""

import asyncio
from typing import Any

import pytest

from perdure.jobs.model import EntryKind, Job, JournalEntry
from perdure.jobs.state import JobState, StepState
from tests.programmes.intervene import Options, Tally, run, slow_store
from tests.programmes.intervene_audit import Audit, Facts, Recorder

SHORT = Options(jobs=60, seconds=12.0, patience=30.0)  # seconds at most, and seldom so many


# Real processes take their time to start, the more so where others run.
@pytest.mark.timeout(300)
@pytest.mark.once
def test_whatever_people_and_time_do_to_jobs_the_ledger_tells_what_happened(url: str) -> None:
    async def campaign() -> Tally:
        async with slow_store(url, seed=5) as slow:
            return await run(url, slow, Tally(url.partition(":")[0], seed=5), SHORT)

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
