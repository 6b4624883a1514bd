"""Every rule of a store is broken once, by hand, and the look for it finds it."""

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from msgspec.structs import replace

from perdure.jobs.approval import Action, Approval, ApprovalTerms, Person, Vote
from perdure.jobs.budget import Amount, Budget
from perdure.jobs.effect import Effect, EffectState, Place, UndoCall
from perdure.jobs.invariant import INVARIANTS
from perdure.jobs.model import EntryKind, JournalEntry, NewBeginning
from perdure.jobs.payload import split
from perdure.jobs.state import JobState, StepState
from perdure.store.statements import load
from perdure.store.store import Store
from tests.support.store import (
    aside,
    claim_one,
    claims,
    ends,
    entry,
    new_job,
    releases,
    settles,
    started,
    write_of,
)

S, J = StepState, JobState


def plant(url: str, statements: str) -> None:
    """Write what no code of ours would, past all triggers."""
    if url.startswith("sqlite"):
        path = urlsplit(url).path.removeprefix("/")
        database = sqlite3.connect(path, isolation_level=None)
        try:
            triggers = database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
            for (name,) in triggers.fetchall():
                database.execute(f"DROP TRIGGER {name}")
            database.executescript(statements)
        finally:
            database.close()
        return
    base, _, schema = url.rpartition("&schema=")
    options = f"-c search_path={schema} -c session_replication_role=replica"
    with psycopg.connect(base, autocommit=True, options=options) as pg:
        pg.execute(statements.encode())


def payment(job: str, key: str, state: EffectState = EffectState.DONE) -> Effect:
    return Effect(
        job_id=job,
        tenant="acme",
        no=0,
        place=Place("pay#1", 1),
        key=key,
        kind="payment",
        target="card",
        called_at=1.0,
        ended_at=None if state is EffectState.INTENT else 2.0,
        state=state,
        result=b"1" if state is EffectState.DONE else None,
        undo=UndoCall("refund"),
    )


def question(job: str, quorum: int = 1) -> Approval:
    action = Action(tenant="acme", job_id=job, step="pay#1")
    return Approval(
        id=f"q-{job}",
        tenant="acme",
        job_id=job,
        step="pay#1",
        action=action,
        title="Pay?",
        created_at=1.0,
        requester="kim",
        terms=ApprovalTerms(quorum=quorum),
    )


async def populate(store: Store) -> None:
    """Fill a store with one healthy job of each kind."""
    await _done(store)
    await _undone_family(store)
    await _waiting_family(store)
    await _asking(store)
    await _continued(store)
    await store.submit([new_job("pending"), new_job("later", delay=3600.0)])


async def _done(store: Store) -> None:
    claim = await started(store, "done")
    paid = entry(0, id="pay#1", attempt=1, name="pay")
    await store.write(write_of(claim, paid, effects=(payment("done", "k-done"),)))
    large, chunks = split(b'["' + b"large " * 4000 + b'"]')
    loaded = entry(1, id="load#1", attempt=1, name="load", input=large, output=large)
    await store.write(write_of(claim, loaded, chunks=tuple(chunks)))
    await store.reserve(aside(claim, "done/pay#1/1", 1), Budget())
    spent = settles("done", "done/pay#1/1", Amount.of(usd=1))
    await store.write(write_of(claim, spending=(spent,), job=ends(result=b"1")))


async def _undone_family(store: Store) -> None:
    claim = await started(store, "undone")
    paid = entry(0, id="pay#1", attempt=1, name="pay")
    place = JournalEntry(
        seq=1, id="child:work#1", kind=EntryKind.CHILD, name="child:work", state=S.PENDING
    )
    offspring = new_job("grandson", parent="undone", parent_seq=1)
    line = payment("undone", "k-undone")
    await store.write(write_of(claim, paid, place, children=(offspring,), effects=(line,)))
    child = await claim_one(store)
    await store.write(write_of(child, entry(0, id="look#1", attempt=1, name="look")))
    await store.write(write_of(child, job=ends(result=b"1")))
    undos = (
        JournalEntry(seq=2, id="undo", kind=EntryKind.UNDO, name="undo",  state=S.SUCCEEDED,
 output=b"{}"),
        JournalEntry(
            seq=3, id="undo:pay#1/1", kind=EntryKind.UNDO, name="undo:pay", state=S.SUCCEEDED,
            input=b'{"id": "undo:pay#1/1", "child": null}', output=b"null", attempt=1,
        ),
        replace(paid, state=S.COMPENSATING),
    )  # fmt: skip
    going = releases(J.COMPENSATING, due_at=0.0, error=b'{"message": "no"}')
    await store.write(write_of(claim, *undos, job=going))
    claim = await claim_one(store)
    paid = replace(paid, state=S.COMPENSATED)
    await store.write(write_of(claim, paid, job=ends(J.COMPENSATED, error=b'{"message": "no"}')))


