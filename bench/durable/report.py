"""From what was measured to figures, and to the text of a run.

All that is compared is a ratio within one run: another machine, or another hour, is another disk.
"""

from collections.abc import Mapping, Sequence

from bench.comparison import measured
from bench.contenders import Contender
from bench.durable.contenders import DBOS, FLOOR, OURS, PEERS
from bench.durable.place import SQLITE
from bench.outcome import Goal, figure_table, machine
from bench.runner import Results
from bench.table import render


def goals(store: str) -> dict[str, Goal]:
    """Return the bounds that we set ourselves."""
    return {
        "sequential_vs_floor": Goal(0.5),
        "concurrent_vs_floor": Goal(0.5),
        "sequential_vs_dbos": Goal(8),
        "concurrent_vs_dbos": Goal(40),
        "sequential_vs_best_peer": Goal(2.5),
        "concurrent_vs_best_peer": Goal(6),
        "submit_to_start_p50_ms": Goal(5 if store == SQLITE else 10, at_most=True),
        "growth": Goal(1.1, at_most=True),
        "claim_with_million": Goal(0.8),
        "restart_to_next_step_s": Goal(1, at_most=True),
        "cpu_us_step": Goal(250, at_most=True),
        "rss_mb": Goal(60, at_most=True),
        "effect_step_vs_step": Goal(3, at_most=True),
        "children_1000_s": Goal(3, at_most=True),
    }


def figures(results: Results) -> dict[str, float]:
    """Turn the medians of one store into figures; what was not measured has none."""
    peers = [peer.name for peer in PEERS]
    ours = OURS.name
    return measured(
        {
            "sequential_vs_floor": _times(results, "sequential", [FLOOR.name]),
            "concurrent_vs_floor": _times(results, "concurrent", [FLOOR.name]),
            "sequential_vs_dbos": _times(results, "sequential", [DBOS.name]),
            "concurrent_vs_dbos": _times(results, "concurrent", [DBOS.name]),
            "sequential_vs_best_peer": _times(results, "sequential", peers),
            "concurrent_vs_best_peer": _times(results, "concurrent", peers),
            "submit_to_start_p50_ms": results.median(ours, "submit_ms"),
            "growth": results.median(ours, "growth"),
            "claim_with_million": results.median(ours, "claim_ratio"),
            "restart_to_next_step_s": results.median(ours, "restart_s"),
            "cpu_us_step": results.median(ours, "cpu_us_step"),
            "rss_mb": results.median(ours, "rss_mb"),
            "effect_step_vs_step": results.median(ours, "effect_ratio"),
            "children_1000_s": results.median(ours, "children_s"),
        }
    )


def _times(results: Results, rate: str, others: Sequence[str]) -> float | None:
    """Return how many times as fast as the fastest of the others we are."""
    mine = results.median(OURS.name, rate)
    theirs = [found for other in others if (found := results.median(other, rate))]
    return mine / max(theirs) if mine and theirs else None


# The text

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
    """Say what was measured, and on what."""
    versions = [f"{one.name} {one.version()}".rstrip() for one in contenders]
    lines = [
        f"Durable jobs: {machine()}; every commit is on the disk when it returns",
        f"Measured: {', '.join(versions)}",
    ]
    if absent:
        lines.append(f"Skipped, not installed: {', '.join(absent)}")
    return "\n".join(lines)


def store_table(store: str, results: Results, contenders: Sequence[Contender]) -> str:
    """Show what was measured with one store; in brackets how many times as fast we are."""
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


def figures_with_goals(found: Mapping[str, Mapping[str, float]]) -> str:
    """Show the figures of all stores beside their goals."""
    named = {f"{store} {name}": value for store in found for name, value in found[store].items()}
    bounds = {f"{store} {name}": goal for store in found for name, goal in goals(store).items()}
    return figure_table(named, bounds)
