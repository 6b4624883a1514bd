"""People and time intervene at random moments; the promise must hold.

`python -m tests.programmes.intervene --jobs 2000 [--store sqlite|postgres|both] [--seed N]`

Real workers run jobs of every primitive: payments, sagas, families, questions, budgets, waits,
races of `ctx.first`, branches, continuations, items, output, transactions, rates, and failures that
wait for people. Meanwhile jobs are cancelled, paused, retried, forked, skipped and undone, alone
and by many, or their time is up. Workers are killed, stopped and asked to leave, and replaced by
others with older and newer code; keys come, change and go; commits are held up, answers of the
database are lost, it does not answer at all for seconds, and its clock is set.
In the end people settle all that waits for them. Then nothing in the store may break a rule,
the log of the receiver, which knows nothing of jobs, must say what the ledger says, and what each
job has seen must be what it was given. The exit code is 0 only if nothing was found.

`--only first,outages` searches only these subjects, `--without keys` all others.
"""

import argparse
import asyncio
import heapq
import itertools
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from perdure.app import App
from perdure.base.errors import JobError, JobNotFound, StoreError
from perdure.base.retry import pause
from perdure.cli.keys import rotate_keys
from perdure.engine.handle import Handle
from perdure.jobs.bulk import BULK_ACTIONS
from perdure.jobs.model import Job, JobQuery
from perdure.jobs.output import OutputPiece
from perdure.jobs.state import ENDED, JobState
from perdure.store.store import Store
from tests.programmes.intervene_audit import Archive, Log, Recorder, all_jobs, audit
from tests.programmes.intervene_crew import Site
from tests.programmes.intervene_faults import (
    LAST_DEPLOY,
    Act,
    Disturbance,
    Keys,
    Program,
    StoreFaults,
    Workers,
    faulty_store,
)
from tests.programmes.intervene_jobs import MANNERS, OPERATOR
from tests.programmes.intervene_oracles import (
    BULK,
    Inspector,
    Seen,
    booked,
    bookings,
    called_late,
    earned,
    emitted,
)
from tests.programmes.intervene_people import People, said
from tests.programmes.intervene_primitives import DEPLOYS, KEY_TTL, POLLS, RACES, mail
from tests.support.postgres_server import running_server
from tests.support.store import sql

_TICK: Final = 0.005
_WINDOW: Final = 40  # jobs that are submitted and have not ended, at most …
_FEW: Final = 4  # … and when it is time for the end, if all are submitted …
_LINGER: Final = 8.0  # … or after so many seconds, at most
_SAFE_TO_SKIP: Final = ("note#1", "sleep#1", "approve#1")
_HOUR: Final = 3600.0  # by which clocks are set
_STANDSTILL: Final = 3.5  # seconds without any worker, in which receivers forget keys
_SLACK: Final = 2.0  # seconds that a call may take from the decision to the receiver
_ROTATIONS: Final = 20  # until nothing is left under another key, at most

# What is searched. Those of the first group are jobs, the others what happens to them.
JOBS: Final = (
    *("payments", "first", "scope", "continue", "items", "emit", "transactions", "rates"),
    *("deploys", "key_ttl", "failures"),
)
SUBJECTS: Final = frozenset(
    {*JOBS, "commands", "bulk", "kills", "slow", "outages", "keys", "clocks"}
)

_S = JobState


@dataclass(frozen=True)
class Options:
    """How long a campaign is, what it searches, and what is kept of it."""

    jobs: int
    seconds: float  # to intervene
    patience: float  # seconds without any progress, before what has not ended is a finding
    subjects: frozenset[str] = SUBJECTS
    pace: float = 1.0  # the pauses between what befalls workers and stores, of the usual ones
    longest_outage: float = 8.0  # seconds
    folder: Path | None = None  # where the logs of receiver and workers are kept; None: nowhere


