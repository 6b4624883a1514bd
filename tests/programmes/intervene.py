"""People and time intervene at random moments; the promise must hold.

`python -m tests.programmes.intervene --jobs 2000 [--store sqlite|postgres|both] [--seed N]`

Real workers run payments, sagas, families, questions, budgets and waits, and are killed, stopped
and asked to leave. Meanwhile jobs are cancelled, paused, retried, forked, skipped and undone, or
their time is up; commits are held up, and answers of the database are lost.
In the end people settle all that waits for them. Then nothing in the store may break a rule,
and the log of the receiver, which knows nothing of jobs, must say what the ledger says.
The exit code is 0 only if nothing was found.
"""

import argparse
import asyncio
import heapq
import itertools
import os
import random
import re
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from perdure.app import App
from perdure.base.errors import JobError
from perdure.base.retry import pause
from perdure.engine.handle import Handle
from perdure.jobs.model import Job, JobQuery
from perdure.jobs.state import ENDED, JobState
from perdure.store.store import Store
from tests.programmes.intervene_audit import Archive, Log, Recorder, audit
from tests.programmes.intervene_jobs import MANNERS, build
from tests.programmes.intervene_people import People, said
from tests.support.postgres_proxy import Proxy
from tests.support.postgres_server import running_server
from tests.support.store import sql

_TICK: Final = 0.005
_WINDOW: Final = 40  # jobs that are submitted and have not ended, at most …
_FEW: Final = 4  # … and when it is time for the end, if all are submitted …
_LINGER: Final = 8.0  # … or after so many seconds
_LONGEST_LEAVE: Final = 20.0  # seconds: the grace of a worker that drains, and some more
_WORKERS: Final = 2
_SAFE_TO_SKIP: Final = ("note#1", "sleep#1", "approve#1")

_S = JobState


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


# Processes


class Program:
    """A program of ours that is told things line by line; it ends when its input does."""

    def __init__(self, errors: Path, *words: str) -> None:
        self._words = words
        self._errors = errors
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *self._words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def tell(self, *words: object) -> int:
        """Say a line, and give the answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        return await self.hear()

    async def hear(self) -> int:
        """Give the next line."""
        assert self._process is not None
        assert self._process.stdout is not None
        return int(await self._process.stdout.readline())


class Workers:
    """The workers, one of which is ended and replaced now and then."""

    def __init__(self, crew: Program, chance: random.Random) -> None:
        self._crew = crew
        self._chance = chance
        self._pids: list[int] = []
        self._leaving: dict[int, float] = {}  # since when

    async def start(self) -> None:
        """Have as many as there should be."""
        self._pids = [pid for pid in self._pids if await self._signal(0, pid)]
        while len(self._pids) < _WORKERS:
            self._pids.append(await self._crew.tell("start"))

    async def disturb(self) -> str:
        """Kill one, ask it to leave, or let it stand still for a while."""
        pid = self._chance.choice(self._pids)
        what = self._chance.choices(["kill -9", "SIGTERM", "SIGSTOP"], [6, 3, 1])[0]
        if what == "SIGSTOP":
            await self._signal(signal.SIGSTOP, pid)
            try:
                await pause(self._chance.choice([0.2, 6.0]))  # perhaps past its leases
            finally:
                await self._signal(signal.SIGCONT, pid)
        elif what == "SIGTERM":
            await self._signal(signal.SIGTERM, pid)
            self._pids.remove(pid)
            self._leaving[pid] = asyncio.get_running_loop().time()
        else:
            await self._signal(signal.SIGKILL, pid)
            self._pids.remove(pid)
        await self.start()  # others may have killed it, if it stood still with a lock in its hands
        return what

    async def stubborn(self) -> AsyncGenerator[str, None]:
        """Name those that were asked to leave long ago, and live."""
        for pid, since in self._leaving.items():
            seconds = asyncio.get_running_loop().time() - since
            if seconds > _LONGEST_LEAVE and await self._signal(0, pid):
                yield f"a worker was asked to leave {seconds:.0f} s ago and lives"

    async def _signal(self, number: int, pid: int) -> int:
        """Send a signal; 0: it is gone."""
        return await self._crew.tell("signal", number, pid)


# Commits that take long, and answers that are lost


class SlowFile:
    """Holds the write lock of a SQLite file for a moment."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self.worker_url = url
        self._path = urlsplit(url).path.removeprefix("/")
        self._chance = chance

    async def disturb(self) -> str:
        """Hold the lock."""
        database = sqlite3.connect(self._path, isolation_level=None, timeout=1)
        try:
            with suppress(sqlite3.OperationalError):
                database.execute("BEGIN IMMEDIATE")
                await pause(self._chance.random() * 0.3)
        finally:
            database.close()
        return "lock held"


