"""One measurement: ``python -m bench.durable.trial`` reads an ``Order``, prints one line of JSON.

The client runs here, its worker in a process of its own.
"""

import importlib
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.durable.place import Place, fresh
from bench.durable.plan import Figures, Size
from bench.runner import TrialFailed


@dataclass(frozen=True)
class Order:
    """What to measure, of whom, and where."""

    contender: str
    workload: str
    store: str
    folder: str
    server: str = ""
    size: Size = field(default_factory=Size)

    def command(self) -> tuple[str, ...]:
        return sys.executable, "-m", "bench.durable.trial", json.dumps(asdict(self))


# By module, so that a peer is measured also where Perdure cannot be imported.
_MODULES = {
    "speed": "workload",
    "restart": "workload",
    "growth": "workload",
    "claims": "ours",
    "effect": "ours",
    "children": "ours",
    "agent": "agent",
}


def _workload(name: str) -> Callable[[str, Place, Size], Figures]:
    found = importlib.import_module(f"bench.durable.{_MODULES[name]}")
    return getattr(found, name)


def main(text: str) -> None:
    warnings.simplefilter("ignore")  # of peers
    given = json.loads(text)
    order = Order(**given | {"size": Size(**given["size"])})
    with fresh(order.store, Path(order.folder), order.server) as place:
        try:
            answer: object = _workload(order.workload)(order.contender, place, order.size)
        except TrialFailed as failure:
            answer = {"unsupported": str(failure)}
        except Exception as error:  # noqa: BLE001  any peer may fail in its own way
            told = str(error).strip().splitlines() or [""]
            answer = {"unsupported": f"{type(error).__name__}: {told[0]}"}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
