"""Every sign of an anti-pattern is planted once, and found; a healthy store has none."""

from typing import Any

import pytest

from perdure import App, Retry, StepContext
from perdure.jobs.anti_pattern import SIGNS, SIGNS_OF_CODE, signs_of_code
from perdure.jobs.budget import BudgetLimits
from perdure.jobs.gate import Gate, GatePolicy
from perdure.jobs.payload import split
from perdure.jobs.risk import RiskLevel
from perdure.jobs.state import StepState
from perdure.store.store import Store
from tests.store.test_invariant import plant, populate
from tests.support.store import claim_one, entry, new_job, sql, write_of


async def found(store: Store) -> dict[str, list[str]]:
    """Return what was found, by sign."""
    signs: dict[str, list[str]] = {}
    for each in await store.signs():
        signs.setdefault(each.invariant, []).append(f"{each.job_id}: {each.what}")
    return signs


async def working(store: Store) -> Any:
    """Have a job that a worker owns."""
    await store.submit([new_job("busy")])
    return await claim_one(store, "w9")


async def test_a_healthy_store_shows_no_sign(store: Store) -> None:
    await populate(store)
    signs = await found(store)
    # `populate` asks and doubts in 1970.
    assert set(signs) <= {"unanswered_approvals", "long_doubts"}


# How each is planted: as a statement, with `{now}` and `{clock}` of the store.
PLANTED = {
    "expired_leases": (
        "UPDATE lease SET until = {clock} - 303 WHERE job_id = 'busy'",
        "busy: its lease expired 5 minutes ago, and nobody took it over",
    ),
    "silent_workers": (
        (
            "INSERT INTO worker (owner, info, definitions, heartbeat_at)"
            " VALUES ('w9', '{{}}', '', {clock} - 243)"
        ),
        "busy: worker w9 has been silent for 4 minutes and owns 1 job",
    ),
    "crashing_jobs": (
        "UPDATE lease SET claims = 4 WHERE job_id = 'busy'",
        "busy: it was claimed 4 times in a row without progress",
    ),
    "silent_steps": (
        "UPDATE journal SET started_at = {now} - 7203 WHERE job_id = 'busy' AND id = 'step#1'",
        "busy: step#1 has run for 120 minutes without a sign of progress",
    ),
    "long_journals": (
        "UPDATE journal SET seq = 10000 WHERE job_id = 'busy' AND id = 'step#0'",
        "busy: its journal has 10001 entries",
    ),
    "costly_replays": (
        "UPDATE lease SET epoch = 600000 WHERE job_id = 'busy'",
        "busy: it was claimed 600000 times, and its journal has 2 entries",
    ),
    "large_checkpoints": (
        (
            "UPDATE journal SET checkpoint = replace('\"xxxxxxxxxxxx\"', 'x', '{kilobyte}')"
            " WHERE job_id = 'busy' AND id = 'step#0'"
        ),
        "busy: a checkpoint of step#0 had 12 KB",
    ),
    "many_attempts": (
        "UPDATE journal SET attempt = 21 WHERE job_id = 'busy' AND id = 'step#1'",
        "busy: step#1 is RUNNING at attempt 21",
    ),
    "long_doubts": (
        (
            "INSERT INTO effect (job_id, no, tenant, key, step, part, ordinal, generation, kind,"
            " target, state, in_doubt, key_ttl, proof, called_at) VALUES ('busy', 1, 'acme', 'k',"
            " 'step#0', '', 1, 1, 'payment', 'card', 'IN_DOUBT', 'ask', 0, '', {now} - 7200)"
        ),
        "busy: effect 1 (payment) has been in doubt for 2 h",
    ),
    "unanswered_approvals": (
        (
            "INSERT INTO approval (id, tenant, job_id, step, state, action_hash, no, created_at,"
            " data)"
            " VALUES ('q1', 'acme', 'busy', 'step#1', 'PENDING', 'h', 1, {now} - 345600, '{{}}')"
        ),
        "busy: approval q1 has been pending for 4 days",
    ),
    "endless_waits": (
        (
            "UPDATE lease SET owner = NULL, ready = 0, due_at = NULL WHERE job_id = 'busy';"
            "UPDATE job SET state = 'WAITING', started_at = {now} - 864000,"
            ' wait = \'[{{"kind":"message","id":"receive#1","topic":"paid"}}]\' WHERE id = \'busy\''
        ),
        "busy: work has waited for a message for 10 days, and would do so for ever",
    ),
    "overlapping_runs": (
        (
            "INSERT INTO schedule (tenant, name, cron, job, timezone, catch_up, paused, next_at)"
            " VALUES ('acme', 'nightly', '0 2 * * *', '{{}}', 'UTC', 'latest', 0, {now} + 9);"
            "UPDATE job SET key = 'nightly@2026-05-01T02:00:00Z' WHERE id = 'busy';"
            "UPDATE job SET key = 'nightly@2026-05-02T02:00:00Z' WHERE id = 'idle'"
        ),
        "idle: schedule nightly has 2 runs that have not ended",
    ),
    "late_schedules": (
        (
            "INSERT INTO schedule (tenant, name, cron, job, timezone, catch_up, paused, next_at)"
            " VALUES ('acme', 'hourly', '0 * * * *', '{{}}', 'UTC', 'latest', 0, {now} - 603)"
        ),
        ": schedule hourly of tenant acme is 10 minutes late",
    ),
    "given_up_notices": (
        (
            "INSERT INTO notice (id, job_id, channel, recipient, kind, state, due_at, data)"
            " VALUES ('n', 'busy', 'mail', 'ann', 'alert.stuck', 'GIVEN_UP', {now} - 60, '{{}}')"
        ),
        "busy: mail could not deliver alert.stuck to ann",
    ),
    "forgotten_queues": (
        (
            "INSERT INTO queue (name, tag, paused) VALUES ('slow', 0, 1);"
            "UPDATE lease SET queue = 'slow', due_at = {now} - 90000 WHERE job_id = 'idle'"
        ),
        "idle: queue slow is paused, and 1 job waits",
    ),
}


