"""The kernel: messages, calls, starts, deaths and memory, against asyncio and other libraries.

:mod:`bench.workload` defines each workload.
"""

from collections.abc import Sequence

from bench.comparison import Plan, Subject, compare, measured, ratio
from bench.contenders import BEAM, OURS, PEERS, RAW_ASYNCIO, choose
from bench.outcome import Goal, Options, Outcome
from bench.runner import Results

IDLE = "idle"

# Each is long enough to outweigh a stray interruption; the chain has one length for all.
FULL = {
    "pingpong": 100_000,
    "call": 50_000,
    "fan_in": 500_000,
    "spawn": 50_000,
    "cascade": 10_000,
    IDLE: 100_000,
}
QUICK = {
    "pingpong": 30_000,
    "call": 15_000,
    "fan_in": 200_000,
    "spawn": 20_000,
    "cascade": 10_000,
    IDLE: 20_000,
}
GOALS = {
    "pingpong": Goal(3),
    "call": Goal(4),
    "fan_in": Goal(0.9),
    "spawn": Goal(0.8),
    "cascade": Goal(2),
    "idle_bytes": Goal(1300, at_most=True),
    "pingpong_vs_best_peer": Goal(8),
}


def run(options: Options) -> Outcome:
    """Measure everything that is installed."""
    present, absent = choose((OURS, RAW_ASYNCIO, *PEERS, BEAM), options.only)
    if options.quick:
        return measure(Plan(present, QUICK, rounds=3, time_limit=10), absent)
    return measure(Plan(present, FULL, rounds=5, time_limit=30), absent)


def measure(plan: Plan, absent: Sequence[str] = ()) -> Outcome:
    """Carry out a plan."""
    return compare(Subject("Kernel", GOALS, figures, frozenset({IDLE})), plan, absent)


def figures(results: Results, ours: str = OURS.name) -> dict[str, float]:
    """Turn medians into figures: another's time divided by ours, so that more is better."""
    against_asyncio = {
        workload: ratio(results, workload, ours, RAW_ASYNCIO.name)
        for workload in FULL
        if workload != IDLE
    }
    against_beam = {f"{work}_vs_beam": ratio(results, work, ours, BEAM.name) for work in FULL}
    return measured(
        against_asyncio
        | {
            "idle_bytes": results.median(ours, IDLE),
            "pingpong_vs_best_peer": ratio(
                results, "pingpong", ours, *(peer.name for peer in PEERS)
            ),
        }
        | against_beam
    )
