"""What `intervene` does to workers, stores, clocks, keys and code, whatever jobs are under way."""

import asyncio
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, urlsplit

from perdure.app import App
from perdure.base.encryption import generate_key
from perdure.base.retry import pause
from tests.programmes.intervene_crew import NO_KEYS, SteppedClock
from tests.programmes.intervene_primitives import DEPLOYS
from tests.support.postgres_proxy import Proxy
from tests.support.store import sql

_WORKERS: Final = 2
_LONGEST_LEAVE: Final = 20.0  # seconds: the grace of a worker that drains, and some more

_CLOCK: Final = """
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
'SELECT pg_catalog.clock_timestamp() + make_interval(secs => seconds) FROM clock_step'
"""


# Processes


class Program:
    """A program of ours that is told things line by line; it ends when its input does."""

    def __init__(self, errors: Path, *words: str) -> None:
        self._words = words
        self._errors = errors
        self._process: asyncio.subprocess.Process | None = None
        self._asked = asyncio.Lock()  # one line, one answer

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
        async with self._asked:
            self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
            return await self.hear()

    async def hear(self) -> int:
        """Give the next line."""
        assert self._process is not None
        assert self._process.stdout is not None
        return int(await self._process.stdout.readline())


class Workers:
    """The workers: killed, stopped, asked to leave, and replaced by others with other code."""

    def __init__(self, crew: Program, chance: random.Random, pace: float) -> None:
        self._crew = crew
        self._chance = chance
        self._pace = pace  # how long workers with old and new code run side by side
        self._pids: list[int] = []
        self._leaving: dict[int, float] = {}  # since when
        self._deploys: dict[int, int] = {}  # by pid
        self.deploy = 0
        self.keys = ""

    async def start(self) -> None:
        """Have as many as there should be."""
        self._pids = [pid for pid in self._pids if await self._signal(0, pid)]
        while len(self._pids) < _WORKERS:
            pid = await self._crew.tell("start", self.deploy, self.keys or NO_KEYS)
            self._pids.append(pid)
            self._deploys[pid] = self.deploy

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
            await self._leave(pid)
        else:
            await self._signal(signal.SIGKILL, pid)
            self._pids.remove(pid)
        await self.start()  # others may have killed it, if it stood still with a lock in its hands
        return what

    async def roll_out(self, deploy: int) -> None:
        """Replace one after the other by workers with other code; both run side by side."""
        self.deploy = deploy
        for pid in tuple(self._pids):
            await self._leave(pid)
            await self.start()
            await pause(self._pace * (0.5 + self._chance.random() * 2.5))

    async def restart(self, keys: str, standstill: float = 0.0) -> None:
        """Kill all of them, also those that are leaving, and start others with these keys."""
        for pid in (*self._pids, *self._leaving):
            while await self._signal(signal.SIGKILL, pid):
                await pause(0.01)
        self._pids, self._leaving, self.keys = [], {}, keys
        await pause(standstill)
        await self.start()

    async def runs(self, deploy: int) -> bool:
        """Whether a worker with this code is alive, also one that is leaving."""
        of_it = [pid for pid, number in self._deploys.items() if number == deploy]
        return any([await self._signal(0, pid) for pid in of_it])

    async def _leave(self, pid: int) -> None:
        await self._signal(signal.SIGTERM, pid)
        self._pids.remove(pid)
        self._leaving[pid] = asyncio.get_running_loop().time()

    async def stubborn(self) -> AsyncGenerator[str, None]:
        """Name those that were asked to leave long ago, and live."""
        for pid, since in self._leaving.items():
            seconds = asyncio.get_running_loop().time() - since
            if seconds > _LONGEST_LEAVE and await self._signal(0, pid):
                yield f"a worker was asked to leave {seconds:.0f} s ago and lives"

    async def _signal(self, number: int, pid: int) -> int:
        """Send a signal; 0: it is gone."""
        return await self._crew.tell("signal", number, pid)


# Stores that are slow, do not answer at all, or have another time


class FileFaults:
    """Holds the write lock of a SQLite file, for a moment or for seconds, and sets its clock."""

    def __init__(self, url: str, clock: Path, chance: random.Random) -> None:
        self.store_url = self.worker_url = url
        self.clock = str(clock)
        self._set = SteppedClock(clock).set
        self._path = urlsplit(url).path.removeprefix("/")
        self._chance = chance

    async def disturb(self) -> str:
        """Hold the lock for a moment."""
        await self._hold(self._chance.random() * 0.3)
        return "lock held"

    async def fail(self, longest: float) -> str:
        """Hold the lock for seconds."""
        await self._hold(0.5 + self._chance.random() * longest)
        return "outage"

    async def set_clock(self, seconds: float) -> None:
        """Set the clock ahead of the machine's."""
        self._set(seconds)

    async def _hold(self, seconds: float) -> None:
        database = sqlite3.connect(self._path, isolation_level=None, timeout=1)
        try:
            with suppress(sqlite3.OperationalError):
                database.execute("BEGIN IMMEDIATE")
                await pause(seconds)
        finally:
            database.close()


