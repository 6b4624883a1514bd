"""Measure all contenders on both stores, one trial after the other."""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from bench.contenders import Contender, choose
from bench.durable import postgres, report
from bench.durable.contenders import KNOWN
from bench.durable.place import POSTGRES, STORES, environment, scratch
from bench.durable.plan import FULL, QUICK, Part, Plan, parts
from bench.durable.trial import Order
from bench.outcome import Options, Outcome
from bench.runner import Results, TrialFailed, run_command, show


def run(options: Options) -> Outcome:
    """Measure everything that is installed."""
    present, absent = choose(KNOWN, options.only)
    return measure(QUICK if options.quick else FULL, present, absent)


def measure(
    plan: Plan,
    contenders: Sequence[Contender],
    absent: Sequence[str] = (),
    stores: Iterable[str] = STORES,
) -> Outcome:
    """Carry out a plan."""
    found: dict[str, dict[str, float]] = {}
    texts = [report.heading(contenders, absent)]
    for store in stores:
        if store == POSTGRES and not postgres.is_installed():
            texts.append(f"Skipped: PostgreSQL, which comes with the package {postgres.PACKAGE}")
            continue
        results = _measure_store(store, parts(plan, store, contenders), plan.budget)
        texts.append(report.store_table(store, results, contenders))
        found[store] = report.figures(results)
    texts.append(report.figures_with_goals(found))
    return Outcome("\n\n".join(texts), found)


def _measure_store(store: str, planned: Iterable[Part], budget: float) -> Results:
    results = Results()
    end = time.monotonic() + budget
    with scratch() as folder, server_of(store, folder) as server:
        for part in planned:
            too_late = part.extra and time.monotonic() > end
            if too_late or (part.contender, part.workload) in results.skipped:
                continue
            show(f"{store}: {part.workload}, {part.contender}")
            _keep(results, part, store, folder, server)
    show("")
    return results


def server_of(store: str, folder: Path) -> AbstractContextManager[str]:
    """Run PostgreSQL during a block, if it is the store; give its address."""
    return postgres.running(folder) if store == POSTGRES else nullcontext("")


def _keep(results: Results, part: Part, store: str, folder: Path, server: str) -> None:
    try:
        answer = _answer(part, store, folder, server)
    except TrialFailed as failure:
        results.skipped[part.contender, part.workload] = str(failure)
    else:
        for name, value in answer.items():
            results.samples.setdefault((part.contender, name), []).append(value)


def _answer(part: Part, store: str, folder: Path, server: str) -> dict[str, float]:
    order = Order(part.contender, part.workload, store, str(folder), server, part.size)
    line = run_command(order.command(), part.limit, environment())
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise TrialFailed(f"printed no figures: {line!r}") from error
    if "unsupported" in answer:
        raise TrialFailed(str(answer["unsupported"]))
    return answer
