"""The HTTP API at 100,000 jobs, beside what DBOS's own library does on the same database.

``list_p50_ms``   the newest 50 jobs, as rows with state, current step and cost
``show_p50_ms``   one job in full
``submit_rps``    jobs submitted a second, by 8 at once

Ours go over HTTP: a real uvicorn in a process of its own, a token, and a client that keeps its
connection. DBOS has no HTTP API that can be run here (its console is a service), so its figures,
``dbos_…``, are calls of its client library in the process that measures, without any HTTP. Its
calls are synchronous, so 8 threads submit. Temporal needs a server that no package index has; it is
not measured.

``python -m bench.api URL`` is the server; it ends when its stdin does.
"""

import asyncio
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from bench.durable import postgres
from bench.durable.place import POSTGRES, SQLITE, STORES, Place, environment, fresh, scratch
from bench.outcome import Options, Outcome, machine
from bench.runner import ROOT, show
from bench.table import render
from perdure import App
from perdure.web.access.gate import Access
from perdure.web.access.principal import Principal, Role
from perdure.web.access.rates import Rate
from perdure.web.access.settings import AccessSettings
from perdure.web.access.tokens import NewToken, create_token
from perdure.web.server import ServerSettings, serve

BATCH = 1000  # jobs of one submission
AT_ONCE = 8
FIGURES = ("list_p50_ms", "show_p50_ms", "submit_rps")
_NO_LIMIT = Rate(1e9, 10**9)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    jobs: int
    reads: int
    submits: int


FULL = Size(jobs=100_000, reads=200, submits=2000)
QUICK = Size(jobs=3_000, reads=30, submits=200)


def run(options: Options) -> Outcome:
    """Measure the API on both databases."""
    return measure(QUICK if options.quick else FULL)


def measure(size: Size) -> Outcome:
    """Measure at one size."""
    figures: dict[str, dict[str, float]] = {}
    with scratch() as folder, postgres.running(folder) as server:
        for store in STORES:
            given = server if store == POSTGRES else ""
            with fresh(store, folder, given) as place:
                show(f"{store}: Perdure")
                figures[store] = asyncio.run(_ours(place, size))
            with fresh(store, folder, given) as place:
                show(f"{store}: DBOS")
                figures[store] |= _dbos(place, size)
    show("")
    return Outcome(_text(size, figures), figures, only_figures=True)


def _text(size: Size, figures: dict[str, dict[str, float]]) -> str:
    rows = [
        [store, name, f"{found[name]:,.2f}", _cell(found.get(f"dbos_{name}"))]
        for store, found in figures.items()
        for name in FIGURES
    ]
    table = render(["store", "figure", "Perdure, by HTTP", "DBOS, by its library"], rows)
    return f"{size.jobs:,} jobs; {machine()}\n\n{table}\n\nTemporal: its server cannot be run here."


def _cell(value: float | None) -> str:
    return "not installed" if value is None else f"{value:,.2f}"


# Perdure


def _app(url: str) -> App:
    app = App(url)

    @app.job
    async def job(number: int) -> int:
        return number

    del job
    return app


async def _ours(place: Place, size: Size) -> dict[str, float]:
    app = _app(place.url)
    async with app:
        ids = await _fill(app, size.jobs)
        root = Principal(id="bench", tenant=None, roles=frozenset({Role.ADMIN}))
        asked = NewToken(name="bench", roles=(Role.ADMIN,))
        made = await create_token(await app.store(), asked, None, root)
    headers = {"authorization": f"Bearer {made.secret}"}
    with _serving(place.url) as address:
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
            return await _by_http(client, ids, size)


async def _fill(app: App, number: int) -> list[str]:
    ids: list[str] = []
    for first in range(0, number, BATCH):
        calls = [app.jobs["job"](each) for each in range(first, min(first + BATCH, number))]
        ids += [handle.id for handle in await app.submit_many(calls, labels={"team": "data"})]
    return ids


