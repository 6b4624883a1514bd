"""A long agent: 1,000 turns whose history grows by 4 KB and is passed to every step, then a kill.

What must not grow with the square of the turns: the database, the memory, the time to resume.
Beside that, what a durable model call costs with the adapter for pydantic-ai.
"""

import json
import time
from collections.abc import Mapping, Sequence

from bench import agent_adapter
from bench.agent_adapter import CALLS, QUICK_CALLS, ROUNDS
from bench.contenders import Contender, choose
from bench.durable import postgres
from bench.durable.bench import server_of
from bench.durable.contenders import DBOS, OURS, PEERS
from bench.durable.place import POSTGRES, STORES, environment, scratch
from bench.durable.plan import Size
from bench.durable.trial import Order
from bench.outcome import Goal, Options, Outcome, figure_table, machine
from bench.runner import TrialFailed, run_command, show
from bench.table import render

TURNS, QUICK_TURNS = 1000, 300
GOALS = {
    "database_mb": Goal(12, at_most=True),
    "peak_mb": Goal(150, at_most=True),
    "resume_s": Goal(1, at_most=True),
}

KNOWN = (OURS, DBOS, *(peer for peer in PEERS if peer.name == "langgraph"))
# A checkpoint of LangGraph has the whole history, so its store grows with the square of the turns.
_SHARE = {"langgraph": 0.2}
_LIMIT = 300.0  # seconds for a worker
_COLUMNS = {
    "turns": ("turns", 0),
    "database_mb": ("database, MB", 1),
    "peak_mb": ("peak memory, MB", 0),
    "resume_s": ("resume, s", 2),
    "restart_s": ("with its start, s", 2),
}

Found = dict[str, Mapping[str, float] | str]


def run(options: Options) -> Outcome:
    """Measure everything that is installed, on both stores."""
    present, absent = choose(KNOWN, options.only)
    long = measure(QUICK_TURNS if options.quick else TURNS, present, absent)
    calls, rounds = (QUICK_CALLS, 1) if options.quick else (CALLS, ROUNDS)
    with scratch() as folder:
        adapter = agent_adapter.measure(calls, rounds, present, folder)
    texts = f"{long.text}\n\n{adapter.text}"
    return Outcome(texts, {**long.figures, "adapter": adapter.figures}, only_figures=True)


def measure(turns: int, contenders: Sequence[Contender], absent: Sequence[str] = ()) -> Outcome:
    """Let every contender do its turns on every store."""
    texts = [_heading(turns, absent)]
    figures: dict[str, dict[str, float]] = {}
    for store in STORES:
        if store == POSTGRES and not postgres.is_installed():
            texts.append(f"Skipped: PostgreSQL, which comes with the package {postgres.PACKAGE}")
            continue
        found = _measure_store(store, turns, contenders)
        texts.append(_table(store, found))
        figures[store] = _figures(found)
        ours = {name: value for name, value in figures[store].items() if name in GOALS}
        texts.append(figure_table(ours, GOALS))
    return Outcome("\n\n".join(texts), figures, only_figures=True)


def _measure_store(store: str, turns: int, contenders: Sequence[Contender]) -> Found:
    found: Found = {}
    with scratch() as folder, server_of(store, folder) as server:
        for contender in contenders:
            show(f"{store}: {contender.name}")
            size = Size(steps=round(turns * _SHARE.get(contender.name, 1)), limit=_LIMIT)
            order = Order(contender.name, "agent", store, str(folder), server, size)
            found[contender.name] = _answer(order)
    show("")
    return found


def _answer(order: Order) -> Mapping[str, float] | str:
    """Return the figures of a trial, or why it has none."""
    try:
        answer = json.loads(run_command(order.command(), 3 * _LIMIT, environment()))
    except (TrialFailed, ValueError) as failure:
        return str(failure)
    return str(answer["unsupported"]) if "unsupported" in answer else answer


def _figures(found: Found) -> dict[str, float]:
    """Return our figures by name, and those of the others after theirs."""
    return {
        name if contender == OURS.name else f"{contender}_{name}": value
        for contender, answer in found.items()
        if not isinstance(answer, str)
        for name, value in answer.items()
    }


# The text


def _heading(turns: int, absent: Sequence[str]) -> str:
    shares = [f"{name} {share:.0%} of them" for name, share in _SHARE.items()]
    lines = [
        f"{machine()}, {time.strftime('%Y-%m-%d %H:%M')}",
        f"An agent of {turns:,} turns ({', '.join(shares)}, since its store grows too fast). Each",
        "adds 4 KB to the history and gets all of it; then kill -9, and another worker resumes it.",
        "The database is what the contender added: with SQLite's log, without the server's own.",
    ]
    lines += [f"Not installed: {', '.join(absent)}"] if absent else []
    return "\n".join(lines)


def _table(store: str, found: Found) -> str:
    head = [store, *(title for title, _ in _COLUMNS.values())]
    rows = [_row(name, answer) for name, answer in found.items() if not isinstance(answer, str)]
    skipped = [f"{name}: {why}" for name, why in found.items() if isinstance(why, str)]
    return "\n".join([render(head, rows), *skipped])


def _row(name: str, answer: Mapping[str, float]) -> list[str]:
    cells = [f"{answer[column]:,.{digits}f}" for column, (_, digits) in _COLUMNS.items()]
    return [name, *cells]
