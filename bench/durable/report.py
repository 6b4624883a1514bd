"""The text of a run."""

import os
import platform
from collections.abc import Mapping, Sequence

from bench.contenders import Contender
from bench.durable.contenders import OURS
from bench.durable.figures import goals
from bench.runner import Results
from bench.table import render

# What the table shows, and how many digits behind the point.
_COLUMNS = {
    "sequential": ("one job, steps/s", 0),
    "concurrent": ("1,000 jobs, steps/s", 0),
    "submit_ms": ("submit to start, ms", 1),
    "restart_s": ("kill to next step, s", 2),
    "ran_twice": ("steps run twice", 0),
    "cpu_us_step": ("CPU a step, us", 0),
    "rss_mb": ("memory, MB", 0),
}
_RATES = ("sequential", "concurrent")


def heading(contenders: Sequence[Contender], absent: Sequence[str]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    versions = [f"{one.name} {one.version()}".rstrip() for one in contenders]
    lines = [
        f"Durable jobs: {python}, {machine}; every commit is on the disk when it returns",
        f"Measured: {', '.join(versions)}",
    ]
    if absent:
        lines.append(f"Skipped, not installed: {', '.join(absent)}")
    return "\n".join(lines)


def of_store(store: str, results: Results, contenders: Sequence[Contender]) -> str:
    """Show what was measured with one store; in brackets how many times as fast as it we are."""
    head = [store, *(title for title, _ in _COLUMNS.values())]
    rows = [
        [one.name, *(_cell(results, one.name, name) for name in _COLUMNS)]
        for one in contenders
        if any(who == one.name for who, _ in results.samples)
    ]
    missing = [
        f"No {workload} of {contender} with {store}: {reason}"
        for (contender, workload), reason in results.skipped.items()
    ]
    return "\n".join([render(head, rows), *missing])


def _cell(results: Results, contender: str, name: str) -> str:
    value, mine = results.median(contender, name), results.median(OURS.name, name)
    if value is None:
        return "-"
    text = f"{value:,.{_COLUMNS[name][1]}f}"
    compared = name in _RATES and contender != OURS.name and mine
    return f"{text} [{mine / value:.2g}x]" if compared and mine else text


def of_figures(found: Mapping[str, Mapping[str, float]]) -> str:
    """Show every figure beside its goal."""
    rows = [
        [f"{store} {name}", f"{value:,.2f}", str(goal), "met" if goal.met(value) else "MISSED"]
        for store, figures in found.items()
        for name, value in figures.items()
        for goal in [goals(store)[name]]
    ]
    if not rows:
        return "No figures: Perdure itself was not measured."
    return render(["figure", "value", "goal", ""], rows)
