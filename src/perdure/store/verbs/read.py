"""Queries about jobs, and the deletion of old ones."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.base.errors import JobError, LeaseLost
from perdure.jobs.anti_pattern import LIMITS_OF_SIGNS, SIGNS
from perdure.jobs.effect import Effect
from perdure.jobs.invariant import INVARIANTS, Violation, check_approval
from perdure.jobs.model import (
    Job,
    JobEvent,
    JobMessage,
    JobOutcome,
    JobQuery,
    JournalEntry,
    KeyedEntry,
    TimeRange,
)
from perdure.jobs.payload import StandIn, joined, stand_in_of
from perdure.jobs.query_text import QueryWords
from perdure.store import rows as row
from perdure.store.sealing import chunk_names
from perdure.store.statements import Session
from perdure.store.verbs.approval import read_approval
from perdure.store.verbs.effect import effects
from perdure.store.verbs.insight import stuck_jobs
from perdure.store.verbs.reseal import sealed_violations

_PAGE = 1000
# Triggers keep the log of a job that is there; links are found by their approvals.
_DELETIONS = (
    *("delete_jobs", "delete_journal", "delete_payload", "delete_events", "delete_messages"),
    *(
        "delete_labels",
        "delete_requesters",
        "delete_traces",
        "delete_output",
        "delete_topics",
        "delete_effects",
        "keep_keys",
    ),
    *("delete_links", "delete_approvals", "delete_notices"),
)


def now(session: Session) -> float:
    """Return UNIX seconds by the store's clock."""
    return session.now()


def job(session: Session, job_id: str, tenant: str | None = None) -> Job | None:
    """Return a job; None if there is none, or none that this tenant may see."""
    found = session.one("get_job", id=job_id, clock=session.clock())
    if found is None:
        return None
    result = row.job(found)
    return result if tenant in (None, result.tenant) else None


def ids_like(session: Session, part: str, limit: int) -> list[str]:
    """Return ids of jobs that begin or end with a text, the newest first."""
    return [each[0] for each in session.all("ids_like", part=part, limit=limit)]


def jobs(session: Session, query: JobQuery) -> list[Job]:
    """Return the jobs that match, newest first."""
    if query.stuck:
        query = _only_stuck(session, query)
        if not query.ids:
            return []
    until, last = query.before or (sys.float_info.max, None)
    states = None if query.states is None else [each.value for each in query.states]
    only_one = states is not None and len(states) == 1  # found in their order, without sorting
    labels, name = dict(query.labels), "find_jobs"
    values: dict[str, Any] = {
        "last": last,
        "state": states[0] if states and only_one else None,
        "states": None if states is None or only_one else session.array(states),
    }
    if labels:  # the index of one is used
        name = "find_labelled_jobs"
        label = next(iter(labels))
        values |= {"label": label, "label_value": labels.pop(label)}
    present = _present(values | _conditions(session, query, labels))
    # The narrower bound, so that an index is read from there on.
    until = min(until, present.get("created_until", until))
    more = {"until": until, "limit": query.limit, "clock": session.clock()}
    rows = session.find(name, set(present), **present, **more)
    return [row.job(each) for each in rows]


def counts(session: Session, query: JobQuery | None = None) -> dict[str, int]:
    """Return the number of jobs by state: of all, or of those that match, in whichever state."""
    if query is None:
        rows = session.all("counts")
    else:
        query = _only_stuck(session, query) if query.stuck else query
        if query.stuck and not query.ids:
            return {}
        present = _present(_conditions(session, query, query.labels))
        rows = session.find("counts_of", set(present), **present, until=sys.float_info.max)
    return {state: number for state, number in rows}  # noqa: C416  rows are no pairs to the type checker


def _only_stuck(session: Session, query: JobQuery) -> JobQuery:
    """Return the query with the ids of the stuck jobs, which are few: those that workers have."""
    found = stuck_jobs(session, query.tenant)
    return replace(query, ids=tuple(id for id in found if not query.ids or id in query.ids))


