"""What `intervene` compares in the end: the store, and the log of the receiver."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from perdure.engine.journal.run import CONTINUED
from perdure.jobs.approval import Approval, ApprovalState
from perdure.jobs.budget import Amount, to_micro
from perdure.jobs.model import Job, JobQuery, JournalEntry
from perdure.jobs.state import ENDED, JobState, StepState
from perdure.store.store import Store
from tests.programmes.intervene_jobs import LARGE, PRICE
from tests.support.store import sql

_KEPT = frozenset({StepState.SUCCEEDED})
_AFTER = frozenset(
    {
        StepState.SUCCEEDED,
        StepState.COMPENSATING,
        StepState.COMPENSATED,
        StepState.COMPENSATION_FAILED,
    }
)
_UNTIL_VISIBLE = 3.0  # seconds from the time of an end until everybody sees it, at most
_UNDONE = frozenset({JobState.COMPENSATED, JobState.FAILED, JobState.CANCELLED})


class Recorder:
    """Looks at journals now and then: what was there once stays as it was."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, JournalEntry]] = {}
        self.looks = 0

    @property
    def known(self) -> list[str]:
        """Give the jobs that were looked at."""
        return list(self._seen)

    def forget(self, job_ids: set[str]) -> None:
        """Look no more at jobs that were deleted."""
        for job_id in job_ids:
            self._seen.pop(job_id, None)

    def look(self, job_id: str, journal: list[JournalEntry]) -> Iterator[str]:
        """Compare a journal with what it was."""
        self.looks += 1
        before, now = self._seen.get(job_id, {}), {entry.seq: entry for entry in journal}
        self._seen[job_id] = now
        # A job that continues begins with an empty journal.
        begins = max((entry.seq for entry in journal if entry.name == CONTINUED), default=0)
        for seq, old in before.items():
            if seq < begins:
                continue
            if seq not in now:
                yield f"job {job_id}: entry {seq} ({old.id}) is gone"
            else:
                yield from _changes(job_id, old, now[seq])


def _changes(job_id: str, old: JournalEntry, new: JournalEntry) -> Iterator[str]:
    if old.id != new.id:
        yield f"job {job_id}: entry {old.seq} was {old.id} and is {new.id}"
    elif old.state in _KEPT and new.state not in _AFTER:
        yield f"job {job_id}: {old.id} was {old.state} and is {new.state}"
    elif old.state in _AFTER and new.output != old.output:
        yield f"job {job_id}: {old.id} gave {old.output!r} and gives {new.output!r}"


@dataclass
class Log:
    """The receiver's log, as far as it was read."""

    path: Path
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _at: int = 0

    def read(self) -> list[dict[str, Any]]:
        """Give what is new."""
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.lines += new
        return new


@dataclass
class Facts:
    """What a store holds, and what it held before old jobs were deleted."""

    jobs: dict[str, Job]
    effects: dict[str, tuple[str, int, str, str]]  # by key: job, number, kind, state
    books: dict[str, int]  # millionths of USD that are gone, by the job whose budget it is
    approvals: dict[str, Approval]

    @classmethod
    async def read(cls, url: str, store: Store) -> Self:
        """Read everything."""
        rows = sql(url, "SELECT key, job_id, no, kind, state FROM effect")
        budgets = sql(url, "SELECT root_id, data FROM budget")
        return cls(
            await all_jobs(store),
            {key: (job, no, kind, state) for key, job, no, kind, state in rows},
            {root: _gone(json.loads(data)) for root, data in budgets},
            {each.id: each for each in await store.approvals(limit=100_000)},
        )

    def keep(self, old: "Facts", gone: set[str]) -> None:
        """Keep what was read before these jobs were deleted."""
        self.jobs |= {id: job for id, job in old.jobs.items() if id in gone}
        kept = {key: line for key, line in old.effects.items() if line[0] in gone}
        self.effects = kept | self.effects  # lines with a business key outlive their jobs
        for root, usd in old.books.items():  # one outlives its job while a fork spends of it
            self.books[root] = max(usd, self.books.get(root, 0))  # and only grows
        self.approvals |= {id: each for id, each in old.approvals.items() if each.job_id in gone}