class SlowServer(Proxy):
    """Holds back the answers of a PostgreSQL server, or loses one."""

    def __init__(self, url: str, chance: random.Random) -> None:
        super().__init__(url)
        self._chance = chance
        self._flows = asyncio.Event()
        self._flows.set()

    @property
    def worker_url(self) -> str:
        return self.url

    async def disturb(self) -> str:
        """Hold answers back, or lose one."""
        if self._chance.random() < 0.5:
            self.arm(self._chance.randrange(20))
            return "answer lost"
        self._flows.clear()
        await pause(self._chance.random() * 0.3)
        self._flows.set()
        return "answers held"

    async def _answers(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._flows.wait()
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    self._left = None
                    self.cuts += 1
                    break
            to.write(data)
        to.close()


Slow = SlowFile | SlowServer


# The campaign


class Campaign:
    """One run on one store."""

    def __init__(self, app: App, people: People, log: Log, tally: Tally) -> None:
        self.app = app
        self.people = people
        self.log = log
        self.tally = tally
        self.chance = random.Random(tally.seed)
        self.recorder = Recorder()
        self.archive = Archive()
        self.live = 0  # jobs that have not ended
        self._plans: dict[str, list[tuple[int, str]]] = {}  # by job: at which call, what
        self._calls = Counter[str]()
        self._due: list[tuple[float, int, str, str]] = []
        self._numbers = itertools.count()
        self._submitted: list[str] = []
        self._order = 0

    # Submitting

    async def submit(self) -> None:
        """Submit a job of some kind, and plan what happens to it."""
        name, given = self._kind()
        options: dict[str, Any] = {"user": "kim"}
        if self.chance.random() < 0.15:
            options["deadline"] = 0.05 + self.chance.random() * 1.5
            self.tally.did["deadline"] += 1
        handle = await self.app.submit(self.app.find_job(name)(*given), **options)
        self.tally.jobs += 1
        self.live += 1
        self._submitted.append(handle.id)
        self._plan(handle.id)
        if name == "waits":
            self._later(handle.id, "send", self.chance.random())

    def _kind(self) -> tuple[str, tuple[Any, ...]]:
        dice, manner = self.chance.random, self.chance.choice(list(MANNERS))
        count, fails = self.chance.randrange(1, 4), dice() < 0.4
        if fails and dice() < 0.5:
            self._order += 1
        kinds: dict[str, tuple[float, tuple[Any, ...]]] = {
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
        weights = [weight for weight, _ in kinds.values()]
        name = self.chance.choices(list(kinds), weights)[0]
        return name, kinds[name][1]

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
        now = asyncio.get_running_loop().time()
        heapq.heappush(self._due, (now + delay, next(self._numbers), job_id, op))

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
        now = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
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
        await handle.cancel("by chance", by="ann")
        return "cancel"

    async def _pause(self, handle: Handle[Any]) -> str:
        await handle.pause("by chance", by="ann")
        self._later(handle.id, "resume", self.chance.random() * 0.5)
        return "pause"

    async def _resume(self, handle: Handle[Any]) -> str:
        await handle.resume("by chance", by="ann")
        return "resume"

    async def _send(self, handle: Handle[Any]) -> str:
        await handle.send("go", "well", key="go")
        return "message"

    async def _fork(self, handle: Handle[Any]) -> str | None:
        journal = [entry for entry in await handle.journal() if entry.kind != "undo"]
        if not journal:
            return None
        fork = await handle.fork(self.chance.choice(journal).id, by="ann")
        self._submitted.append(fork.id)
        return "fork"

    async def _skip(self, handle: Handle[Any]) -> str | None:
        step = self.chance.choice(_SAFE_TO_SKIP)
        await handle.skip(step, "by chance", output="skipped", by="kim")
        if step.startswith("approve"):
            self.tally.wrong.append(f"job {handle.id}: kim, who asked for it, skipped {step}")
        return "skip"

    async def _again(self, handle: Handle[Any]) -> str:
        """Retry or undo what has stopped."""
        if self.chance.random() < 0.5:
            await handle.retry(reason="by chance", by="ann")
            return "retry"
        await handle.compensate("by chance", by="ann")
        return "compensate"

    async def meddle_below(self) -> None:
        """Cancel a child, or pause it, whatever its parent does."""
        running = await self.app.find_jobs(JobQuery(states=(_S.RUNNING, _S.WAITING), limit=30))
        children = [job for job in running if job.parent is not None]
        if children:
            op = self.chance.choice(["cancel", "pause"])
            await self._try(op, self.chance.choice(children).id)

    async def prune(self) -> None:
        """Delete what has ended, as retention does."""
        gone = await self.archive.prune(self.app.url, await self.app.store())
        self.tally.did["job deleted"] += gone
        self.recorder.forget(self.archive.gone | self.archive.lost)

    # Looking

    async def look(self, *job_ids: str) -> None:
        """See that journals only grow."""
        store = await self.app.store()
        for job_id in job_ids:
            self.tally.wrong += self.recorder.look(job_id, await store.journal(job_id))

    async def look_around(self) -> None:
        """Look at a few journals."""
        recent = self._submitted[-200:]
        await self.look(*self.chance.sample(recent, min(len(recent), 4)))

    async def count(self) -> None:
        """Count the jobs that have not ended."""
        counts = await (await self.app.store()).counts()
        self.live = sum(number for state, number in counts.items() if state not in ENDED)


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


async def act(campaign: Campaign, jobs: int, seconds: float) -> None:
    """Submit jobs and intervene, until there were so many, or the time is over."""
    people, loop = campaign.people, asyncio.get_running_loop()
    chores = Chores(
        (0.05, campaign.count),
        (0.1, partial(people.answer, eager=False)),
        (0.3, people.settle_doubts),
        (1.5, people.help),
        (0.05, campaign.look_around),
        (0.5, campaign.meddle_below),
        (5.0, campaign.prune),
    )
    end = loop.time() + seconds
    while loop.time() < end and (campaign.tally.jobs < jobs or campaign.live > _FEW):
        with suppress(JobError):
            if campaign.tally.jobs < jobs and campaign.live < _WINDOW:
                await campaign.submit()
                if campaign.tally.jobs == jobs:
                    end = min(end, loop.time() + _LINGER)
            campaign.listen()
            await campaign.intervene()
            await chores.do()
        await pause(_TICK)


class Disturbance:
    """Ends workers and holds up commits, again and again; it stops between two of them."""

    def __init__(self, tally: Tally, workers: Workers, slow: Slow) -> None:
        self._tally = tally
        self._workers = workers
        self._slow = slow
        self._chance = random.Random(tally.seed + 3)
        self._over = False

    async def __aenter__(self) -> None:
        await self._workers.start()
        self._task = asyncio.create_task(self._go_on())

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await self._task

    async def _go_on(self) -> None:
        while not self._over:
            await pause(0.3 + self._chance.random() * 1.5)
            which = self._workers if self._chance.random() < 0.4 else self._slow
            self._tally.did[await which.disturb()] += 1


async def settle(campaign: Campaign, patience: float) -> None:
    """Let people help until every job has ended, as long as anything gets on; tell what has not."""
    loop = asyncio.get_running_loop()
    longest = loop.time() + 6 * patience
    live, last, since = list[Job](), None, loop.time()
    while loop.time() < min(since + patience, longest):
        with suppress(JobError):
            campaign.listen()
            live = await campaign.people.help()
            if not live and not await _open(campaign):
                return
            if (standing := _standing(campaign.app.url)) != last:
                last, since = standing, loop.time()
        await pause(0.2)
    for job in live:
        refused = campaign.people.refused[job.id]
        why = f", and refused {refused} commands" if refused else ""
        campaign.tally.wrong.append(f"job {job.id} does not end: {said(job)}{why}")


def _standing(url: str) -> object:
    """Tell how far all jobs have come: what is begun and fails again and again does not count."""
    done = "SELECT count(*) FROM journal WHERE state IN ('SUCCEEDED', 'COMPENSATED', 'SKIPPED')"
    live = "SELECT count(*) FROM job WHERE ended_at IS NULL"
    return sql(url, done), sql(url, live), sql(url, "SELECT sum(checkpoint_no) FROM journal")


async def _open(campaign: Campaign) -> bool:
    """Tell whether an effect is still in doubt, though its job has ended."""
    store = await campaign.app.store()
    return any(line.state == "IN_DOUBT" for line in await store.open_effects(limit=10))


@dataclass(frozen=True)
class Options:
    """How long a campaign is, and what is kept of it."""

    jobs: int
    seconds: float  # to intervene
    patience: float  # seconds without any progress, before what has not ended is a finding
    folder: Path | None = None  # where the logs of receiver and workers are kept; None: nowhere


async def run(url: str, slow: Slow, tally: Tally, options: Options) -> Tally:
    """Run a campaign on an empty store."""
    since = asyncio.get_running_loop().time()
    chance = random.Random(tally.seed + 1)
    async with AsyncExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory())
        folder = options.folder or Path(made)
        log, errors = Log(folder / f"{tally.store}.log"), folder / f"{tally.store}.err"
        words = ("tests.programmes.receiver", str(log.path), str(tally.seed))
        port = await (await stack.enter_async_context(Program(errors, *words))).hear()
        app = await stack.enter_async_context(build(url, port))
        words = ("tests.programmes.intervene_jobs", slow.worker_url, str(port))
        crew = await stack.enter_async_context(Program(errors, *words))
        campaign = Campaign(app, People(app, port, chance, tally.wrong), log, tally)
        workers = Workers(crew, chance)
        async with Disturbance(tally, workers, slow):
            await act(campaign, options.jobs, options.seconds)
        await settle(campaign, options.patience)
        tally.wrong += [each async for each in workers.stubborn()]
        await campaign.look(*campaign.recorder.known)
        store = await app.store()
        tally.wrong += await audit(url, store, log, campaign.archive)
        if options.folder is not None:
            await _dump(store, tally, folder / f"{tally.store}.jobs")
        tally.did += campaign.people.did
        jobs = (await campaign.archive.all(url, store)).jobs.values()
        tally.ends.update(job.state.value for job in jobs)
    tally.looks = campaign.recorder.looks
    tally.seconds = asyncio.get_running_loop().time() - since
    return tally


async def _dump(store: Store, tally: Tally, path: Path) -> None:
    """Keep all that is known of the jobs that findings name."""
    with path.open("w") as file:
        for job_id in dict.fromkeys(_ID.findall(" ".join(tally.wrong))):
            known = (store.journal, store.effects, store.events)
            rows = [row for read in known for row in await read(job_id)]
            file.write(f"{await store.job(job_id)}\n")
            file.writelines(f"    {row}\n" for row in rows)


@asynccontextmanager
async def slow_store(url: str, seed: int) -> AsyncGenerator[Slow, None]:
    """Make the store of a URL, and have what holds up its commits."""
    app, chance = App(url), random.Random(seed + 2)
    await app.store()
    await app.close()
    if url.startswith("sqlite"):
        yield SlowFile(url, chance)
    else:
        async with SlowServer(url, chance) as server:
            yield server


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
                async with slow_store(url, seed) as slow:
                    tallies.append(await run(url, slow, Tally(kind, seed), options))
    return tallies


def main() -> None:
    """Run the programme and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000, help="of each store")
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--seconds", type=float, default=240.0, help="to intervene, on each store")
    parser.add_argument(
        "--keep", type=Path, help="an empty folder for the logs and the SQLite file"
    )
    given = parser.parse_args()
    kinds = ["sqlite", "postgres"] if given.store == "both" else [given.store]
    options = Options(given.jobs, given.seconds, 20.0, given.keep)
    tallies = asyncio.run(campaigns(kinds, given.seed, options))
    sys.stdout.write("\n".join(map(str, tallies)) + "\n")
    raise SystemExit(any(tally.wrong for tally in tallies))


if __name__ == "__main__":
    main()
