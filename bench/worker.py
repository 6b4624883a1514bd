"""One measurement: ``python -m bench.worker CONTENDER WORKLOAD N`` prints one line of JSON.

Each has a fresh interpreter: no garbage, caches or leftovers of another measurement.
"""

import gc
import importlib
import json
import sys
from collections.abc import Callable

from bench.workload import Unsupported


def main(contender: str, workload: str, n: int) -> None:
    """Run one workload of one contender and print its cost for each operation."""
    module = importlib.import_module(f"bench.contenders.{contender}")
    function: Callable[[int], float] | None = getattr(module, workload, None)
    if function is None:
        answer: dict[str, object] = {
            "unsupported": "it has no such thing, or it is not written here"
        }
    else:
        answer = _measure(function, n)
    print(json.dumps(answer), flush=True)


def _measure(function: Callable[[int], float], n: int) -> dict[str, object]:
    # The collector skips frozen objects: the size of a contender's imports costs it nothing.
    gc.collect()
    gc.freeze()
    try:
        return {"value": function(n) / n}
    except Unsupported as error:
        return {"unsupported": str(error)}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
