"""A parent that fails undoes its children that have completed, each in its place."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState
from tests.support.engine import until
from tests.support.saga_family import build, log

DONE = ["a1", "b1", "c", "b2", "a2"]
UNDONE = ["-a2", "-b2", "-c", "-b1", "-a1"]

Case = Callable[[App, Path], Awaitable[None]]


def family(url: str, folder: Path, case: Case, *, pivot: bool = False) -> None:
    """Run a case with the app of the family."""

    async def main() -> None:
        app = build(url, folder, pivot=pivot)
        try:
            await case(app, folder)
        finally:
            await app.close()

    perdure.run(main)


async def submitted(app: App, name: str = "parent") -> Handle[Any]:
    return await app.submit(app.find_job(name)())


async def states(app: App) -> dict[str, str]:
    return {job.name: str(job.state) for job in await app.find_jobs(JobQuery())}


async def of_job(app: App, name: str) -> Handle[Any]:
    (job,) = [job for job in await app.find_jobs(JobQuery()) if job.name == name]
    return await app.handle(job.id)


def test_a_completed_child_is_undone_in_its_place(url: str, tmp_path: Path) -> None:
    async def case(app: App, folder: Path) -> None:
        handle = await submitted(app)
        async with app.running():
            assert await handle.wait("20s") is JobState.COMPENSATED
        assert log(folder) == DONE + UNDONE
        assert set((await states(app)).values()) == {"COMPENSATED"}
        entries = {entry.id: str(entry.state) for entry in await handle.journal()}
        assert entries["child:child#1"] == "COMPENSATED"
        assert entries["undo:child:child#1"] == "SUCCEEDED"
        assert "and now the whole thing" in str(await handle.failure())

    family(url, tmp_path, case)


def test_a_child_with_nothing_to_undo_stays_completed(url: str, tmp_path: Path) -> None:
    async def case(app: App, _: Path) -> None:
        handle = await submitted(app, "guardian")
        async with app.running():
            assert await handle.wait("20s") is JobState.FAILED
        assert (await states(app))["harmless"] == "COMPLETED"

    family(url, tmp_path, case)


def test_what_a_child_cannot_undo_stops_its_parent(url: str, tmp_path: Path) -> None:
    async def case(app: App, folder: Path) -> None:
        (folder / "-b1").touch()
        handle = await submitted(app)
        async with app.running():
            while (await states(app)).get("child") != "NEEDS_ATTENTION":
                await perdure.process.sleep("5ms")
            assert log(folder) == DONE + UNDONE[:3]
            (folder / "-b1").unlink()
            await (await of_job(app, "child")).retry()
            assert await handle.wait("20s") is JobState.COMPENSATED
        assert log(folder) == DONE + UNDONE

    family(url, tmp_path, case)


def test_what_is_left_undone_in_a_child_is_a_failure_of_its_parent_to_undo(
    url: str, tmp_path: Path
) -> None:
    async def case(app: App, folder: Path) -> None:
        (folder / "-b1").touch()
        handle = await submitted(app)
        async with app.running():
            while (await states(app)).get("child") != "NEEDS_ATTENTION":
                await perdure.process.sleep("5ms")
            child = await of_job(app, "child")
            await child.abandon_undo("undo:act#1", "impossible", by="kim")
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            entries = {entry.id: str(entry.state) for entry in await handle.journal()}
            assert entries["child:child#1"] == "COMPENSATION_FAILED"
            assert "-a1" not in log(folder)
            await handle.skip("undo:child:child#1", "by telephone", by="kim")
            assert await handle.wait("20s") is JobState.COMPENSATED
        assert log(folder)[-1] == "-a1"

    family(url, tmp_path, case)


def test_after_the_pivot_of_a_child_its_parent_can_only_go_on(url: str, tmp_path: Path) -> None:
    async def case(app: App, folder: Path) -> None:
        handle = await submitted(app)
        async with app.running():
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
        assert log(folder) == DONE
        assert "look#1 of child:child#1 is passed" in str(await handle.failure())
        assert (await states(app))["child"] == "COMPLETED"

    family(url, tmp_path, case, pivot=True)


@pytest.mark.parametrize(
    "point", [f"{when}_undo:{number}" for when in ("before", "after") for number in (1, 2, 3, 6)]
)
def test_a_killed_worker_repeats_and_skips_nothing(url: str, tmp_path: Path, point: str) -> None:
    async def case(app: App, folder: Path) -> None:
        handle = await submitted(app)
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.saga_family", url, str(folder)),
            env=os.environ | {"PERDURE_CRASH_AT": point},
        )
        async with asyncio.timeout(60):
            assert await worker.wait() == -signal.SIGKILL
        async with app.running():
            assert await handle.wait("30s") is JobState.COMPENSATED
        assert log(folder) == DONE + UNDONE

    family(url, tmp_path, case)
