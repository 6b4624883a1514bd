"""The benchmark of hosts: a small run of every measurement."""

import json

import pytest

from bench import hosts
from bench.__main__ import BENCHES, main
from bench.hosts import GOALS, Sizes
from bench.outcome import Outcome

TINY = Sizes(items=4, loops=100, bursts=3, messages=100, rounds=1)


def test_a_small_run_gives_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def small(_: object) -> Outcome:
        return hosts.measure(TINY)

    assert BENCHES["hosts"] is hosts.run
    monkeypatch.setitem(BENCHES, "hosts", small)

    assert main(["hosts", "--json"]) == 0

    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["bench"] == "hosts"
    assert set(told["figures"]) == {*GOALS, "bare_speedup"}
    assert all(value > 0 for value in told["figures"].values())
