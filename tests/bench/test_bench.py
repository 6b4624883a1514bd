"""The benchmark's own machinery: rounds, medians, time limits, figures and output."""

import json
import sys

import pytest

from bench import kernel
from bench.__main__ import BENCHES, main
from bench.comparison import Plan
from bench.contenders import RAW_ASYNCIO, Contender, choose
from bench.outcome import Goal, Options, Outcome
from bench.runner import Results, Trial, TrialFailed, run_rounds, run_trial
from bench.table import render

pytestmark = pytest.mark.once

TINY = {"pingpong": 20, "call": 20, "fan_in": 200, "spawn": 20, "cascade": 20, "idle": 200}
AGAINST_ASYNCIO = {"pingpong", "call", "fan_in", "spawn", "cascade"}


def script(contender: str, source: str) -> Trial:
    return Trial(contender, "work", (sys.executable, "-c", source))


def test_each_round_runs_every_contender_once_before_the_next_round() -> None:
    order: list[str] = []

    def measure(trial: Trial, _: float) -> float:
        order.append(trial.contender)
        return 1.0

    run_rounds([script("a", ""), script("b", "")], rounds=3, time_limit=1, measure=measure)

    assert order == ["a", "b"] * 3


def test_the_result_is_the_median_of_the_rounds() -> None:
    samples = iter([5.0, 1.0, 900.0])

    results = run_rounds(
        [script("a", "")], rounds=3, time_limit=1, measure=lambda _trial, _limit: next(samples)
    )

    assert results.median("a", "work") == 5.0


def test_a_trial_that_fails_in_a_late_round_has_no_median_and_is_not_run_again() -> None:
    answers = iter([1.0, TrialFailed("broke"), 1.0])
    runs = 0

    def measure(_trial: Trial, _limit: float) -> float:
        nonlocal runs
        runs += 1
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    results = run_rounds([script("a", "")], rounds=3, time_limit=1, measure=measure)

    assert runs == 2
    assert results.median("a", "work") is None
    assert results.skipped == {("a", "work"): "broke"}


def test_failing_hanging_and_silent_contenders_are_reported_and_the_others_measured() -> None:
    trials = [
        script("fails", "raise SystemExit('out of luck')"),
        script("hangs", "import threading; threading.Event().wait()"),
        script("silent", ""),
        script("declines", """print('{"unsupported": "no links"}')"""),
        script("works", """print('noise'); print('{"value": 2.5}')"""),
    ]

    results = run_rounds(trials, rounds=2, time_limit=2)

    assert results.samples == {("works", "work"): [2.5, 2.5]}
    reasons = {contender: reason for (contender, _), reason in results.skipped.items()}
    assert "out of luck" in reasons["fails"]
    assert "within 2 s" in reasons["hangs"]
    assert "no figure" in reasons["silent"]
    assert reasons["declines"] == "no links"


def test_a_command_that_does_not_exist_is_a_failed_trial() -> None:
    with pytest.raises(TrialFailed):
        run_trial(Trial("a", "work", ("there-is-no-such-program",)), time_limit=1)


def test_a_figure_is_the_time_of_the_other_divided_by_ours() -> None:
    results = Results(
        samples={
            ("perdure", "pingpong"): [2.0],
            ("raw_asyncio", "pingpong"): [8.0],
            ("aioerl", "pingpong"): [30.0],
            ("otpylib", "pingpong"): [20.0],
            ("beam", "pingpong"): [1.0],
            ("perdure", "idle"): [900.0],
        }
    )

    assert kernel.figures(results) == {
        "pingpong": 4.0,
        "idle_bytes": 900.0,
        "pingpong_vs_best_peer": 10.0,
        "pingpong_vs_beam": 0.5,
    }


def test_a_small_real_run_gives_every_figure_and_its_verdict() -> None:
    plan = Plan([RAW_ASYNCIO], TINY, rounds=1, time_limit=30, ours=RAW_ASYNCIO.name)

    outcome = kernel.measure(plan, absent=["perdure"])

    assert {name: outcome.figures[name] for name in AGAINST_ASYNCIO} == dict.fromkeys(
        AGAINST_ASYNCIO, 1.0
    )
    assert set(outcome.figures) == AGAINST_ASYNCIO | {"idle_bytes"}
    assert "not installed: perdure" in outcome.text
    assert "MISSED" in outcome.text
    assert "met" in outcome.text


def test_a_contender_that_cannot_do_a_workload_is_named_under_the_table() -> None:
    plan = Plan([RAW_ASYNCIO], {"no_such_workload": 1}, rounds=1, time_limit=30)

    outcome = kernel.measure(plan)

    assert "No no_such_workload of raw_asyncio" in outcome.text
    assert outcome.figures == {}


def test_the_last_line_is_json_when_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Options] = []

    def bench(options: Options) -> Outcome:
        seen.append(options)
        return Outcome("a table", {"pingpong": 4.5})

    monkeypatch.setitem(BENCHES, "kernel", bench)

    main(["kernel", "--quick", "--json", "--only", "raw_asyncio"])

    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"bench": "kernel", "figures": {"pingpong": 4.5}}
    assert seen == [Options(quick=True, only=("raw_asyncio",))]


def test_without_json_the_output_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BENCHES, "kernel", lambda _: Outcome("a table", {}))

    main(["kernel"])

    output = capsys.readouterr().out
    assert output.startswith("a table\n")
    assert "--json" in output


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main([])

    assert "kernel" in capsys.readouterr().out


def test_an_unknown_contender_is_refused_with_the_names_of_the_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["kernel", "--only", "nobody"])

    assert "no such contender: nobody" in capsys.readouterr().err


def test_what_is_not_installed_is_absent() -> None:
    missing = Contender("missing", "there_is_no_such_package")
    program = Contender("program", programs=("there-is-no-such-program",))

    present, absent = choose((RAW_ASYNCIO, missing, program), only=())

    assert present == [RAW_ASYNCIO]
    assert absent == ["missing", "program"]


def test_a_slow_contender_runs_its_share_and_never_more_than_it_can() -> None:
    slow = Contender("slow", share=0.1, most={"cascade": 300})

    assert slow.size("pingpong", 1000) == 100
    assert slow.size("cascade", 10_000) == 300
    assert slow.size("pingpong", 1) == 1


def test_a_goal_is_a_least_or_a_most() -> None:
    assert Goal(3).met(3)
    assert not Goal(3).met(2.9)
    assert Goal(1300, at_most=True).met(1300)
    assert not Goal(1300, at_most=True).met(1301)


def test_a_table_lines_up_its_columns() -> None:
    assert render(["", "ns"], [["a", "1,000"], ["long", "1"]]).splitlines() == [
        "         ns",
        "----  -----",
        "a     1,000",
        "long      1",
    ]