def _gone(budget: dict[str, Any]) -> int:
    held = sum(each.get("micro_usd", 0) for each in budget.get("reserved", {}).values())
    return budget.get("spent", {}).get("micro_usd", 0) + held


class Archive:
    """Deletes old jobs as retention does, and remembers them."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        # Those whose end was under way when they were read, and visible when they were deleted.
        self.lost: set[str] = set()
        self._facts = Facts({}, {}, {}, {})

    async def prune(self, url: str, store: Store) -> int:
        """Delete all that ended a while ago: an end is visible only after its own time."""
        old = await store.now() - _UNTIL_VISIBLE
        before = await Facts.read(url, store)
        while await store.prune(old, 100):
            pass
        gone = before.jobs.keys() - (await all_jobs(store)).keys()
        known = {each for each in gone if before.jobs[each].state in ENDED}
        self._facts.keep(before, known)
        self.gone |= known
        self.lost |= gone - known
        return len(gone)

    async def all(self, url: str, store: Store) -> Facts:
        """Give everything that there was."""
        found = await Facts.read(url, store)
        found.keep(self._facts, self.gone)
        found.effects = {k: line for k, line in found.effects.items() if line[0] not in self.lost}
        found.books = {root: usd for root, usd in found.books.items() if root not in self.lost}
        return found


@dataclass(eq=False)
class Audit:
    """All that there is, in the end."""

    log: list[dict[str, Any]]
    facts: Facts

    @property
    def jobs(self) -> dict[str, Job]:
        """All jobs."""
        return self.facts.jobs

    def findings(self) -> Iterator[str]:
        """Say what does not fit."""
        yield from self._ledger()
        yield from self._charged_twice()
        yield from self._standing()
        yield from self._books()
        yield from self._yeses()

    def _ledger(self) -> Iterator[str]:
        """Compare each line with what the receiver did: once, if at all, and given back or not."""
        acts = Counter(line["key"] for line in self.log if line["what"] in ("charge", "refund"))
        jobs = {line["key"]: line["job"] for line in self.log if "key" in line}
        yield from (
            f"job {jobs[key]}: a call that the ledger does not know happened"
            for key in acts.keys() - self.facts.effects.keys()
        )
        yield from (
            f"job {job}: effect {no} ({kind}) {wrong}"
            for key, (job, no, kind, state) in self.facts.effects.items()
            for wrong in _wrong(state, acts[key], refunded=key in self._refunded())
        )

    @cache  # noqa: B019 - there is one, for the whole of the programme
    def _refunded(self) -> frozenset[str]:
        """Give the keys of the charges that were given back."""
        keys = {line["charge"]: line["key"] for line in self.log if line["what"] == "charge"}
        refunds = (line["charges"] for line in self.log if line["what"] == "refund")
        return frozenset(keys[charge] for charges in refunds for charge in charges)

    def _charged_twice(self) -> Iterator[str]:
        standing = Counter[str]()
        for line in self.log:
            if line["what"] == "charge":
                standing[line["ref"]] += 1
                if standing[line["ref"]] > 1:
                    times = standing[line["ref"]]
                    yield f"job {line['job']}: {line['ref']} is charged {times} times"
            elif line["what"] == "refund":
                standing[line["ref"]] = 0

    def _standing(self) -> Iterator[str]:
        """Compare what stands with the ends of jobs; what has a business key may be another's."""
        last: dict[str, tuple[bool, str]] = {}  # by reference: does it stand, whose is it
        for line in self.log:
            if line["what"] == "charge":
                last[line["ref"]] = (True, line["job"])
            elif line["what"] == "refund" and line["ref"] in last:
                last[line["ref"]] = (False, last[line["ref"]][1])
        for ref, (stands, job_id) in last.items():
            if (job := self.jobs.get(job_id)) is not None and "/" in ref:
                yield from self._fits(job, ref, stands=stands)

    def _fits(self, job: Job, ref: str, *, stands: bool) -> Iterator[str]:
        if job.state is JobState.COMPLETED:
            undone = [each for each in self._ancestors(job) if each.state in _UNDONE]
            if not stands and not undone:
                yield f"job {job.id} ({job.name}): {ref} is refunded and the job is COMPLETED"
            if stands and undone:
                above = f"{undone[0].id} ({undone[0].name}) is {undone[0].state}"
                yield f"job {job.id} ({job.name}): {ref} stands, and above it {above}"
        elif stands and job.state in _UNDONE and not self._may_stand(job, ref):
            yield f"job {job.id} ({job.name}): {ref} stands and the job is {job.state}"

    def _may_stand(self, job: Job, ref: str) -> bool:
        if job.name == "pay_and_leave":
            return job.state is JobState.CANCELLED
        if job.name == "continues":  # what was done before it continued is settled
            return True
        named = job.state is JobState.FAILED and ref in (job.error or b"").decode()
        return "charge_for_good" in ref and named

    def _ancestors(self, job: Job) -> Iterator[Job]:
        while job.parent is not None and job.parent in self.jobs:
            job = self.jobs[job.parent]
            yield job

    def _books(self) -> Iterator[str]:
        """Compare what was spent with the books; what a crash cut short may count as spent."""
        spent, slack, books = Counter[str](), Counter[str](), Counter[str]()
        for line in self.log:
            if line["what"] == "spend":
                spent[self._purse(line["job"])] += to_micro(line["usd"])
        for job in self.jobs.values():
            slack[self._purse(job.id)] += (job.epoch + 1) * 2 * to_micro(PRICE)
        for root, gone in self.facts.books.items():
            books[self._purse(root)] += gone
        for purse in {*spent, *books}:
            if not spent[purse] <= books[purse] <= spent[purse] + slack[purse]:
                yield (
                    f"job {purse}: {Amount(micro_usd=spent[purse]).usd} USD are spent, "
                    f"{Amount(micro_usd=books[purse]).usd} are in the books"
                )

    def _purse(self, job_id: str) -> str:
        """Give the job whose budget it is: the first of the tree, and of its forks."""
        job = self.jobs.get(job_id)
        while job is not None and (above := job.parent or job.forked_from) is not None:
            job_id, job = above, self.jobs.get(above)
        return job_id

    def _yeses(self) -> Iterator[str]:
        yes: dict[str, list[Approval]] = defaultdict(list)
        for approval in self.facts.approvals.values():
            if approval.state is ApprovalState.APPROVED:
                yes[approval.job_id].append(approval)
        charges = [line for line in self.log if line["what"] == "charge"]
        for line in charges:
            job, usd = self.jobs.get(line["job"]), line["usd"]
            asks = job is not None and job.name.startswith("asks")
            if asks and not any(_allows(each, usd) for each in yes[line["job"]]):
                yield f"job {line['job']}: {usd} USD are charged, nobody said yes to that"
        for job in self.jobs.values():
            wanted = int(job.result or b"0") if job.name == "inquires" else 0
            if len(yes[job.id]) < wanted:
                yield f"job {job.id} (inquires): {wanted} questions, {len(yes[job.id])} yeses"


