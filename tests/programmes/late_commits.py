"""PostgreSQL behind a bad network: does each transaction happen exactly once?

`python -m tests.programmes.late_commits URL [--seconds 60] [--seed 1]`

Between several stores and the server answers are lost, questions are held back and delivered when
nobody waits for them any more, and connections are cut, all at random.
What was acknowledged must be there once, and what was not, at most once.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, cast

from perdure.base.errors import LeaseLost, StoreError
from perdure.base.retry import pause
from perdure.jobs.model import Claim, JobEvent
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.support.postgres_proxy import Proxy, whole
from tests.support.store import QUEUES, claims, ends, entry, new_job, sql, write_of

_CLAIMS = """
SELECT queue, count(*) FROM event JOIN job ON id = job_id WHERE type = 'claimed' GROUP BY queue
"""


class Plan(NamedTuple):
    """How to attack."""

    seconds: float = 60.0
    seed: int = 1
    odds: int = 40  # of each fault, for every packet
    late: float = 3.0  # seconds by which a question comes too late, at most
    stores: int = 3


class BadNetwork(Proxy):
    """Loses, holds back and cuts, each with a chance of one in so many."""

    def __init__(self, url: str, plan: Plan) -> None:
        super().__init__(url)
        self._chance = random.Random(plan.seed)
        self._odds = plan.odds
        self._late = plan.late
        self.faults = Counter[str]()

    def _strikes(self, fault: str) -> bool:
        strikes = self._chance.randrange(self._odds) == 0
        self.faults[fault] += strikes
        return strikes

    async def _questions(
        self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, to: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            if self._strikes("late question"):
                data = await whole(data, reader)
                back.close()
                await pause(self._chance.uniform(0, self._late))
                to.write(data)
                await pause(self._chance.uniform(0, self._late))
                break
            if self._strikes("cut"):
                back.close()
                break
            to.write(data)
        to.close()

    async def _answers(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._strikes("lost answer"):
                break
            if self._strikes("late answer"):
                await pause(self._chance.uniform(0, 0.2))
            to.write(data)
        to.close()


class Books:
    """What was asked for, and what of it was acknowledged."""

    def __init__(self) -> None:
        self.sure = Counter[str]()
        self.unsure = Counter[str]()
        self.claimed = Counter[str]()

    async def ask(self, what: str, call: Callable[[], Awaitable[object]]) -> object:
        try:
            found = await call()
        except StoreError:
            self.unsure[what] += 1
            return None
        self.sure[what] += 1
        return found

    def compare(self, kind: str, found: Counter[str]) -> list[str]:
        """List what is missing, and what is there too often."""
        wrong: list[str] = []
        for what in {*found, *(each for each in self.sure if each.startswith(kind))}:
            least, most = self.sure[what], self.sure[what] + self.unsure[what]
            if not least <= found[what] <= most:
                wrong.append(f"{what}: {found[what]} times, not {least} to {most}")
        return wrong


async def _work(store: Store, books: Books, name: str, ends_at: float) -> None:
    """Send, submit, claim, write and end, one after the other."""
    loop = asyncio.get_running_loop()
    number = 0
    while loop.time() < ends_at:
        number += 1
        mark = f"{name}-{number}"
        for turn in range(3):
            said = f'"message {mark}-{turn}"'.encode()
            await books.ask(f"message {mark}-{turn}", partial(store.send, "receiver", "said", said))
        await books.ask(f"job {mark}", partial(store.submit, [new_job(mark, queue=name)]))
        taken = await books.ask(f"claim {name}", partial(_claim, store, name))
        for claim in cast("list[Claim]", taken or []):
            await _do(store, books, claim)


async def _claim(store: Store, queue: str) -> list[Claim]:
    return await claims(store, 1, owner=queue, queues={queue: QUEUES["default"]})


async def _do(store: Store, books: Books, claim: Claim) -> None:
    """Write of a job what happens once, and end it."""
    job_id = claim.job.id
    books.claimed[job_id] += 1
    note = JobEvent(type="note", data={"what": f"note {job_id}"})
    with suppress(LeaseLost):  # after an end of which nobody was told
        full = write_of(claim, entry(0), events=(note,))
        await books.ask(f"note {job_id}", partial(store.write, full))
        await books.ask(f"entry {job_id}", partial(store.write, write_of(claim, entry(1))))
        last = write_of(claim, job=ends(result=b"1"))
        await books.ask(f"end {job_id}", partial(store.write, last))


def audit(url: str, books: Books) -> list[str]:
    """Compare the books with what the database has."""
    said = Counter(row[0].strip('"') for row in sql(url, "SELECT payload FROM message"))
    jobs = Counter(f"job {row[0]}" for row in sql(url, "SELECT id FROM job WHERE id LIKE '%-%'"))
    notes = Counter(
        f"note {row[0]}" for row in sql(url, "SELECT job_id FROM event WHERE type = 'note'")
    )
    ended = Counter(f"end {row[0]}" for row in sql(url, "SELECT id FROM job WHERE result = '1'"))
    wrong = books.compare("message", said) + books.compare("job", jobs)
    wrong += books.compare("note", notes) + books.compare("end", ended)
    for queue, found in sql(url, _CLAIMS):
        told = sum(each for job_id, each in books.claimed.items() if job_id.startswith(f"{queue}-"))
        most = told + books.unsure[f"claim {queue}"]
        if not told <= found <= most:
            wrong.append(f"claims of {queue}: {found}, not {told} to {most}")
    return wrong


class Result(NamedTuple):
    """How it went."""

    numbers: str
    wrong: list[str]


async def attack(url: str, plan: Plan) -> Result:
    """Let several stores work over a bad network, and tell what is wrong afterwards."""
    books = Books()
    direct = open_store(url)
    await direct.open()
    await direct.submit([new_job("receiver", queue="nobody")])
    async with BadNetwork(url, plan) as network:
        opened = [await _opened(network.url) for _ in range(plan.stores)]
        ends_at = asyncio.get_running_loop().time() + plan.seconds
        async with asyncio.TaskGroup() as group:
            for number, store in enumerate(opened):
                for turn in range(3):
                    group.create_task(_work(store, books, f"w{number}{turn}", ends_at))
        await asyncio.gather(*(store.close() for store in opened))
        await pause(2 * plan.late)  # whatever is late arrives
    await direct.close()
    sure, unsure = sum(books.sure.values()), sum(books.unsure.values())
    return Result(f"{sure} sure, {unsure} unsure; {dict(network.faults)}", audit(url, books))


async def _opened(url: str) -> Store:
    while True:
        store = open_store(url)
        try:
            await store.open()
        except StoreError:
            continue
        return store


def main() -> int:
    """Attack as the command line says; 1 if something is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="of a schema that is empty: …&schema=name")
    for name in Plan._fields:
        kind = Plan.__annotations__[name]
        parser.add_argument(f"--{name}", type=kind, default=Plan._field_defaults[name])
    given = vars(parser.parse_args())
    numbers, wrong = asyncio.run(attack(given.pop("url"), Plan(**given)))
    sys.stdout.write("\n".join([numbers, *wrong, ""]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
