"""The kernel: messages, calls, starts, deaths and memory, against asyncio and other libraries.

What each workload is, is said in :mod:`bench.workload`.
"""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.contenders import BEAM, OURS, PEERS, RAW_ASYNCIO, Contender, choose
from bench.outcome import Goal, Options, Outcome
from bench.runner import Results, Trial, run_rounds
from bench.table import render

NANOSECONDS = 1e9
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


@dataclass(frozen=True)
class Plan:
    """What is measured, how often, and for how long at most."""

    contenders: Sequence[Contender]
    sizes: Mapping[str, int]
    rounds: int
    time_limit: float
    ours: str = OURS.name


def run(options: Options) -> Outcome:
    """Measure everything that is installed."""
    present, absent = choose((OURS, RAW_ASYNCIO, *PEERS, BEAM), options.only)
    if options.quick:
        return measure(Plan(present, QUICK, rounds=3, time_limit=10), absent)
    return measure(Plan(present, FULL, rounds=5, time_limit=30), absent)


def measure(plan: Plan, absent: Sequence[str] = ()) -> Outcome:
    """Carry out a plan."""
    results = run_rounds(trials(plan), plan.rounds, plan.time_limit)
    found = figures(results, plan.ours)
    parts = [
        _heading(plan, absent),
        _cost_table(plan, results),
        _notes(plan, results),
        _figure_table(found),
    ]
    return Outcome("\n\n".join(part for part in parts if part), found)


def trials(plan: Plan) -> list[Trial]:
    """List the trials of one round: workload by workload, the contenders side by side."""
    return [
        _trial(one, workload, n) for workload, n in plan.sizes.items() for one in plan.contenders
    ]


def _trial(contender: Contender, workload: str, n: int) -> Trial:
    size = str(contender.size(workload, n))
    command = (sys.executable, "-m", "bench.worker", contender.name, workload, size)
    return Trial(contender.name, workload, command)


def figures(results: Results, ours: str = OURS.name) -> dict[str, float]:
    """Turn medians into figures: another's time divided by ours, so that more is better.

    What was not measured has no figure.
    """

    def ratio(workload: str, *others: str) -> float | None:
        mine = results.median(ours, workload)
        theirs = [cost for other in others if (cost := results.median(other, workload))]
        return min(theirs) / mine if mine and theirs else None

    found = {
        workload: ratio(workload, RAW_ASYNCIO.name) for workload in FULL if workload != IDLE
    } | {
        "idle_bytes": results.median(ours, IDLE),
        "pingpong_vs_best_peer": ratio("pingpong", *(peer.name for peer in PEERS)),
        "pingpong_vs_beam": ratio("pingpong", BEAM.name),
    }
    return {name: round(value, 3) for name, value in found.items() if value is not None}


def _heading(plan: Plan, absent: Sequence[str]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    versions = [f"{one.name} {one.version()}".rstrip() for one in plan.contenders]
    lines = [
        f"Kernel: {python}, {machine}; median of {plan.rounds} interleaved rounds",
        f"Measured: {', '.join(versions)}",
    ]
    if absent:
        lines.append(f"Skipped, not installed: {', '.join(absent)}")
    return "\n".join(lines)


def _cost_table(plan: Plan, results: Results) -> str:
    """Show what an operation costs, and in brackets the ratio to our own cost."""
    head = ["", *(f"{work} (bytes)" if work == IDLE else f"{work} (ns)" for work in plan.sizes)]
    rows = [
        [one.name, *(_cost(results, work, one.name, plan.ours) for work in plan.sizes)]
        for one in plan.contenders
    ]
    return render(head, rows)


def _cost(results: Results, workload: str, name: str, ours: str) -> str:
    cost, mine = results.median(name, workload), results.median(ours, workload)
    if cost is None:
        return "-"
    text = f"{cost if workload == IDLE else cost * NANOSECONDS:,.0f}"
    return text if name == ours or not mine else f"{text} [{cost / mine:.1f}x]"


def _notes(plan: Plan, results: Results) -> str:
    shorter = [
        f"{one.name} can do {workload} with {most:,} at most"
        for one in plan.contenders
        for workload, most in one.most.items()
        if most < plan.sizes[workload]
    ]
    missing = [
        f"No {workload} of {contender}: {reason}"
        for (contender, workload), reason in results.skipped.items()
    ]
    return "\n".join(shorter + missing)


def _figure_table(found: Mapping[str, float]) -> str:
    if not found:
        return "No figures: Perdure itself was not measured."
    return render(
        ["figure", "value", "goal", ""], [_figure_row(*figure) for figure in found.items()]
    )


def _figure_row(name: str, value: float) -> list[str]:
    goal = GOALS.get(name)
    verdict = "" if goal is None else "met" if goal.met(value) else "MISSED"
    return [name, f"{value:,.2f}", str(goal or ""), verdict]
