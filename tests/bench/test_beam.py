"""The BEAM as a contender: it does the workloads that Erlang has, where Erlang is installed."""

import pytest

from bench import kernel, otp
from bench.contenders import BEAM, beam
from bench.runner import ROOT

pytestmark = pytest.mark.once

# Each for a moment: the program repeats them until it has a figure.
SIZES = {
    "pingpong": 1_000,
    "call": 1_000,
    "fan_in": 10_000,
    "spawn": 1_000,
    "cascade": 1_000,
    "idle": 10_000,
    "server_call": 1_000,
    "agent_update": 1_000,
    "restart": 120,
}


def test_every_workload_of_processes_and_the_restart_are_written_in_erlang() -> None:
    source = (ROOT / "bench/contenders/beam.erl").read_text()

    assert SIZES.keys() == kernel.FULL.keys() | {otp.CALL, "agent_update", otp.RESTART}
    for workload in SIZES:
        assert callable(getattr(beam, workload))
        assert f"({workload}, N)" in source


@pytest.mark.skipif(not BEAM.installed(), reason="Erlang is not installed")
@pytest.mark.parametrize(("workload", "n"), SIZES.items())
def test_the_beam_gives_a_figure_for_each_workload(workload: str, n: int) -> None:
    assert getattr(beam, workload)(n) > 0
