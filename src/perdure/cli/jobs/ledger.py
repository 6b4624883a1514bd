"""The ledger of a job, for `perdure jobs show`."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from perdure.base.visible import visible
from perdure.cli.jobs import words
from perdure.cli.jobs.facts import payload
from perdure.cli.output import cell
from perdure.jobs.effect import Effect, EffectState

_STYLES = {
    EffectState.DONE: "green",
    EffectState.FAILED: "dim",
    EffectState.UNDONE: "dim",
    EffectState.BORROWED: "dim",
}


def draw_ledger(ledger: Sequence[Effect], now: float, narrow: int) -> Table:
    """Draw what a job did to the world, in order."""
    doubts = sum(each.state is EffectState.IN_DOUBT for each in ledger)
    title = f"Effects: {len(ledger)}" + (f", {doubts} in doubt" if doubts else "")
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in ("no", "kind", "target", "state", "step", "called", ""):
        table.add_column(name)
    for each in ledger:
        said = "" if each.result is None else words.value(payload(each.result), narrow)
        table.add_row(
            str(each.no),
            cell(each.kind),
            cell(visible(each.target, narrow)),
            cell(each.state.value, style=_STYLES.get(each.state, "bold yellow")),
            cell(each.place.step),
            words.clock_time(each.called_at, now),
            cell(said, style="dim"),
        )
    return table


def effect_facts(effect: Effect) -> dict[str, Any]:
    """Give a line of the ledger for programs."""
    return {
        "job": effect.job_id,
        "no": effect.no,
        "tenant": effect.tenant,
        "kind": effect.kind,
        "target": effect.target,
        "state": effect.state.value,
        "step": effect.place.step,
        "key": effect.key,
        "generation": effect.generation,
        "in_doubt": effect.in_doubt,
        "details": payload(effect.details),
        "result": payload(effect.result),
        "problem": effect.problem,
        "error": payload(effect.error),
        "undo": None if effect.undo is None else effect.undo.step,
        "proof": effect.proof,
        "called_at": effect.called_at,
        "ended_at": effect.ended_at,
    }
