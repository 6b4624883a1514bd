"""Healthy jobs break no rule of the doctor, at no moment, whatever they use."""

import ast
import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.base.encryption import Encryption, generate_key
from perdure.base.retry import pause
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import ApprovalState
from perdure.jobs.effect import EffectState
from perdure.jobs.model import EntryKind
from perdure.jobs.state import JobState, StepState
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.support import healthy_jobs
from tests.support.healthy_jobs import STORIES, Corpus
from tests.support.store import sql

ROOT = Path(__file__).parent.parent.parent


class Watch:
    """Asks a store again and again whether it breaks a rule."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def look(self, *, signs: bool = True) -> None:
        found = await self._store.violations() + (await self._store.signs() if signs else [])
        assert found == []

    async def forever(self, *, signs: bool = True) -> None:
        while True:
            await self.look(signs=signs)
            await pause(0.03)


@asynccontextmanager
async def watched(url: str, keys: Encryption | None = None) -> AsyncGenerator[Watch]:
    store = open_store(url, encryption=keys)
    await store.open()
    watch = Watch(store)
    try:
        yield watch
    finally:
        await store.close()


async def beside(told: Coroutine[Any, Any, None], watching: Coroutine[Any, Any, None]) -> None:
    """Return when a story is told, unless the watch finds something first."""
    tasks = [asyncio.ensure_future(told), asyncio.ensure_future(watching)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = [each.exception() for each in tasks if each.done()]
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
    assert failed == [None]


@pytest.mark.parametrize("name", STORIES)
def test_no_moment_of_a_healthy_job_breaks_a_rule(url: str, tmp_path: Path, name: str) -> None:
    async def main() -> None:
        corpus = Corpus(url, tmp_path)
        async with corpus.app as app, watched(url) as watch, app.running():
            await beside(STORIES[name](corpus), watch.forever())
            await watch.look()

    perdure.run(main)


def test_no_moment_of_healthy_jobs_with_encrypted_payloads_breaks_a_rule(
    url: str, tmp_path: Path
) -> None:
    keys = Encryption([generate_key()])

    async def main() -> None:
        corpus = Corpus(url, tmp_path, encryption=keys)
        async with corpus.app as app, watched(url, keys) as watch, app.running():
            for told in STORIES.values():
                await beside(told(corpus), watch.forever())
            await watch.look()

    perdure.run(main)


# How many entries of journals are written before the worker is killed, again and again.
KILLS = (4, 20)


@pytest.mark.timeout(180)  # each worker has to start
@pytest.mark.parametrize("name", STORIES)
def test_no_moment_of_a_healthy_job_breaks_a_rule_though_its_worker_is_killed(
    url: str, tmp_path: Path, name: str
) -> None:
    async def main() -> None:
        corpus = Corpus(url, tmp_path)
        async with corpus.app as app, watched(url) as watch:
            await app.store()
            killing = asyncio.ensure_future(kill_workers(url, tmp_path))
            try:
                await beside(STORIES[name](corpus), watch.forever(signs=False))
            finally:
                killing.cancel()
                await asyncio.wait([killing])
            await watch.look(signs=False)

    perdure.run(main)


async def kill_workers(url: str, folder: Path) -> None:
    """Start a worker, and another one whenever it is killed."""
    command = (sys.executable, "-m", "tests.support.healthy_jobs", url, str(folder))
    for entries in (*KILLS, None):
        with (folder / "log").open("ab") as log:
            # Started at once: a cancel in the middle of that would leave the process behind.
            worker = subprocess.Popen(command, stderr=log, cwd=ROOT)  # noqa: ASYNC220
        try:
            while entries is None or _written(url) < entries:
                await pause(0.02)
        finally:
            worker.kill()
            worker.wait()


def _written(url: str) -> int:
    return sql(url, "SELECT count(*) FROM journal")[0][0]


def test_the_stories_use_whatever_a_job_a_step_and_a_person_can() -> None:
    """A new primitive comes into a story, so that the doctor is seen to know it."""
    tree = ast.parse(Path(healthy_jobs.__file__).read_text())
    used: dict[str, set[str]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            kinds = {each.arg: _named(each.annotation) for each in function.args.args}
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    used.setdefault(kinds.get(node.value.id, ""), set()).add(node.attr)
    for kind in (JobContext, StepContext):
        given = {name for name in vars(kind) if not name.startswith("_")}
        for base in kind.__mro__[1:-1]:
            given |= {name for name in vars(base) if not name.startswith("_")}
        assert given - used[kind.__name__] - {"of"} <= LOOKS, kind
    commands = {name for name in vars(Handle) if not name.startswith("_")}
    assert commands - used[""] <= LOOKS


# What only looks at a job, and changes nothing.
LOOKS = {
    *("attempt", "step_id", "budget", "effects", "events", "job", "journal", "output", "stream"),
    *("topics", "tenant", "user", "job_id"),
}


def _named(annotation: ast.expr | None) -> str:
    return annotation.id if isinstance(annotation, ast.Name) else ""


def test_the_stories_show_every_state_to_the_doctor(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        corpus = Corpus(url, tmp_path)
        async with corpus.app as app:
            await app.store()
            note_states(url)
            async with app.running():
                for told in STORIES.values():
                    await told(corpus)

    perdure.run(main)
    seen = set(sql(url, "SELECT DISTINCT place, word FROM seen"))
    assert {(place, each.value) for place, kind in STATES.items() for each in kind} - seen == set()


STATES: dict[str, type[StrEnum]] = {
    "job.state": JobState,
    "journal.state": StepState,
    "journal.kind": EntryKind,
    "effect.state": EffectState,
    "approval.state": ApprovalState,
}


def note_states(url: str) -> None:
    """Let the database note every state that a row ever has."""
    sql(url, "CREATE TABLE seen (place text, word text)")
    for place in STATES:
        table, _, column = place.partition(".")
        note = f"INSERT INTO seen VALUES ('{place}', NEW.{column})"
        if url.startswith("sqlite"):
            for event in ("INSERT", "UPDATE"):
                name = f"seen_{table}_{column}_{event}"
                sql(url, f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {note}; END")
        else:
            name = f"seen_{table}_{column}"
            body = f"BEGIN {note}; RETURN NULL; END"
            sql(url, f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
            when = f"AFTER INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
            sql(url, f"CREATE TRIGGER {name} {when}")
