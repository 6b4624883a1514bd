"""A long agent: it is killed after many turns, and another worker resumes it.

The worker that resumes it is timed from where its program is imported and begins to look for work:
opening the store, finding that the other worker is dead, reading the journal and replaying it all
count. What the store takes is measured when that has happened.
"""

from contextlib import closing

from bench.durable.contenders import module
from bench.durable.contenders.agent import note_kill
from bench.durable.marks import MarkReader, reading
from bench.durable.place import SQLITE, Place
from bench.durable.plan import Figures, Size
from bench.durable.worker import Worker, working
from bench.durable.workload import NANOSECONDS
from bench.runner import TrialFailed

_MB = 1024 * 1024


def agent(contender: str, place: Place, size: Size) -> Figures:
    """Return what the store takes, the most memory of both workers, and the time to resume."""
    name, turns = f"agent.{contender}", size.steps
    module(name).prepare(place)
    with reading(place.marks) as marks:
        with working(name, place, marks, 1) as first, module(name).client(place) as client:
            client.submit(0, turns)
            _wait_for(first, marks, turns, 1, size.limit)
            peak = first.usage().peak_mb
        note_kill(place.folder)
        with working(name, place, marks, 1) as second:
            again = _wait_for(second, marks, turns, 2, size.limit)
            peak = max(peak, second.usage().peak_mb)
            stored = _stored_bytes(place)
    return {
        "database_mb": stored / _MB,
        "peak_mb": peak,
        "resume_s": (again - marks.ready_at) / NANOSECONDS,
        "restart_s": (again - second.started_at) / NANOSECONDS,
        "turns": float(turns),
    }


def _wait_for(worker: Worker, marks: MarkReader, turn: int, times: int, limit: float) -> int:
    """Wait until a turn has begun so many times; return when it did."""

    def begun() -> list[int]:
        return [one.at for one in marks.steps if one.step == turn]

    if not marks.wait(lambda: len(begun()) >= times, limit, worker.check):
        done = max((one.step for one in marks.steps), default=0)
        raise TrialFailed(f"was at turn {done:,} of {turn:,} after {limit:g} s")
    return begun()[times - 1]


def _stored_bytes(place: Place) -> int:
    """Return what the store takes: the file with its log, or what was added to a database."""
    if place.store == SQLITE:
        return sum(file.stat().st_size for file in place.folder.glob(f"{place.file.name}*"))
    import psycopg

    # Without what every database has: the catalogue of the server.
    query = "SELECT pg_database_size(%s) - pg_database_size('template1')"
    with closing(psycopg.connect(place.server, autocommit=True)) as pg:
        found = pg.execute(query, (place.database,)).fetchone()
        assert found
        return int(found[0])