@dataclass
class Tally:
    """What was done and found."""

    store: str
    seed: int
    jobs: int = 0
    did: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    looks: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list[str])

    def note(self, what: str) -> None:
        """Count what was done."""
        self.did[what] += 1

    def __str__(self) -> str:
        did = ", ".join(f"{name} {number}" for name, number in self.did.most_common())
        ends = ", ".join(f"{number} {name}" for name, number in self.ends.most_common())
        lines = [
            f"{self.store}, seed {self.seed}: {self.jobs} jobs in {self.seconds:.0f} s",
            f"  ends: {ends}",
            f"  interventions: {did}; {self.looks} looks at journals",
            f"  findings: {len(self.wrong)}",
        ]
        kinds: dict[str, list[str]] = {}
        for each in self.wrong:
            kinds.setdefault(_VARIES.sub("…", each), []).append(each)
        for alike in sorted(kinds.values(), key=len, reverse=True):
            lines += [f"    {len(alike)} like", *(f"      {each}" for each in alike[:_EXAMPLES])]
        return "\n".join(lines)


# What tells findings of one kind apart: ids and numbers.
_VARIES: Final = re.compile(r"[0-9a-f]{32}|[0-9]+(\.[0-9]+)?")
_EXAMPLES: Final = 3
_ID: Final = re.compile(r"\b[0-9a-f]{32}\b")


# The campaign


