"""Entries on threads and in OS processes, in real time."""

import logging
import shutil
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Settings, process, telemetry
from perdure.entries import Loaded, Service, load_yaml
from perdure.errors import EntriesError, Killed
from perdure.process import sleep
from tests.support.entries import index, write

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "worker_pool"
KINDS = ["inline", "threads", "os"]

SOURCE = """
import os
import signal

import perdure.entries
from perdure import process
from perdure.process import sleep

async def double(number):
    return 2 * number

async def by_id(number):
    process.spawn_monitored("app:double", number)
    event = await process.events().receive()
    return event.result.value, os.getpid()

async def get_ready():
    perdure.entries.ready()
    await sleep("1h")

async def kill_the_worker(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    await sleep("1h")

async def never_wait(path):
    open(path, "w").close()
    while True:
        pass
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


def test_a_host_that_gave_up_says_why_and_is_started_again(tmp_path: Path) -> None:
    entries = f"""
        - {{name: h, kind: process.host, host: {{kind: os, workers: 1, max_restarts: 0}}}}
        - name: s
          kind: process.py
          source: file://w.py
          method: kill_the_worker
          input: [{tmp_path / "killed"}]
          lifecycle: {{auto_start: true, restart: {{initial_delay: 10ms}}}}
        """
    told: list[tuple[str, str]] = []

    def note(_event: object, _numbers: object, facts: Mapping[str, Any], _: object) -> None:
        if facts["id"] == "app:h":
            told.append((facts["state"], str(facts.get("reason", ""))))

    async def main() -> None:
        async with loaded(tmp_path, entries) as entered:
            while [state for state, _ in told].count("running") < 2:
                await sleep("10ms")
            assert entered.hosts["app:h"].running

    telemetry.attach("note", ("perdure", "entry", "state"), note)
    try:
        run(main)
    finally:
        telemetry.detach("note")

    assert [state for state, _ in told] == [
        "starting",
        "running",
        "failed",
        "starting",
        "running",
        "stopping",
        "stopped",
    ]
    assert "SIGKILL" in told[2][1]


def test_a_service_that_never_waits_is_killed_when_its_time_to_stop_is_over(tmp_path: Path) -> None:
    entries = f"""
        - name: h
          kind: process.host
          host: {{kind: os, workers: 1, dedicated: true, kill_after: 50ms}}
        - name: s
          kind: process.py
          source: file://w.py
          method: never_wait
          input: [{tmp_path / "begun"}]
          lifecycle: {{auto_start: true, stop_timeout: 50ms}}
        """

    async def main() -> Service:
        async with loaded(tmp_path, entries) as entered:
            while not (tmp_path / "begun").exists():
                await sleep("10ms")
            return entered.services["app:s"]

    service = run(main)
    assert (service.state, type(service.error)) == ("stopped", Killed)


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
