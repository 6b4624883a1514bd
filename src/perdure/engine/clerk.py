"""The clerk: looks at the clock for approvals, and reminds, escalates and expires."""

import logging
from typing import Final

from perdure.base.errors import StoreError
from perdure.base.retry import pause
from perdure.engine.node import Node

_log = logging.getLogger("perdure.worker")

_LOOK_EVERY: Final = 1.0


async def watch_clock(node: Node) -> None:
    """Look again and again, for ever; whichever worker comes first does it."""
    while True:
        try:
            if await node.store.let_time_pass():
                node.told.set()
                node.poke()
        except StoreError as error:
            _log.warning("looking at the clock for approvals: %s", error)
        await pause(_LOOK_EVERY)
