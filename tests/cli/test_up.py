"""`perdure up` and `perdure tree`, as programs."""

import json
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import LONGEST_WAIT, environment, lines_until, perdure, started
from tests.support.entries import index, write

EXAMPLE = Path("examples/worker_pool")
SERVICE = """
    - name: s
      kind: process.py
      source: file://s.py
      lifecycle: {auto_start: true, restart: {initial_delay: 10ms, max_attempts: 2}}
    """


def without_time(line: str) -> str:
    return re.sub(r"^\d\d:\d\d:\d\d  ", "", line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_example_runs_until_a_signal_stops_it_in_reverse_order(
    number: signal.Signals, private: Path
) -> None:
    with started(private, "up", EXAMPLE) as program:
        begin = lines_until(program, "Up. Press Ctrl-C to stop.")
        while "\n".join(begin).count("Task worker") < 4:
            begin += lines_until(program, "Task worker")
        program.send_signal(number)
        rest, _ = program.communicate(timeout=LONGEST_WAIT)

    text = "\n".join([*begin, rest])
    assert "app:processes        running     threads, 4 workers" in text
    assert text.count("Task worker") == 4
    assert "Supervisor started with 4 workers" in text
    assert text.count("cancelled") == 4
    told = [without_time(line).rstrip() for line in rest.splitlines() if line[:1].isdigit()]
    assert told[1:] == [
        "app.supervisor:pool  stopped",
        "app:processes        stopped",
        "Down.",
    ]
    assert "Traceback" not in text
    assert program.returncode == 0


def test_what_happens_is_told_to_programs_as_lines_of_json(private: Path) -> None:
    with started(private, "up", EXAMPLE, "--json", errors=subprocess.DEVNULL) as program:
        begin = lines_until(program, '"event": "up"')
        program.terminate()
        rest, _ = program.communicate(timeout=LONGEST_WAIT)

    facts = [json.loads(line) for line in [*begin, *rest.splitlines()]]
    assert [(fact["event"], fact.get("id"), fact.get("state")) for fact in facts] == [
        ("entry", "app:processes", "starting"),
        ("entry", "app:processes", "running"),
        ("entry", "app.supervisor:pool", "running"),
        ("up", None, None),
        ("stopping", None, None),
        ("entry", "app.supervisor:pool", "stopping"),
        ("entry", "app.supervisor:pool", "stopped"),
        ("entry", "app:processes", "stopping"),
        ("entry", "app:processes", "stopped"),
        ("down", None, None),
    ]


def test_the_tree_shows_what_runs(private: Path) -> None:
    with started(private, "up", EXAMPLE) as program:
        begin = lines_until(program, "Up. Press Ctrl-C to stop.")
        while "\n".join(begin).count("Task worker") < 4:
            begin += lines_until(program, "Task worker")
        for_people = perdure(private, "tree")
        for_programs = perdure(private, "tree", EXAMPLE, "-o", "json")
        again = perdure(private, "up", EXAMPLE)
        [socket] = (private / "perdure").iterdir()
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        program.terminate()
        program.communicate(timeout=LONGEST_WAIT)

    assert for_people.returncode == 0
    assert f"OS process {program.pid}" in for_people.stdout
    assert "─ app:processes  host running, 4 threads" in for_people.stdout
    assert "host._keep" not in for_people.stdout  # that of the host itself says nothing to people
    assert "─ app.supervisor:pool  service running" in for_people.stdout
    assert for_people.stdout.count("─ app/workers:task_worker.main") == 4
    entries = json.loads(for_programs.stdout)["entries"]
    assert [(entry["id"], entry["state"]) for entry in entries] == [
        ("app:processes", "running"),
        ("app.supervisor:pool", "running"),
    ]
    assert again.returncode == 1
    assert "it is already running" in again.stderr
    assert list((private / "perdure").iterdir()) == []


def test_without_anything_running_the_tree_says_so(private: Path) -> None:
    gone = perdure(private, "tree")

    assert (gone.returncode, gone.stderr) == (3, "perdure: no `perdure up` is running\n")


def test_with_several_running_the_tree_asks_which(private: Path, tmp_path: Path) -> None:
    source = "from perdure.process import sleep\nasync def main(): await sleep('1h')\n"
    for name in ("one", "two"):
        write(tmp_path, {f"{name}/_index.yaml": index(SERVICE), f"{name}/s.py": source})

    with (
        started(private, "up", tmp_path / "one") as first,
        started(private, "up", tmp_path / "two") as second,
    ):
        lines_until(first, "Up.")
        lines_until(second, "Up.")
        asked = perdure(private, "tree")
        answered = perdure(private, "tree", tmp_path / "two")

    assert asked.returncode == 2
    assert f"perdure tree {tmp_path / 'one'}" in asked.stderr
    assert f"{tmp_path / 'two'}, OS process {second.pid}" in answered.stdout


def test_after_a_kill_the_next_one_takes_the_place_of_the_dead(
    private: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"_index.yaml": index(SERVICE), "s.py": "async def main(): ..."})
    with started(private, "up", EXAMPLE) as program:
        lines_until(program, "Up.")

    assert perdure(private, "tree").returncode == 3
    with started(private, "up", EXAMPLE) as program:
        lines_until(program, "Up.")