class Campaign:
    """One run on one store."""

    def __init__(self, app: App, people: People, log: Log, tally: Tally, options: Options) -> None:
        self.app = app
        self.people = people
        self.log = log
        self.tally = tally
        self.subjects = options.subjects
        self.chance = random.Random(tally.seed)
        self.recorder = Recorder()
        self.archive = Archive()
        self.inspector = Inspector(self._is_fresh)
        self.live = 0  # jobs that have not ended
        self.turn = asyncio.Lock()  # of whoever uses the app, or replaces it
        self.bulks: dict[tuple[str, str], bool] = {}  # by job and reason: is it said to obey
        self.old_code_at = 0.0  # when a worker with the first code was last alive
        self._plans: dict[str, list[tuple[int, str]]] = {}  # by job: at which call, what
        self._calls = Counter[str]()
        self._due: list[tuple[float, int, str, str]] = []
        self._numbers = itertools.count()
        self._submitted: dict[str, float] = {}  # when
        self._sent = Counter[str]()  # messages, by job
        self._order = 0

    async def use(self, app: App) -> None:
        """Replace the app by one with other keys."""
        async with self.turn:
            old, self.app, self.people.app = self.app, app, app
            await old.close()

    async def close(self) -> None:
        """Close the app, whichever it is by now."""
        await self.app.close()

    # Submitting

    async def submit(self) -> Handle[Any] | None:
        """Submit a job of some kind, and plan what happens to it."""
        name, given = self._kind()
        options: dict[str, Any] = {"user": "kim", "labels": {"batch": str(self.tally.jobs // 8)}}
        if "commands" in self.subjects and self.chance.random() < 0.15:
            options["deadline"] = 0.05 + self.chance.random() * 1.5
            self.tally.did["deadline"] += 1
        handle = await self.app.submit(self.app.find_job(name)(*given), **options)
        self.tally.jobs += 1
        self.live += 1
        self._submitted[handle.id] = _loop_time()
        if "commands" in self.subjects:
            self._plan(handle.id)
        if name == "books":  # when what its transactions have recorded may be deleted
            self._later(handle.id, "again", 9 + self.chance.random() * 5)
        for _ in mail(await handle.job()):
            self._later(handle.id, "send", self.chance.random() * 1.5)
        return handle if name == "emits" else None

    def _kind(self) -> tuple[str, tuple[Any, ...]]:
        manner = self.chance.choice(list(MANNERS))
        count, fails = self.chance.randrange(1, 4), self.chance.random() < 0.4
        kinds = {
            name: kind
            for subject, found in (
                ("payments", self._payments(count, manner, fails)),
                *self._primitives(count, manner, fails).items(),
            )
            if subject in self.subjects
            for name, kind in found.items()
        }
        weights = [weight for weight, _ in kinds.values()]
        name = self.chance.choices(list(kinds), weights)[0]
        return name, kinds[name][1]

    def _payments(self, count: int, manner: str, fails: bool) -> dict[str, "Kind"]:
        if fails and self.chance.random() < 0.5:
            self._order += 1
        return {
            "pay": (2, (count, manner)),
            "pay_and_leave": (1, (count, manner)),
            "saga": (2, (count, manner)),
            "half_a_saga": (1, (manner,)),
            "gathered": (2, (count, manner, fails)),
            "keyed": (2, (f"order{self._order}", count, manner, fails)),
            "family": (2, (self.chance.randrange(1, 3), manner, self._race(), fails)),
            "asks": (2, (self.chance.choice([5, 500]), fails)),
            "asks_first": (1, (self.chance.choice([5, 500]),)),
            "inquires": (1, (3,)),
            "thinks": (2, (count, self.chance.randrange(2))),
            "waits": (1, (manner,)),
        }

    def _primitives(self, count: int, manner: str, fails: bool) -> dict[str, dict[str, "Kind"]]:
        losers = self.chance.choice(["cancel", "continue"])
        hurry = self.chance.randrange(5, 120)  # milliseconds
        first: dict[str, Kind] = {
            "polls": (4, (2 * count, manner, self.chance.choice(POLLS))),
            "races": (3, (self.chance.choice(RACES), manner, losers, fails)),
            "hurries": (2, (manner, hurry, losers)),
        }
        return {
            "first": first,
            "scope": {"branches": (2, (count, manner, fails))},
            "continue": {"continues": (2, (count, manner, []))},
            "items": {"collects": (2, (3 * count, manner, fails))},
            "emit": {"emits": (2, (4 * count,))},
            "transactions": {"books": (3, (count, fails))},
            "rates": {"paced": (1, (manner,))},
            "deploys": {"deployed": (3, (manner,))},
            "key_ttl": {"forgets": (1, (count,))},
            "failures": {
                "parks": (2, (count, manner)),
                "offers_undo": (2, (count, manner)),
                "relies": (1, (count, manner, self.chance.random() < 0.5)),
            },
        }

    def _race(self) -> int:
        return self.chance.randrange(20, 400) if self.chance.random() < 0.5 else 0

    def _plan(self, job_id: str) -> None:
        """Choose what is done to a job: at one of its calls to the receiver, or at a time."""
        ops = ["cancel", "pause", "fork", "skip", "again"]
        while self.chance.random() < 0.6:
            op = self.chance.choices(ops, [5, 2, 1, 2, 2])[0]
            if self.chance.random() < 0.75 and op != "again":
                call = self.chance.randrange(1, 7)
                self._plans.setdefault(job_id, []).append((call, op))
            else:
                self._later(job_id, op, self.chance.random())

    def _later(self, job_id: str, op: str, delay: float) -> None:
        heapq.heappush(self._due, (_loop_time() + delay, next(self._numbers), job_id, op))

    def _is_fresh(self, job_id: str) -> bool:
        """Whether no old code has run since a job was submitted."""
        return self._submitted.get(job_id, 0.0) > self.old_code_at + 1.0

    # Intervening

    def listen(self) -> None:
        """Read the log of the receiver: a call that comes in may be the moment for something."""
        for line in self.log.read():
            if line["what"] in ("came", "charge", "refund"):
                job_id = line["job"]
                self._calls[job_id] += 1
                for call, op in self._plans.get(job_id, ()):
                    if call == self._calls[job_id]:
                        self._later(job_id, op, self.chance.random() * 0.03)

    async def intervene(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= _loop_time():
            _, _, job_id, op = heapq.heappop(self._due)
            await self._try(op, job_id)

    async def _try(self, op: str, job_id: str) -> None:
        ops: dict[str, Callable[[Handle[Any]], Awaitable[str | None]]] = {
            "cancel": self._cancel,
            "pause": self._pause,
            "resume": self._resume,
            "fork": self._fork,
            "skip": self._skip,
            "again": self._again,
            "send": self._send,
        }
        try:
            did = await ops[op](await self.app.handle(job_id))
        except (JobError, LookupError, OSError):
            did = None
        self.tally.did[did or f"{op} refused"] += 1
        with suppress(JobError):
            await self.look(job_id)

    async def _cancel(self, handle: Handle[Any]) -> str:
        await handle.cancel("by chance", by=OPERATOR)
        return "cancel"

    async def _pause(self, handle: Handle[Any]) -> str:
        await handle.pause("by chance", by=OPERATOR)
        self._later(handle.id, "resume", self.chance.random() * 0.5)
        return "pause"

    async def _resume(self, handle: Handle[Any]) -> str:
        await handle.resume("by chance", by=OPERATOR)
        return "resume"

    async def _send(self, handle: Handle[Any]) -> str | None:
        """Send the next message; sent once more, it is still one."""
        wanted, number = mail(await handle.job()), self._sent[handle.id]
        if number >= len(wanted):
            return None
        topic, key = wanted[number]
        await handle.send(topic, key, key=key)
        self._sent[handle.id] += 1
        return "message"

    async def _fork(self, handle: Handle[Any]) -> str | None:
        journal = [entry for entry in await handle.journal() if entry.kind != "undo"]
        if not journal:
            return None
        fork = await handle.fork(self.chance.choice(journal).id, by=OPERATOR)
        self._submitted[fork.id] = 0.0
        return "fork"

    async def _skip(self, handle: Handle[Any]) -> str | None:
        step = self.chance.choice(_SAFE_TO_SKIP)
        await handle.skip(step, "by chance", output="skipped", by=OPERATOR)
        if step.startswith("approve"):
            self.tally.wrong.append(f"job {handle.id}: kim, who asked for it, skipped {step}")
        return "skip"

    async def _again(self, handle: Handle[Any]) -> str:
        """Retry or undo what has stopped."""
        if self.chance.random() < 0.5:
            await handle.retry(reason="by chance", by=OPERATOR)
            return "retry"
        await handle.compensate("by chance", by=OPERATOR)
        return "compensate"

    async def meddle_below(self) -> None:
        """Cancel a child, or pause it, whatever its parent does."""
        running = await self.app.find_jobs(JobQuery(states=(_S.RUNNING, _S.WAITING), limit=30))
        children = [job for job in running if job.parent is not None]
        if children:
            op = self.chance.choice(["cancel", "pause"])
            await self._try(op, self.chance.choice(children).id)

    async def command_many(self) -> None:
        """Command a batch of jobs, found by their label."""
        batch = max(0, self.tally.jobs // 8 - self.chance.randrange(3))
        action = self.chance.choice(BULK_ACTIONS)
        reason = f"{BULK}{next(self._numbers)}"
        query = JobQuery(labels={"batch": str(batch)})
        report = await self.app.command_jobs(action, query, by=OPERATOR, reason=reason)
        self.bulks |= {(each.job_id, reason): not each.refused for each in report.results}
        self.tally.did[f"{action} many"] += 1

    async def prune(self) -> None:
        """Delete what has ended, as retention does, after a last look at it."""
        await self.inspect()
        gone = await self.archive.prune(self.app.url, await self.app.store())
        self.tally.did["job deleted"] += gone
        self.recorder.forget(self.archive.gone | self.archive.lost)

    async def prune_transactions(self, shop: str) -> None:
        """Delete what transactions have recorded, if no attempt can be cut off for so long."""
        self.tally.did["transaction forgotten"] += await self.app.prune_transactions(shop, "8s")

    # Looking

    async def inspect(self) -> None:
        """Look at all jobs that have ended."""
        store = await self.app.store()
        await self.inspector.look(self.app.url, store, await all_jobs(store))

    async def look(self, *job_ids: str) -> None:
        """See that journals only grow."""
        store = await self.app.store()
        for job_id in job_ids:
            self.tally.wrong += self.recorder.look(job_id, await store.journal(job_id))

    async def look_around(self) -> None:
        """Look at a few journals."""
        recent = list(self._submitted)[-200:]
        await self.look(*self.chance.sample(recent, min(len(recent), 4)))

    async def count(self) -> None:
        """Count the jobs that have not ended."""
        counts = await (await self.app.store()).counts()
        self.live = sum(number for state, number in counts.items() if state not in ENDED)


Kind = tuple[float, tuple[Any, ...]]  # how often, and what it is given


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class Followers:
    """Those who follow the output of jobs while they run, and see each piece once."""

    def __init__(self, app: App, wrong: list[str]) -> None:
        self._app = app  # with all keys, since it stays open
        self._wrong = wrong
        self._tasks: list[asyncio.Task[None]] = []

    def follow(self, job_id: str) -> None:
        """Begin to follow a job."""
        self._tasks.append(asyncio.create_task(self._follow(job_id)))

    async def _follow(self, job_id: str) -> None:
        pieces: list[OutputPiece] = []
        with suppress(JobNotFound):  # it was deleted meanwhile
            handle = await self._app.handle(job_id)
            while not await self._read(handle, pieces):
                await pause(0.1)
            seen = Seen(await handle.job(), [], [], [], pieces)
            self._wrong += (f"job {job_id}, followed: {each}" for each in emitted(seen))

    async def _read(self, handle: Handle[Any], pieces: list[OutputPiece]) -> bool:
        """Read up to the end; False: the store did not answer."""
        try:
            after = pieces[-1].position if pieces else 0
            async for piece in handle.stream(after=after):
                pieces.append(piece)  # noqa: PERF401 - what was read before an error is kept
        except JobNotFound:
            raise
        except StoreError:
            return False
        return True

    async def close(self) -> None:
        """Stop those who still follow one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


Chore = tuple[float, Callable[[], Awaitable[object]]]  # every so many seconds, this


class Chores:
    """Things to be done every so often, each in its turn."""

    def __init__(self, *chores: Chore) -> None:
        now = asyncio.get_running_loop().time()
        self._chores = [(now + every, every, chore) for every, chore in chores]

    async def do(self) -> None:
        """Do what is due."""
        for place, (due, every, chore) in enumerate(self._chores):
            now = asyncio.get_running_loop().time()
            if due <= now:
                self._chores[place] = (now + every, every, chore)
                await chore()


async def act(campaign: Campaign, chores: Chores, followers: Followers, options: Options) -> None:
    """Submit jobs and intervene, until there were so many, or the time is over."""
    end = _loop_time() + options.seconds
    while _loop_time() < end and (campaign.tally.jobs < options.jobs or campaign.live > _FEW):
        with suppress(JobError):
            async with campaign.turn:
                if campaign.tally.jobs < options.jobs and campaign.live < _WINDOW:
                    if (emitting := await campaign.submit()) is not None:
                        followers.follow(emitting.id)
                    if campaign.tally.jobs == options.jobs:
                        end = min(end, _loop_time() + min(_LINGER, options.seconds / 3))
                campaign.listen()
                await campaign.intervene()
                await chores.do()
        await pause(_TICK)


def usual_chores(campaign: Campaign, shop: str, options: Options) -> list[Chore]:
    """Return what is done every so often while jobs are submitted."""
    people = campaign.people
    chores: list[Chore] = [
        (0.05, campaign.count),
        (0.1, partial(people.answer, eager=False)),
        (0.3, people.settle_doubts),
        (1.5, people.help),
        (0.05, campaign.look_around),
        (max(4.0, options.seconds / 12), campaign.prune),
    ]
    if "commands" in options.subjects:
        chores.append((0.5, campaign.meddle_below))
    if "bulk" in options.subjects:
        chores.append((2.0, campaign.command_many))
    if "transactions" in options.subjects:
        chores.append((4.0, partial(campaign.prune_transactions, shop)))
    return chores


# What happens to workers, keys, code and clocks


class Operations:
    """What operators do, and what befalls them, in one campaign."""

    def __init__(
        self, campaign: Campaign, workers: Workers, faults: StoreFaults, site: Site
    ) -> None:
        self._campaign = campaign
        self._workers = workers
        self._faults = faults
        self.site = site
        self._ahead = 0.0  # seconds by which the clock is set
        self.ring = Keys()

    def acts(self, options: Options) -> list[Act]:
        """Return what may be done, with its weight."""
        every: dict[str, Act] = {
            "kills": (4, self._workers.disturb),
            "slow": (6, self._faults.disturb),
            "outages": (0.8, partial(self._faults.fail, options.longest_outage)),
            "deploys": (1.2, self._deploy),
            "keys": (1.5, self._change_keys),
            "key_ttl": (0.3, self._stand_still),
            "clocks": (0.5, self._set_clock),
        }
        return [act for subject, act in every.items() if subject in options.subjects]

    async def _deploy(self) -> str:
        await self._workers.roll_out((self._workers.deploy + 1) % len(DEPLOYS))
        return "deploy"

    async def _change_keys(self) -> str:
        """Give all programs the next keys; if it is time for that, encrypt everything again."""
        keys, rotates = self.ring.next()
        await self._workers.restart(keys)
        await self._campaign.use(self.site.app(keys=keys))
        if rotates:
            await asyncio.gather(self._rotate(), self._workers.disturb())
        return "change of keys"

    async def _rotate(self) -> None:
        """Rotate until nothing is left, and the old key may go."""
        left = ""
        for _ in range(_ROTATIONS):
            with suppress(StoreError):
                report = await rotate_keys(await self._campaign.app.store(), 200)
                if not report.left and not report.others:
                    return
                left = f"{report.left}, workers {report.others}"
            await pause(0.3)
        self._campaign.tally.wrong.append(f"the rotation of keys does not end: {left}")

    async def _stand_still(self) -> str:
        await self._workers.restart(self._workers.keys, _STANDSTILL)
        return "standstill"

    async def _set_clock(self) -> str:
        """Set the clock ahead by an hour, or back."""
        self._ahead = 0.0 if self._ahead else _HOUR
        await self._faults.set_clock(self._ahead)
        return "clock set ahead" if self._ahead else "clock set back"

    async def set_back(self) -> bool:
        """Set the clock back, if it is ahead; return whether it was."""
        if self._ahead:
            self._campaign.tally.did[await self._set_clock()] += 1
        return bool(self._campaign.tally.did["clock set back"])

    async def set_ahead(self) -> None:
        """Set the clock ahead for good: all that was due an hour ahead comes true."""
        await self._faults.set_clock(2 * _HOUR)

    async def watch_old_code(self) -> None:
        """Note when a worker with the first code was alive."""
        if await self._workers.runs(0):
            self._campaign.old_code_at = _loop_time()


async def settle(
    campaign: Campaign, patience: float, rests: Callable[[Job, float], bool] | None = None
) -> None:
    """Let people help until every job has ended, as long as anything gets on; tell what has not.

    With `rests`, only until all that have not ended rest.
    """
    longest = _loop_time() + 6 * patience
    live, last, since = list[Job](), None, _loop_time()
    while _loop_time() < min(since + patience, longest):
        with suppress(JobError):
            campaign.listen()
            live = await campaign.people.help(writes=True)
            if rests is not None:
                now = await (await campaign.app.store()).now()
                live = [job for job in live if not rests(job, now)]
            if not live and (rests is not None or not await _open(campaign)):
                return
            if (standing := _standing(campaign.app.url)) != last:
                last, since = standing, _loop_time()
        await pause(0.2)
    for job in live:
        refused = campaign.people.refused[job.id]
        why = f", and refused {refused} commands" if refused else ""
        campaign.tally.wrong.append(f"job {job.id} does not end: {said(job)}{why}")


def sleeps(job: Job, now: float) -> bool:
    """Whether a job may rest since the clock was set back: its timer ends in an hour, as it should.

    Or it waits for a child, of which the same is asked.
    """
    waits = msgspec.json.decode(job.wait or b"[]")
    return any(
        each.get("until", 0.0) > now + _HOUR / 2 or each.get("kind") == "child" for each in waits
    )


def _standing(url: str) -> object:
    """Tell how far all jobs have come: what is begun and fails again and again does not count."""
    done = "SELECT count(*) FROM journal WHERE state IN ('SUCCEEDED', 'COMPENSATED', 'SKIPPED')"
    live = "SELECT count(*) FROM job WHERE ended_at IS NULL"
    return sql(url, done), sql(url, live), sql(url, "SELECT sum(checkpoint_no) FROM journal")


async def _open(campaign: Campaign) -> bool:
    """Tell whether an effect is still in doubt, though its job has ended."""
    store = await campaign.app.store()
    return any(line.state == "IN_DOUBT" for line in await store.open_effects(limit=10))


async def run(url: str, tally: Tally, options: Options) -> Tally:
    """Run a campaign on an empty store."""
    since = _loop_time()
    async with AsyncExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory())
        folder = options.folder or Path(made)
        faults = await stack.enter_async_context(faulty_store(url, folder, tally.seed))
        log, errors = Log(folder / f"{tally.store}.log"), folder / f"{tally.store}.err"
        words = ("tests.programmes.receiver", str(log.path), str(tally.seed))
        port = await (await stack.enter_async_context(Program(errors, *words))).hear()
        site = Site(faults.store_url, port, make_shop(url, folder), faults.clock)
        theirs = replace(site, url=faults.worker_url)
        words = ("tests.programmes.intervene_crew", theirs.pack())
        crew = await stack.enter_async_context(Program(errors, *words))
        workers = Workers(crew, random.Random(tally.seed + 1), options.pace)
        people = People(site.app(), port, random.Random(tally.seed + 4), tally.wrong)
        campaign = Campaign(people.app, people, log, tally, options)
        stack.push_async_callback(campaign.close)
        operations = Operations(campaign, workers, faults, site)
        await _intervene(campaign, operations, workers, options)
        tally.wrong += [each async for each in workers.stubborn()]
        await _audit(campaign, site, url)
        if options.folder is not None:
            await _dump(await campaign.app.store(), tally, folder / f"{tally.store}.jobs")
    tally.looks = campaign.recorder.looks
    tally.seconds = _loop_time() - since
    return tally


async def _intervene(
    campaign: Campaign, operations: Operations, workers: Workers, options: Options
) -> None:
    """Let jobs run, and everything happen to them; then let people settle what is left."""
    tally, site = campaign.tally, operations.site
    async with site.app(keys=operations.ring.readers) as reader:
        followers = Followers(reader, tally.wrong)
        chores = Chores(
            *usual_chores(campaign, site.shop, options), (0.3, operations.watch_old_code)
        )
        await workers.start()
        chance = random.Random(tally.seed + 3)
        acts = operations.acts(options)
        # One that finds its store locked when it starts is started again, as by any supervisor.
        async with Disturbance(chance, acts, options.pace, workers.start, tally.note):
            await act(campaign, chores, followers, options)
        if "deploys" in options.subjects:
            await workers.roll_out(LAST_DEPLOY)
        await workers.start()
        if await operations.set_back():
            await settle(campaign, options.patience, sleeps)
            await operations.set_ahead()
        await settle(campaign, options.patience)
        await followers.close()


async def _audit(campaign: Campaign, site: Site, url: str) -> None:
    """Compare everything, when all has come to an end."""
    tally, store = campaign.tally, await campaign.app.store()
    await campaign.look(*campaign.recorder.known)
    await campaign.inspect()
    tally.wrong += campaign.inspector.found
    tally.wrong += campaign.inspector.bulk(campaign.bulks)
    tally.wrong += campaign.inspector.too_fast()
    facts = await campaign.archive.all(url, store)
    tally.wrong += await audit(store, campaign.log, campaign.archive, facts)
    tally.wrong += earned(facts.jobs)
    tally.wrong += called_late(campaign.log.lines, facts.jobs, KEY_TTL + _SLACK)
    booking = bookings(url if site.shop.startswith("postgres") else site.shop)
    books = (job for job in facts.jobs.values() if job.name == "books")
    tally.wrong += (wrong for job in books for wrong in booked(job, booking[job.id]))
    tally.did += campaign.people.did
    tally.ends.update(job.state.value for job in facts.jobs.values())


def make_shop(url: str, folder: Path) -> str:
    """Make the users' database; return its URL."""
    shop = f"sqlite:///{folder}/shop.db"
    if not url.startswith("sqlite"):
        base, _, schema = url.rpartition("&schema=")
        shop = f"{base}&options={quote(f'-c search_path={schema}', safe='')}"
    table = "CREATE TABLE booking (job text, number integer, change integer)"
    sql(url if shop.startswith("postgres") else shop, table)
    return shop


async def _dump(store: Store, tally: Tally, path: Path) -> None:
    """Keep all that is known of the jobs that findings name."""
    with path.open("w") as file:
        for job_id in dict.fromkeys(_ID.findall(" ".join(tally.wrong))):
            known = (store.journal, store.effects, store.events)
            rows = [row for read in known for row in await read(job_id)]
            file.write(f"{await store.job(job_id)}\n")
            file.writelines(f"    {row}\n" for row in rows)


@contextmanager
def address(kind: str, folder: Path) -> Generator[str]:
    """Give the URL of a new store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
        return
    with running_server(f"intervene-{os.getpid()}") as server:
        mark = "&" if "?" in server else "?"
        yield f"{server}{mark}schema=intervene"


async def campaigns(kinds: list[str], seed: int, options: Options) -> list[Tally]:
    """Run one campaign on each kind of store."""
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory() as made:
        for kind in kinds:
            with address(kind, options.folder or Path(made)) as url:
                tallies.append(await run(url, Tally(kind, seed), options))
    return tallies


def main() -> None:
    """Run the programme and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000, help="of each store")
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--seconds", type=float, default=240.0, help="to intervene, on each store")
    parser.add_argument(
        "--only", type=_subjects, default=SUBJECTS, help=", ".join(sorted(SUBJECTS))
    )
    parser.add_argument("--without", type=_subjects, default=frozenset[str]())
    parser.add_argument(
        "--keep", type=Path, help="an empty folder for the logs and the SQLite file"
    )
    given = parser.parse_args()
    kinds = ["sqlite", "postgres"] if given.store == "both" else [given.store]
    subjects = given.only - given.without
    if not subjects & set(JOBS):
        subjects |= {"payments"}
    options = Options(given.jobs, given.seconds, 20.0, subjects, folder=given.keep)
    tallies = asyncio.run(campaigns(kinds, given.seed, options))
    sys.stdout.write("\n".join(map(str, tallies)) + "\n")
    raise SystemExit(any(tally.wrong for tally in tallies))


def _subjects(text: str) -> frozenset[str]:
    given = frozenset(text.split(","))
    if unknown := given - SUBJECTS:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}")
    return given


if __name__ == "__main__":
    main()