@pytest.mark.parametrize("sign", PLANTED)
async def test_a_sign_is_found(store: Store, url: str, sign: str) -> None:
    claim = await working(store)
    await store.submit([new_job("idle")])
    running = entry(1, StepState.RUNNING, attempt=1, started_at=await store.now())
    await store.write(write_of(claim, entry(0), running))
    assert await found(store) == {}
    statement, what = PLANTED[sign]
    ((until,),) = sql(url, "SELECT until FROM lease WHERE job_id = 'busy'")
    times = {"now": await store.now(), "clock": until - 60.0, "kilobyte": "y" * 1024}

    plant(url, statement.format(**times))

    assert await found(store) == {sign: [what]}


async def test_a_large_result_is_found_by_what_stands_in_its_place(store: Store) -> None:
    claim = await working(store)
    kept, chunks = split(b'"' + b"x" * 3 * 1024 * 1024 + b'"')
    await store.write(write_of(claim, entry(0, output=kept), chunks=tuple(chunks)))
    assert await found(store) == {"large_results": ["busy: step#0 returned 3072 KB"]}


async def test_a_step_that_reports_progress_is_not_silent(store: Store, url: str) -> None:
    claim = await working(store)
    began = await store.now() - 7200
    await store.write(write_of(claim, entry(0, StepState.RUNNING, attempt=1, started_at=began)))
    assert set(await found(store)) == {"silent_steps"}
    report = b'[{"step":"step#0","heartbeat_at":1.0,"done":1.0}]'
    await store.report("w9", [("busy", claim.epoch, report)])
    assert await found(store) == {}


async def test_no_more_is_told_of_a_sign_than_was_asked_for(store: Store, url: str) -> None:
    await store.submit([new_job(f"job {number}") for number in range(5)])
    plant(url, "UPDATE lease SET claims = 9")
    assert len(await store.signs(3)) == 3


def test_every_sign_of_a_store_is_planted_here() -> None:
    assert {*PLANTED, "large_results"} == {each.name for each in SIGNS}


# The definitions of an app


def test_definitions_show_what_will_hurt() -> None:
    app = App("sqlite:///none.db")

    @app.step(cost=0.5)
    async def ask_model(question: str) -> str:
        return question

    @app.step(estimated_duration="3h")
    async def copy_all() -> None: ...

    @app.step(irreversible=True, approval="never")
    async def drop_table() -> None: ...

    @app.step(retry=Retry(attempts=50))
    async def call_often() -> None: ...

    @app.job
    async def research() -> None:
        await ask_model("why?")

    gates = GatePolicy(tenants={"acme": {RiskLevel.HIGH: Gate.RUN}})

    signs = signs_of_code(app.jobs.values(), app.steps.values(), gates)

    assert {each.invariant: each.what for each in signs} == {
        "costly_without_timeout": "step ask_model has a cost and no timeout",
        "long_without_progress": "step copy_all is expected to take 3 h",
        "irreversible_without_gate": 'step drop_table has approval="never"',
        "many_retries": "step call_often is attempted 50 times",
        "costly_without_budget": "step ask_model costs money, and no budget limits research",
        "open_gates": "HIGH risk of tenant acme waits for nobody",
    }
    assert {each.name for each in SIGNS_OF_CODE} == {each.invariant for each in signs}


def test_definitions_that_take_care_show_nothing() -> None:
    app = App("sqlite:///none.db")

    @app.step(cost=0.5, timeout="1m")
    async def ask_model(question: str) -> str:
        return question

    @app.step(estimated_duration="3h")
    async def copy_all(ctx: StepContext) -> None: ...

    @app.step(irreversible=True)
    async def drop_table() -> None: ...

    @app.job(budget=BudgetLimits(usd=5))
    async def research() -> None:
        await ask_model("why?")

    assert signs_of_code(app.jobs.values(), app.steps.values(), GatePolicy()) == []