async def _by_http(client: httpx.AsyncClient, ids: list[str], size: Size) -> dict[str, float]:
    chosen = random.Random(7)

    async def listed() -> None:
        assert len((await client.get("/api/v1/jobs")).json()["items"]) == 50

    async def shown() -> None:
        found = await client.get(f"/api/v1/jobs/{chosen.choice(ids)}")
        assert found.status_code == 200

    async def submit(number: int) -> None:
        body = {"name": "job", "arguments": [number]}
        answer = await client.post("/api/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text

    async def submit_some(first: int) -> None:
        for number in range(first, size.submits, AT_ONCE):
            await submit(number)

    lists = await _p50(listed, size.reads)
    shows = await _p50(shown, size.reads)
    began = time.perf_counter()
    await asyncio.gather(*map(submit_some, range(AT_ONCE)))
    rate = size.submits / (time.perf_counter() - began)
    return dict(zip(FIGURES, (lists, shows, rate), strict=True))


async def _p50(read: Callable[[], Awaitable[None]], times: int) -> float:
    """Return the median of so many reads in milliseconds, after a few that warm up."""
    for _ in range(5):
        await read()
    found: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await read()
        found.append(time.perf_counter() - began)
    return 1000 * statistics.median(found)


@contextmanager
def _serving(url: str) -> Generator[str]:
    command = [sys.executable, "-m", "bench.api", url]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


# DBOS


def _dbos(place: Place, size: Size) -> dict[str, float]:
    try:
        from dbos import DBOSClient

        from bench.durable.contenders import dbos
    except ImportError:
        return {}
    dbos.prepare(place)
    client = DBOSClient(system_database_url=place.url)
    try:
        options: Any = {"queue_name": "bench", "workflow_name": "job", "app_version": "1"}
        client.enqueue(options, 0, 1)
        _copy(place, size.jobs)
        found = _by_library(client, options, size)
    finally:
        client.destroy()
    return {f"dbos_{name}": value for name, value in zip(FIGURES, found, strict=True)}


def _by_library(client: Any, options: Any, size: Size) -> tuple[float, float, float]:
    def listed() -> None:
        assert len(client.list_workflows(limit=50, sort_desc=True)) == 50

    ids = [each.workflow_id for each in client.list_workflows(limit=1000, sort_desc=True)]
    chosen = random.Random(7)

    def shown() -> None:
        client.retrieve_workflow(chosen.choice(ids)).get_status()

    def submit(number: int) -> None:
        client.enqueue(options, number, 1)

    lists, shows = (asyncio.run(_p50(_awaitable(each), size.reads)) for each in (listed, shown))
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(submit, range(size.submits)))
    return lists, shows, size.submits / (time.perf_counter() - began)


def _awaitable(read: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        read()

    return call


def _copy(place: Place, number: int) -> None:
    """Fill its table with copies of its one row: enqueueing them would take minutes."""
    if place.store == SQLITE:
        with sqlite3.connect(place.file) as file:
            names = [row[1] for row in file.execute("pragma table_info(workflow_status)")]
            file.execute(_insert("workflow_status", names, "lower(hex(randomblob(16)))", number))
        file.close()
        return
    import psycopg

    with psycopg.connect(place.url, autocommit=True) as connection:
        found = connection.execute(
            "select column_name from information_schema.columns where table_schema = 'dbos' and "
            "table_name = 'workflow_status' order by ordinal_position"
        ).fetchall()
        names = [row[0] for row in found]
        sql = _insert("dbos.workflow_status", names, "gen_random_uuid()::text", number)
        connection.execute(sql.encode())
        connection.execute("analyze")


def _insert(table: str, names: list[str], id: str, number: int) -> str:
    values = {"workflow_uuid": id, "created_at": "created_at - n"}
    chosen = ", ".join(values.get(name, f'"{name}"') for name in names)
    listed = ", ".join(f'"{name}"' for name in names)
    numbers = (
        f"with recursive numbers(n) as (select 1 union all select n + 1 from numbers "
        f"where n < {number - 1})"
    )
    return f"{numbers} insert into {table} ({listed}) select {chosen} from {table}, numbers"


# The server


def main() -> None:
    """Serve the API until told to stop."""
    settings = AccessSettings(per_address=_NO_LIMIT, per_credential=_NO_LIMIT, per_tenant=_NO_LIMIT)
    asgi = _app(sys.argv[1]).asgi(access=Access(settings=settings))
    asyncio.run(serve(asgi, ServerSettings(port=0), lambda url: print(url, flush=True)))


if __name__ == "__main__":
    main()