def query_words(session: Session, tenant: str | None = None) -> QueryWords:
    """Return what occurs in the newest jobs, of one tenant or of all."""
    present = _present({"tenant": tenant})
    limits = {"until": sys.float_info.max, "limit": _PAGE}
    rows = session.find("query_words", set(present), **present, **limits)
    labels: dict[str, set[str]] = {}
    for each in rows:
        for name, value in row.labels(each[4]).items():
            labels.setdefault(name, set()).add(value)
    words = [tuple(sorted({each[column] for each in rows if each[column]})) for column in range(4)]
    return QueryWords(
        names=words[0],
        queues=words[1],
        users=words[2],
        tenants=words[3],
        labels={name: tuple(sorted(values)) for name, values in sorted(labels.items())},
    )


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _conditions(session: Session, query: JobQuery, labels: dict[str, str]) -> dict[str, Any]:
    """Return the values of `job_matches`, without those of states; None: no condition."""
    same = ("tenant", "name", "name_prefix", "queue", "user", "parent", "key", "key_prefix")
    lists = ("ids", "parents", "words", "not_names", "not_queues", "not_users")
    return {
        **{name: getattr(query, name) for name in (*same, "waits")},
        **{name: session.array(found) for name in lists if (found := getattr(query, name))},
        "roots": query.roots or None,
        "labels": _json(labels),
        "labels_wanted": len(labels) or None,
        "not_labels": _json(query.not_labels),
        **_bounds(session, "created", query.created),
        **_bounds(session, "ended", query.ended),
    }


def _json(labels: dict[str, str]) -> str | None:
    return msgspec.json.encode(labels).decode() if labels else None


def _bounds(session: Session, name: str, given: TimeRange | None) -> dict[str, float]:
    """Return the bounds of a time; of two that are given, the narrower."""
    if given is None:
        return {}
    now = session.now()
    starts = (given.after, None if given.younger is None else now - given.younger)
    ends = (given.before, None if given.older is None else now - given.older)
    bounds = {
        f"{name}_from": max((each for each in starts if each is not None), default=None),
        f"{name}_until": min((each for each in ends if each is not None), default=None),
    }
    return _present(bounds)


def journal(session: Session, job_id: str) -> list[JournalEntry]:
    """Return the journal of a job in order."""
    return [row.entry(each) for each in session.all("journal", ids=session.array([job_id]))]


def payload(session: Session, job_id: str, stand_in: StandIn) -> bytes:
    """Return a large payload of a journal.

    Raises:
        JobError: A part of it is missing or damaged.
    """
    names = chunk_names(session.keys, job_id, stand_in.chunks)
    found = session.all("payload", id=job_id, digests=session.array(list(names)))
    whole = joined(stand_in, {names[name]: bytes(data) for name, data in found})
    if whole is None:
        raise JobError(
            f"a payload of {stand_in.size:,} bytes of job {job_id} is incomplete or damaged "
            f"({stand_in.preview}): run `perdure doctor`, and restore the table `payload`"
        )
    return whole


def journal_and_ledger(
    session: Session, job_id: str, owner: str, epoch: int
) -> tuple[list[JournalEntry], list[Effect]]:
    """Return journal and ledger of a job to its owner, after everything written before.

    Its lease is locked first, so a write that is still under way somewhere is waited for.

    Raises:
        LeaseLost: The job has another owner.
    """
    if tuple(session.one("lock_lease", id=job_id) or ()) != (owner, epoch):
        raise LeaseLost(job_id, epoch)
    return journal(session, job_id), effects(session, job_id)


def entry_by_key(session: Session, key: str) -> KeyedEntry | None:
    """Return a step that has succeeded under its key, in whichever job, and was not undone."""
    found = session.one("entry_by_key", key=key)
    if found is None:
        return None
    entry, job_id = row.entry(found), found[0]
    stand_in = stand_in_of(entry.output)
    if stand_in is not None:
        entry = replace(entry, output=payload(session, job_id, stand_in))
    return KeyedEntry(job_id, entry, is_being_undone(session, job_id))


def is_being_undone(session: Session, job_id: str) -> bool:
    """Whether a job has begun to undo what it did, or is told to, and has not ended.

    What it did may then be gone soon, so no other job may rely on it.
    """
    return session.one("is_being_undone", id=job_id) is not None


def events(session: Session, job_id: str, after: int = 0, limit: int = 1000) -> list[JobEvent]:
    """Return a page of a job's log: what comes after the event of this number."""
    rows = session.all("events", id=job_id, after=after, limit=limit)
    return [row.event(each) for each in rows]


