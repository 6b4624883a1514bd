"""The clerk: looks at the clock for approvals, and reminds, escalates and expires."""

from functools import partial
from typing import Final

from perdure.engine.node import Node
from perdure.engine.outage import repeat

_LOOK_EVERY: Final = 1.0


async def watch_clock(node: Node) -> None:
    """Look again and again, for ever; whichever worker comes first does it."""
    work = partial(_look, node)
    await repeat("looking at the clock for approvals", work, _LOOK_EVERY, node.loop.time)


async def _look(node: Node) -> None:
    if await node.store.let_time_pass():
        node.told.set()
        node.poke()
