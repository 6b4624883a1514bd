"""What a durable model call costs with an adapter: ours for pydantic-ai, and that of DBOS.

``python -m bench.agent_adapter CONTENDER CALLS FOLDER`` runs an agent of pydantic-ai, whose model
answers at once, so many times in one job on SQLite, and as often outside of it. What the median
call costs more in the job is printed, in milliseconds.
"""

import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.contenders import Contender
from bench.outcome import Goal, Outcome, figure_table
from bench.runner import Trial, run_rounds

CALLS, QUICK_CALLS, ROUNDS = 300, 50, 3
_BUDGET = "perdure, under a limit"
GOALS = {
    "call_ms": Goal(3, at_most=True),
    "budget_call_ms": Goal(3, at_most=True),  # under a limit, which is checked before each call
    "vs_dbos": Goal(1),
}
_FIGURES = {"perdure": "call_ms", _BUDGET: "budget_call_ms", "dbos": "dbos_call_ms"}
_WARM_UP = 20
_LIMIT = 300.0  # seconds of one trial


def measure(calls: int, rounds: int, contenders: Sequence[Contender], folder: Path) -> Outcome:
    """Measure every contender that has an adapter for pydantic-ai, in turn."""
    trials: list[Trial] = []
    names = {each.name for each in contenders}
    wanted = [each for each in _IN if each.partition(",")[0] in names]
    for number in range(rounds):
        for place, name in enumerate(wanted):
            own = folder / f"{place}-{number}"
            own.mkdir()
            command = (sys.executable, "-m", __name__, name, str(calls), str(own))
            trials.append(Trial(name, f"round {number}", command))
    results = run_rounds(trials, 1, _LIMIT)
    found = {
        name: statistics.median(samples)
        for name in _IN
        if (samples := [value[0] for key, value in results.samples.items() if key[0] == name])
    }
    figures = {_FIGURES[name]: value for name, value in found.items()}
    if {"perdure", "dbos"} <= found.keys():
        figures["vs_dbos"] = found["dbos"] / found["perdure"]
    skipped = [f"{key[0]}: {why}" for key, why in results.skipped.items()]
    text = "A model call by an agent of pydantic-ai in a job, on SQLite: what it costs more"
    return Outcome("\n".join([text, figure_table(figures, GOALS), *skipped]), figures)


def _agent(durability: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    async def answer(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("an answer " * 20)])

    model = FunctionModel(answer, model_name="m")
    return Agent(model, name="agent", capabilities=[durability] if durability else [])


async def _seconds(agent: Any, calls: int) -> float:
    for _ in range(_WARM_UP):
        await agent.run("a question")
    found: list[float] = []
    for _ in range(calls):
        began = time.perf_counter()
        await agent.run("a question")
        found.append(time.perf_counter() - began)
    return statistics.median(found)


async def _in_perdure(calls: int, folder: str, *, tokens: int | None = None) -> float:
    import perdure
    from perdure.integrations.pydantic_ai import PerdureDurability

    app, agent = perdure.App(f"sqlite:///{folder}/ours.db"), _agent(PerdureDurability())

    @app.job(budget=perdure.BudgetLimits(tokens=tokens))
    async def job() -> float:
        return await _seconds(agent, calls)

    try:
        return await app.run(job())
    finally:
        await app.close()


async def _in_dbos(calls: int, folder: str) -> float:
    from dbos import DBOS, DBOSConfig
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    logging.disable(logging.WARNING)
    config = DBOSConfig(name="bench", system_database_url=f"sqlite:///{folder}/dbos.db")
    DBOS(config=config)
    agent = _agent(DBOSDurability())

    @DBOS.workflow()
    async def job() -> float:
        return await _seconds(agent, calls)

    DBOS.launch()
    try:
        return await job()
    finally:
        DBOS.destroy()


_IN: dict[str, Callable[[int, str], Awaitable[float]]] = {
    "perdure": _in_perdure,
    _BUDGET: partial(_in_perdure, tokens=10**12),
    "dbos": _in_dbos,
}


async def overhead(contender: str, calls: int, folder: str) -> float:
    """Return what a call costs more in a job than outside of it, in milliseconds."""
    inside = await _IN[contender](calls, folder)
    return (inside - await _seconds(_agent(None), calls)) * 1000


if __name__ == "__main__":
    name, number, place = sys.argv[1:]
    print(json.dumps({"value": asyncio.run(overhead(name, int(number), place))}))