async def _waiting_family(store: Store) -> None:
    claim = await started(store, "parent")
    place = JournalEntry(
        seq=0, id="child:work#1", kind=EntryKind.CHILD, name="child:work", state=S.PENDING
    )
    await store.write(
        write_of(claim, place, children=(new_job("child", parent="parent", parent_seq=0),))
    )
    wait = b'[{"kind": "child", "id": "child:work#1", "job": "child"}]'
    await store.write(write_of(claim, job=releases(wait=wait)))
    child = await claim_one(store)
    parked = releases(J.NEEDS_ATTENTION, error=b'{"type": "x", "message": "look"}')
    await store.write(write_of(child, entry(0, id="look#1", attempt=1, name="look"), job=parked))


async def _asking(store: Store) -> None:
    claim = await started(store, "asking")
    asked = question("asking")
    await store.write(write_of(claim, entry(0, S.PENDING, id="pay#1"), approvals=(asked,)))
    wait = b'[{"kind": "approval", "id": "pay#1", "approval": "q-asking"}]'
    await store.write(write_of(claim, job=releases(wait=wait)))
    claim = await started(store, "told")
    yes = question("told")
    await store.write(write_of(claim, entry(0, S.PENDING, id="pay#1"), approvals=(yes,)))
    ann = Person(id="ann", tenant="acme", roles=frozenset({"approver"}))
    await store.vote(yes.id, Vote(person=ann, verdict="approve", action_hash=yes.action.hash))
    await store.write(write_of(claim, job=releases(J.PAUSED)))


async def _continued(store: Store) -> None:
    """A job that was undone after `continue_as`: what it did before is settled."""
    claim = await started(store, "continued")
    line = payment("continued", "k-before")
    place = JournalEntry(
        seq=1, id="child:work#1", kind=EntryKind.CHILD, name="child:work", state=S.PENDING
    )
    settled = new_job("settled", parent="continued", parent_seq=1)
    paid = entry(0, id="pay#1", attempt=1, name="pay")
    await store.write(write_of(claim, paid, place, children=(settled,), effects=(line,)))
    child = await claim_one(store)
    await store.write(write_of(child, entry(0, id="look#1", attempt=1, name="look")))
    await store.write(write_of(child, job=ends(result=b"1")))
    first = JournalEntry(
        seq=2, id="continued#1", kind=EntryKind.VALUE, name="continued", state=S.SUCCEEDED,
        output=b"1",
    )  # fmt: skip
    begins = NewBeginning(name="work", version="1", input=b"2", seq=2)
    await store.write(write_of(claim, first, job=releases(due_at=0.0, begins_anew=begins)))
    claim = await claim_one(store)
    line = replace(payment("continued", "k-since"), no=1, place=Place("/1/pay#1", 1))
    place = replace(place, seq=4, id="/1/child:work#1")
    later = new_job("later child", parent="continued", parent_seq=4)
    paid = entry(3, id="/1/pay#1", attempt=1, name="pay")
    await store.write(write_of(claim, paid, place, children=(later,), effects=(line,)))
    child = await claim_one(store)
    await store.write(write_of(child, job=ends(result=b"1")))
    undo = JournalEntry(
        seq=5, id="undo:/1/pay#1/2", kind=EntryKind.UNDO, name="undo:pay", state=S.SUCCEEDED,
        input=b'{"id": "undo:/1/pay#1/2", "child": null}', output=b"null", attempt=1,
    )  # fmt: skip
    going = releases(J.COMPENSATING, due_at=0.0, error=b'{"message": "no"}')
    await store.write(write_of(claim, undo, replace(paid, state=S.COMPENSATING), job=going))
    claim = await claim_one(store)
    paid = replace(paid, state=S.COMPENSATED)
    await store.write(write_of(claim, paid, job=ends(J.COMPENSATED, error=b'{"message": "no"}')))


