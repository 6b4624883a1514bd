"""The floor's PostgreSQL, with its own settings: every commit is on the disk when it returns."""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

_SCHEMA = """
create table job (id int primary key, state int not null, owner int, argument text);
create index job_open on job (id) where state = 0;
create table step (job int, place int, result bytea, primary key (job, place));
"""
_SUBMIT = """
with added as (insert into job select unnest(%s::int[]), 0, null, %s)
select pg_notify('job', '')
"""
_CLAIM = """
update job set state = 1, owner = %s
where id in (select id from job where state = 0 order by id limit %s for update skip locked)
returning id, argument
"""
# The row of the job is locked, so that nobody takes it over between the check and the write.
_STEP = """
with mine as (select id from job where id = %s and owner = %s for share)
insert into step select id, %s, %s from mine
"""
_STEPS = """
with given as (select * from unnest(%s::int[], %s::int[], %s::bytea[]) as g (job, place, result)),
mine as (
  select id from job where id in (select job from given) and owner = %s order by id for share
)
insert into step select given.job, place, result from given join mine on mine.id = given.job
"""
_END = "update job set state = 2 where id = any(%s) and owner = %s"


class PostgresFloor:
    """The floor's statements in the words of PostgreSQL."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._url = url
        self._db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._hints: AsyncIterator[Any] | None = None

    def setup(self) -> None:
        self._db.execute(_SCHEMA, prepare=False)

    def submit(self, job: int, steps: int) -> None:
        self.submit_many([job], steps)

    def submit_many(self, jobs: Iterable[int], steps: int) -> None:
        self._db.execute(_SUBMIT, (list(jobs), json.dumps(steps)))

    def take_over(self, _: int) -> None:
        self._db.execute("update job set state = 0 where state = 1")

    def claim(self, owner: int, most: int) -> list[tuple[int, str]]:
        return self._db.execute(_CLAIM, (owner, most)).fetchall()

    def history(self, job: int) -> list[bytes]:
        rows = self._db.execute("select result from step where job = %s order by place", (job,))
        return [row[0] for row in rows]

    def write(
        self, steps: Sequence[tuple[int, int, bytes, int]], ends: Sequence[tuple[int, int]]
    ) -> None:
        written = None
        with self._db.pipeline() if steps and ends else nullcontext():
            if steps:
                written = self._write_steps(steps)
            if ends:
                self._db.execute(_END, ([job for job, _ in ends], ends[0][1]))
        if written is not None and written.rowcount != len(steps):
            raise RuntimeError("a job has another owner")

    def _write_steps(self, steps: Sequence[tuple[int, int, bytes, int]]) -> Any:
        if len(steps) == 1:
            job, place, result, owner = steps[0]
            return self._db.execute(_STEP, (job, owner, place, result))
        jobs, places, results, owners = zip(*steps, strict=True)
        return self._db.execute(_STEPS, (list(jobs), list(places), list(results), owners[0]))

    async def hint(self) -> None:
        """Wait until somebody has submitted a job."""
        import psycopg

        if self._hints is None:
            db = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
            await db.execute("listen job")
            self._hints = db.notifies()
            return  # something may have come before we listened
        await anext(self._hints)

    def close(self) -> None:
        self._db.close()
