"""The OTP layer: servers, agents, streams and restarts, against asyncio and other libraries.

:mod:`bench.workload` defines each workload.
"""

from collections.abc import Sequence

from bench.comparison import Plan, Subject, compare, measured, ratio
from bench.contenders import BEAM, OURS, PEERS, RAW_ASYNCIO, choose
from bench.outcome import Goal, Options, Outcome
from bench.runner import Results

MICROSECONDS = 1e6
CALL = "server_call"
RESTART = "restart"

FULL = {
    CALL: 50_000,
    "agent_update": 50_000,
    "stream_unordered": 50_000,
    "stream_ordered": 50_000,
    RESTART: 5_000,
}
QUICK = {
    CALL: 15_000,
    "agent_update": 20_000,
    "stream_unordered": 20_000,
    "stream_ordered": 20_000,
    RESTART: 1_500,
}
GOALS = {
    "call": Goal(4),
    "agent_update": Goal(3),
    "stream_unordered": Goal(1.2),
    "stream_ordered": Goal(1.2),
    "call_vs_best_peer": Goal(8),
}


def run(options: Options) -> Outcome:
    """Measure everything that is installed."""
    present, absent = choose((OURS, RAW_ASYNCIO, *PEERS, BEAM), options.only)
    if options.quick:
        return measure(Plan(present, QUICK, rounds=3, time_limit=10), absent)
    return measure(Plan(present, FULL, rounds=5, time_limit=30), absent)


def measure(plan: Plan, absent: Sequence[str] = ()) -> Outcome:
    """Carry out a plan."""
    return compare(Subject("OTP", GOALS, figures), plan, absent)


def figures(results: Results, ours: str = OURS.name) -> dict[str, float]:
    """Turn medians into figures: another's time divided by ours, and a restart's own time."""
    restart = results.median(ours, RESTART)
    workloads = ("agent_update", "stream_unordered", "stream_ordered")
    return measured(
        {"call": ratio(results, CALL, ours, RAW_ASYNCIO.name)}
        | {work: ratio(results, work, ours, RAW_ASYNCIO.name) for work in workloads}
        | {
            "restart_us": None if restart is None else restart * MICROSECONDS,
            "call_vs_best_peer": ratio(results, CALL, ours, *(peer.name for peer in PEERS)),
            "call_vs_beam": ratio(results, CALL, ours, BEAM.name),
            "agent_update_vs_beam": ratio(results, "agent_update", ours, BEAM.name),
            "restart_vs_beam": ratio(results, RESTART, ours, BEAM.name),
        }
    )