async def names(store: Store) -> set[str]:
    return {each.invariant for each in await store.violations()}


async def test_a_healthy_store_breaks_no_rule(store: Store) -> None:
    await populate(store)

    assert await store.violations() == []


PLANTED = [
    ("open_effects_of_ended", "UPDATE effect SET state = 'INTENT' WHERE job_id = 'done'"),
    (
        "open_questions_of_ended",
        (
            "UPDATE job SET state = 'CANCELLED', ended_at = 2, epoch = 1 WHERE id = 'asking';"
            "DELETE FROM lease WHERE job_id = 'asking'"
        ),
    ),
    (
        "open_questions_of_ended_steps",
        "UPDATE journal SET state = 'SKIPPED' WHERE job_id = 'asking' AND id = 'pay#1'",
    ),
    (
        "open_spendings_of_ended",
        """UPDATE budget SET data = '{"reserved": {"done/pay#1/2": {"calls": 1}}}'""",
    ),
    (
        "leases_of_ended",
        "UPDATE job SET state = 'FAILED', ended_at = 2, epoch = 0 WHERE id = 'pending'",
    ),
    ("live_without_lease", "DELETE FROM lease WHERE job_id = 'pending'"),
    ("never_due", "UPDATE lease SET ready = 0, due_at = NULL WHERE job_id = 'pending'"),
    ("never_due", "UPDATE job SET wait = NULL WHERE id = 'asking'"),
    ("never_due", "UPDATE job SET wait = '[]' WHERE id = 'asking'"),
    ("never_due", "UPDATE lease SET wakes = 0 WHERE job_id = 'asking'"),
    ("never_due", "UPDATE job SET error = NULL WHERE id = 'child'"),
    ("never_due", "UPDATE lease SET ready = 1 WHERE job_id = 'child'"),
    ("never_due", "UPDATE lease SET due_at = 5 WHERE job_id = 'told'"),
    (
        "lost_wakeups",
        (
            "UPDATE job SET state = 'FAILED', ended_at = 2, epoch = 1 WHERE id = 'child';"
            "DELETE FROM lease WHERE job_id = 'child'"
        ),
    ),
    (
        "lost_wakeups",
        "UPDATE job SET wait = '[{\"approval\": \"q-told\"}]' WHERE id = 'asking'",
    ),
    ("unfinished_undo", "UPDATE journal SET state = 'FAILED' WHERE id = 'undo:pay#1/1'"),
    (
        "unfinished_undo",
        (
            "UPDATE journal SET state = 'SKIPPED', output = '{\"left_undone\":true}' "
            "WHERE id = 'undo:pay#1/1'"
        ),
    ),
    (
        "unfinished_undo",
        "UPDATE journal SET state = 'COMPENSATION_FAILED' WHERE job_id = 'undone' AND id = 'pay#1'",
    ),
    ("standing_work", "DELETE FROM journal WHERE id = 'undo:pay#1/1'"),
    (
        "standing_work",  # of a child that has completed, by its ledger
        "UPDATE effect SET job_id = 'grandson', step = 'look#1' WHERE job_id = 'done'",
    ),
    (
        "standing_work",  # … and by a compensation that another job of the name has run
        (
            "UPDATE journal SET id = 'undo:look#1', name = 'undo:look' WHERE id = 'undo:pay#1/1';"
            "UPDATE effect SET undo = NULL"
        ),
    ),
    ("standing_work", "UPDATE job SET parent = 'undone', parent_seq = 1 WHERE id = 'pending'"),
    (
        "standing_work",
        "UPDATE journal SET input = '{\"child\": \"grandson\"}' WHERE id = 'undo:pay#1/1'",
    ),
    ("standing_work", "DELETE FROM journal WHERE id = 'undo:/1/pay#1/2'"),
    (
        "standing_work",  # of a child that was submitted since the job continued
        "UPDATE effect SET job_id = 'later child', step = 'look#1' WHERE job_id = 'done'",
    ),
    ("references", "UPDATE effect SET step = '/1/other#1' WHERE step = '/1/pay#1'"),
    ("references", "UPDATE job SET parent_seq = 3 WHERE id = 'later child'"),
    ("references", "UPDATE payload SET job_id = 'nobody'"),
    ("payloads", "DELETE FROM payload"),
    ("late_entries", "UPDATE journal SET seq = 9 WHERE job_id = 'undone' AND id = 'child:work#1'"),
    ("late_entries", "UPDATE journal SET seq = -1 WHERE job_id = 'done' AND seq = 0"),
    (
        "entries_twice",
        (
            "INSERT INTO journal (job_id, seq, id, kind, name, state, attempt, checkpoint_no) "
            "VALUES ('done', 7, 'pay#1', 'step', 'pay', 'SUCCEEDED', 1, 0)"
        ),
    ),
    ("epochs", "UPDATE job SET epoch = 9 WHERE id = 'pending'"),
    ("epochs", "UPDATE job SET epoch = 0 WHERE id = 'done'"),
    (
        "epochs",
        (
            "UPDATE lease SET owner = 'w9', epoch = 1, ready = 0, due_at = NULL "
            "WHERE job_id = 'pending'"
        ),
    ),
    ("tenants", "UPDATE job SET tenant = 'other' WHERE id = 'grandson'"),
    ("tenants", "UPDATE lease SET tenant = 'other' WHERE job_id = 'pending'"),
    ("tenants", "UPDATE effect SET tenant = 'other' WHERE job_id = 'done'"),
    ("tenants", "UPDATE approval SET tenant = 'other' WHERE job_id = 'asking'"),
    ("references", "UPDATE job SET parent = 'nobody' WHERE id = 'grandson'"),
    ("references", "UPDATE job SET parent_seq = 0 WHERE id = 'grandson'"),
    ("references", "UPDATE lease SET job_id = 'nobody' WHERE job_id = 'pending'"),
    ("references", "UPDATE journal SET job_id = 'nobody' WHERE job_id = 'done'"),
    ("references", "UPDATE effect SET job_id = 'nobody' WHERE job_id = 'done'"),
    ("references", "UPDATE effect SET step = 'other#1' WHERE job_id = 'done'"),
    ("references", "UPDATE approval SET job_id = 'nobody' WHERE job_id = 'asking'"),
    ("references", "UPDATE budget SET root_id = 'nobody'"),
    (
        "references",
        (
            "INSERT INTO notice "
            "(id, job_id, approval_id, channel, recipient, kind, state, due_at, data) "
            "VALUES ('n', 'done', 'nothing', 'mail', '', 'stuck', 'WAITING', 1, '{}')"
        ),
    ),
    (
        "references",
        (
            "INSERT INTO notice (id, job_id, channel, recipient, kind, state, due_at, data) "
            "VALUES ('n', 'nobody', 'mail', '', 'stuck', 'WAITING', 1, '{}')"
        ),
    ),
    (
        "references",
        "INSERT INTO message (job_id, topic, payload, sent_at) VALUES ('nobody', 't', '1', 1)",
    ),
    (
        "references",
        "INSERT INTO label (job_id, name, value, created_at) VALUES ('nobody', 'n', 'v', 1)",
    ),
    (
        "references",
        (
            "INSERT INTO output_topic (job_id, topic, last, emitted, pieces, size, dropped) "
            "VALUES ('nobody', 't', 1, 0, 0, 0, 0)"
        ),
    ),
    (
        "references",  # there is no such topic
        (
            "INSERT INTO output (job_id, topic, no, pieces, step, attempt, part, size, data, at) "
            "VALUES ('done', 't', 1, 1, '', 0, 0, 1, '[1]', 1)"
        ),
    ),
    (
        "references",
        (
            "INSERT INTO output (job_id, topic, no, pieces, step, attempt, part, size, data, at) "
            "VALUES ('nobody', 't', 1, 1, '', 0, 0, 1, '[1]', 1)"
        ),
    ),
    (
        "done_twice",
        (
            "INSERT INTO effect (job_id, no, tenant, key, step, part, ordinal, generation, kind, "
            "target, state, in_doubt, key_ttl, proof, called_at) "
            "VALUES ('done', 2, 'acme', 'k2', 'pay#1', '', 1, 2, 'payment', 'card', 'DONE', 'ask', "
            "1, '', 1)"
        ),
    ),
    ("done_twice", "UPDATE effect SET business = 'b', state = 'DONE'"),
    ("decisions", "UPDATE approval SET action_hash = 'other' WHERE id = 'q-told'"),
    ("decisions", "UPDATE approval SET state = 'EXPIRED' WHERE id = 'q-told'"),
    (
        "decisions",  # who said yes, said it to something else
        (
            'UPDATE approval SET data = replace(data, \'"action_hash":"\', \'"action_hash":"x\') '
            "WHERE id = 'q-told'"
        ),
    ),
    (
        "payloads",
        (
            'UPDATE journal SET output = \' {"digest":"d","bytes":1,"preview":"","chunks":["c"]}\''
            " WHERE job_id = 'done'"
        ),
    ),
    (
        "decisions",
        (
            "UPDATE approval SET data = replace(data, '\"quorum\":1', '\"quorum\":2') "
            "WHERE id = 'q-told'"
        ),
    ),
    (
        "decisions",
        (
            'UPDATE approval SET data = replace(data, \'"person":"ann"\', \'"person":"kim"\') '
            "WHERE id = 'q-told'"
        ),
    ),
    (
        "decisions",
        (
            "UPDATE approval SET state = 'REJECTED', "
            "data = replace(data, '\"APPROVED\"', '\"REJECTED\"') WHERE id = 'q-told'"
        ),
    ),
]


