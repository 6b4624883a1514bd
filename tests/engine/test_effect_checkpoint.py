"""Effects on both sides of a checkpoint: with and without a crash between them."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

import perdure
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.jobs.state import JobState
from tests.support.checkpoint_crash import build, log


def ended(url: str, folder: Path, story: str, *, crash: bool) -> tuple[JobState, str]:
    """Tell how a job ends, and with which error."""

    async def main() -> tuple[JobState, str]:
        app = build(url, folder)
        try:
            return await _ended(app, await app.submit(app.find_job(story)()))
        finally:
            await app.close()

    async def _ended(app: App, handle: Handle[None]) -> tuple[JobState, str]:
        if crash:
            await _killed(url, folder)
        else:
            (folder / "died").touch()
        async with app.running():
            return await handle.wait("20s"), str(await handle.failure())

    return perdure.run(main)


async def _killed(url: str, folder: Path) -> None:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.checkpoint_crash", url, str(folder))
    )
    async with asyncio.timeout(60):
        assert await worker.wait() == -signal.SIGKILL


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("story", "done"),
    [
        ("goes_on", ["first"]),
        ("goes_on_later", ["first"]),
        ("behind_items", ["first", "a", "b"]),
    ],
)
def test_effects_that_a_checkpoint_makes_alike_are_refused(
    url: str, tmp_path: Path, story: str, done: list[str], crash: bool
) -> None:
    state, error = ended(url, tmp_path, story, crash=crash)
    assert log(tmp_path) == done
    assert state is JobState.FAILED
    assert "target of its own" in error


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("story", "done"),
    [("has_keys", ["first", "second"]), ("around_items", ["first", "a", "b", "c", "last"])],
)
def test_effects_that_are_told_apart_are_all_done_once(
    url: str, tmp_path: Path, story: str, done: list[str], crash: bool
) -> None:
    state, _ = ended(url, tmp_path, story, crash=crash)
    assert log(tmp_path) == done
    assert state is JobState.COMPLETED


def test_a_step_that_does_not_go_on_from_its_checkpoint_does_nothing_twice(
    url: str, tmp_path: Path
) -> None:
    state, error = ended(url, tmp_path, "begins_anew", crash=True)
    assert log(tmp_path) == ["first"]
    assert state is JobState.FAILED
    assert "target of its own" in error
