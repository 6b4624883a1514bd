"""Sources: the code that entries name, and what is wrong with it."""

import logging
from pathlib import Path

import pytest

from perdure import process
from perdure.entries import Loaded, load_yaml
from perdure.errors import EntriesError
from perdure.testing import simulated
from tests.support.entries import index, write

SOURCE = """
async def main() -> None: ...

async def serve() -> None: ...

def plain() -> None: ...

async def one(worker_id: int) -> None: ...
"""


@pytest.fixture(autouse=True)
def no_crash_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def loaded(folder: Path, entries: str) -> Loaded:
    write(folder, {"_index.yaml": index(entries), "w.py": SOURCE})
    return load_yaml(folder)


BROKEN = """
    - name: h
      kind: process.host
      host: {kind: inline}
    - name: broken
      kind: process.py
      source: file://broken.py
    - name: failing
      kind: process.py
      source: file://failing.py
    - name: gone
      kind: process.py
      module: perdure.no_such_module
    - name: raising
      kind: process.py
      source: file://raising.py
    - name: no_method
      kind: process.py
      source: file://w.py
      method: sirve
    - name: plain
      kind: process.py
      source: file://w.py
      method: plain
    - name: one
      kind: process.py
      source: file://w.py
      method: one
      lifecycle: {auto_start: true}
    """


@simulated
async def test_what_is_wrong_with_sources_is_told_at_once_before_anything_starts(
    tmp_path: Path,
) -> None:
    raising = """
        def check(x: int) -> None:
            raise ValueError("no luck")

        check(1)
        """
    write(tmp_path, {"broken.py": "x = (", "failing.py": "import sys; sys.exit(3)"})
    write(tmp_path, {"raising.py": raising})

    with pytest.raises(EntriesError) as caught:
        await loaded(tmp_path, BROKEN).__aenter__()

    told = [
        str(mistake).removeprefix(f"{tmp_path}/_index.yaml:") for mistake in caught.value.mistakes
    ]
    assert told == [
        (
            "9: entry app:broken: it cannot be loaded: SyntaxError: '(' was never closed "
            "(broken.py, line 1)"
        ),
        f"12: entry app:failing: it cannot be loaded: SystemExit: 3 ({tmp_path}/failing.py:1)",
        (
            "15: entry app:gone: it cannot be loaded: ModuleNotFoundError: "
            "No module named 'perdure.no_such_module'"
        ),
        (
            "18: entry app:raising: it cannot be loaded: ValueError: no luck "
            f"({tmp_path}/raising.py:4)"
        ),
        f"22: entry app:no_method: {tmp_path}/w.py has no 'sirve': did you mean serve?",
        (
            "26: entry app:plain: a process runs an `async def` function: plain is not async: "
            "declare it `async def`; or, if it blocks, spawn an `async def` function that calls "
            "`await process.offload(plain, …)`, or that runs on a host"
        ),
        (
            "27: entry app:one: one(worker_id: int) -> None does not accept this input: "
            "missing a required argument: 'worker_id'"
        ),
    ]


@simulated
async def test_a_source_may_be_a_module(tmp_path: Path) -> None:
    entries = """
        - {name: a, kind: process.py, source: "module:tests.support.work", method: double}
        - {name: b, kind: process.py, module: tests.support.work, method: double}
        """
    async with loaded(tmp_path, entries):
        assert await process.run_process("app:a", 2) == 4
        assert await process.run_process("app:b", 3) == 6


@simulated
async def test_a_source_is_run_once_and_is_found_by_its_own_classes(tmp_path: Path) -> None:
    source = """
        import dataclasses

        @dataclasses.dataclass
        class Thing:
            x: "int"

        async def main() -> type[Thing]:
            return Thing
        """
    write(tmp_path, {"s.py": source})
    entries = "- {name: s, kind: process.py, source: file://s.py, modules: [time], meta: {a: b}}"

    async with loaded(tmp_path, entries) as entered:
        first = await process.run_process("app:s")
    async with entered:
        assert await process.run_process("app:s") is first


@simulated
async def test_a_file_that_several_entries_name_is_run_once(tmp_path: Path) -> None:
    write(tmp_path, {"s.py": "async def one(): return one\nasync def two(): return one\n"})
    entries = """
        - {name: a, kind: process.py, source: file://s.py, method: one}
        - {name: b, kind: process.py, source: file://s.py, method: two}
        """

    async with loaded(tmp_path, entries):
        one = await process.run_process("app:a")
        assert one is await process.run_process("app:b")
        assert one.__module__ == "app:s"


@simulated
async def test_files_of_one_name_in_one_namespace_are_told_apart(tmp_path: Path) -> None:
    entry = "- {name: NAME, kind: process.py, source: file://s.py}"
    for name in "ab":
        text = f"async def main(): return {name!r}"
        files = {"_index.yaml": index(entry.replace("NAME", name)), "s.py": text}
        write(tmp_path / name, files)

    async with load_yaml(tmp_path):
        assert [await process.run_process(f"app:{name}") for name in "ab"] == ["a", "b"]
