"""Entries on threads and in OS processes, in real time."""

import logging
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import EntriesError, Loaded, Settings, load_yaml, process, sleep
from tests.entries.folder import index, write

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "worker_pool"
KINDS = ["inline", "threads", "os"]

SOURCE = """
import os
import signal

import perdure
from perdure import process, sleep

async def double(number):
    return 2 * number

async def by_id(number):
    process.spawn_monitored("app:double", number)
    event = await process.events().receive()
    return event.result.value, os.getpid()

async def get_ready():
    perdure.ready()
    await sleep("1h")

async def kill_the_worker(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    await sleep("1h")
"""


@pytest.fixture(autouse=True)
def no_crash_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def run(main: Callable[..., Coroutine[Any, Any, Any]], *args: object) -> Any:
    return perdure.run(main, *args, settings=Settings(stop_timeout="20s"))


def loaded(folder: Path, entries: str) -> Loaded:
    return load_yaml(write(folder, {"_index.yaml": index(entries), "w.py": SOURCE}))


@pytest.mark.parametrize("kind", KINDS)
def test_the_workers_of_the_example_answer(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "worker_pool")
    top = folder / "_index.yaml"
    top.write_text(top.read_text().replace("workers: 4", f"workers: 2\n      kind: {kind}"))

    async def main() -> object:
        async with load_yaml(folder) as entries:
            assert entries.hosts["app:processes"].running
            worker = process.spawn("app.workers:task_worker", 7, host="app:processes")
            process.send(worker, "work", "a letter")
            return (await process.inbox().receive()).payload

    assert run(main) == "completed: a letter"
    said = capfd.readouterr().out
    assert "Worker 7 processing: a letter" in said
    assert "Worker 7 cancelled" in said


ENTRIES = """
    - {{name: h, kind: process.host, host: {{kind: {kind}, workers: 1}}}}
    - {{name: double, kind: process.py, source: file://w.py, method: double}}
    - {{name: by_id, kind: process.py, source: file://w.py, method: by_id, host: h}}
    """


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_on_a_host_spawns_by_id_too(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with loaded(tmp_path, ENTRIES.format(kind=kind)):
            value, _ = await process.run_process("app:by_id", 21)
            assert value == 42

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_on_a_host_says_that_it_is_ready(kind: str, tmp_path: Path) -> None:
    entries = f"""
        - {{name: h, kind: process.host, host: {{kind: {kind}, workers: 1}}}}
        - name: s
          kind: process.py
          source: file://w.py
          method: get_ready
          lifecycle: {{auto_start: true, ready: true, restart: {{max_attempts: 1}}}}
        """

    async def main() -> str:
        async with loaded(tmp_path, entries) as entered:
            return entered.services["app:s"].state

    assert run(main) == "running"


def test_a_service_whose_os_process_was_killed_comes_back(tmp_path: Path) -> None:
    entries = f"""
        - {{name: h, kind: process.host, host: {{kind: os, workers: 1}}}}
        - name: s
          kind: process.py
          source: file://w.py
          method: kill_the_worker
          input: [{tmp_path / "killed"}]
          lifecycle: {{auto_start: true, restart: {{initial_delay: 10ms}}}}
        """

    async def main() -> None:
        async with loaded(tmp_path, entries) as entered:
            service = entered.services["app:s"]
            while not (service.restarts and service.state == "running"):
                await sleep("10ms")

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_for_which_a_host_has_no_room_is_told(kind: str, tmp_path: Path) -> None:
    entries = f"""
        - {{name: h, kind: process.host, host: {{kind: {kind}, workers: 1, max_processes: 1}}}}
        - {{name: w, kind: process.py, source: file://w.py, method: get_ready}}
        - {{name: a, kind: process.service, process: w, lifecycle: {{auto_start: true}}}}
        - {{name: b, kind: process.service, process: w, lifecycle: {{auto_start: true}}}}
        """

    async def main() -> None:
        with pytest.raises(EntriesError, match=r"_index.yaml:7: entry app:b: it did not start"):
            await loaded(tmp_path, entries).__aenter__()
        assert [info.pid for info in process.processes()] == [process.self_pid()]

    run(main)
