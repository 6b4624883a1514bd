"""Makes many finished jobs of one, faster than any worker could."""

import sqlite3
from typing import Any

from bench.durable.place import SQLITE, Place

# Every table that keeps something of a finished job, and its column with the job's id.
_TABLES = {"job": "id", "journal": "job_id", "event": "job_id"}
# Numbers that the database gives by itself.
_OWN = {"event": {"no"}}

_NUMBERS = {
    "sqlite": "(with recursive n(i) as (select 1 union all select i + 1 from n where i < {0}) "
    "select i from n)",
    "postgres": "(select i from generate_series(1, {0}) as i)",
}
_ID = {"sqlite": "printf('%032x', i)", "postgres": "lpad(to_hex(i), 32, '0')"}


def prefill(place: Place, jobs: int) -> None:
    """Copy the only job of a store so many times."""
    connection: Any
    if place.store == SQLITE:
        connection = sqlite3.connect(place.file, isolation_level=None, timeout=30)
    else:
        import psycopg

        connection = psycopg.connect(place.url, autocommit=True)
        connection.execute("set search_path = perdure")
    try:
        for table, id in _TABLES.items():
            connection.execute(_copy(connection, place.store, table, id, jobs))
        connection.execute("analyze")
    finally:
        connection.close()


def _copy(connection: Any, store: str, table: str, id: str, jobs: int) -> str:
    found = connection.execute(f"select * from {table} limit 0").description
    names = [column[0] for column in found if column[0] not in _OWN.get(table, ())]
    given = ", ".join(f'"{name}"' for name in names)
    copied = ", ".join(_ID[store] if name == id else f'one."{name}"' for name in names)
    numbers = _NUMBERS[store].format(jobs)
    return f"insert into {table} ({given}) select {copied} from {table} as one, {numbers} as n"
