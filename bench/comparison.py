"""What the benchmarks beside peers share: measure a plan; show costs, ratios and goals."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.contenders import OURS, Contender
from bench.outcome import Goal, Outcome, figure_table, machine
from bench.runner import Results, Trial, run_rounds
from bench.table import render

NANOSECONDS = 1e9


@dataclass(frozen=True)
class Plan:
    """Whom and what to measure, how often, and for how many seconds at most."""

    contenders: Sequence[Contender]
    sizes: Mapping[str, int]
    rounds: int
    time_limit: float
    ours: str = OURS.name


@dataclass(frozen=True)
class Subject:
    """What a benchmark is about.

    Attributes:
        title: Its name in the heading.
        goals: The bounds of some of its figures.
        figures: Makes figures of the results, given the name of our own contender.
        in_bytes: The workloads that are measured in bytes instead of time.
    """

    title: str
    goals: Mapping[str, Goal]
    figures: Callable[[Results, str], Mapping[str, float]]
    in_bytes: frozenset[str] = frozenset()


def compare(subject: Subject, plan: Plan, absent: Sequence[str] = ()) -> Outcome:
    """Carry out a plan."""
    results = run_rounds(trials(plan), plan.rounds, plan.time_limit)
    found = subject.figures(results, plan.ours)
    parts = [
        _heading(subject, plan, absent),
        _cost_table(subject, plan, results),
        _notes(plan, results),
        figure_table(found, subject.goals),
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


def ratio(results: Results, workload: str, ours: str, *others: str) -> float | None:
    """Return the best time of the others divided by ours; None where one was not measured."""
    mine = results.median(ours, workload)
    theirs = [cost for other in others if (cost := results.median(other, workload))]
    return min(theirs) / mine if mine and theirs else None


def measured(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Return the figures that were measured, rounded."""
    return {name: round(value, 3) for name, value in figures.items() if value is not None}


def _heading(subject: Subject, plan: Plan, absent: Sequence[str]) -> str:
    versions = [f"{one.name} {one.version()}".rstrip() for one in plan.contenders]
    lines = [
        f"{subject.title}: {machine()}; median of {plan.rounds} interleaved rounds",
        f"Measured: {', '.join(versions)}",
    ]
    if absent:
        lines.append(f"Skipped, not installed: {', '.join(absent)}")
    return "\n".join(lines)


def _cost_table(subject: Subject, plan: Plan, results: Results) -> str:
    """Show what an operation costs, with the ratio to our own cost in brackets."""
    units = {work: "bytes" if work in subject.in_bytes else "ns" for work in plan.sizes}
    head = ["", *(f"{work} ({unit})" for work, unit in units.items())]
    rows = [
        [one.name, *(_cost(results, plan.ours, one.name, *column) for column in units.items())]
        for one in plan.contenders
    ]
    return render(head, rows)


def _cost(results: Results, ours: str, name: str, workload: str, unit: str) -> str:
    cost, mine = results.median(name, workload), results.median(ours, workload)
    if cost is None:
        return "-"
    text = f"{cost if unit == 'bytes' else cost * NANOSECONDS:,.0f}"
    return text if name == ours or not mine else f"{text} [{cost / mine:.1f}x]"


def _notes(plan: Plan, results: Results) -> str:
    shorter = [
        f"{one.name} can do {workload} with {most:,} at most"
        for one in plan.contenders
        for workload, most in one.most.items()
        if most < plan.sizes.get(workload, 0)
    ]
    missing = [
        f"No {workload} of {contender}: {reason}"
        for (contender, workload), reason in results.skipped.items()
    ]
    return "\n".join(shorter + missing)
