"""What the contenders share: the definitions of the workloads, the clock, the measure of memory.

A contender is a module of ``bench.contenders`` with a function for each workload that it can do.
The function gets ``n``, the number of operations, and returns the seconds of the hot part alone
(``idle``: the bytes); set-up and checks stay outside the clock. One operation is:

====================  ============================================================================
``pingpong``          one round trip of two messages between two processes
``call``              one request and reply; a time-out, and failure at once when the server dies
``fan_in``            one message of 100 senders to one receiver; a sender yields after each 100
``spawn``             the start and the normal end of one trivial process
``cascade``           the death of one process in a chain of linked ones, when the first is killed
``idle``              one process that waits on its inbox (resident bytes)
``server_call``       as ``call``, of the ready-made server of the contender
``agent_update``      one update of a state that a process holds, acknowledged before the next
``stream_unordered``  one item of an async function over many items, 100 at once; an item has a
                      time-out, and its failure is a value that ends no other item
``stream_ordered``    the same, with the results in the order of the items
``restart``           a crash of a supervised server, its restart, and an answer of the new one;
                      at the pace of the fastest batch of them, which is steady on a busy machine
====================  ============================================================================
"""

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

SENDERS = 100
BURST = 100
CALL_TIMEOUT = 5.0
ITEM_TIMEOUT = 5.0
WINDOW = 100
# A new supervisor after so many restarts: some walk through the earlier ones at each restart.
RESTARTS = 50

# Processor time, since nothing here waits: what else the machine does matters less.
clock = time.process_time

_STATM = Path("/proc/self/statm")


class Unsupported(Exception):
    """The contender, or this machine, cannot do the workload."""


def resident_bytes() -> int:
    """Return the resident memory of this OS process."""
    if not _STATM.exists():
        raise Unsupported("resident memory can be read on Linux only")
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def expect(truth: object, what: str) -> None:
    """Refuse a figure for work that was not done."""
    if not truth:
        raise RuntimeError(f"the work was not done: {what}")


async def fastest(n: int, most: int, run_batch: Callable[[int], Awaitable[float]]) -> float:
    """Return the seconds of ``n`` operations at the pace of the fastest of their batches.

    What else the machine does makes a batch slower, and nothing makes it faster.
    """
    return n * min([await run_batch(size) / size for size in batches(n, most)])


def batches(n: int, most: int) -> list[int]:
    """Split ``n`` operations into batches of ``most``, and one with the rest."""
    whole, rest = divmod(n, most)
    return [most] * whole + [rest] * bool(rest)