class ServerFaults(Proxy):
    """Holds back the answers of a PostgreSQL server, loses one, cuts backends, sets its clock.

    The clock is a function of the store's own schema, which its sessions find before that of the
    server.
    """

    clock = ""

    def __init__(self, url: str, chance: random.Random) -> None:
        super().__init__(url)
        base, _, schema = url.rpartition("&schema=")
        path = quote(f"-c search_path={schema},pg_catalog", safe="")
        self._own, self._name = url, f"worker of {schema}"  # of the sessions of workers
        self.store_url = f"{base}&options={path}&schema={schema}"
        self._options = f"options={path}&application_name={quote(self._name)}"
        self._chance = chance
        self._flows = asyncio.Event()
        self._flows.set()

    @property
    def worker_url(self) -> str:
        """What workers connect to."""
        before, _, rest = self.url.partition("?")
        return f"{before}?{self._options}&{rest}"

    def make_clock(self) -> None:
        """Let the store have a clock that can be set."""
        sql(self._own, "CREATE TABLE clock_step (seconds float8 NOT NULL)")
        sql(self._own, "INSERT INTO clock_step VALUES (0)")
        sql(self._own, _CLOCK)

    async def disturb(self) -> str:
        """Hold answers back, or lose one."""
        if self._chance.random() < 0.5:
            self.arm(self._chance.randrange(20))
            return "answer lost"
        self._flows.clear()
        await pause(self._chance.random() * 0.3)
        self._flows.set()
        return "answers held"

    async def fail(self, longest: float) -> str:
        """Cut the backends of all workers, again and again; perhaps refuse new ones meanwhile."""
        cut = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE application_name = '{self._name}'"
        )
        self.refuses = self._chance.random() < 0.5
        end = asyncio.get_running_loop().time() + self._chance.random() * longest
        while True:
            await asyncio.to_thread(sql, self._own, cut)
            if asyncio.get_running_loop().time() > end:
                break
            await pause(self._chance.random() * 0.5)
        self.refuses = False
        return "outage"

    async def set_clock(self, seconds: float) -> None:
        """Set the clock ahead of the server's."""
        await asyncio.to_thread(sql, self._own, f"UPDATE clock_step SET seconds = {seconds}")

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


StoreFaults = FileFaults | ServerFaults


@asynccontextmanager
async def faulty_store(url: str, folder: Path, seed: int) -> AsyncGenerator[StoreFaults, None]:
    """Make the store of a URL, and have what can be done to it."""
    app, chance = App(url), random.Random(seed + 2)
    await app.store()
    await app.close()
    if url.startswith("sqlite"):
        clock = folder / "clock"
        SteppedClock.create(clock)
        yield FileFaults(url, clock, chance)
    else:
        async with ServerFaults(url, chance) as server:
            server.make_clock()
            yield server


# Keys


class Keys:
    """The steps by which keys come, change and go, as `docs/jobs/encryption.md` has them."""

    def __init__(self) -> None:
        self._made = [generate_key() for _ in range(4)]
        self._steps = self._all_steps()

    @property
    def readers(self) -> str:
        """Keys that read whatever there is, and write nothing."""
        return ",".join(["plain", *self._made])

    def next(self) -> tuple[str, bool]:
        """Return what all programs are given now, and whether everything is then rotated."""
        return next(self._steps)

    def _all_steps(self) -> Iterator[tuple[str, bool]]:
        while True:
            old = self._made[0]
            yield f"plain,{old}", False
            yield old, True
            for new in self._made[1:]:
                yield f"{old},{new}", False
                yield f"{new},{old}", True
                yield new, False
                old = new
            yield f"plain,{old}", True
            yield "", False


# All of it


class Disturbance:
    """Does one thing after the other to everything; it stops between two of them.

    Each is done once, then those of more weight more often.
    """

    def __init__(
        self,
        chance: random.Random,
        acts: list["Act"],
        pace: float,
        before: Callable[[], Awaitable[None]],
        note: Callable[[str], None],
    ) -> None:
        self._chance = chance
        self._pace = pace
        self._acts = acts
        self._before = before  # each of them
        self._note = note
        self._over = False

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await self._task

    async def _go_on(self) -> None:
        each_once = self._chance.sample(self._acts, len(self._acts))
        weights = [weight for weight, _ in self._acts]
        while not self._over and self._acts:
            await pause(self._pace * (0.3 + self._chance.random() * 1.5))
            _, act = each_once.pop() if each_once else self._chance.choices(self._acts, weights)[0]
            await self._before()
            self._note(await act())


Act = tuple[float, Callable[[], Awaitable[str]]]  # its weight, and what returns what it did
LAST_DEPLOY: Final = len(DEPLOYS) - 1
