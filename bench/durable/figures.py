"""From what was measured to figures: all that is compared is a ratio within one run."""

from collections.abc import Sequence

from bench.comparison import measured
from bench.durable.contenders import DBOS, FLOOR, OURS, PEERS
from bench.durable.place import SQLITE
from bench.outcome import Goal
from bench.runner import Results


def goals(store: str) -> dict[str, Goal]:
    """Give the bounds that we set ourselves."""
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
        }
    )


def _times(results: Results, rate: str, others: Sequence[str]) -> float | None:
    """Say how many times as fast as the fastest of the others we are."""
    mine = results.median(OURS.name, rate)
    theirs = [found for other in others if (found := results.median(other, rate))]
    return mine / max(theirs) if mine and theirs else None