def _allows(approval: Approval, usd: int) -> bool:
    if approval.step.startswith("approve"):
        return usd < LARGE
    if not approval.step.startswith("charge_if"):
        return False
    return json.loads(approval.action.input)["usd"] == usd and (
        usd < LARGE or approval.terms.quorum > 1
    )


def _wrong(state: str, times: int, *, refunded: bool) -> Iterator[str]:
    if times > 1:
        yield f"happened {times} times with one key"
    if times and state not in ("DONE", "UNDONE"):
        yield f"happened and is {state}"
    elif state == "DONE" and not times:
        yield "is DONE and never happened"
    elif state in ("INTENT", "IN_DOUBT"):
        yield f"is {state} in the end"
    if times and refunded != (state == "UNDONE"):
        yield f"is {state} and {'refunded' if refunded else 'stands'}"


async def all_jobs(store: Store) -> dict[str, Job]:
    """Read every job."""
    found: dict[str, Job] = {}
    query = JobQuery(limit=1000)
    while page := await store.jobs(query):
        found.update({job.id: job for job in page})
        query = JobQuery(limit=1000, before=(page[-1].created_at, page[-1].id))
    return found


async def audit(store: Store, log: Log, archive: Archive, facts: Facts) -> list[str]:
    """Compare everything."""
    log.read()
    lines = [line for line in log.lines if line.get("job") not in archive.lost]
    broken = [
        f"job {each.job_id}: {each.invariant}: {each.what}" for each in await store.violations(1000)
    ]
    return [*broken, *Audit(lines, facts).findings()]
