"""The command ``python -m bench NAME [--quick] [--json] [--only CONTENDER …]``.

A new benchmark is a module with a function ``run(options) -> Outcome``, named in ``BENCHES``.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from bench import agent, api, fleet, hosts, kernel, otp, walk
from bench.durable.bench import run as run_durable
from bench.outcome import Options, Outcome


def _langgraph(options: Options) -> Outcome:
    """Measure checkpointers; only this benchmark imports LangGraph, which takes a second."""
    return import_module("bench.langgraph").run(options)


BENCHES: dict[str, Callable[[Options], Outcome]] = {
    "agent": agent.run,
    "api": api.run,
    "durable": run_durable,
    "fleet": fleet.run,
    "hosts": hosts.run,
    "kernel": kernel.run,
    "langgraph": _langgraph,
    "otp": otp.run,
    "walk": walk.run,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark and print its table; with ``--json`` its figures are the last line."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.name is None:
        print("Benchmarks:", *sorted(BENCHES))
        return 0
    try:
        outcome = BENCHES[given.name](Options(quick=given.quick, only=tuple(given.only)))
    except ValueError as error:
        parser.error(str(error))
    if given.json and outcome.only_figures:
        print(json.dumps(outcome.figures))
        return 0
    print(outcome.text)
    if given.json:
        print(json.dumps({"bench": given.name, "figures": outcome.figures}))
    else:
        print("\nWith --json the last line holds these figures as a JSON object.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Perdure beside its peers."
    )
    parser.add_argument("name", nargs="?", choices=sorted(BENCHES), help="without it: list them")
    parser.add_argument("--quick", action="store_true", help="three small rounds, under a minute")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="CONTENDER",
        help="measure these contenders, or walks, alone",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