def test_it_ends_when_every_service_has_ended(private: Path, tmp_path: Path) -> None:
    write(tmp_path, {"_index.yaml": index(SERVICE), "s.py": "async def main(): ..."})

    ended = perdure(private, "up", tmp_path)

    told = [without_time(line) for line in ended.stdout.splitlines()]
    assert told[1:] == [
        "app:s  exited",
        "Up. Press Ctrl-C to stop.",
        "Every service has ended.",
        "Down.",
    ]
    assert ended.returncode == 0


def test_it_fails_when_a_service_has_failed_too_often(private: Path, tmp_path: Path) -> None:
    source = "async def main(): raise ValueError('no luck')"
    write(tmp_path, {"_index.yaml": index(SERVICE), "s.py": source})

    failed = perdure(private, "up", tmp_path)

    assert failed.returncode == 1
    told = [without_time(line) for line in failed.stdout.splitlines()]
    assert "app:s  failed      ValueError: no luck; gave up after 2 starts" in told
    assert re.search(r"restarting  ValueError: no luck; start 2 in (9|1[01])(\.\d+)?ms", told[1])
    assert failed.stderr.count("Traceback") == 2  # each crash is reported


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_runs_does_not_suffer_if_nobody_reads_the_news(
    options: tuple[str, ...], private: Path, tmp_path: Path
) -> None:
    source = "import pathlib\nasync def main(): pathlib.Path(__file__ + '.ran').touch()"
    write(tmp_path, {"_index.yaml": index(SERVICE), "s.py": source})

    with started(private, "up", tmp_path, *options, errors=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.close()
        program.stdout = None
        _, errors = program.communicate(timeout=LONGEST_WAIT)

    assert (program.returncode, errors) == (0, "")
    assert (tmp_path / "s.py.ran").exists()


def test_mistakes_are_told_and_nothing_starts(private: Path, tmp_path: Path) -> None:
    write(tmp_path, {"_index.yaml": index(SERVICE + "\n    - {name: x, kind: y}")})

    refused = perdure(private, "up", tmp_path)

    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "perdure: 2 mistakes in the entries:" in refused.stderr
    assert f"{tmp_path}/_index.yaml:6: entry app:s: there is no file" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_source_that_cannot_be_loaded_is_told_without_a_traceback(
    private: Path, tmp_path: Path
) -> None:
    write(tmp_path, {"_index.yaml": index(SERVICE), "s.py": "import no_such_thing"})

    refused = perdure(private, "up", tmp_path)

    assert refused.returncode == 2
    assert "entry app:s: it cannot be loaded: ModuleNotFoundError" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_with_nothing_marked_there_is_nothing_to_run(private: Path, tmp_path: Path) -> None:
    text = index("- {name: s, kind: process.py, source: file://s.py}")
    write(tmp_path, {"_index.yaml": text, "s.py": "async def main(): ..."})

    refused = perdure(private, "up", tmp_path)

    assert refused.returncode == 2
    assert refused.stderr.endswith("has `auto_start: true`\n")


def test_with_only_a_host_there_is_nothing_to_run_either(private: Path, tmp_path: Path) -> None:
    text = index(
        SERVICE.replace("auto_start: true", "auto_start: false")
        + "\n    - {name: h, kind: process.host}"
    )
    write(tmp_path, {"_index.yaml": text, "s.py": "async def main(): ..."})

    refused = perdure(private, "up", tmp_path)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"no service in {tmp_path} has `auto_start: true`" in refused.stderr


def test_sources_import_from_the_current_folder(private: Path, tmp_path: Path) -> None:
    entries = """
        - name: file
          kind: process.py
          source: file://s.py
          lifecycle: {auto_start: true}
        - name: module
          kind: process.py
          module: shop.s
          lifecycle: {auto_start: true}
        """
    write(
        tmp_path / "shop",
        {
            "_index.yaml": index(entries),
            "s.py": "from shop.names import NAME\nasync def main(): print(NAME)",
            "names.py": "NAME = 'from here'",
        },
    )

    ended = subprocess.run(
        [sys.executable, "-P", "-m", "perdure.cli", "up", "shop"],  # -P: as the script `perdure`
        cwd=tmp_path,
        env=environment(private),
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
        check=False,
    )

    assert ended.stderr == ""
    assert ended.stdout.count("from here") == 2


def test_a_signal_while_things_start_interrupts_the_start(private: Path, tmp_path: Path) -> None:
    entries = SERVICE.replace("auto_start: true", "auto_start: true, ready: true")
    source = (
        "from perdure.process import sleep\n"
        "async def main():\n    print('here')\n    await sleep('1h')\n"
    )
    write(tmp_path, {"_index.yaml": index(entries), "s.py": source})

    with started(private, "up", tmp_path) as program:
        lines_until(program, "here")
        program.terminate()
        rest, _ = program.communicate(timeout=LONGEST_WAIT)

    assert program.returncode == 143
    assert "Traceback" not in rest


def test_the_version_is_that_of_the_package(private: Path) -> None:
    assert re.fullmatch(r"perdure \d+\.\d+\.\d+\n", perdure(private, "--version").stdout)


def test_the_help_names_every_command(private: Path) -> None:
    text = perdure(private, "--help").stdout

    assert "up " in text
    assert "tree " in text
