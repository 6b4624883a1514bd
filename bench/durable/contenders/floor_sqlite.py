"""The floor's SQLite: a write-ahead log that is on the disk at every commit."""

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

_SCHEMA = """
create table job (id integer primary key, state int not null, owner int, argument text);
create index job_open on job (state) where state < 2;
create table step (job int, place int, result blob, primary key (job, place)) without rowid;
"""
# A commit that overwrites its log costs half of one that makes it longer.
_LOG_BYTES = 4_200_000
_GROW_LOG = f"""
create table if not exists growth (bytes blob);
insert into growth values (zeroblob({_LOG_BYTES}));
delete from growth;
"""
_CLAIM = """
update job set state = 1, owner = ?
where id in (select id from job where state = 0 order by id limit ?)
returning id, argument
"""
_STEP = "insert into step select ?1, ?2, ?3 from job where id = ?1 and owner = ?4"
_END = "update job set state = 2 where id = ? and owner = ?"
_LOOK_EVERY = 0.002


class SqliteFloor:
    """The floor's statements in the words of SQLite."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._db = self._connect()
        self._watch = self._connect()
        self._version = -1

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False, timeout=30)
        db.execute("pragma journal_mode = wal").fetchall()
        db.execute("pragma synchronous = full")
        return db

    def setup(self) -> None:
        self._db.executescript(_SCHEMA)

    def submit(self, job: int, steps: int) -> None:
        self.submit_many([job], steps)

    def submit_many(self, jobs: Iterable[int], steps: int) -> None:
        rows = [(job, json.dumps(steps)) for job in jobs]
        self._db.execute("begin immediate")
        self._db.executemany("insert into job values (?, 0, null, ?)", rows)
        self._db.execute("commit")

    def take_over(self, _: int) -> None:
        self._db.executescript(_GROW_LOG)
        self._db.execute("pragma wal_checkpoint(restart)").fetchall()
        self._db.execute("update job set state = 0 where state = 1")

    def claim(self, owner: int, most: int) -> list[tuple[int, str]]:
        return self._db.execute(_CLAIM, (owner, most)).fetchall()

    def history(self, job: int) -> list[bytes]:
        rows = self._db.execute("select result from step where job = ? order by place", (job,))
        return [row[0] for row in rows]

    def write(
        self, steps: Sequence[tuple[int, int, bytes, int]], ends: Sequence[tuple[int, int]]
    ) -> None:
        if len(steps) == 1 and not ends:
            written = self._db.execute(_STEP, steps[0]).rowcount
        else:
            self._db.execute("begin immediate")
            written = self._db.executemany(_STEP, steps).rowcount if steps else 0
            self._db.executemany(_END, ends)
            self._db.execute("commit")
        if steps and written != len(steps):
            raise RuntimeError("the job has another owner")

    async def hint(self) -> None:
        """Wait until another connection has written."""
        while (
            version := self._watch.execute("pragma data_version").fetchone()[0]
        ) == self._version:
            await asyncio.sleep(_LOOK_EVERY)
        self._version = version

    def close(self) -> None:
        self._db.close()
        self._watch.close()