def has_event(session: Session, job_id: str, types: Sequence[str], since: float) -> bool:
    """Whether a job's log has an event of one of these types since a time."""
    values = {"id": job_id, "types": session.array(types), "since": since}
    return session.one("has_event", **values) is not None


def messages(session: Session, job_id: str) -> list[JobMessage]:
    """Return the messages to a job that it has not yet received."""
    return [row.message(each) for each in session.all("messages", ids=session.array([job_id]))]


def outcomes(session: Session, job_ids: Sequence[str]) -> list[JobOutcome]:
    """Return how jobs ended, in the order asked for; unknown ones are left out."""
    rows = session.all("outcomes", ids=session.array(job_ids))
    found = {each[0]: row.outcome(each) for each in rows}
    return [found[job_id] for job_id in job_ids if job_id in found]


def may_run_again(session: Session, job_ids: Sequence[str]) -> set[str]:
    """Return those of some jobs whose code or compensations may still run, now or later."""
    return {each[0] for each in session.all("may_run_again", ids=session.array(job_ids))}


def _old_trees(session: Session, ended_before: float, limit: int) -> list[str]:
    first = [each[0] for each in session.all("prunable", before=ended_before, limit=limit)]
    parts = session.all("parts", ids=session.array(first)) if first else ()
    live = {root for _, root, is_live in parts if is_live}  # a person has just retried it
    ids = [root for root in first if root not in live]
    return ids + [id for id, root, _ in parts if root not in live]


def has_old(session: Session, ended_before: float) -> bool:
    """Whether `prune` may find something to delete."""
    found = session.one("has_old", before=ended_before, now=session.now())
    return found is not None and bool(found[0])


def prune(session: Session, ended_before: float, limit: int) -> int:
    """Delete up to `limit` trees of jobs that have all ended before; return how many jobs."""
    ids = _old_trees(session, ended_before, limit)
    if ids:
        every = session.array(ids)
        budgets = [each[0] for each in session.all("budgets_of", ids=every)]
        for name in _DELETIONS:
            session.run(name, ids=every)
        if budgets:
            session.run("delete_budgets", ids=session.array(budgets))
    session.run("delete_keys", now=session.now())
    return len(ids)


def violations(session: Session, limit: int = 100) -> list[Violation]:
    """Return violations of the rules of `jobs.invariant`, up to a limit for each rule."""
    found: list[Violation] = []
    for each in INVARIANTS:
        if each.name == "decisions":
            found += _decisions(session, limit)
        # With keys, parts of payloads have other names than entries say: see `sealed_violations`.
        elif each.name != "payloads" or session.keys is None:
            rows = session.all(each.name, limit=limit)
            found += [Violation(each.name, job_id, what) for job_id, what in rows]
    return found + [Violation(*each) for each in sealed_violations(session, limit)]


def signs(session: Session, limit: int = 100) -> list[Violation]:
    """Return signs of the anti-patterns of `jobs.anti_pattern`, up to a limit for each."""
    given = {"now": session.now(), "clock": session.clock(), "limit": limit, **LIMITS_OF_SIGNS}
    return [
        Violation(each.name, job_id, what)
        for each in SIGNS
        for job_id, what in session.all(each.name, **given)
    ]


def effects_without_undo(session: Session, limit: int = 100) -> list[tuple[str, str, int, str]]:
    """Return effects that happened and have no undo of their own.

    For each step and kind: how many there are in the jobs that are looked at, and the last job.
    """
    ended = LIMITS_OF_SIGNS["ended_jobs"]
    rows = session.all("effects_without_undo", ended_jobs=ended, limit=limit)
    return [(step, kind, count, job_id) for step, kind, count, job_id in rows]


def _decisions(session: Session, limit: int) -> list[Violation]:
    found: list[Violation] = []
    for job_id, what in _wrong_decisions(session):
        found.append(Violation("decisions", job_id, what))
        if len(found) >= limit:
            break
    return found


def _wrong_decisions(session: Session) -> Iterator[tuple[str, str]]:
    after = ""
    while rows := session.all("some_approvals", after=after, limit=_PAGE):
        for after, action_hash, state, data in rows:  # noqa: B007 - the last one is where to go on
            approval = read_approval(data)
            for what in check_approval(approval, action_hash, state):
                yield approval.job_id, what