@pytest.mark.parametrize(("name", "statements"), PLANTED)
async def test_what_breaks_a_rule_is_found(
    url: str, store: Store, name: str, statements: str
) -> None:
    await populate(store)
    plant(url, statements)

    assert name in await names(store)


async def test_no_more_are_listed_of_each_rule_than_were_asked_for(url: str, store: Store) -> None:
    await store.submit([new_job(f"j{number}") for number in range(5)])
    plant(url, "DELETE FROM lease")

    assert len(await store.violations(limit=3)) == 3


def test_every_rule_is_planted_and_says_what_to_do() -> None:
    assert {name for name, _ in PLANTED} == {each.name for each in INVARIANTS}
    assert all(each.sentence.endswith(".") and each.advice for each in INVARIANTS)


async def test_every_part_of_a_rule_finds_something_that_is_planted(url: str, store: Store) -> None:
    """A rule is a union of queries, and each of them must be able to find something."""
    await populate(store)
    idle = {
        (name, part)
        for name in sorted({each.name for each in INVARIANTS} - {"decisions"})
        for part in parts_of(url, name)
        if not any(finds(url, part, planted) for rule, planted in PLANTED if rule == name)
    }
    assert idle == set()


def parts_of(url: str, name: str) -> list[str]:
    """Return the queries whose union a rule is, each with the tables that it begins with."""
    lines = load("sqlite" if url.startswith("sqlite") else "postgres")[name].splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("SELECT"))
    tables = "\n".join(lines[:first])
    return [f"{tables}\n{each}" for each in "\n".join(lines[first:]).split("\nUNION ALL\n")]


