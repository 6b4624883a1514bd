"""The benchmark of the OTP layer: its figures, and a small run of every workload."""

import json

import pytest

from bench import otp
from bench.__main__ import BENCHES, main
from bench.comparison import Plan
from bench.contenders import BEAM, OURS, PEERS, RAW_ASYNCIO, Contender
from bench.outcome import Options, Outcome
from bench.runner import Results
from bench.workload import RESTARTS, WINDOW, batches, fastest

pytestmark = pytest.mark.once

# More items than run at once, and more restarts than one supervisor sees.
TINY = {
    "server_call": 20,
    "agent_update": 20,
    "stream_unordered": WINDOW + 20,
    "stream_ordered": WINDOW + 20,
    "restart": RESTARTS + 2,
}
AGAINST_ASYNCIO = {"call", "agent_update", "stream_unordered", "stream_ordered"}


def small(*contenders: Contender) -> Outcome:
    return otp.measure(Plan(contenders, TINY, rounds=1, time_limit=60))


def test_a_figure_is_the_time_of_the_other_divided_by_ours_and_a_restart_is_in_microseconds() -> (
    None
):
    results = Results(
        samples={
            ("perdure", "server_call"): [2.0],
            ("raw_asyncio", "server_call"): [8.0],
            ("aioerl", "server_call"): [20.0],
            ("otpylib", "server_call"): [30.0],
            ("beam", "server_call"): [1.0],
            ("perdure", "stream_ordered"): [2.0],
            ("raw_asyncio", "stream_ordered"): [3.0],
            ("perdure", "restart"): [0.00025],
            ("raw_asyncio", "restart"): [0.0001],
            ("beam", "restart"): [0.00001],
        }
    )

    assert otp.figures(results) == {
        "call": 4.0,
        "stream_ordered": 1.5,
        "restart_us": 250.0,
        "call_vs_best_peer": 10.0,
        "call_vs_beam": 0.5,
        "restart_vs_beam": 0.04,
    }


def test_perdure_and_asyncio_do_every_workload_and_give_every_figure() -> None:
    outcome = small(OURS, RAW_ASYNCIO)

    assert "\nNo " not in outcome.text
    assert set(outcome.figures) == AGAINST_ASYNCIO | {"restart_us"}
    assert all(isinstance(value, float) and value > 0 for value in outcome.figures.values())


def test_a_goal_is_shown_beside_its_figure() -> None:
    outcome = otp.measure(
        Plan([RAW_ASYNCIO], TINY, rounds=1, time_limit=60, ours=RAW_ASYNCIO.name), ["perdure"]
    )

    assert {name: outcome.figures[name] for name in AGAINST_ASYNCIO} == dict.fromkeys(
        AGAINST_ASYNCIO, 1.0
    )
    assert outcome.text.startswith("OTP: ")
    assert "not installed: perdure" in outcome.text
    assert outcome.text.count("MISSED") == len(AGAINST_ASYNCIO)


def test_the_last_line_of_the_command_is_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bench(_: Options) -> Outcome:
        return small(RAW_ASYNCIO, OURS)

    assert BENCHES["otp"] is otp.run
    monkeypatch.setitem(BENCHES, "otp", bench)

    main(["otp", "--quick", "--json"])

    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(last) == {"bench", "figures"}
    assert last["bench"] == "otp"
    assert set(last["figures"]) == AGAINST_ASYNCIO | {"restart_us"}


def test_every_goal_belongs_to_a_figure() -> None:
    names = [one.name for one in (OURS, RAW_ASYNCIO, *PEERS, BEAM)]
    everything = Results(samples={(name, work): [1.0] for name in names for work in otp.FULL})

    assert set(otp.GOALS) <= set(otp.figures(everything))
    assert otp.FULL.keys() == otp.QUICK.keys() == TINY.keys()


def test_operations_are_split_into_equal_parts_and_a_rest() -> None:
    assert batches(120, 50) == [50, 50, 20]
    assert batches(100, 50) == [50, 50]
    assert batches(3, 50) == [3]


async def test_the_fastest_batch_sets_the_pace_of_all_operations() -> None:
    seconds = iter([100.0, 50.0, 40.0])

    async def run_batch(_: int) -> float:
        return next(seconds)

    assert await fastest(120, 50, run_batch) == 120.0
