"""Entries that run: order, ids, hosts, sources."""

import logging
from pathlib import Path
from typing import Any, Self

import pytest

from perdure import process, telemetry
from perdure.entries import Loaded, load_entries, load_yaml
from perdure.errors import EntriesError, ProcError, SpawnError, StartError
from perdure.otp import Pool, tree
from perdure.process import sleep
from perdure.testing import simulated
from tests.support.entries import index, write

SOURCE = """
from perdure import process

async def main(*args: object) -> object:
    return args

async def serve(*args: object) -> str:
    async for event in process.events():
        return "cancelled"

def plain() -> None: ...

async def one(worker_id: int) -> None: ...
"""


@pytest.fixture(autouse=True)
def no_crash_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def loaded(folder: Path, entries: str, namespace: str = "app") -> Loaded:
    write(folder, {"_index.yaml": index(entries, namespace), "w.py": SOURCE})
    return load_yaml(folder)


class Diary:
    """Notes the states of all entries."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        telemetry.attach("diary", ("perdure", "entry", "state"), self._note)
        return self

    def __exit__(self, *_: object) -> None:
        telemetry.detach("diary")

    def _note(self, _e: object, _m: object, facts: Any, _c: object) -> None:
        if facts["state"] in ("running", "stopped"):
            name = facts["id"].removeprefix("app:")
            self.lines.append(name if facts["state"] == "running" else f"-{name}")


CHAIN = """
    - {name: c, kind: process.service, process: w, lifecycle: {auto_start: true, depends_on: [b]}}
    - {name: b, kind: process.service, process: w, lifecycle: {requires: [a]}}
    - {name: a, kind: process.service, process: w}
    - {name: other, kind: process.service, process: w}
    - {name: w, kind: process.py, source: file://w.py, method: serve}
    - {name: h, kind: process.host, host: {kind: inline}}
    - {name: last, kind: process.service, process: w, lifecycle: {auto_start: true}}
    """


@simulated
async def test_what_others_need_starts_first_and_stops_last(tmp_path: Path) -> None:
    with Diary() as diary:
        async with loaded(tmp_path, CHAIN):
            assert diary.lines == ["h", "a", "b", "c", "last"]
            diary.lines.clear()

    assert diary.lines == ["-last", "-c", "-b", "-a", "-h"]


@simulated
async def test_when_something_does_not_start_what_was_started_is_stopped(tmp_path: Path) -> None:
    entries = """
        - {name: w, kind: process.py, source: file://w.py, method: serve}
        - {name: h, kind: process.host, host: {kind: inline}}
        - {name: a, kind: process.service, process: w, lifecycle: {auto_start: true}}
        - {name: b, kind: process.service, process: w, lifecycle: {auto_start: true}}
        """
    with Diary() as diary:
        first = loaded(tmp_path, entries)
        # Between load and enter the function of b is made one that does not start.
        first.services["app:b"].plan = first.services["app:b"].plan._replace(process="app:gone")
        with pytest.raises(
            EntriesError, match=r"_index\.yaml:7: entry app:b: it did not start: un"
        ):
            await first.__aenter__()

    assert diary.lines == ["h", "a", "-a", "-h"]
    with pytest.raises(SpawnError):
        process.spawn("app:w")


@simulated
async def test_a_process_is_spawned_by_its_id(tmp_path: Path) -> None:
    async with loaded(tmp_path, "- {name: w, kind: process.py, source: file://w.py}"):
        process.spawn_monitored("app:w", 1, "two")
        event = await process.events().receive()
        assert isinstance(event, process.Exit)
        assert event.result.value == (1, "two")
        assert await process.run_process("app:w", 3) == (3,)


@simulated
async def test_an_unknown_id_names_those_that_are_near(tmp_path: Path) -> None:
    async with loaded(tmp_path, "- {name: worker, kind: process.py, source: file://w.py}"):
        with pytest.raises(
            SpawnError, match="unknown entry 'app:workr': did you mean 'app:worker'"
        ):
            process.spawn("app:workr")

    with pytest.raises(SpawnError, match="unknown entry 'app:worker': no entry of that id"):
        process.spawn("app:worker")


@simulated
async def test_an_unknown_host_is_refused(tmp_path: Path) -> None:
    entries = """
        - {name: w, kind: process.py, source: file://w.py}
        - {name: h, kind: process.host, host: {kind: inline}}
        """
    async with loaded(tmp_path, entries):
        with pytest.raises(SpawnError, match="app:hh"):
            process.spawn("app:w", host="app:hh")
        process.spawn("app:w", host="app:h")

    with pytest.raises(SpawnError, match="app:h"):
        process.spawn(process_of_nobody, host="app:h")


async def process_of_nobody() -> None: ...


@simulated
async def test_a_spawn_that_says_nothing_gets_the_defaults(tmp_path: Path) -> None:
    entries = """
        - {name: h, kind: process.host, host: {kind: inline}, lifecycle: {auto_start: false}}
        - {name: w, kind: process.py, source: file://w.py, defaults: {host: h, input: [7]}}
        - {name: v, kind: process.py, source: file://w.py, input: [8]}
        """
    async with loaded(tmp_path, entries) as entered:
        assert await process.run_process("app:v") == (8,)
        assert await process.run_process("app:v", 9) == (9,)
        with pytest.raises(SpawnError, match="app:h"):  # the host does not run yet
            process.spawn("app:w")
        await entered.start("app:h")
        assert await process.run_process("app:w") == (7,)


@simulated
async def test_a_host_runs_unless_its_entry_says_no(tmp_path: Path) -> None:
    entries = """
        - {name: a, kind: process.host, host: {kind: inline}}
        - {name: b, kind: process.host, host: {kind: inline}, lifecycle: {auto_start: true}}
        - {name: c, kind: process.host, host: {kind: inline}, lifecycle: {auto_start: false}}
        """
    async with loaded(tmp_path, entries) as entered:
        running = {id: host.running for id, host in entered.hosts.items()}
        assert running == {"app:a": True, "app:b": True, "app:c": False}
    assert not any(host.running for host in entered.hosts.values())


@simulated
async def test_a_host_that_a_service_needs_is_started(tmp_path: Path) -> None:
    entries = """
        - {name: h, kind: process.host, host: {kind: inline}, lifecycle: {auto_start: false}}
        - {name: g, kind: process.host, host: {kind: inline}, lifecycle: {auto_start: false}}
        - {name: w, kind: process.py, source: file://w.py, method: serve, host: g,
           lifecycle: {auto_start: true}}
        """
    async with loaded(tmp_path, entries) as entered:
        assert [host.running for host in entered.hosts.values()] == [False, True]


@simulated
async def test_a_service_gets_its_input_and_else_that_of_its_process(tmp_path: Path) -> None:
    given: list[object] = []

    async def note(*args: object) -> None:
        given.append(args)

    entries: list[dict[str, Any]] = [
        {"name": "w", "kind": "process.py", "source": note, "input": [1, {"a": 2}]},
        {"name": "s", "kind": "process.service", "process": "w"},
        {"name": "t", "kind": "process.service", "process": "app:w", "input": ["x"]},
        {"name": "u", "kind": "process.service", "process": "w", "input": []},
    ]
    for entry in entries[1:]:
        entry["lifecycle"] = {"auto_start": True}

    async with load_entries({"version": 1.0, "namespace": "app", "entries": entries}) as entered:
        await entered.wait()

    assert given == [(1, {"a": 2}), ("x",), ()]


@simulated
async def test_a_pool_takes_ids_of_worker_and_host(tmp_path: Path) -> None:
    entries = """
        - {name: h, kind: process.host, host: {kind: inline}}
        - {name: w, kind: process.py, source: file://w.py, method: serve}
        """
    async with (
        loaded(tmp_path, entries),
        await Pool.start_link("app:w", size=3, host="app:h") as pool,
    ):
        assert [worker.id for worker in pool.workers()] == [1, 2, 3]


@simulated
async def test_what_is_not_marked_can_be_started_and_stopped_by_hand(tmp_path: Path) -> None:
    with Diary() as diary:
        async with loaded(tmp_path, CHAIN) as entered:
            diary.lines.clear()
            await entered.start("app:other")
            await entered.start("app:other")  # it runs already
            await entered.stop("app:other")
            await entered.start("app:other")
            assert diary.lines == ["other", "-other", "other"]
            with pytest.raises(LookupError, match="there is no host or service 'app:nobody'"):
                await entered.start("app:nobody")

    with pytest.raises(ProcError, match="do not run"):
        await entered.stop("app:other")


@simulated
async def test_a_start_by_hand_that_fails_is_told(tmp_path: Path) -> None:
    entries = """
        - {name: w, kind: process.py, source: file://w.py, method: serve}
        - {name: s, kind: process.service, process: w}
        """
    async with loaded(tmp_path, entries) as entered:
        plan = entered.services["app:s"].plan
        entered.services["app:s"].plan = plan._replace(process="app:gone")
        with pytest.raises(StartError, match="app:s"):
            await entered.start("app:s")


@simulated
async def test_entries_can_be_run_again_but_not_twice_at_once(tmp_path: Path) -> None:
    entries = loaded(tmp_path, CHAIN)

    async with entries:
        with pytest.raises(ProcError, match="already running"):
            await entries.__aenter__()
        with pytest.raises(ProcError, match="an entry 'app:w' is loaded already"):
            await load_yaml(tmp_path).__aenter__()
    async with entries:
        assert entries.services["app:c"].pid is not None


@simulated
async def test_the_tree_names_the_services(tmp_path: Path) -> None:
    async with loaded(tmp_path, CHAIN) as entered:
        node = tree().find("app:c")
        assert node is not None
        assert [child.pid for child in node.children] == [entered.services["app:c"].pid]


@simulated
async def test_services_end_with_the_process_that_runs_the_entries(tmp_path: Path) -> None:
    async def run_them() -> None:
        async with loaded(tmp_path, CHAIN):
            await sleep("1h")

    with Diary() as diary:
        owner = process.spawn(run_them)
        await sleep("1s")
        process.kill(owner)
        await sleep("30s")

    assert sorted(diary.lines[5:]) == ["-a", "-b", "-c", "-h", "-last"]
    assert [info.pid for info in process.processes()] == [process.self_pid()]