def finds(url: str, query: str, planted: str) -> bool:
    """Whether a query finds something in a store in which this is planted, for this moment."""
    with planted_for_a_moment(url, planted) as run:
        return bool(run(query))


@contextmanager
def planted_for_a_moment(url: str, planted: str) -> Generator[Callable[[str], list[Any]]]:
    """Plant something in a transaction that is rolled back."""
    if url.startswith("sqlite"):
        path = urlsplit(url).path.removeprefix("/")
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            triggers = database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
            for (name,) in triggers.fetchall():
                database.execute(f"DROP TRIGGER {name}")
            for statement in planted.split(";"):
                database.execute(statement)
            yield lambda query: database.execute(query, {"limit": 9}).fetchall()
            database.execute("ROLLBACK")
        return
    base, _, schema = url.rpartition("&schema=")
    options = f"-c search_path={schema} -c session_replication_role=replica"
    with psycopg.connect(base, options=options) as pg:
        pg.execute(planted.encode())
        yield lambda query: pg.execute(query.encode(), {"limit": 9}).fetchall()
        pg.rollback()


async def test_jobs_at_work_break_no_rule(store: Store) -> None:
    await store.submit([new_job(f"j{number}") for number in range(3)])
    first, second, _ = await claims(store)
    await store.write(write_of(first, entry(0, S.RUNNING, attempt=1)))
    await store.write(write_of(second, job=releases(due_at=9e9)))

    assert await store.violations() == []
